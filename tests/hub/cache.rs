//! The caches: ours, which survives being killed and spoilt, and the standard one, which is read first.

use super::load::SMALL_SMOL;
use super::rude::{Act, Rude};
use super::server::{Desk, Server, desk, same_weights, settings};
use super::site::{COMMIT, Content, MODEL, Reply, Site};
use super::token::program;
use crate::support::{Ran, model, path, ran};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tempfile::TempDir;
use wordline::checkpoint::Checkpoint;
use wordline::checkpoint::hub::{HubError, ModelId};

const FIXTURE: &str = "given/llama";

fn names(checkpoint: &Checkpoint) -> Vec<String> {
    checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect()
}

fn fetch_all(checkpoint: &Checkpoint) -> u64 {
    let names = names(checkpoint);
    let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
    fetched.iter().map(|file| file.bytes).sum()
}

/// The one file of this ending below a folder.
fn find(folder: &Path, ending: &str) -> PathBuf {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn what_was_fetched_is_not_asked_for_again() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, first) = desk(&server);
    fetch_all(&first.open().unwrap());
    drop(first);
    server.forget();
    let desk = Desk::new(&server.endpoint, cache.path());
    let checkpoint = desk.open().unwrap();
    assert_eq!(fetch_all(&checkpoint), 0);
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    // Only what `main` is now had to be asked.
    let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(seen, [format!("/{MODEL}/resolve/main/config.json")]);
    // A commit needs not even that.
    server.forget();
    let repo = desk.hub.open(&format!("{MODEL}@{COMMIT}").parse().unwrap()).unwrap();
    assert!(repo.read(&"config.json".parse().unwrap()).unwrap().is_some());
    assert!(server.seen().is_empty());
}

#[test]
fn spoilt_bytes_are_noticed_and_fetched_again() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, first) = desk(&server);
    let total = fetch_all(&first.open().unwrap());
    drop(first);
    let data = find(cache.path(), "model.safetensors.spans");
    let mut bytes = fs::read(&data).unwrap();
    let at = bytes.len() - 1000;
    bytes[at] ^= 0x40;
    fs::write(&data, &bytes).unwrap();
    let check = || ran(program(&server.endpoint, cache.path(), &["cache", "verify", "--json"]).output().unwrap());
    let verdict = check();
    let report: Value = serde_json::from_str(&verdict.out).unwrap();
    assert_eq!((verdict.code, &report["ok"]), (1, &Value::Bool(false)));
    assert_eq!(report["models"][0]["damaged"][0]["file"], "model.safetensors");
    let desk = Desk::new(&server.endpoint, cache.path());
    let checkpoint = desk.open().unwrap();
    assert_eq!(fetch_all(&checkpoint), total, "the span that holds the byte");
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    let remarks = desk.remarks.lock().unwrap().join("\n");
    assert!(remarks.contains("model.safetensors") && remarks.contains("fetched again"), "{remarks}");
    assert_eq!(check().code, 0);
    // A data file that was cut, and one that is gone.
    for spoil in [|path: &Path| fs::write(path, b"short"), |path: &Path| fs::remove_file(path)] {
        spoil(&data).unwrap();
        let desk = Desk::new(&server.endpoint, cache.path());
        same_weights(&desk.open().unwrap(), &model(FIXTURE).checkpoint);
    }
}

