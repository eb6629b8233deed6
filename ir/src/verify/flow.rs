//! Invariants 12, 13 and 15: the step's values, element range by element range.

use super::{At, Defect, DefectKind, Ends};
use crate::access::Access;
use crate::command::Role;
use crate::program::TensorKind;
use crate::{Command, LayerId, Program, Slot};
use std::collections::BTreeMap;

/// `sound[i]` tells that command i has passed the invariants of a command by itself.
pub(super) fn check(program: &Program, ends: Ends, sound: &[bool], found: &mut Vec<Defect>) {
    let mut flow = Flow { program, values: BTreeMap::new(), unread: BTreeMap::new(), found };
    if !ends.embeds {
        // The hidden state arrives from another part: written, and by no command.
        let width = flow.width(Slot::X);
        let _ = flow.values(Slot::X).write(0, width, None);
    }
    let mut layer = program.commands.first().map_or(LayerId::OUTSIDE, Command::layer);
    for (index, command) in program.commands.iter().enumerate() {
        if command.layer() != layer {
            flow.leave_layer();
            layer = command.layer();
        }
        flow.command(index, command, sound.get(index) == Some(&true));
    }
    let output = if ends.reads_out { Slot::Logits } else { Slot::X };
    let width = flow.width(output);
    let at = At::Program;
    flow.read(&at, Access { field: "output", slot: output, role: Role::Read, start: 0, end: width });
    for slot in Slot::ALL {
        flow.drop_values(*slot);
    }
    flow.report_unread();
}

/// A run of elements that have a value.
#[derive(Clone, Copy)]
struct Run {
    end: u64,
    /// The command that wrote it and whose result nothing has read yet.
    unread: Option<usize>,
}

/// The elements of a slot that have a value, in runs by first element; runs do not overlap.
#[derive(Default)]
struct Values {
    runs: BTreeMap<u64, Run>,
    /// The command that wrote the whole slot, no other having written to it since.
    writer: Option<usize>,
    /// A faulty command has written here: who wrote what is not known.
    presumed: bool,
    /// An earlier layer has left values here, which are no longer to be read.
    stale: bool,
}

impl Values {
    /// Give `start..end` a value; what stood there unread is returned.
    fn write(&mut self, start: u64, end: u64, by: Option<usize>) -> Vec<(usize, u64, u64)> {
        let lost = self.take(start, end);
        if start < end {
            self.runs.insert(start, Run { end, unread: by });
        }
        lost
    }

    /// Take the runs within `start..end` out, cutting those that reach over a border; the unread ones are returned.
    fn take(&mut self, start: u64, end: u64) -> Vec<(usize, u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        self.cut(start);
        self.cut(end);
        let inside: Vec<u64> = self.runs.range(start..end).map(|(first, _)| *first).collect();
        let removed = inside.iter().filter_map(|first| self.runs.remove(first).map(|run| (*first, run)));
        removed.filter_map(|(first, run)| run.unread.map(|by| (by, first, run.end))).collect()
    }

    /// Make `at` a border between runs.
    fn cut(&mut self, at: u64) {
        let over = self.runs.range_mut(..at).next_back().filter(|(_, run)| run.end > at);
        if let Some((_, run)) = over {
            let rest = *run;
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Read `start..end`: its runs become one, read. The first elements without a value are returned.
    fn read(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        self.cut(start);
        self.cut(end);
        let mut next = start;
        for (first, run) in self.runs.range(start..end) {
            if *first > next {
                return Some((next, *first));
            }
            next = run.end;
        }
        if next < end {
            return Some((next, end));
        }
        self.take(start, end);
        self.runs.insert(start, Run { end, unread: None });
        None
    }
}

struct Flow<'a> {
    program: &'a Program,
    values: BTreeMap<Slot, Values>,
    /// The elements that nothing has read, of each command and slot: from the first to one past the last.
    unread: BTreeMap<(usize, Slot), (u64, u64)>,
    found: &'a mut Vec<Defect>,
}

impl Flow<'_> {
    fn width(&self, slot: Slot) -> u64 {
        self.program.width(slot).unwrap_or(0) as u64
    }

