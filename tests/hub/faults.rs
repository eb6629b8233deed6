//! A Hub that misbehaves: each time the right result or a named error; never a hang, a panic or a wrong tensor.

use super::rude::{Act, Rude};
use super::server::{Desk, Server, desk, same_weights, settings};
use super::site::{COMMIT, Reply, Seen, Site};
use crate::support::{model, path};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wordline::checkpoint::hub::{HubError, Settings};
use wordline::checkpoint::{Checkpoint, CheckpointError, FileError, WeightsError};

const FIXTURE: &str = "given/llama";
const WEIGHTS: &str = "model.safetensors";

fn site() -> Site {
    Site::of(&path(FIXTURE))
}

/// The Hub's part of a refusal.
fn hub_error(error: CheckpointError) -> HubError {
    match error {
        CheckpointError::File(FileError::Hub(error))
        | CheckpointError::Weights(WeightsError::File(FileError::Hub(error))) => *error,
        other => panic!("{other}"),
    }
}

/// Open a model and read all of its weights.
fn load(desk: &Desk) -> Result<Checkpoint, CheckpointError> {
    let checkpoint = desk.open()?;
    let names: Vec<_> = checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect();
    checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).map_err(CheckpointError::File)?;
    Ok(checkpoint)
}

/// The refusal of a server that changes its answers.
fn refusal(change: impl Fn(&Seen, usize, Reply) -> Reply + Send + Sync + 'static) -> HubError {
    let server = Server::changing(site(), change);
    let (_cache, desk) = desk(&server);
    hub_error(load(&desk).expect_err("a refusal"))
}

/// All is right in the end, whatever the server did.
fn right(desk: &Desk) {
    let checkpoint = load(desk).unwrap_or_else(|error| panic!("{error}"));
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
}

