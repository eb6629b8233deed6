//! What sequences keep between steps: how much room they have, and their states by index.

/// How much room the sequences of an engine have. Commands never depend on it, and no bit of a result does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions a sequence may hold.
    pub ctx: usize,
    /// Rows that one sequence may have in one step. It sizes the cache of a windowed layer, which holds a step's rows
    /// beside the window's before any of them is read.
    pub step_rows: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { ctx: 4096, step_rows: 256 }
    }
}

/// The states of the sequences that are open, by index.
#[derive(Debug)]
pub(crate) struct States<T> {
    held: Vec<Option<T>>,
}

impl<T> States<T> {
    pub(crate) fn new() -> Self {
        Self { held: Vec::new() }
    }

    /// Hold a fresh state at an index, in place of any before.
    pub(crate) fn open(&mut self, sequence: usize, state: T) {
        if self.held.len() <= sequence {
            self.held.resize_with(sequence + 1, || None);
        }
        self.held[sequence] = Some(state);
    }

    pub(crate) fn release(&mut self, sequence: usize) {
        if let Some(state) = self.held.get_mut(sequence) {
            *state = None;
        }
    }

    /// The states of all open sequences, by index.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.held.iter_mut().enumerate().filter_map(|(index, state)| state.as_mut().map(|state| (index, state)))
    }

    /// The state of an open sequence.
    ///
    /// # Panics
    /// The sequence is not open: the model checks each row's sequence before the step begins.
    pub(crate) fn get(&self, sequence: usize) -> &T {
        match self.held.get(sequence) {
            Some(Some(state)) => state,
            _ => panic!("sequence {sequence} is not open"),
        }
    }

    /// The state of an open sequence, to change. Panics as [`States::get`] does.
    pub(crate) fn get_mut(&mut self, sequence: usize) -> &mut T {
        match self.held.get_mut(sequence) {
            Some(Some(state)) => state,
            _ => panic!("sequence {sequence} is not open"),
        }
    }
}
