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

impl Report {
    /// The first thing that the check and the audit have found wrong, in words.
    pub(super) fn finding(&self) -> Option<String> {
        let check = self.check.as_ref();
        let images = check.and_then(|check| check.images.first()).map(OtherImage::said);
        let difference = || check.and_then(|check| check.difference.as_ref()).map(Difference::said);
        let audit = || self.audit.iter().find_map(AuditReport::wrong);
        images.or_else(difference).or_else(audit)
    }
}

#[derive(Serialize)]
pub(super) struct StageReport {
    pub(super) layers: [u32; 2],
    pub(super) key: String,
    pub(super) backend: String,
    pub(super) compute_ms: f64,
    /// From this stage to the next one, from the last one to the head.
    pub(super) hop_ms: Option<f64>,
    pub(super) hop_rtt_ms: Option<f64>,
    pub(super) hop_relayed: bool,
    pub(super) bytes: u64,
    pub(super) requests: u32,
    /// From the head to this stage.
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
    /// Stages whose weight image is not what this machine makes of the model.
    pub(super) images: Vec<OtherImage>,
}

#[derive(Serialize)]
pub(super) struct OtherImage {
    pub(super) stage: usize,
    pub(super) key: String,
}

impl OtherImage {
    fn said(&self) -> String {
        format!(
            "stage {} ({}) runs on other weights than this machine has of the model",
            self.stage,
            short_of(&self.key)
        )
    }
}

#[derive(Serialize)]
pub(super) struct Difference {
    pub(super) answer: usize,
    pub(super) index: usize,
    pub(super) ring: Option<u32>,
    pub(super) alone: Option<u32>,
}

impl Difference {
    fn said(&self) -> String {
        let (ring, alone) = (shown(self.ring), shown(self.alone));
        format!("answer {}, token {}: the ring wrote {ring}, one machine alone {alone}", self.answer, self.index)
    }
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

impl AuditReport {
    /// What is wrong; none: nothing.
    fn wrong(&self) -> Option<String> {
        let (key, stage, sequence) = (short_of(&self.key), self.stage, self.sequence);
        Some(match &self.finding {
            Finding::Right { .. } => return None,
            Finding::Wrong { position, lap } => {
                format!("stage {stage} ({key}) computed position {position} of sequence {sequence} wrongly (lap {lap})")
            }
            Finding::Disputed { position } => {
                let before = stage - 1;
                format!("stages {before} and {stage} ({key}) disagree about position {position} of sequence {sequence}")
            }
            Finding::Untold { position } => {
                format!("stage {stage} ({key}) has not told of position {position} of sequence {sequence}")
            }
        })
    }
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
    let (last, far) = (plan.stages.len() - 1, |reach: &Reach| (ms(reach.rtt), reach.relayed));
    let hops: Vec<Vec<i64>> = laps.iter().filter_map(|lap| lap.hops()).filter(|_| last > 0).collect();
    let hop = |number: usize| -> Vec<f64> {
        hops.iter().filter_map(|hops| hops.get(number)).map(|us| *us as f64 / 1e3).collect()
    };
    let report = |(number, stage): (usize, crate::pipeline::session::StageReport)| {
        let layers = &plan.stages[number].layers;
        let reach = reached.get(&stage.key);
        let onward = match number {
            // The head's own link, whichever of its ends is meant.
            0 => plan.key(1).and_then(|next| reached.get(&next)).map(far),
            _ if number == last => reach.map(far),
            _ => stage.onward.map(|onward| (f64::from(onward.rtt_us) / 1e3, onward.relayed)),
        };
        let hop = Some(hop(number)).filter(|hops| !hops.is_empty());
        StageReport {
            layers: [layers.start, layers.end],
            key: hex(&stage.key),
            backend: stage.backend,
            compute_ms: median(
                laps.iter().filter_map(|lap| lap.shares.get(&number)).map(|share| ms(share.compute)).collect(),
            ),
            // Clocks are known well enough for less than nothing to be nothing.
            hop_ms: hop.map(|hops| median(hops).max(0.0)),
            hop_rtt_ms: onward.map(|(rtt, _)| rtt),
            hop_relayed: onward.is_some_and(|(_, relayed)| relayed),
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
    let hop = |lap: &&Lap| lap.idle().as_secs_f64() * 1e3 / lap.shares.len().max(1) as f64;
    median(laps.iter().map(hop).collect())
}

pub(super) fn lap_report(laps: &[&Lap]) -> LapReport {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    LapReport {
        laps: laps.len(),
        lap_ms: median(laps.iter().map(|lap| ms(lap.time)).collect()),
        compute_ms: median(laps.iter().map(|lap| ms(lap.compute())).collect()),
        overhead_ms: median(laps.iter().map(|lap| ms(lap.time.saturating_sub(lap.compute()))).collect()),
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
        let way = if stage.hop_relayed { "relayed" } else { "direct" };
        let hop = stage.hop_ms.map(|hop| format!("; {hop:.2} ms to the next"));
        let link = stage.hop_rtt_ms.map(|rtt| format!(", {way} at {rtt:.2} ms there and back"));
        out::note(format_args!(
            "[{key}: layers {start}..{end} on {}, {:.2} ms a row{}{}]",
            stage.backend,
            stage.compute_ms,
            hop.unwrap_or_default(),
            link.unwrap_or_default()
        ));
    }
    let laps = &report.laps;
    out::note(format_args!(
        "[{:.1} tokens/s; a lap {:.2} ms, {:.2} of them not computing; {:.2} a hop]",
        report.tokens_per_s, laps.lap_ms, laps.overhead_ms, laps.hop_ms
    ));
    for audit in &report.audit {
        let (key, stage, sequence) = (short_of(&audit.key), audit.stage, audit.sequence);
        out::note(match (&audit.finding, audit.wrong()) {
            (_, Some(wrong)) => format!("audit: {wrong}"),
            (Finding::Right { rows }, None) => {
                let by = short_of(&audit.by);
                format!("[audit: stage {stage} ({key}), sequence {sequence}: {rows} rows are right, by {by}]")
            }
            (_, None) => continue,
        });
    }
    if let Some(check) = &report.check {
        show_check(check);
    }
    Ok(())
}

fn show_check(check: &Check) {
    for image in &check.images {
        out::note(format_args!("check: {}", image.said()));
    }
    match &check.difference {
        Some(difference) => out::note(format_args!("check: {}", difference.said())),
        None => out::note("[check: one machine alone writes the same tokens]"),
    }
}

fn short_of(key: &str) -> &str {
    key.get(..10).unwrap_or(key)
}

fn shown(token: Option<u32>) -> String {
    token.map_or_else(|| "nothing".to_owned(), |token| token.to_string())
}
