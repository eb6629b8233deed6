//! The sessions over an in-memory link with a limit of 48 KB, with the real engine on every device: what a ring writes, what it
//! says when something goes wrong, and what is never on the wire.

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
use crate::pipeline::wire::{Hello, Reassembly, claim, fragments};
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

/// The whole model on one machine.
fn engine(model: &Model) -> EngineModel {
    let program = program(model);
    let layout = ImageLayout::of(&program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    let weights = &model.checkpoint.weights;
    build_into(&program, &layout, weights, [0; 32], &mut bytes, &mut Team::new(1), &|_, _| true).unwrap();
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
    now: Duration,
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
}

impl Default for Setup {
    fn default() -> Self {
        Self { stages: 2, spares: 0, audit: 0.0, others: false, stateless: false, room: ROOM, memory: 1 << 40 }
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
            lap: Duration::from_secs(4),
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
            now: Duration::ZERO,
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
        self.stages.insert(key, Stage { session, worker: None, model, dead: false, frozen: false, fast });
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
        let frames: Vec<_> = self.queue.drain(..).collect();
        for (from, to, frame) in frames {
            self.deliver(from, to, frame);
        }
        if round.is_multiple_of(100) {
            for (key, stage) in &mut self.stages {
                if !stage.dead && !stage.frozen {
                    let (epoch, laps) = stage.session.pulse();
                    let beat = Message::Beat { epoch, laps, busy_ms: 0 };
                    self.queue.push_back((*key, HEAD, beat.encode()));
                }
            }
        }
        self.head.tick(now);
        let clock = || now;
        if let Some(worker) = &mut self.worker {
            self.head.work(worker, &clock);
        }
        for stage in self.stages.values_mut().filter(|stage| !stage.dead && !stage.frozen) {
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
            Action::Inject(_) | Action::Close { .. } | Action::Token { .. } | Action::Done => {}
        }
    }
}

fn maker(weights: &crate::checkpoint::Weights, fast: bool) -> Maker<'_> {
    Maker { weights, kernels: kernels(fast), threads: 1, backend: Backend::Cpu, cache: None, watch: &Unwatched }
}

#[test]
fn a_ring_writes_what_one_machine_writes() {
    for name in MODELS {
        let model = model(name);
        let prompts = prompts(&model, 3);
        let expected = alone(&model, &prompts, 7);
        let layers = model.checkpoint.spec.layers.len();
        for stages in 0..=4.min(layers - 1) {
            let asks = prompts.iter().map(|p| ask(p, 7)).collect();
            let mut ring = Ring::new(&model, &Setup { stages, ..Setup::default() }, asks);
            assert_eq!(ring.run().unwrap(), expected, "{name}, {stages} stages behind the head");
            assert_eq!(ring.head.plan().unwrap().stages.len(), stages + 1, "{name}");
            assert!(ring.stages.values_mut().all(|s| s.worker.as_mut().unwrap().held() == 0), "{name}: all is freed");
            assert!(ring.stages.values().all(|s| s.session.ended() == Some(&Ok(()))), "{name}");
        }
        println!("{name}: rings of 1..={} stages write what one machine writes", 5.min(layers));
    }
}

#[test]
fn laps_of_the_last_tokens_write_the_same_until_the_window_slides() {
    for name in ["given/qwen3", "demo"] {
        let model = model(name);
        let prompts = prompts(&model, 2);
        let room = Room { step_rows: 24, ..ROOM };
        let asks = prompts.iter().map(|p| ask(p, 5)).collect();
        let mut ring = Ring::new(&model, &Setup { stateless: true, room, ..Setup::default() }, asks);
        assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 5), "{name}");
        let acts = ring.wire.iter().filter(|(_, _, bytes)| bytes[..4] == (-23_i32).to_le_bytes()).count();
        // Two answers of five tokens, each lap three hops.
        assert_eq!(acts, 2 * 5 * 3, "{name}");
        // A window that slides goes on without end: every lap begins anew.
        let room = Room { step_rows: 4, ..ROOM };
        let asks = vec![ask(&prompts[1], 6)];
        let mut ring = Ring::new(&model, &Setup { stateless: true, room, ..Setup::default() }, asks);
        assert_eq!(ring.run().unwrap(), [of_last_tokens(&model, &prompts[1], 6, 4)], "{name}");
    }
}