/// Kill a fetch at many moments; what it left is used or repaired, and in the end all is right.
#[test]
fn a_fetch_that_is_killed_leaves_a_cache_that_the_next_one_uses() {
    // The weights come in drops, so that there are moments to be killed at.
    let rude = Rude::new(Site::of(&path("given/mistral")), |seen, _, reply| {
        let mut acts = vec![Act::Send(reply.head(reply.body.len()))];
        for piece in reply.body.chunks(8 << 10) {
            acts.push(Act::Send(piece.to_vec()));
            if seen.file.ends_with(".safetensors") {
                acts.push(Act::Wait(Duration::from_millis(4)));
            }
        }
        acts
    });
    let cache = TempDir::new().unwrap();
    for round in 0..10_u64 {
        let mut child = program(&rude.endpoint, cache.path(), &["fetch", MODEL, "--json"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Moments spread over the first half second, with an odd step.
        std::thread::sleep(Duration::from_millis(20 + round * 47));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let desk = Desk::new(&rude.endpoint, cache.path());
    let checkpoint = desk.open().unwrap();
    fetch_all(&checkpoint);
    same_weights(&checkpoint, &model("given/mistral").checkpoint);
    drop((checkpoint, desk));
    let last = ran(program(&rude.endpoint, cache.path(), &["fetch", MODEL, "--json"]).output().unwrap());
    assert_eq!(last.code, 0, "{}", last.err);
    let check = ran(program(&rude.endpoint, cache.path(), &["cache", "verify", "--json"]).output().unwrap());
    assert_eq!(check.code, 0, "{}", check.out);
}

/// A fetch that is killed in the middle of a file loses the span that was on its way, and not those before it.
#[test]
fn what_came_before_a_kill_is_not_asked_for_again() {
    const SPAN: u64 = 4 << 20;
    let site = SMALL_SMOL.site();
    let local = TempDir::new().unwrap();
    for (name, content) in &site.files {
        let Content::Bytes(bytes) = content else { panic!() };
        fs::write(local.path().join(name), bytes).unwrap();
    }
    // The first time there is time to be killed in.
    let rude = Rude::new(site, |seen, before, reply| {
        let mut acts = vec![Act::Send(reply.head(reply.body.len()))];
        for piece in reply.body.chunks(64 << 10) {
            acts.push(Act::Send(piece.to_vec()));
            if seen.file == "model.safetensors" && before < 3 {
                acts.push(Act::Wait(Duration::from_millis(5)));
            }
        }
        acts
    });
    let cache = TempDir::new().unwrap();
    let fetch = || program(&rude.endpoint, cache.path(), &["fetch", MODEL, "--json"]);
    let mut child = fetch().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let store = wordline::checkpoint::hub::Store::new(cache.path().join("wl/hub"));
    let held = || store.list().iter().map(|entry| entry.bytes).sum::<u64>();
    let begun = std::time::Instant::now();
    while held() < SPAN && child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed before its end");
    let again = ran(fetch().output().unwrap());
    assert_eq!(again.code, 0, "{}", again.err);
    let report: Value = serde_json::from_str(&again.out).unwrap();
    let [wanted, cached, bytes] =
        ["wanted", "cached", "bytes"].map(|key| report["files"]["model.safetensors"][key].as_u64().unwrap());
    assert!(cached >= SPAN && cached < wanted && bytes == wanted - cached, "{report}");
    let checkpoint = Desk::new(&rude.endpoint, cache.path()).open().unwrap();
    same_weights(&checkpoint, &Checkpoint::open(local.path()).unwrap());
}

#[test]
fn several_at_once_share_one_fetch() {
    let server = Server::changing(Site::of(&path(FIXTURE)), |seen, _, reply| match seen.file.as_str() {
        "model.safetensors" => reply.with("test-wait-ms", "50"),
        _ => reply,
    });
    let local = model(FIXTURE);
    // What one reads, another is just keeping: each round begins with nothing, and all begin together.
    for _ in 0..6 {
        let cache = TempDir::new().unwrap();
        let together = Barrier::new(4);
        let total = std::thread::scope(|scope| {
            let work = || {
                let desk = Desk::new(&server.endpoint, cache.path());
                together.wait();
                let checkpoint = desk.open().unwrap();
                let moved = fetch_all(&checkpoint);
                same_weights(&checkpoint, &local.checkpoint);
                moved
            };
            let working = [(); 4].map(|()| scope.spawn(work));
            working.map(|one| one.join().unwrap()).iter().sum::<u64>()
        });
        assert_eq!(total, local.checkpoint.weights.stored_bytes(), "each byte moved once");
    }
}

#[test]
fn offline_is_what_the_caches_hold() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let cache = TempDir::new().unwrap();
    let run = |args: &[&str], offline: bool| {
        let mut command = program(&server.endpoint, cache.path(), args);
        if offline {
            command.env("HF_HUB_OFFLINE", "1");
        }
        ran(command.output().unwrap())
    };
    let nothing = run(&["inspect", MODEL], true);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("HF_HUB_OFFLINE") && nothing.err.contains("wordline fetch"), "{}", nothing.err);
    assert!(server.seen().is_empty());
    assert_eq!(run(&["inspect", MODEL], false).code, 0);
    server.forget();
    assert_eq!(run(&["inspect", MODEL], true).code, 0, "headers are here");
    let weights = run(&["run", MODEL, "--ids", "1,2", "-n", "2"], true);
    assert!(weights.code == 2 && weights.err.contains("HF_HUB_OFFLINE"), "weights are not: {}", weights.err);
    assert!(server.seen().is_empty());
    assert_eq!(run(&["fetch", MODEL], false).code, 0);
    server.forget();
    let text = run(&["run", MODEL, "--prompt", "Hello", "-n", "2"], true);
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(server.seen().is_empty());
    // A Hub that is down is no obstacle either, and it is said.
    let endpoint = server.endpoint.clone();
    drop(server);
    let mut settings = settings(&endpoint, cache.path());
    settings.limits.connect = Duration::from_millis(500);
    let desk = Desk::with(settings);
    same_weights(&desk.open().unwrap(), &model(FIXTURE).checkpoint);
    assert!(desk.remarks.lock().unwrap()[0].contains(COMMIT));
}

/// The standard cache's folders, as the Hub's own client makes them: a snapshot's files are links to blobs, where there
/// are links. Returns the snapshot.
fn snapshot(cache: &Path, commit: &str, fixture: &str, files: &[&str]) -> PathBuf {
    let repo = cache.join("hf/hub").join(format!("models--{}", MODEL.replace('/', "--")));
    let (folder, blobs) = (repo.join("snapshots").join(commit), repo.join("blobs"));
    for folder in [&folder, &blobs, &repo.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(repo.join("refs/main"), commit).unwrap();
    for (number, file) in files.iter().enumerate() {
        let from = path(fixture).join(file);
        #[cfg(unix)]
        {
            let blob = format!("{number:064x}");
            fs::copy(from, blobs.join(&blob)).unwrap();
            std::os::unix::fs::symlink(format!("../../blobs/{blob}"), folder.join(file)).unwrap();
        }
        #[cfg(not(unix))]
        fs::copy(from, folder.join(file)).map(|_| number).unwrap();
    }
    folder
}

#[test]
fn the_standard_cache_is_read_first() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, desk) = desk(&server);
    snapshot(cache.path(), COMMIT, FIXTURE, &["config.json", "tokenizer.json", "model.safetensors"]);
    let checkpoint = desk.open().unwrap();
    assert_eq!(fetch_all(&checkpoint), 0);
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    assert!(checkpoint.folder.read("tokenizer.json").unwrap().is_some());
    assert_eq!(server.seen().len(), 1, "what `main` is: {:?}", server.seen());
    // Offline it is enough by itself, and what the snapshot lacks is absent.
    let mut settings = settings(&server.endpoint, cache.path());
    settings.offline = true;
    let desk = Desk::with(settings);
    let checkpoint = desk.open().unwrap();
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    assert!(checkpoint.folder.read("generation_config.json").unwrap().is_none());
    let remarks = desk.remarks.lock().unwrap().join("\n");
    assert!(remarks.contains("HF_HUB_OFFLINE") && remarks.contains("taken as not there"), "{remarks}");
    // Nobody holds this copy to a digest: when it is spoilt, its weights are other weights.
    let before = checkpoint.weights.identity().unwrap();
    drop(checkpoint);
    let file = find(&cache.path().join("hf"), "model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert_ne!(desk.open().unwrap().weights.identity().unwrap(), before);
}

/// Of several weight files the standard cache has one, and a link whose blob has gone, as a download that was cut leaves it.
#[test]
fn a_copy_in_part_is_completed_from_the_hub() {
    const FILES: [&str; 3] =
        ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"];
    let server = Server::new(Site::of(&path("given/mistral")));
    let (cache, desk) = desk(&server);
    let folder = snapshot(cache.path(), COMMIT, "given/mistral", &["config.json", FILES[1]]);
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../blobs/gone", folder.join(FILES[2])).unwrap();
    let checkpoint = desk.open().unwrap();
    let stored = |file: &str| -> u64 {
        let entries = checkpoint.weights.entries().filter(|(own, _)| *own == file);
        entries.map(|(_, entry)| entry.bytes.end - entry.bytes.start).sum()
    };
    assert_eq!(fetch_all(&checkpoint), stored(FILES[0]) + stored(FILES[2]));
    assert!(server.of(FILES[1]).is_empty(), "{:?}", server.of(FILES[1]));
    same_weights(&checkpoint, &model("given/mistral").checkpoint);
    // The part that is a copy is known by its content, for nobody holds it to a digest.
    let before = checkpoint.weights.identity().unwrap();
    drop(checkpoint);
    let copy = folder.join(FILES[1]);
    let mut bytes = fs::read(&copy).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&copy, &bytes).unwrap();
    assert_ne!(desk.open().unwrap().weights.identity().unwrap(), before);
    // One that makes no sense is named by its path, for it is what has to go.
    fs::write(&copy, &bytes[..2000]).unwrap();
    let error = desk.open().unwrap_err().to_string();
    assert!(error.contains(copy.to_str().unwrap()), "{error}");
    fs::write(folder.join("config.json"), "{").unwrap();
    let error = desk.open().unwrap_err().to_string();
    assert!(error.contains(folder.join("config.json").to_str().unwrap()), "{error}");
}

