//! The sessions over an in-memory link with a limit of 48 KB, with the real engine on every device: what a ring writes, what it
//! says when something goes wrong, and what is never on the wire.

mod again;
mod answers;
mod audits;
mod hops;
mod refusals;

use super::*;
use crate::backends::Backend;
use crate::engines::Unwatched;
use crate::generate::sampler::Sampling;
use crate::generate::session::{Request, generate};
use crate::model::Model;
use crate::pipeline::audit::{Finding, judge, replay};
use crate::pipeline::demand::demand;
use crate::pipeline::load::{Maker, index_of, program_of};
use crate::pipeline::plan::{Device, Room};
use crate::pipeline::wire::{Hello, Join, Purpose, Reassembly, VERSION, claim, fragments};
use crate::pipeline::worker::Worker;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wordline_engine::{
    Capacity, EngineModel, Image, ImageLayout, Kernels, Row, Sequencer, image::build_into, team::Team,
};
use wordline_ir::{Numerics, Program};

const ROOM: Room = Room { ctx: 48, step_rows: 5, sequences: 8 };
const SECRET: [u8; 32] = [0x5e; 32];
const HEAD: Key = [9; 32];

/// A dense model, one with windows, and hybrids, one of them with experts.
const MODELS: [&str; 4] = ["given/qwen3", "given/gemma3", "demo", "given/qwen3_next"];

fn model(name: &str) -> Model {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    Model::open(if name == "demo" { name } else { &path }).unwrap()
}

fn program(model: &Model) -> Program {
    program_of(&model.checkpoint.spec, &Numerics::default()).unwrap()
}

fn kernels(fast: bool) -> Kernels {
    static FORMS: std::sync::OnceLock<[Kernels; 2]> = std::sync::OnceLock::new();
    FORMS.get_or_init(|| [Kernels::mirror().unwrap(), Kernels::new().unwrap()])[usize::from(fast)].clone()
}

fn prompts(model: &Model, count: u32) -> Vec<Vec<u32>> {
    let vocab = model.checkpoint.spec.vocab as u32;
    (0..count).map(|p| (0..3 + 4 * p).map(|i| (i * 7919 + p * 131 + 5) % vocab).collect()).collect()
}

fn ask(prompt: &[u32], max_tokens: usize) -> Ask {
    Ask { prompt: prompt.to_vec(), max_tokens, eos: Vec::new(), sampling: Sampling::Greedy, seed: 0 }
}

/// A model's program and its weight image's bytes.
fn image(model: &Model) -> (Program, Vec<u8>) {
    let program = program(model);
    let layout = ImageLayout::of(&program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    let weights = &model.checkpoint.weights;
    build_into(&program, &layout, weights, [0; 32], &mut bytes, &mut Team::new(1), &|_, _| true).unwrap();
    (program, bytes)
}

/// The whole model on one machine.
fn engine(model: &Model) -> EngineModel {
    let (program, bytes) = image(model);
    let image = Image::open(&program, bytes, None).unwrap();
    let capacity = Capacity { ctx: ROOM.ctx as usize, step_rows: 16 };
    EngineModel::int8(Sequencer::new(&program).unwrap(), capacity, image, kernels(true), 1).unwrap()
}

/// What one machine writes when every token comes of the `window` tokens before it alone.
fn of_last_tokens(model: &Model, prompt: &[u32], count: usize, window: usize) -> Vec<u32> {
    let mut engine = engine(model);
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let seq = engine.open();
        let row = |token: &u32| Row { seq, token: *token, logits: false };
        let mut rows: Vec<Row> = text[text.len().saturating_sub(window)..].iter().map(row).collect();
        rows.last_mut().unwrap().logits = true;
        let step = engine.step(&rows).unwrap();
        let logits = step.row(0).unwrap();
        // The first of the largest, as a greedy pick is.
        let largest = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        engine.release(seq);
        text.push(largest as u32);
    }
    text.split_off(prompt.len())
}

