//! What moves: headers at load, one request a run of bytes when a stage is fetched, and the very bytes of the file.

use super::server::{Desk, Server, desk, limits, same_weights, settings};
use super::site::{COMMIT, Content, MODEL, Site};
use crate::large::sizes::{LARGE, Sizes};
use crate::support::{model, path};
use safetensors::SafeTensors;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use wordline::checkpoint::hub::ranges::{RangeSet, runs};
use wordline::checkpoint::roles::tensors_of;
use wordline::checkpoint::{Checkpoint, Folder, Weights};
use wordline_ir::Numerics;
use wordline_lowering::lower;

/// A site of a config and one weight file, both padded to lengths that do not tell how large the model is.
fn padded(sizes: &Sizes, folder: &Path) -> Site {
    let pad = |text: Vec<u8>, to: usize| {
        assert!(text.len() <= to);
        [text.clone(), vec![b' '; to - text.len()]].concat()
    };
    let config = pad(sizes.config().to_string().into_bytes(), 1000);
    let (json, data) = sizes.header();
    let file = folder.join("weights");
    sparse(&file, &pad(json, 120_000), data);
    let files = [("config.json", Content::Bytes(config)), ("model.safetensors", Content::File(file))];
    Site { files: files.map(|(name, content)| (name.to_owned(), content)).into(), token: None }
}

/// A weight file whose tensors are a hole.
fn sparse(path: &Path, header: &[u8], data: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header).unwrap();
    file.set_len(8 + header.len() as u64 + data).unwrap();
}

const SMALL: Sizes = Sizes { hidden: 256, inter: 704, vocab: 16_000, heads: 8, kv_heads: 2 };

#[test]
fn loading_moves_the_same_bytes_for_100_megabytes_and_100_gigabytes() {
    let (mut moved, mut stored) = (Vec::new(), Vec::new());
    for sizes in [SMALL, LARGE] {
        let folder = TempDir::new().unwrap();
        let server = Server::new(padded(&sizes, folder.path()));
        let (_cache, desk) = desk(&server);
        let checkpoint = desk.open().unwrap();
        lower(&checkpoint.spec, &Numerics::default(), 4096).unwrap();
        let meter = checkpoint.folder.repo().unwrap().meter();
        moved.push((meter.requests(), meter.bytes(), checkpoint.weights.entries().count()));
        stored.push(checkpoint.weights.stored_bytes());
        println!("{} bytes of weights: {:?}", checkpoint.weights.stored_bytes(), moved.last());
        // The server saw no more than the client says, and no byte of a tensor.
        assert_eq!(server.seen().len() as u64, meter.requests());
        let ranges: Vec<_> = server.of("model.safetensors").into_iter().map(|seen| seen.range).collect();
        assert_eq!(ranges, [Some(0..8), Some(8..120_008)]);
    }
    assert_eq!(moved[0], moved[1]);
    assert_eq!(moved[0], (3, 1000 + 8 + 120_000, 723));
    assert!((100_000_000..150_000_000).contains(&stored[0]) && stored[1] >= 100_000_000_000, "{stored:?}");
}

/// SmolLM2-135M as published: its layers stand in the order of their names' text, 0, 1, 10, 11, …
pub(super) struct Smol {
    hidden: usize,
    inter: usize,
    vocab: usize,
    kv: usize,
}

const SMOL: Smol = Smol { hidden: 576, inter: 1536, vocab: 49_152, kv: 192 };
/// The same order of tensors at a quarter of the width: no gap of a layer is small enough to be bridged here either.
pub(super) const SMALL_SMOL: Smol = Smol { hidden: 144, inter: 384, vocab: 2048, kv: 48 };
const SMOL_LAYERS: usize = 30;