#[track_caller]
fn says(error: &HubError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

#[test]
fn a_server_that_ignores_range() {
    let error = refusal(|seen, _, reply| match (&seen.range, seen.file.as_str()) {
        (Some(_), WEIGHTS) => Reply { status: 200, ..reply },
        _ => reply,
    });
    assert!(matches!(error, HubError::RangeIgnored { .. }), "{error}");
    says(&error, &[WEIGHTS, "200", "206"]);
}

#[test]
fn a_body_that_is_too_short() {
    // Once: what lacks is asked for again.
    let cut = |seen: &Seen, before: usize, mut reply: Reply| {
        if seen.file == WEIGHTS && before == 2 {
            reply.body.truncate(reply.body.len() / 2);
        }
        reply
    };
    let server = Server::changing(site(), cut);
    let (_cache, desk_) = desk(&server);
    right(&desk_);
    // Always, and to nothing.
    let error = refusal(|seen, before, mut reply| {
        if seen.file == WEIGHTS && before >= 2 {
            reply.body.clear();
        }
        reply
    });
    assert!(matches!(error, HubError::GaveUp { tries: 3, .. }), "{error}");
    says(&error, &[WEIGHTS, "0 bytes came"]);
}

#[test]
fn a_body_that_is_too_long() {
    let error = refusal(|seen, before, mut reply| {
        if seen.file == WEIGHTS && before == 1 {
            reply.body.push(b' ');
        }
        reply
    });
    assert!(matches!(error, HubError::Long { .. }), "{error}");
}

#[test]
fn a_content_range_that_is_not_what_was_asked_for() {
    for lie in ["bytes 1-8/1000", "bytes 0-6/1000", "bytes 0-7/5", "bytes 0-7", "nonsense", ""] {
        let error = refusal(move |seen, _, reply| match &seen.range {
            Some(range) if range.start == 0 && seen.file == WEIGHTS => reply.with("content-range", lie),
            _ => reply,
        });
        assert!(matches!(error, HubError::ContentRange { .. }), "'{lie}': {error}");
    }
    let error = refusal(|seen, _, mut reply| {
        if seen.file == WEIGHTS {
            reply.headers.retain(|(key, _)| key != "content-range");
        }
        reply
    });
    says(&error, &[WEIGHTS, "Content-Range 'none'"]);
}

#[test]
fn a_file_that_changes_between_reads() {
    let error = refusal(|seen, before, reply| match seen.file.as_str() {
        WEIGHTS if before == 2 => reply.with("etag", "\"other\""),
        _ => reply,
    });
    assert!(matches!(error, HubError::Changed { what: "the etag", .. }), "{error}");
    let error = refusal(|seen, before, reply| match &seen.range {
        Some(range) if seen.file == WEIGHTS && before == 1 => {
            reply.with("content-range", format!("bytes {}-{}/99999999", range.start, range.end - 1))
        }
        _ => reply,
    });
    assert!(matches!(error, HubError::Changed { what: "the size", .. }), "{error}");
    let error = refusal(|seen, before, reply| match seen.file.as_str() {
        WEIGHTS if before == 1 => reply.with("x-repo-commit", COMMIT.replace('0', "1")),
        _ => reply,
    });
    assert!(matches!(error, HubError::OtherCommit { .. }), "{error}");
}

#[test]
fn an_answer_that_names_no_commit() {
    let error = refusal(|_, _, mut reply| {
        reply.headers.retain(|(key, _)| key != "x-repo-commit");
        reply
    });
    says(&error, &["config.json", "x-repo-commit", "HF_ENDPOINT"]);
}

#[test]
fn models_revisions_and_files_that_are_not_there() {
    let server = Server::new(site());
    let (_cache, desk) = desk(&server);
    let open = |id: &str| desk.hub.open(&id.parse().unwrap()).map(|_| ()).unwrap_err();
    assert!(matches!(open("no/such"), HubError::NoModel { .. }));
    let error = open(&format!("{}@v9", super::site::MODEL));
    assert!(matches!(error, HubError::NoRevision { .. }), "{error}");
    says(&error, &["v9"]);
    // A server without the Hub's codes.
    let bare = Server::changing(site(), |_, _, _| Reply::new(404));
    let error = hub_error(load(&Desk::new(&bare.endpoint, TempDir::new().unwrap().path())).unwrap_err());
    assert!(matches!(error, HubError::NoModel { .. }), "{error}");
    let mut none = site();
    none.files.remove("config.json");
    let server = Server::new(none);
    let error = hub_error(load(&Desk::new(&server.endpoint, TempDir::new().unwrap().path())).unwrap_err());
    assert!(matches!(error, HubError::NoFile { .. }), "{error}");
    let mut none = site();
    none.files.remove(WEIGHTS);
    let server = Server::new(none);
    let error = load(&Desk::new(&server.endpoint, TempDir::new().unwrap().path())).unwrap_err();
    assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
}

#[test]
fn a_server_that_asks_to_wait() {
    // A second at first, which is granted, and no time the next time.
    let server = Server::changing(site(), |seen, before, reply| match (seen.file.as_str(), before) {
        (WEIGHTS, 0) => Reply::new(429).with("Retry-After", "1"),
        (WEIGHTS, 2) => Reply::new(503).with("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT"),
        _ => reply,
    });
    let (_cache, desk) = desk(&server);
    let start = Instant::now();
    right(&desk);
    assert!(start.elapsed() >= Duration::from_secs(1), "the wait is kept: {:?}", start.elapsed());
    // An hour is not granted, and not waited for.
    let error = refusal(|seen, _, reply| match seen.file.as_str() {
        WEIGHTS => Reply::new(429).with("Retry-After", "3600"),
        _ => reply,
    });
    assert!(matches!(error, HubError::Later { .. }), "{error}");
    says(&error, &["429", "3600 s"]);
}

#[test]
fn a_server_that_fails_and_then_serves() {
    for status in [500, 502, 503, 504, 408] {
        let server = Server::changing(site(), move |_, before, reply| {
            // The first of every two requests for a file.
            if before % 2 == 0 { Reply::new(status) } else { reply }
        });
        let (_cache, desk) = desk(&server);
        right(&desk);
    }
    let error = refusal(|_, _, _| Reply::new(500));
    assert!(matches!(error, HubError::GaveUp { tries: 3, .. }), "{error}");
    says(&error, &["config.json", "500", "3 tries"]);
    let error = refusal(|_, _, _| Reply::new(418));
    assert!(matches!(error, HubError::Status { status: 418, .. }), "{error}");
}

/// Settings whose patience is a blink.
fn impatient(endpoint: &str, cache: &TempDir) -> Settings {
    let mut settings = settings(endpoint, cache.path());
    settings.limits.wait = Duration::from_millis(150);
    settings.limits.slow = Duration::from_millis(400);
    settings
}

#[test]
fn a_server_that_says_nothing() {
    let server = Server::changing(site(), |seen, _, reply| match seen.file.as_str() {
        WEIGHTS => reply.with("test-wait-ms", "60000"),
        _ => reply,
    });
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::with(impatient(&server.endpoint, &cache))).unwrap_err());
    says(&error, &[WEIGHTS, "sent 0 bytes", "3 tries"]);
}