#[test]
fn a_lost_stage_is_named_and_the_answer_goes_on_with_the_same_bits() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let expected = alone(&model, &prompts, 8);
    for (fault, named) in [
        ("kill@stage2:tok4", "stage 2 (0202020202), computing: the link is lost: closed"),
        ("stall@stage1:tok4", "stage 1 (0101010101), computing: stalled: it holds lap 4"),
        ("corrupt@stage1:tok4", "stage 1 (0101010101), computing: corrupt: stage 2 refuses what 0101010101 sent"),
        ("corrupt@stage2:tok4", "stage 2 (0202020202), computing: corrupted hop"),
    ] {
        // With a spare, and with nobody but those that are left.
        for spares in [0, 1] {
            let asks = prompts.iter().map(|p| ask(p, 8)).collect();
            let mut ring = Ring::new(&model, &Setup { spares, ..Setup::default() }, asks);
            let who = if fault.contains("stage1") { 1 } else { 2 };
            ring.inject(who, fault);
            assert_eq!(ring.run().unwrap(), expected, "{fault}: {:#?}", ring.said);
            let losses = ring.head.losses();
            assert_eq!(losses.len(), 1, "{fault}: {losses:?}");
            assert!(losses[0].starts_with(named), "{fault}: {losses:?}");
            assert!(ring.now < Duration::from_secs(9), "{fault}: {:?}", ring.now);
            let plans = ring.records.iter().filter(|e| matches!(e, Entry::Plan { .. })).count();
            assert_eq!(plans, 2, "{fault}");
        }
    }
    // A slow hop is no loss.
    let asks = prompts.iter().map(|p| ask(p, 8)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    ring.inject(1, "slow@tok2");
    assert_eq!((ring.run().unwrap(), ring.head.losses().len()), (expected, 0));
}

#[test]
fn without_memory_elsewhere_the_loss_ends_the_run_by_name() {
    let model = model("demo");
    let need = demand(&program(&model), ROOM).unwrap();
    let memory = need.ends + need.layers[0] + need.layers[1];
    let asks = vec![ask(&prompts(&model, 1)[0], 8)];
    let mut ring = Ring::new(&model, &Setup { stages: 1, memory, ..Setup::default() }, asks);
    ring.inject(1, "kill@tok3");
    let error = ring.run().unwrap_err();
    assert!(
        error.starts_with("stage 1 (0101010101), computing: the link is lost: closed; nobody can take its layers"),
        "{error}"
    );
    assert!(error.contains("cannot hold the model's"), "{error}");
}

#[test]
fn a_frozen_stage_is_lost_by_its_silence() {
    let model = model("demo");
    let prompts = prompts(&model, 1);
    let asks = vec![ask(&prompts[0], 30)];
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    for round in 0..14 {
        ring.round(round);
    }
    assert!(ring.head.ended().is_none());
    ring.stages.get_mut(&[2; 32]).unwrap().frozen = true;
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 30));
    assert!(
        ring.head.losses()[0].contains("stage 2 (0202020202), computing: no sign of life for 2.0 s"),
        "{:?}",
        ring.head.losses()
    );
}

#[test]
fn duplicates_and_late_hops_are_dropped() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 6)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    let mut old: Vec<Message> = Vec::new();
    ring.bend = Box::new(move |_, to, message| {
        if !matches!(message, Message::Hop(_)) {
            return vec![message];
        }
        // Each hop twice, and one of long ago behind it.
        let mut all = vec![message.clone(), message.clone()];
        all.extend(
            old.iter()
                .rev()
                .find(|m| matches!((m, &message), (Message::Hop(a), Message::Hop(b)) if a.next == b.next))
                .cloned(),
        );
        let _ = to;
        old.push(message);
        all
    });
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 6));
    assert!(ring.said.iter().any(|text| text.contains("a duplicate; dropped")), "{:?}", ring.said);
}

