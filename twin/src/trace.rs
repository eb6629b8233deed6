//! A step as a trace: a slice for each command, for viewers of the Chrome trace format.

use crate::machine::{Knob, Machine};
use crate::price::Price;
use crate::{Subject, UNITS, unit_index};
use serde_json::{Value, json};
use wordline_ir::LayerId;

/// The trace of one micro-batch's way through the step, in microseconds. A slice names its word, layer and tensor, and
/// what it is limited by; a second row of slices shows the memory's work.
#[must_use]
pub fn trace(subject: &Subject, machine: &Machine, price: &Price) -> Value {
    let us = |cycles: u64| cycles as f64 / machine.get(Knob::CoreMhz);
    let mut events = Vec::with_capacity(2 * subject.items.len() + 16);
    let name = |pid: usize, tid: usize, text: &str| json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}});
    for stage in 0..price.stages.len() {
        let title = format!("{} stage {stage}", machine.name);
        events.push(json!({"name": "process_name", "ph": "M", "pid": stage, "args": {"name": title}}));
        events.extend(UNITS.iter().enumerate().map(|(tid, unit)| name(stage, tid, unit)));
        events.push(name(stage, UNITS.len(), "memory"));
    }
    let mut at = price.host;
    let mut stage = 0;
    for (word, (item, command)) in subject.items.iter().zip(subject.commands()).enumerate() {
        let layer = usize::from(item.layer.0);
        let outside = item.layer == LayerId::OUTSIDE;
        let next = if outside { 0 } else { price.stages.iter().position(|s| s.layers.contains(&layer)).unwrap_or(0) };
        if next != stage {
            at += price.hop.0;
            stage = next;
        }
        let (cost, spent, early) = (price.of(subject, word), price.spent[word], price.early[word]);
        let shape = &subject.shapes[item.shape as usize];
        let stream = cost.stream - early;
        let bound = if cost.fixed + cost.link > spent - cost.fixed - cost.link {
            "wait"
        } else if cost.compute >= stream.max(cost.on_chip) {
            "compute"
        } else {
            "transfer"
        };
        let tensor = subject.tensor_of(word);
        let title = if tensor.is_empty() {
            command.info().mnemonic.to_owned()
        } else {
            format!("{} {tensor}", command.info().mnemonic)
        };
        events.push(json!({
            "name": title, "cat": UNITS[unit_index(shape.unit)], "ph": "X", "pid": stage, "tid": unit_index(shape.unit),
            "ts": us(at), "dur": us(spent),
            "args": {
                "word": word, "layer": if outside { Value::Null } else { json!(layer) }, "tensor": tensor,
                "cycles": spent, "fixed": cost.fixed, "compute": cost.compute, "stream": cost.stream, "early": early,
                "link": cost.link, "macs": cost.macs, "bytes": cost.moved, "bound": bound,
            },
        }));
        if stream > 0 {
            events.push(json!({
                "name": title, "cat": "memory", "ph": "X", "pid": stage, "tid": UNITS.len(),
                "ts": us(at + cost.fixed), "dur": us(stream), "args": {"word": word},
            }));
        }
        at += spent;
    }
    json!({"displayTimeUnit": "ns", "otherData": {"machine": machine.name, "cycles": price.cycles}, "traceEvents": events})
}