    fn values(&mut self, slot: Slot) -> &mut Values {
        self.values.entry(slot).or_default()
    }

    fn command(&mut self, index: usize, command: &Command, sound: bool) {
        let accesses = command.accesses(self.program);
        if !sound {
            // Its defects are known; what it means to read and write is taken as good.
            for access in accesses {
                let width = self.width(access.slot);
                let values = self.values(access.slot);
                let _ = values.write(0, width, None);
                values.writer = None;
                values.presumed = true;
            }
            return;
        }
        let at = At::command(self.program, index);
        self.picks(&at, command);
        accesses.iter().filter(|a| a.role.reads()).for_each(|a| self.read(&at, *a));
        for access in accesses.iter().filter(|a| a.role.writes()) {
            let whole = access.start == 0 && access.end == self.width(access.slot) && access.role != Role::Update;
            let values = self.values(access.slot);
            let lost = values.write(access.start, access.end, Some(index));
            values.writer = whole.then_some(index);
            values.presumed &= !whole;
            self.lost(access.slot, lost);
        }
    }

    fn read(&mut self, at: &At, access: Access) {
        let Access { field, slot, start, end, .. } = access;
        let values = self.values(slot);
        if let Some((start, end)) = values.read(start, end) {
            let layer = values.stale;
            // Said once: from here on the elements count as written and read.
            let _ = values.write(access.start, access.end, None);
            self.found.push(Defect { at: at.clone(), kind: DefectKind::Unwritten { field, slot, start, end, layer } });
        }
    }

    /// Only `x` keeps its values from one layer to the next.
    fn leave_layer(&mut self) {
        for slot in Slot::ALL.iter().filter(|slot| **slot != Slot::X) {
            self.drop_values(*slot);
        }
    }

    fn drop_values(&mut self, slot: Slot) {
        let values = self.values(slot);
        values.stale |= !values.runs.is_empty();
        values.writer = None;
        let lost = values.take(0, u64::MAX);
        self.lost(slot, lost);
    }

    fn lost(&mut self, slot: Slot, lost: Vec<(usize, u64, u64)>) {
        for (index, start, end) in lost {
            let (first, last) = self.unread.entry((index, slot)).or_insert((start, end));
            (*first, *last) = (start.min(*first), end.max(*last));
        }
    }

    fn report_unread(&mut self) {
        for ((index, slot), (start, end)) in std::mem::take(&mut self.unread) {
            let at = At::command(self.program, index);
            self.found.push(Defect { at, kind: DefectKind::Unread { slot, start, end } });
        }
    }

    /// Picks and pick weights are as one TopK has left them.
    fn picks(&mut self, at: &At, command: &Command) {
        let Command::RoutedMatvec { picks, weights, stack, k, .. } = *command else { return };
        let experts = match self.program.tensor(stack).map(|t| t.kind) {
            Some(TensorKind::Stack { experts }) => experts,
            _ => return,
        };
        if self.values(picks).presumed {
            return;
        }
        let writer = self.values(picks).writer;
        let top_k = writer.and_then(|i| self.program.commands.get(i)).filter(|c| {
            matches!(**c, Command::TopK { picks: p, experts: e, k: n, .. } if p == picks && usize::from(e) == experts && n == k)
        });
        let mut refuse = |field, slot, needed| {
            self.found.push(Defect { at: at.clone(), kind: DefectKind::Picks { field, slot, needed } });
        };
        let Some(Command::TopK { weights: written, .. }) = top_k else {
            return refuse("picks", picks, format!("a top_k of {k} among {experts} experts"));
        };
        if let Some(weights) = weights
            && (*written != weights || self.values.get(&weights).is_some_and(|v| !v.presumed && v.writer != writer))
        {
            refuse("weights", weights, "the same top_k".to_owned());
        }
    }
}