/// The Hub's own client and this one each note what a revision was; offline, whoever asked last is believed.
#[test]
fn without_the_hub_a_revision_is_what_it_was_last() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, first) = desk(&server);
    first.open().unwrap();
    let theirs = "f".repeat(40);
    snapshot(cache.path(), &theirs, FIXTURE, &["config.json", "model.safetensors"]);
    let ours = find(&cache.path().join("wl"), "refs/main");
    let at = |path: &Path, seconds: u64| {
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    };
    let offline = || {
        let mut settings = settings(&server.endpoint, cache.path());
        settings.offline = true;
        Desk::with(settings).open().unwrap().folder.repo().unwrap().commit().to_string()
    };
    let refs = find(&cache.path().join("hf"), "refs/main");
    at(&ours, 1000);
    at(&refs, 2000);
    assert_eq!(offline(), theirs);
    at(&refs, 500);
    assert_eq!(offline(), COMMIT);
    // To ask again is to know it anew, though nothing has changed.
    at(&refs, 2000);
    first.open().unwrap();
    assert_eq!(offline(), COMMIT);
}

/// The name of a weight image tells models apart that have commit, shapes and etags in common.
#[test]
fn weights_of_two_hubs_have_two_names() {
    let name = |_| {
        let server = Server::new(Site::of(&path(FIXTURE)));
        let (_cache, desk) = desk(&server);
        desk.open().unwrap().weights.identity().unwrap()
    };
    let [a, b] = [0, 1].map(name);
    assert_ne!(a, b);
    let (one, other) = ("a/model".parse::<ModelId>().unwrap(), "b/model".parse::<ModelId>().unwrap());
    let server = Server::changing(Site::of(&path(FIXTURE)), |_, _, _| Reply::new(200).with("x-repo-commit", COMMIT));
    let (_cache, desk) = desk(&server);
    assert_ne!(desk.hub.open(&one).unwrap().stamp(), desk.hub.open(&other).unwrap().stamp());
}

