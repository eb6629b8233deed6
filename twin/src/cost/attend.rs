//! The attention unit: appending to a cache, and softmax attention over it.

use super::{Job, Rates, Rows, vector};
use crate::machine::Knob;
use crate::subject::{Shape, Split};

/// An append, or an attention over the cache.
pub(super) fn job(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Job {
    let n = rows.of(shape);
    let devices = if shape.split == Split::Shared { rates.devices } else { 1 };
    let kv_heads = shape.kv_heads.div_ceil(devices);
    let kv = |positions| rates.kv.cache_bytes(kv_heads, shape.head_dim, shape.value_dim, positions);
    if shape.heads == 0 {
        return Job { cycles: vector::micro(rates, n, shape), kv: kv(n), ..Job::default() };
    }
    let seen = rows.load.seen(shape.window);
    let heads = shape.heads.div_ceil(devices);
    let (keys, values) = (heads * shape.head_dim, heads * shape.value_dim);
    let passes = |bits: u32| (f64::from(bits) / rates.at(Knob::AttendBits)).ceil();
    let products = keys as f64 * passes(shape.query_bits) + values as f64 * passes(shape.prob_bits);
    let dots = seen as f64 * products / rates.at(Knob::AttendLanes);
    let scores = seen as f64 * heads as f64 * rates.at(Knob::SoftmaxPasses) / rates.at(Knob::SoftmaxLanes);
    // A kernel that waits on each position does so for the longest sequence, the others beside it.
    let longest = if shape.window == 0 { rows.load.longest() } else { rows.load.longest().min(shape.window) };
    let serial = longest as f64 * rates.at(Knob::PositionNs) * rates.us / 1e3;
    Job {
        // Scores, softmax and sum follow each other position by position: the slowest sets the pace.
        cycles: dots.max(scores).max(serial) + rates.at(Knob::VectorLatency),
        macs: seen.saturating_mul(keys + values),
        kv: kv(rows.load.read(shape.window, rates.at(Knob::RowShare) as u64)),
        ..Job::default()
    }
}