impl Smol {
    fn config(&self) -> Vec<u8> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": self.hidden,
            "intermediate_size": self.inter, "max_position_embeddings": 8192, "num_attention_heads": 9,
            "num_hidden_layers": SMOL_LAYERS, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100_000,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": self.vocab
        });
        config.to_string().into_bytes()
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Smol { hidden, inter, vocab, kv } = *self;
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
        let mut layers: Vec<String> = (0..SMOL_LAYERS).map(|layer| layer.to_string()).collect();
        layers.sort();
        for layer in layers {
            let parts: [(&str, Vec<usize>); 9] = [
                ("input_layernorm", vec![hidden]),
                ("mlp.down_proj", vec![hidden, inter]),
                ("mlp.gate_proj", vec![inter, hidden]),
                ("mlp.up_proj", vec![inter, hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.k_proj", vec![kv, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.v_proj", vec![kv, hidden]),
            ];
            tensors.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
        }
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        tensors
    }

    /// The header's JSON, and the length of the weights.
    fn header(&self) -> (Vec<u8>, u64) {
        let (mut text, mut at) = (String::from("{"), 0_u64);
        for (name, shape) in self.tensors() {
            let end = at + 2 * shape.iter().product::<usize>() as u64;
            let comma = if at == 0 { "" } else { "," };
            text += &format!(r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{at},{end}]}}"#);
            at = end;
        }
        text.push('}');
        (text.into_bytes(), at)
    }

    /// Config, header and weights, the weights filled with bytes that tell where they are.
    pub(super) fn site(&self) -> Site {
        let (text, at) = self.header();
        let mut bytes = [&(text.len() as u64).to_le_bytes(), &text[..]].concat();
        // A multiplier that leaves no two places alike.
        (0..at / 8).for_each(|i| bytes.extend(i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()));
        let files = [("config.json", self.config()), ("model.safetensors", bytes)];
        Site { files: files.map(|(name, bytes)| (name.to_owned(), Content::Bytes(bytes))).into(), token: None }
    }
}

/// Runs of contiguous wanted bytes with gaps bridged, counted from the header by hand: the test's own arithmetic.
fn expected_runs(
    checkpoint: &Checkpoint,
    names: &std::collections::BTreeSet<String>,
    budget: u64,
) -> (Vec<Range<u64>>, u64) {
    let entries = checkpoint.weights.entries();
    let mut ranges: Vec<_> = entries
        .filter(|(_, e)| names.contains(&e.name))
        .map(|(_, e)| e.bytes.clone())
        .filter(|r| !r.is_empty())
        .collect();
    ranges.sort_by_key(|range| range.start);
    let wanted = ranges.iter().map(|range| range.end - range.start).sum();
    let mut gaps: Vec<u64> = ranges.windows(2).map(|pair| pair[1].start - pair[0].end).filter(|gap| *gap > 0).collect();
    gaps.sort_unstable();
    let mut spent = 0;
    let bridged = gaps.iter().take_while(|gap| {
        spent += **gap;
        spent <= budget
    });
    let widest = bridged.last().copied().unwrap_or(0);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if range.start - last.end <= widest => last.end = range.end,
            _ => runs.push(range),
        }
    }
    (runs, wanted)
}

/// For every stage of every cut into 1 to 5 stages: any run of layers is a stage of some cut, the first one the head's.
#[test]
fn a_stage_of_smollm2_is_at_most_four_requests() {
    let folder = TempDir::new().unwrap();
    let (header, data) = SMOL.header();
    assert_eq!(data, 269_030_016, "as published");
    sparse(&folder.path().join("weights"), &header, data);
    let weights = Content::File(folder.path().join("weights"));
    let files = [("config.json", Content::Bytes(SMOL.config())), ("model.safetensors", weights)];
    let server =
        Server::new(Site { files: files.map(|(name, content)| (name.to_owned(), content)).into(), token: None });
    let (_cache, desk) = desk(&server);
    let checkpoint = desk.open().unwrap();
    let place = |name: &str| checkpoint.weights.entries().find(|(_, e)| e.name == name).unwrap().1.bytes.clone();
    let mut worst = [0, 0];
    for first in 0..SMOL_LAYERS {
        for last in first + 1..=SMOL_LAYERS {
            for ends in [false, true] {
                if ends && first > 0 {
                    continue;
                }
                let names = tensors_of(&checkpoint.spec, &(first..last), ends);
                assert_eq!(names.len(), 9 * (last - first) + if ends { 2 } else { 0 });
                let wanted: RangeSet = names.iter().map(|name| place(name)).collect();
                let (by_hand, bytes) = expected_runs(&checkpoint, &names, limits().bridge);
                let found = runs(&wanted, &RangeSet::default(), limits().bridge);
                assert_eq!((found.clone(), wanted.bytes()), (by_hand, bytes), "{first}..{last}");
                let all: u64 = found.iter().map(|range| range.end - range.start).sum();
                assert!(all - bytes <= limits().bridge);
                worst[usize::from(ends)] = worst[usize::from(ends)].max(found.len());
            }
        }
    }
    println!("at most {} requests a stage, {} for the head's", worst[0], worst[1]);
    assert!(worst[0] <= 4 && worst[1] <= 4 + 2, "{worst:?}");
}

