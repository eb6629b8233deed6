//! A sweep as one HTML page that needs nothing else: plots in SVG, and the table.

use crate::sweep::{Axis, Point};
use std::collections::BTreeMap;
use std::fmt::Write;

const COLOURS: [&str; 8] = ["#1b6ca8", "#c8553d", "#3c8d5a", "#8a5fbf", "#b8860b", "#4a4a4a", "#d16ba5", "#2aa198"];
const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 380.0;
/// Room for numbers at the left and below.
const LEFT: f64 = 70.0;
const BELOW: f64 = 45.0;
/// Lines that a plot draws at most.
const LINES: usize = 24;

/// One mark of a plot.
struct Mark {
    x: f64,
    y: f64,
    text: String,
    front: bool,
}

/// The page.
#[must_use]
pub fn html(title: &str, axes: &[Axis], points: &[Point], objectives: &[String]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = page(&mut out, title, axes, points, objectives);
    out
}

fn page(out: &mut String, title: &str, axes: &[Axis], points: &[Point], objectives: &[String]) -> std::fmt::Result {
    let title = escape(title);
    write!(out, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>")?;
    out.push_str("body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:72em}table{border-collapse:collapse}");
    out.push_str("td,th{padding:.15em .6em;text-align:right;border-bottom:1px solid #ddd}tr.front{background:#eef6ee}");
    out.push_str("tr.refused{color:#999}svg{background:#fbfbfb;margin:.5em 0}text{font:11px system-ui,sans-serif}</style></head><body>");
    let refused = points.iter().filter(|p| p.refused.is_some()).count();
    let front = points.iter().filter(|p| p.front).count();
    writeln!(out, "<h1>{title}</h1><p>{} points, {refused} refused, {front} on the front.</p>", points.len())?;
    for (index, axis) in axes.iter().enumerate() {
        if axis.values.len() > 1 && axis.values.iter().all(|v| v.parse::<f64>().is_ok()) {
            writeln!(out, "<h2>Tokens a second over {}</h2>", escape(&axis.name))?;
            lines(out, axes, points, index)?;
        }
    }
    if let [x, y, ..] = objectives {
        writeln!(out, "<h2>{} against {}</h2><p>The front is ringed.</p>", escape(y), escape(x))?;
        let marks: Vec<Mark> = points
            .iter()
            .filter_map(|p| {
                let figures = p.figures.as_ref()?;
                Some(Mark { x: figures.named(x)?, y: figures.named(y)?, text: label(axes, p), front: p.front })
            })
            .collect();
        plot(out, &[(String::new(), marks)], x, y, false)?;
    }
    table(out, axes, points)?;
    out.push_str("</body></html>\n");
    Ok(())
}

/// Tokens a second over one axis, a line for each choice of the others.
fn lines(out: &mut String, axes: &[Axis], points: &[Point], index: usize) -> std::fmt::Result {
    let mut series: BTreeMap<String, Vec<Mark>> = BTreeMap::new();
    for point in points {
        let (Some(figures), Ok(x)) = (&point.figures, point.at[index].parse()) else { continue };
        let others: Vec<String> = axes
            .iter()
            .zip(&point.at)
            .enumerate()
            .filter(|(i, _)| *i != index)
            .map(|(_, (axis, value))| format!("{}={value}", axis.name))
            .collect();
        let mark = Mark { x, y: figures.tokens_per_s, text: label(axes, point), front: false };
        series.entry(others.join(" ")).or_default().push(mark);
    }
    let more = series.len().saturating_sub(LINES);
    let mut series: Vec<(String, Vec<Mark>)> = series.into_iter().take(LINES).collect();
    series.iter_mut().for_each(|(_, marks)| marks.sort_by(|a, b| a.x.total_cmp(&b.x)));
    plot(out, &series, &axes[index].name, "tokens_per_s", true)?;
    if more > 0 {
        writeln!(out, "<p>{more} more lines are in the table alone.</p>")?;
    }
    Ok(())
}

fn label(axes: &[Axis], point: &Point) -> String {
    let parts: Vec<String> = axes.iter().zip(&point.at).map(|(axis, value)| format!("{}={value}", axis.name)).collect();
    parts.join(" ")
}

/// A scale of one direction: logarithmic where the values are positive and far apart.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let log = low > 0.0 && high / low > 4.0;
        let pad = if high > low { 0.0 } else { (low.abs() * 0.5).max(0.5) };
        if log { Scale { low, high, log } } else { Scale { low: low.min(0.0), high: high + pad, log } }
    }

    fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.ln() } else { v };
        let (low, high) = (map(self.low), map(self.high));
        if high > low { (map(value) - low) / (high - low) } else { 0.5 }
    }

    fn ticks(&self) -> Vec<f64> {
        let step = |i: f64| {
            let t = i / 5.0;
            if self.log {
                (self.low.ln() + t * (self.high / self.low).ln()).exp()
            } else {
                self.low + t * (self.high - self.low)
            }
        };
        (0..=5).map(|i| step(f64::from(i))).collect()
    }
}