#[test]
fn a_device_refuses_a_plan_of_other_figures_and_says_whose() {
    let model = model("demo");
    let asks = || vec![ask(&[1, 2, 3], 2)];
    for (field, says) in [
        ("capacity", "plan: the plan was made with the capacity 11 of device 0202020202; this device heard 10"),
        ("layers", "plan: stage 0 is layers 0..4"),
        ("model", "is not the one that"),
    ] {
        let mut ring = Ring::new(&model, &Setup::default(), asks());
        ring.bend = Box::new(move |_, to, message| match message {
            Message::Assign(mut assign) if *to == [2; 32] => {
                match field {
                    "capacity" => assign.plan.devices[2].capacity = 11.0,
                    "layers" => {
                        let ranges = [0..4, 4..5, 5..8];
                        assign.plan.stages.iter_mut().zip(ranges).for_each(|(s, layers)| s.layers = layers);
                        assign.layers = 5..8;
                    }
                    _ => assign.numerics = assign.numerics.replace("two_limbs", "one_limb"),
                }
                vec![Message::Assign(assign)]
            }
            message => vec![message],
        });
        let error = ring.run().unwrap_err();
        assert!(error.contains("stage 2 (0202020202), loading:") && error.contains(says), "{field}: {error}");
    }
}

#[test]
fn another_model_a_wrong_ticket_and_a_wrong_probe_are_refused_by_name() {
    let (own, other) = (model("demo"), model("given/qwen3"));
    let mut ring = Ring::new(&own, &Setup { stages: 1, ..Setup::default() }, vec![ask(&[1, 2], 2)]);
    ring.stages.clear();
    ring.join(1, 1.0, Some(&[1; 32]), &own);
    for round in 0..10 {
        ring.round(round);
    }
    let refused = ring.stages[&[1; 32]].session.ended().unwrap().as_ref().unwrap_err().to_string();
    assert!(refused.contains("ticket: device 0101010101 is refused: its key is not on the roster"), "{refused}");
    let head = ring.head.ended();
    assert!(head.is_none(), "the head waits on: {head:?}");
    ring.bend = Box::new(|_, _, message| match message {
        Message::Hello(hello) => vec![Message::Hello(Hello { probe: [0; 32], ..hello })],
        message => vec![message],
    });
    ring.join(2, 1.0, Some(&SECRET), &own);
    for round in 0..10 {
        ring.round(round);
    }
    let refused = ring.stages[&[2; 32]].session.ended().unwrap().as_ref().unwrap_err().to_string();
    assert!(
        refused.contains("probe: device 0202020202 is refused: its kernel probe 0000000000000000 is not"),
        "{refused}"
    );
    ring.bend = Box::new(|_, _, message| vec![message]);
    ring.join(3, 1.0, Some(&SECRET), &other);
    let error = ring.run().unwrap_err();
    assert!(
        error.contains("stage 1 (0303030303), loading: model: the copy on this device has the tensor index"),
        "{error}"
    );
}

#[test]
fn a_hop_of_another_model_is_refused_as_that_and_not_as_corrupted() {
    let model = model("demo");
    let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&[1, 2, 3], 4)]);
    ring.bend = Box::new(|from, _, message| match message {
        Message::Hop(hop) if *from == HEAD => {
            vec![Message::Hop(crate::pipeline::wire::Hop { model: hop.model ^ 1, ..hop })]
        }
        message => vec![message],
    });
    // Nobody is left in the end but the head, which needs no hop.
    let _ = ring.run().unwrap();
    let losses = ring.head.losses();
    assert!(losses[0].contains("model-mismatch: stage 1 holds a slice of model"), "{losses:?}");
    assert!(losses.iter().all(|text| !text.contains("corrupt")), "{losses:?}");
}

