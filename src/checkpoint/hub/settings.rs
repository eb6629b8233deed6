//! `Settings`: how the Hub is reached and where its files are kept, as the environment says.

use super::error::HubError;
use super::store::Store;
use super::token::Token;
use reqwest::Url;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Who is asked when `HF_ENDPOINT` says nothing.
pub const ENDPOINT: &str = "https://huggingface.co";

/// How the Hub is reached and where its files are kept.
pub struct Settings {
    /// The Hub's address.
    pub endpoint: Url,
    /// What opens gated models.
    pub token: Option<Token>,
    /// The network may not be used.
    pub offline: bool,
    /// The standard Hub cache, read first and never written.
    pub snapshots: Option<PathBuf>,
    /// Our cache of fetched bytes.
    pub spans: Option<PathBuf>,
    /// Most bytes that our cache may hold.
    pub cache_limit: Option<u64>,
    /// Patience and sizes.
    pub limits: Limits,
    /// Who is told, in a sentence, what does not stop the work.
    pub remarks: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint.as_str())
            .field("token", &self.token)
            .field("offline", &self.offline)
            .field("snapshots", &self.snapshots)
            .field("spans", &self.spans)
            .field("cache_limit", &self.cache_limit)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Patience and sizes of the client.
#[derive(Clone, Debug)]
pub struct Limits {
    /// For a connection.
    pub connect: Duration,
    /// For the first byte of an answer, and between any two pieces of it.
    pub wait: Duration,
    /// In any such time of a body, at least `slow_bytes` must come.
    pub slow: Duration,
    /// See `slow`.
    pub slow_bytes: u64,
    /// Tries of one request that make no progress.
    pub tries: u32,
    /// Wait after the first failure; doubled after each, half of it drawn at random.
    pub backoff: Duration,
    /// Longest wait that a Retry-After may ask for.
    pub longest_wait: Duration,
    /// Redirects of one request.
    pub redirects: usize,
    /// Requests at a time.
    pub parallel: usize,
    /// Bytes, in all for one file and fetch, that may be read along in gaps to save requests.
    pub bridge: u64,
    /// Longest range of one request. A longer run is as many requests as it takes, so that they run side by side.
    pub piece: u64,
    /// Bytes written and sealed by one line of the journal.
    pub span: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            wait: Duration::from_secs(30),
            slow: Duration::from_secs(60),
            slow_bytes: 16 << 10,
            tries: 5,
            backoff: Duration::from_millis(500),
            longest_wait: Duration::from_secs(120),
            redirects: 8,
            parallel: 8,
            bridge: 256 << 10,
            piece: 1 << 30,
            span: 4 << 20,
        }
    }
}

impl Settings {
    /// As this process's environment says.
    ///
    /// # Errors
    /// A variable holds no value that it may have, or the token file cannot be read.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_lookup(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As an environment says that is given by a look-up.
    ///
    /// # Errors
    /// See [`Settings::from_env`].
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let get = |name: &str| lookup(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let path = |name: &str| get(name).map(|text| expanded(&text, lookup));
        let cache =
            path("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(|| path("HOME").map(|h| h.join(".cache")));
        let home = path("HF_HOME").or_else(|| cache.map(|cache| cache.join("huggingface")));
        let hub = || home.as_ref().map(|home| home.join("hub"));
        let given = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let mut limits = Limits::default();
        if let Some(text) = get("HF_HUB_DOWNLOAD_TIMEOUT") {
            let name = "HF_HUB_DOWNLOAD_TIMEOUT";
            let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 86_400.0);
            let must = "a number of seconds, above 0 and at most 86400";
            limits.wait = Duration::from_secs_f64(seconds.ok_or(HubError::Setting { name, given: text, must })?);
            limits.slow = 2 * limits.wait;
        }
        let implicit = !get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|text| is_true(&text));
        Ok(Self {
            endpoint: endpoint(&given).ok_or_else(|| HubError::Endpoint { given: without_secrets(&given) })?,
            token: if implicit { Token::find(lookup, home.as_deref())? } else { None },
            offline: get("HF_HUB_OFFLINE").is_some_and(|text| is_true(&text)),
            snapshots: path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).or_else(hub),
            spans: Store::folder_by(lookup),
            cache_limit: None,
            limits,
            remarks: Arc::new(|_| {}),
        })
    }
}

