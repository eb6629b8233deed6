//! `Client`: whole files and ranges of files by HTTP, with patience and without trust.
//!
//! **Invariants**: the token goes to the endpoint's own scheme, host and port, in a chain of redirects that has not left
//! them; never to another host, into a message or a log. A range is believed when status, Content-Range, length, size
//! and etag all agree with what was asked. Every wait has an end.

use super::error::HubError;
use super::id::{Commit, FileName, RepoId, Revision};
use super::ranges::ContentRange;
use super::settings::{Limits, Settings};
use super::token::Token;
use reqwest::blocking::Response;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap,
};
use reqwest::header::{LOCATION, RANGE, RETRY_AFTER, TRANSFER_ENCODING};
use reqwest::{StatusCode, Url};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Bytes that count as progress of a request that then failed.
const PROGRESS: u64 = 64 << 10;

/// Counts what was asked of the network and what came.
#[derive(Debug, Default)]
pub struct Meter {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Meter {
    /// HTTP requests sent: redirects that were followed and tries that failed count each.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes of bodies received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The file that is asked for, and who counts.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) repo: &'a RepoId,
    pub(super) revision: &'a Revision,
    pub(super) file: &'a FileName,
    pub(super) meters: &'a [&'a Meter],
}

/// What tells one content of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) size: u64,
    pub(super) etag: Option<String>,
}

/// A whole file.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) etag: Option<String>,
    pub(super) commit: Option<Commit>,
    /// Its length was announced, so that none of it can be lacking.
    pub(super) proven: bool,
}

/// A file that was asked for.
pub(super) enum Found<T> {
    Here(T),
    /// There is none of this name.
    Absent {
        /// The Hub says just that, and not only that it found nothing.
        stated: bool,
    },
}

pub(super) struct Client {
    http: reqwest::blocking::Client,
    endpoint: Url,
    token: Option<Token>,
    limits: Limits,
}

/// Takes bytes as they come.
pub(super) type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), HubError> + 'a;

/// A failed try.
struct Fault {
    error: HubError,
    again: Again,
}

enum Again {
    /// Another try would fail too.
    Never,
    /// Another try may go well.
    Maybe {
        /// What the server asks to wait.
        after: Option<Duration>,
        /// Bytes came before it failed.
        progressed: bool,
    },
}

impl From<HubError> for Fault {
    fn from(error: HubError) -> Self {
        Self { error, again: Again::Never }
    }
}

impl Fault {
    fn passing(error: HubError, progressed: bool) -> Self {
        Self { error, again: Again::Maybe { after: None, progressed } }
    }
}

/// The end of a chain of redirects.
struct Answer {
    response: Response,
    host: String,
    facts: Facts,
}

/// What the Hub says of a file in headers, on whichever hop it says it.
#[derive(Default)]
struct Facts {
    commit: Option<Commit>,
    /// The Hub named a commit in a form that is none.
    no_commit: Option<String>,
    linked_etag: Option<String>,
    etag: Option<String>,
    linked_size: Option<u64>,
}

impl Facts {
    /// Take what a hop's headers say. The last hop at home has the etag that counts where none is linked.
    fn note(&mut self, headers: &HeaderMap, at_home: bool) {
        if at_home {
            if let Some(given) = text(headers, "x-repo-commit") {
                match given.parse() {
                    Ok(commit) => self.commit = self.commit.take().or(Some(commit)),
                    Err(_) => self.no_commit = Some(given.to_owned()),
                }
            }
            self.linked_etag = self.linked_etag.take().or_else(|| text(headers, "x-linked-etag").and_then(etag));
            self.linked_size = self.linked_size.or_else(|| text(headers, "x-linked-size").and_then(|t| t.parse().ok()));
        }
        if at_home || (self.etag.is_none() && self.linked_etag.is_none()) {
            self.etag = text(headers, ETAG.as_str()).and_then(etag).or_else(|| self.etag.take());
        }
    }

    fn etag(&self) -> Option<String> {
        self.linked_etag.clone().or_else(|| self.etag.clone())
    }
}

