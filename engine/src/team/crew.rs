//! The threads of a team beside its caller: how they wait, enter a round and leave it.

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
