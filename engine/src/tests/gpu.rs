//! On a graphics device every bit is the processor's: logits, states, errors. Without a device these tests say nothing.

use super::programs::{self, Rng};
use super::{Bits, Kind, SEED, capacity, engine, engine_of, kernels, open, run};
use crate::{Capacity, EngineModel, Row, Sequencer, StepError};
use std::sync::LazyLock;
use wordline_ir::{Command, Program, Slot, WeightFormat};
use wordline_kernels::gpu::device::Patch;
use wordline_kernels::gpu::{Choice, Gpu, Method};

fn device() -> Option<Gpu> {
    static DEVICE: LazyLock<Option<Gpu>> = LazyLock::new(|| Gpu::open(&Choice::Best).ok());
    DEVICE.clone()
}

fn on(gpu: Gpu, methods: &[Method], sequencer: Sequencer, capacity: Capacity) -> EngineModel {
    let image = open(sequencer.program(), &programs::weights(sequencer.program(), SEED));
    EngineModel::gpu(sequencer, capacity, image, (gpu, methods), kernels(), 1).unwrap()
}

/// The engines on the device, one a method; a method that did not pass its gate would have said so.
fn engines(program: &Program, capacity: Capacity) -> Vec<EngineModel> {
    let Some(gpu) = device() else { return Vec::new() };
    let engine = |method| {
        let mut engine = on(gpu.clone(), &[method], Sequencer::new(program).unwrap(), capacity);
        assert_eq!(engine.notices(), Vec::<String>::new());
        engine
    };
    Method::ALL.into_iter().map(engine).collect()
}

#[test]
fn a_run_on_the_device_has_the_processors_bits() {
    for (name, program) in programs::all() {
        let tokens = Rng(21).tokens(90, 75);
        let mut cpu = engine(Kind::Int8, &program, capacity(128), 1);
        let seq = cpu.open();
        let (want, state) = (run(&mut cpu, seq, &tokens, &[1]), cpu.state_bits(seq));
        for mut gpu in engines(&program, capacity(128)) {
            for steps in [&[1][..], &[40, 1, 7]] {
                let seq = gpu.open();
                assert_eq!(run(&mut gpu, seq, &tokens, steps), want, "{name}, steps of {steps:?}");
                assert_eq!(gpu.state_bits(seq), state, "{name}, steps of {steps:?}");
                gpu.release(seq);
            }
            assert_eq!(gpu.notices(), Vec::<String>::new());
        }
    }
}

#[test]
fn four_bit_weights_have_the_processors_bits() {
    for (name, program) in [("hybrid", programs::hybrid()), ("moe", programs::moe())] {
        for weights in [WeightFormat::Code4, WeightFormat::E2m1] {
            let mut program = program.clone();
            program.identity.numerics.weights = weights;
            let tokens = Rng(25).tokens(20, 75);
            let mut cpu = engine(Kind::Int8, &program, capacity(64), 1);
            let seq = cpu.open();
            let (want, state) = (run(&mut cpu, seq, &tokens, &[1]), cpu.state_bits(seq));
            for mut gpu in engines(&program, capacity(64)) {
                for steps in [&[1][..], &[9, 3]] {
                    let seq = gpu.open();
                    assert_eq!(run(&mut gpu, seq, &tokens, steps), want, "{name}, {weights:?}, steps of {steps:?}");
                    assert_eq!(gpu.state_bits(seq), state, "{name}, {weights:?}, steps of {steps:?}");
                    gpu.release(seq);
                }
                assert_eq!(gpu.notices(), Vec::<String>::new());
            }
        }
    }
}

#[test]
fn sequences_of_a_batch_keep_apart_on_the_device() {
    for (name, program) in programs::all() {
        let tokens = Rng(22).tokens(60, 75);
        let mut models = engines(&program, capacity(64));
        models.insert(0, engine(Kind::Int8, &program, capacity(64), 1));
        let mut found: Vec<(Bits, Vec<Option<Vec<u64>>>)> = Vec::new();
        for model in &mut models {
            let seqs = [model.open(), model.open(), model.open()];
            let mut bits = Bits::default();
            // More rows than run together in one pass, some of them without logits, sequences mixed.
            let mut rows: Vec<Row> = Vec::new();
            for (i, token) in tokens.iter().enumerate() {
                let at = |k: usize| Row { seq: seqs[k], token: *token, logits: (i + k).is_multiple_of(3) };
                rows.extend([at(i % 2), at(2)]);
            }
            bits.extend(model.step(&rows[..100]).unwrap().values());
            model.reset(seqs[1]);
            bits.extend(model.step(&rows[100..]).unwrap().values());
            let later = Row { seq: seqs[1], token: 5, logits: true };
            bits.extend(model.step(&[later]).unwrap().values());
            found.push((bits, seqs.iter().map(|seq| model.state_bits(*seq)).collect()));
        }
        assert!(found.iter().all(|of| *of == found[0]), "{name}");
    }
}

