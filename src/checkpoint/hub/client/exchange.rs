//! One request and its redirects, and what the answer is worth: which statuses are answers, which failures may pass, and a body
//! read within its bounds of length and time.

use super::{Client, PROGRESS, Place, Sink};
use crate::checkpoint::hub::error::HubError;
use crate::checkpoint::hub::id::Commit;
use crate::checkpoint::hub::token::Token;
use reqwest::Url;
use reqwest::blocking::Response;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, ETAG, HeaderMap, LOCATION, RANGE, RETRY_AFTER,
};
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// A failed try.
pub(super) struct Fault {
    pub(super) error: HubError,
    pub(super) again: Again,
}

pub(super) enum Again {
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
    pub(super) fn passing(error: HubError, progressed: bool) -> Self {
        Self { error, again: Again::Maybe { after: None, progressed } }
    }
}

/// The end of a chain of redirects.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) host: String,
    pub(super) facts: Facts,
}

/// What the Hub says of a file in headers, on whichever hop it says it.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) commit: Option<Commit>,
    /// The Hub named a commit in a form that is none.
    pub(super) no_commit: Option<String>,
    pub(super) linked_etag: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) linked_size: Option<u64>,
}

impl Facts {
    /// Take what a hop's headers say, etags by way of `quoted`, for they are kept and shown. The last hop at home has the
    /// etag that counts where none is linked.
    fn note(&mut self, headers: &HeaderMap, at_home: bool, quoted: impl Fn(&str) -> String) {
        let tag = |name| text(headers, name).and_then(etag).map(|tag| quoted(&tag));
        if at_home {
            if let Some(given) = text(headers, "x-repo-commit") {
                match given.parse() {
                    Ok(commit) => self.commit = self.commit.take().or(Some(commit)),
                    Err(_) => self.no_commit = Some(given.to_owned()),
                }
            }
            self.linked_etag = self.linked_etag.take().or_else(|| tag("x-linked-etag"));
            self.linked_size = self.linked_size.or_else(|| text(headers, "x-linked-size").and_then(|t| t.parse().ok()));
        }
        if at_home || (self.etag.is_none() && self.linked_etag.is_none()) {
            self.etag = tag(ETAG.as_str()).or_else(|| self.etag.take());
        }
    }

    pub(super) fn etag(&self) -> Option<String> {
        self.linked_etag.clone().or_else(|| self.etag.clone())
    }
}

impl Client {
    /// Send a request and follow its redirects.
    pub(super) fn send(&self, place: Place<'_>, range: Option<Range<u64>>) -> Result<Answer, Fault> {
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
            let host = self.host(&url);
            let response = request.send().map_err(|error| self.broken(place, &host, error))?;
            facts.note(response.headers(), at_home, |text| self.quoted(text));
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
        let refuse = |reason| HubError::Redirect { file: label(place), host: self.host(from), reason };
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

    /// A server's words as a message or a file may have them: not where they hold the token, which a server may echo.
    /// What stands in their place is one word, as an etag must be.
    pub(super) fn quoted(&self, text: &str) -> String {
        match &self.token {
            Some(token) if token.is_in(text) => "withheld:it-holds-the-access-token".to_owned(),
            _ => text.to_owned(),
        }
    }

    /// A URL's host and port: all of it that a message may show, as far as a redirect did not put the token there.
    fn host(&self, url: &Url) -> String {
        let host = url.host_str().unwrap_or("nowhere");
        self.quoted(&url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
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
                // Any of several counts, and so does one that is not text.
                let mut encodings = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
                let encoding = encodings.find(|e| !matches!(&*e.trim().to_ascii_lowercase(), "" | "identity"));
                match encoding.map(|encoding| encoding.trim().to_ascii_lowercase()) {
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
            408 | 425 | 429 | 500..600 => Err(passing(text(headers, RETRY_AFTER.as_str()).and_then(retry_after))),
            _ => Err(HubError::Status { file, host, status }.into()),
        }
    }

    /// Read a body to its end, at most `limit` bytes, into `sink`.
    pub(super) fn drain(
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

pub(super) fn label(place: Place<'_>) -> String {
    format!("{}/{}", place.repo, place.file)
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A client error in its own words, without its URL.
pub(super) fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(&error));
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// A header's text; `None` when it is absent or not text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// An etag without its quotes and its mark of weakness.
pub(super) fn etag(text: &str) -> Option<String> {
    let text = text.strip_prefix("W/").or_else(|| text.strip_prefix("w/")).unwrap_or(text).trim().trim_matches('"');
    (!text.is_empty() && text.len() <= 256 && text.bytes().all(|b| b.is_ascii_graphic())).then(|| text.to_owned())
}

/// How long a Retry-After asks to wait: seconds, or until a date.
pub(super) fn retry_after(text: &str) -> Option<Duration> {
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
