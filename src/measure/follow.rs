//! Running given ids through an engine from an empty state, every position's logits seen.

use wordline_engine::{EngineModel, Row, StepError};

/// Rows whose logits are held at once.
const ROWS: usize = 64;

/// Run `ids` as a sequence of its own and give each position's logits to `see`. The sequence is released afterwards.
///
/// # Errors
/// The engine's; nothing of the sequence is left then either.
pub fn follow(engine: &mut EngineModel, ids: &[u32], mut see: impl FnMut(usize, &[f32])) -> Result<(), StepError> {
    let rows_at_once = engine.capacity().step_rows.clamp(1, ROWS);
    let seq = engine.open();
    let mut position = 0;
    let mut result = Ok(());
    for chunk in ids.chunks(rows_at_once) {
        let rows: Vec<Row> = chunk.iter().map(|&token| Row { seq, token, logits: true }).collect();
        match engine.step(&rows) {
            Ok(logits) => {
                for row in 0..logits.len() {
                    see(position, logits.row(row).unwrap_or_default());
                    position += 1;
                }
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    engine.release(seq);
    result
}