fn plot(out: &mut String, series: &[(String, Vec<Mark>)], x: &str, y: &str, joined: bool) -> std::fmt::Result {
    let marks = || series.iter().flat_map(|(_, marks)| marks);
    if marks().next().is_none() {
        return writeln!(out, "<p>Every point is refused.</p>");
    }
    let (xs, ys) = (Scale::of(marks().map(|m| m.x)), Scale::of(marks().map(|m| m.y)));
    let px = |v: f64| LEFT + xs.at(v) * (WIDTH - LEFT - 20.0);
    let py = |v: f64| HEIGHT - BELOW - ys.at(v) * (HEIGHT - BELOW - 20.0);
    writeln!(out, "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">")?;
    for tick in xs.ticks() {
        let at = px(tick);
        writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"20\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BELOW,
            HEIGHT - BELOW + 15.0,
            short(tick)
        )?;
    }
    for tick in ys.ticks() {
        let at = py(tick);
        writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 20.0,
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        )?;
    }
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 8.0,
        escape(x)
    )?;
    writeln!(out, "<text x=\"12\" y=\"14\">{}</text>", escape(y))?;
    for (index, (name, marks)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        if joined {
            let path: Vec<String> = marks.iter().map(|m| format!("{:.1},{:.1}", px(m.x), py(m.y))).collect();
            writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"><title>{}</title></polyline>",
                path.join(" "),
                escape(name)
            )?;
        }
        for m in marks {
            let ring = if m.front { " stroke=\"#c00\" stroke-width=\"2\"" } else { "" };
            writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"{ring}><title>{}: {} {}</title></circle>",
                px(m.x),
                py(m.y),
                escape(&m.text),
                short(m.y),
                escape(y)
            )?;
        }
    }
    writeln!(out, "</svg>")
}

fn table(out: &mut String, axes: &[Axis], points: &[Point]) -> std::fmt::Result {
    out.push_str("<h2>Points</h2><table><tr>");
    for axis in axes {
        write!(out, "<th>{}</th>", escape(&axis.name))?;
    }
    out.push_str(
        "<th>tokens/s</th><th>ms a step</th><th>J a token</th><th>W</th><th>mm2</th><th>naive tokens/s</th></tr>\n",
    );
    for point in points {
        let class = if point.front {
            "front"
        } else if point.refused.is_some() {
            "refused"
        } else {
            ""
        };
        write!(out, "<tr class=\"{class}\">")?;
        for value in &point.at {
            write!(out, "<td>{}</td>", escape(value))?;
        }
        match (&point.figures, &point.refused) {
            (Some(f), _) => {
                for value in
                    [f.tokens_per_s, f.ms_per_step, f.joules_per_token, f.watts, f.area_mm2, f.naive_tokens_per_s]
                {
                    write!(out, "<td>{}</td>", short(value))?;
                }
            }
            (None, refused) => {
                write!(out, "<td colspan=\"6\">{}</td>", escape(refused.as_deref().unwrap_or_default()))?;
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>");
    Ok(())
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 1e9 => format!("{:.2}G", value / 1e9),
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
