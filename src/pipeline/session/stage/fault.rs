//! `Injection`: a fault that was asked for.

use std::time::Duration;

/// A fault that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What goes wrong.
    pub kind: InjectionKind,
    /// On which stage; none: whichever this device becomes.
    pub stage: Option<u32>,
    /// At which lap of a sequence.
    pub token: u32,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionKind {
    /// The process ends.
    Kill,
    /// The stage takes hops and gives none, while its heart beats on.
    Stall,
    /// One bit of a hop is turned over on its way.
    Corrupt,
    /// A hop waits for two seconds.
    Slow,
}

/// How long a slow hop waits.
pub(crate) const SLOW: Duration = Duration::from_secs(2);

impl std::str::FromStr for Injection {
    type Err = String;

    /// `kill@stage2:tok17`; the stage may be left out: `stall@tok3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("'{text}' is not kill|stall|corrupt|slow@stageK:tokN");
        let (kind, place) = text.split_once('@').ok_or_else(form)?;
        let kind = match kind {
            "kill" => InjectionKind::Kill,
            "stall" => InjectionKind::Stall,
            "corrupt" => InjectionKind::Corrupt,
            "slow" => InjectionKind::Slow,
            _ => return Err(form()),
        };
        let (stage, token) = match place.split_once(':') {
            Some((stage, token)) => {
                let stage = stage.strip_prefix("stage").and_then(|s| s.parse().ok()).ok_or_else(form)?;
                (Some(stage), token)
            }
            None => (None, place),
        };
        let token = token.strip_prefix("tok").and_then(|t| t.parse().ok()).ok_or_else(form)?;
        Ok(Self { kind, stage, token })
    }
}