/// What one machine alone writes.
fn alone(model: &Model, prompts: &[Vec<u32>], max_tokens: usize) -> Vec<Vec<u32>> {
    let mut engine = engine(model);
    prompts
        .iter()
        .map(|prompt| {
            let (sampling, seed) = (Sampling::Greedy, 0);
            let request =
                Request { prompt: prompt.clone(), sampling, seed, max_tokens, eos: Vec::new(), stop: Vec::new() };
            let show = |_: &str| Ok::<(), std::io::Error>(());
            generate(&mut engine, None, &request, show, || false).unwrap().ids
        })
        .collect()
}

/// Everybody signs with a hash of their key here; the links of the product sign for real.
fn sign(key: &Key, claim: &[u8]) -> [u8; 64] {
    use sha2::Digest as _;
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&sha2::Sha256::digest([&key[..], claim].concat()));
    signature
}

fn verify(key: &Key, claim: &[u8], signature: &[u8; 64]) -> bool {
    sign(key, claim) == *signature
}

struct Stage<'a> {
    session: StageSession,
    worker: Option<Worker>,
    /// Its own copy of the model.
    model: &'a Model,
    dead: bool,
    frozen: bool,
    /// Until then it computes one step, and says so.
    busy: Duration,
    fast: bool,
}

/// What a link makes of a message.
type Bend<'a> = dyn FnMut(&Key, &Key, Message) -> Vec<Message> + 'a;

/// A head and its stages on one thread, under one clock that the test moves.
struct Ring<'a> {
    model: &'a Model,
    program: Program,
    head: HeadSession,
    worker: Option<Worker>,
    stages: BTreeMap<Key, Stage<'a>>,
    queue: VecDeque<(Key, Key, Vec<u8>)>,
    reassembly: BTreeMap<(Key, Key), Reassembly>,
    /// Every message's bytes, with sender and receiver.
    wire: Vec<(Key, Key, Vec<u8>)>,
    said: Vec<String>,
    records: Vec<Entry>,
    /// What each stage was told of tokens: sequence, place, token.
    told: BTreeMap<Key, Vec<(u32, u32, u32)>>,
    now: Duration,
    /// What a stage's clock is ahead of the head's.
    ahead: BTreeMap<Key, Duration>,
    /// How long messages from the one to the other take beyond a round.
    ways: BTreeMap<(Key, Key), Duration>,
    /// Messages on such a way, and when they are there.
    travelling: Vec<(Duration, Key, Key, Vec<u8>)>,
    /// Changes a message on its way; none: as it is. Several: duplicates.
    bend: Box<Bend<'a>>,
}

struct Setup {
    stages: usize,
    spares: usize,
    audit: f64,
    others: bool,
    stateless: bool,
    room: Room,
    memory: u64,
    lap: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        let lap = Duration::from_secs(4);
        Self { stages: 2, spares: 0, audit: 0.0, others: false, stateless: false, room: ROOM, memory: 1 << 40, lap }
    }
}

fn hello(capacity: f64) -> Hello {
    Hello { capacity, probe: [0xab; 32], backend: "test".into() }
}

impl<'a> Ring<'a> {
    fn new(model: &'a Model, setup: &Setup, asks: Vec<Ask>) -> Self {
        let program = program(model);
        let me = Device { key: HEAD, capacity: 10.0, memory: setup.memory };
        let spec = &model.checkpoint.spec;
        let head = hello(me.capacity);
        let config = HeadConfig {
            me,
            signature: sign(&HEAD, &claim(&HEAD, &HEAD, &head, me.memory)),
            hello: head,
            probe: [0xab; 32],
            verify,
            admission: Admission { secret: Some(SECRET), roster: Vec::new() },
            stages: setup.stages,
            facts: Facts {
                repo: "wordline/test".into(),
                revision: "main".into(),
                index: index_of(&model.checkpoint.weights),
                spec: serde_json::to_string(spec).unwrap(),
                numerics: serde_json::to_string(&Numerics::default()).unwrap(),
                hidden: spec.hidden,
            },
            demand: demand(&program, setup.room).unwrap(),
            room: setup.room,
            stateless: setup.stateless,
            audit: setup.audit,
            audit_by_others: setup.others,
            silence: Duration::from_secs(2),
            lap: setup.lap,
            idle: Duration::from_secs(4),
            gather: Some(Duration::from_secs(60)),
        };
        let mut ring = Ring {
            model,
            program,
            head: HeadSession::new(config, asks),
            worker: None,
            stages: BTreeMap::new(),
            queue: VecDeque::new(),
            reassembly: BTreeMap::new(),
            wire: Vec::new(),
            said: Vec::new(),
            records: Vec::new(),
            told: BTreeMap::new(),
            now: Duration::ZERO,
            ahead: BTreeMap::new(),
            ways: BTreeMap::new(),
            travelling: Vec::new(),
            bend: Box::new(|_, _, message| vec![message]),
        };
        if setup.stages == 0 {
            ring.head.gathered();
        }
        for i in 0..setup.stages + setup.spares {
            // Spares join late and are slow: they take part when somebody is lost.
            ring.join(i as u8 + 1, 10.0, Some(&SECRET), model);
        }
        ring
    }

