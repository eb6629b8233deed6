//! The attention unit against its definition written out position by position, and its independence of everything
//! that must not show in a bit.

use super::*;
use crate::cpu::attend::CHUNK;
use crate::flush::{add, mul, sub};
use crate::format::{BLOCK, pow2, quantise_pow2, quantise_weights, scale_value};
use crate::gate::Form;
use crate::math::Function;
use crate::probe::Seed;

/// One key head's cache as f32 rows.
struct Rows {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// `[limbs, high first][len]` and the exponent of one block.
fn limbs(values: &[f32], limbs: Limbs) -> (Vec<Vec<i64>>, f32) {
    let e = crate::format::max_bits(values).and_then(|m| crate::format::pow2_exponent(m, limbs)).unwrap();
    let q: Vec<i64> = values.iter().map(|v| i64::from(quantise_pow2(*v, e))).collect();
    let lo: Vec<i64> = q.iter().map(|q| (q + 128).rem_euclid(256) - 128).collect();
    let hi = q.iter().zip(&lo).map(|(q, lo)| (q - lo) / 256).collect();
    (if limbs == Limbs::Two { vec![hi, lo] } else { vec![q] }, pow2(e))
}

fn tree(mut lanes: Vec<f32>, op: impl Fn(f32, f32) -> f32) -> f32 {
    while lanes.len() > 1 {
        let high = lanes.split_off(lanes.len() / 2);
        lanes.iter_mut().zip(high).for_each(|(a, b)| *a = op(*a, b));
    }
    lanes[0]
}

/// Lane sums of `integers * x` blocks: each item is a lane, the weight integers, their scale and the other operand.
fn array<'a>(lanes: Lanes, blocks: impl Iterator<Item = (usize, Vec<i64>, f32, &'a (Vec<Vec<i64>>, f32))>) -> f32 {
    let mut lane = vec![0.0_f32; lanes.count()];
    for (b, w, scale, (limbs, x_scale)) in blocks {
        let dot = |limb: &Vec<i64>| w.iter().zip(limb).map(|(w, x)| w * x).sum::<i64>();
        let sum = limbs.iter().fold(0, |sum, limb| 256 * sum + dot(limb));
        lane[b % lanes.count()] += (sum as f64 * f64::from(scale) * f64::from(*x_scale)) as f32;
    }
    tree(lane, |a, b| a + b)
}

/// One query head's attention over the rows, as the module's documentation says it.
fn define(attend: &Attend, rows: &Rows, position: usize, q: &[f32]) -> Vec<f32> {
    let view = attend.view(position);
    let q: Vec<_> = q.chunks(BLOCK).map(|b| limbs(b, attend.queries)).collect();
    let mut scores: Vec<f32> = view
        .clone()
        .map(|p| {
            let mut blocks = Vec::new();
            let base = quantise_weights(&rows.keys[p], |b, code, w| {
                blocks.push((b, code, w.iter().map(|w| i64::from(*w)).collect::<Vec<_>>()));
            });
            let base = base.unwrap();
            array(attend.lanes, blocks.into_iter().map(|(b, code, w)| (b, w, scale_value(base, code), &q[b])))
        })
        .collect();
    if let Some(cap) = attend.cap {
        for s in &mut scores {
            *s = mul(cap, Function::Tanh.eval(mul(*s, Function::Recip.eval(cap))));
        }
    }
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = scores.iter().map(|s| Function::Exp.eval(sub(*s, max))).collect();
    let mut sums = vec![0.0; 32];
    for (p, e) in view.clone().zip(&e) {
        sums[p % 32] = add(sums[p % 32], *e);
    }
    let inverse = Function::Recip.eval(tree(sums, add));
    let v_dim = rows.values[0].len();
    (0..v_dim)
        .map(|d| {
            let columns = d / BLOCK * BLOCK..v_dim.min((d / BLOCK + 1) * BLOCK);
            let blocks: Vec<_> = (view.start / BLOCK..=position / BLOCK)
                .map(|b| {
                    let mut terms = vec![0.0; BLOCK];
                    let mut integers = vec![0; BLOCK];
                    for i in 0..BLOCK {
                        let p = b * BLOCK + i;
                        if view.contains(&p) {
                            let (q, scale) = limbs(&rows.values[p][columns.clone()], Limbs::One);
                            terms[i] = mul(e[p - view.start], scale);
                            integers[i] = q[0][d % BLOCK];
                        }
                    }
                    (b, integers, limbs(&terms, attend.probs))
                })
                .collect();
            let sum = array(attend.lanes, blocks.iter().map(|(b, w, x)| (*b, w.clone(), 1.0, x)));
            mul(sum, inverse)
        })
        .collect()
}

