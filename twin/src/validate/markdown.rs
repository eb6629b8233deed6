//! The validation as a document.

use super::{Outcome, Validation};
use std::fmt::Write;

impl Validation {
    /// The document docs/twin-validation.md.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "# The twin against published measurements\n")?;
        writeln!(
            out,
            "Made by `wordline twin validate`; rows and sources are data: `twin/data/published.toml`, on which constants are"
        )?;
        writeln!(
            out,
            "fitted, and `twin/data/judged.toml`, which judges alone. Errors are of time: predicted over published, less 1. *Naive*"
        )?;
        writeln!(
            out,
            "is bytes over peak bandwidth. *Left out* is the error with the constants fitted on all other rows, *class left out*"
        )?;
        writeln!(
            out,
            "that with no row of any machine of its class: what an unknown class would get. Intervals hold the middle 80 % by the"
        )?;
        writeln!(
            out,
            "knobs' provenance (docs/twin.md); one that is wider than 1.6 to 1 does not count as holding a row.\n"
        )?;
        self.groups(out)?;
        writeln!(out, "\n## Rows of the fit\n")?;
        self.rows_table(out, true)?;
        if self.rows.iter().any(|o| !o.fitted) {
            writeln!(out, "\n## Rows that judge alone\n")?;
            self.rows_table(out, false)?;
        }
        self.slopes_table(out)?;
        writeln!(out, "\n## Fitted constants\n")?;
        writeln!(
            out,
            "{} of at most 8. None belongs to a row: each is a knob of classes, and a machine of such a class has it unless its own",
            self.constants.len()
        )?;
        writeln!(
            out,
            "file says otherwise. All other knobs are datasheet figures, measurements or guesses, as the files say.\n"
        )?;
        writeln!(out, "| constant | value | best on these rows | meaning |\n|---|---|---|---|")?;
        for c in &self.constants {
            writeln!(out, "| `{}` | {:.4} {} | {:.4} | {} |", c.name, c.value, c.unit, c.best, c.meaning)?;
        }
        self.sources(out)
    }

    fn rows_table(&self, out: &mut String, fitted: bool) -> std::fmt::Result {
        let (heads, lines) = if fitted { (" left out | class left out |", "---|---|") } else { ("", "") };
        writeln!(
            out,
            "| row | what | published | predicted | low..high | holds | naive | error |{heads} naive error | compute / transfer / wait |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|{lines}---|---|")?;
        for o in self.rows.iter().filter(|o| o.fitted == fitted) {
            let [compute, transfer, wait] = o.shares.map(|s| 100.0 * s);
            let left = if fitted {
                format!(" {} | {} |", percent(o.left_out), percent(o.class_left_out))
            } else {
                String::new()
            };
            writeln!(
                out,
                "| {} | {} | {} {} | {} | {}..{} | {} | {} | {} |{left} {} | {compute:.0} / {transfer:.0} / {wait:.0} % |",
                o.id,
                o.what,
                figure(o.measured),
                o.unit,
                figure(o.predicted),
                figure(o.low),
                figure(o.high),
                if o.holds() { "yes" } else { "no" },
                figure(o.naive),
                percent(o.error),
                percent(o.naive_error),
            )?;
        }
        Ok(())
    }

    /// Each source with the rows that it gave.
    fn sources(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n## Sources\n")?;
        let mut told: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for o in &self.rows {
            match told.iter_mut().find(|(source, trust, _)| *source == o.source && *trust == o.trust) {
                Some((_, _, ids)) => ids.push(&o.id),
                None => told.push((&o.source, &o.trust, vec![&o.id])),
            }
        }
        for (source, trust, ids) in told {
            writeln!(out, "- {source} (trust {trust}): {}", ids.join(", "))?;
        }
        Ok(())
    }

    fn groups(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "## Errors by class\n")?;
        writeln!(out, "Mean of the errors' size; *bias* is their mean with its sign.\n")?;
        writeln!(out, "| class | rows | error | bias | left out | class left out | naive | held by the interval |")?;
        writeln!(out, "|---|---|---|---|---|---|---|---|")?;
        let mut names: Vec<(&str, bool)> = Vec::new();
        for o in &self.rows {
            if !names.contains(&(&o.group, o.fitted)) {
                names.push((&o.group, o.fitted));
            }
        }
        names.sort_by_key(|n| !n.1);
        for (name, fitted) in names {
            let rows: Vec<&Outcome> = self.rows.iter().filter(|o| o.group == name && o.fitted == fitted).collect();
            line(out, &format!("{name}{}", if fitted { ", fitted" } else { "" }), &rows)?;
        }
        for (name, fitted) in [("all rows of the fit", true), ("all rows that judge alone", false)] {
            let rows: Vec<&Outcome> = self.rows.iter().filter(|o| o.fitted == fitted).collect();
            if !rows.is_empty() {
                line(out, name, &rows)?;
            }
        }
        Ok(())
    }

    fn slopes_table(&self, out: &mut String) -> std::fmt::Result {
        if self.slopes.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n## Slopes\n")?;
        writeln!(out, "| series | published, ms for 1,000 positions | predicted |\n|---|---|---|")?;
        for s in &self.slopes {
            writeln!(out, "| {} | {:.3} | {:.3} |", s.series, s.measured, s.predicted)?;
        }
        Ok(())
    }
}

fn line(out: &mut String, name: &str, rows: &[&Outcome]) -> std::fmt::Result {
    let count = rows.len().max(1) as f64;
    let mean =
        |of: &dyn Fn(&Outcome) -> f64| percent(rows.iter().map(|o| of(o).abs()).sum::<f64>() / count).replace('+', "");
    let fitted = rows.iter().all(|o| o.fitted);
    let left = |of: &dyn Fn(&Outcome) -> f64| if fitted { mean(of) } else { String::new() };
    let bias = percent(rows.iter().map(|o| o.error).sum::<f64>() / count);
    let held = rows.iter().filter(|o| o.holds()).count();
    writeln!(
        out,
        "| {name} | {} | {} | {bias} | {} | {} | {} | {held} of {} |",
        rows.len(),
        mean(&|o| o.error),
        left(&|o| o.left_out),
        left(&|o| o.class_left_out),
        mean(&|o| o.naive_error),
        rows.len()
    )
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
