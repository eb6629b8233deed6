//! The twin on published rows: what docs/twin-validation.md claims, held.

use super::specs::{SEVEN, Sizes};
use crate::TwinError;
use crate::validate::{CONSTANTS, PUBLISHED, Validation, rows, validate};
use wordline_ir::Program;

pub(super) fn program(shape: &str) -> Result<Program, TwinError> {
    let sizes = match shape {
        "llama2-7b" => SEVEN,
        "llama2-70b" => Sizes { layers: 80, hidden: 8192, heads: 64, kv_heads: 8, inter: 28672, ..SEVEN },
        "llama3.1-8b" => Sizes { kv_heads: 8, inter: 14336, vocab: 128_256, ..SEVEN },
        "qwen2.5-7b" => {
            Sizes { layers: 28, hidden: 3584, heads: 28, kv_heads: 4, inter: 18944, vocab: 152_064, ..SEVEN }
        }
        other => return Err(TwinError::Data(format!("no shape '{other}'"))),
    };
    Ok(sizes.program())
}

fn published() -> Validation {
    validate(&rows(PUBLISHED).unwrap(), program).unwrap()
}

#[test]
fn published_rows_lie_where_the_document_says() {
    let v = published();
    assert!(CONSTANTS.len() <= 8);
    assert!(v.held >= 0.8, "{} of the rows are held", v.held);
    for c in &v.constants {
        assert!((c.value / c.best).ln().abs() < 0.02, "{}: the class says {} and the rows {}", c.name, c.value, c.best);
    }
    let mean = |of: fn(&crate::validate::Outcome) -> f64| {
        v.rows.iter().map(|o| of(o).abs()).sum::<f64>() / v.rows.len() as f64
    };
    assert!(mean(|o| o.error) < mean(|o| o.naive_error) / 2.0);
}
