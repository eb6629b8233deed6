//! A Hub that misbehaves: each time the right result or a named error; never a hang, a panic or a wrong tensor.

use super::rude::{Act, Rude};
use super::server::{Desk, Server, desk, same_weights, settings};
use super::site::{COMMIT, Reply, Seen, Site};
use crate::support::{model, path};
use std::sync::{Arc, Mutex};
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
    for status in [500, 501, 502, 503, 504, 507, 520, 599, 408, 425] {
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

#[test]
fn a_server_that_fails_is_left_alone_longer_each_time() {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&times);
    let server = Server::changing(site(), move |_, _, _| {
        noted.lock().unwrap().push(Instant::now());
        Reply::new(503)
    });
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&server.endpoint, cache.path());
    (settings.limits.tries, settings.limits.backoff) = (4, Duration::from_millis(100));
    let error = hub_error(load(&Desk::with(settings)).unwrap_err());
    assert!(matches!(error, HubError::GaveUp { tries: 4, .. }), "{error}");
    // Doubled after each, of which half at least is waited.
    let times = times.lock().unwrap();
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let least = [50, 100, 200].map(Duration::from_millis);
    assert!(pauses.len() == 3 && pauses.iter().zip(least).all(|(pause, least)| *pause >= least), "{pauses:?}");
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

/// All bytes that were asked for came: that nothing says so at the end costs no request.
#[test]
fn a_body_that_has_all_its_bytes_and_no_end() {
    for chunked in [true, false] {
        let rude = Rude::new(site(), move |seen, _, reply| {
            if seen.file != WEIGHTS {
                return vec![Act::Send(reply.wire())];
            }
            let (size, head) = (reply.body.len(), String::from_utf8(reply.head(reply.body.len())).unwrap());
            let (how, chunk) = match chunked {
                true => ("Transfer-Encoding: chunked\r\n", format!("{size:x}\r\n")),
                false => ("", String::new()),
            };
            let head = head.replace(&format!("Content-Length: {size}\r\n"), how);
            let sent = Act::Send([head.as_bytes(), chunk.as_bytes(), &reply.body].concat());
            // The last chunk never comes, or the connection stays as it is.
            if chunked { vec![sent] } else { vec![sent, Act::Hang] }
        });
        let cache = TempDir::new().unwrap();
        right(&Desk::with(impatient(&rude.endpoint, &cache)));
        let seen = rude.seen.lock().unwrap();
        let asked: Vec<_> = seen.iter().filter(|seen| seen.file == WEIGHTS).map(|seen| &seen.range).collect();
        assert_eq!(asked.len(), 3, "{asked:?}");
    }
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
        let error = refusal(move |seen, _, mut reply| {
            if seen.file == file {
                let twice = ["identity", "GZip"].map(|value| ("content-encoding".to_owned(), value.to_owned()));
                reply.headers.extend(twice);
            }
            reply
        });
        assert!(matches!(error, HubError::Encoded { .. }), "{error}");
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

/// Long enough that a part of it counts as progress where a read goes on from there.
fn long_config() -> Site {
    let mut site = site();
    let text = std::fs::read(path(FIXTURE).join("config.json")).unwrap();
    site.files.insert("config.json".to_owned(), super::site::Content::Bytes([text, vec![b' '; 200_000]].concat()));
    site
}

#[test]
fn a_text_file_that_is_cut_every_time() {
    let rude = Rude::new(long_config(), |seen, _, reply| {
        let whole = reply.wire();
        let end = if seen.file == "config.json" { whole.len() - 50_000 } else { whole.len() };
        vec![Act::Send(whole[..end].to_vec())]
    });
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::new(&rude.endpoint, cache.path())).unwrap_err());
    assert!(matches!(error, HubError::GaveUp { tries: 3, .. }), "{error}");
    assert_eq!(rude.seen.lock().unwrap().len(), 3, "each try begins anew, so none is progress");
}

#[test]
fn a_text_file_that_stalls() {
    let stalling = |stalls: usize| {
        Rude::new(long_config(), move |seen, before, reply| {
            let whole = reply.wire();
            if seen.file == "config.json" && before < stalls {
                return vec![Act::Send(whole[..whole.len() - 50_000].to_vec()), Act::Hang];
            }
            vec![Act::Send(whole)]
        })
    };
    let (once, always) = (stalling(1), stalling(usize::MAX));
    let cache = TempDir::new().unwrap();
    right(&Desk::with(impatient(&once.endpoint, &cache)));
    let cache = TempDir::new().unwrap();
    let error = hub_error(load(&Desk::with(impatient(&always.endpoint, &cache))).unwrap_err());
    says(&error, &["config.json", "next to nothing", "3 tries"]);
}

#[test]
fn an_etag_that_comes_or_goes() {
    let error = refusal(|seen, before, mut reply| {
        if seen.file == WEIGHTS && before == 1 {
            reply.headers.retain(|(key, _)| key != "etag");
        }
        reply
    });
    assert!(matches!(error, HubError::Changed { what: "the etag", .. }), "{error}");
    says(&error, &["is none"]);
    let error = refusal(|seen, before, mut reply| {
        if seen.file == WEIGHTS && before == 0 {
            reply.headers.retain(|(key, _)| key != "etag");
        }
        reply
    });
    assert!(matches!(error, HubError::Changed { what: "the etag", .. }), "{error}");
    // A server that never gives one is believed.
    let server = Server::changing(site(), |_, _, mut reply| {
        reply.headers.retain(|(key, _)| key != "etag");
        reply
    });
    let (_cache, desk) = desk(&server);
    right(&desk);
}