/// Whoever could put a link into the cache must not have another file written over.
#[cfg(unix)]
#[test]
fn a_link_in_place_of_the_data_is_not_followed() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, first) = desk(&server);
    fetch_all(&first.open().unwrap());
    drop(first);
    let data = find(cache.path(), "model.safetensors.spans");
    let victim = cache.path().join("victim");
    fs::write(&victim, b"mine").unwrap();
    fs::remove_file(&data).unwrap();
    std::os::unix::fs::symlink(&victim, &data).unwrap();
    let desk = Desk::new(&server.endpoint, cache.path());
    let checkpoint = desk.open().unwrap();
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    // What says that a file is absent, and what is locked.
    let plant = |name: &str| {
        let link = data.with_file_name(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        link
    };
    let absent = plant("chat_template.jinja.absent");
    assert_eq!(checkpoint.folder.read("chat_template.jinja").unwrap(), None);
    assert_eq!(server.of("chat_template.jinja").len(), 1, "a link says nothing");
    assert!(!absent.is_symlink());
    drop(checkpoint);
    let before = fs::metadata(&victim).unwrap().modified().unwrap();
    for name in ["use", "model.safetensors.lock"] {
        let link = plant(name);
        let error = Desk::new(&server.endpoint, cache.path()).open().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("a link"), "{error}");
        fs::remove_file(link).unwrap();
    }
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert_eq!(fs::metadata(&victim).unwrap().modified().unwrap(), before);
}

