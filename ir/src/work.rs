//! `Work`: how much of what a command multiplies and moves, in elements; formats and machines turn it into bytes and
//! cycles.

use crate::program::{Program, Tensor, TensorId, TensorKind};
use crate::{Command, Slot};
use std::ops::AddAssign;

/// A command's work. "A row" is a token-row of the step; "a position" is one that the row sees in its sequence's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Work {
    /// Matrix elements that stream once for all rows of the step.
    pub matrix: u64,
    /// Matrix elements that a row's picked experts hold. Rows that pick one expert share its stream.
    pub routed: u64,
    /// Elements of a matrix or a plain tensor that each row looks up: its token, its position.
    pub looked_up: u64,
    /// Elements of plain tensors read once for all rows.
    pub plain: u64,
    /// Multiply-accumulates a row, those over cached positions apart.
    pub macs: u64,
    /// Multiply-accumulates a row and position.
    pub macs_a_position: u64,
    /// Slot elements read a row.
    pub reads: u64,
    /// Slot elements written a row.
    pub writes: u64,
    /// Elements of ring or memory that a row reads and writes back.
    pub state: u64,
    /// Cache elements that a row appends.
    pub appended: u64,
    /// Cache elements that a row reads a position.
    pub cached_a_position: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.matrix += other.matrix;
        self.routed += other.routed;
        self.looked_up += other.looked_up;
        self.plain += other.plain;
        self.macs += other.macs;
        self.macs_a_position += other.macs_a_position;
        self.reads += other.reads;
        self.writes += other.writes;
        self.state += other.state;
        self.appended += other.appended;
        self.cached_a_position += other.cached_a_position;
    }
}

impl Command {
    /// The command's work in a program that passes [`verify`](crate::verify::verify()).
    #[must_use]
    pub fn work(&self, program: &Program) -> Work {
        let elements = |t: &Tensor| t.rows as u64 * t.cols as u64;
        let of = |id: TensorId| program.tensor(id).map_or(0, elements);
        let width = |slot: Slot| program.width(slot).unwrap_or(0) as u64;
        let mut work = Work::default();
        for access in self.accesses(program) {
            work.reads += if access.role.reads() { access.len() } else { 0 };
            work.writes += if access.role.writes() { access.len() } else { 0 };
        }
        work.plain = self.tensors().filter(|(f, _)| f.role == crate::command::Role::Plain).map(|(_, id)| of(id)).sum();
        match *self {
            Command::Embed { out, positions, .. } => {
                work.plain = 0;
                work.looked_up = width(out) * if positions.is_some() { 2 } else { 1 };
            }
            Command::Matvec { weight, .. } => {
                work.matrix = of(weight);
                work.macs = of(weight);
            }
            Command::RoutedMatvec { stack, k, .. } => {
                let experts = match program.tensor(stack).map(|t| t.kind) {
                    Some(TensorKind::Stack { experts }) => experts as u64,
                    _ => 0,
                };
                work.routed = u64::from(k) * of(stack).checked_div(experts).unwrap_or(0);
                work.macs = work.routed;
            }
            Command::Conv { channels, taps, .. } => {
                work.macs = u64::from(channels) * u64::from(taps);
                work.state = u64::from(channels) * u64::from(taps.saturating_sub(1));
            }
            Command::Delta { value_heads, key_dim, value_dim, .. } => {
                work.state = u64::from(value_heads) * u64::from(key_dim) * u64::from(value_dim);
                // What the memory holds of k, the update, what it then holds of q; the decay rides along.
                work.macs = 3 * work.state;
            }
            Command::CacheAppend { kv_heads, head_dim, v_dim, .. } => {
                work.appended = u64::from(kv_heads) * (u64::from(head_dim) + u64::from(v_dim));
            }
            Command::Attend { out, heads, kv_heads, head_dim, .. } => {
                let values = width(out);
                work.macs_a_position = u64::from(heads) * u64::from(head_dim) + values;
                // A key head's keys and values are read once for the query heads that share it.
                let value_dim = values.checked_div(heads.into()).unwrap_or(0);
                work.cached_a_position = u64::from(kv_heads) * (u64::from(head_dim) + value_dim);
            }
            _ => {}
        }
        work
    }
}
