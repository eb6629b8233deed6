//! `quietly`: work whose panics are caught and told as refusals, so that the panic hook keeps silent about them.

use std::cell::Cell;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Run `work` with this thread marked quiet. `work` catches its own panics.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let before = QUIET.replace(true);
    let result = work();
    QUIET.set(before);
    result
}

/// True while this thread's panics are caught and told by whoever asked for the work.
pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}
