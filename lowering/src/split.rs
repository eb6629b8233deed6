//! `split`: a program cut into the programs of pipeline stages, by layers.
//!
//! Words stay as they are: tensors and rotary tables keep their indices in the whole program's tables, so that a command on
//! a stage is bit for bit the command of the whole. The head stage, the first, holds both ends: the embedding before its
//! layers, and the final norm and the head, which run once the last stage has given `x` back.

use std::collections::BTreeSet;
use std::ops::Range;
use wordline_ir::{Command, LayerId, Program, Slot, SlotInfo, TensorId};

/// The program of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its commands, over the whole program's tables; its identity records its cut.
    pub program: Program,
    /// Commands before the hop to the next stage: the embedding and layers. Those after it, on the head stage alone, read
    /// `x` as the last stage gave it back.
    pub before_hop: usize,
    /// The tensors that its commands index: all that its weight image holds.
    pub tensors: Vec<TensorId>,
}

/// Why a program cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// No stages.
    #[error("a plan without stages; give one layer range a stage, the head's first")]
    NoStages,
    /// A range does not begin where the one before it ended.
    #[error("stage {stage} begins at layer {given}, layer {needed} comes next; stages hold every layer once, in order")]
    Gap {
        /// The stage.
        stage: usize,
        /// Its first layer.
        given: usize,
        /// The layer that comes next.
        needed: usize,
    },
    /// A range that ends before it begins, or an empty one on a stage that is not the head.
    #[error("stage {stage} holds no layers ({start}..{end}); only the head stage may")]
    Empty {
        /// The stage.
        stage: usize,
        /// First layer.
        start: usize,
        /// One past the last layer.
        end: usize,
    },
    /// The ranges do not end with the program's last layer.
    #[error("the stages end at layer {given}, the program at layer {needed}")]
    End {
        /// Where the ranges end.
        given: usize,
        /// Where the program ends.
        needed: usize,
    },
    /// A command's layer is not among the layers that the identity's cut records, or is out of order.
    #[error("command {command}, of layer {layer}, does not stand between the embedding and the head in layer order")]
    Order {
        /// Index of the command.
        command: usize,
        /// Its layer.
        layer: u8,
    },
    /// A command reads what another stage made, and only `x` goes from stage to stage.
    #[error("command {command} reads slot '{}', which stage {stage} has not written; only 'x' passes between stages", slot.name())]
    Crosses {
        /// Index of the command in the whole program.
        command: usize,
        /// The stage.
        stage: usize,
        /// The slot.
        slot: Slot,
    },
}

/// The three sections of a program's commands: embedding, layers, final norm and head.
struct Sections {
    layers: Range<usize>,
    end: usize,
}

/// Cut a whole program into stages of these layers, the head stage first.
///
/// # Errors
/// [`SplitError`] names the stage or the command that stands in the way.
pub fn split(program: &Program, ranges: &[Range<usize>]) -> Result<Vec<Stage>, SplitError> {
    let cut = program.identity.cut;
    cover(ranges, cut.first_layer..cut.last_layer)?;
    let sections = sections(program, cut.first_layer..cut.last_layer)?;
    let stages: Vec<Stage> = ranges.iter().enumerate().map(|(i, range)| stage(program, &sections, i, range)).collect();
    crossings(program, &sections, ranges)?;
    Ok(stages)
}

/// The stages' commands in the order of a lap: the head's before its hop, the others', the head's after.
#[must_use]
pub fn join(stages: &[Stage]) -> Vec<Command> {
    let before = stages.iter().flat_map(|s| s.program.commands.iter().take(s.before_hop));
    let after = stages.iter().flat_map(|s| s.program.commands.iter().skip(s.before_hop));
    before.chain(after).copied().collect()
}

/// Every layer once, in order; an empty range on the head stage alone.
fn cover(ranges: &[Range<usize>], layers: Range<usize>) -> Result<(), SplitError> {
    let mut next = layers.start;
    for (stage, range) in ranges.iter().enumerate() {
        let (start, end) = (range.start, range.end);
        if end < start || (end == start && stage > 0) {
            return Err(SplitError::Empty { stage, start, end });
        }
        if start != next {
            return Err(SplitError::Gap { stage, given: start, needed: next });
        }
        next = end;
    }
    match ranges {
        [] => Err(SplitError::NoStages),
        _ if next != layers.end => Err(SplitError::End { given: next, needed: layers.end }),
        _ => Ok(()),
    }
}