/// The program in a mount namespace of its own where `script` sets up its cache; `None`, with a reason, where none can be.
#[cfg(target_os = "linux")]
fn mounted(server: &Server, cache: &TempDir, script: &str, args: &[&str]) -> Option<Ran> {
    let inner = program(&server.endpoint, cache.path(), args);
    fs::create_dir_all(cache.path().join("wl")).unwrap();
    let script = format!("({script}) || exit 99; \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = command.output().ok().map(ran)?;
    if ran.code == 99 || ran.err.starts_with("unshare:") {
        println!("skipped: no file system can be mounted here: {}", ran.err);
        return None;
    }
    Some(ran)
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_nobody_may_write_is_read() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let cache = TempDir::new().unwrap();
    let run = ["run", MODEL, "--ids", "1,2,3", "-n", "4", "--no-cache", "--json"];
    let expected = ran(program(&server.endpoint, cache.path(), &run).output().unwrap());
    assert_eq!(expected.code, 0, "{}", expected.err);
    let read_only = r#"mount --bind "$WORDLINE_CACHE" "$WORDLINE_CACHE" &&
                       mount -o remount,bind,ro "$WORDLINE_CACHE""#;
    let Some(found) = mounted(&server, &cache, read_only, &run) else { return };
    assert_eq!(found.code, 0, "{}", found.err);
    let ids = |ran: &Ran| serde_json::from_str::<Value>(&ran.out).unwrap()["ids"].clone();
    assert_eq!(ids(&found), ids(&expected));
    // What is not there cannot be kept, which is said.
    let empty = TempDir::new().unwrap();
    if let Some(found) = mounted(&server, &empty, read_only, &run) {
        assert!(found.code == 2 && found.err.contains("wl"), "{}{}", found.out, found.err);
    }
}

#[test]
fn the_cache_keeps_to_its_limit() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let cache = TempDir::new().unwrap();
    let size = model(FIXTURE).checkpoint.weights.stored_bytes();
    let open = |revision: &str, limit: u64| {
        let mut settings = settings(&server.endpoint, cache.path());
        settings.cache_limit = Some(limit);
        let desk = Desk::with(settings);
        let repo = desk.hub.open(&format!("{MODEL}@{revision}").parse().unwrap())?;
        let checkpoint = Checkpoint::from_folder(wordline::checkpoint::Folder::Hub(repo)).unwrap();
        let names = names(&checkpoint);
        checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).map_err(|error| match error {
            wordline::checkpoint::FileError::Hub(error) => *error,
            other => panic!("{other}"),
        })?;
        Ok::<_, HubError>(checkpoint)
    };
    let error = open("main", size / 2).map(|_| ()).unwrap_err();
    assert!(matches!(error, HubError::CacheLimit { .. }), "{error}");
    // Old entries of other commits go first, the one in use stays.
    let first = open("main", u64::MAX).unwrap();
    let store = wordline::checkpoint::hub::Store::new(cache.path().join("wl/hub"));
    let old = store.list().remove(0);
    let folder = find(cache.path(), "model.safetensors.journal").parent().unwrap().to_owned();
    let other = folder.with_file_name("f".repeat(40));
    fs::create_dir_all(&other).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), other.join(entry.file_name())).unwrap();
    }
    assert_eq!(store.list().len(), 2);
    assert!(!store.remove(&old).unwrap(), "it is open");
    drop(first);
    // Text files are part of the sum; there is room for one model and a half.
    let held = old.bytes;
    fs::remove_file(folder.join("model.safetensors.journal")).unwrap();
    open("main", held + held / 2).unwrap();
    let left = store.list();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((left[0].commit.as_str(), left[0].model.as_str(), left[0].bytes), (COMMIT, MODEL, held));
    // What cannot fit evicts nothing.
    let other = folder.with_file_name("e".repeat(40));
    fs::rename(&folder, &other).unwrap();
    // Its text files alone, for which there is room.
    fs::remove_file(other.join("model.safetensors.journal")).unwrap();
    let error = open("main", held / 2).map(|_| ()).unwrap_err();
    assert!(matches!(error, HubError::CacheLimit { .. }), "{error}");
    let left = store.list();
    let kept = left.iter().find(|entry| entry.commit.starts_with('e')).unwrap();
    assert!((1..held / 4).contains(&kept.bytes), "{kept:?}");
    for entry in &left {
        assert!(store.remove(entry).unwrap());
    }
    assert!(store.list().is_empty());
}

