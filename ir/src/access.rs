//! `Access`: which elements of which slots a command reads and writes.

use crate::command::Role;
use crate::{Command, Program, Slot};

/// A command's use of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The field that names the slot.
    pub field: &'static str,
    /// The slot.
    pub slot: Slot,
    /// Read, written or both.
    pub role: Role,
    /// First element.
    pub start: u64,
    /// One past the last element.
    pub end: u64,
}

impl Access {
    /// Elements touched.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// True when no element is touched.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Command {
    /// The elements it touches, in table order; a slot or a tensor that the program does not have counts as empty.
    ///
    /// Most commands touch their slots whole. Attention commands touch q, k and v by themselves, commands on heads
    /// their heads, and `matvec` the weight's rows from its offset on.
    #[must_use]
    pub fn accesses(&self, program: &Program) -> Vec<Access> {
        self.slots()
            .map(|(field, slot)| {
                let width = program.width(slot).unwrap_or(0) as u64;
                let (start, end) = self.touched(program, field.role, width);
                Access { field: field.name, slot, role: field.role, start, end }
            })
            .collect()
    }

    /// The range of a slot of this width that the command touches in this role.
    fn touched(&self, program: &Program, role: Role, width: u64) -> (u64, u64) {
        let heads_end = |heads: u16, head_dim: u16| u64::from(heads) * u64::from(head_dim);
        match *self {
            Command::HeadNorm { q_weight, k_weight, heads, kv_heads, head_dim, .. } => {
                let q = heads_end(heads, head_dim);
                let start = if q_weight.is_some() { 0 } else { q };
                let end = if k_weight.is_some() { q + heads_end(kv_heads, head_dim) } else { q };
                (start.min(end), end)
            }
            Command::Rope { heads, kv_heads, head_dim, .. } => {
                (0, heads_end(heads, head_dim) + heads_end(kv_heads, head_dim))
            }
            Command::Scale { width: count, .. } if count != 0 => (0, count.into()),
            Command::L2Norm { heads, head_dim, .. } => (0, heads_end(heads, head_dim)),
            Command::Matvec { weight, offset, .. } if role == Role::Part => {
                let rows = program.tensor(weight).map_or(0, |t| t.rows as u64);
                (offset.0.into(), u64::from(offset.0).saturating_add(rows))
            }
            Command::CacheAppend { heads, head_dim, .. } => (heads_end(heads, head_dim).min(width), width),
            Command::Attend { heads, head_dim, .. } if role == Role::Read => (0, heads_end(heads, head_dim)),
            _ => (0, width),
        }
    }
}
