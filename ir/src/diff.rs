//! `first_difference`: the first place where two programs differ, with both sides as text.

use crate::program::{Program, Tensor};
use crate::text::{command_text, rope_text, tensor_text};
use crate::{Command, SlotInfo, Word};
use serde::Serialize;
use std::fmt;

/// Where two programs first differ. An absent side has ended, or has no such entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "where")]
pub enum Difference {
    /// A command.
    Command {
        /// Its index.
        index: usize,
        /// The fields that differ: names of the command table; none when the commands' kinds differ or one side ends.
        fields: Vec<&'static str>,
        /// Text of the left program's command.
        left: Option<String>,
        /// Text of the right program's command.
        right: Option<String>,
    },
    /// A slot's entry.
    Slot {
        /// Index in the slot table.
        index: usize,
        /// Left entry.
        left: Option<String>,
        /// Right entry.
        right: Option<String>,
    },
    /// A tensor's entry.
    Tensor {
        /// Index in the tensor table.
        index: usize,
        /// Left entry, its view's parts included.
        left: Option<String>,
        /// Right entry.
        right: Option<String>,
    },
    /// A rotary recipe.
    Rope {
        /// Index in the rope table.
        index: usize,
        /// Left entry.
        left: Option<String>,
        /// Right entry.
        right: Option<String>,
    },
    /// A fact of the whole program.
    Program {
        /// Which.
        field: &'static str,
        /// Left value.
        left: String,
        /// Right value.
        right: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(none)".to_owned());
        let (what, left, right) = match self {
            Difference::Command { index, fields, left, right } => {
                let fields = if fields.is_empty() { String::new() } else { format!(" in {}", fields.join(", ")) };
                (format!("command {index} differs{fields}"), side(left), side(right))
            }
            Difference::Slot { index, left, right } => (format!("slot {index} differs"), side(left), side(right)),
            Difference::Tensor { index, left, right } => (format!("tensor {index} differs"), side(left), side(right)),
            Difference::Rope { index, left, right } => {
                (format!("rotary table {index} differs"), side(left), side(right))
            }
            Difference::Program { field, left, right } => (format!("{field} differs"), left.clone(), right.clone()),
        };
        // Entries of several lines keep their left edge.
        let indent = |text: String| text.trim_end().replace('\n', "\n         ");
        write!(f, "{what}\n  left:  {}\n  right: {}", indent(left), indent(right))
    }
}

/// The first difference of two programs: in their commands, then slots, tensors, rotary recipes, positions, identity.
///
/// The identity's cut is left out: it says what a program was read off, and the commands do not depend on it.
#[must_use]
pub fn first_difference(left: &Program, right: &Program) -> Option<Difference> {
    command(left, right).or_else(|| tables(left, right)).or_else(|| facts(left, right))
}

fn command(left: &Program, right: &Program) -> Option<Difference> {
    let index = first(&left.commands, &right.commands)?;
    let (a, b) = (left.commands.get(index), right.commands.get(index));
    let fields = match (a, b) {
        (Some(a), Some(b)) if a.info().code == b.info().code => differing(a, b),
        _ => Vec::new(),
    };
    let text = |program: &Program, command: &Command| command_text(program, command);
    let (mut l, mut r) = (a.map(|c| text(left, c)), b.map(|c| text(right, c)));
    if l == r {
        // Equal names at different indices: only the words show it.
        let word = |c: &Command| Word::encode(c).map_or_else(|e| e.to_string(), |w| w.to_string());
        l = l.zip(a).map(|(text, c)| format!("{text}  # {}", word(c)));
        r = r.zip(b).map(|(text, c)| format!("{text}  # {}", word(c)));
    }
    Some(Difference::Command { index, fields, left: l, right: r })
}

/// Names of the fields in which two commands of one kind differ.
fn differing(a: &Command, b: &Command) -> Vec<&'static str> {
    let (ra, rb) = (a.to_raw(), b.to_raw());
    let layer = (a.layer() != b.layer()).then_some("layer");
    let fields = a.info().places().filter(|(_, place)| ra.get(*place) != rb.get(*place)).map(|(field, _)| field.name);
    layer.into_iter().chain(fields).collect()
}

fn tables(left: &Program, right: &Program) -> Option<Difference> {
    let slot = |slots: &[SlotInfo], i: usize| slots.get(i).map(|s| format!("slot {} {}", s.slot.name(), s.width));
    let tensor = |tensors: &[Tensor], i: usize| tensors.get(i).map(tensor_text);
    if let Some(index) = first(&left.slots, &right.slots) {
        let (left, right) = (slot(&left.slots, index), slot(&right.slots, index));
        return Some(Difference::Slot { index, left, right });
    }
    if let Some(index) = first(&left.tensors, &right.tensors) {
        let (left, right) = (tensor(&left.tensors, index), tensor(&right.tensors, index));
        return Some(Difference::Tensor { index, left, right });
    }
    // By text, which shows every bit: two recipes that hold the same NaN are the same.
    let ropes = |p: &Program| p.ropes.iter().enumerate().map(|(i, r)| rope_text(i, r)).collect::<Vec<_>>();
    let (l, r) = (ropes(left), ropes(right));
    let index = first(&l, &r)?;
    Some(Difference::Rope { index, left: l.get(index).cloned(), right: r.get(index).cloned() })
}

fn facts(left: &Program, right: &Program) -> Option<Difference> {
    let facts = |p: &Program| {
        let (id, n) = (&p.identity, &p.identity.numerics);
        let limbs = [n.acts, n.queries, n.probs].map(|f| f.name()).join(", ");
        [
            ("max_pos", p.max_pos.to_string()),
            ("family", id.family.clone()),
            ("spec", id.spec.clone()),
            ("numerics", format!("{}, {limbs}, {} lanes", n.weights.name(), n.lanes)),
        ]
    };
    let differs = |((field, left), (_, right)): ((&'static str, String), (&'static str, String))| {
        (left != right).then_some(Difference::Program { field, left, right })
    };
    facts(left).into_iter().zip(facts(right)).find_map(differs)
}

/// The first index at which two lists differ.
fn first<T: PartialEq>(left: &[T], right: &[T]) -> Option<usize> {
    let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    (same < left.len().max(right.len())).then_some(same)
}
