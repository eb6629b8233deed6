//! A report for people.

use super::source::{LoadArgs, Source};
use crate::cli::failure::Failure;
use crate::cli::out;
use wordline_twin::{Bytes, Report, Subject};

/// Kinds of commands, knobs and doubts that are shown; `--json` has all.
const SHOWN: usize = 6;

pub(super) fn report(source: &Source, load: &LoadArgs, subject: &Subject, r: &Report) -> Result<(), Failure> {
    let (name, weights, kv) = (&source.name, load.weights(&source.program), &load.kv);
    out::line(format_args!(
        "{name} on {}: {} commands in {} shapes",
        r.machine,
        subject.commands().len(),
        subject.shapes()
    ))?;
    let (rows, sequences, ctx) = (r.rows, r.sequences, load.ctx());
    out::line(format_args!("  {rows} rows of {sequences} sequences at context {ctx}, weights {weights}, caches {kv}"))?;
    out::line(format_args!(
        "  tokens/s     {:10.1}   {:.1} to {:.1}, bytes over peak would give {:.1}",
        r.tokens_per_s, r.low, r.high, r.naive_tokens_per_s
    ))?;
    out::line(format_args!("  a step       {:10.4} ms, {:.4} ms from token to token", r.ms_per_step, r.ms_per_token))?;
    if r.tokens_per_step != 1.0 {
        out::line(format_args!(
            "  steps/s      {:10.1}   {:.2} tokens a step and sequence",
            r.steps_per_s, r.tokens_per_step
        ))?;
    }
    let t = &r.time;
    out::line(format_args!(
        "  of it        {:10.4} ms compute, {:.4} ms transfer, {:.4} ms wait",
        t.compute, t.transfer, t.wait
    ))?;
    let (w, k, s) = (Bytes(r.bytes.weights), Bytes(r.bytes.kv), Bytes(r.bytes.state));
    out::line(format_args!("  moved        {w} of weights, {k} of caches, {s} of states"))?;
    let m = &r.memory;
    let held = (Bytes(m.weights), Bytes(m.kv), Bytes(m.state), Bytes(m.room));
    out::line(format_args!(
        "  held         {} of weights, {} of caches, {} of states in {}",
        held.0, held.1, held.2, held.3
    ))?;
    let e = &r.energy;
    out::line(format_args!("  energy       {:10.4} J a token, {:.1} W", e.joules_per_token, e.watts))?;
    if let Some(area) = r.area_mm2 {
        out::line(format_args!("  area         {area:10.1} mm2, {:.2} tokens/s a mm2", r.tokens_per_s / area))?;
    }
    if let Some(p) = &r.pipeline {
        out::line(format_args!(
            "  pipeline     {:10.4} ms a lap of {} stages, {} micro-batches, {:.0} % bubble, slowest stage {:.2} x mean",
            p.lap_ms,
            p.stage_ms.len(),
            p.micro_batches,
            100.0 * p.bubble,
            p.imbalance
        ))?;
    }
    let busy: Vec<String> =
        r.busy.iter().filter(|b| *b.1 > 0.0005).map(|(u, b)| format!("{u} {:.1} %", 100.0 * b)).collect();
    out::line(format_args!("  busy         {}", busy.join(", ")))?;
    let kinds: Vec<String> =
        r.by_command.iter().take(SHOWN).map(|k| format!("{} {:.1} %", k.command, 100.0 * k.share)).collect();
    out::line(format_args!("  time by      {}", kinds.join(", ")))?;
    let gains: Vec<String> = r
        .gains
        .iter()
        .take(SHOWN)
        .filter(|g| g.gain > 0.001)
        .map(|g| format!("{} {} -> {}: {:+.1} %", g.knob, g.from, g.to, 100.0 * g.gain))
        .collect();
    out::line(format_args!(
        "  would bring  {}",
        if gains.is_empty() { "nothing".into() } else { gains.join("\n               ") }
    ))?;
    let doubts: Vec<String> = r
        .doubts
        .iter()
        .take(SHOWN)
        .filter(|d| d.effect > 0.01)
        .map(|d| format!("{} ({}) {:.1} %", d.knob, d.provenance.name(), 100.0 * d.effect))
        .collect();
    if !doubts.is_empty() {
        out::line(format_args!("  in doubt by  {}", doubts.join(", ")))?;
    }
    for format in &r.not_run {
        out::line(format_args!(
            "  note: {} in {} are priced alone, the engine does not run them: {}",
            format.what, format.format, format.about
        ))?;
    }
    r.notes.iter().try_for_each(|note| out::line(format_args!("  note: {note}")))
}
