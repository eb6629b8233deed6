//! What `bench` prints for people.

use super::super::failure::Failure;
use super::super::out;
use super::Report;
use crate::measure::speed::{BoundBy, Decode, Launches};

pub(super) fn print(report: &Report<'_>) -> Result<(), Failure> {
    let Report { speed, read, .. } = report;
    let name = report.model.or(report.shape).unwrap_or_default();
    let weights = if report.shape.is_some() { ", random weights" } else { "" };
    let (form, ctx) = (report.form, report.ctx);
    let on = match (&report.adapter, &report.driver) {
        (Some(adapter), Some(driver)) => format!("{adapter}, {driver}"),
        _ => format!("{} threads", report.threads),
    };
    out::line(format_args!("{name}{weights}: {} ({form}), {on}, context {ctx}", report.backend))?;
    let (limit, mb) = (speed.limit_bytes_per_s / 1e9, read.buffer_bytes as f64 / 1e6);
    out::line(format_args!("plain reads  {limit:8.2} GB/s over {mb:.0} MB ({})", read.name))?;
    if let Some(rate) = speed.array_macs_per_s {
        out::line(format_args!("array unit   {:8.1} GMAC/s on operands in cache, each limb counted", rate / 1e9))?;
    }
    out::line("decode   tokens/s      step us   MB a step     GB/s  of reads  x bound")?;
    for decode in &speed.decode {
        let Decode { batch, tokens_per_s, step_us, bytes_per_step, share_of_limit, bound, .. } = decode;
        let (us, bytes, share) = (step_us.median, *bytes_per_step as f64, 100.0 * share_of_limit);
        let (mb, rate, times, by) = (bytes / 1e6, bytes / us / 1e3, bound.times_bound, by(bound.bound_by));
        let first = format!("{batch:6} {tokens_per_s:10.1} {us:12.1} {mb:11.2} {rate:8.2} {share:7.1} %");
        out::line(format_args!("{first} {times:8.2} ({by})"))?;
    }
    let prefill = &speed.prefill;
    let (times, by) = (prefill.bound.times_bound, by(prefill.bound.bound_by));
    let (rows, rate) = (prefill.rows, prefill.rows_per_s);
    out::line(format_args!("prefill of {rows} rows: {rate:.1} rows/s, {times:.2} x bound ({by})"))?;
    for decode in &speed.decode {
        let Some(times) = &decode.us_by_command else { continue };
        let total: f64 = times.values().sum();
        let mut kinds: Vec<(&str, f64)> = times.iter().map(|(kind, us)| (kind.as_str(), *us)).collect();
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shares = kinds.iter().map(|(kind, us)| format!("{kind} {:.1} %", 100.0 * us / total));
        out::line(format_args!("time at batch {}: {}", decode.batch, shares.collect::<Vec<_>>().join(", ")))?;
    }
    speed.decode.iter().filter_map(|decode| Some((decode, decode.launches?))).try_for_each(|(decode, launches)| {
        out::line(format_args!("launches at batch {}: {}", decode.batch, sentence(&launches)))
    })
}

/// How much a step is limited by starting work.
fn sentence(launches: &Launches) -> String {
    let Launches { kernels, us_each, submission_us, share_of_step } = launches;
    let cost = format!("{us_each:.2} us a kernel that does nothing, {submission_us:.1} us a submission");
    match (kernels, share_of_step) {
        (Some(kernels), Some(share)) => {
            format!("{kernels} kernels; {cost}: {:.0} % of the step is left when nothing is computed", 100.0 * share)
        }
        _ => cost,
    }
}

fn by(limit: BoundBy) -> &'static str {
    match limit {
        BoundBy::Memory => "memory",
        BoundBy::Array => "array",
    }
}
