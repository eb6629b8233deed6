//! `Client`: whole files and ranges of files by HTTP, with patience and without trust.
//!
//! **Invariants**: the token goes to the endpoint's own scheme, host and port, in a chain of redirects that has not left
//! them; never to another host, into a message or a log. A range is believed when status, Content-Range, length, size
//! and etag all agree with what was asked. Every wait has an end.

mod exchange;

use super::error::HubError;
use super::id::{Commit, FileName, RepoId, Revision};
use super::ranges::ContentRange;
use super::settings::{Limits, Settings};
use super::token::Token;
use exchange::{Again, Answer, Facts, Fault, is_loopback, label, reason, text};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, TRANSFER_ENCODING};
use reqwest::{StatusCode, Url};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
                });
                let got = match got {
                    // All that is due came; how the body should have ended no longer matters.
                    Err(Fault { again: Again::Maybe { .. }, .. }) if at == end => return Ok(version),
                    got => got?,
                };
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
            // Cut last: a cut token is known by nobody.
            let given = self.quoted(given.unwrap_or("none")).chars().take(80).collect();
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
}

/// A file that is not there is an answer too.
fn found<T>(read: Result<T, HubError>) -> Result<Found<T>, HubError> {
    match read {
        Ok(value) => Ok(Found::Here(value)),
        Err(HubError::NoFile { stated, .. }) => Ok(Found::Absent { stated }),
        Err(error) => Err(error),
    }
}
