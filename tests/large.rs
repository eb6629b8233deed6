//! A model of 70 billion parameters, from its header alone: opened, lowered and inspected without one of its weights.

pub(crate) mod sizes;

use crate::support::{ran, wordline};
use serde_json::Value;
use sizes::{LARGE, LAYERS, Sizes};
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;
use wordline::checkpoint::Checkpoint;
use wordline::checkpoint::header::Header;
use wordline_ir::Numerics;
use wordline_lowering::lower;

/// As many tensors as the large model has, each small.
const TWIN: Sizes = Sizes { hidden: 64, inter: 96, vocab: 128, heads: 4, kv_heads: 2 };

/// Prints what each part takes; `cargo bench -p wordline --bench lower` measures it.
#[test]
fn a_header_of_723_tensors_becomes_a_program() {
    let folder = TempDir::new().unwrap();
    LARGE.write(folder.path()).unwrap();
    let (json, data) = LARGE.header();
    let start = Instant::now();
    let header = Header::parse(&json, 8 + json.len() as u64 + data).unwrap();
    let parsed = start.elapsed();
    assert_eq!(header.tensors.len(), 723);
    let start = Instant::now();
    let spec = Checkpoint::open(folder.path()).unwrap().spec;
    let opened = start.elapsed();
    let start = Instant::now();
    let program = lower(&spec, &Numerics::default(), 4096).unwrap().program;
    println!(
        "{} bytes of header parsed in {parsed:?}; opened in {opened:?}; lowered in {:?}",
        json.len(),
        start.elapsed()
    );
    assert_eq!((spec.layers.len(), program.layers()), (LAYERS, LAYERS));
    let weights: usize = program.tensors.iter().map(|t| t.rows * t.cols).sum();
    assert_eq!(2 * weights as u64, data, "the program's tensors are the file's");
}

/// Bytes of a mapped file that this process holds in memory.
#[cfg(target_os = "linux")]
fn resident(file: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut found) = (false, None);
    for line in maps.lines() {
        // A mapping begins with its addresses, and goes on with lines of `Name: value`.
        if line.split_whitespace().next().is_some_and(|first| !first.ends_with(':')) {
            inside = line.ends_with(file.to_str().unwrap());
        }
        if inside && let Some(size) = line.strip_prefix("Rss:") {
            *found.get_or_insert(0) += 1024 * size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
        }
    }
    found.unwrap_or_else(|| panic!("{} is not mapped", file.display()))
}

/// Bytes that a process or thread has read so far, from any file.
#[cfg(target_os = "linux")]
fn bytes_read(io: &str) -> u64 {
    let text = std::fs::read_to_string(io).unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// 140 GB of weights open, lower and are inspected by reading what a model of small tensors has read: the header. That
/// file is sparse: a pass over its weights would show in what is read or mapped, and in the time.
#[cfg(target_os = "linux")]
#[test]
fn weights_are_not_read_before_they_are_asked_for() {
    const THREAD: &str = "/proc/thread-self/io";
    let mut reads = Vec::new();
    for (sizes, is_large) in [(TWIN, false), (LARGE, true)] {
        let folder = TempDir::new().unwrap();
        sizes.write(folder.path()).unwrap();
        let file = folder.path().join("model.safetensors").canonicalize().unwrap();
        let before = bytes_read(THREAD);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        lower(&checkpoint.spec, &Numerics::default(), 4096).unwrap();
        let opened = bytes_read(THREAD) - before;
        let (header, data) = sizes.header();
        let touched = resident(&file);
        println!(
            "{data} bytes of weights: {opened} bytes read, {touched} mapped bytes touched, header {}",
            header.len()
        );
        // The header's pages, the first pages of embedding and head, and what the system maps around each.
        assert!(touched <= header.len() + (1 << 20), "{touched} bytes of {} are in memory", file.display());

        // The measure sees weights that are read.
        if is_large {
            assert!(data > 100_000_000_000, "{data}");
            let view = &checkpoint.spec.embed;
            let (rows, cols) = (1000..1512, view.cols());
            let mut values = vec![0.0; rows.len() * cols];
            checkpoint.weights.read_view_rows(view, rows, &mut values).unwrap();
            assert!(resident(&file) >= touched + 2 * values.len(), "{} after {touched}", resident(&file));
        }

        // The program does not read them either.
        let mut child = wordline(&["inspect", folder.path().to_str().unwrap(), "--json"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut report = String::new();
        std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut report).unwrap();
        // It has closed its output: it is ending, or waits to be asked for its exit code.
        let inspected = bytes_read(&format!("/proc/{}/io", child.id()));
        assert_eq!(ran(child.wait_with_output().unwrap()).code, 0);
        assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["layers"], LAYERS);
        reads.push((opened, inspected, header.len() as u64));
    }
    let [(small, small_inspect, small_header), (large, large_inspect, large_header)] = reads[..] else { panic!() };
    // Numbers of more digits make the longer header; a few hundred bytes are the configs'.
    let longer = large_header - small_header + 4096;
    assert!(large <= small + longer, "opening read {small} bytes, then {large}");
    assert!(large_inspect <= small_inspect + longer, "inspect read {small_inspect} bytes, then {large_inspect}");
}
