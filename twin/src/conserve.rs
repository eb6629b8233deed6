//! What must hold of every price; a breach is an error that says what and where, and a fault of the twin.
//!
//! 1. Matrices move as often as commands stream them, by the tensor table and not by the commands' work.
//! 2. Picked experts are no more than all experts.
//! 3. Caches are read and appended, and states read and written back, as their layouts say.
//! 4. A command takes no less than its parts, and no stall is negative: what came early was no more than its stream.
//! 5. Commands sum to stages, and stages, hops and host to the lap.
//! 6. No resource is busy for longer than the step: no unit, and not the memory at its peak.

use crate::Load;
use crate::cost::Rates;
use crate::machine::Knob;
use crate::price::{Price, UNITS};
use crate::subject::{Split, Subject, state_elements};
use wordline_ir::command::Unit;

/// A price that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conservation {
    /// Bytes moved are not the bytes owed.
    #[error("{what}: {moved} bytes move and {owed} are owed")]
    Bytes {
        /// Class of bytes.
        what: &'static str,
        /// Bytes of the price.
        moved: u64,
        /// Bytes by the layout.
        owed: u64,
    },
    /// A command takes less than one of its parts.
    #[error("command {command} takes {spent} cycles and its parts {parts}")]
    Command {
        /// Index of the command.
        command: usize,
        /// Cycles it takes.
        spent: u64,
        /// Cycles of its parts.
        parts: u64,
    },
    /// Parts do not sum to the whole.
    #[error("{what}: the parts take {parts} cycles and the whole {whole}")]
    Sum {
        /// Which whole.
        what: &'static str,
        /// Sum of the parts.
        parts: u64,
        /// The whole.
        whole: u64,
    },
    /// A resource is busy for longer than the step takes.
    #[error("{resource} is busy for {busy} of {cycles} cycles")]
    Busy {
        /// The resource.
        resource: &'static str,
        /// Cycles it is busy.
        busy: u64,
        /// Cycles of the step.
        cycles: u64,
    },
}

pub(crate) fn check(subject: &Subject, rates: &Rates<'_>, load: &Load, price: &Price) -> Result<(), Conservation> {
    bytes(subject, rates, load, price)?;
    commands(subject, price)?;
    sums(price)?;
    busy(rates, price)
}

/// `moved` times the devices is `owed`, but for what rounding up on each device adds to each command.
fn equal(what: &'static str, moved: u64, devices: u64, owed: u64, commands: u64) -> Result<(), Conservation> {
    let all = moved.saturating_mul(devices);
    let slack = if devices == 1 { 0 } else { 64 * commands * devices };
    if all < owed || all > owed.saturating_add(slack) {
        return Err(Conservation::Bytes { what, moved: all, owed });
    }
    Ok(())
}