impl Client {
    pub(super) fn new(settings: &Settings, token: Option<Token>) -> Result<Self, HubError> {
        // One provider a process; another part may have set it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = settings.limits.clone();
        let mut builder = reqwest::blocking::Client::builder()
            .user_agent(concat!("wordline/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits.connect)
            // In this client's blocking form: for the head of an answer, and anew for each piece of its body.
            .timeout(limits.wait);
        if is_loopback(&settings.endpoint) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| HubError::Client { reason: reason(error) })?;
        Ok(Self { http, endpoint: settings.endpoint.clone(), token, limits })
    }

    /// A whole file of at most `cap` bytes.
    ///
    /// # Errors
    /// See [`HubError`].
    pub(super) fn whole(&self, place: Place<'_>, cap: u64) -> Result<Found<Whole>, HubError> {
        // Each try begins anew, so none progresses.
        let in_vain = |fault: Fault| match fault.again {
            Again::Maybe { after, .. } => Fault { again: Again::Maybe { after, progressed: false }, ..fault },
            Again::Never => fault,
        };
        let read = self.persist(place, || {
            let Answer { response, host, facts } = self.send(place, None)?;
            if response.status() != StatusCode::OK {
                return Err(HubError::Status { file: label(place), host, status: response.status().as_u16() }.into());
            }
            self.commit_agrees(place, &facts)?;
            let length = text(response.headers(), CONTENT_LENGTH.as_str()).and_then(|t| t.parse::<u64>().ok());
            if let (Some(got), Some(expected)) = (length, facts.linked_size)
                && got != expected
            {
                return Err(Fault::passing(HubError::Short { file: label(place), got, expected }, false));
            }
            let due = length.or(facts.linked_size);
            let chunked = text(response.headers(), TRANSFER_ENCODING.as_str())
                .is_some_and(|t| t.to_ascii_lowercase().ends_with("chunked"));
            let proven = due.is_some() || chunked;
            if due.is_some_and(|due| due > cap) {
                return Err(HubError::TooLong { file: label(place), limit: cap }.into());
            }
            let mut bytes = Vec::new();
            let got = self.drain(place, response, &host, due.unwrap_or(cap), &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            });
            match (due, got.map_err(in_vain)?) {
                (Some(expected), got) if got < expected => {
                    Err(Fault::passing(HubError::Short { file: label(place), got, expected }, false))
                }
                _ => Ok(Whole { bytes, etag: facts.etag(), commit: facts.commit, proven }),
            }
        });
        found(read)
    }