#[test]
fn a_commit_that_is_none() {
    let error = refusal(|seen, before, reply| match seen.file.as_str() {
        WEIGHTS if before == 1 => reply.with("x-repo-commit", "main"),
        _ => reply,
    });
    assert!(matches!(error, HubError::OtherCommit { .. }), "{error}");
    says(&error, &[WEIGHTS, COMMIT, "main"]);
}

#[test]
fn nothing_found_where_a_redirect_leads_is_no_absence() {
    let other = Server::changing(site(), |_, before, reply| if before == 0 { Reply::new(404) } else { reply });
    let place = other.endpoint.clone();
    let lead = move |seen: &Seen, _: usize, reply: Reply| match seen.file.as_str() {
        WEIGHTS => Reply::new(302).with("location", format!("{place}{}", seen.path)),
        _ => reply,
    };
    let server = Server::changing(site(), lead.clone());
    let (_cache, desk_) = desk(&server);
    right(&desk_);
    // Always: a named error, and nothing is remembered of it.
    let nowhere = Server::changing(site(), |_, _, _| Reply::new(404));
    let place = nowhere.endpoint.clone();
    let server = Server::changing(site(), move |seen, before, reply| match seen.file.as_str() {
        WEIGHTS if before < 3 => Reply::new(302).with("location", format!("{place}{}", seen.path)),
        _ => reply,
    });
    let (cache, first) = desk(&server);
    let error = hub_error(load(&first).unwrap_err());
    says(&error, &[WEIGHTS, "404", "3 tries"]);
    right(&Desk::new(&server.endpoint, cache.path()));
}

#[test]
fn an_absence_is_remembered_when_the_hub_states_it() {
    let name = "generation_config.json";
    let mut with = site();
    with.files.insert(name.to_owned(), super::site::Content::Bytes(b"{}".to_vec()));
    for (code, later) in [(None, Some(b"{}".to_vec())), (Some("EntryNotFound"), None)] {
        let server = Server::changing(with.clone(), move |seen, before, reply| match (seen.file.as_str(), code) {
            ("generation_config.json", Some(code)) if before == 0 => Reply::new(404).with("x-error-code", code),
            ("generation_config.json", None) if before == 0 => Reply::new(404),
            _ => reply,
        });
        let (cache, first) = desk(&server);
        assert_eq!(first.open().unwrap().folder.read(name).unwrap(), None);
        drop(first);
        let again = Desk::new(&server.endpoint, cache.path()).open().unwrap();
        assert_eq!(again.folder.read(name).unwrap(), later, "{code:?}");
    }
}

#[test]
fn a_text_file_is_kept_when_it_is_known_to_be_whole() {
    let name = "tokenizer.json";
    let whole = std::fs::read(path(FIXTURE).join(name)).unwrap();
    // The Hub says how long it is, the place behind it sends less.
    let length = whole.len();
    let server = Server::changing(site(), move |seen, before, mut reply| {
        if seen.file == "tokenizer.json" && before < 3 {
            reply.body.truncate(length / 2);
            return reply.with("x-linked-size", length);
        }
        reply
    });
    let (cache, first) = desk(&server);
    let error = first.open().unwrap().folder.read(name).unwrap_err().to_string();
    assert!(error.contains("bytes came in place of"), "{error}");
    drop(first);
    let again = Desk::new(&server.endpoint, cache.path()).open().unwrap();
    assert_eq!(again.folder.read(name).unwrap().as_ref(), Some(&whole));
    // Nobody says how long it is, and the connection ends: what came is used and not kept.
    let rude = Rude::new(site(), |seen, before, reply| {
        if seen.file == "tokenizer.json" && before == 0 {
            let head = String::from_utf8(reply.head(0)).unwrap().replace("Content-Length: 0\r\n", "");
            return vec![Act::Send(head.into_bytes()), Act::Send(reply.body[..1000].to_vec())];
        }
        vec![Act::Send(reply.wire())]
    });
    let cache = TempDir::new().unwrap();
    let first = Desk::new(&rude.endpoint, cache.path()).open().unwrap();
    assert_eq!(first.folder.read(name).unwrap().map(|bytes| bytes.len()), Some(1000));
    drop(first);
    let again = Desk::new(&rude.endpoint, cache.path()).open().unwrap();
    assert_eq!(again.folder.read(name).unwrap(), Some(whole));
}

#[test]
fn a_header_that_lied_once_is_asked_for_again() {
    for (lie, refused) in [((1_u64 << 40).to_le_bytes(), "header"), (16_u64.to_le_bytes(), "header")] {
        let server = Server::changing(site(), move |seen, before, mut reply| {
            if seen.file == WEIGHTS && before == 0 {
                reply.body = lie.to_vec();
            }
            reply
        });
        let (cache, first) = desk(&server);
        let error = load(&first).unwrap_err().to_string();
        assert!(error.contains(WEIGHTS) && error.contains(refused), "{error}");
        drop(first);
        right(&Desk::new(&server.endpoint, cache.path()));
    }
    let server = Server::changing(site(), |seen, before, reply| match seen.file.as_str() {
        WEIGHTS if before == 0 => Reply::new(416).with("content-range", "bytes */0"),
        _ => reply,
    });
    let (cache, first) = desk(&server);
    load(&first).unwrap_err();
    drop(first);
    right(&Desk::new(&server.endpoint, cache.path()));
}
