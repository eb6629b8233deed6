//! `MachineError`: why a text is no machine.

/// Why a text is no machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MachineError {
    /// The text is no TOML.
    #[error("not TOML: {0}")]
    Syntax(String),
    /// No knob has the name.
    #[error("no knob is called '{name}'{}", nearest.map_or(String::new(), |n| format!("; did you mean '{n}'?")))]
    Unknown {
        /// The name.
        name: String,
        /// The one most like it.
        nearest: Option<&'static str>,
    },
    /// A key outside the knobs' sections that means nothing.
    #[error(
        "no key is called '{0}'; a machine has name, class, like, memory_kind, about, provenance and sections of knobs"
    )]
    Key(String),
    /// A value that the knob cannot have.
    #[error("knob '{knob}' is {value}: {reason}")]
    Value {
        /// The knob.
        knob: &'static str,
        /// The value.
        value: f64,
        /// Why not.
        reason: String,
    },
    /// A knob or key that holds something else than it should.
    #[error("'{name}': {reason}")]
    Form {
        /// The knob or key.
        name: String,
        /// What is wrong and what is wanted.
        reason: String,
    },
    /// Values that do not fit each other.
    #[error("{knobs}: {reason}")]
    Together {
        /// The knobs.
        knobs: &'static str,
        /// Why not.
        reason: String,
    },
    /// No preset or class has the name.
    #[error("no {what} is called '{name}'; there are {known}")]
    Name {
        /// "machine" or "class".
        what: &'static str,
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
}
