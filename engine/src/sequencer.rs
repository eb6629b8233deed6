//! The sequencer: words in, unit jobs out. The one place where a command is dispatched.

use crate::units::{
    Act, Add, Attend, CacheAppend, Conv, Delta, DeltaGate, Embed, Gate, GatedNorm, HeadNorm, L2Norm, Matvec, Norm,
    Rotate, RoutedMatvec, Scale, SoftCap, TopK, UnitError, Units,
};
use wordline_ir::command::DecodeError;
use wordline_ir::{Command, Cut, Defects, Ends, LayerId, Program, ProgramError, Word, verify_part};

/// Why a list of words is no program the engine can run.
#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    /// A word is no command.
    #[error("word {index}: {source}")]
    Decode {
        /// Index of the word.
        index: usize,
        /// Why.
        source: DecodeError,
    },
    /// A command cannot be written as a word.
    #[error(transparent)]
    Encode(#[from] ProgramError),
    /// The words are commands, and the program is not sound.
    #[error(transparent)]
    Unsound(#[from] Defects),
    /// The program was read off no cut of a model's step, as the oracle's: it was made for comparison.
    #[error("the program was read off no cut of a model's step: it is there for comparison; run one that was lowered")]
    NoCut,
}

/// A program as the engine runs it: decoded from its words and verified. Units and models are made from nothing else.
#[derive(Clone, Debug)]
pub struct Sequencer {
    program: Program,
    /// First command of the tail: the commands after the last layer, which run for rows that want logits only.
    tail: usize,
}

impl Sequencer {
    /// Decode and verify words over a program's tables (its slots, tensors and ropes; its commands are not looked at).
    ///
    /// # Errors
    /// A word is no command, the program is not sound, or it was read off no cut.
    pub fn from_words(tables: &Program, words: &[Word]) -> Result<Self, WordsError> {
        if tables.identity.cut == Cut::NONE {
            return Err(WordsError::NoCut);
        }
        let decode =
            |(index, word): (usize, &Word)| word.decode().map_err(|source| WordsError::Decode { index, source });
        let commands = words.iter().enumerate().map(decode).collect::<Result<Vec<_>, _>>()?;
        let program = Program { commands, ..tables.clone() };
        verify_part(&program, Ends::of(&program))?;
        Ok(Self::unverified(program))
    }

    /// A sequencer over a program that was not verified, for tests that show what a defect does. Slots that nothing
    /// wrote read as zeros; a program whose shapes do not agree may panic.
    #[must_use]
    pub fn unverified(program: Program) -> Self {
        let outside = |c: &Command| c.layer() == LayerId::OUTSIDE;
        let last = program.commands.iter().rposition(|c| !outside(c) || matches!(c, Command::Embed { .. }));
        let tail = last.map_or(0, |last| last + 1);
        Self { program, tail }
    }

    /// Encode a program's commands and decode them again.
    ///
    /// # Errors
    /// A command does not fit a word, or as [`Sequencer::from_words`].
    pub fn new(program: &Program) -> Result<Self, WordsError> {
        let words = program.commands.iter().map(Word::encode).collect::<Result<Vec<_>, _>>()?;
        Self::from_words(program, &words)
    }

    /// The program, its commands as decoded.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Commands that every row of a step runs.
    #[must_use]
    pub fn body(&self) -> std::ops::Range<usize> {
        0..self.tail
    }

    /// Commands that only rows that want logits run.
    #[must_use]
    pub fn tail(&self) -> std::ops::Range<usize> {
        self.tail..self.program.commands.len()
    }
}

/// Run one command on the units, over every row of the step.
///
/// # Errors
/// The unit's.
pub fn issue(units: &mut dyn Units, command: &Command) -> Result<(), UnitError> {
    match *command {
        Command::Embed { layer: _, out, table, positions, scale } => {
            units.embed(&Embed { out, table, positions, scale: scale.get() })
        }
        Command::Norm { layer: _, x, out, weight, bias, kind, eps } => {
            units.norm(&Norm { x, out, weight, bias, kind, eps: eps.get() })
        }
        Command::HeadNorm { layer: _, qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps } => {
            let (heads, kv_heads, head_dim) = (heads.into(), kv_heads.into(), head_dim.into());
            units.head_norm(&HeadNorm { qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps: eps.get() })
        }
        Command::Rope { layer: _, qkv, heads, kv_heads, head_dim, rot, table, scale } => {
            let (heads, kv_heads, head_dim, rot) = (heads.into(), kv_heads.into(), head_dim.into(), rot.into());
            units.rotate(&Rotate { qkv, heads, kv_heads, head_dim, rot, table, scale: scale.get() })
        }
        Command::Scale { layer: _, x, width, scale } => {
            units.scale(&Scale { x, width: (width != 0).then_some(width.into()), scale: scale.get() })
        }
        Command::Matvec { layer, x, y, weight, bias, offset } => {
            units.matvec(&Matvec { x, y, weight, bias, offset: offset.0 as usize, head: layer == LayerId::OUTSIDE })
        }
        Command::CacheAppend { layer, qkv, heads, kv_heads, head_dim, v_dim } => units.cache_append(&CacheAppend {
            layer: layer.0.into(),
            qkv,
            heads: heads.into(),
            kv_heads: kv_heads.into(),
            head_dim: head_dim.into(),
            v_dim: v_dim.into(),
        }),
        Command::Attend { layer, qkv, out, heads, kv_heads, head_dim, window, cap } => units.attend(&Attend {
            layer: layer.0.into(),
            qkv,
            out,
            heads: heads.into(),
            kv_heads: kv_heads.into(),
            head_dim: head_dim.into(),
            window: (window != 0).then_some(window.into()),
            cap: (cap.get() != 0.0).then_some(cap.get()),
        }),
        Command::Gate { layer: _, x, gate, out, group } => units.gate(&Gate { x, gate, out, group: group.into() }),
        Command::Conv { layer, x, out, weight, bias, channels, taps, act } => {
            let (layer, channels, taps) = (layer.0.into(), channels.into(), taps.into());
            units.conv(&Conv { layer, x, out, weight, bias, channels, taps, act })
        }
        Command::L2Norm { layer: _, x, heads, head_dim, eps } => {
            units.l2_norm(&L2Norm { x, heads: heads.into(), head_dim: head_dim.into(), eps: eps.get() })
        }
        Command::DeltaGate { layer: _, ba, gb, a_log, dt_bias, heads } => {
            units.delta_gate(&DeltaGate { ba, gb, a_log, dt_bias, heads: heads.into() })
        }
        Command::Delta { layer, qkv, gb, out, key_heads, value_heads, key_dim, value_dim, share, scale } => units
            .delta(&Delta {
                layer: layer.0.into(),
                qkv,
                gb,
                out,
                key_heads: key_heads.into(),
                value_heads: value_heads.into(),
                key_dim: key_dim.into(),
                value_dim: value_dim.into(),
                share: share.0 as usize,
                scale: scale.get(),
            }),
        Command::GatedNorm { layer: _, x, gate, out, weight, heads, head_dim, act, eps } => {
            let (heads, head_dim) = (heads.into(), head_dim.into());
            units.gated_norm(&GatedNorm { x, gate, out, weight, heads, head_dim, act, eps: eps.get() })
        }
        Command::Act { layer: _, x, out, kind, gated, groups } => {
            units.act(&Act { x, out, kind, gated, groups: groups.into() })
        }
        Command::Add { layer: _, x, y, out, scale } => units.add(&Add { x, y, out, scale: scale.get() }),
        Command::SoftCap { layer: _, x, cap } => units.soft_cap(&SoftCap { x, cap: cap.get() }),
        Command::TopK { layer: _, logits, picks, weights, experts, k, renormalise } => {
            units.top_k(&TopK { logits, picks, weights, experts: experts.into(), k: k.into(), renormalise })
        }
        Command::RoutedMatvec { layer: _, x, picks, weights, y, stack, k } => {
            units.routed_matvec(&RoutedMatvec { x, picks, weights, y, stack, k: k.into() })
        }
    }
}
