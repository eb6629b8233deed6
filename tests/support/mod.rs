//! What the suites share: the fixtures, engines for them, and the program as a child process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;
use wordline::backends::Backend;
use wordline::engines::{Setup, Unwatched};
use wordline::image_cache::ImageCache;
use wordline::model::Model;
use wordline_engine::{Capacity, EngineModel, Kernels, Linear};
use wordline_ir::{Numerics, Program};
use wordline_lowering::lower;

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every fixture that is a checkpoint, by name: `demo`, and the paths under tests/fixtures.
pub(crate) fn fixtures() -> Vec<String> {
    let mut names = vec!["demo".to_owned()];
    find(&root().join("tests/fixtures"), "", &mut names);
    assert!(names.len() > 10, "{names:?}");
    names
}

/// The fixtures that have golden values.
pub(crate) fn golden_fixtures() -> Vec<String> {
    let has = |name: &String| name == "demo" || path(name).join("golden.json").is_file();
    fixtures().into_iter().filter(has).collect()
}

fn find(dir: &Path, prefix: &str, names: &mut Vec<String>) {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut children: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    children.sort();
    if children.iter().any(|n| n == "config.json") && children.iter().any(|n| n.ends_with(".safetensors")) {
        names.push(prefix.to_owned());
        return;
    }
    for name in children.into_iter().filter(|n| dir.join(n).is_dir()) {
        let child = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        find(&dir.join(name), &child, names);
    }
}

/// A fixture's directory; the demo's is the folder that it is embedded from.
pub(crate) fn path(name: &str) -> PathBuf {
    if name == "demo" { root().join("demo") } else { root().join("tests/fixtures").join(name) }
}

/// A fixture as the command line's MODEL.
pub(crate) fn model_arg(name: &str) -> String {
    if name == "demo" { name.to_owned() } else { path(name).display().to_string() }
}

/// A fixture, opened.
pub(crate) fn model(name: &str) -> Model {
    Model::open(&model_arg(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A fixture's program at the default numerics.
pub(crate) fn program(model: &Model) -> Program {
    lower(&model.checkpoint.spec, &Numerics::default(), 64).unwrap_or_else(|e| panic!("{}: {e}", model.name)).program
}

/// The weight images that all suites of this process share.
pub(crate) fn cache() -> &'static ImageCache {
    static CACHE: OnceLock<(TempDir, ImageCache)> = OnceLock::new();
    &CACHE
        .get_or_init(|| {
            let folder = TempDir::new().unwrap();
            let cache = ImageCache::new(folder.path());
            (folder, cache)
        })
        .1
}

/// How engines of a test are made.
pub(crate) fn setup<'a>(model: &'a Model, program: &'a Program, capacity: Capacity, threads: usize) -> Setup<'a> {
    Setup { model, program, capacity, threads, backend: Backend::Cpu, cache: Some(cache()), watch: &Unwatched }
}

/// The int8 engine of a fixture on this device's fastest units.
pub(crate) fn int8(model: &Model, program: &Program, capacity: Capacity, threads: usize) -> EngineModel {
    setup(model, program, capacity, threads).int8().unwrap_or_else(|e| panic!("{}: {e}", model.name))
}

/// The int8 engine of a fixture on the scalar mirrors.
pub(crate) fn mirror(model: &Model, program: &Program, capacity: Capacity) -> EngineModel {
    setup(model, program, capacity, 1)
        .int8_on(Kernels::mirror().unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", model.name))
}

/// The reference engine of a fixture.
pub(crate) fn reference(model: &Model, program: &Program, capacity: Capacity) -> EngineModel {
    setup(model, program, capacity, 1).reference(Linear::Exact).unwrap_or_else(|e| panic!("{}: {e}", model.name))
}

/// The program with these arguments, in the repository's root, with a cache of this test run's own.
pub(crate) fn wordline(args: &[&str]) -> Command {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wordline"));
    let folder = FOLDER.get_or_init(|| TempDir::new().unwrap());
    command.args(args).current_dir(root()).env("WORDLINE_CACHE", folder.path());
    command
}

/// What a run of the program printed, and its exit code.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Run the program to its end.
pub(crate) fn run(args: &[&str]) -> Ran {
    ran(wordline(args).output().unwrap())
}

/// Run the program, which must succeed, and read its JSON.
pub(crate) fn run_json(args: &[&str]) -> serde_json::Value {
    let ran = run(args);
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", ran.out))
}

pub(crate) fn ran(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}
