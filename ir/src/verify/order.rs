//! Invariants 11 and 14: where commands stand, and the state that layers hold.

use super::{At, Defect, DefectKind, Ends, limits};
use crate::{Command, Cut, LayerId, Program, Slot};

/// `sound[i]` tells that command i has passed the invariants of a command by itself.
pub(super) fn check(program: &Program, ends: Ends, sound: &[bool], found: &mut Vec<Defect>) {
    sections(program, ends, found);
    logits(program, ends, found);
    layers(program, found);
    let mut state = vec![Held::default(); usize::from(LayerId::OUTSIDE.0)];
    for (index, command) in program.commands.iter().enumerate() {
        let at = At::command(program, index);
        let mut push = |kind| found.push(Defect { at: at.clone(), kind });
        match state.get_mut(usize::from(command.layer().0)) {
            Some(held) if sound.get(index) == Some(&true) => held.command(program, index, command, &mut push),
            // What is wrong with it is known; that it stands here is enough for the commands that need it.
            Some(held) => held.presume(index, command),
            None if is_layered(command) => {
                push(DefectKind::Order("heads and state belong to a layer; give the command's layer"));
            }
            None => {}
        }
    }
    for held in state {
        if let Some(Cache { index, attended: false, .. }) = held.cache {
            let kind = DefectKind::Order("nothing attends to this cache; drop the command or add an attend");
            found.push(Defect { at: At::command(program, index), kind });
        }
    }
}

/// Commands that hold state of a layer, or work on its heads.
fn is_layered(command: &Command) -> bool {
    matches!(
        command,
        Command::HeadNorm { .. }
            | Command::Rope { .. }
            | Command::CacheAppend { .. }
            | Command::Attend { .. }
            | Command::Conv { .. }
            | Command::Delta { .. }
    )
}

/// Embedding, layers in rising order, readout.
fn sections(program: &Program, ends: Ends, found: &mut Vec<Defect>) {
    let mut previous: Option<LayerId> = None;
    let mut in_layers = false;
    for (index, command) in program.commands.iter().enumerate() {
        let layer = command.layer();
        let outside = layer == LayerId::OUTSIDE;
        let embed = matches!(command, Command::Embed { .. });
        let wrong = if embed && !ends.embeds {
            Some("this part of a model takes 'x' from another; drop the embedding")
        } else if embed && (index != 0 || !outside) {
            Some("the embedding is the first command, outside any layer")
        } else if index == 0 && !embed && ends.embeds {
            Some("a program begins with the embedding; put it first")
        } else if outside && !in_layers && !embed && !ends.embeds && has_layers(program) {
            Some("nothing stands before the layers of a part that does not embed")
        } else if outside && in_layers && !ends.reads_out {
            Some("this part of a model gives 'x' to another; drop what follows its layers")
        } else if !outside && in_layers && previous == Some(LayerId::OUTSIDE) {
            Some("no layer follows the readout; move the command up")
        } else if !outside && previous.is_some_and(|p| p != LayerId::OUTSIDE && p > layer) {
            Some("layers stand in rising order; move the command up")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            found.push(Defect { at: At::command(program, index), kind: DefectKind::Order(wrong) });
        }
        in_layers |= !outside;
        previous = Some(layer);
    }
}

fn has_layers(program: &Program) -> bool {
    program.commands.iter().any(|c| c.layer() != LayerId::OUTSIDE)
}

/// The last command writes the logits, as many as there are tokens.
fn logits(program: &Program, ends: Ends, found: &mut Vec<Defect>) {
    let Some(last) = program.commands.len().checked_sub(1) else { return };
    if !ends.reads_out {
        return;
    }
    let command = &program.commands[last];
    let writes = command.slots().any(|(field, slot)| slot == Slot::Logits && field.role.writes());
    if !writes || command.layer() != LayerId::OUTSIDE {
        let kind = DefectKind::Order("a program ends with a command outside any layer that writes 'logits'");
        found.push(Defect { at: At::command(program, last), kind });
    }
    if let (Some(Command::Embed { table, .. }), Some(width)) = (program.commands.first(), program.width(Slot::Logits))
        && let Some(table) = program.tensor(*table)
        && table.rows != width
    {
        let (given, needed) = (width as u64, table.rows as u64);
        let why = "one a row of the embedding".to_owned();
        let kind = DefectKind::Width { field: "logits", slot: Slot::Logits, given, needed, why };
        found.push(Defect { at: At::command(program, last), kind });
    }
}

