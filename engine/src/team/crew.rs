//! The threads of a team beside its caller: how they wait, enter a round and leave it.
//!
//! A member that waits asks memory for what it was told to expect ([`Crew::expect`]), so that the next matrix is on its
//! way while the caller does the small work between two of them.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use wordline_kernels::ahead;

/// Turns of the wait loop before a thread sleeps: some tens of microseconds, longer than a step spends between two
/// commands that use the team.
const SPINS: u32 = 2_000;

/// What a member runs: the job of the present round, given the member's number.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// The present round: its number above [`ROUND`], [`OPEN`], and the members inside below.
    gate: AtomicU64,
    /// The present round's job. Written by the caller while the gate is closed and nobody inside.
    job: UnsafeCell<Option<*const Job<'static>>>,
    panicked: AtomicBool,
    quit: AtomicBool,
    /// The caller sleeps until the last member leaves.
    asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// What each member reads next, the caller's first.
    next: Vec<Expected>,
}

/// Bit of the gate: members may enter.
const OPEN: u64 = 1 << 15;
/// Bits of the gate that count the members inside.
const INSIDE: u64 = OPEN - 1;
/// One round further.
const ROUND: u64 = 1 << 16;

/// Addresses that a member will read, for hints alone: nobody reads through them here.
#[derive(Default)]
#[repr(align(64))]
struct Expected {
    start: AtomicUsize,
    end: AtomicUsize,
}

// SAFETY: `job` is written only while the gate is closed with nobody inside, and read only from inside. The job it
// points to is Sync and outlives the round because `run` returns only when nobody is inside.
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
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            caller: Mutex::new(None),
            next: (0..=count).map(|_| Expected::default()).collect(),
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

    /// Tell a member what it will read after the present or the next round.
    pub(super) fn expect(&mut self, member: usize, bytes: &[u8]) {
        if let Some(next) = self.shared.next.get(member) {
            let range = bytes.as_ptr_range();
            next.end.store(range.end as usize, Ordering::Relaxed);
            next.start.store(range.start as usize, Ordering::Relaxed);
        }
    }

    /// Run `job(0)` here and `job(member)` on the members that come in time, and wait for those that came. The
    /// others never see the job: a member that the system keeps from running holds nobody up.
    pub(super) fn run(&mut self, job: &Job<'_>) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used inside the gate only, and this function leaves
        // only when the gate is closed and nobody inside, panics included.
        let job_ptr = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: between rounds the gate is closed and nobody inside, so nobody reads `job`.
        unsafe { *shared.job.get() = Some(job_ptr) };
        shared.gate.fetch_add(ROUND | OPEN, Ordering::Release);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let left = || shared.gate.load(Ordering::SeqCst) & INSIDE == 0;
        if !shared.spin(0, left) {
            *shared.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
            shared.asleep.store(true, Ordering::SeqCst);
            while !left() {
                std::thread::park();
            }
            shared.asleep.store(false, Ordering::Relaxed);
        }
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
        let mut ready = || {
            gate = shared.gate.load(Ordering::Acquire);
            let new = gate & OPEN != 0 && gate / ROUND != seen;
            new || shared.quit.load(Ordering::Acquire)
        };
        if !shared.spin(member, &mut ready) {
            while !ready() {
                std::thread::park();
            }
        }
        if shared.quit.load(Ordering::Acquire) {
            return;
        }
        // Entering must meet the very round that was seen open; else look again.
        if shared.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        seen = gate / ROUND;
        // SAFETY: this thread is inside, so the round stays until it has left.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: the caller keeps the job alive while a member is inside.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job(member))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        // The last one out of a closed gate wakes the caller. Either this sees the caller asleep, or the caller, which
        // looks at the gate after it has said so, sees the gate empty.
        if shared.gate.fetch_sub(1, Ordering::SeqCst) & (OPEN | INSIDE) == 1
            && shared.asleep.load(Ordering::SeqCst)
            && let Some(caller) = &*shared.caller.lock().unwrap_or_else(PoisonError::into_inner)
        {
            caller.unpark();
        }
    }
}

impl Shared {
    /// Wait for a moment; false when it was not enough. The time goes to asking for what the member reads next.
    fn spin(&self, member: usize, mut ready: impl FnMut() -> bool) -> bool {
        let next = &self.next[member];
        let (mut at, end) = (next.start.load(Ordering::Relaxed), next.end.load(Ordering::Relaxed));
        while at < end {
            if ready() {
                next.start.store(at, Ordering::Relaxed);
                return true;
            }
            for _ in 0..4 {
                ahead::line(at as *const u8);
                at += ahead::LINE;
            }
        }
        next.start.store(end, Ordering::Relaxed);
        for _ in 0..SPINS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