#[test]
fn a_body_that_stalls_is_resumed_where_it_stopped() {
    // Of each answer about weights a part comes, and then nothing.
    let rude = Rude::new(site(), |seen, before, reply| {
        if seen.file != WEIGHTS || before < 2 {
            return vec![Act::Send(reply.wire())];
        }
        let part = reply.body.len().min(100_000);
        let sent = [reply.head(reply.body.len()), reply.body[..part].to_vec()].concat();
        if part == reply.body.len() { vec![Act::Send(sent)] } else { vec![Act::Send(sent), Act::Hang] }
    });
    let cache = TempDir::new().unwrap();
    right(&Desk::with(impatient(&rude.endpoint, &cache)));
    let seen = rude.seen.lock().unwrap();
    let starts: Vec<_> = seen.iter().filter(|s| s.file == WEIGHTS).filter_map(|s| s.range.clone()).skip(2).collect();
    assert!(starts.len() >= 3, "{starts:?}");
    assert!(
        starts.windows(2).all(|pair| pair[1].start == pair[0].start + 100_000 && pair[1].end == pair[0].end),
        "{starts:?}"
    );
}

#[test]
fn a_connection_that_is_cut_is_resumed_where_it_was_cut() {
    let rude = Rude::new(site(), |seen, before, reply| {
        let part = if seen.file == WEIGHTS && before >= 2 { reply.body.len().min(90_000) } else { reply.body.len() };
        vec![Act::Send([reply.head(reply.body.len()), reply.body[..part].to_vec()].concat())]
    });
    let cache = TempDir::new().unwrap();
    right(&Desk::new(&rude.endpoint, cache.path()));
    // One that brings nothing is given up.
    let rude = Rude::new(site(), |seen, before, reply| {
        let part = if seen.file == WEIGHTS && before >= 2 { 0 } else { reply.body.len() };
        vec![Act::Send([reply.head(reply.body.len()), reply.body[..part].to_vec()].concat())]
    });
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::new(&rude.endpoint, cache.path())).unwrap_err());
    assert!(matches!(error, HubError::GaveUp { .. }), "{error}");
}

#[test]
fn a_body_that_drips_is_not_waited_for_without_end() {
    let rude = Rude::new(site(), |seen, before, reply| {
        if seen.file != WEIGHTS || before < 2 {
            return vec![Act::Send(reply.wire())];
        }
        let mut acts = vec![Act::Send(reply.head(reply.body.len()))];
        for byte in &reply.body[..200] {
            acts.extend([Act::Send(vec![*byte]), Act::Wait(Duration::from_millis(50))]);
        }
        acts.push(Act::Hang);
        acts
    });
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::with(impatient(&rude.endpoint, &cache))).unwrap_err());
    says(&error, &[WEIGHTS, "next to nothing"]);
}

#[test]
fn a_server_that_is_not_there() {
    let cache = TempDir::new().unwrap();
    let mut settings = settings("http://127.0.0.1:1", cache.path());
    settings.limits.connect = Duration::from_millis(500);
    let error = hub_error(load(&Desk::with(settings)).unwrap_err());
    says(&error, &["127.0.0.1:1", "3 tries"]);
    assert!(!error.to_string().contains("http://"), "{error}");
}

