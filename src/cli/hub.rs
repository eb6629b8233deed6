//! Arguments and manners of commands that may open a model on the Hub: the cache's limit, remarks, and asking for a token.

use super::failure::{Failure, chain, refused};
use super::{interrupt, out};
use crate::checkpoint::FileError;
use crate::checkpoint::hub::{Hub, HubError, Settings, Token, TokenError};
use crate::model::{Model, ModelFileError};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

refused!(FileError, HubError, TokenError);

/// How the Hub's files are kept.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Hub")]
pub(in crate::cli) struct HubArgs {
    /// Most bytes that fetched models may take on disk, such as 20GB; the ones unused for the longest time go first
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<ByteSize>,
}

/// A number of bytes: plain, or with kB, MB, GB, TB, KiB, MiB, GiB, TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize(u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(format!("'{unit}' is no unit of bytes; use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")),
        };
        let number: f64 = number.parse().map_err(|_| format!("'{text}' is no number of bytes, such as 20GB"))?;
        let bytes = number * unit;
        // All sizes below 2^53 are exact; no disk is larger.
        if bytes.is_finite() && bytes < 9e15 {
            Ok(Self(bytes as u64))
        } else {
            Err("that is more than any disk".to_owned())
        }
    }
}

impl HubArgs {
    /// A way to the Hub as the environment and these arguments say, with a token that was asked for.
    pub(super) fn hub(&self, token: Option<Token>) -> Result<Arc<Hub>, HubError> {
        let mut settings = Settings::from_env()?;
        settings.cache_limit = self.cache_limit.map(|ByteSize(bytes)| bytes);
        settings.token = token.or(settings.token);
        settings.remarks = Arc::new(|text| out::note(format_args!("note: {text}")));
        Hub::new(settings)
    }

    /// Open MODEL. Where the Hub refuses access, no token was given and a person is there, ask for one.
    pub(in crate::cli) fn open(&self, name: &str) -> Result<Model, Failure> {
        self.try_open(name).map_err(|error| match error {
            NotOpened::Model(error) => error.into(),
            NotOpened::Asked(failure) => failure,
        })
    }

    /// [`HubArgs::open`], with the error as it is.
    pub(super) fn try_open(&self, name: &str) -> Result<Model, NotOpened> {
        let refused = match Model::open_by(name, || self.hub(None)) {
            Err(error) if error.hub().is_some_and(HubError::wants_token) => error,
            other => return other.map_err(NotOpened::Model),
        };
        match ask(&chain(&refused)).map_err(NotOpened::Asked)? {
            Some(token) => Model::open_by(name, || self.hub(Some(token))).map_err(NotOpened::Model),
            None => Err(NotOpened::Model(refused)),
        }
    }
}

/// Why a model was not opened.
pub(super) enum NotOpened {
    /// The model's own reason.
    Model(ModelFileError),
    /// What was typed is no token, or the person ended it.
    Asked(Failure),
}

/// A token that a person types, without echo; none where no person is there, or nothing is typed.
fn ask(why: &str) -> Result<Option<Token>, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(None);
    }
    out::note(Failure::refused(why));
    // Without a handler Ctrl-C would end the program before the terminal shows again what is typed.
    let _guard = interrupt::guard();
    match rpassword::prompt_password("access token (it is not shown, and not kept): ") {
        Ok(text) => Ok(Token::parse(&text, "the prompt")?),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Err(Failure::interrupted()),
        Err(_) => Ok(None),
    }
}

/// A bar of bytes on standard error, shown once something large enough moves.
#[derive(Default)]
pub(super) struct BytesBar(OnceLock<ProgressBar>);

impl BytesBar {
    /// `done` of `total` bytes; nothing is shown below `watched` bytes.
    pub(super) fn show(&self, what: &'static str, done: u64, total: u64, watched: u64) {
        if total < watched {
            return;
        }
        let bar = self.0.get_or_init(|| {
            let template = "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_message(what)
        });
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [("0", 0), ("1024", 1024), ("20GB", 20_000_000_000), ("1.5 MiB", 1_572_864), ("3kb", 3000)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "GB", "-1", "1XB", "1..2GB", "1e30", "99999999TB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