#[test]
fn nothing_secret_is_on_the_wire() {
    let model = model("demo");
    let tokenizer = model.tokenizer().unwrap();
    let text = "The quick brown fox jumped over the sleeping dog";
    let prompt = tokenizer.encode(text, true).unwrap();
    let mut ring = Ring::new(&model, &Setup { audit: 1.0, ..Setup::default() }, vec![ask(&prompt, 5)]);
    ring.run().unwrap();
    let weights = model.file("model.safetensors").unwrap().unwrap();
    let ids: Vec<u8> = prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(ring.wire.len() > 40);
    for (_, _, bytes) in &ring.wire {
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(text.as_bytes()) && !holds(b"quick brown") && !holds(&ids[..16]), "a prompt");
        assert!(!holds(&SECRET), "the ticket's secret");
        // Pieces of 32 bytes, from all over the file of weights.
        for piece in weights[weights.len() / 2..].chunks(32).step_by(4096).filter(|piece| piece.len() == 32) {
            assert!(piece.iter().all(|b| *b == 0) || !holds(piece), "a weight");
        }
    }
    // An assignment says what to hold; it is as short as names are.
    let longest = ring.wire.iter().filter(|(_, _, b)| b[..4] == (-21_i32).to_le_bytes()).map(|(_, _, b)| b.len()).max();
    assert!(longest.is_some_and(|len| len < weights.len() / 20), "{longest:?} of {}", weights.len());
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

#[test]
fn an_altered_weight_passes_the_hashes_and_is_caught_by_the_audit() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let expected = alone(&model, &prompts, 12);
    let (_folder, altered) = altered(4);
    let asks = prompts.iter().map(|p| ask(p, 12)).collect();
    let mut ring = Ring::new(&model, &Setup { audit: 1.0, ..Setup::default() }, asks);
    let stage = ring.stages.get_mut(&[1; 32]).unwrap();
    stage.model = &altered;
    let written = ring.run().unwrap();
    assert!(ring.head.losses().is_empty(), "nothing on the wire shows it");
    let ranges = ring.head.plan().unwrap().ranges();
    assert!(ranges[1].contains(&4), "{ranges:?}");
    let mut workers = maker(&model.checkpoint.weights, true).all(&ring.program, &ranges, ROOM).unwrap();
    let audited = ring.head.audited();
    assert_eq!(audited.len(), 4, "two answers on two stages");
    for audited in &audited {
        let worker = &mut workers[audited.stage as usize].worker;
        let found = judge(audited, &replay(audited, worker).unwrap(), worker.width());
        match audited.stage {
            1 => assert!(matches!(found, Finding::Wrong { position: 0, lap: 0 }), "{found:?}"),
            _ => assert!(matches!(found, Finding::Right { rows } if rows > 12), "{found:?}"),
        }
    }
    // The differential check: tokens of the ring against those of one machine with the right weights.
    println!("the altered ring writes the same tokens: {}", written == expected);
}

#[test]
fn another_device_replays_and_the_blame_is_the_same() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let (_folder, altered) = altered(4);
    let width = model.checkpoint.spec.hidden;
    for wrong in [None, Some(1), Some(2)] {
        let asks = prompts.iter().map(|p| ask(p, 6)).collect();
        let setup = Setup { audit: 1.0, others: true, ..Setup::default() };
        let mut ring = Ring::new(&model, &setup, asks);
        wrong.iter().for_each(|stage| ring.stages.get_mut(&[*stage; 32]).unwrap().model = &altered);
        ring.run().unwrap();
        let audited = ring.head.audited();
        assert_eq!(audited.len(), 4, "two answers on two stages");
        for audited in &audited {
            let (by, traces) = ring.head.replayed(audited.sequence, audited.stage).unwrap();
            // The other one of the two stages.
            assert_eq!(by, [3 - audited.stage as u8; 32]);
            let found = judge(audited, traces, width);
            // Layer 4 is stage 1's: whoever of the two has it altered, they differ about stage 1 and agree about stage 2.
            match (wrong, audited.stage) {
                (Some(_), 1) => assert!(matches!(found, Finding::Wrong { position: 0, lap: 0 }), "{found:?}"),
                _ => assert!(matches!(found, Finding::Right { rows } if rows >= 6), "{wrong:?}: {found:?}"),
            }
        }
        assert!(ring.stages.values().all(|s| s.session.ended() == Some(&Ok(()))), "{wrong:?}");
    }
}