fn bytes(subject: &Subject, rates: &Rates<'_>, load: &Load, price: &Price) -> Result<(), Conservation> {
    let devices = price.group;
    let streams_of = |rows: u64| {
        let share = rates.at(Knob::StreamRows);
        if share > 0.0 { (rows as f64 / share).ceil().max(1.0) as u64 } else { 1 }
    };
    let (mut matrices, mut whole_matrices, mut routed, mut kv, mut state, mut count) = (0_u64, 0, 0_u64, 0, 0, 0);
    for item in &subject.items {
        let number = item.shape as usize;
        let (shape, cost) = (&subject.shapes[number], &price.costs[number]);
        let rows = if shape.tail { load.logit_rows() } else { load.rows() };
        let plain = match shape.split {
            Split::Whole => shape.plain_bytes,
            Split::Shared => shape.plain_bytes.div_ceil(devices),
        };
        let read = cost.moved.weights + cost.moved.on_chip;
        kv += cost.moved.kv;
        match shape.unit {
            Unit::Array if shape.experts > 0 => routed += read - plain,
            Unit::Array => {
                count += 1;
                let own = (read - plain) / streams_of(rows);
                match shape.split {
                    Split::Whole => whole_matrices += own,
                    Split::Shared => matrices += own,
                }
            }
            Unit::Conv | Unit::Delta => state += cost.moved.state + read - plain,
            Unit::Vector | Unit::Attend => {}
        }
    }
    let owed = subject.owed.matrices.saturating_sub(whole_matrices);
    equal("matrices", matrices, devices, owed, count)?;
    if load.rows() <= 1 || rates.at(Knob::StreamRows) == 0.0 {
        let most = subject.owed.stacks / devices + subject.items.len() as u64 * 4096;
        if routed > most {
            return Err(Conservation::Bytes { what: "picked experts", moved: routed, owed: most });
        }
    }
    let sharers = rates.at(Knob::RowShare) as u64;
    let (mut owed_kv, mut owed_state) = (0_u64, 0_u64);
    let uses = if rates.machine.flag(Knob::DeltaHold) { load.sequences() } else { load.rows() };
    let trips = rates.at(Knob::DeltaTrips) as u64;
    let formats = &subject.formats;
    for layer in &subject.owed.layers {
        if let Some(c) = layer.cache {
            // Positions read by attention, and the row's own appended.
            let of = |n| formats.kv.cache_bytes(c.kv_heads as u64, c.head_dim as u64, c.v_dim as u64, n);
            let read = of(load.read(c.window.unwrap_or(0) as u64, sharers));
            owed_kv = owed_kv.saturating_add(read).saturating_add(of(load.rows()));
        }
        let memory = layer.memory.map_or(0, |m| (m.heads * m.key_dim * m.value_dim) as u64);
        let ring = state_elements(layer) - memory;
        let of = |elements: u64| formats.state.flat_bytes(uses.saturating_mul(elements)).saturating_mul(2);
        owed_state = owed_state.saturating_add(of(ring)).saturating_add(of(memory).saturating_mul(trips));
    }
    // Several attentions over one cache read it each.
    if devices == 1 && kv < owed_kv {
        return Err(Conservation::Bytes { what: "caches", moved: kv, owed: owed_kv });
    }
    let attends = subject.shapes.iter().filter(|s| s.heads > 0).count();
    let layers = subject.owed.layers.iter().filter(|l| l.cache.is_some()).count();
    let single = subject.items.iter().filter(|i| subject.shapes[i.shape as usize].heads > 0).count() == layers;
    if devices == 1 && attends > 0 && single && kv != owed_kv {
        return Err(Conservation::Bytes { what: "caches", moved: kv, owed: owed_kv });
    }
    equal("states", state, devices, owed_state, 2 * subject.items.len() as u64)
}

fn commands(subject: &Subject, price: &Price) -> Result<(), Conservation> {
    for (command, (spent, early)) in price.spent.iter().zip(&price.early).enumerate() {
        let cost = price.of(subject, command);
        let parts = cost.stream.checked_sub(*early).map(|left| cost.fixed + cost.link + left.max(cost.compute));
        if parts.is_none_or(|parts| parts > *spent) {
            return Err(Conservation::Command { command, spent: *spent, parts: parts.unwrap_or(*early) });
        }
    }
    Ok(())
}

fn sums(price: &Price) -> Result<(), Conservation> {
    let parts: u64 = price.spent.iter().sum();
    let whole: u64 = price.stages.iter().map(|s| s.cycles).sum();
    if parts != whole {
        return Err(Conservation::Sum { what: "commands of the stages", parts, whole });
    }
    let hops = if price.stages.len() > 1 { price.hop.0 * price.stages.len() as u64 } else { 0 };
    let parts = whole + hops + price.host;
    if parts > price.cycles || (price.stages.len() == 1 && parts != price.cycles) {
        return Err(Conservation::Sum { what: "the step", parts, whole: price.cycles });
    }
    Ok(())
}

fn busy(rates: &Rates<'_>, price: &Price) -> Result<(), Conservation> {
    let cycles = price.cycles * price.stages.len() as u64;
    for (resource, computes) in UNITS.into_iter().zip(price.computes) {
        let busy = computes * price.micro_batches;
        if busy > cycles {
            return Err(Conservation::Busy { resource, busy, cycles });
        }
    }
    let memory = (price.moved.memory() * price.micro_batches) as f64 / rates.peak;
    if memory.floor() > cycles as f64 {
        return Err(Conservation::Busy { resource: "memory", busy: memory as u64, cycles });
    }
    Ok(())
}
