//! What a device can do: products of matrices a second, measured through its own live array unit.
//!
//! A step of decoding streams every weight from memory once. So each product is of another matrix, and all of them together
//! are more than a cache holds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wordline_engine::Kernels;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::matvec::{Acts, Matrix, MatrixLayout, Matvec, OutTiles};

/// Rows, columns and token-rows of the product.
pub const SHAPE: (usize, usize, usize) = (1024, 1024, 1);

/// Multiply-accumulates of one product.
pub const MACS: u64 = (SHAPE.0 * SHAPE.1 * SHAPE.2) as u64;

/// Matrices that are multiplied in turn: more than a cache holds.
const MATRICES: usize = 96;

/// Bytes of one as a weight image has it, over multiply-accumulates: an int8 each, and a scale for each 32.
pub const MATRIX_BYTES: f64 = MACS as f64 * 33.0 / 32.0;

/// How long is measured.
const SPAN: Duration = Duration::from_millis(200);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[error("the capacity cannot be measured: {0}")]
pub struct CapacityError(String);

/// Products a second of a 1024 x 1024 matrix with one row, on this many threads, each at products of its own; each product
/// is of a matrix that comes from memory.
///
/// # Errors
/// The unit refuses the product.
pub fn measure(kernels: &Kernels, threads: usize) -> Result<f64, CapacityError> {
    let (rows, cols, tokens) = SHAPE;
    let failed = |error: &dyn std::fmt::Display| CapacityError(error.to_string());
    let layout = MatrixLayout::new(rows, cols).map_err(|e| failed(&e))?;
    let size = layout.bytes();
    let mut bytes = vec![0; MATRICES * size];
    // A pattern without meaning, the same everywhere.
    let value = |i: usize| ((i * 37 + i / 101) % 255) as f32 / 127.0 - 1.0;
    let (first, others) = bytes.split_at_mut(size);
    for (tile, out) in first.chunks_exact_mut(layout.tile_bytes()).enumerate() {
        let values: Vec<f32> = (0..layout.tile_rows(tile).len() * cols).map(|i| value(i + tile)).collect();
        layout.pack_tile(tile, &values, out).map_err(|e| failed(&e))?;
    }
    others.chunks_exact_mut(size).for_each(|other| other.copy_from_slice(first));
    let x: Vec<f32> = (0..tokens * cols).map(value).collect();
    let mut acts = Acts::new();
    acts.quantise(&kernels.array, &x, cols, tokens, cols, Limbs::Two).map_err(|e| failed(&e))?;
    let product = |number: usize, y: &mut [f32]| -> Result<(), CapacityError> {
        let at = number % MATRICES * size;
        let matrix = Matrix::new(layout, &bytes[at..at + size]).map_err(|e| failed(&e))?;
        let call = Matvec::new(matrix, &acts, None, Lanes::default()).map_err(|e| failed(&e))?;
        let mut out = OutTiles::new(y, &layout, tokens, 0, rows).map_err(|e| failed(&e))?;
        call.run(&kernels.array, &mut out).map(|_| ()).map_err(|e| failed(&e))
    };
    // Once unmeasured: pages, clocks, tables.
    product(0, &mut vec![0.0; rows * tokens])?;
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let counts = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let (mut y, mut count) = (vec![0.0; rows * tokens], 0_u64);
                    while start.elapsed() < SPAN {
                        product(next.fetch_add(1, Ordering::Relaxed), &mut y)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_that_of_the_unit_that_computes() {
        let (live, mirror) = (Kernels::new().unwrap(), Kernels::mirror().unwrap());
        let forms = [&live, &mirror].map(|kernels| kernels.array.report().active);
        let [fast, slow] = [&live, &mirror].map(|kernels| measure(kernels, 1).unwrap());
        println!("{} {fast:.1}, {} {slow:.1} products a second", forms[0], forms[1]);
        assert!(fast.is_finite() && slow > 0.0, "{fast} {slow}");
        // A declared figure would be the same for both.
        assert!(forms[0] == forms[1] || fast > 2.0 * slow, "{fast} {slow}");
    }
}