#[test]
fn a_stage_is_fetched_in_one_request_a_run() {
    let site = SMALL_SMOL.site();
    let local = TempDir::new().unwrap();
    for (name, content) in &site.files {
        let Content::Bytes(bytes) = content else { panic!() };
        std::fs::write(local.path().join(name), bytes).unwrap();
    }
    let local = Checkpoint::open(local.path()).unwrap();
    let server = Server::new(site);
    let (_cache, desk) = desk(&server);
    let checkpoint = desk.open().unwrap();
    assert_eq!(checkpoint.spec, local.spec);
    // The middle of three stages, then the head's, of which a part is there already.
    for (layers, ends) in [(9..12, false), (0..10, true)] {
        server.forget();
        let names = tensors_of(&checkpoint.spec, &layers, ends);
        let (runs, wanted) = expected_runs(&checkpoint, &names, limits().bridge);
        let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
        let [fetched] = fetched.try_into().unwrap();
        assert_eq!((fetched.wanted, fetched.requests as usize), (wanted, server.seen().len()));
        let asked: RangeSet = server.seen().into_iter().map(|seen| seen.range.unwrap()).collect();
        assert_eq!(fetched.bytes, asked.bytes());
        if !ends {
            assert_eq!(asked.iter().collect::<Vec<_>>(), runs);
            assert_eq!(fetched.requests as usize, runs.len());
            assert!(runs.len() < names.len() / 4, "{} requests for {} tensors", runs.len(), names.len());
            assert!(fetched.bytes - wanted <= limits().bridge && fetched.cached == 0);
        } else {
            // Layer 9 is here: it does not move again.
            assert_eq!(fetched.bytes + fetched.cached, wanted);
            let place =
                |name: &String| checkpoint.weights.entries().find(|(_, e)| e.name == **name).unwrap().1.bytes.clone();
            let ninth = names.iter().filter(|name| name.contains(".9.")).map(place);
            assert_eq!(fetched.cached, ninth.map(|range| range.end - range.start).sum::<u64>());
        }
        for name in &names {
            let (a, b) = (checkpoint.weights.tensor(name).unwrap(), local.weights.tensor(name).unwrap());
            assert!(a.bytes().unwrap() == b.bytes().unwrap(), "{name}");
        }
        // Reading has moved nothing more, and asking again moves nothing.
        assert_eq!(server.seen().len() as u64, fetched.requests);
        let again = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
        assert_eq!((again[0].bytes, again[0].requests, again[0].cached), (0, 0, wanted));
    }
}

/// Three devices with a cache each: every one asks for the runs of its stage and for nothing else.
#[test]
fn every_stage_of_a_cut_is_one_request_a_run() {
    let server = Server::new(SMALL_SMOL.site());
    for (layers, ends, most) in [(0..10, true, 6), (10..20, false, 4), (20..30, false, 4)] {
        let (_cache, desk) = desk(&server);
        let checkpoint = desk.open().unwrap();
        server.forget();
        let names = tensors_of(&checkpoint.spec, &layers, ends);
        let (runs, wanted) = expected_runs(&checkpoint, &names, limits().bridge);
        let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
        let mut asked: Vec<_> = server.seen().into_iter().map(|seen| seen.range.unwrap()).collect();
        asked.sort_by_key(|range| range.start);
        assert_eq!(asked, runs, "{layers:?}");
        assert!(asked.len() <= most, "{layers:?}: {asked:?}");
        assert_eq!((fetched[0].wanted, fetched[0].requests as usize), (wanted, runs.len()));
        assert!(fetched[0].bytes - wanted <= limits().bridge);
    }
}

/// Tensors of bytes alone, in the order of their names.
fn bytes_file(sizes: &[(&str, usize)]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = sizes.iter().map(|(name, size)| vec![name.as_bytes()[0]; *size]).collect();
    let views = sizes.iter().zip(&data).map(|((name, size), data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![*size], data).unwrap();
        ((*name).to_owned(), view)
    });
    safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
}

