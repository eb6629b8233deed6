//! A sweep as one HTML page that needs nothing else: plots in SVG, and a table that sorts itself.

mod plot;

use crate::sweep::{Axis, OBJECTIVES, Point};
use plot::{Label, Mark, Series, plot};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Lines that a plot draws at most, and marks of one cloud.
const LINES: usize = 24;
const MARKS: usize = 20_000;
/// Points that the table shows at most, those of the front first.
const ROWS: usize = 5_000;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/table.js");

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
    write!(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">")?;
    write!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<title>{title}</title><style>{STYLE}</style></head><body><main>")?;
    writeln!(out, "<h1>{title}</h1>")?;
    let refused = points.iter().filter(|p| p.refused.is_some()).count();
    let front = points.iter().filter(|p| p.front).count();
    out.push_str("<ul class=\"cards\">");
    card(out, &points.len().to_string(), "points")?;
    card(out, &front.to_string(), "on the front")?;
    card(out, &refused.to_string(), "refused")?;
    let best = points.iter().filter_map(|p| p.figures.map(|f| (f.tokens_per_s, p)));
    if let Some((rate, point)) = best.max_by(|a, b| a.0.total_cmp(&b.0)) {
        card(out, &short(rate), &format!("tokens/s at most, {}", label(axes, point)))?;
    }
    out.push_str("</ul>\n");
    cloud(out, axes, points, objectives)?;
    for (index, axis) in axes.iter().enumerate() {
        if axis.values.len() > 1 && axis.numeric() {
            writeln!(out, "<section><h2>tokens/s over {}</h2>", escape(&axis.name))?;
            lines(out, axes, points, index)?;
            out.push_str("</section>\n");
        }
    }
    table(out, axes, points)?;
    writeln!(out, "</main><script>{SCRIPT}</script></body></html>")
}

fn card(out: &mut String, figure: &str, what: &str) -> std::fmt::Result {
    write!(out, "<li><b>{}</b><span>{}</span></li>", escape(figure), escape(what))
}

/// The points by the first two objectives, and the front among them.
fn cloud(out: &mut String, axes: &[Axis], points: &[Point], objectives: &[String]) -> std::fmt::Result {
    let [x, y, ..] = objectives else { return Ok(()) };
    let mark = |p: &Point| {
        let figures = p.figures.as_ref()?;
        Some(Mark { x: figures.named(x)?, y: figures.named(y)?, text: label(axes, p), front: p.front })
    };
    let mut marks: Vec<Mark> = points.iter().filter_map(mark).collect();
    // Where there are too many to draw, the front stays.
    marks.sort_by_key(|m| !m.front);
    let left_out = marks.len().saturating_sub(MARKS);
    marks.truncate(MARKS);
    let mut front: Vec<Mark> = marks.iter().filter(|m| m.front).cloned().collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    writeln!(out, "<section><h2>{} against {}</h2>", escape(y), escape(x))?;
    out.push_str("<p>The points that no other beats are ringed and joined.");
    if objectives.len() > 2 {
        write!(out, " They are chosen by {}.", escape(&objectives.join(", ")))?;
    }
    if left_out > 0 {
        write!(out, " {left_out} points beside the front are in the table alone.")?;
    }
    out.push_str("</p>\n");
    let series = [
        Series { name: "all points".into(), marks, joined: false, class: "all" },
        // A joined line over more than two objectives would join points that have nothing to do with each other.
        Series { name: "front".into(), marks: front, joined: objectives.len() == 2, class: "front" },
    ];
    plot(out, &series, &Label::of(x, unit(x)), &Label::of(y, unit(y)))?;
    out.push_str("</section>\n");
    Ok(())
}

/// Unit of an objective.
fn unit(name: &str) -> &'static str {
    OBJECTIVES.iter().find(|o| o.name == name).map_or("", |o| o.unit)
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
            .filter(|(i, (axis, _))| *i != index && axis.values.len() > 1)
            .map(|(_, (axis, value))| format!("{}={value}", axis.name))
            .collect();
        let mark = Mark { x, y: figures.tokens_per_s, text: label(axes, point), front: false };
        series.entry(others.join(" ")).or_default().push(mark);
    }
    let more = series.len().saturating_sub(LINES);
    let series: Vec<Series> = series
        .into_iter()
        .take(LINES)
        .map(|(name, mut marks)| {
            marks.sort_by(|a, b| a.x.total_cmp(&b.x));
            Series { name, marks, joined: true, class: "line" }
        })
        .collect();
    plot(out, &series, &Label::of(&axes[index].name, axes[index].unit()), &Label::of("tokens_per_s", "tokens/s"))?;
    if more > 0 {
        writeln!(out, "<p>{more} more lines are in the table alone.</p>")?;
    }
    Ok(())
}

fn label(axes: &[Axis], point: &Point) -> String {
    let parts: Vec<String> = axes.iter().zip(&point.at).map(|(axis, value)| format!("{}={value}", axis.name)).collect();
    if parts.is_empty() { "as described".into() } else { parts.join(" ") }
}

fn table(out: &mut String, axes: &[Axis], points: &[Point]) -> std::fmt::Result {
    out.push_str("<section><h2>Points</h2><p><label><input type=\"checkbox\" id=\"only\"> only the front</label>");
    out.push_str(" A click on a heading sorts.");
    let mut shown: Vec<&Point> = points.iter().collect();
    if shown.len() > ROWS {
        shown.sort_by_key(|p| !p.front);
        shown.truncate(ROWS);
        write!(out, " {} points are left out here and stand in the CSV.", points.len() - ROWS)?;
    }
    out.push_str("</p>\n<div class=\"wide\"><table id=\"points\"><thead><tr>");
    let head = |out: &mut String, name: &str, unit: &str| {
        let unit = if unit.is_empty() { String::new() } else { format!("<small>{}</small>", escape(unit)) };
        write!(out, "<th scope=\"col\"><button>{}{unit}</button></th>", escape(name))
    };
    for axis in axes {
        head(out, &axis.name, axis.unit())?;
    }
    for objective in OBJECTIVES {
        head(out, objective.name, objective.unit)?;
    }
    head(out, "naive_tokens_per_s", "tokens/s")?;
    out.push_str("</tr></thead><tbody>\n");
    for point in shown {
        let class = match (point.front, &point.refused) {
            (true, _) => " class=\"front\"",
            (false, Some(_)) => " class=\"refused\"",
            (false, None) => "",
        };
        write!(out, "<tr{class}>")?;
        for value in &point.at {
            cell(out, value.parse().ok(), &escape(value))?;
        }
        match (&point.figures, &point.refused) {
            (Some(figures), _) => {
                for name in OBJECTIVES.iter().map(|o| o.name).chain(["naive_tokens_per_s"]) {
                    let value = figures.named(name).unwrap_or_default();
                    cell(out, Some(value), &short(value))?;
                }
            }
            (None, refused) => {
                let reason = escape(refused.as_deref().unwrap_or_default());
                write!(out, "<td colspan=\"{}\">{reason}</td>", OBJECTIVES.len() + 1)?;
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></section>\n");
    Ok(())
}

/// A cell with the number that it is sorted by.
fn cell(out: &mut String, number: Option<f64>, text: &str) -> std::fmt::Result {
    match number {
        Some(number) => write!(out, "<td data-n=\"{number}\">{text}</td>"),
        None => write!(out, "<td>{text}</td>"),
    }
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