fn random(seed: &mut Seed, n: usize) -> Vec<f32> {
    (0..n).map(|_| seed.value()).collect()
}

fn rows(seed: &mut Seed, n: usize, head_dim: usize, v_dim: usize) -> Rows {
    let mut row = |dim, p: usize| {
        let mut row = random(seed, dim);
        match p % 7 {
            3 => row.fill(0.0),
            5 => row.iter_mut().for_each(|v| *v *= 1e-12),
            _ => (),
        }
        row
    };
    Rows { keys: (0..n).map(|p| row(head_dim, p)).collect(), values: (0..n).map(|p| row(v_dim, p + 2)).collect() }
}

/// A cache of `heads` key heads.
fn fill(layout: CacheLayout, heads: &[Rows], len: usize) -> Cache {
    let mut cache = Cache::new(layout);
    for p in 0..len {
        append(&mut cache, heads, p);
    }
    cache
}

fn append(cache: &mut Cache, heads: &[Rows], p: usize) {
    let keys: Vec<f32> = heads.iter().flat_map(|h| h.keys[p].clone()).collect();
    let values: Vec<f32> = heads.iter().flat_map(|h| h.values[p].clone()).collect();
    cache.append(&keys, &values).unwrap();
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

struct Bench {
    units: Units,
    vector: VectorUnit,
    scratch: Scratch,
}

impl Bench {
    fn best() -> Self {
        Self { units: Units::new().unwrap(), vector: VectorUnit::new(), scratch: Scratch::default() }
    }

    fn mirror() -> Self {
        let units = Units::up_to(Form::Mirror).unwrap();
        Self { units, vector: VectorUnit::mirror(), scratch: Scratch::default() }
    }

    fn attend(&mut self, attend: &Attend, cache: &Cache, head: usize, position: usize, q: &[f32]) -> Vec<u32> {
        let mut out = vec![f32::NAN; q.len() / cache.layout().head_dim() * cache.layout().v_dim()];
        let Self { units, vector, scratch } = self;
        attend.group(units, vector, cache, head, position, q, &mut out, scratch).unwrap();
        bits(&out)
    }
}

const PLAIN: Attend = Attend {
    window: None,
    cap: None,
    queries: Limbs::Two,
    probs: Limbs::Two,
    lanes: match Lanes::new(8) {
        Some(lanes) => lanes,
        None => unreachable!(),
    },
};

fn kinds() -> Vec<Attend> {
    let mut kinds = vec![PLAIN];
    kinds.push(Attend { window: Some(1), ..PLAIN });
    kinds.push(Attend { window: Some(33), cap: Some(0.7), ..PLAIN });
    kinds.push(Attend { cap: Some(30.0), queries: Limbs::One, ..PLAIN });
    kinds.push(Attend { window: Some(40), probs: Limbs::One, lanes: Lanes::new(32).unwrap(), ..PLAIN });
    kinds.push(Attend { lanes: Lanes::new(4).unwrap(), ..PLAIN });
    kinds
}

#[test]
fn every_form_computes_the_definition() {
    let seed = &mut Seed::new(1);
    let mut benches = [Bench::best(), Bench::mirror()];
    for (head_dim, v_dim) in [(64, 64), (16, 24), (24, 16), (33, 80), (1, 1), (128, 40)] {
        let heads = [rows(seed, 100, head_dim, v_dim), rows(seed, 100, head_dim, v_dim)];
        let cache = fill(CacheLayout::new(2, head_dim, v_dim, None).unwrap(), &heads, 100);
        for attend in kinds() {
            for position in [0, 1, 30, 31, 32, 33, 63, 64, 65, 97, 99] {
                let q = random(seed, 3 * head_dim);
                for (h, rows) in heads.iter().enumerate() {
                    let want: Vec<f32> = q.chunks(head_dim).flat_map(|q| define(&attend, rows, position, q)).collect();
                    for bench in &mut benches {
                        let got = bench.attend(&attend, &cache, h, position, &q);
                        assert_eq!(got, bits(&want), "{head_dim} {v_dim} {attend:?} {position}");
                    }
                }
            }
        }
    }
}

#[test]
fn neither_ring_nor_capacity_nor_later_positions_show() {
    let seed = &mut Seed::new(2);
    let heads = [rows(seed, 400, 24, 40)];
    let whole = fill(CacheLayout::new(1, 24, 40, None).unwrap(), &heads, 400);
    let mut bench = Bench::best();
    for (window, ahead) in [(1, 1), (5, 3), (32, 1), (33, 40), (64, 17), (100, 7)] {
        let attend = Attend { window: Some(window), ..PLAIN };
        for keep in [window - 1 + ahead, window - 1 + ahead + 50, 1000] {
            let layout = CacheLayout::new(1, 24, 40, Some(keep)).unwrap();
            let mut ring = Cache::new(layout);
            let mut position = 0;
            // A step of `ahead` rows appends them all before the first one attends.
            while position < 400 {
                let end = (position + ahead).min(400);
                (position..end).for_each(|p| append(&mut ring, &heads, p));
                for p in position..end {
                    let q = random(seed, 2 * 24);
                    let want = bench.attend(&attend, &whole, 0, p, &q);
                    assert_eq!(bench.attend(&attend, &ring, 0, p, &q), want, "window {window}, keep {keep}, row {p}");
                }
                position = end;
            }
            assert!(ring.bytes() <= keep.div_ceil(32) * layout.page_bytes());
        }
    }
}

#[test]
fn heads_do_not_see_one_another_and_long_contexts_come_in_chunks() {
    let seed = &mut Seed::new(3);
    let len = (CHUNK + 3) * BLOCK + 5;
    let heads = [rows(seed, len, 16, 16)];
    let cache = fill(CacheLayout::new(1, 16, 16, None).unwrap(), &heads, len);
    let q = random(seed, 35 * 16);
    let mut bench = Bench::best();
    let all = bench.attend(&PLAIN, &cache, 0, len - 1, &q);
    let each: Vec<u32> = q.chunks(16).flat_map(|q| bench.attend(&PLAIN, &cache, 0, len - 1, q)).collect();
    assert_eq!(all, each);
    let want = define(&PLAIN, &heads[0], len - 1, &q[34 * 16..]);
    assert_eq!(all[34 * 16..], bits(&want));
    // A cache that is cleared and filled again holds nothing of what was there.
    let mut again = fill(*cache.layout(), &[rows(seed, 90, 16, 16)], 90);
    again.clear();
    (0..40).for_each(|p| append(&mut again, &heads, p));
    assert_eq!(bench.attend(&PLAIN, &again, 0, 39, &q), bench.attend(&PLAIN, &cache, 0, 39, &q));
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let seed = &mut Seed::new(4);
    let heads = [rows(seed, 100, 40, 8)];
    let layout = CacheLayout::new(1, 40, 8, Some(40)).unwrap();
    let mut cache = fill(layout, &heads, 100);
    let Bench { units, vector, mut scratch } = Bench::best();
    let attend = Attend { window: Some(40), ..PLAIN };
    let mut group = |kv_head, position, q: &[f32], n: usize| {
        attend.group(&units, &vector, &cache, kv_head, position, q, &mut vec![0.0; n], &mut scratch)
    };
    let mut q = vec![1.0; 80];
    assert_eq!(group(0, 99, &q, 16), Ok(()));
    assert_eq!(group(0, 100, &q, 16), Err(AttendError::Position { position: 100, len: 100 }));
    assert_eq!(group(0, 74, &q, 16), Err(AttendError::Dropped { first: 35, kept: 36 }));
    assert!(matches!(group(1, 99, &q, 16), Err(AttendError::Shape { what: "key head", .. })));
    assert!(matches!(group(0, 99, &q[1..], 16), Err(AttendError::Shape { what: "query elements", .. })));
    assert!(matches!(group(0, 99, &[], 0), Err(AttendError::Shape { what: "query elements", .. })));
    assert!(matches!(group(0, 99, &q, 15), Err(AttendError::Shape { what: "output elements", .. })));
    q[75] = f32::INFINITY;
    let cause = Cause::NotFinite(f32::INFINITY);
    assert_eq!(group(0, 99, &q, 16), Err(AttendError::Query { head: 1, block: 1, cause }));

    let quant = |what, block| Err(CacheError::Quant { what, head: 0, block, cause });
    assert_eq!(cache.append(&q[40..], &[0.0; 8]), quant("keys", 1));
    assert_eq!(cache.append(&q[..40], &[f32::INFINITY; 8]), quant("values", 0));
    assert!(matches!(cache.append(&q, &[0.0; 8]), Err(CacheError::Values { what: "keys", given: 80, expected: 40 })));
    assert!(matches!(cache.append(&q[..40], &[0.0]), Err(CacheError::Values { what: "values", .. })));
    assert_eq!(cache.len(), 100);
    for (heads, head_dim, v_dim, keep) in [(0, 1, 1, None), (1, 0, 1, None), (1, 1, 0, None), (1, 1, 1, Some(0))] {
        assert!(matches!(CacheLayout::new(heads, head_dim, v_dim, keep), Err(CacheError::Shape { .. })));
    }
    assert!(CacheLayout::new(1, usize::MAX, 1, None).is_err());
}
