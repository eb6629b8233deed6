//! AVX-512 VNNI form of the array unit.
//!
//! A 512-bit load holds four columns of all 16 rows as biased bytes: the unsigned operand of `vpdpbusd`. The
//! activations' four bytes are broadcast as the signed one; products and sums are exact in i32 (this is not the
//! saturating form), and the bias of 128 leaves through the correction that each sum starts from.

use super::matvec::{AHEAD, ArrayForm, RowOut, Run, Scales, clear, join, pick};
use super::quantise_avx2::quantise;
use super::walk::{Walk, groups};
use crate::ahead;
use crate::format::{BLOCK, Cause, Limbs, scale_offset};
use crate::gate::Form;
use crate::matvec::{BLOCK_BYTES, TILE_ROWS};
use std::arch::x86_64::*;
use std::ops::Range;

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
    // One offset for code 0 makes every scale 1.
    let unit = [0; TILE_ROWS];
    let (offsets, codes, step): ([u32; TILE_ROWS], _, _) = match run.scales {
        Scales::Codes { bases, codes } => {
            (std::array::from_fn(|r| scale_offset(bases[r] as i8)), codes.as_ptr(), TILE_ROWS)
        }
        Scales::Halves { .. } | Scales::Unit => ([0x3f8; TILE_ROWS], unit.as_ptr(), 0),
    };
    // SAFETY: an array of 16.
    let offsets = unsafe { _mm512_loadu_si512(offsets.as_ptr().cast()) };
    let scales = Codes { offsets, codes, step };
    run.ask();
    groups(run, rows, lanes, R, |part, rows, lane| {
        // SAFETY: as the caller promises.
        unsafe {
            match rows.len() {
                R => blocks::<LIMBS, R>(run, part, &scales, pick(rows, 0), lane),
                4 => blocks::<LIMBS, 4>(run, part, &scales, pick(rows, 0), lane),
                3 => blocks::<LIMBS, 3>(run, part, &scales, pick(rows, 0), lane),
                2 => blocks::<LIMBS, 2>(run, part, &scales, pick(rows, 0), lane),
                _ => blocks::<LIMBS, 1>(run, part, &scales, pick(rows, 0), lane),
            }
        }
    });
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

/// Scale bytes of the blocks, and what each row's are added to.
struct Codes {
    offsets: __m512i,
    codes: *const u8,
    /// Bytes from a block's to the next one's.
    step: usize,
}

/// Some blocks, `R` rows; `lane` is the first row's first, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are to what the check covers.
#[expect(clippy::needless_range_loop, reason = "a row is the index of several arrays")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn blocks<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    part: Range<usize>,
    scales: &Codes,
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let mut walk = Walk::new(run, part.start, rows, run.acts.q8(), LIMBS * BLOCK);
    // What the loop stores might be any of this, for all that the compiler knows.
    let (first, stride, lanes, first_lane) = (run.elements.as_ptr(), run.stride, run.lanes, run.first_lane);
    let Codes { offsets, codes, step } = *scales;
    for b in part {
        // SAFETY: the check covers every block's elements and scales, and every row's block in the activations and the lanes.
        unsafe {
            let elements = first.add(b.wrapping_mul(stride));
            for line in 0..BLOCK_BYTES / ahead::LINE {
                ahead::near(elements.wrapping_add(AHEAD).wrapping_add(line * ahead::LINE));
            }
            let mut sum = [[_mm512_setzero_si512(); LIMBS]; R];
            for r in 0..R {
                for (limb, sum) in sum[r].iter_mut().enumerate() {
                    *sum = _mm512_set1_epi32(*walk.fix[r].add(limb));
                }
            }
            for quad in 0..BLOCK / 4 {
                let w = _mm512_loadu_si512(elements.add(quad * TILE_ROWS * 4).cast());
                for r in 0..R {
                    for (limb, sum) in sum[r].iter_mut().enumerate() {
                        let x = walk.q[r].add(limb * BLOCK + quad * 4).cast::<i32>().read_unaligned();
                        *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(x));
                    }
                }
            }
            let code = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.add(b.wrapping_mul(step)).cast()));
            let scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(code, offsets), 20));
            let lane = lane.add(first_lane.wrapping_add(b) & lanes.wrapping_sub(1));
            for r in 0..R {
                // A limb's product is exact, so that what adds two of them rounds the whole product once.
                let s = _mm512_mul_ps(scale, _mm512_set1_ps(*walk.scale[r]));
                let lane = lane.add(r.wrapping_mul(lanes)).cast::<f32>();
                let mut product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][LIMBS - 1]), s);
                if LIMBS == 2 {
                    let high = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][0]), _mm512_mul_ps(s, _mm512_set1_ps(256.0)));
                    product = _mm512_add_ps(high, product);
                }
                _mm512_storeu_ps(lane, _mm512_add_ps(_mm512_loadu_ps(lane), product));
            }
        }
        walk.next(LIMBS * BLOCK, LIMBS);
    }
}

const _: () = assert!(BLOCK_BYTES == 512 && TILE_ROWS == 16);
