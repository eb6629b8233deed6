//! `Row`: one published measurement, as data.

use crate::TwinError;
use serde::Deserialize;

/// The rows that the constants are fitted on, and those that came with them.
pub const PUBLISHED: &str = include_str!("../../data/published.toml");
/// Rows that nothing is fitted on.
pub const JUDGED: &str = include_str!("../../data/judged.toml");

/// One published measurement.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name, for people.
    pub id: String,
    /// Rows that are judged together.
    pub group: String,
    /// A preset.
    #[serde(default)]
    pub machine: String,
    /// A machine file's text, in place of a preset.
    #[serde(default)]
    pub machine_file: Option<String>,
    /// Equal devices that share every matrix.
    #[serde(default = "one")]
    pub devices: u64,
    /// The model, by the name of its shape.
    pub shape: String,
    /// Format of the weights.
    pub weights: String,
    /// Format of the caches.
    pub kv: String,
    /// Positions in each cache.
    pub ctx: u64,
    /// Sequences.
    #[serde(default = "one")]
    pub sequences: u64,
    /// Rows of each.
    #[serde(default = "one")]
    pub rows: u64,
    /// End of the name of the tensor whose command is measured.
    #[serde(default)]
    pub tensor: Option<String>,
    /// Kind of the command that is measured.
    #[serde(default)]
    pub command: Option<String>,
    /// Published token-rows a second.
    #[serde(default)]
    pub tokens_per_s: Option<f64>,
    /// Published milliseconds of a step.
    #[serde(default)]
    pub ms: Option<f64>,
    /// Published microseconds of the command.
    #[serde(default)]
    pub us: Option<f64>,
    /// Share in the fit.
    #[serde(default)]
    pub weight: f64,
    /// Rows of one series differ in `ctx` alone.
    #[serde(default)]
    pub series: Option<String>,
    /// Trust.
    #[serde(default)]
    pub trust: String,
    /// Source.
    #[serde(default)]
    pub source: String,
}

const fn one() -> u64 {
    1
}

#[derive(Deserialize)]
struct Rows {
    #[serde(default)]
    row: Vec<Row>,
}

/// The rows of a text.
///
/// # Errors
/// It is no TOML, or no rows as [`Row`] says.
pub fn rows(text: &str) -> Result<Vec<Row>, TwinError> {
    let rows: Rows = toml::from_str(text).map_err(|e| TwinError::Data(format!("rows: {e}")))?;
    if rows.row.is_empty() {
        return Err(TwinError::Data("rows: there are none; a row is a table [[row]]".into()));
    }
    if let Some(row) =
        rows.row.iter().find(|r| !(r.weight >= 0.0 && r.seconds().is_some_and(|s| s.is_finite() && s > 0.0)))
    {
        let id = &row.id;
        return Err(TwinError::Data(format!(
            "row '{id}': it has one positive of tokens_per_s, ms and us, and no weight below 0"
        )));
    }
    Ok(rows.row)
}

impl Row {
    /// Published seconds of the step or command; none unless exactly one figure is given.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        match (self.tokens_per_s, self.ms, self.us) {
            (Some(rate), None, None) => Some((self.rows * self.sequences) as f64 / rate),
            (None, Some(ms), None) => Some(ms / 1e3),
            (None, None, Some(us)) => Some(us / 1e6),
            _ => None,
        }
    }

    /// The unit that it is published in, and seconds in that unit.
    pub(crate) fn unit(&self) -> (&'static str, impl Fn(f64) -> f64 + use<>) {
        let tokens = (self.rows * self.sequences) as f64;
        let kind = (self.tokens_per_s.is_some(), self.ms.is_some());
        let unit = match kind {
            (true, _) => "tok/s",
            (false, true) => "ms",
            (false, false) => "us",
        };
        (unit, move |seconds: f64| match kind {
            (true, _) => tokens / seconds,
            (false, true) => seconds * 1e3,
            (false, false) => seconds * 1e6,
        })
    }

    /// What is measured, in words.
    pub(crate) fn what(&self) -> String {
        let part = self.tensor.as_ref().or(self.command.as_ref()).map(|p| format!(" {p}")).unwrap_or_default();
        let devices = if self.devices > 1 { format!(" x{}", self.devices) } else { String::new() };
        let machine = if self.machine.is_empty() { "own file" } else { &self.machine };
        let batch = if self.sequences > 1 { format!(", batch {}", self.sequences) } else { String::new() };
        let rows = if self.rows > 1 { format!(", {} rows", self.rows) } else { String::new() };
        format!(
            "{machine}{devices}: {}{part}, {}, cache {} at {}{batch}{rows}",
            self.shape, self.weights, self.kv, self.ctx
        )
    }
}