    fn join(&mut self, name: u8, capacity: f64, secret: Option<&[u8; 32]>, model: &'a Model) {
        let key = [name; 32];
        let introduction = Introduction { hello: hello(capacity), memory: 1 << 40, addresses: Vec::new() };
        let session = StageSession::new(key, HEAD, secret, introduction, |c| sign(&key, c), verify);
        let fast = name.is_multiple_of(2);
        self.stages.insert(
            key,
            Stage { session, worker: None, model, dead: false, frozen: false, busy: Duration::ZERO, fast },
        );
    }

    fn inject(&mut self, name: u8, fault: &str) {
        self.stages.get_mut(&[name; 32]).unwrap().session.inject(Some(fault.parse().unwrap()));
    }

    /// Run to the end, which must come.
    fn run(&mut self) -> Result<Vec<Vec<u32>>, String> {
        for round in 0..20_000 {
            self.round(round);
            if let Some(ended) = self.head.ended() {
                self.round(round);
                return ended
                    .map(|()| self.head.outcomes().into_iter().map(|o| o.ids).collect())
                    .map_err(|e| e.to_string());
            }
        }
        panic!("the run does not end: {:#?}", self.said);
    }

    fn round(&mut self, round: u64) {
        self.now += Duration::from_millis(5);
        let now = self.now;
        self.act();
        for (from, to, frame) in std::mem::take(&mut self.queue) {
            let way = self.ways.get(&(from, to)).copied().unwrap_or_default();
            self.travelling.push((now + way, from, to, frame));
        }
        let (there, travelling) = std::mem::take(&mut self.travelling).into_iter().partition(|(due, ..)| *due <= now);
        self.travelling = travelling;
        let there: Vec<_> = there;
        for (_, from, to, frame) in there {
            self.deliver(from, to, frame);
        }
        if round.is_multiple_of(100) {
            for (key, stage) in &mut self.stages {
                if !stage.dead && !stage.frozen {
                    let (epoch, laps) = stage.session.pulse();
                    let busy_ms = if stage.busy > now { 1 } else { 0 };
                    let beat = Message::Beat { epoch, laps, busy_ms, onward: None };
                    self.queue.push_back((*key, HEAD, beat.encode()));
                }
            }
        }
        self.head.tick(now);
        let clock = || now;
        if let Some(worker) = &mut self.worker {
            self.head.work(worker, &clock);
        }
        for (key, stage) in
            self.stages.iter_mut().filter(|(_, stage)| !stage.dead && !stage.frozen && stage.busy <= now)
        {
            let clock = || now + self.ahead.get(key).copied().unwrap_or_default();
            if let Some(worker) = &mut stage.worker {
                stage.session.work(worker, &clock);
            }
        }
        self.act();
    }

    fn deliver(&mut self, from: Key, to: Key, frame: Vec<u8>) {
        let now = self.now;
        assert!(frame.len() <= 48 << 10, "the link takes no more");
        let whole = self.reassembly.entry((from, to)).or_default().take(frame).unwrap();
        let Some(bytes) = whole else { return };
        let decoded = Message::decode(&bytes);
        if to == HEAD {
            match decoded {
                Ok(message) => self.head.message(from, message, now),
                Err(error) => self.head.bad(from, &error),
            }
        } else if let Some(stage) = self.stages.get_mut(&to).filter(|stage| !stage.dead && !stage.frozen) {
            let now = now + self.ahead.get(&to).copied().unwrap_or_default();
            match decoded {
                Ok(message) => stage.session.message(from, message, now),
                Err(error) => stage.session.bad(from, &error),
            }
        }
    }