/// What lies between two wanted runs is read along up to the limit, for a file in all, and is here from then on.
#[test]
fn gaps_are_read_along_as_far_as_the_limit_goes() {
    let sizes = [("a", 1000), ("b", 500), ("c", 1000), ("d", 3000), ("e", 1000), ("f", 0), ("g", 501), ("h", 9)];
    let bytes = bytes_file(&sizes);
    let files = [("model.safetensors".to_owned(), Content::Bytes(bytes.clone()))];
    let files = [files, [("config.json".to_owned(), Content::Bytes(b"{}".to_vec()))]].concat();
    let server = Server::new(Site { files: files.into_iter().collect(), token: None });
    let first = bytes.len() - sizes.iter().map(|(_, size)| size).sum::<usize>();
    let at = |&(start, end): &(usize, usize)| (first + start) as u64..(first + end) as u64;
    // Wanted: a, c, e, f, which is empty, and h. Gaps: b, d and g.
    for (bridge, runs) in [
        (0, vec![(0, 1000), (1500, 2500), (5500, 6500), (7001, 7010)]),
        (499, vec![(0, 1000), (1500, 2500), (5500, 6500), (7001, 7010)]),
        (500, vec![(0, 2500), (5500, 6500), (7001, 7010)]),
        (1000, vec![(0, 2500), (5500, 6500), (7001, 7010)]),
        (1001, vec![(0, 2500), (5500, 7010)]),
        (4000, vec![(0, 2500), (5500, 7010)]),
        (4001, vec![(0, 7010)]),
    ] {
        let cache = TempDir::new().unwrap();
        let mut settings = settings(&server.endpoint, cache.path());
        settings.limits.bridge = bridge;
        let desk = Desk::with(settings);
        let repo = desk.hub.open(&MODEL.parse().unwrap()).unwrap();
        let weights = Weights::open(&Folder::Hub(repo)).unwrap();
        server.forget();
        let [fetched] = weights.fetch(["a", "c", "e", "f", "h"], &|_, _| {}).unwrap().try_into().unwrap();
        let mut asked: Vec<_> = server.seen().into_iter().map(|seen| seen.range.unwrap()).collect();
        asked.sort_by_key(|range| range.start);
        assert_eq!(asked, runs.iter().map(at).collect::<Vec<_>>(), "{bridge}");
        let moved = runs.iter().map(|(start, end)| (end - start) as u64).sum::<u64>();
        assert_eq!((fetched.wanted, fetched.bytes, fetched.requests), (3009, moved, runs.len() as u64));
        assert!(fetched.bytes - fetched.wanted <= bridge);
        // All of them, the ones between too: the same bytes, and each moved once.
        for (name, size) in sizes {
            assert!(
                weights.tensor(name).unwrap().bytes().unwrap() == vec![name.as_bytes()[0]; size],
                "{bridge} {name}"
            );
        }
        let asked: Vec<_> = server.seen().into_iter().map(|seen| seen.range.unwrap()).collect();
        assert_eq!(asked.iter().map(|range| range.end - range.start).sum::<u64>(), 7010, "{bridge}: {asked:?}");
    }
}

/// An index that leads out of the model is refused before anything is asked for by its names.
#[test]
fn an_index_that_leads_elsewhere_asks_for_nothing_there() {
    for name in [
        "../../../no/such/resolve/main/model.safetensors",
        "..%2f..%2fmodel.safetensors",
        "http://127.0.0.1:1/model.safetensors",
        "//127.0.0.1:1/model.safetensors",
        "/etc/model.safetensors",
        "model.safetensors?x=.safetensors",
        "config.json",
    ] {
        let index = json!({ "weight_map": { "model.norm.weight": name } }).to_string();
        let files = [("config.json", b"{}".to_vec()), ("model.safetensors.index.json", index.into_bytes())];
        let files = files.map(|(name, bytes)| (name.to_owned(), Content::Bytes(bytes)));
        let server = Server::new(Site { files: files.into(), token: None });
        let (_cache, desk) = desk(&server);
        let error = desk.open().unwrap_err().to_string();
        assert!(error.contains("model.safetensors.index.json") && error.contains(name), "{error}");
        let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.file).collect();
        assert_eq!(seen, ["config.json", "model.safetensors", "model.safetensors.index.json"], "{name}");
    }
}

#[test]
fn every_tensor_is_the_local_files_in_one_file_and_in_several() {
    for name in ["given/llama", "given/mistral", "given/qwen3_next"] {
        let server = Server::new(Site::of(&path(name)));
        let local = model(name);
        // Tensor by tensor, each as it is asked for.
        let (_a, one) = desk(&server);
        let checkpoint = one.open().unwrap();
        same_weights(&checkpoint, &local.checkpoint);
        // And all at once, which takes one request a file.
        let (_b, two) = desk(&server);
        let checkpoint = two.open().unwrap();
        let names: Vec<_> = checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect();
        let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
        assert!(fetched.iter().all(|file| file.requests == 1 && file.bytes == file.wanted), "{fetched:?}");
        server.forget();
        same_weights(&checkpoint, &local.checkpoint);
        assert!(server.seen().is_empty());
    }
}

