//! `Failure`: why a subcommand did not succeed, and the exit code that says so.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal};

/// Exit codes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The check failed: the inputs were read and the answer is no.
    CheckFailed = 1,
    /// An input was refused.
    Refused = 2,
    /// A fault of the program itself.
    Fault = 3,
    /// Ended by the user.
    Interrupted = 130,
}

/// Why a subcommand did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What is wrong and where; empty when the output has said it.
    pub what: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Whoever read the output has gone: end quietly.
    pub closed: bool,
}

impl Failure {
    /// A check that failed; the output has said how.
    #[must_use]
    pub fn check() -> Self {
        Self::found("")
    }

    /// A check that failed, and what it has found first.
    #[must_use]
    pub fn found(what: impl fmt::Display) -> Self {
        Self { exit: Exit::CheckFailed, what: what.to_string(), hint: None, closed: false }
    }

    /// An input that is refused.
    #[must_use]
    pub fn refused(what: impl fmt::Display) -> Self {
        Self { exit: Exit::Refused, what: what.to_string(), hint: None, closed: false }
    }

    /// A fault of the program.
    #[must_use]
    pub fn fault(what: impl fmt::Display) -> Self {
        let hint = "this is a fault of wordline, not of your input; please report it with the command line".to_owned();
        Self { exit: Exit::Fault, what: what.to_string(), hint: Some(hint), closed: false }
    }

    /// The user ended the program.
    #[must_use]
    pub fn interrupted() -> Self {
        Self { exit: Exit::Interrupted, what: String::new(), hint: None, closed: false }
    }

    /// The same failure with advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure, with the file or model that it is about in front.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// The text for standard error: the advice below for people, on the same line for whoever reads line by line.
    fn said(&self, terminal: bool) -> String {
        let between = if terminal { "\n  " } else { "; " };
        let hint = self.hint.as_ref().map(|hint| format!("{between}hint: {hint}"));
        shown(&self.what) + &hint.unwrap_or_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said(io::stderr().is_terminal()))
    }
}

/// Text as a terminal may have it: names out of a file can hold escape sequences, and can be a megabyte long.
fn shown(text: &str) -> String {
    const LINE: usize = 2000;
    let mut out = String::with_capacity(text.len().min(LINE));
    for (number, line) in text.lines().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        for c in line.chars().take(LINE) {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        if line.chars().nth(LINE).is_some() {
            out.push('…');
        }
    }
    out
}

/// An error and its causes, each once: many messages already hold their cause's text.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Writing the output failed. A closed pipe is no failure of ours: `wordline disasm … | head` is a normal thing to do.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let closed = error.kind() == io::ErrorKind::BrokenPipe;
        Self { exit: Exit::Refused, what: format!("cannot write the output: {error}"), hint: None, closed }
    }
}

/// Errors that an input causes.
macro_rules! refused {
    ($($error:ty),+ $(,)?) => { $(
        impl From<$error> for $crate::cli::failure::Failure {
            fn from(error: $error) -> Self {
                $crate::cli::failure::Failure::refused($crate::cli::failure::chain(&error))
            }
        }
    )+ };
}
pub(crate) use refused;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer{}", if *.0 { ": inner" } else { "" })]
    struct Outer(bool, #[source] io::Error);

    #[test]
    fn a_cause_is_said_once() {
        assert_eq!(chain(&Outer(true, io::Error::other("inner"))), "outer: inner");
        assert_eq!(chain(&Outer(false, io::Error::other("inner"))), "outer: inner");
    }

    #[test]
    fn names_out_of_files_do_not_reach_the_terminal_raw() {
        let failure = Failure::refused("key '\u{1b}[31mred\t'\nsecond line");
        assert_eq!(failure.to_string(), "key '\\u{1b}[31mred\\t'\nsecond line");
        assert_eq!(Failure::refused("é".repeat(5000)).to_string(), "é".repeat(2000) + "…");
    }

    #[test]
    fn a_hint_has_a_line_of_its_own_on_a_terminal_alone() {
        let failure = Failure::refused("nobody came").hint("wait longer");
        assert_eq!(failure.said(true), "nobody came\n  hint: wait longer");
        assert_eq!(failure.said(false), "nobody came; hint: wait longer");
        assert_eq!(Failure::refused("nobody came").said(false), "nobody came");
    }

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        assert!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).closed);
        assert!(!Failure::from(io::Error::from(io::ErrorKind::StorageFull)).closed);
    }
}
