//! `Keeper`: drives a link's runtime while the thread that owns the link computes.
//!
//! The owner drives it itself whenever it waits, so that a message crosses no thread on its way from the socket to the engine.
//! A long step would leave the link without acknowledgements and signs of life: every [`PATIENCE`] of it this thread gives the
//! link's tasks a turn. It leaves at once, for an owner that comes back meanwhile waits until it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long the owner may compute before the link's tasks get a turn. Far below what a peer waits for an acknowledgement before
/// it sends again.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same while nothing has happened for a second: a device that waits for hours need not look up all the time.
const CALM: Duration = Duration::from_millis(50);
/// Times that each task may run in such a turn.
const ROUNDS: usize = 8;

/// Who drives the runtime.
#[derive(Debug, Default)]
struct Shift {
    /// The owner does.
    owner: AtomicBool,
    /// Times that the owner has come back.
    turns: AtomicU64,
    stop: AtomicBool,
}

/// Drives a link's runtime while its owner computes.
#[derive(Debug)]
pub(super) struct Keeper {
    /// None once it has ended.
    runtime: Option<Arc<Runtime>>,
    shift: Arc<Shift>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// A keeper of this runtime.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn new(runtime: Runtime) -> std::io::Result<Self> {
        let (runtime, shift) = (Arc::new(runtime), Arc::new(Shift::default()));
        let (kept, own) = (Arc::clone(&runtime), Arc::clone(&shift));
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || keep(&kept, &own))?;
        Ok(Self { runtime: Some(runtime), shift, thread: Some(thread) })
    }

    /// Have a task run from now on.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Drive the runtime on this thread, the owner's, until this is done; none once the keeper has ended.
    pub(super) fn drive<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        self.shift.owner.store(true, Ordering::Release);
        self.shift.turns.fetch_add(1, Ordering::Relaxed);
        let done = runtime.block_on(work);
        self.shift.owner.store(false, Ordering::Release);
        Some(done)
    }

    /// End, and give what is left of the runtime's tasks this long.
    pub(super) fn end(&mut self, wait: Duration) {
        self.stop();
        if let Some(runtime) = self.runtime.take().and_then(Arc::into_inner) {
            runtime.shutdown_timeout(wait);
        }
    }

    fn stop(&mut self) {
        self.shift.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

fn keep(runtime: &Runtime, shift: &Shift) {
    let (mut seen, mut stirred) = (0, Instant::now());
    while !shift.stop.load(Ordering::Acquire) {
        let turns = shift.turns.load(Ordering::Relaxed);
        let away = !shift.owner.load(Ordering::Acquire) && turns == seen;
        if turns != seen {
            (seen, stirred) = (turns, Instant::now());
        }
        if away {
            runtime.block_on(turn());
        }
        let calm = stirred.elapsed() > Duration::from_secs(1);
        std::thread::park_timeout(if calm && !away { CALM } else { PATIENCE });
    }
}

/// Let every task run that can, and what it wakes.
pub(super) async fn turn() {
    for _ in 0..ROUNDS {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn keeper() -> Keeper {
        Keeper::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()).unwrap()
    }

    #[test]
    fn tasks_go_on_while_the_owner_is_away() {
        let keeper = keeper();
        let (sender, receiver) = mpsc::channel();
        keeper.spawn(async move {
            for i in 0..20 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                sender.send(i).unwrap();
            }
        });
        // Nobody drives here: what comes, comes by the keeper.
        for i in 0..20 {
            assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(i));
        }
    }

    #[test]
    fn the_owner_drives_whenever_it_waits_and_both_take_turns() {
        let keeper = keeper();
        for round in 0..50_u64 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            keeper.spawn(async move {
                tokio::task::yield_now().await;
                let _ = sender.send(round);
            });
            // Every few rounds it is away for long enough that the keeper takes over.
            if round.is_multiple_of(10) {
                std::thread::sleep(3 * PATIENCE);
            }
            assert_eq!(keeper.drive(receiver), Some(Ok(round)));
        }
    }
}