#[test]
fn long_views_have_the_processors_bits() {
    for (name, program) in [("dense", programs::dense()), ("windowed", programs::windowed())] {
        let tokens = Rng(23).tokens(1100, 75);
        let room = Capacity { ctx: 1200, step_rows: 256 };
        let mut found = Vec::new();
        let mut models = engines(&program, room);
        models.truncate(1);
        models.insert(0, engine(Kind::Int8, &program, room, 2));
        for model in &mut models {
            let seq = model.open();
            let mut bits = Bits::default();
            bits.extend(model.prefill(seq, &tokens).unwrap().values());
            bits.extend(model.step(&[Row { seq, token: 7, logits: true }]).unwrap().values());
            found.push((bits, model.state_bits(seq)));
        }
        assert!(found.iter().all(|of| *of == found[0]), "{name}");
    }
}

#[test]
fn a_fault_on_the_device_names_the_command_that_the_processor_names() {
    let program = programs::dense();
    let width = program.width(Slot::X).unwrap();
    let commands = program.commands.iter().filter(|c| !matches!(c, Command::Embed { .. })).copied().collect();
    let inside = Program { commands, ..program };
    let fail = |mut model: EngineModel| -> StepError {
        let seq = model.open();
        let rows: Vec<Row> = (0..70).map(|_| Row { seq, token: 0, logits: true }).collect();
        let mut hidden = vec![0.5; rows.len() * width];
        (hidden[66 * width + 3], hidden[68 * width]) = (f32::NAN, f32::INFINITY);
        let error = model.step_hidden(&rows, &hidden).unwrap_err();
        assert!(matches!(model.step_hidden(&rows[..1], &hidden[..width]), Err(StepError::Poisoned { .. })));
        model.reset(seq);
        assert!(model.step_hidden(&rows[..1], &hidden[..width]).is_ok());
        error
    };
    let room = Capacity { ctx: 128, step_rows: 128 };
    let want = fail(engine_of(Kind::Int8, Sequencer::unverified(inside.clone()), room, 1));
    assert!(want.to_string().contains("matvec"), "{want}");
    if let Some(gpu) = device() {
        assert_eq!(fail(on(gpu, &[Method::Dp4a], Sequencer::unverified(inside), room)), want);
    }
}

#[test]
fn a_device_that_computes_wrongly_hands_the_work_down_and_says_so() {
    // Packed dot products that are off by one for one operand.
    let wrong = |s: &str| {
        s.replace("return dot4I8Packed(x, y);", "return dot4I8Packed(x, y) + select(0, 1, y == 0x01020304u || x == y);")
    };
    let Ok(gpu) = Gpu::open_patched(&Choice::Best, Some(wrong)) else { return };
    let program = programs::dense();
    let tokens = Rng(24).tokens(9, 75);
    let mut cpu = engine(Kind::Int8, &program, capacity(64), 1);
    let seq = cpu.open();
    let want = run(&mut cpu, seq, &tokens, &[3]);
    let mut model = on(gpu, &[Method::Dp4a], Sequencer::new(&program).unwrap(), capacity(64));
    let notices = model.notices();
    assert!(
        notices.len() == 1 && notices[0].contains("gpu-dp4a") && notices[0].contains("cpu computes"),
        "{notices:?}"
    );
    let seq = model.open();
    assert_eq!(run(&mut model, seq, &tokens, &[3]), want);
}

