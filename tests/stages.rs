//! Pipeline stages on one machine: a program cut by layers, each stage over an image of its own tensors alone and with the
//! states of its own layers alone, gives the unsplit run's bits, for any plan and any mix of the units' forms.

use crate::support::{model, program};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use wordline::model::Model;
use wordline_engine::image::{ImageError, build_into};
use wordline_engine::team::Team;
use wordline_engine::{Capacity, EngineModel, Image, ImageLayout, Kernels, ModelError, Row, SeqId, Sequencer};
use wordline_ir::{Cut, Program, Slot, TensorId};
use wordline_lowering::split::{Stage, join, split};

/// Every kind of model: hybrid, with learned positions, windowed and not with two rotary bases, with a mixture of experts.
const MODELS: [&str; 10] = [
    "demo",
    "given/gemma3",
    "given/gpt2",
    "given/llama",
    "given/mistral",
    "given/phi3",
    "given/qwen2",
    "given/qwen3",
    "given/qwen3_5",
    "given/qwen3_next",
];

const CAPACITY: Capacity = Capacity { ctx: 32, step_rows: 16 };
const PROMPT: usize = 12;
const STEPS: usize = 8;

/// Every second stage computes on the mirrors: no backend shows in a bit.
fn kernels(stage: usize) -> Kernels {
    static FORMS: OnceLock<[Kernels; 2]> = OnceLock::new();
    FORMS.get_or_init(|| [Kernels::new().unwrap(), Kernels::mirror().unwrap()])[stage % 2].clone()
}

/// As even as layers go, for each number of stages; and uneven ones, one with a head that holds the ends alone.
fn plans(layers: usize) -> Vec<Vec<Range<usize>>> {
    let mut plans: Vec<Vec<Range<usize>>> =
        (1..=layers).map(|n| (0..n).map(|stage| stage * layers / n..(stage + 1) * layers / n).collect()).collect();
    for borders in [vec![0], vec![1], vec![layers - 1], vec![1, 3], vec![0, 1, layers - 1]] {
        let ends = borders.iter().copied().chain([layers]);
        let starts = [0].into_iter().chain(borders.iter().copied());
        plans.push(starts.zip(ends).map(|(start, end)| start..end).collect());
    }
    // Of few layers some of these leave a stage with none.
    plans.retain(|plan| plan.iter().skip(1).all(|layers| !layers.is_empty()));
    plans.sort_by_key(|plan| (plan.len(), plan[0].end));
    plans.dedup();
    plans
}

/// The weight image with the tensors that this program's commands name.
fn image(model: &Model, program: &Program) -> Arc<Image> {
    let layout = ImageLayout::of_used(program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    let weights = &model.checkpoint.weights;
    build_into(program, &layout, weights, [0; 32], &mut bytes, &mut Team::new(2), &|_, _| true).unwrap();
    Arc::new(Image::open_used(program, bytes, None).unwrap())
}

fn engine(program: &Program, image: &Arc<Image>, kernels: Kernels) -> Result<EngineModel, ModelError> {
    EngineModel::int8(Sequencer::new(program).unwrap(), CAPACITY, image.clone(), kernels, 1)
}

/// A stage at work: its engine, and its sequence.
struct Worker {
    engine: EngineModel,
    seq: SeqId,
}

impl Worker {
    fn new(program: &Program, image: &Arc<Image>, kernels: Kernels) -> Self {
        let mut engine = engine(program, image, kernels).unwrap();
        let seq = engine.open();
        Self { engine, seq }
    }

    fn rows(&self, tokens: &[u32]) -> Vec<Row> {
        tokens.iter().map(|&token| Row { seq: self.seq, token, logits: false }).collect()
    }
}

/// The stages of a plan. The head's two ends share its image: what runs before its hop, and the readout behind the last
/// stage's.
struct Ring {
    stages: Vec<Worker>,
    readout: Worker,
    /// Values of each hop: bits, as they travel.
    hops: Vec<usize>,
}

impl Ring {
    fn new(model: &Model, stages: &[Stage]) -> Self {
        let head = &stages[0];
        let (before, after) = head.program.commands.split_at(head.before_hop);
        let readout = Program {
            commands: after.to_vec(),
            identity: wordline_ir::Identity {
                // The readout holds no layers.
                cut: Cut { first_layer: 0, last_layer: 0, ..head.program.identity.cut },
                ..head.program.identity.clone()
            },
            ..head.program.clone()
        };
        let head_image = image(model, &head.program);
        let before = Program { commands: before.to_vec(), ..head.program.clone() };
        let mut workers = vec![Worker::new(&before, &head_image, kernels(0))];
        workers.extend(
            stages
                .iter()
                .enumerate()
                .skip(1)
                .map(|(i, stage)| Worker::new(&stage.program, &image(model, &stage.program), kernels(i))),
        );
        Self { stages: workers, readout: Worker::new(&readout, &head_image, kernels(0)), hops: Vec::new() }
    }

    /// One lap: the tokens' rows through every stage; logits of the last row, as bits.
    fn lap(&mut self, tokens: &[u32]) -> Vec<u32> {
        self.hops.clear();
        let mut hop: Vec<u32> = Vec::new();
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let rows = stage.rows(tokens);
            let nothing = if i == 0 {
                stage.engine.step(&rows).unwrap().is_empty()
            } else {
                let hidden: Vec<f32> = hop.iter().map(|bits| f32::from_bits(*bits)).collect();
                stage.engine.step_hidden(&rows, &hidden).unwrap().is_empty()
            };
            assert!(nothing, "stage {i} gives no logits");
            hop = stage.engine.hidden().iter().map(|v| v.to_bits()).collect();
            self.hops.push(hop.len());
        }
        let hidden: Vec<f32> = hop.iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut rows = self.readout.rows(tokens);
        rows.last_mut().unwrap().logits = true;
        let before = self.readout.engine.counters().head_rows;
        let logits = self.readout.engine.step_hidden(&rows, &hidden).unwrap();
        assert_eq!(logits.len(), 1);
        let bits = logits.row(0).unwrap().iter().map(|l| l.to_bits()).collect();
        assert_eq!(
            self.readout.engine.counters().head_rows - before,
            1,
            "the head reads out one row of {}",
            rows.len()
        );
        bits
    }

    /// End the sequence on every stage and begin another.
    fn restart(&mut self) {
        for worker in self.stages.iter_mut().chain([&mut self.readout]) {
            assert!(worker.engine.release(worker.seq));
            assert_eq!(worker.engine.length(worker.seq), None, "what is released is gone");
            worker.seq = worker.engine.open();
        }
    }

    /// The states of all stages, in the layers' order.
    fn state(&self) -> Vec<u64> {
        self.stages.iter().flat_map(|w| w.engine.state_bits(w.seq).unwrap()).collect()
    }
}