/// Who makes room counts what others are about to bring, or two would fill the cache twice.
#[test]
fn two_that_fetch_at_once_keep_to_the_limit_together() {
    let size = model(FIXTURE).checkpoint.weights.stored_bytes();
    let (site, limit) = (Site::of(&path(FIXTURE)), size + size / 2);
    let holds = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&holds);
    // The first one's weights do not come as long as this holds.
    let slow = Server::changing(site.clone(), move |seen, _, reply| {
        let weights = seen.range.as_ref().is_some_and(|range| range.end - range.start == size);
        while weights && held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        reply
    });
    let [second, third] = [Server::new(site.clone()), Server::new(site)];
    let cache = TempDir::new().unwrap();
    let store = wordline::checkpoint::hub::Store::new(cache.path().join("wl/hub"));
    let here = || store.list().iter().map(|entry| entry.bytes).sum::<u64>();
    let open = |server: &Server, limit: u64| {
        let mut settings = settings(&server.endpoint, cache.path());
        settings.cache_limit = Some(limit);
        Desk::with(settings).open().unwrap()
    };
    let fetch = |checkpoint: &Checkpoint| {
        let names = names(checkpoint);
        let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {});
        fetched.map(|_| ()).map_err(|error| error.to_string())
    };
    let checkpoint = open(&slow, limit);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| fetch(&checkpoint));
        while slow.of("model.safetensors").len() < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Of those weights not one byte is here yet.
        let refused = fetch(&open(&second, limit));
        let both = fetch(&open(&second, 3 * size));
        let before = here();
        holds.store(false, Ordering::Relaxed);
        assert!(refused.clone().is_err_and(|error| error.contains("--cache-limit")), "{refused:?}");
        assert_eq!(both, Ok(()), "there is room for two");
        assert!((size..2 * size).contains(&before), "{before}");
        running.join().unwrap().unwrap();
    });
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    assert!(here() >= 2 * size, "{}", here());
    // Nothing is on its way now, and what nobody has open goes.
    drop(checkpoint);
    fetch(&open(&third, limit)).unwrap();
    assert!((size..=limit).contains(&here()), "{}", here());
}

