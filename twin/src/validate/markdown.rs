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
            "Made by `wordline twin validate`; rows and sources are data in `twin/data/published.toml`. Errors are of time:"
        )?;
        writeln!(
            out,
            "predicted over published, less 1. *Naive* is bytes over peak bandwidth. *Left out* is the error with the"
        )?;
        writeln!(
            out,
            "constants fitted on all other rows. Intervals hold the middle 80 % by the knobs' provenance (docs/twin.md).\n"
        )?;
        self.rows_table(out)?;
        self.groups(out)?;
        self.slopes_table(out)?;
        writeln!(out, "\n## Fitted constants\n")?;
        writeln!(
            out,
            "{} of at most 8. None belongs to a row: each is a knob of a class, and a machine of the class has it unless",
            self.constants.len()
        )?;
        writeln!(
            out,
            "its own file says otherwise. All other knobs are datasheet figures, measurements or guesses, as the files say.\n"
        )?;
        writeln!(out, "| constant | value | best on these rows | meaning |\n|---|---|---|---|")?;
        for c in &self.constants {
            writeln!(out, "| `{}` | {:.4} {} | {:.4} | {} |", c.name, c.value, c.unit, c.best, c.meaning)?;
        }
        Ok(())
    }

    fn rows_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "| row | what | published | predicted | low..high | holds | naive | error | left out | naive error | compute / transfer / wait |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|")?;
        for o in &self.rows {
            let [compute, transfer, wait] = o.shares.map(|s| 100.0 * s);
            writeln!(
                out,
                "| {} | {} | {} {} | {} | {}..{} | {} | {} | {} | {} | {} | {compute:.0} / {transfer:.0} / {wait:.0} % |",
                o.id,
                o.what,
                figure(o.measured),
                o.unit,
                figure(o.predicted),
                figure(o.low),
                figure(o.high),
                if o.inside { "yes" } else { "no" },
                figure(o.naive),
                percent(o.error),
                if o.fitted { percent(o.left_out) } else { "not fitted".into() },
                percent(o.naive_error),
            )?;
        }
        writeln!(
            out,
            "\nThe interval holds the published value and is no wider than 1.6 to 1 in {:.0} % of the rows.",
            100.0 * self.held
        )?;
        writeln!(out, "\nSources:\n")?;
        for o in &self.rows {
            writeln!(out, "- {}: {} (trust {})", o.id, o.source, o.trust)?;
        }
        Ok(())
    }

    fn groups(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n## Errors by class\n")?;
        writeln!(out, "Mean of the errors' size.\n")?;
        writeln!(out, "| class | rows | fit | left out | naive |\n|---|---|---|---|---|")?;
        let mut names: Vec<&str> = Vec::new();
        for o in &self.rows {
            if !names.contains(&o.group.as_str()) {
                names.push(&o.group);
            }
        }
        for name in names {
            let rows: Vec<&Outcome> = self.rows.iter().filter(|o| o.group == name).collect();
            line(out, name, &rows)?;
        }
        line(out, "all", &self.rows.iter().collect::<Vec<_>>())
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
    let mean = |of: &dyn Fn(&Outcome) -> f64| {
        percent(rows.iter().map(|o| of(o).abs()).sum::<f64>() / rows.len().max(1) as f64).replace('+', "")
    };
    let (fit, left, naive) = (mean(&|o| o.error), mean(&|o| o.left_out), mean(&|o| o.naive_error));
    writeln!(out, "| {name} | {} | {fit} | {left} | {naive} |", rows.len())
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