#[test]
fn after_a_loss_the_audit_is_of_the_ring_that_wrote_the_answer() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    for others in [false, true] {
        let asks = prompts.iter().map(|p| ask(p, 8)).collect();
        let mut ring = Ring::new(&model, &Setup { stages: 3, audit: 1.0, others, ..Setup::default() }, asks);
        ring.inject(1, "kill@tok4");
        assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 8), "{:#?}", ring.said);
        let ranges = ring.head.plan().unwrap().ranges();
        assert_eq!(ranges.len(), 3);
        let mut workers = maker(&model.checkpoint.weights, true).all(&ring.program, &ranges, ROOM).unwrap();
        let audited = ring.head.audited();
        assert_eq!(audited.len(), 4, "two answers on two stages");
        for audited in &audited {
            let worker = &mut workers[audited.stage as usize].worker;
            let traces = match ring.head.replayed(audited.sequence, audited.stage) {
                Some((_, traces)) => traces.to_vec(),
                None => replay(audited, worker).unwrap(),
            };
            assert_eq!(ring.head.replayed(audited.sequence, audited.stage).is_some(), others);
            let found = judge(audited, &traces, worker.width());
            assert!(matches!(found, Finding::Right { rows } if rows >= 8), "{found:?}");
        }
    }
}

#[test]
fn a_device_that_dies_while_it_replays_leaves_the_audit_to_the_head() {
    let model = model("demo");
    let setup = Setup { audit: 1.0, others: true, ..Setup::default() };
    let mut ring = Ring::new(&model, &setup, vec![ask(&[1, 2, 3], 4)]);
    ring.bend = Box::new(|_, to, message| match message {
        // Whoever is to replay stage 1 never hears of it, and falls silent.
        Message::Replay { stage: 1, .. } if *to == [2; 32] => vec![],
        message => vec![message],
    });
    let mut round = 0;
    while ring.said.iter().all(|text| !text.contains("replays what stage 1")) {
        round += 1;
        assert!(round < 20_000, "{:#?}", ring.said);
        ring.round(round);
    }
    ring.stages.get_mut(&[2; 32]).unwrap().frozen = true;
    assert_eq!(ring.run().unwrap()[0].len(), 4, "the answer is written");
    assert!(ring.said.iter().any(|text| text.contains("does not replay stage 1: it is lost")), "{:#?}", ring.said);
    assert!(ring.head.replayed(0, 1).is_none() && ring.head.replayed(0, 2).is_some());
    assert_eq!(ring.head.audited().len(), 2);
}

#[test]
fn a_rebuilt_state_that_differs_is_not_continued() {
    let model = model("demo");
    let (_folder, altered) = altered(6);
    let prompts = prompts(&model, 1);
    let mut ring = Ring::new(&model, &Setup { stages: 2, spares: 1, ..Setup::default() }, vec![ask(&prompts[0], 9)]);
    // The spare takes the lost stage's layers with other weights.
    ring.stages.get_mut(&[3; 32]).unwrap().model = &altered;
    ring.inject(2, "kill@tok4");
    let error = ring.run().unwrap_err();
    assert!(
        error.contains("computing: the hidden row that it gave at position 0")
            && error.contains("not the recorded one"),
        "{error}"
    );
}

#[test]
fn a_head_without_layers_holds_both_ends() {
    let model = model("demo");
    let need = demand(&program(&model), ROOM).unwrap();
    let prompts = prompts(&model, 1);
    let mut ring = Ring::new(&model, &Setup { memory: need.ends, ..Setup::default() }, vec![ask(&prompts[0], 6)]);
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 6));
    assert_eq!(ring.head.plan().unwrap().ranges(), [0..0, 0..4, 4..8]);
}

#[test]
fn a_cancelled_answer_ends_and_frees_its_state() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 20)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    for round in 0..20 {
        ring.round(round);
    }
    ring.head.cancel(0);
    let written = ring.run().unwrap();
    assert_eq!(ring.head.outcomes()[0].ending, Ending::Interrupted);
    assert!(written[0].len() < 20);
    assert_eq!(written[1], alone(&model, &prompts, 20)[1]);
    assert!(ring.stages.values_mut().all(|s| s.worker.as_mut().unwrap().held() == 0));
}
