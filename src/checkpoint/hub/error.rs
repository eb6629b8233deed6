//! `HubError`: every way in which the Hub, or our cache of it, does not give what was asked for.
//!
//! Messages name the model, the file or the host. They never hold a token, nor the query of a URL that a redirect gave:
//! such a query is a key to the file.

use super::id::IdError;
use super::token::TokenError;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

/// Why the Hub was no source of a model.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A name breaks its rules.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// `HF_ENDPOINT` is no address.
    #[error("HF_ENDPOINT is '{given}'; it must be an http or https URL without user, query or fragment")]
    Endpoint {
        /// Its value, without what may be a secret.
        given: String,
    },
    /// A setting of the environment is none.
    #[error("{name} is '{given}'; it must be {must}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        given: String,
        /// What it must be.
        must: &'static str,
    },
    /// The HTTP client could not be made.
    #[error("no HTTP client: {reason}")]
    Client {
        /// Why.
        reason: String,
    },
    /// The network may not be used, and the caches do not hold what is needed.
    #[error(
        "{what}: not in the caches, and HF_HUB_OFFLINE forbids the network; unset it, or run `wordline fetch {model}` \
         while online"
    )]
    Offline {
        /// File and bytes, or revision.
        what: String,
        /// The model.
        model: String,
    },
    /// 401 or 403.
    #[error("{}", access(model, page, *status, token_from.as_deref(), *gated))]
    Access {
        /// The model.
        model: String,
        /// Its page.
        page: String,
        /// 401 or 403.
        status: u16,
        /// Where the token that was sent came from; none when none was sent.
        token_from: Option<String>,
        /// The Hub says that the model is gated.
        gated: bool,
    },
    /// No such model.
    #[error("{model}: {host} knows no such model, or shows it to no one without access; check the name")]
    NoModel {
        /// The model.
        model: String,
        /// Who was asked.
        host: String,
    },
    /// No such revision.
    #[error("{model}: there is no revision '{revision}'; name a branch, a tag or a full commit after '@'")]
    NoRevision {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
    },
    /// No such file.
    #[error("{file}: not there")]
    NoFile {
        /// The file.
        file: String,
        /// The Hub says just that; else it only found nothing.
        stated: bool,
    },
    /// The server did not say which commit a revision is.
    #[error("{file}: the answer of {host} names no commit (header x-repo-commit); is HF_ENDPOINT a Hub?")]
    NoCommit {
        /// The file.
        file: String,
        /// Who was asked.
        host: String,
    },
    /// The server answered for another commit than the one asked for.
    #[error("{file}: asked for commit {asked}, the answer is of {found}")]
    OtherCommit {
        /// The file.
        file: String,
        /// The commit asked for.
        asked: String,
        /// The commit in the answer.
        found: String,
    },
    /// The host could not be reached, or the connection broke.
    #[error("{file}: {host}: {reason}")]
    Connection {
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// What happened.
        reason: String,
    },
    /// Nothing, or too little, came for too long.
    #[error("{file}: {host} sent {got} bytes and then next to nothing for {seconds} s")]
    Stalled {
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// Bytes of this answer that came.
        got: u64,
        /// How long was waited.
        seconds: f64,
    },
    /// An answer that has no meaning here.
    #[error("{file}: {host} answered {status}")]
    Status {
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// The status.
        status: u16,
    },
    /// The server asks to come back much later.
    #[error("{file}: {host} answered {status} and asks to wait {} s; the longest wait is {} s", wait.as_secs(), limit.as_secs())]
    Later {
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// The status.
        status: u16,
        /// What it asks for.
        wait: Duration,
        /// What is granted.
        limit: Duration,
    },
    /// Every try failed.
    #[error("{source} ({tries} tries)")]
    GaveUp {
        /// How many.
        tries: u32,
        /// The last failure.
        #[source]
        source: Box<HubError>,
    },
    /// Redirects without end.
    #[error("{file}: more than {limit} redirects")]
    Redirects {
        /// The file.
        file: String,
        /// Most that are followed.
        limit: usize,
    },
    /// A redirect that is not followed.
    #[error("{file}: {host} redirects {reason}")]
    Redirect {
        /// The file.
        file: String,
        /// Who redirects.
        host: String,
        /// To what.
        reason: &'static str,
    },
    /// The server sent the whole file in place of a range.
    #[error("{file}: {host} ignores Range and answered 200 in place of 206; ranges are needed to read slices")]
    RangeIgnored {
        /// The file.
        file: String,
        /// The host.
        host: String,
    },
    /// The answer holds another range than the one asked for.
    #[error("{file}: asked for bytes {}..{}, the answer says Content-Range '{given}'", asked.0, asked.1)]
    ContentRange {
        /// The file.
        file: String,
        /// First byte, and one past the last.
        asked: (u64, u64),
        /// The header, or "none".
        given: String,
    },
    /// Fewer bytes came than were announced.
    #[error("{file}: {got} bytes came in place of {expected}")]
    Short {
        /// The file.
        file: String,
        /// Bytes that came.
        got: u64,
        /// Bytes due.
        expected: u64,
    },
    /// More bytes came than were asked for.
    #[error("{file}: more bytes came than the {expected} that were asked for")]
    Long {
        /// The file.
        file: String,
        /// Bytes due.
        expected: u64,
    },
    /// A text file of a size that no real one has.
    #[error("{file}: more than {limit} bytes, which no text file of a model has")]
    TooLong {
        /// The file.
        file: String,
        /// Most that is read.
        limit: u64,
    },
    /// The body is compressed although it was asked for as it is.
    #[error("{file}: {host} sent Content-Encoding '{encoding}', bytes as they are were asked for")]
    Encoded {
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// The encoding.
        encoding: String,
    },
    /// The file is not the one that was read before.
    #[error(
        "{file}: changed while it was read: {what} was {before}, is {now}; start again, after `wordline cache clean` if need be"
    )]
    Changed {
        /// The file.
        file: String,
        /// Which fact.
        what: &'static str,
        /// Its value at first.
        before: String,
        /// Its value now.
        now: String,
    },
    /// No directory for the cache.
    #[error("no directory for what is fetched: set WORDLINE_CACHE, XDG_CACHE_HOME or HOME")]
    NoCache,
    /// The cache cannot be read or written.
    #[error("{path}: {source}{}", no_space(source))]
    Disk {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// More is wanted than the cache may hold.
    #[error(
        "{model}: {needed} bytes are needed beside the {held} that the cache holds of models in use; --cache-limit is \
         {limit}: raise it, or fetch fewer layers"
    )]
    CacheLimit {
        /// The model.
        model: String,
        /// Bytes to fetch.
        needed: u64,
        /// Bytes that cannot be evicted.
        held: u64,
        /// The limit.
        limit: u64,
    },
    /// Bytes that were fetched do not read back as they were written.
    #[error(
        "{file}: bytes {start}..{end} of the cache are not what was written there, again and again; is the disk sound?"
    )]
    Unsound {
        /// The file.
        file: String,
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// Work was given up because other work failed.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    /// Access was refused, and a token that was not given may help.
    #[must_use]
    pub fn wants_token(&self) -> bool {
        matches!(self, Self::Access { token_from: None, .. })
    }

    /// The server could not be reached or did not serve: another time it may.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::GaveUp { source, .. } => source.is_outage(),
            Self::Connection { .. } | Self::Stalled { .. } | Self::Later { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

fn access(model: &str, page: &str, status: u16, token_from: Option<&str>, gated: bool) -> String {
    let mut text = format!("{model}: access refused ({status})");
    text += match (gated, token_from) {
        (true, _) => ": the model is gated",
        (false, None) => ": the model is gated, private, or does not exist",
        (false, Some(_)) => ": the model is gated or private, or the token is not valid",
    };
    match token_from {
        None => {
            let _ = write!(
                text,
                ". If need be ask for access on its page, {page}; then give a token that may read it: in HF_TOKEN, in \
                 the file that HF_TOKEN_PATH names, in HF_HOME/token, or at the prompt of a terminal"
            );
        }
        Some(from) => {
            let _ = write!(
                text,
                ". The token from {from} does not open it: ask for access on its page, {page}, with the account of \
                 that token, or give another token"
            );
        }
    }
    text
}

fn no_space(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space, run `wordline cache clean`, or let WORDLINE_CACHE name a larger disk"
        }
        _ => "",
    }
}
