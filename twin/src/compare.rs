//! Two prices beside each other: two machines, two loads or two programs.

use crate::report::Report;
use serde::Serialize;
use std::collections::BTreeMap;

/// A kind of command in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Both {
    /// Mnemonic.
    pub command: &'static str,
    /// Commands of the kind, left and right.
    pub count: (u64, u64),
    /// Milliseconds, left and right.
    pub ms: (f64, f64),
}

/// Two reports compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Milliseconds of the step, left and right.
    pub ms_per_step: (f64, f64),
    /// Tokens a second.
    pub tokens_per_s: (f64, f64),
    /// Right over left.
    pub ratio: f64,
    /// The intervals overlap: the difference is within what the knobs leave open.
    pub within_doubt: bool,
    /// Bytes from memory a step.
    pub memory_bytes: (u64, u64),
    /// Multiply-accumulates a step.
    pub macs: (u64, u64),
    /// Milliseconds of arithmetic, bytes and waiting.
    pub compute: (f64, f64),
    /// See `compute`.
    pub transfer: (f64, f64),
    /// See `compute`.
    pub wait: (f64, f64),
    /// Kinds of commands, the largest difference first.
    pub by_command: Vec<Both>,
}

/// Compare two reports.
#[must_use]
pub fn compare(left: &Report, right: &Report) -> Comparison {
    let mut kinds: BTreeMap<&'static str, Both> = BTreeMap::new();
    for kind in &left.by_command {
        kinds.insert(kind.command, Both { command: kind.command, count: (kind.count, 0), ms: (kind.ms, 0.0) });
    }
    for kind in &right.by_command {
        let both = kinds.entry(kind.command).or_insert(Both { command: kind.command, count: (0, 0), ms: (0.0, 0.0) });
        (both.count.1, both.ms.1) = (kind.count, kind.ms);
    }
    let mut by_command: Vec<Both> = kinds.into_values().collect();
    by_command.sort_by(|a, b| (b.ms.1 - b.ms.0).abs().total_cmp(&(a.ms.1 - a.ms.0).abs()));
    Comparison {
        ms_per_step: (left.ms_per_step, right.ms_per_step),
        tokens_per_s: (left.tokens_per_s, right.tokens_per_s),
        ratio: right.tokens_per_s / left.tokens_per_s,
        within_doubt: left.low <= right.high && right.low <= left.high,
        memory_bytes: (left.bytes.memory(), right.bytes.memory()),
        macs: (left.macs, right.macs),
        compute: (left.time.compute, right.time.compute),
        transfer: (left.time.transfer, right.time.transfer),
        wait: (left.time.wait, right.time.wait),
        by_command,
    }
}
