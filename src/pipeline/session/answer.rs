//! `Answer`: one sequence of tokens on its way, under one sequence number after the other.

use crate::generate::sampler::{Sampler, Sampling};
use crate::generate::session::Finish;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What to write.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Ids of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// Tokens to write at most.
    pub max_tokens: usize,
    /// Ids that end the text.
    pub eos: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Where the draws start.
    pub seed: u64,
}

/// Why an answer ended.
pub type Ending = Finish;

/// An answer that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Ids written, an ending id included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub ending: Ending,
}

/// A lap that has not come back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) lap: u32,
    /// Its last row is read out.
    pub(super) reads: bool,
    pub(super) sent: Duration,
}

/// One answer on its way.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) ask: Ask,
    /// Prompt, and what was written.
    pub(super) ids: Vec<u32>,
    sampler: Sampler,
    pub(super) ending: Option<Ending>,
    /// Number under which the ring knows it now.
    pub(super) sequence: Option<u32>,
    /// Ids that this sequence has taken.
    pub(super) fed: usize,
    pub(super) lap: u32,
    pub(super) flights: VecDeque<Flight>,
    /// Stages that have yet to say that they copy this sequence's hops.
    pub(super) awaited: Vec<u32>,
    /// When each token that was written went out to the devices.
    pub(super) told: Vec<Duration>,
    /// Digest of the hidden row at a border between layers and a position.
    pub(super) rows: BTreeMap<(u32, u32), u64>,
}

impl Answer {
    pub(super) fn new(ask: Ask) -> Self {
        let ids = ask.prompt.clone();
        let sampler = Sampler::new(ask.sampling, ask.seed);
        let ending = (ask.max_tokens == 0).then_some(Finish::Length);
        let (sequence, fed, lap) = (None, 0, 0);
        Self {
            ask,
            ids,
            sampler,
            ending,
            sequence,
            fed,
            lap,
            flights: VecDeque::new(),
            awaited: Vec::new(),
            told: Vec::new(),
            rows: BTreeMap::new(),
        }
    }

    /// Ids written.
    pub(super) fn written(&self) -> &[u32] {
        &self.ids[self.ask.prompt.len()..]
    }

    /// Pick the next token; whether the answer has ended with it.
    pub(super) fn pick(&mut self, logits: &[f32], ctx: usize) -> Option<u32> {
        let token = self.sampler.pick(logits, &self.ids)?;
        self.ids.push(token);
        if self.ask.eos.contains(&token) {
            self.ending = Some(Finish::Eos);
        } else if self.written().len() == self.ask.max_tokens {
            self.ending = Some(Finish::Length);
        } else if self.ids.len() > ctx {
            self.ending = Some(Finish::Context);
        }
        Some(token)
    }

    /// Begin again under a new number: everything is fed once more.
    pub(super) fn restart(&mut self, sequence: Option<u32>) {
        (self.sequence, self.fed, self.lap) = (sequence, 0, 0);
        self.flights.clear();
        self.awaited.clear();
    }
}
