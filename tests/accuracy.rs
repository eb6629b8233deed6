//! How good the engine is, on the demo's held-out text.

use crate::support::{model, program, setup};
use wordline::measure::accuracy::{Engines, accuracy};
use wordline_engine::{Capacity, Linear};

/// The demo's card: val.txt in windows of 512, bf16 weights, f32 arithmetic.
const CARD: f64 = 21.520;

/// The reference engine has the card's perplexity, the int8 engine is within 0.1 % of it, and the whole int8 engine,
/// its cache and softmax terms included, lies no further from the reference than the reference does when only its linear
/// layers and head are rounded to plain 8-bit blocks.
#[test]
fn the_demo_on_its_held_out_text() {
    let model = model("demo");
    let program = program(&model);
    let text = String::from_utf8(model.file("val.txt").unwrap().unwrap()).unwrap();
    let ids = model.tokenizer().unwrap().encode(&text, false).unwrap();
    let setup = setup(&model, &program, Capacity { ctx: 512, step_rows: 64 }, 2);
    let (mut reference, mut int8) = (setup.reference(Linear::Exact).unwrap(), setup.int8().unwrap());
    let mut baseline = setup.reference(Linear::Q8).unwrap();
    let engines = Engines { reference: &mut reference, int8: &mut int8, baseline: Some(&mut baseline) };
    let found = accuracy(engines, &ids, 512, |_| {}).unwrap();
    println!("{found:?}");
    assert_eq!((found.tokens, found.scored), (24_204, 24_156));
    assert!((found.reference.ppl - CARD).abs() <= 0.005, "reference {}", found.reference.ppl);
    assert!((found.int8.ppl / found.reference.ppl - 1.0).abs() <= 1e-3, "int8 {}", found.int8.ppl);
    let baseline = found.baseline.unwrap();
    assert!(found.int8.kl <= baseline.kl, "int8 {:?}, baseline {baseline:?}", found.int8);
    assert!(found.int8.kl > 0.0 && baseline.kl > 0.0, "both engines round something");
}
