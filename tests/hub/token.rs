//! The token: who gets it, who does not, and what is said where one is missing.

use super::server::{Desk, Server, desk, same_weights, settings, token};
use super::site::{MODEL, Reply, Site};
use crate::support::{Ran, model, path, ran, wordline};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use wordline::checkpoint::hub::HubError;

const SECRET: &str = "hf_verysecrettoken";

fn gated() -> Site {
    Site { token: Some(SECRET.to_owned()), ..Site::of(&path("given/llama")) }
}

/// The program, with an environment of the Hub that a test gives and nothing of the user's.
pub(crate) fn program(endpoint: &str, cache: &Path, args: &[&str]) -> Command {
    let mut command = wordline(args);
    for name in [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN",
        "HF_HUB_DOWNLOAD_TIMEOUT",
        "XDG_CACHE_HOME",
    ] {
        command.env_remove(name);
    }
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", cache.join("hf")).env("WORDLINE_CACHE", cache.join("wl"));
    command
}

fn has_no_secret(ran: &Ran) {
    assert!(!ran.out.contains("secret") && !ran.err.contains("secret"), "{}{}", ran.out, ran.err);
}

#[test]
fn a_gated_model_says_what_to_do() {
    let server = Server::new(gated());
    let (cache, desk) = desk(&server);
    let error = desk.hub.open(&MODEL.parse().unwrap()).map(|_| ()).unwrap_err();
    assert!(matches!(error, HubError::Access { status: 401, gated: true, .. }) && error.wants_token(), "{error}");
    let text = error.to_string();
    for part in [
        MODEL,
        "gated",
        "its page",
        &format!("{}/{MODEL}", server.endpoint),
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HOME/token",
    ] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    // The program says so too, and asks nobody where nobody is.
    let ran = ran(program(&server.endpoint, cache.path(), &["inspect", MODEL]).output().unwrap());
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("gated") && ran.err.contains("HF_TOKEN"), "{}", ran.err);
}

#[test]
fn a_refusal_without_a_token_says_what_to_do_whatever_its_form() {
    for (status, code) in [(401, None), (403, None), (403, Some("GatedRepo"))] {
        for refused in ["config.json", "model.safetensors"] {
            let server = Server::changing(Site::of(&path("given/llama")), move |seen, _, reply| {
                let refusal = Reply::new(status);
                let refusal = match code {
                    Some(code) => refusal.with("x-error-code", code),
                    None => refusal,
                };
                if seen.file == refused { refusal } else { reply }
            });
            let (_cache, desk) = desk(&server);
            let text = desk.open().unwrap_err().to_string();
            let page = format!("{}/{MODEL}", server.endpoint);
            for part in [MODEL, &status.to_string(), "gated", &page, "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME/token"] {
                assert!(text.contains(part), "'{part}' is not in: {text}");
            }
        }
    }
}