/// Faults that no gate meets, because each shows in one shape of its program alone: the audit finds the command before its
/// step's results are given out, names it, and the run goes on with the right bits on the next backend.
#[test]
fn a_command_that_is_wrong_in_a_run_is_found_and_named_and_the_run_goes_on() {
    type Fault = (&'static str, Program, Patch, &'static str, &'static str);
    let faults: [Fault; 7] = [
        (
            "a row of the head",
            programs::dense(),
            |s| {
                let wrong = "y[OFFSET + token * STRIDE + m] = bitcast<f32>(bitcast<u32>(v) ^ select(0u, 1u, m == 7u));";
                if s.contains("const ROWS: u32 = 75u;") {
                    s.replace("y[OFFSET + token * STRIDE + m] = v;", wrong)
                } else {
                    s.to_owned()
                }
            },
            "matvec",
            "cpu",
        ),
        (
            "the same by packed products alone",
            programs::dense(),
            |s| {
                let wrong =
                    "y[OFFSET + token * STRIDE + m] = bitcast<f32>(bitcast<u32>(v) ^ select(0u, 1u, m == 74u));";
                let here = s.contains("const ROWS: u32 = 75u;") && s.contains("dot4I8Packed");
                if here { s.replace("y[OFFSET + token * STRIDE + m] = v;", wrong) } else { s.to_owned() }
            },
            "matvec",
            "gpu-lut",
        ),
        (
            "a row of an expert",
            programs::moe(),
            |s| {
                let wrong = "y[OFFSET + token * STRIDE + m] = bitcast<f32>(bitcast<u32>(v) ^ select(0u, 1u, m == 3u));";
                let here = s.contains("const ROWS: u32 = 48u;") && s.contains("picks[pick]");
                if here { s.replace("y[OFFSET + token * STRIDE + m] = v;", wrong) } else { s.to_owned() }
            },
            "routed",
            "cpu",
        ),
        (
            "an output of the convolution",
            programs::hybrid(),
            |s| {
                let wrong = "out[row * channels + c] = bitcast<f32>(bitcast<u32>(f_silu(s)) ^ select(0u, 1u, channels == 128u && c == 5u));";
                s.replace("out[row * channels + c] = f_silu(s);", wrong)
            },
            "conv",
            "cpu",
        ),
        (
            "an input that its ring keeps",
            programs::hybrid(),
            |s| {
                let wrong = "= bitcast<f32>(bitcast<u32>(input) ^ select(0u, 1u, channels == 128u && c == 127u)); }";
                s.replace("= input; }", wrong)
            },
            "conv",
            "cpu",
        ),
        (
            "what a memory gives",
            programs::hybrid(),
            |s| {
                let wrong = "= bitcast<f32>(bitcast<u32>(joined(c)) ^ select(0u, 1u, dk == 12u && j == 1u)); }";
                s.replace("= joined(c); }", wrong)
            },
            "delta",
            "cpu",
        ),
        (
            "what a memory keeps",
            programs::hybrid(),
            |s| {
                let wrong = "= bitcast<f32>(bitcast<u32>(s) ^ select(0u, 1u, dk == 12u && n == 2u));";
                s.replace("memory[s0 + n * dv] = s;", &format!("memory[s0 + n * dv] {wrong}"))
            },
            "delta",
            "cpu",
        ),
    ];
    for (name, program, patch, command, next) in faults {
        let Ok(gpu) = Gpu::open_patched(&Choice::Best, Some(patch)) else { return println!("skipped: no device") };
        let tokens = Rng(26).tokens(12, 75);
        let mut cpu = engine(Kind::Int8, &program, capacity(64), 1);
        let seq = cpu.open();
        let want = (run(&mut cpu, seq, &tokens, &[1]), cpu.state_bits(seq));
        for steps in [&[1][..], &[5, 1]] {
            let methods: &[Method] = if next == "cpu" { &[Method::Dp4a] } else { &Method::ALL };
            let mut model = on(gpu.clone(), methods, Sequencer::new(&program).unwrap(), capacity(64));
            assert_eq!(model.notices(), Vec::<String>::new(), "{name}: no gate meets it");
            let seq = model.open();
            let found = (run(&mut model, seq, &tokens, steps), model.state_bits(seq));
            assert_eq!(found, want, "{name}, steps of {steps:?}");
            let notices = model.notices();
            let says = |text: &str| notices.iter().any(|notice| notice.contains(text));
            assert!(
                says("gpu-dp4a: audit: command") && says(command) && says("computes from here on"),
                "{name}: {notices:?}"
            );
            assert!(model.form().starts_with(next), "{name}: {}", model.form());
        }
    }
}
