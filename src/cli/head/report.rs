//! What a head reports of its run, as JSON and in words.

use super::Args;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::pipeline::audit::Finding;
use crate::pipeline::link::Reach;
use crate::pipeline::plan::{Key, Plan};
use crate::pipeline::session::{Ending, HeadSession, Lap};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use wordline_ir::digest::hex;

/// What `--json` reports.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    pub(super) tokens_per_s: f64,
    pub(super) stages: Vec<StageReport>,
    pub(super) check: Option<Check>,
    pub(super) audit: Vec<AuditReport>,
    pub(super) losses: Vec<String>,
    pub(super) laps: LapReport,
    pub(super) answers: Vec<Answer>,
}

#[derive(Serialize)]
pub(super) struct StageReport {
    pub(super) layers: [u32; 2],
    pub(super) key: String,
    pub(super) backend: String,
    pub(super) compute_ms: f64,
    pub(super) hop_ms: f64,
    pub(super) bytes: u64,
    pub(super) requests: u32,
    pub(super) rtt_ms: Option<f64>,
    pub(super) relayed: bool,
}

#[derive(Serialize)]
pub(super) struct Answer {
    pub(super) prompt_ids: Vec<u32>,
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    pub(super) finish: Ending,
}

/// The differential check.
#[derive(Serialize)]
pub(super) struct Check {
    pub(super) equal: bool,
    pub(super) difference: Option<Difference>,
}

#[derive(Serialize)]
pub(super) struct Difference {
    pub(super) answer: usize,
    pub(super) index: usize,
    pub(super) ring: Option<u32>,
    pub(super) alone: Option<u32>,
}

#[derive(Serialize)]
pub(super) struct AuditReport {
    pub(super) stage: u32,
    pub(super) sequence: u32,
    pub(super) key: String,
    /// Key of the device that replayed it.
    pub(super) by: String,
    #[serde(flatten)]
    pub(super) finding: Finding,
}

/// Laps of one row, in milliseconds, medians.
#[derive(Serialize)]
pub(super) struct LapReport {
    pub(super) laps: usize,
    pub(super) lap_ms: f64,
    pub(super) compute_ms: f64,
    /// What is not computing: lap - sum of the stages' computing.
    pub(super) overhead_ms: f64,
    pub(super) hop_ms: f64,
}

pub(super) fn stages(session: &HeadSession, reached: &BTreeMap<Key, Reach>, laps: &[&Lap]) -> Vec<StageReport> {
    let Some(plan): Option<&Plan> = session.plan() else { return Vec::new() };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let hop = hop_ms(laps);
    let report = |(number, stage): (usize, crate::pipeline::session::StageReport)| {
        let layers = &plan.stages[number].layers;
        let reach = reached.get(&stage.key);
        StageReport {
            layers: [layers.start, layers.end],
            key: hex(&stage.key),
            backend: stage.backend,
            compute_ms: median(laps.iter().filter_map(|lap| lap.compute.get(number)).map(|time| ms(*time)).collect()),
            hop_ms: if plan.stages.len() > 1 { hop } else { 0.0 },
            bytes: stage.ready.map_or(0, |ready| ready.bytes),
            requests: stage.ready.map_or(0, |ready| ready.requests),
            rtt_ms: reach.map(|reach| ms(reach.rtt)),
            relayed: reach.is_some_and(|reach| reach.relayed),
        }
    };
    session.stages().into_iter().enumerate().map(report).collect()
}

/// What a lap spends on neither computing nor waiting for a step under way, by hop.
fn hop_ms(laps: &[&Lap]) -> f64 {
    let hop = |lap: &&Lap| {
        let busy: Duration = lap.compute.iter().chain(&lap.queue).sum();
        lap.time.saturating_sub(busy).as_secs_f64() * 1e3 / lap.compute.len().max(1) as f64
    };
    median(laps.iter().map(hop).collect())
}

pub(super) fn lap_report(laps: &[&Lap]) -> LapReport {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let compute = |lap: &&Lap| lap.compute.iter().sum::<Duration>();
    LapReport {
        laps: laps.len(),
        lap_ms: median(laps.iter().map(|lap| ms(lap.time)).collect()),
        compute_ms: median(laps.iter().map(|lap| ms(compute(lap))).collect()),
        overhead_ms: median(laps.iter().map(|lap| ms(lap.time.saturating_sub(compute(lap)))).collect()),
        hop_ms: hop_ms(laps),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

pub(super) fn show(args: &Args, report: &Report, has_text: bool) -> Result<(), Failure> {
    if args.json.json {
        return out::json(report);
    }
    if report.answers.len() > 1 || !has_text {
        for answer in &report.answers {
            let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
            out::line(if has_text { answer.text.clone() } else { ids.join(",") })?;
        }
    }
    for stage in &report.stages {
        let key = stage.key.get(..10).unwrap_or(&stage.key);
        let [start, end] = stage.layers;
        let reach = stage
            .rtt_ms
            .map(|rtt| format!(", {} at {rtt:.2} ms there and back", if stage.relayed { "relayed" } else { "direct" }));
        out::note(format_args!(
            "[{key}: layers {start}..{end} on {}, {:.2} ms a row{}]",
            stage.backend,
            stage.compute_ms,
            reach.unwrap_or_default()
        ));
    }
    let laps = &report.laps;
    out::note(format_args!(
        "[{:.1} tokens/s; a lap {:.2} ms, {:.2} of them not computing; {:.2} a hop]",
        report.tokens_per_s, laps.lap_ms, laps.overhead_ms, laps.hop_ms
    ));
    for audit in &report.audit {
        let key = audit.key.get(..10).unwrap_or(&audit.key);
        let (stage, sequence) = (audit.stage, audit.sequence);
        out::note(match &audit.finding {
            Finding::Right { rows } => {
                format!(
                    "[audit: stage {stage} ({key}), sequence {sequence}: {rows} rows are right, by {}]",
                    short_of(&audit.by)
                )
            }
            Finding::Wrong { position, lap } => {
                format!(
                    "audit: stage {stage} ({key}) computed position {position} of sequence {sequence} wrongly (lap {lap})"
                )
            }
            Finding::Disputed { position } => format!(
                "audit: stages {} and {stage} ({key}) disagree about position {position} of sequence {sequence}",
                stage - 1
            ),
            Finding::Untold { position } => {
                format!("audit: stage {stage} ({key}) has not told of position {position} of sequence {sequence}")
            }
        });
    }
    match &report.check {
        Some(Check { equal: true, .. }) => out::note("[check: one machine alone writes the same tokens]"),
        Some(Check { difference: Some(d), .. }) => out::note(format_args!(
            "check: answer {}, token {}: the ring wrote {}, one machine alone {}",
            d.answer,
            d.index,
            shown(d.ring),
            shown(d.alone)
        )),
        _ => {}
    }
    Ok(())
}

fn short_of(key: &str) -> &str {
    key.get(..10).unwrap_or(key)
}

fn shown(token: Option<u32>) -> String {
    token.map_or_else(|| "nothing".to_owned(), |token| token.to_string())
}
