//! What a device can do: products of matrices a second, measured through its own live array unit.

use std::time::{Duration, Instant};
use wordline_engine::Kernels;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::matvec::{Acts, Matrix, MatrixLayout, Matvec, OutTiles};

/// Rows, columns and token-rows of the product.
pub const SHAPE: (usize, usize, usize) = (1024, 1024, 1);

/// Multiply-accumulates of one product.
pub const MACS: u64 = (SHAPE.0 * SHAPE.1 * SHAPE.2) as u64;

/// How long is measured.
const SPAN: Duration = Duration::from_millis(200);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[error("the capacity cannot be measured: {0}")]
pub struct CapacityError(String);

/// Products a second of a 1024 x 1024 matrix with one row, on this many threads, each at products of its own.
///
/// # Errors
/// The unit refuses the product.
pub fn measure(kernels: &Kernels, threads: usize) -> Result<f64, CapacityError> {
    let (rows, cols, tokens) = SHAPE;
    let failed = |error: &dyn std::fmt::Display| CapacityError(error.to_string());
    let layout = MatrixLayout::new(rows, cols).map_err(|e| failed(&e))?;
    let mut bytes = vec![0; layout.bytes()];
    // A pattern without meaning, the same everywhere.
    let value = |i: usize| ((i * 37 + i / 101) % 255) as f32 / 127.0 - 1.0;
    for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
        let values: Vec<f32> = (0..layout.tile_rows(tile).len() * cols).map(|i| value(i + tile)).collect();
        layout.pack_tile(tile, &values, out).map_err(|e| failed(&e))?;
    }
    let x: Vec<f32> = (0..tokens * cols).map(value).collect();
    let mut acts = Acts::new();
    acts.quantise(&kernels.array, &x, cols, tokens, cols, Limbs::Two).map_err(|e| failed(&e))?;
    let product = |y: &mut [f32]| -> Result<(), CapacityError> {
        let matrix = Matrix::new(layout, &bytes).map_err(|e| failed(&e))?;
        let call = Matvec::new(matrix, &acts, None, Lanes::default()).map_err(|e| failed(&e))?;
        let mut out = OutTiles::new(y, &layout, tokens, 0, rows).map_err(|e| failed(&e))?;
        call.run(&kernels.array, &mut out).map(|_| ()).map_err(|e| failed(&e))
    };
    // Once unmeasured: pages, clocks, tables.
    product(&mut vec![0.0; rows * tokens])?;
    let start = Instant::now();
    let counts = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let (mut y, mut count) = (vec![0.0; rows * tokens], 0_u64);
                    while start.elapsed() < SPAN {
                        product(&mut y)?;
                        count += 1;
                    }
                    std::hint::black_box(&y);
                    Ok::<u64, CapacityError>(count)
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap_or(Ok(0))).sum::<Result<u64, _>>()
    })?;
    Ok(counts as f64 / start.elapsed().as_secs_f64())
}