/// Where the layers' commands begin and end, once they stand in order.
fn sections(program: &Program, layers: Range<usize>) -> Result<Sections, SplitError> {
    let commands = &program.commands;
    let outside = |c: &Command| c.layer() == LayerId::OUTSIDE;
    let start = commands.iter().position(|c| !outside(c)).unwrap_or(0);
    let count = commands[start..].iter().take_while(|c| !outside(c)).count();
    let end = start + count;
    let mut previous = layers.start;
    for (command, c) in commands.iter().enumerate() {
        let layer = usize::from(c.layer().0);
        let inside = (start..end).contains(&command);
        let embed = matches!(c, Command::Embed { .. });
        let stands = match (inside, embed) {
            (true, _) => layer >= previous && layers.contains(&layer),
            (false, true) => command < start,
            (false, false) => outside(c) && command >= end,
        };
        if !stands {
            return Err(SplitError::Order { command, layer: c.layer().0 });
        }
        if inside {
            previous = layer;
        }
    }
    Ok(Sections { layers: start..end, end: commands.len() })
}

/// Indices, in the whole program, of a stage's commands before its hop.
fn before_hop<'a>(
    program: &'a Program,
    sections: &Sections,
    stage: usize,
    range: &'a Range<usize>,
) -> impl Iterator<Item = usize> + 'a {
    let embed = if stage == 0 { 0..sections.layers.start } else { 0..0 };
    let own = sections.layers.clone().filter(|i| range.contains(&usize::from(program.commands[*i].layer().0)));
    embed.chain(own)
}

fn stage(program: &Program, sections: &Sections, stage: usize, range: &Range<usize>) -> Stage {
    let mut commands: Vec<Command> = before_hop(program, sections, stage, range).map(|i| program.commands[i]).collect();
    let before_hop = commands.len();
    if stage == 0 {
        commands.extend_from_slice(&program.commands[sections.layers.end..sections.end]);
    }
    let tensors: BTreeSet<TensorId> = commands.iter().flat_map(|c| c.tensors().map(|(_, id)| id)).collect();
    let mut used: BTreeSet<Slot> = commands.iter().flat_map(|c| c.slots().map(|(_, slot)| slot)).collect();
    // A stage takes and gives `x` whatever its commands do with it.
    used.insert(Slot::X);
    let slots: Vec<SlotInfo> = program.slots.iter().filter(|info| used.contains(&info.slot)).copied().collect();
    let mut identity = program.identity.clone();
    (identity.cut.first_layer, identity.cut.last_layer) = (range.start, range.end);
    let program = Program {
        identity,
        max_pos: program.max_pos,
        slots,
        tensors: program.tensors.clone(),
        ropes: program.ropes.clone(),
        commands,
    };
    Stage { layers: range.clone(), program, before_hop, tensors: tensors.into_iter().collect() }
}

/// A stage begins with `x` alone: whatever else its commands read, they have written.
fn crossings(program: &Program, sections: &Sections, ranges: &[Range<usize>]) -> Result<(), SplitError> {
    for (stage, range) in ranges.iter().enumerate() {
        written_first(program, stage, before_hop(program, sections, stage, range))?;
    }
    written_first(program, 0, sections.layers.end..sections.end)
}

fn written_first(program: &Program, stage: usize, commands: impl Iterator<Item = usize>) -> Result<(), SplitError> {
    let mut written = BTreeSet::from([Slot::X]);
    for command in commands {
        let c = &program.commands[command];
        let unread = c.slots().find(|(field, slot)| field.role.reads() && !written.contains(slot));
        if let Some((_, slot)) = unread {
            return Err(SplitError::Crosses { command, stage, slot });
        }
        written.extend(c.slots().filter(|(field, _)| field.role.writes()).map(|(_, slot)| slot));
    }
    Ok(())
}