#[test]
fn a_token_that_does_not_open_the_model() {
    for status in [401, 403] {
        let server = Server::changing(gated(), move |_, _, _| Reply::new(status));
        let cache = TempDir::new().unwrap();
        let mut settings = settings(&server.endpoint, cache.path());
        settings.token = token(SECRET);
        let error = Desk::with(settings).hub.open(&MODEL.parse().unwrap()).map(|_| ()).unwrap_err();
        assert!(matches!(error, HubError::Access { .. }) && !error.wants_token(), "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("a test") && text.contains(&status.to_string()) && !text.contains("secret"), "{text}");
    }
}

#[test]
fn the_token_comes_from_the_places_that_users_of_the_hub_know() {
    let server = Server::new(gated());
    let cache = TempDir::new().unwrap();
    let file = cache.path().join("a-token");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let inspect = || program(&server.endpoint, cache.path(), &["inspect", MODEL, "--json"]);
    let good = |command: &mut Command| {
        let ran = ran(command.output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.err);
        has_no_secret(&ran);
    };
    good(inspect().env("HF_TOKEN", SECRET));
    good(inspect().env("HF_TOKEN_PATH", &file));
    assert_eq!(ran(inspect().output().unwrap()).code, 2, "without a token the config is not given");
    std::fs::create_dir_all(cache.path().join("hf")).unwrap();
    std::fs::rename(&file, cache.path().join("hf/token")).unwrap();
    good(&mut inspect());
    // One that is none is named by its place, not by its text.
    let ran = ran(inspect().env("HF_TOKEN", "secret and more").output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("HF_TOKEN"), "{}", ran.err);
    has_no_secret(&ran);
}

/// As the Hub does with large files: the weights lie on another host, to which the answer redirects.
#[test]
fn the_token_stays_at_the_endpoint() {
    let elsewhere = Server::new(Site::of(&path("given/llama")));
    let place = elsewhere.endpoint.clone();
    let home = Server::changing(gated(), move |seen, _, reply| match seen.file.as_str() {
        // A key in the query opens the place that a redirect leads to.
        "model.safetensors" if reply.status < 300 => Reply::new(302)
            .with("x-repo-commit", super::site::COMMIT)
            .with("x-linked-etag", "\"linked\"")
            .with("location", format!("{place}{}?key=verysecretkey", seen.path)),
        _ => reply,
    });
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&home.endpoint, cache.path());
    settings.token = token(SECRET);
    let desk = Desk::with(settings);
    let checkpoint = desk.open().unwrap();
    checkpoint.weights.tensor("model.norm.weight").unwrap().bytes().unwrap();
    let bearer = Some(format!("Bearer {SECRET}"));
    assert!(home.seen().len() >= 3 && home.seen().iter().all(|seen| seen.authorization == bearer));
    assert!(elsewhere.seen().len() >= 3);
    for seen in elsewhere.seen() {
        assert_eq!(seen.authorization, None);
        assert!(!seen.head.to_lowercase().contains(SECRET) && !seen.head.contains("referer"), "{}", seen.head);
    }
    // Every hop is a request.
    assert_eq!(desk.hub.meter().requests() as usize, home.seen().len() + elsewhere.seen().len());
    assert!(!format!("{desk:?} {checkpoint:?}", desk = desk.hub).contains("secret"));
    // Where that other host fails, its key is not told.
    let place = elsewhere.endpoint.clone();
    drop(elsewhere);
    let remarks = format!("{:?}", desk.remarks.lock().unwrap());
    let names: Vec<_> = checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect();
    let error = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap_err();
    let text = format!("{error} {error:?} {remarks}");
    assert!(text.contains(place.trim_start_matches("http://")) && !text.contains("secret"), "{text}");
}

/// What a server says of an answer is quoted in errors; a server that says the token back is not.
#[test]
fn a_token_that_the_server_echoes_is_not_quoted() {
    let echoes: [(&str, String); 5] = [
        ("content-range", format!("bytes {SECRET}/1")),
        // Where a message cuts the header, not all of the token is left.
        ("content-range", format!("bytes {}{SECRET}/1", "0".repeat(60))),
        ("content-encoding", SECRET.to_uppercase()),
        ("etag", format!("\"{SECRET}\"")),
        ("x-repo-commit", SECRET.to_owned()),
    ];
    for (header, value) in echoes {
        let server = Server::changing(gated(), move |seen, before, reply| match seen.file.as_str() {
            "model.safetensors" if before == 1 => reply.with(header, &value),
            _ => reply,
        });
        let cache = TempDir::new().unwrap();
        let mut settings = settings(&server.endpoint, cache.path());
        settings.token = token(SECRET);
        let error = Desk::with(settings).open().unwrap_err();
        let text = format!("{error} {error:?}").to_lowercase();
        assert!(text.contains("withheld") && !text.contains("secret"), "{header}: {text}");
    }
}

/// Etags are kept and shown: one that is the token, from the first answer on, is neither.
#[test]
fn a_token_that_the_server_echoes_is_kept_nowhere() {
    for header in ["etag", "x-linked-etag"] {
        let server = Server::changing(gated(), move |_, _, reply| reply.with(header, format!("\"{SECRET}\"")));
        let cache = TempDir::new().unwrap();
        let mut settings = settings(&server.endpoint, cache.path());
        settings.token = token(SECRET);
        let desk = Desk::with(settings);
        let checkpoint = desk.open().unwrap();
        same_weights(&checkpoint, &model("given/llama").checkpoint);
        assert!(!format!("{checkpoint:?}").contains("secret"), "{checkpoint:?}");
        let (mut left, mut files) = (vec![cache.path().to_owned()], 0);
        while let Some(folder) = left.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    left.push(path);
                    continue;
                }
                let bytes = std::fs::read(&path).unwrap();
                assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{}", path.display());
                files += 1;
            }
        }
        assert!(files > 4, "{files}");
    }
}