/// Token ids of a prompt and the greedy steps after it, the logits of each of those positions, and the last state.
struct Unsplit {
    ids: Vec<u32>,
    logits: Vec<Vec<u32>>,
    state: Vec<u64>,
}

fn unsplit(model: &Model, program: &Program) -> Unsplit {
    let mut worker = Worker::new(program, &image(model, program), kernels(0));
    let vocab = model.checkpoint.spec.vocab as u32;
    let mut ids: Vec<u32> = (1..=PROMPT as u32).map(|i| i * 7919 % vocab).collect();
    let (mut logits, mut from) = (Vec::new(), 0);
    for _ in 0..=STEPS {
        let mut rows = worker.rows(&ids[from..]);
        rows.last_mut().unwrap().logits = true;
        let step = worker.engine.step(&rows).unwrap();
        let row = step.row(0).unwrap();
        from = ids.len();
        ids.push((0..vocab).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap());
        logits.push(row.iter().map(|l| l.to_bits()).collect());
    }
    ids.pop();
    Unsplit { ids, logits, state: worker.engine.state_bits(worker.seq).unwrap() }
}

#[test]
fn any_plan_gives_the_unsplit_runs_bits() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let whole = unsplit(&model, &program);
        let width = program.width(Slot::X).unwrap();
        let plans = plans(program.layers());
        for plan in &plans {
            let stages = split(&program, plan).unwrap();
            let mut ring = Ring::new(&model, &stages);
            let fresh = ring.state();
            assert!(ring.lap(&whole.ids[..PROMPT]) == whole.logits[0], "{name} {plan:?}: the prompt");
            assert!(ring.hops.iter().all(|values| *values == PROMPT * width), "{name} {plan:?}: {:?}", ring.hops);
            for step in 1..=STEPS {
                let at = PROMPT + step - 1;
                assert!(ring.lap(&whole.ids[at..=at]) == whole.logits[step], "{name} {plan:?}: step {step}");
            }
            // Each stage holds the states of its own layers: together they are the whole's.
            assert!(ring.state() == whole.state, "{name} {plan:?}: the states differ");
            ring.restart();
            assert!(ring.state() == fresh, "{name} {plan:?}: a released sequence leaves something behind");
        }
        println!("{name}: {} plans of 1..={} stages give the unsplit bits", plans.len(), program.layers());
    }
}

#[test]
fn laps_that_embed_every_token_again_give_the_bits_of_laps_of_one_row() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let whole = unsplit(&model, &program);
        let layers = program.layers();
        let stages = split(&program, &[0..layers / 2, layers / 2..layers]).unwrap();
        let mut ring = Ring::new(&model, &stages);
        for (step, logits) in whole.logits.iter().enumerate().take(4) {
            ring.restart();
            assert!(ring.lap(&whole.ids[..PROMPT + step]) == *logits, "{name}: step {step}");
        }
    }
}

#[test]
fn a_stage_holds_its_own_tensors_and_computes_with_no_others() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        for plan in plans(program.layers()) {
            let stages = split(&program, &plan).unwrap();
            // The stages' words, one after the other, are the whole's.
            assert_eq!(join(&stages), program.commands, "{name} {plan:?}");
            let mut held = vec![0; program.tensors.len()];
            for stage in &stages {
                let layout = ImageLayout::of_used(&stage.program).unwrap();
                let ids = (0..held.len()).filter_map(TensorId::new).filter(|id| layout.place(*id).is_some());
                let ids: Vec<TensorId> = ids.collect();
                assert_eq!(ids, stage.tensors, "{name} {plan:?}");
                ids.iter().for_each(|id| held[id.index()] += 1);
            }
            assert!(held.iter().all(|n| *n == 1), "{name} {plan:?}: each tensor is on one stage: {held:?}");
        }
        let layers = program.layers();
        let stages = split(&program, &[0..1, 1..layers]).unwrap();
        let foreign = image(&model, &stages[0].program);
        let error = engine(&stages[1].program, &foreign, kernels(0)).unwrap_err();
        assert!(matches!(error, ModelError::Image(ImageError::Missing { .. })), "{name}: {error}");
    }
}