/// A path of the environment, where `~` is the user's home: no shell has seen what a file of settings gives.
pub(super) fn expanded(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let rest = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (rest, lookup("HOME").filter(|home| !home.is_empty())) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest.trim_start_matches('/')),
        _ => PathBuf::from(text),
    }
}

/// The values that the Hub's own client takes for true.
fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// An address as a message may show it: users and queries can be keys.
fn without_secrets(text: &str) -> String {
    let (text, query) = text.split_once(['?', '#']).map_or((text, ""), |(text, _)| (text, "?…"));
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    let colon = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{colon}{user}{rest}{query}")
}

fn endpoint(text: &str) -> Option<Url> {
    let url = Url::parse(text.trim_end_matches('/')).ok()?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    plain.then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_lookup(&|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_environment_is_read_as_users_of_the_hub_know_it() {
        let plain = settings(&[("HOME", "/h")]).unwrap();
        assert_eq!(plain.endpoint.as_str(), "https://huggingface.co/");
        assert_eq!(plain.snapshots, Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(plain.spans, Some("/h/.cache/wordline/hub".into()));
        assert!(!plain.offline && plain.token.is_none());
        let all = settings(&[
            ("HF_HOME", "/hf"),
            ("HF_ENDPOINT", "http://127.0.0.1:8080/"),
            ("HF_HUB_OFFLINE", "yes"),
            ("HF_TOKEN", "t"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "2"),
            ("WORDLINE_CACHE", "/w"),
        ])
        .unwrap();
        assert_eq!(all.snapshots, Some("/hf/hub".into()));
        assert_eq!(all.spans, Some("/w/hub".into()));
        assert!(all.offline && all.token.is_some() && all.limits.wait == Duration::from_secs(2));
        assert!(!format!("{all:?}").contains("\"t\""));
        assert_eq!(settings(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/x")]).unwrap().snapshots, Some("/c".into()));
        for (home, hub) in [("~", "/h/hub"), ("~/hf", "/h/hf/hub"), ("~x/hf", "~x/hf/hub"), ("/a/~", "/a/~/hub")] {
            assert_eq!(settings(&[("HOME", "/h"), ("HF_HOME", home)]).unwrap().snapshots, Some(hub.into()), "{home}");
        }
        assert_eq!(settings(&[("HF_HOME", "~/hf")]).unwrap().snapshots, Some("~/hf/hub".into()), "there is no home");
        let xdg = settings(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).unwrap();
        assert_eq!((xdg.snapshots, xdg.spans), (Some("/c/huggingface/hub".into()), Some("/c/wordline/hub".into())));
        let xdg = settings(&[("HOME", "/h"), ("XDG_CACHE_HOME", "c")]).unwrap();
        assert_eq!(xdg.snapshots, Some("/h/.cache/huggingface/hub".into()), "one that depends on where one is");
        let none = settings(&[]).unwrap();
        assert_eq!((none.snapshots, none.spans), (None, None));
        assert!(settings(&[("HF_TOKEN", "t"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap().token.is_none());
    }

    #[test]
    fn values_that_are_none_are_refused_by_name() {
        for (bad, shown) in [
            ("x", "x"),
            ("ftp://a", "ftp://a"),
            ("http://u:secret@a/b", "http://…@a/b"),
            ("http://a/?token=secret", "http://a/?…"),
            ("u:secret@a", "…@a"),
            ("file:///etc", "file:///etc"),
            ("http://a#secret", "http://a?…"),
        ] {
            let error = settings(&[("HF_ENDPOINT", bad)]).unwrap_err();
            let (text, debug) = (error.to_string(), format!("{error:?}"));
            assert!(text.contains(&format!("HF_ENDPOINT is '{shown}'")), "{text}");
            assert!(!text.contains("secret") && !debug.contains("secret"), "{text} {debug}");
        }
        for bad in ["0", "-1", "x", "inf", "nan"] {
            let error = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", bad)]).unwrap_err().to_string();
            assert!(error.contains("HF_HUB_DOWNLOAD_TIMEOUT"), "{error}");
        }
    }
}
