//! Sequence state of the reference units: unquantised caches, rings and memories, and the commands that carry them.

use super::functions::{activate, softmax};
use super::linear::dot;
use crate::units::{Attend, CacheAppend, Conv, Delta};
use wordline_ir::state::LayerState;

/// What one sequence keeps.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) layers: Vec<Layer>,
}

/// What one layer of a sequence keeps.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// `[positions, kv_heads * head_dim]`.
    keys: Vec<f64>,
    /// `[positions, kv_heads * v_dim]`.
    values: Vec<f64>,
    /// `[taps - 1, channels]`, oldest first.
    ring: Vec<f32>,
    /// `[heads, key_dim, value_dim]`.
    memory: Vec<f64>,
}

impl Sequence {
    pub(crate) fn new(layout: &[LayerState]) -> Self {
        let layer = |shape: &LayerState| Layer {
            ring: vec![0.0; shape.ring.map_or(0, |r| r.taps.saturating_sub(1) * r.channels)],
            memory: vec![0.0; shape.memory.map_or(0, |m| m.heads * m.key_dim * m.value_dim)],
            ..Layer::default()
        };
        Self { layers: layout.iter().map(layer).collect() }
    }

    pub(crate) fn bits(&self) -> Vec<u64> {
        let layer = |l: &Layer| {
            let wide = l.keys.iter().chain(&l.values).chain(&l.memory).map(|v| v.to_bits());
            wide.chain(l.ring.iter().map(|v| u64::from(v.to_bits()))).collect::<Vec<_>>()
        };
        self.layers.iter().flat_map(layer).collect()
    }
}

impl Layer {
    /// Append a row's keys and values.
    pub(crate) fn append(&mut self, op: &CacheAppend, qkv: &[f32]) {
        let keys = op.heads * op.head_dim;
        let values = keys + op.kv_heads * op.head_dim;
        self.keys.extend(qkv[keys..values].iter().map(|v| f64::from(*v)));
        self.values.extend(qkv[values..values + op.kv_heads * op.v_dim].iter().map(|v| f64::from(*v)));
    }

    /// The cache holds every position up to `position`: not so in a program without its `cache_append`.
    pub(crate) fn holds(&self, op: &Attend, position: usize) -> bool {
        self.keys.len() >= (position + 1) * op.kv_heads * op.head_dim
    }

    /// Attention of a row at `position`. `v_dim` follows from the output's width.
    pub(crate) fn attend(&self, op: &Attend, position: usize, qkv: &[f32], out: &mut [f32]) {
        let v_dim = out.len() / op.heads;
        let share = op.heads / op.kv_heads;
        let first = op.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut query = vec![0.0; op.head_dim];
        let mut scores = vec![0.0; position + 1 - first];
        for (head, out) in out.chunks_mut(v_dim).enumerate() {
            let kv_head = head / share;
            query.iter_mut().zip(&qkv[head * op.head_dim..]).for_each(|(q, v)| *q = f64::from(*v));
            for (score, at) in scores.iter_mut().zip(first..) {
                let key = &self.keys[(at * op.kv_heads + kv_head) * op.head_dim..][..op.head_dim];
                let s = dot(&query, key);
                *score = op.cap.map_or(s, |cap| f64::from(cap) * libm::tanh(s / f64::from(cap)));
            }
            softmax(&mut scores);
            let mut sums = vec![0.0; v_dim];
            for (p, at) in scores.iter().zip(first..) {
                let value = &self.values[(at * op.kv_heads + kv_head) * v_dim..][..v_dim];
                sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += p * v);
            }
            out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = *sum as f32);
        }
    }

    /// Convolution of a row with the ring's inputs before it; the row then enters the ring.
    pub(crate) fn conv(&mut self, op: &Conv, weight: &[f32], bias: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
        let past = op.taps - 1;
        for (channel, out) in out.iter_mut().take(op.channels).enumerate() {
            let taps = &weight[channel * op.taps..][..op.taps];
            let before: f64 =
                (0..past).map(|t| f64::from(taps[t]) * f64::from(self.ring[t * op.channels + channel])).sum();
            let sum = before + f64::from(taps[past]) * f64::from(x[channel]);
            *out = activate(op.act, sum + bias.map_or(0.0, |b| f64::from(b[channel]))) as f32;
        }
        if past > 0 {
            self.ring.copy_within(op.channels.., 0);
            self.ring[(past - 1) * op.channels..].copy_from_slice(&x[..op.channels]);
        }
    }

    /// The gated delta rule for a row.
    pub(crate) fn delta(&mut self, op: &Delta, qkv: &[f32], gb: &[f32], out: &mut [f32]) {
        let keys = op.key_heads * op.key_dim;
        for (head, out) in out.chunks_mut(op.value_dim).take(op.value_heads).enumerate() {
            let key_head = head / op.share;
            let q = &qkv[key_head * op.key_dim..][..op.key_dim];
            let k = &qkv[keys + key_head * op.key_dim..][..op.key_dim];
            let v = &qkv[2 * keys + head * op.value_dim..][..op.value_dim];
            let (decay, beta) = (f64::from(gb[head]), f64::from(gb[op.value_heads + head]));
            let memory = &mut self.memory[head * op.key_dim * op.value_dim..][..op.key_dim * op.value_dim];
            memory.iter_mut().for_each(|s| *s *= decay);
            let read = |memory: &[f64], by: &[f32], sums: &mut [f64]| {
                for (row, by) in memory.chunks(op.value_dim).zip(by) {
                    sums.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * f64::from(*by));
                }
            };
            let mut sums = vec![0.0; op.value_dim];
            read(memory, k, &mut sums);
            sums.iter_mut().zip(v).for_each(|(sum, v)| *sum = (f64::from(*v) - *sum) * beta);
            for (row, k) in memory.chunks_mut(op.value_dim).zip(k) {
                row.iter_mut().zip(&sums).for_each(|(s, d)| *s += f64::from(*k) * d);
            }
            sums.fill(0.0);
            read(memory, q, &mut sums);
            out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = (sum * f64::from(op.scale)) as f32);
        }
    }
}
