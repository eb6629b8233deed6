//! The audit judged: a form that goes wrong after the gate is found, and what recomputes is right.

use super::*;
use crate::attend::CacheLayout;
use crate::cpu::matvec::{ArrayForm, RowOut, Run};
use crate::format::{Cause, Lanes, Limbs};
use crate::matvec::{Acts, Matrix, MatrixLayout, TILE_ROWS};
use crate::probe::Seed;
use std::sync::atomic::AtomicBool;

/// A form that is right until it is spoilt, and then flips one bit of the first lane of row 13.
struct Spoilt(AtomicBool);

impl ArrayForm for Spoilt {
    fn form(&self) -> Form {
        Form::Vnni
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        Mirror.accumulate(run, rows, lanes);
        if self.0.load(Ordering::Relaxed) {
            for lane in lanes.iter_mut().step_by(run.lanes) {
                lane[13] = f32::from_bits(lane[13].to_bits() ^ 1 << 12);
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        Mirror.quantise(row, limbs, out)
    }
}

fn units() -> (Units, &'static Spoilt) {
    let form: &'static Spoilt = Box::leak(Box::new(Spoilt(AtomicBool::new(false))));
    (Units::of(&[form, &Mirror]).unwrap(), form)
}

#[test]
fn a_matvec_that_goes_wrong_is_found_and_recomputed() {
    let (units, form) = units();
    let seed = &mut Seed::new(5);
    let layout = MatrixLayout::new(30, 70).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
        let values: Vec<f32> = (0..layout.tile_rows(tile).len() * 70).map(|_| seed.value()).collect();
        layout.pack_tile(tile, &values, out).unwrap();
    }
    let x: Vec<f32> = (0..20 * 70).map(|_| seed.value()).collect();
    let mut acts = Acts::new();
    acts.quantise(&units, &x, 70, 20, 70, Limbs::Two).unwrap();
    let call = Matvec::new(Matrix::new(layout, &bytes).unwrap(), &acts, None, Lanes::default()).unwrap();
    let audit = Audit::new(10);
    let mut y = vec![0.0; 20 * 30];
    let mut run = |audit: &Audit, units: &Units| {
        let mut out = OutTiles::new(&mut y, &layout, 20, 0, 30).unwrap();
        call.run(units, &mut out).unwrap();
        audit.matvec(units, &call, &out)
    };
    for _ in 0..9 {
        run(&audit, &units).unwrap();
    }
    assert_eq!(audit.checks(), 1, "the first of nine");
    form.0.store(true, Ordering::Relaxed);
    // The tenth call is a sample; its tile and row hold the wrong element.
    let mismatch = run(&audit, &units).unwrap_err();
    assert_eq!((mismatch.by, mismatch.row, mismatch.element), (Culprit::Array(Form::Vnni), 1, 29));
    assert_ne!(mismatch.given.to_bits(), mismatch.expected.to_bits());
    // A fresh audit sees the shape for the first time.
    assert!(run(&Audit::new(0), &units).is_err());
    assert_eq!(units.demote(Form::Vnni, &mismatch.to_string()), Ok(Form::Mirror));
    run(&Audit::new(0), &units).unwrap();
}

#[test]
fn an_attention_that_goes_wrong_is_found() {
    let (units, form) = units();
    let seed = &mut Seed::new(6);
    let mut cache = Cache::new(CacheLayout::new(1, 40, 40, None).unwrap());
    for _ in 0..50 {
        let kv: Vec<f32> = (0..80).map(|_| seed.value()).collect();
        cache.append(&kv[..40], &kv[40..]).unwrap();
    }
    let q: Vec<f32> = (0..80).map(|_| seed.value()).collect();
    let attend = Attend { window: None, cap: None, queries: Limbs::Two, probs: Limbs::Two, lanes: Lanes::default() };
    let queries = Queries { kv_head: 0, position: 49, q: &q };
    let (vector, scratch) = (VectorUnit::new(), &mut Scratch::default());
    let mut out = vec![0.0; 80];
    let audit = Audit::new(2);
    for (wrong, checks) in [(false, 1), (false, 2), (true, 2), (true, 3)] {
        form.0.store(wrong, Ordering::Relaxed);
        attend.group(&units, &vector, &cache, 0, 49, &q, &mut out, scratch).unwrap();
        let result = audit.attend(&units, &vector, &attend, &cache, queries, &out, scratch);
        let by = result.as_ref().err().map(|mismatch| mismatch.by);
        assert_eq!(by, (wrong && checks == 3).then_some(Culprit::Array(Form::Vnni)), "{result:?}");
        assert_eq!(audit.checks(), checks);
    }
    // One bit of a softmax term, or of a sum, in a call that the vector unit's own audit does not look at.
    form.0.store(false, Ordering::Relaxed);
    let vector = VectorUnit::new().audited(0);
    if vector.form() == vector::Form::Mirror {
        return;
    }
    attend.group(&units, &vector, &cache, 0, 49, &q, &mut out, scratch).unwrap();
    for unit in ["attend.softmax", "attend.finish"] {
        vector.spoil(Some((unit, 40, 13)));
        attend.group(&units, &vector, &cache, 0, 49, &q, &mut out, scratch).unwrap();
        let mismatch = Audit::new(0).attend(&units, &vector, &attend, &cache, queries, &out, scratch).unwrap_err();
        assert_eq!(mismatch.by, Culprit::Vector(vector.form()), "{mismatch}");
    }
}