/// A server may also name a host after the token. Here the token is a host, so that no name has to be resolved.
#[test]
fn a_token_that_is_the_host_of_a_redirect_is_not_quoted() {
    const HOST: &str = "127.0.0.2";
    for place in [format!("http://{HOST}:1/x"), format!("ftp://{HOST}/x")] {
        let server = Server::changing(gated(), move |_, _, _| Reply::new(302).with("location", &place));
        let cache = TempDir::new().unwrap();
        let mut settings = settings(&server.endpoint, cache.path());
        settings.token = token(HOST);
        settings.limits.connect = std::time::Duration::from_millis(500);
        let error = Desk::with(settings).open().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(HOST), "{error}");
    }
}

/// Of a proxy's address the user is a secret too.
#[test]
fn a_proxy_is_used_as_usual_and_not_for_the_loopback() {
    let server = Server::new(Site::of(&path("given/llama")));
    let cache = TempDir::new().unwrap();
    let inspect = |endpoint: &str| program(endpoint, cache.path(), &["inspect", MODEL, "--json"]);
    // The proxy is asked for another host's files, and has them.
    let found = ran(inspect("http://hub.example").env("HTTP_PROXY", &server.endpoint).output().unwrap());
    assert_eq!(found.code, 0, "{}", found.err);
    assert!(server.seen().iter().all(|seen| seen.head.contains("host: hub.example")), "{:?}", server.seen());
    let direct = ran(inspect(&server.endpoint).env("HTTP_PROXY", "http://127.0.0.1:1").output().unwrap());
    assert_eq!(direct.code, 0, "{}", direct.err);
    let closed = Server::changing(Site::of(&path("given/llama")), |_, _, _| Reply::new(407));
    let place = closed.endpoint.replace("http://", &format!("http://user:{SECRET}@"));
    let refused = ran(inspect("http://other.example").env("HTTP_PROXY", &place).output().unwrap());
    assert!(refused.code == 2 && refused.err.contains("407"), "{}", refused.err);
    assert!(closed.seen().iter().all(|seen| seen.head.contains("proxy-authorization")), "{:?}", closed.seen());
    has_no_secret(&refused);
}

#[test]
fn a_chain_that_comes_back_does_not_get_the_token_again() {
    let away = std::sync::Arc::new(std::sync::OnceLock::<String>::new());
    let to = std::sync::Arc::clone(&away);
    let home = Server::changing(gated(), move |seen, _, reply| match seen.path.as_str() {
        "/back" => Reply::new(200).with("x-repo-commit", super::site::COMMIT).body("{}"),
        _ if seen.file == "config.json" => Reply::new(302).with("location", format!("{}/x", to.get().unwrap())),
        _ => reply,
    });
    let back = format!("{}/back", home.endpoint);
    let other = Server::changing(gated(), move |_, _, _| Reply::new(302).with("location", &back));
    away.set(other.endpoint.clone()).unwrap();
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&home.endpoint, cache.path());
    settings.token = token(SECRET);
    let _ = Desk::with(settings).hub.open(&MODEL.parse().unwrap());
    let seen = home.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[0].authorization.is_some() && seen[1].authorization.is_none());
    assert!(other.seen().iter().all(|seen| seen.authorization.is_none()));
}

/// The prompt, on a terminal that `script` makes; where that program is absent, nothing is tested here.
#[cfg(target_os = "linux")]
#[test]
fn a_person_is_asked_without_echo() {
    use std::io::{Read, Write};
    use std::process::Stdio;
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: there is no program `script` to make a terminal with");
        return;
    }
    let server = Server::new(gated());
    let cache = TempDir::new().unwrap();
    let inner = program(&server.endpoint, cache.path(), &[]);
    let line = format!("{} inspect {MODEL} --json", inner.get_program().to_str().unwrap());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // Typed once the question is there, and a moment later: the echo is switched off right after it.
    let mut shown = Vec::new();
    let mut output = child.stdout.take().unwrap();
    let mut byte = [0];
    while !String::from_utf8_lossy(&shown).contains("not kept): ") && output.read(&mut byte).unwrap() == 1 {
        shown.push(byte[0]);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    input.write_all(format!("{SECRET}\n").as_bytes()).unwrap();
    output.read_to_end(&mut shown).unwrap();
    let mut ran = ran(child.wait_with_output().unwrap());
    ran.out = String::from_utf8_lossy(&shown).into_owned();
    drop(input);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("access token") && ran.out.contains("\"commit\""), "{}", ran.out);
    has_no_secret(&ran);
    assert!(server.seen().iter().skip(1).all(|seen| seen.authorization.is_some()));
}
