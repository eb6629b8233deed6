//! How near the units are to one another, and what they do with numbers they cannot hold.

use super::programs::{self, Rng};
use super::{Bits, Kind, capacity, engine, kernels, open, run};
use crate::{EngineModel, Kernels, Row, Sequencer, StepError};
use wordline_kernels::gate::Form;

/// The largest distance of logits, as a share of their spread.
fn distance(a: &Bits, b: &Bits) -> f64 {
    let value = |bits: &u64| f64::from(f32::from_bits(*bits as u32));
    let spread = a.0.iter().map(|v| value(v).abs()).fold(0.0, f64::max);
    a.0.iter().zip(&b.0).map(|(a, b)| (value(a) - value(b)).abs()).fold(0.0, f64::max) / spread
}

#[test]
fn int8_is_near_the_reference_and_is_not_it() {
    for (name, program) in programs::all() {
        let tokens = Rng(3).tokens(60, 75);
        let [reference, int8, baseline] = [Kind::Reference, Kind::Int8, Kind::Baseline].map(|kind| {
            let mut model = engine(kind, &program, capacity(64), 1);
            let seq = model.open();
            run(&mut model, seq, &tokens, &[10])
        });
        // Routing may pick another expert for a row: only where there is none are all rows near.
        let limit = if name == "moe" { 0.5 } else { 0.05 };
        for other in [&int8, &baseline] {
            let far = distance(&reference, other);
            assert!(far > 0.0 && far < limit, "{name}: {far}");
        }
    }
}

#[test]
fn the_mirrors_give_the_same_bits() {
    let mirror = Kernels::mirror().unwrap();
    assert_eq!(mirror.array.active(), Form::Mirror);
    for (name, program) in programs::all() {
        let tokens = Rng(4).tokens(50, 75);
        let [fast, plain] = [kernels(), mirror.clone()].map(|kernels| {
            let image = open(&program, &programs::weights(&program, super::SEED));
            let sequencer = Sequencer::new(&program).unwrap();
            let mut model = EngineModel::int8(sequencer, capacity(64), image, kernels, 1).unwrap();
            let seq = model.open();
            let bits = run(&mut model, seq, &tokens, &[7]);
            assert!(model.notices().is_empty(), "{name}");
            (bits, model.state_bits(seq))
        });
        assert_eq!(fast.0, plain.0, "{name}");
        assert!(fast.1 == plain.1, "{name}");
    }
}

/// Weights that make a value the array cannot take: the step fails by command and slot, the sequence refuses rows until
/// it is reset, others go on.
#[test]
fn a_value_without_int8_form_fails_the_step_by_name() {
    let program = programs::dense();
    let mut source = programs::weights(&program, super::SEED);
    // A norm weight that takes every row past the largest block scale.
    source.insert("l1.pre_ffn.norm", vec![3e37; 40]);
    let image = open(&program, &source);
    let mut model = EngineModel::int8(Sequencer::new(&program).unwrap(), capacity(64), image, kernels(), 2).unwrap();
    let (seq, other) = (model.open(), model.open());
    let row = |seq| Row { seq, token: 5, logits: true };
    let error = model.step(&[row(seq), row(seq)]).unwrap_err();
    let StepError::Command { index, mnemonic, layer, .. } = error else { panic!("{error}") };
    assert_eq!((mnemonic, layer.0), ("matvec", 1));
    assert!(matches!(program.commands[index], wordline_ir::Command::Matvec { x: wordline_ir::Slot::H, .. }));
    let text = error.to_string();
    assert!(text.contains("slot 'h'") && text.contains("layer 1"), "{text}");
    assert_eq!(model.step(&[row(seq)]).unwrap_err(), StepError::Poisoned { row: 0, seq });
    assert_eq!(model.step(&[row(other), row(seq)]).unwrap_err(), StepError::Poisoned { row: 1, seq });
    assert_eq!((model.length(seq), model.length(other)), (Some(0), Some(0)));
    assert!(model.reset(seq));
    assert!(matches!(model.step(&[row(seq)]), Err(StepError::Command { .. })));
}