/// The commands' layers are those of the cut, or all from 0 on.
fn layers(program: &Program, found: &mut Vec<Defect>) {
    let in_layers = program.commands.iter().map(Command::layer).filter(|layer| *layer != LayerId::OUTSIDE);
    let (first, last) = match program.identity.cut {
        Cut::NONE => (0, in_layers.max().map_or(0, |layer| usize::from(layer.0) + 1)),
        cut => (cut.first_layer, cut.last_layer),
    };
    let mut held = [false; LayerId::OUTSIDE.0 as usize];
    for (index, command) in program.commands.iter().enumerate() {
        let layer = usize::from(command.layer().0);
        let seen = held.get_mut(layer).map(|held| std::mem::replace(held, true));
        if seen == Some(false) && !(first..last).contains(&layer) {
            found.push(Defect { at: At::command(program, index), kind: DefectKind::OutsideCut { first, last } });
        }
    }
    // A cut that is no run of layers is a defect of the identity.
    let cut = held.iter().enumerate().take(last).skip(first).filter(|_| last <= held.len());
    let missing: Vec<usize> = cut.filter(|(_, held)| !**held).map(|(layer, _)| layer).collect();
    if let (Some(one), Some(end)) = (missing.first(), missing.last()) {
        let layers = match missing.len() {
            1 => format!("layer {one} is"),
            n => format!("{n} layers from {one} to {end} are"),
        };
        found.push(Defect { at: At::Program, kind: DefectKind::NoLayer { layers, first, last } });
    }
}

/// The cache of a layer and how it was filled.
#[derive(Clone, Copy)]
struct Cache {
    index: usize,
    qkv: Slot,
    /// None when the command is faulty.
    v_dim: Option<u16>,
    attended: bool,
}

/// What a layer holds so far.
#[derive(Clone, Copy, Default)]
struct Held {
    cache: Option<Cache>,
    conv: Option<usize>,
    delta: Option<usize>,
    heads: Option<(usize, [u16; 3])>,
}

impl Held {
    fn command(&mut self, program: &Program, index: usize, command: &Command, push: &mut impl FnMut(DefectKind)) {
        let once = |first: &mut Option<usize>, push: &mut dyn FnMut(DefectKind)| match *first {
            Some(other) => push(DefectKind::State { other }),
            None => *first = Some(index),
        };
        if let Some(cache) = self.cache
            && command.slots().any(|(field, slot)| slot == cache.qkv && field.role.writes())
        {
            push(DefectKind::Order("nothing changes q, k and v behind their cache_append; move the command up"));
        }
        match *command {
            Command::HeadNorm { heads, kv_heads, head_dim, .. } | Command::Rope { heads, kv_heads, head_dim, .. } => {
                self.geometry(index, [heads, kv_heads, head_dim], push);
            }
            Command::CacheAppend { qkv, heads, kv_heads, head_dim, v_dim, .. } => {
                self.geometry(index, [heads, kv_heads, head_dim], push);
                match self.cache {
                    Some(Cache { index: other, .. }) => push(DefectKind::State { other }),
                    None => self.cache = Some(Cache { index, qkv, v_dim: Some(v_dim), attended: false }),
                }
                let row = u128::from(kv_heads) * (u128::from(head_dim) + u128::from(v_dim));
                let (what, given) = ("the cache of all positions", row * program.max_pos as u128);
                if given > limits::CACHE {
                    push(DefectKind::Limit { what, given, limit: limits::CACHE });
                }
            }
            Command::Attend { qkv, out, heads, kv_heads, head_dim, .. } => {
                self.geometry(index, [heads, kv_heads, head_dim], push);
                let Some(cache) = &mut self.cache else {
                    return push(DefectKind::Order("its layer has no cache; put a cache_append before it"));
                };
                cache.attended = true;
                if cache.qkv != qkv {
                    push(DefectKind::Order("it reads another slot than the layer's cache_append; make them one"));
                }
                let Some(v_dim) = cache.v_dim else { return };
                let (given, needed) = (program.width(out).unwrap_or(0) as u64, u64::from(heads) * u64::from(v_dim));
                if given != needed {
                    let why = "heads * the cache's v_dim".to_owned();
                    push(DefectKind::Width { field: "out", slot: out, given, needed, why });
                }
            }
            Command::Conv { channels, taps, .. } => {
                once(&mut self.conv, push);
                state_size(u128::from(channels) * u128::from(taps), push);
            }
            Command::Delta { value_heads, key_dim, value_dim, .. } => {
                once(&mut self.delta, push);
                state_size(u128::from(value_heads) * u128::from(key_dim) * u128::from(value_dim), push);
            }
            _ => {}
        }
    }

    /// Take a faulty command for the one that was meant.
    fn presume(&mut self, index: usize, command: &Command) {
        match *command {
            Command::CacheAppend { qkv, .. } if self.cache.is_none() => {
                self.cache = Some(Cache { index, qkv, v_dim: None, attended: false });
            }
            Command::Attend { .. } => {
                if let Some(cache) = &mut self.cache {
                    cache.attended = true;
                }
            }
            _ => {}
        }
    }

    fn geometry(&mut self, index: usize, given: [u16; 3], push: &mut impl FnMut(DefectKind)) {
        let (other, needed) = *self.heads.get_or_insert((index, given));
        if given != needed {
            push(DefectKind::Geometry { other, given, needed });
        }
    }
}

fn state_size(given: u128, push: &mut impl FnMut(DefectKind)) {
    if given > limits::STATE {
        push(DefectKind::Limit { what: "a layer's state", given, limit: limits::STATE });
    }
}
