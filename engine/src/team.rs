//! `Team`: a few persistent threads that run the parts of one command and meet before the next.
//!
//! Members take parts as they become free. Each part writes its own memory and no part reads what another writes, so
//! neither the number of threads nor who runs what shows in a result.
//!
//! Members wait for work spinning for a moment, then asleep; giving them work allocates nothing, and the caller never
//! waits for a member that has not begun. Where the target has no threads the team is its caller alone.

#[cfg(not(target_family = "wasm"))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// The threads of an engine, its caller included.
pub struct Team {
    #[cfg(not(target_family = "wasm"))]
    crew: Option<crew::Crew>,
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
            && let Some(crew) = &mut self.crew
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

/// A slice cut in chunks that different threads may hold at once.
struct Parts<T> {
    base: *mut T,
    len: usize,
    chunk: usize,
}

// SAFETY: a `Parts` only hands out disjoint chunks, each to one thread (the contract of `get`).
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    fn new(data: &mut [T], chunk: usize) -> Self {
        Self { base: data.as_mut_ptr(), len: data.len(), chunk }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// # Safety
    /// While the slice given to `new` is borrowed, each part is taken at most once.
    #[expect(clippy::mut_from_ref, reason = "disjoint chunks of one exclusive borrow, by the caller's promise")]
    unsafe fn get(&self, part: usize) -> &mut [T] {
        let start = (part * self.chunk).min(self.len);
        let len = self.chunk.min(self.len - start);
        // SAFETY: start + len lies within the slice; the caller takes each part once, so no two overlap.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

/// The rows of a slot, of which different threads may write different columns at once.
pub(crate) struct Columns<'a> {
    base: *mut f32,
    rows: usize,
    width: usize,
    borrow: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: segments handed out are disjoint by the contract of `segment`.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// Rows of `width` elements; a rest shorter than a row is left out.
    pub(crate) fn new(values: &'a mut [f32], width: usize) -> Self {
        let rows = values.len().checked_div(width).unwrap_or(0);
        Self { base: values.as_mut_ptr(), rows, width, borrow: std::marker::PhantomData }
    }

    /// Columns `start .. start + len` of a row, cut to the row's end.
    ///
    /// # Safety
    /// No two segments that overlap are held at once.
    #[expect(clippy::mut_from_ref, reason = "disjoint segments of one exclusive borrow, by the caller's promise")]
    pub(crate) unsafe fn segment(&self, row: usize, start: usize, len: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = start.min(self.width);
        let len = len.min(self.width - start);
        // SAFETY: the segment lies within row `row`; the caller holds no other that overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.width + start), len) }
    }
}

#[cfg(not(target_family = "wasm"))]
mod crew {
    use std::cell::UnsafeCell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::{JoinHandle, Thread};

    /// Turns of the wait loop before a thread sleeps: some tens of microseconds, longer than a step spends between two
    /// commands that use the team.
    const SPINS: u32 = 2_000;

    /// What a member runs: the job of the present round, given the member's number.
    type Job<'a> = dyn Fn(usize) + Sync + 'a;

    struct Shared {
        /// The present round: its number above [`ROUND`], [`OPEN`], and the members inside below.
        gate: AtomicU64,
        /// The present round's job. Written by the caller while the gate is closed and nobody inside.
        round: UnsafeCell<Option<Round>>,
        panicked: AtomicBool,
        quit: AtomicBool,
    }

    /// Bit of the gate: members may enter.
    const OPEN: u64 = 1 << 15;
    /// Bits of the gate that count the members inside.
    const INSIDE: u64 = OPEN - 1;
    /// One round further.
    const ROUND: u64 = 1 << 16;

    struct Round {
        job: *const Job<'static>,
        caller: Thread,
    }

    // SAFETY: `round` is written only while the gate is closed with nobody inside, and read only from inside. The job
    // it points to is Sync and outlives the round because `run` returns only when nobody is inside.
    unsafe impl Sync for Shared {}
    // SAFETY: as above; nothing in it is bound to a thread.
    unsafe impl Send for Shared {}

    /// The members beside the caller.
    pub(super) struct Crew {
        shared: Arc<Shared>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Crew {
        pub(super) fn new(count: usize) -> Self {
            let shared = Arc::new(Shared {
                gate: AtomicU64::new(0),
                round: UnsafeCell::new(None),
                panicked: AtomicBool::new(false),
                quit: AtomicBool::new(false),
            });
            let threads = (1..=count)
                .map_while(|member| {
                    let shared = Arc::clone(&shared);
                    std::thread::Builder::new().name(format!("unit-{member}")).spawn(move || work(&shared, member)).ok()
                })
                .collect();
            Self { shared, threads }
        }

        pub(super) fn len(&self) -> usize {
            self.threads.len()
        }

        /// Run `job(0)` here and `job(member)` on the members that come in time, and wait for those that came. The
        /// others never see the job: a member that the system keeps from running holds nobody up.
        pub(super) fn run(&mut self, job: &Job<'_>) {
            let shared = &*self.shared;
            // SAFETY: only the lifetime changes. The pointer is used inside the gate only, and this function leaves
            // only when the gate is closed and nobody inside, panics included.
            let job_ptr = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
            // SAFETY: between rounds the gate is closed and nobody inside, so nobody reads `round`.
            unsafe { *shared.round.get() = Some(Round { job: job_ptr, caller: std::thread::current() }) };
            shared.gate.fetch_add(ROUND | OPEN, Ordering::Release);
            for thread in &self.threads {
                thread.thread().unpark();
            }
            let own = catch_unwind(AssertUnwindSafe(|| job(0)));
            shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
            wait(|| shared.gate.load(Ordering::Acquire) & INSIDE == 0);
            let others = shared.panicked.swap(false, Ordering::Relaxed);
            if let Err(panic) = own {
                resume_unwind(panic);
            }
            assert!(!others, "a unit thread panicked; its message is above");
        }
    }

    impl Drop for Crew {
        fn drop(&mut self) {
            self.shared.quit.store(true, Ordering::Release);
            for thread in self.threads.drain(..) {
                thread.thread().unpark();
                // A member that panicked has said so in `run`.
                let _ = thread.join();
            }
        }
    }

    fn work(shared: &Shared, member: usize) {
        let mut seen = 0;
        loop {
            let mut gate = 0;
            wait(|| {
                gate = shared.gate.load(Ordering::Acquire);
                let new = gate & OPEN != 0 && gate / ROUND != seen;
                new || shared.quit.load(Ordering::Acquire)
            });
            if shared.quit.load(Ordering::Acquire) {
                return;
            }
            // Entering must meet the very round that was seen open; else look again.
            if shared.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = gate / ROUND;
            // SAFETY: this thread is inside, so the round stays until it has left.
            let round = unsafe { &*shared.round.get() };
            let caller = round.as_ref().map(|round| round.caller.clone());
            if let Some(round) = round {
                // SAFETY: the caller keeps the job alive while a member is inside.
                let job = unsafe { &*round.job };
                if catch_unwind(AssertUnwindSafe(|| job(member))).is_err() {
                    shared.panicked.store(true, Ordering::Relaxed);
                }
            }
            // The last one out of a closed gate wakes the caller.
            if shared.gate.fetch_sub(1, Ordering::AcqRel) & (OPEN | INSIDE) == 1 {
                caller.iter().for_each(Thread::unpark);
            }
        }
    }

    /// Wait until `ready`: spinning first, then asleep between wake-ups. Whoever makes it ready unparks this thread.
    fn wait(mut ready: impl FnMut() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        while !ready() {
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_part_runs_once_for_any_number_of_members() {
        for members in [1, 2, 3, 7] {
            let mut team = Team::eager(members);
            for parts in [0, 1, 2, 5, 64] {
                let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                team.run(0, parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{members} members, {parts} parts");
            }
        }
    }

    #[test]
    fn chunks_cover_the_data() {
        let mut team = Team::eager(2);
        let mut data = vec![0_usize; 103];
        team.chunks(0, &mut data, 10, &|index, chunk| chunk.iter_mut().for_each(|v| *v += index + 1));
        assert!(data.iter().enumerate().all(|(i, v)| *v == i / 10 + 1));
    }

    #[test]
    fn each_member_has_its_own() {
        let mut team = Team::eager(3);
        let mut own = [0_usize; 3];
        team.run_with(0, 1000, &mut own, &|own, _| *own += 1);
        assert_eq!(own.iter().sum::<usize>(), 1000);
    }

    #[test]
    fn members_work_at_the_same_time() {
        let mut team = Team::eager(2);
        let meet = std::sync::Barrier::new(2);
        for _ in 0..100 {
            // One thread alone would wait for itself for ever.
            team.run(0, 2, &|_| {
                meet.wait();
            });
        }
    }

    #[test]
    fn little_work_stays_with_the_caller() {
        let mut team = Team::new(2);
        let caller = std::thread::current().id();
        team.run(10, 100, &|_| assert_eq!(std::thread::current().id(), caller));
    }

    #[test]
    fn rounds_follow_one_another_and_a_sleeping_member_wakes() {
        let mut team = Team::eager(2);
        let total = AtomicUsize::new(0);
        for round in 0..2000 {
            if round % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            team.run(0, 2, &|part| {
                total.fetch_add(part + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.load(Ordering::Relaxed), 6000);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let mut team = Team::eager(2);
        for bad in [0, 1] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                team.run(0, 2, &|part| assert_ne!(part, bad, "wanted"));
            }));
            assert!(caught.is_err());
        }
        let total = AtomicUsize::new(0);
        team.run(0, 2, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.load(Ordering::Relaxed), 2);
    }
}
