//! `Team`: a few persistent threads that run the parts of one command and meet before the next.
//!
//! Members take parts as they become free. Each part writes its own memory and no part reads what another writes, so
//! neither the number of threads nor who runs what shows in a result.
//!
//! Members wait for work spinning for a moment, then asleep; giving them work allocates nothing, and the caller never
//! waits for a member that has not begun. Where the target has no threads the team is its caller alone.

#[cfg(not(target_family = "wasm"))]
mod crew;
mod parts;
#[cfg(not(target_family = "wasm"))]
mod shares;

pub(crate) use parts::{Columns, Parts};

use std::ops::Range;
#[cfg(not(target_family = "wasm"))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// The threads of an engine, its caller included.
pub struct Team {
    #[cfg(not(target_family = "wasm"))]
    crew: Option<(crew::Crew, shares::Shares)>,
    members: usize,
    /// Work below this stays with the caller.
    #[cfg(not(target_family = "wasm"))]
    least: usize,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("members", &self.members).finish_non_exhaustive()
    }
}

/// Most members a team may have.
pub const MAX_MEMBERS: usize = 256;

/// Elementary operations that take about as long as a meeting of the team.
#[cfg(not(target_family = "wasm"))]
const LEAST: usize = 1 << 15;

impl Team {
    /// A team of `members` threads, the caller being one of them: at least 1 and at most [`MAX_MEMBERS`]. When the
    /// system gives fewer threads the team is smaller; [`Team::members`] says how many came.
    #[must_use]
    pub fn new(members: usize) -> Self {
        let members = members.clamp(1, MAX_MEMBERS);
        #[cfg(not(target_family = "wasm"))]
        {
            let crew = (members > 1).then(|| crew::Crew::new(members - 1));
            let members = crew.as_ref().map_or(1, |crew| crew.len() + 1);
            let crew = crew.map(|crew| (crew, shares::Shares::new(members)));
            Self { crew, members, least: LEAST }
        }
        #[cfg(target_family = "wasm")]
        {
            let _ = members;
            Self { members: 1 }
        }
    }

    /// The same, sharing out even the smallest work: for tests.
    #[must_use]
    pub fn eager(members: usize) -> Self {
        #[cfg_attr(target_family = "wasm", expect(unused_mut, reason = "a team of one shares nothing out"))]
        let mut team = Self::new(members);
        #[cfg(not(target_family = "wasm"))]
        {
            team.least = 0;
        }
        team
    }

    /// Threads, the caller included.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    /// Run `job(0) … job(parts - 1)`, each once, and return when all are done. `work` is about how many elementary
    /// operations they are together: little work stays with the caller.
    ///
    /// # Panics
    /// A part's panic is carried to the caller once all members have stopped.
    pub fn run(&mut self, work: usize, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        let mut own: [(); MAX_MEMBERS] = [(); MAX_MEMBERS];
        self.run_with(work, parts, &mut own, &|(), part| job(part));
    }

    /// The same, each member with something of its own from `own`, which has at least [`Team::members`] elements.
    ///
    /// # Panics
    /// As [`Team::run`]; and when `own` is shorter.
    pub fn run_with<T: Send>(
        &mut self,
        work: usize,
        parts: usize,
        own: &mut [T],
        job: &(dyn Fn(&mut T, usize) + Sync),
    ) {
        assert!(own.len() >= self.members, "{} for {} members", own.len(), self.members);
        #[cfg(not(target_family = "wasm"))]
        if parts > 1
            && work >= self.least
            && let Some((crew, _)) = &mut self.crew
        {
            let own = Parts::new(own, 1);
            let next = AtomicUsize::new(0);
            crew.run(&|member| {
                // SAFETY: a round calls each member once, so element `member` is taken once.
                let [own] = (unsafe { own.get(member) }) else { return };
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= parts {
                        return;
                    }
                    job(own, part);
                }
            });
            return;
        }
        #[cfg(target_family = "wasm")]
        let _ = work;
        for part in 0..parts {
            job(&mut own[0], part);
        }
    }

    /// Run `job` over ranges that make up `0 .. parts`, each of at most `most` parts. Every member has a run of its own,
    /// which it takes front to back, and then helps others: for parts that lie one after the other in memory and are
    /// read once. `work` and `own` are as in [`Team::run_with`].
    ///
    /// # Panics
    /// As [`Team::run_with`]; and when there are more than 2^32 parts.
    pub fn ranges<T: Send>(
        &mut self,
        work: usize,
        parts: usize,
        most: usize,
        own: &mut [T],
        job: &(dyn Fn(&mut T, Range<usize>) + Sync),
    ) {
        assert!(own.len() >= self.members, "{} for {} members", own.len(), self.members);
        #[cfg(not(target_family = "wasm"))]
        if parts > 1
            && work >= self.least
            && let Some((crew, shares)) = &mut self.crew
        {
            let own = Parts::new(own, 1);
            shares.deal(parts);
            let shares = &*shares;
            crew.run(&|member| {
                // SAFETY: a round calls each member once, so element `member` is taken once.
                let [own] = (unsafe { own.get(member) }) else { return };
                while let Some(range) = shares.take(member, most) {
                    job(own, range);
                }
            });
            return;
        }
        #[cfg(target_family = "wasm")]
        let _ = work;
        for start in (0..parts).step_by(most.max(1)) {
            job(&mut own[0], start..(start + most.max(1)).min(parts));
        }
    }

    /// What [`Team::ranges`] will read after the present round: `bytes` in parts of `part` bytes. Members that wait ask
    /// memory for the first `reach` bytes of their shares. A hint.
    pub fn expect(&mut self, bytes: &[u8], part: usize, reach: usize) {
        #[cfg(not(target_family = "wasm"))]
        if let Some((crew, _)) = &mut self.crew
            && let Some(parts) = bytes.len().checked_div(part)
        {
            for member in 0..self.members {
                let share = shares::share_of(member, self.members, parts);
                let (start, end) = (share.start * part, share.end * part);
                crew.expect(member, &bytes[start..end.min(start + reach)]);
            }
        }
        #[cfg(target_family = "wasm")]
        let _ = (bytes, part, reach);
    }

    /// Run `job(i, chunk i)` over the consecutive chunks of `chunk` elements (the last may be shorter). `work` is as in
    /// [`Team::run`].
    pub fn chunks<T: Send>(
        &mut self,
        work: usize,
        data: &mut [T],
        chunk: usize,
        job: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        if data.is_empty() || chunk == 0 {
            return;
        }
        let parts = Parts::new(data, chunk);
        self.run(work, parts.count(), &|part| {
            // SAFETY: `run` hands out each part number once.
            job(part, unsafe { parts.get(part) });
        });
    }
}

#[cfg(test)]
mod tests;
