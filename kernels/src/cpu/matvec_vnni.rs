//! AVX-512 VNNI form of the array unit.
//!
//! A 512-bit load holds four columns of all 16 rows as biased bytes: the unsigned operand of `vpdpbusd`. The
//! activations' four bytes are broadcast as the signed one; products and sums are exact in i32 (this is not the
//! saturating form), and the bias of 128 leaves through the correction that each sum starts from.

use super::matvec::{AHEAD, ArrayForm, RowOut, Run, Scales, clear, join, pick};
use super::quantise_avx2::quantise;
use crate::format::{BLOCK, Cause, Limbs, scale_offset};
use crate::gate::Form;
use crate::matvec::{BLOCK_BYTES, TILE_ROWS};
use std::arch::x86_64::*;

/// The AVX-512 VNNI form; exists only where [`detect`] found the instructions.
#[derive(Debug)]
pub(crate) struct Vnni(());

/// The form, when the processor has it.
pub(crate) fn detect() -> Option<&'static Vnni> {
    static FORM: Vnni = Vnni(());
    let found = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2");
    found.then_some(&FORM)
}

impl ArrayForm for Vnni {
    fn form(&self) -> Form {
        Form::Vnni
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: a `Vnni` exists only where the processor has the features; `check` covers every access.
        unsafe {
            match run.acts.limbs() {
                1 => accumulate::<1>(run, rows, lanes),
                _ => accumulate::<2>(run, rows, lanes),
            }
        }
    }

    fn tile(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: as in `accumulate`.
        unsafe {
            match run.acts.limbs() {
                1 => tile::<1>(run, rows, lanes, results),
                _ => tile::<2>(run, rows, lanes, results),
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        // SAFETY: a `Vnni` exists only where the processor has AVX2 too.
        unsafe { quantise(row, limbs, out) }
    }
}

/// Rows of a block that share its loads.
const R: usize = 8;

/// # Safety
/// `run.check(rows, lanes)` has passed and the rows have `LIMBS` limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn accumulate<const LIMBS: usize>(run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
    if let Scales::Halves { bases, codes, book } = run.scales {
        // SAFETY: as the caller promises.
        return unsafe { super::codes_vnni::accumulate::<LIMBS>(run, bases, codes, book, rows, lanes) };
    }
    let offsets: [u32; TILE_ROWS] = match run.scales {
        Scales::Codes { bases, .. } => std::array::from_fn(|r| scale_offset(bases[r] as i8)),
        Scales::Halves { .. } | Scales::Unit => [0; TILE_ROWS],
    };
    // SAFETY: an array of 16.
    let offsets = unsafe { _mm512_loadu_si512(offsets.as_ptr().cast()) };
    for b in 0..run.blocks {
        let scale = match run.scales {
            // SAFETY: the check covers 16 scale bytes of every block.
            Scales::Codes { codes, .. } => unsafe {
                _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().add(b.wrapping_mul(TILE_ROWS)).cast()))
            },
            // With offset 0 this is the code of 1.0.
            Scales::Halves { .. } | Scales::Unit => _mm512_set1_epi32(0x3f8),
        };
        let scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(scale, offsets), 20));
        // SAFETY: the check covers every block's elements, and every row's block in the activations and the lanes.
        unsafe {
            let elements = run.elements.as_ptr().add(b.wrapping_mul(run.stride));
            for line in 0..BLOCK_BYTES / 64 {
                let ahead = elements.wrapping_add(run.stride.wrapping_mul(AHEAD).wrapping_add(line * 64));
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let lane = lanes.as_mut_ptr().add(run.lane(b));
            let mut i = 0;
            while rows.len() - i >= R {
                block::<LIMBS, R>(run, b, elements, scale, pick(rows, i), lane.add(i.wrapping_mul(run.lanes)));
                i = i.wrapping_add(R);
            }
            if rows.len() - i >= 4 {
                block::<LIMBS, 4>(run, b, elements, scale, pick(rows, i), lane.add(i.wrapping_mul(run.lanes)));
                i = i.wrapping_add(4);
            }
            let lane = lane.add(i.wrapping_mul(run.lanes));
            match rows.len() - i {
                0 => (),
                1 => block::<LIMBS, 1>(run, b, elements, scale, pick(rows, i), lane),
                2 => block::<LIMBS, 2>(run, b, elements, scale, pick(rows, i), lane),
                _ => block::<LIMBS, 3>(run, b, elements, scale, pick(rows, i), lane),
            }
        }
    }
}

/// [`ArrayForm::tile`], its three parts compiled for these instructions together.
///
/// # Safety
/// As [`accumulate`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn tile<const LIMBS: usize>(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
    results: &mut [[f32; TILE_ROWS]],
) {
    clear(run, lanes);
    // SAFETY: as the caller promises.
    unsafe { accumulate::<LIMBS>(run, rows, lanes) };
    join(run, lanes, results);
}

/// One block, `R` rows; `lane` is the first row's, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are into what the check covers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn block<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    b: usize,
    elements: *const u8,
    scale: __m512,
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let acts = run.acts;
    let at = rows.map(|row| row.wrapping_mul(acts.blocks()).wrapping_add(run.first_act).wrapping_add(b));
    // SAFETY: `at` counts blocks of the activations, all inside; a block's elements are 512 bytes.
    unsafe {
        let q = at.map(|at| acts.q8().as_ptr().add(at.wrapping_mul(LIMBS * BLOCK)));
        let mut sum = [[_mm512_setzero_si512(); LIMBS]; R];
        for r in 0..R {
            for (limb, sum) in sum[r].iter_mut().enumerate() {
                let fix = *acts.fix().as_ptr().add(at[r].wrapping_mul(LIMBS).wrapping_add(limb));
                *sum = _mm512_set1_epi32(fix);
            }
        }
        for quad in 0..BLOCK / 4 {
            let w = _mm512_loadu_si512(elements.add(quad * TILE_ROWS * 4).cast());
            for r in 0..R {
                for (limb, sum) in sum[r].iter_mut().enumerate() {
                    let x = q[r].add(limb * BLOCK + quad * 4).cast::<i32>().read_unaligned();
                    *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(x));
                }
            }
        }
        for r in 0..R {
            // A limb's product is exact, so that what adds two of them rounds the whole product once.
            let s = _mm512_mul_ps(scale, _mm512_set1_ps(*acts.scale().as_ptr().add(at[r])));
            let lane = lane.add(r.wrapping_mul(run.lanes)).cast::<f32>();
            let mut product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][LIMBS - 1]), s);
            if LIMBS == 2 {
                let high = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][0]), _mm512_mul_ps(s, _mm512_set1_ps(256.0)));
                product = _mm512_add_ps(high, product);
            }
            _mm512_storeu_ps(lane, _mm512_add_ps(_mm512_loadu_ps(lane), product));
        }
    }
}

const _: () = assert!(BLOCK_BYTES == 512 && TILE_ROWS == 16);