#[test]
fn bytes_that_are_no_http() {
    for sent in [&b""[..], b"\0\0\0\0", b"HTTP/1.1 200", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n"] {
        let rude = Rude::new(site(), move |_, _, _| vec![Act::Send(sent.to_vec())]);
        let cache = TempDir::new().unwrap();
        let error = hub_error(load(&Desk::new(&rude.endpoint, cache.path())).unwrap_err());
        assert!(matches!(error, HubError::GaveUp { .. }), "{error}");
    }
}

#[test]
fn redirects_without_end_or_sense() {
    let error = refusal(|seen, _, _| Reply::new(302).with("location", &seen.path));
    assert!(matches!(error, HubError::Redirects { .. }), "{error}");
    let error = refusal(|_, _, _| Reply::new(307));
    says(&error, &["Location"]);
    for place in ["file:///etc/passwd", "ftp://x/y", "http://"] {
        let error = refusal(move |_, _, _| Reply::new(302).with("location", place));
        assert!(matches!(error, HubError::Redirect { .. }), "{place}: {error}");
    }
}

#[test]
fn a_header_length_that_lies() {
    // Longer than any header, longer than the file, and shorter than the JSON.
    for length in [u64::MAX, 100_000_001, 1 << 30, 99_999_999, 3] {
        let mut lying = site();
        let Some(super::site::Content::Bytes(bytes)) = lying.files.get_mut(WEIGHTS) else { panic!() };
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let server = Server::new(lying);
        let (_cache, desk) = desk(&server);
        let error = load(&desk).unwrap_err();
        assert!(matches!(error, CheckpointError::Weights(WeightsError::Header { .. })), "{length}: {error}");
        let moved = desk.hub.meter().bytes();
        assert!(moved < 10_000, "{length}: {moved} bytes moved");
    }
    // A file that has no room for a length.
    for size in [0, 5] {
        let mut short = site();
        short.files.insert(WEIGHTS.to_owned(), super::site::Content::Bytes(vec![1; size]));
        let server = Server::new(short);
        let (_cache, desk) = desk(&server);
        let error = load(&desk).unwrap_err().to_string();
        assert!(error.contains(&format!("{size} bytes are too few")), "{error}");
    }
}

#[test]
fn a_compressed_body() {
    for file in ["config.json", WEIGHTS] {
        let error = refusal(move |seen, _, reply| match seen.file == file {
            true => reply.with("content-encoding", "gzip"),
            false => reply,
        });
        assert!(matches!(error, HubError::Encoded { .. }), "{error}");
        says(&error, &[file, "gzip"]);
    }
}

#[test]
fn headers_in_any_case_and_with_any_white_space() {
    let rude = Rude::new(site(), |_, _, reply| {
        let mut text =
            format!("HTTP/1.1 {} OK\r\nCONTENT-LENGTH:{}\r\nConnection:   close \r\n", reply.status, reply.body.len());
        for (key, value) in &reply.headers {
            let value = if key == "content-range" {
                value.replace("bytes", "BYTES ").replace('/', " / ")
            } else {
                value.clone()
            };
            let value = if key == "etag" { format!("W/{value}") } else { value };
            text += &format!("{}: \t {value}  \r\n", key.to_uppercase());
        }
        vec![Act::Send([text.as_bytes(), b"Content-Encoding: IDENTITY\r\n\r\n", &reply.body].concat())]
    });
    let cache = TempDir::new().unwrap();
    right(&Desk::new(&rude.endpoint, cache.path()));
}

#[test]
fn a_text_file_longer_than_any() {
    let rude = Rude::new(site(), |_, _, reply| vec![Act::Send(reply.head(1 << 40)), Act::Hang]);
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::new(&rude.endpoint, cache.path())).unwrap_err());
    assert!(matches!(error, HubError::TooLong { .. }), "{error}");
}
