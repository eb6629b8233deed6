//! What a head can say of its run: answers, stages, laps, losses, and what was copied for the audit.

use super::super::answer::{Answer, Outcome};
use super::clock::us;
use super::{Copied, HeadSession};
use crate::pipeline::plan::{Key, Plan};
use crate::pipeline::wire::{Onward, Ready, Trace};
use std::collections::BTreeMap;
use std::time::Duration;

/// One lap as it was: for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// Rows.
    pub rows: usize,
    /// When the head's step began.
    pub sent: Duration,
    /// From the head's step to the row that came back; zero until it has.
    pub time: Duration,
    /// What each stage has told of it, the head's own share first. They come in any order.
    pub shares: BTreeMap<usize, Share>,
}

/// One stage's share of a lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Computing.
    pub compute: Duration,
    /// Waiting for a step that was under way.
    pub queue: Duration,
    /// When the rows came, in microseconds of the head's clock; none as long as the stage's own is not known.
    pub came: Option<i64>,
}

impl Lap {
    /// When the rows came back to the head, if they have.
    #[must_use]
    pub fn back(&self) -> Option<Duration> {
        (!self.time.is_zero()).then(|| self.sent + self.time)
    }

    /// Computing, of all stages.
    #[must_use]
    pub fn compute(&self) -> Duration {
        self.shares.values().map(|share| share.compute).sum()
    }

    /// What of it is neither computing nor waiting for a step under way.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.time.saturating_sub(self.shares.values().map(|share| share.compute + share.queue).sum())
    }

    /// Each hop in microseconds, from the end of a stage's computing to when the next one has the rows, from the last one to the
    /// head. Their sum is what of the lap is [`idle`](Self::idle); by as much as a stage's clock is known wrongly, the hop to it
    /// is told too short and the one from it too long, or the other way round, less than nothing if need be.
    #[must_use]
    pub fn hops(&self) -> Option<Vec<i64>> {
        let came = self.shares.values().map(|share| share.came).collect::<Option<Vec<i64>>>()?;
        let arrivals = came.iter().skip(1).copied().chain([us(self.back()?)]);
        let went =
            self.shares.values().zip(&came).map(|(share, came)| came.saturating_add(us(share.compute + share.queue)));
        Some(arrivals.zip(went).map(|(arrived, went)| arrived.saturating_sub(went)).collect())
    }
}

/// What a stage was and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageReport {
    /// Its key.
    pub key: Key,
    /// What it said when it was ready; none for the head.
    pub ready: Option<Ready>,
    /// What computes, by name.
    pub backend: String,
    /// How it reaches the next stage; none for the head and for the last one, whose next stage is the head.
    pub onward: Option<Onward>,
}

/// What was copied of one sequence's hops to one stage, and what was said of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Audited {
    /// Stage.
    pub stage: u32,
    /// Sequence.
    pub sequence: u32,
    /// First position and rows of each hop as it came in.
    pub hops: Vec<(u32, Vec<f32>)>,
    /// What the stage says that it made of them.
    pub traces: Vec<Trace>,
    /// What the stage before says that it sent.
    pub sent: Vec<Trace>,
}

impl HeadSession {
    /// The answers as they are: ids written, and why each ended.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |a: &Answer| Some(Outcome { ids: a.written().to_vec(), ending: a.ending.clone()? });
        self.answers.iter().filter_map(outcome).collect()
    }

    /// The plan at work.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Stages that were lost on the way, in words.
    #[must_use]
    pub fn losses(&self) -> &[String] {
        &self.lost
    }

    /// What each stage of the plan was.
    #[must_use]
    pub fn stages(&self) -> Vec<StageReport> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let report = |stage: usize| {
            let key = plan.key(stage).unwrap_or_default();
            let guest = self.guests.iter().find(|guest| guest.key == key);
            let backend = guest.and_then(|g| g.hello.as_ref()).map_or(&self.config.hello.backend, |h| &h.backend);
            let (ready, onward) = (guest.and_then(|g| g.ready), guest.and_then(|g| g.onward));
            StageReport { key, ready, backend: backend.clone(), onward }
        };
        (0..plan.stages.len()).map(report).collect()
    }

    /// Laps of the ring at work whose rows have come back and whose traces are whole, in order. In a ring of before a loss other
    /// devices may have been these stages.
    pub fn laps(&self) -> impl Iterator<Item = &Lap> {
        let stages = self.plan.as_ref().map_or(0, |plan| plan.stages.len());
        let laps = self.laps.range((self.first_sequence, 0)..).map(|(_, lap)| lap);
        laps.filter(move |lap| lap.back().is_some() && lap.shares.len() == stages)
    }

    /// What was copied of a stage's hops for the audit, and what the stage says that it made of them.
    #[must_use]
    pub fn audited(&self) -> Vec<Audited> {
        let of = |(sequence, stage): (u32, u32), hops: &Vec<Copied>| Audited {
            stage,
            sequence,
            hops: hops.clone(),
            traces: self.traces.get(&(sequence, stage)).cloned().unwrap_or_default(),
            sent: self.traces.get(&(sequence, stage - 1)).cloned().unwrap_or_default(),
        };
        self.copies.iter().map(|(at, hops)| of(*at, hops)).collect()
    }
}

/// Whether the hops of an answer to a stage are audited: the same draw wherever and whenever it is made.
pub(super) fn drawn(share: f64, answer: u32, stage: u32) -> bool {
    let mut z = (u64::from(answer) << 32 | u64::from(stage)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    share > 0.0 && (z >> 11) as f64 / (1_u64 << 53) as f64 <= share
}

#[cfg(test)]
mod tests {
    use super::drawn;

    #[test]
    fn a_share_of_the_hops_is_drawn_and_a_larger_one_holds_it() {
        let all = || (0..200_u32).flat_map(|answer| (1..=20_u32).map(move |stage| (answer, stage)));
        let count = |share: f64| all().filter(|(answer, stage)| drawn(share, *answer, *stage)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 4000));
        for share in [0.05_f64, 0.25, 0.5, 0.9] {
            // Five standard deviations of as many fair draws.
            let (mean, spread) = (4000.0 * share, 5.0 * (4000.0 * share * (1.0 - share)).sqrt());
            assert!((count(share) as f64 - mean).abs() < spread, "{share}: {}", count(share));
            assert!(all().all(|(a, s)| !drawn(share / 2.0, a, s) || drawn(share, a, s)));
        }
        // Every stage is looked at by some answer, and every answer on some stage: nobody is left out by his number.
        assert!((1..=20).all(|stage| (0..200).any(|answer| drawn(0.25, answer, stage))));
    }
}