    /// A file's first bytes, at most `count` and fewer only where the file ends, and its version.
    ///
    /// # Errors
    /// See [`HubError`].
    pub(super) fn first(&self, place: Place<'_>, count: u64) -> Result<Found<(Vec<u8>, Version)>, HubError> {
        let mut bytes = Vec::new();
        let version = self.read(place, 0..count, None, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        Ok(match found(version)? {
            Found::Here(version) => Found::Here((bytes, version)),
            Found::Absent { stated } => Found::Absent { stated },
        })
    }

    /// The bytes of a range, in order, into `sink`. A body that is cut is resumed where it was cut.
    ///
    /// # Errors
    /// See [`HubError`]; also what `sink` returns.
    pub(super) fn range(
        &self,
        place: Place<'_>,
        range: Range<u64>,
        version: &Version,
        sink: &mut Sink<'_>,
    ) -> Result<(), HubError> {
        self.read(place, range, Some(version), sink).map(|_| ())
    }

    fn read(
        &self,
        place: Place<'_>,
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<Version, HubError> {
        let mut at = range.start;
        let mut known = version.cloned();
        self.persist(place, || {
            let answer = self.send(place, Some(at..range.end))?;
            let version = self.ranged(place, &answer, at..range.end, known.as_ref())?;
            let end = range.end.min(version.size);
            known = Some(version.clone());
            if at < end {
                let got = self.drain(place, answer.response, &answer.host, end - at, &mut |piece| {
                    sink(piece)?;
                    at += piece.len() as u64;
                    Ok(())
                })?;
                if at < end {
                    let error = HubError::Short { file: label(place), got, expected: end - at + got };
                    return Err(Fault::passing(error, got >= PROGRESS));
                }
            }
            Ok(version)
        })
    }

    /// The version that an answer to a range is of, every claim of it checked.
    fn ranged(
        &self,
        place: Place<'_>,
        answer: &Answer,
        asked: Range<u64>,
        known: Option<&Version>,
    ) -> Result<Version, Fault> {
        let Answer { response, host, facts } = answer;
        let file = || label(place);
        self.commit_agrees(place, facts)?;
        let given = text(response.headers(), CONTENT_RANGE.as_str());
        let parsed = given.and_then(ContentRange::parse);
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK => return Err(HubError::RangeIgnored { file: file(), host: host.clone() }.into()),
            // An empty file has no range.
            StatusCode::RANGE_NOT_SATISFIABLE
                if known.is_none() && parsed == Some(ContentRange { range: None, total: Some(0) }) =>
            {
                return Ok(Version { size: 0, etag: facts.etag() });
            }
            status => return Err(HubError::Status { file: file(), host: host.clone(), status: status.as_u16() }.into()),
        }
        let wrong = || {
            let given = self.quoted(&given.unwrap_or("none").chars().take(80).collect::<String>());
            HubError::ContentRange { file: file(), asked: (asked.start, asked.end), given }
        };
        let ContentRange { range: Some(range), total } = parsed.ok_or_else(wrong)? else { return Err(wrong().into()) };
        let size = total.or(facts.linked_size).or(known.map(|known| known.size)).ok_or_else(wrong)?;
        let changed = |what, before: String, now: String| HubError::Changed { file: file(), what, before, now };
        if let Some(linked) = facts.linked_size.filter(|linked| *linked != size) {
            return Err(changed("the size", linked.to_string(), size.to_string()).into());
        }
        if let Some(known) = known {
            if known.size != size {
                return Err(changed("the size", known.size.to_string(), size.to_string()).into());
            }
            if known.etag != facts.etag() {
                let said = |etag: Option<&String>| etag.map_or_else(|| "none".to_owned(), |etag| self.quoted(etag));
                return Err(changed("the etag", said(known.etag.as_ref()), said(facts.etag().as_ref())).into());
            }
        }
        if range != (asked.start..asked.end.min(size)) {
            return Err(wrong().into());
        }
        let due = range.end - range.start;
        let length = text(response.headers(), CONTENT_LENGTH.as_str()).and_then(|t| t.parse::<u64>().ok());
        if length.is_some_and(|length| length > due) {
            return Err(HubError::Long { file: file(), expected: due }.into());
        }
        Ok(Version { size, etag: facts.etag() })
    }

    /// Where the revision is a commit, the answer is of that commit.
    fn commit_agrees(&self, place: Place<'_>, facts: &Facts) -> Result<(), HubError> {
        let Some(asked) = place.revision.commit() else { return Ok(()) };
        let other = facts.commit.as_ref().filter(|found| **found != asked).map(ToString::to_string);
        match other.or_else(|| facts.no_commit.as_deref().map(|given| self.quoted(given))) {
            Some(found) => Err(HubError::OtherCommit { file: label(place), asked: asked.to_string(), found }),
            None => Ok(()),
        }
    }

    /// Try again, with growing pauses, what may go well another time.
    fn persist<T>(&self, place: Place<'_>, mut work: impl FnMut() -> Result<T, Fault>) -> Result<T, HubError> {
        let (mut tries, mut in_vain) = (0, 0);
        loop {
            tries += 1;
            let Fault { error, again } = match work() {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let Again::Maybe { after, progressed } = again else { return Err(error) };
            in_vain = if progressed { 1 } else { in_vain + 1 };
            if in_vain >= self.limits.tries {
                return Err(HubError::GaveUp { tries, source: Box::new(error) });
            }
            let limit = self.limits.longest_wait;
            if let (Some(wait), HubError::Status { host, status, .. }) = (after, &error)
                && wait > limit
            {
                return Err(HubError::Later { file: label(place), host: host.clone(), status: *status, wait, limit });
            }
            std::thread::sleep(after.unwrap_or_else(|| self.pause(in_vain)));
        }
    }

    /// Backoff doubled with every failure in a row, half of it drawn at random so that many clients do not come at once.
    fn pause(&self, failures: u32) -> Duration {
        let full = self.limits.backoff.saturating_mul(1 << (failures - 1).min(6)).min(self.limits.longest_wait);
        let draw = RandomState::new().hash_one(Instant::now()) as u32;
        full / 2 + (full / 2).mul_f64(f64::from(draw) / f64::from(u32::MAX))
    }

    /// Send a request and follow its redirects.
    fn send(&self, place: Place<'_>, range: Option<Range<u64>>) -> Result<Answer, Fault> {
        let mut url = self.url(place)?;
        let (mut at_home, mut facts) = (true, Facts::default());
        for _ in 0..=self.limits.redirects {
            at_home &= url.origin() == self.endpoint.origin();
            let mut request = self.http.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(range) = &range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            if at_home && let Some(header) = self.token.as_ref().and_then(Token::header) {
                request = request.header(AUTHORIZATION, header);
            }
            place.meters.iter().for_each(|meter| _ = meter.requests.fetch_add(1, Ordering::Relaxed));
            let host = host(&url);
            let response = request.send().map_err(|error| self.broken(place, &host, error))?;
            facts.note(response.headers(), at_home);
            if matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                url = self.next(place, &url, &response)?;
                continue;
            }
            return self.judge(place, at_home, Answer { response, host, facts });
        }
        Err(HubError::Redirects { file: label(place), limit: self.limits.redirects }.into())
    }

    fn url(&self, place: Place<'_>) -> Result<Url, HubError> {
        let mut url = self.endpoint.clone();
        let (owner, name) = place.repo.parts();
        let segments = [owner, name, "resolve", place.revision.as_str(), place.file.as_str()];
        match url.path_segments_mut() {
            Ok(mut path) => path.pop_if_empty().extend(segments),
            Err(()) => return Err(HubError::Endpoint { given: self.endpoint.to_string() }),
        };
        Ok(url)
    }

    /// Where a redirect leads.
    fn next(&self, place: Place<'_>, from: &Url, response: &Response) -> Result<Url, HubError> {
        let refuse = |reason| HubError::Redirect { file: label(place), host: host(from), reason };
        let location =
            text(response.headers(), LOCATION.as_str()).ok_or_else(|| refuse("to no place (no Location)"))?;
        let mut url = from.join(location).map_err(|_| refuse("to what is no URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse("to what is not HTTP"));
        }
        if from.scheme() == "https" && url.scheme() == "http" {
            return Err(refuse("from https to http"));
        }
        // A user in a URL would be sent as credentials.
        let _ = (url.set_username(""), url.set_password(None));
        Ok(url)
    }

    /// A server's words as a message may show them: not where they hold the token, which a server may echo.
    fn quoted(&self, text: &str) -> String {
        match &self.token {
            Some(token) if token.is_in(text) => "(withheld: it holds the access token)".to_owned(),
            _ => text.to_owned(),
        }
    }

    /// Turn statuses that are no answer into errors.
    fn judge(&self, place: Place<'_>, at_home: bool, answer: Answer) -> Result<Answer, Fault> {
        let headers = answer.response.headers();
        let status = answer.response.status().as_u16();
        let (file, host) = (label(place), answer.host.clone());
        let code = text(headers, "x-error-code").unwrap_or_default();
        let passing = |after| {
            let error = HubError::Status { file: label(place), host: answer.host.clone(), status };
            Fault { error, again: Again::Maybe { after, progressed: false } }
        };
        match status {
            200..300 | 416 => {
                let encoding = text(headers, CONTENT_ENCODING.as_str()).map(|e| e.trim().to_ascii_lowercase());
                match encoding.filter(|encoding| !encoding.is_empty() && encoding != "identity") {
                    Some(encoding) => Err(HubError::Encoded { file, host, encoding: self.quoted(&encoding) }.into()),
                    None => Ok(answer),
                }
            }
            // A place that the Hub redirects to is open for a while only; asking again leads to a fresh one.
            401 | 403 | 404 | 410 if !at_home => Err(passing(None)),
            401 | 403 => {
                let (owner, name) = place.repo.parts();
                let page = format!("{}/{owner}/{name}", self.endpoint.as_str().trim_end_matches('/'));
                let token_from = self.token.as_ref().map(|token| token.origin().to_owned());
                if code.eq_ignore_ascii_case("RepoNotFound") && token_from.is_some() {
                    return Err(HubError::NoModel { model: place.repo.to_string(), host }.into());
                }
                let gated = code.eq_ignore_ascii_case("GatedRepo");
                Err(HubError::Access { model: place.repo.to_string(), page, status, token_from, gated }.into())
            }
            404 | 410 => Err(match code.to_ascii_lowercase().as_str() {
                "repositorynotfound" | "reponotfound" => HubError::NoModel { model: place.repo.to_string(), host },
                "revisionnotfound" => {
                    HubError::NoRevision { model: place.repo.to_string(), revision: place.revision.to_string() }
                }
                // Without a code, a file is missing only where the commit is known to be there.
                "entrynotfound" => HubError::NoFile { file, stated: true },
                _ if place.revision.commit().is_some() => HubError::NoFile { file, stated: false },
                _ => HubError::NoModel { model: place.repo.to_string(), host },
            }
            .into()),
            408 | 425 | 429 | 500 | 502 | 503 | 504 => {
                Err(passing(text(headers, RETRY_AFTER.as_str()).and_then(retry_after)))
            }
            _ => Err(HubError::Status { file, host, status }.into()),
        }
    }

    /// Read a body to its end, at most `limit` bytes, into `sink`.
    fn drain(
        &self,
        place: Place<'_>,
        mut body: Response,
        host: &str,
        limit: u64,
        sink: &mut Sink<'_>,
    ) -> Result<u64, Fault> {
        let mut buffer = vec![0; 128 << 10];
        let (mut got, mut since, mut recent) = (0_u64, Instant::now(), 0_u64);
        let stalled = |got, after: Duration| {
            let (file, host, seconds) = (label(place), host.to_owned(), after.as_secs_f64());
            Fault::passing(HubError::Stalled { file, host, got, seconds }, got >= PROGRESS)
        };
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(got),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let cause = error.get_ref().and_then(|e| e.downcast_ref::<reqwest::Error>());
                    if cause.is_some_and(reqwest::Error::is_timeout) {
                        return Err(stalled(got, self.limits.wait));
                    }
                    let (file, host, reason) =
                        (label(place), host.to_owned(), format!("the answer broke off after {got} bytes"));
                    return Err(Fault::passing(HubError::Connection { file, host, reason }, got >= PROGRESS));
                }
            };
            place.meters.iter().for_each(|meter| _ = meter.bytes.fetch_add(count as u64, Ordering::Relaxed));
            if got + count as u64 > limit {
                return Err(HubError::Long { file: label(place), expected: limit }.into());
            }
            got += count as u64;
            recent += count as u64;
            sink(&buffer[..count])?;
            // The last bytes of a body may come late without its being slow.
            if got < limit && since.elapsed() >= self.limits.slow {
                if recent < self.limits.slow_bytes {
                    return Err(stalled(got, self.limits.slow));
                }
                (since, recent) = (Instant::now(), 0);
            }
        }
    }

    fn broken(&self, place: Place<'_>, host: &str, error: reqwest::Error) -> Fault {
        let (file, host) = (label(place), host.to_owned());
        if error.is_timeout() && !error.is_connect() {
            let seconds = self.limits.wait.as_secs_f64();
            return Fault::passing(HubError::Stalled { file, host, got: 0, seconds }, false);
        }
        let never = error.is_builder();
        let error = HubError::Connection { file, host, reason: reason(error) };
        if never { error.into() } else { Fault::passing(error, false) }
    }
}