    fn act(&mut self) {
        loop {
            let mut actions: Vec<(Key, Action)> = self.head.actions().map(|action| (HEAD, action)).collect();
            for (key, stage) in self.stages.iter_mut().filter(|(_, stage)| !stage.dead && !stage.frozen) {
                actions.extend(stage.session.actions().map(|action| (*key, action)));
            }
            if actions.is_empty() {
                return;
            }
            for (who, action) in actions {
                self.perform(who, action);
            }
        }
    }

    fn perform(&mut self, who: Key, action: Action) {
        match action {
            Action::Send { to, message, spoil } => {
                for message in (self.bend)(&who, &to, message) {
                    let mut bytes = message.encode();
                    if spoil {
                        *bytes.last_mut().unwrap() ^= 0x10;
                    }
                    self.wire.push((who, to, bytes.clone()));
                    let id = self.wire.len() as u32;
                    self.queue.extend(fragments(id, bytes).into_iter().map(|frame| (who, to, frame)));
                }
            }
            Action::Dial { to, .. } => self.stages.get_mut(&who).unwrap().session.linked(to),
            Action::Load { assign, heard } => {
                let stage = self.stages.get_mut(&who).unwrap();
                let maker = maker(&stage.model.checkpoint.weights, stage.fast);
                let epoch = assign.epoch;
                match maker.assigned(&assign, &heard) {
                    Ok((made, ready)) => {
                        stage.worker = Some(made.worker);
                        stage.session.loaded(epoch, Ok(ready));
                    }
                    Err(error) => stage.session.loaded(epoch, Err((error.code().into(), error.to_string()))),
                }
            }
            Action::Prepare { epoch, plan } => {
                let result = maker(&self.model.checkpoint.weights, true).head(&self.program, &plan);
                let result = result.map(|(made, programs)| {
                    self.worker = Some(made.worker);
                    programs
                });
                self.head.prepared(epoch, result.map_err(|e| e.to_string()));
            }
            Action::Free(sequence) => {
                let worker = if who == HEAD {
                    self.worker.as_mut()
                } else {
                    self.stages.get_mut(&who).and_then(|stage| stage.worker.as_mut())
                };
                worker.into_iter().for_each(|worker| worker.free(sequence));
            }
            Action::Say(text) => self.said.push(text),
            Action::Record(entry) => self.records.push(entry),
            Action::Inject(InjectionKind::Kill) => {
                self.stages.get_mut(&who).unwrap().dead = true;
                self.head.lost(who, "closed");
            }
            Action::Told { sequence, index, token } => self.told.entry(who).or_default().push((sequence, index, token)),
            Action::Inject(_) | Action::Close { .. } | Action::Token { .. } | Action::Done => {}
        }
    }
}

fn maker(weights: &crate::checkpoint::Weights, fast: bool) -> Maker<'_> {
    Maker { weights, kernels: kernels(fast), threads: 1, backend: Backend::Cpu, cache: None, watch: &Unwatched }
}

/// A copy of the demo in which one weight of one layer is another.
fn altered(layer: usize) -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/demo");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(format!("{source}/{name}"), folder.path().join(name)).unwrap();
    }
    let model = Model::open(&folder.path().display().to_string()).unwrap();
    let name = |entry: &crate::checkpoint::header::Entry| {
        entry.name.contains(&format!("layers.{layer}.")) && entry.name.contains("down_proj")
    };
    let range = model.checkpoint.weights.entries().find(|(_, entry)| name(entry)).unwrap().1.bytes.clone();
    drop(model);
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[range.start as usize + 1] ^= 0x81;
    bytes[range.start as usize + 3] ^= 0x81;
    std::fs::write(&path, bytes).unwrap();
    let model = Model::open(&folder.path().display().to_string()).unwrap();
    (folder, model)
}
