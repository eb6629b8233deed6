//! `CommandTimes`: where a step's time goes, by kind of command, for those who ask.

use wordline_ir::Command;

/// Nanoseconds since some fixed moment. The engine has no clock of its own: not every target has one.
pub type Clock = fn() -> u64;

/// What the commands of one kind took together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTime {
    /// The kind, by its mnemonic.
    pub mnemonic: &'static str,
    /// Commands.
    pub calls: u64,
    /// Nanoseconds from a command's start to its end.
    pub nanos: u64,
}

/// A clock and what it has counted; without one nothing is asked and nothing counted.
#[derive(Debug, Default)]
pub(super) struct CommandTimes {
    clock: Option<Clock>,
    /// By opcode.
    kinds: Vec<CommandTime>,
}

impl CommandTimes {
    /// Start over with this clock, or stop.
    pub(super) fn restart(&mut self, clock: Option<Clock>) {
        self.clock = clock;
        self.kinds.clear();
        if clock.is_some() {
            self.kinds.resize(1 + usize::from(u8::MAX), CommandTime { mnemonic: "", calls: 0, nanos: 0 });
        }
    }

    /// The kinds that have run, in the order of their opcodes.
    pub(super) fn kinds(&self) -> impl Iterator<Item = CommandTime> {
        self.kinds.iter().filter(|kind| kind.calls > 0).copied()
    }

    /// Run a command, timed if there is a clock.
    #[inline]
    pub(super) fn of<T>(&mut self, command: &Command, run: impl FnOnce() -> T) -> T {
        let Some(clock) = self.clock else { return run() };
        let start = clock();
        let result = run();
        let info = command.info();
        if let Some(kind) = self.kinds.get_mut(usize::from(info.code)) {
            kind.mnemonic = info.mnemonic;
            kind.calls += 1;
            kind.nanos += clock().saturating_sub(start);
        }
        result
    }
}