#[test]
fn the_cache_is_checked_and_cleaned_by_model_and_commit() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let (cache, desk) = desk(&server);
    fetch_all(&desk.open().unwrap());
    // Two commits of one model, and another model.
    let folder = find(cache.path(), "model.safetensors.journal").parent().unwrap().to_owned();
    let other = "f".repeat(40);
    let host = folder.parent().unwrap().parent().unwrap();
    for copy in [folder.with_file_name(&other), host.join("other--model").join(COMMIT)] {
        fs::create_dir_all(&copy).unwrap();
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    // A token that cannot be used is no reason to keep what is to be removed.
    let run = |args: &[&str]| {
        let mut command = program(&server.endpoint, cache.path(), &[&["cache"][..], args].concat());
        ran(command.env("HF_TOKEN", "no token").output().unwrap())
    };
    let json = |args: &[&str]| -> Value {
        let ran = run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    };
    let models = || -> Vec<String> {
        let listed = json(&["list"]);
        let name =
            |entry: &Value| format!("{}@{}", entry["model"].as_str().unwrap(), &entry["commit"].as_str().unwrap()[..1]);
        let mut names: Vec<_> = listed["models"].as_array().unwrap().iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(models(), ["other/model@0", &format!("{MODEL}@0"), &format!("{MODEL}@f")]);
    for (model, count) in [("other/model", 1), (MODEL, 2), (format!("{MODEL}@{COMMIT}").as_str(), 1), ("no/such", 0)] {
        assert_eq!(json(&["verify", model])["models"].as_array().unwrap().len(), count, "{model}");
    }
    for (model, word) in [(format!("{MODEL}@main"), "full commit"), ("../..".to_owned(), "owner nor name")] {
        let refused = run(&["clean", &model]);
        assert!(refused.code == 2 && refused.err.contains(word), "{}", refused.err);
    }
    assert_eq!(json(&["clean", &format!("{MODEL}@{other}")])["models"], 1);
    assert_eq!(models(), ["other/model@0", &format!("{MODEL}@0")]);
    assert_eq!(json(&["clean", "other/model"])["models"], 1);
    // One that a process has open stays, and that is said.
    let checkpoint = desk.open().unwrap();
    let cleaned = run(&["clean", MODEL, "--json"]);
    let report: Value = serde_json::from_str(&cleaned.out).unwrap();
    assert_eq!((&report["models"], &report["in_use"]), (&0.into(), &1.into()), "{report}");
    assert!(cleaned.err.contains("in use"), "{}", cleaned.err);
    same_weights(&checkpoint, &model(FIXTURE).checkpoint);
    drop(checkpoint);
    assert_eq!(json(&["clean", MODEL])["models"], 1);
    assert!(models().is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let cache = TempDir::new().unwrap();
    fs::write(cache.path().join("wl"), b"a file").unwrap();
    let ran = ran(program(&server.endpoint, cache.path(), &["inspect", MODEL]).output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("wl"), "{}", ran.err);
}

/// A disk that fills up during a fetch: a file system of 200 KB, in a mount namespace of its own, for a model of 313 KB.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let server = Server::new(Site::of(&path(FIXTURE)));
    let cache = TempDir::new().unwrap();
    let small = r#"mount -t tmpfs -o size=200k none "$WORDLINE_CACHE""#;
    let Some(ran) = mounted(&server, &cache, small, &["fetch", MODEL]) else { return };
    assert_eq!(ran.code, 2, "{}", ran.err);
    let error = ran.err.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{}", ran.err));
    for part in ["space", ".spans", "wordline cache clean"] {
        assert!(ran.err.contains(part), "'{part}' is not in: {error}");
    }
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
}

#[test]
fn an_index_of_several_files_is_cached_with_what_is_absent() {
    let mut site = Site::of(&path("given/mistral"));
    site.files.insert("README.md".to_owned(), Content::Bytes(Vec::new()));
    let server = Server::new(site);
    let (cache, first) = desk(&server);
    first.open().unwrap();
    assert_eq!(server.of("model.safetensors").len(), 1, "asked once: it is absent");
    drop(first);
    server.forget();
    let desk = Desk::new(&server.endpoint, cache.path());
    let checkpoint = desk.open().unwrap();
    assert_eq!(server.seen().len(), 1);
    // An empty file is a file.
    assert_eq!(checkpoint.folder.read("README.md").unwrap(), Some(Vec::new()));
    assert_eq!(checkpoint.folder.read("README.md").unwrap(), Some(Vec::new()));
    assert_eq!(server.of("README.md").len(), 1);
}
