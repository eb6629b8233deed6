//! `RowStore`: the token-row store, one buffer a slot, each `[rows, width]` f32.

use wordline_ir::{Slot, SlotInfo};

/// The vectors of a step's token-rows. Rows stand in the step's order; a slot's width is the program's.
///
/// Buffers grow to the largest step seen and are then reused: a step in steady state allocates nothing.
#[derive(Debug, Default)]
pub struct RowStore {
    slots: Vec<Buffer>,
    /// Copy of a slot that a command both reads and writes whole.
    copy: Vec<f32>,
    rows: usize,
}

#[derive(Clone, Debug, Default)]
struct Buffer {
    width: usize,
    values: Vec<f32>,
}

impl RowStore {
    /// A store for these slots, with no rows.
    #[must_use]
    pub fn new(slots: &[SlotInfo]) -> Self {
        let mut buffers = vec![Buffer::default(); Slot::ALL.len()];
        for info in slots {
            buffers[usize::from(info.slot.code())].width = info.width;
        }
        Self { slots: buffers, copy: Vec::new(), rows: 0 }
    }

    /// Begin a step of `rows` rows. Nothing of an earlier step can be read: each slot is zero until it is written.
    pub fn begin(&mut self, rows: usize) {
        self.rows = rows;
        for slot in &mut self.slots {
            slot.values.clear();
        }
    }

    /// Rows of the step.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements each row holds in a slot; 0 when the program does not use it.
    #[must_use]
    pub fn width(&self, slot: Slot) -> usize {
        self.slots[usize::from(slot.code())].width
    }

    /// A slot's rows, `[rows, width]`.
    pub fn get(&mut self, slot: Slot) -> &[f32] {
        self.get_mut(slot)
    }

    /// A slot's rows, to change in place.
    pub fn get_mut(&mut self, slot: Slot) -> &mut [f32] {
        self.ready(slot);
        &mut self.slots[usize::from(slot.code())].values
    }

    /// The rows of the slots read and, beside them, of the slot written. A slot that is both is read from a copy taken
    /// before the command, so a command may name one slot twice.
    pub fn split<const N: usize>(&mut self, reads: [Slot; N], out: Slot) -> ([&[f32]; N], &mut [f32]) {
        self.ready(out);
        for slot in reads {
            self.ready(slot);
        }
        let at = usize::from(out.code());
        if reads.contains(&out) {
            self.copy.clear();
            self.copy.extend_from_slice(&self.slots[at].values);
        }
        let (before, rest) = self.slots.split_at_mut(at);
        let (before, copy) = (&*before, &self.copy);
        // `at` is a slot's code and there is a buffer for each.
        let Some((target, after)) = rest.split_first_mut() else { return (reads.map(|_| &[][..]), &mut []) };
        let after = &*after;
        let inputs = reads.map(|slot| {
            let code = usize::from(slot.code());
            match code.cmp(&at) {
                std::cmp::Ordering::Less => before[code].values.as_slice(),
                std::cmp::Ordering::Equal => copy.as_slice(),
                std::cmp::Ordering::Greater => after[code - at - 1].values.as_slice(),
            }
        });
        (inputs, &mut target.values)
    }

    /// Keep only these rows, given in rising order; the others leave the step.
    pub fn keep(&mut self, rows: &[usize]) {
        for slot in &mut self.slots {
            if slot.values.is_empty() {
                continue;
            }
            for (to, from) in rows.iter().enumerate() {
                slot.values.copy_within(from * slot.width..(from + 1) * slot.width, to * slot.width);
            }
            slot.values.truncate(rows.len() * slot.width);
        }
        self.rows = rows.len();
    }

    /// Give a slot its rows of zeros if the step has not touched it yet.
    fn ready(&mut self, slot: Slot) {
        let buffer = &mut self.slots[usize::from(slot.code())];
        buffer.values.resize(self.rows * buffer.width, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> RowStore {
        RowStore::new(&[SlotInfo { slot: Slot::X, width: 2 }, SlotInfo { slot: Slot::Mix, width: 2 }])
    }

    #[test]
    fn a_slot_read_and_written_is_read_as_it_was() {
        let mut store = store();
        store.begin(1);
        store.get_mut(Slot::X).copy_from_slice(&[1.0, 2.0]);
        store.get_mut(Slot::Mix).copy_from_slice(&[10.0, 20.0]);
        let ([x, mix], out) = store.split([Slot::X, Slot::Mix], Slot::X);
        for (i, out) in out.iter_mut().enumerate() {
            // Reads of either element after a write must still see the old values.
            *out = x[1 - i] + mix[i];
        }
        assert_eq!(store.get(Slot::X), &[12.0, 21.0]);
        assert_eq!(store.get(Slot::Mix), &[10.0, 20.0]);
    }

    #[test]
    fn a_step_sees_nothing_of_the_step_before() {
        let mut store = store();
        store.begin(2);
        store.get_mut(Slot::X).fill(7.0);
        store.begin(3);
        assert_eq!(store.get(Slot::X), &[0.0; 6]);
    }

    #[test]
    fn kept_rows_move_up_in_order() {
        let mut store = store();
        store.begin(3);
        store.get_mut(Slot::X).copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        store.keep(&[0, 2]);
        assert_eq!(store.rows(), 2);
        assert_eq!(store.get(Slot::X), &[0.0, 1.0, 4.0, 5.0]);
        assert_eq!(store.get(Slot::Mix), &[0.0; 4]);
    }
}