#[test]
fn a_revision_is_asked_for_once_and_the_commit_from_then_on() {
    let server = Server::new(Site::of(&path("given/llama")));
    let (_cache, desk) = desk(&server);
    let checkpoint = desk.open().unwrap();
    assert_eq!(checkpoint.folder.repo().unwrap().commit().as_str(), COMMIT);
    checkpoint.weights.tensor("model.norm.weight").unwrap().bytes().unwrap();
    assert!(checkpoint.folder.read("tokenizer.json").unwrap().is_some());
    assert!(checkpoint.folder.read("no-such.json").unwrap().is_none());
    let seen = server.seen();
    assert_eq!(seen[0].path, format!("/{MODEL}/resolve/main/config.json"));
    for seen in &seen[1..] {
        assert!(seen.path.starts_with(&format!("/{MODEL}/resolve/{COMMIT}/")), "{}", seen.path);
    }
    assert!(seen.iter().all(|seen| seen.head.contains("accept-encoding: identity")));
    // A reference with slashes is one part of the path.
    server.forget();
    let id = format!("{MODEL}@refs/pr/1").parse().unwrap();
    desk.hub.open(&id).unwrap();
    assert_eq!(server.seen()[0].path, format!("/{MODEL}/resolve/refs%2Fpr%2F1/config.json"));
}

#[test]
fn long_runs_are_read_in_pieces_side_by_side() {
    let server = Server::new(Site::of(&path("given/llama")));
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&server.endpoint, cache.path());
    settings.limits.piece = 50_000;
    settings.limits.span = 7_000;
    let desk = Desk::with(settings);
    let checkpoint = desk.open().unwrap();
    let names: Vec<_> = checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect();
    let total = std::sync::Mutex::new((0, 0));
    let progress = |done: u64, all: u64| {
        let mut seen = total.lock().unwrap();
        *seen = (done.max(seen.0), all);
    };
    let fetched = checkpoint.weights.fetch(names.iter().map(String::as_str), &progress).unwrap();
    assert_eq!(fetched[0].requests, fetched[0].wanted.div_ceil(50_000));
    assert_eq!(*total.lock().unwrap(), (fetched[0].wanted, fetched[0].wanted));
    same_weights(&checkpoint, &model("given/llama").checkpoint);
}

/// Requests of one fetch run side by side, and never more of them than the limit says.
#[test]
fn at_most_so_many_requests_run_at_once() {
    let limit = 3;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (entered, highest) = (Arc::clone(&now), Arc::clone(&most));
    let site = Site::of(&path("given/llama"));
    // The change holds a worker thread of the server for as long as its request waits.
    let server = Server::changing(site, move |seen, _, reply| {
        if seen.range.as_ref().is_some_and(|range| range.end - range.start > 1000) {
            let running = entered.fetch_add(1, Ordering::SeqCst) + 1;
            highest.fetch_max(running, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            entered.fetch_sub(1, Ordering::SeqCst);
        }
        reply
    });
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&server.endpoint, cache.path());
    (settings.limits.piece, settings.limits.parallel) = (20_000, limit);
    let desk = Desk::with(settings);
    let checkpoint = desk.open().unwrap();
    let names: Vec<_> = checkpoint.weights.entries().map(|(_, e)| e.name.clone()).collect();
    checkpoint.weights.fetch(names.iter().map(String::as_str), &|_, _| {}).unwrap();
    let most = most.load(Ordering::SeqCst);
    assert!((2..=limit).contains(&most), "{most} at once");
}

/// A head that is stored beside an equal embedding: on disk the two are compared, on the Hub no byte may move for that.
#[test]
fn a_stored_head_is_not_compared_over_the_network() {
    let fixture = path("given/llama");
    let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<_> = stored.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    tensors.push(("lm_head.weight".to_owned(), stored.tensor("model.embed_tokens.weight").unwrap()));
    let folder = TempDir::new().unwrap();
    std::fs::copy(fixture.join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let server = Server::new(Site::of(folder.path()));
    let (cache, desk) = desk(&server);
    let checkpoint = desk.open().unwrap();
    let moved = checkpoint.folder.repo().unwrap().meter().bytes();
    let header = checkpoint.weights.entries().map(|(_, e)| e.bytes.start).min().unwrap();
    let config = std::fs::metadata(fixture.join("config.json")).unwrap().len();
    assert_eq!(moved, config + header);
    assert!(Checkpoint::open(folder.path()).unwrap().spec.tie && !checkpoint.spec.tie);
    // A copy in the standard Hub cache is judged by the same evidence, so that all stages agree.
    let snapshot = cache.path().join("hf/hub").join(format!("models--{}", MODEL.replace('/', "--")));
    let snapshot = snapshot.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(folder.path().join(name), snapshot.join(name)).unwrap();
    }
    server.forget();
    assert_eq!(Desk::new(&server.endpoint, cache.path()).open().unwrap().spec, checkpoint.spec);
    assert!(server.of("model.safetensors").is_empty());
}
