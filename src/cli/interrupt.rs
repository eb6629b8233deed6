//! Ctrl-C: ends a generation after the token at hand; anywhere else, or the second time, ends the program.

use std::sync::atomic::{AtomicU8, Ordering};

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Nothing to finish: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// Tokens are being written: Ctrl-C asks for an end.
const WRITING: u8 = 1;
/// An end was asked for.
const STOPPING: u8 = 2;

/// While this lives, the first Ctrl-C asks for an end.
#[derive(Debug)]
pub(super) struct Guard(());

/// Begin to take Ctrl-C as the wish to end a generation. Where no handler can be set, Ctrl-C ends the program as ever.
#[must_use]
pub(super) fn guard() -> Guard {
    STATE.store(WRITING, Ordering::SeqCst);
    let _ = ctrlc::set_handler(|| {
        if STATE.compare_exchange(WRITING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            std::process::exit(super::failure::Exit::Interrupted as i32);
        }
    });
    Guard(())
}

impl Guard {
    /// An end was asked for.
    #[must_use]
    pub(super) fn stopping(&self) -> bool {
        STATE.load(Ordering::SeqCst) == STOPPING
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