/// A file that is not there is an answer too.
fn found<T>(read: Result<T, HubError>) -> Result<Found<T>, HubError> {
    match read {
        Ok(value) => Ok(Found::Here(value)),
        Err(HubError::NoFile { stated, .. }) => Ok(Found::Absent { stated }),
        Err(error) => Err(error),
    }
}

fn label(place: Place<'_>) -> String {
    format!("{}/{}", place.repo, place.file)
}

/// A URL's host and port: all of it that a message may show.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or("nowhere");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A client error in its own words, without its URL.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(&error));
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// A header's text; `None` when it is absent or not text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// An etag without its quotes and its mark of weakness.
fn etag(text: &str) -> Option<String> {
    let text = text.strip_prefix("W/").or_else(|| text.strip_prefix("w/")).unwrap_or(text).trim().trim_matches('"');
    (!text.is_empty() && text.len() <= 256 && text.bytes().all(|b| b.is_ascii_graphic())).then(|| text.to_owned())
}

/// How long a Retry-After asks to wait: seconds, or until a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?;
    Some(Duration::from_secs(u64::try_from(until.as_second() - now.as_second()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_lose_quotes_and_weakness() {
        for given in ["\"abc\"", "W/\"abc\"", "abc", "w/ \"abc\""] {
            assert_eq!(etag(given).as_deref(), Some("abc"), "{given}");
        }
        assert_eq!(etag("\"\""), None);
        assert_eq!(etag("a b"), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "it has passed");
        assert_eq!(retry_after("soon"), None);
        assert_eq!(retry_after("-1"), None);
    }

    #[test]
    fn loopback_is_told_from_other_hosts() {
        let is = |text: &str| is_loopback(&Url::parse(text).unwrap());
        assert!(is("http://127.0.0.1:1") && is("http://[::1]:1") && is("http://localhost"));
        assert!(!is("http://127.0.0.1.example.com") && !is("https://huggingface.co"));
    }
}
