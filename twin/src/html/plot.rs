//! A plot in SVG: marks and lines over two scales with their units.

use super::{escape, short};
use std::fmt::Write;

const COLOURS: [&str; 8] = ["#1b6ca8", "#c8553d", "#3c8d5a", "#8a5fbf", "#b8860b", "#7a8291", "#d16ba5", "#2aa198"];
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
/// Room for numbers and names at the left, below, above and at the right.
const LEFT: f64 = 72.0;
const BELOW: f64 = 52.0;
const ABOVE: f64 = 30.0;
const RIGHT: f64 = 24.0;
/// Height of a line of the legend.
const ROW: f64 = 18.0;

/// One mark.
#[derive(Clone)]
pub(super) struct Mark {
    pub x: f64,
    pub y: f64,
    pub text: String,
    pub front: bool,
}

/// Marks that belong together.
pub(super) struct Series {
    pub name: String,
    pub marks: Vec<Mark>,
    pub joined: bool,
    /// Class of its group, which the page's style may colour.
    pub class: &'static str,
}

/// What a scale shows.
pub(super) struct Label(String);

impl Label {
    /// A name with its unit.
    pub(super) fn of(name: &str, unit: &str) -> Label {
        Label(if unit.is_empty() { name.into() } else { format!("{name} ({unit})") })
    }
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
        let log = low > 0.0 && high / low > 8.0;
        if log || high > low {
            let low = if log || low > 0.5 * high { low } else { low.min(0.0) };
            return Scale { low, high, log };
        }
        let pad = (low.abs() * 0.5).max(0.5);
        Scale { low: low - pad, high: high + pad, log }
    }

    fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.ln() } else { v };
        (map(value) - map(self.low)) / (map(self.high) - map(self.low))
    }

    /// Round values within the scale.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (from, to) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
            let steps: &[f64] = if to - from > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = (from..=to).flat_map(|power| steps.iter().map(move |s| s * 10_f64.powi(power)));
            let ticks: Vec<f64> = all.filter(|v| (self.low..=self.high).contains(v)).collect();
            let thin = ticks.len().div_ceil(10).max(1);
            return ticks.into_iter().step_by(thin).collect();
        }
        let raw = (self.high - self.low) / 6.0;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= raw).unwrap_or(raw);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last.min(first + 20)).map(|i| i as f64 * step).collect()
    }
}

/// A plot of `series`, or a remark where there is nothing to draw.
pub(super) fn plot(out: &mut String, series: &[Series], x: &Label, y: &Label) -> std::fmt::Result {
    let marks = || series.iter().flat_map(|s| &s.marks).filter(|m| m.x.is_finite() && m.y.is_finite());
    if marks().next().is_none() {
        return writeln!(out, "<p>Every point is refused.</p>");
    }
    let (xs, ys) = (Scale::of(marks().map(|m| m.x)), Scale::of(marks().map(|m| m.y)));
    let named: Vec<usize> = (0..series.len()).filter(|i| !series[*i].name.is_empty()).collect();
    let legend = if named.len() > 1 { named.len().div_ceil(2) as f64 * ROW } else { 0.0 };
    let (bottom, right) = (HEIGHT - BELOW, WIDTH - RIGHT);
    // A margin keeps marks at the ends whole.
    let px = |v: f64| LEFT + 8.0 + xs.at(v) * (right - LEFT - 16.0);
    let py = |v: f64| bottom - 8.0 - ys.at(v) * (bottom - ABOVE - 16.0);
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">", HEIGHT + legend)?;
    writeln!(out, "<title>{} over {}</title>", escape(&y.0), escape(&x.0))?;
    for tick in xs.ticks() {
        let at = px(tick);
        writeln!(out, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{ABOVE}\" y2=\"{bottom}\"/>")?;
        let below = bottom + 17.0;
        writeln!(out, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", short(tick))?;
    }
    for tick in ys.ticks() {
        let at = py(tick);
        writeln!(out, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>")?;
        let (left, down) = (LEFT - 7.0, at + 4.0);
        writeln!(out, "<text x=\"{left}\" y=\"{down:.1}\" text-anchor=\"end\">{}</text>", short(tick))?;
    }
    let middle = f64::midpoint(LEFT, right);
    let foot = HEIGHT - 12.0;
    writeln!(out, "<text class=\"name\" x=\"{middle}\" y=\"{foot}\" text-anchor=\"middle\">{}</text>", escape(&x.0))?;
    writeln!(out, "<text class=\"name\" x=\"12\" y=\"18\">{}</text>", escape(&y.0))?;
    for (index, one) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let own = one.class == "line";
        writeln!(out, "<g class=\"{}\">", one.class)?;
        let marks = || one.marks.iter().filter(|m| m.x.is_finite() && m.y.is_finite());
        if one.joined {
            let path: Vec<String> = marks().map(|m| format!("{:.1},{:.1}", px(m.x), py(m.y))).collect();
            let stroke = if own { format!(" stroke=\"{colour}\"") } else { String::new() };
            let name = escape(&one.name);
            writeln!(out, "<polyline points=\"{}\"{stroke}><title>{name}</title></polyline>", path.join(" "))?;
        }
        let fill = if own { format!(" fill=\"{colour}\"") } else { String::new() };
        for m in marks() {
            let (cx, cy, text) = (px(m.x), py(m.y), escape(&m.text));
            let said = format!("{text}: {} at {}", short(m.y), short(m.x));
            writeln!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"{fill}><title>{said}</title></circle>")?;
        }
        out.push_str("</g>\n");
    }
    if named.len() > 1 {
        for (place, index) in named.iter().enumerate() {
            let (column, line) = ((place % 2) as f64, (place / 2) as f64);
            let (at, down) = (LEFT + column * (right - LEFT) / 2.0, HEIGHT + line * ROW + 4.0);
            let colour = match series[*index].class {
                "all" => "var(--mark)",
                "front" => "var(--front)",
                _ => COLOURS[index % COLOURS.len()],
            };
            write!(out, "<rect x=\"{at:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>", down - 9.0)?;
            writeln!(out, "<text x=\"{:.1}\" y=\"{down:.1}\">{}</text>", at + 16.0, escape(&series[*index].name))?;
        }
    }
    writeln!(out, "</svg>")
}
