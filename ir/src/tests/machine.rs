//! A machine that only indexes: every command does on real arrays what its unit would do, with every access checked.
//!
//! It knows the commands from their descriptions alone and shares no code with `verify`: what passes there must run here
//! without reading an element that was never written, and without leaving an array.

use crate::program::{Program, TensorId, TensorKind};
use crate::spec::RopeScaling;
use crate::{Command, RopeId, Slot};
use std::collections::HashMap;

/// Rows of the step; they belong to one sequence.
const ROWS: usize = 2;

type Row = Vec<Option<f32>>;

pub(crate) struct Machine<'a> {
    program: &'a Program,
    slots: [HashMap<Slot, Row>; ROWS],
    /// (keys | values) of each position, by layer.
    caches: HashMap<u8, Vec<Vec<f32>>>,
    rings: HashMap<u8, Vec<Vec<f32>>>,
    memories: HashMap<u8, Vec<f32>>,
}

/// Run a whole program; panics where a unit would.
pub(crate) fn run(program: &Program) {
    let slots = std::array::from_fn(|_| program.slots.iter().map(|s| (s.slot, vec![None; s.width])).collect());
    let (caches, rings, memories) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut machine = Machine { program, slots, caches, rings, memories };
    for command in &program.commands {
        machine.command(command);
    }
    for row in 0..ROWS {
        assert!(machine.read(row, Slot::Logits).iter().all(|v| !v.is_nan()));
    }
}

/// Elements that a run touches, to keep tests from running programs of absurd size.
pub(crate) fn size(program: &Program) -> u128 {
    let tensors = program.tensors.iter().map(|t| t.rows as u128 * t.cols as u128);
    let state = program.commands.iter().map(|c| match c {
        Command::Delta { value_heads, key_dim, value_dim, .. } => {
            u128::from(*value_heads) * u128::from(*key_dim) * u128::from(*value_dim)
        }
        _ => 0,
    });
    tensors.chain(state).chain(program.slots.iter().map(|s| s.width as u128)).sum()
}

impl Machine<'_> {
    fn read(&self, row: usize, slot: Slot) -> Vec<f32> {
        self.slots[row][&slot].iter().map(|v| v.expect("read before written")).collect()
    }

    fn part(&self, row: usize, slot: Slot, range: std::ops::Range<usize>) -> Vec<f32> {
        self.slots[row][&slot][range].iter().map(|v| v.expect("read before written")).collect()
    }

    fn write(&mut self, row: usize, slot: Slot, offset: usize, values: &[f32]) {
        let target = self.slots[row].get_mut(&slot).expect("a slot of the program");
        for (to, from) in target[offset..offset + values.len()].iter_mut().zip(values) {
            *to = Some(from.clamp(-1e3, 1e3));
        }
    }

    fn whole(&mut self, row: usize, slot: Slot, values: &[f32]) {
        assert_eq!(self.slots[row][&slot].len(), values.len(), "a whole write covers its slot");
        self.write(row, slot, 0, values);
    }

    /// A tensor's element; its value does not matter, its place does.
    fn weight(&self, id: TensorId, row: usize, col: usize) -> f32 {
        let tensor = self.program.tensor(id).expect("a tensor of the program");
        assert!(row < tensor.rows && col < tensor.cols, "{}: {row}, {col}", tensor.name);
        ((row * 7 + col * 3) % 11) as f32 / 110.0
    }

    fn vector(&self, id: TensorId, n: usize) -> Vec<f32> {
        let tensor = self.program.tensor(id).expect("a tensor of the program");
        assert_eq!((tensor.rows, tensor.cols, tensor.kind), (n, 1, TensorKind::Plain), "{}", tensor.name);
        (0..n).map(|i| self.weight(id, i, 0)).collect()
    }

    fn matvec(&self, id: TensorId, first: usize, rows: usize, x: &[f32]) -> Vec<f32> {
        let tensor = self.program.tensor(id).expect("a tensor of the program");
        assert!(tensor.kind != TensorKind::Plain, "the array reads blocks");
        assert_eq!(tensor.cols, x.len(), "{}", tensor.name);
        (first..first + rows).map(|r| x.iter().enumerate().map(|(c, x)| self.weight(id, r, c) * x).sum()).collect()
    }

    /// One angle a pair, at a position.
    fn angles(&self, table: RopeId, position: usize) -> Vec<f64> {
        let rope = &self.program.ropes[usize::from(table.0)];
        let half = rope.rot / 2;
        let base = match &rope.scaling {
            RopeScaling::Dynamic { factor, original } => {
                let length = (position + 1).max(*original) as f64;
                let grown = factor * length / *original as f64 - (factor - 1.0);
                rope.theta * grown.powf(rope.rot as f64 / (rope.rot as f64 - 2.0))
            }
            _ => rope.theta,
        };
        let angle = |i: usize| {
            let frequency = base.powf(-2.0 * i as f64 / rope.rot as f64);
            let divisor = match &rope.scaling {
                RopeScaling::Linear { factor } => *factor,
                RopeScaling::LongRope { short, long, original, .. } => {
                    if position < *original {
                        short[i]
                    } else {
                        long[i]
                    }
                }
                RopeScaling::Yarn { beta_fast, beta_slow, original, .. } => {
                    let turns = |beta: f64| (*original as f64 / (beta * std::f64::consts::TAU)).ln() / base.ln();
                    assert!(turns(*beta_fast).is_finite() && turns(*beta_slow).is_finite());
                    1.0
                }
                RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } => {
                    assert!((1.0 / (high_freq_factor - low_freq_factor)).is_finite());
                    1.0
                }
                _ => 1.0,
            };
            position as f64 * frequency / divisor
        };
        let angles: Vec<f64> = (0..half).map(angle).collect();
        assert!(angles.iter().all(|a| a.is_finite()), "{rope:?}");
        angles
    }

    fn command(&mut self, command: &Command) {
        for row in 0..ROWS {
            self.row(command, row);
        }
        // Every row is stored before the first attends, as `row` appends before the next command starts.
    }

    fn row(&mut self, command: &Command, row: usize) {
        let layer = command.layer().0;
        let size = |n: u16| usize::from(n);
        match *command {
            Command::Embed { out, table, positions, scale, .. } => {
                let width = self.slots[row][&out].len();
                let token = self.program.tensor(table).expect("a table").rows - 1;
                let position = self.program.max_pos - 1;
                let at = |i| {
                    let learned = positions.map_or(0.0, |p| self.weight(p, position, i));
                    self.weight(table, token, i) * scale.get() + learned
                };
                let values: Vec<f32> = (0..width).map(at).collect();
                self.whole(row, out, &values);
            }
            Command::Norm { x, out, weight, bias, .. } => {
                let x = self.read(row, x);
                let weight = self.vector(weight, x.len());
                let bias = bias.map_or(vec![0.0; x.len()], |b| self.vector(b, x.len()));
                let values: Vec<f32> = (0..x.len()).map(|i| x[i] * weight[i] + bias[i]).collect();
                self.whole(row, out, &values);
            }
            Command::HeadNorm { qkv, q_weight, k_weight, heads, kv_heads, head_dim, .. } => {
                let (q, all) = (size(heads), size(heads) + size(kv_heads));
                for head in 0..all {
                    let Some(weight) = (if head < q { q_weight } else { k_weight }) else { continue };
                    let weight = self.vector(weight, size(head_dim));
                    let start = head * size(head_dim);
                    let x = self.part(row, qkv, start..start + size(head_dim));
                    let values: Vec<f32> = x.iter().zip(weight).map(|(x, w)| x * w).collect();
                    self.write(row, qkv, start, &values);
                }
            }
            Command::Rope { qkv, heads, kv_heads, head_dim, rot, table, .. } => {
                let angles = self.angles(table, row);
                assert_eq!(angles.len() * 2, size(rot));
                for head in 0..size(heads) + size(kv_heads) {
                    let start = head * size(head_dim);
                    let mut x = self.part(row, qkv, start..start + size(head_dim));
                    for (i, angle) in angles.iter().enumerate() {
                        let (a, b) = (x[i], x[i + size(rot) / 2]);
                        let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                        (x[i], x[i + size(rot) / 2]) = (a * cos - b * sin, b * cos + a * sin);
                    }
                    self.write(row, qkv, start, &x);
                }
            }
            Command::Scale { x, width, scale, .. } => {
                let n = if width == 0 { self.slots[row][&x].len() } else { size(width) };
                let values: Vec<f32> = self.part(row, x, 0..n).iter().map(|v| v * scale.get()).collect();
                self.write(row, x, 0, &values);
            }
            Command::Matvec { x, y, weight, bias, offset, .. } => {
                assert_ne!(x, y);
                let rows = self.program.tensor(weight).expect("a matrix").rows;
                let x = self.read(row, x);
                let bias = bias.map_or(vec![0.0; rows], |b| self.vector(b, rows));
                let values: Vec<f32> = self.matvec(weight, 0, rows, &x).iter().zip(bias).map(|(y, b)| y + b).collect();
                self.write(row, y, offset.0 as usize, &values);
            }
            Command::CacheAppend { qkv, heads, kv_heads, head_dim, v_dim, .. } => {
                let q = size(heads) * size(head_dim);
                let kv = size(kv_heads) * (size(head_dim) + size(v_dim));
                assert_eq!(self.slots[row][&qkv].len(), q + kv);
                let kv = self.part(row, qkv, q..q + kv);
                let cache = self.caches.entry(layer).or_default();
                assert_eq!(cache.len(), row, "one append a row and layer");
                cache.push(kv);
            }
            Command::Attend { qkv, out, heads, kv_heads, head_dim, window, .. } => {
                assert_ne!(qkv, out);
                let (hd, kv) = (size(head_dim), size(kv_heads));
                let cache = &self.caches[&layer];
                assert_eq!(cache.len(), ROWS, "every row is in the cache");
                let vd = self.slots[row][&out].len() / size(heads);
                let first = if window == 0 { 0 } else { (row + 1).saturating_sub(size(window)) };
                let mut values = Vec::new();
                for head in 0..size(heads) {
                    let q = self.part(row, qkv, head * hd..(head + 1) * hd);
                    let shared = head / (size(heads) / kv);
                    let mut sum = vec![0.0; vd];
                    for position in &cache[first..=row] {
                        assert_eq!(position.len(), kv * (hd + vd));
                        let key = &position[shared * hd..(shared + 1) * hd];
                        let score: f32 = q.iter().zip(key).map(|(q, k)| q * k).sum();
                        let value = &position[kv * hd + shared * vd..kv * hd + (shared + 1) * vd];
                        sum.iter_mut().zip(value).for_each(|(s, v)| *s += v * score.clamp(-1.0, 1.0));
                    }
                    values.extend(sum);
                }
                self.whole(row, out, &values);
            }
            Command::Gate { x, gate, out, group, .. } => {
                let (x, gate) = (self.read(row, x), self.read(row, gate));
                let values: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * gate[i / size(group)]).collect();
                self.whole(row, out, &values);
            }
            Command::Conv { x, out, weight, bias, channels, taps, .. } => {
                assert_ne!(x, out);
                let x = self.read(row, x);
                assert_eq!(x.len(), size(channels));
                let ring = self.rings.entry(layer).or_insert_with(|| vec![vec![0.0; x.len()]; size(taps) - 1]);
                ring.push(x);
                let inputs = ring.clone();
                ring.remove(0);
                assert_eq!(inputs.len(), size(taps));
                let bias = bias.map_or(vec![0.0; size(channels)], |b| self.vector(b, size(channels)));
                let tap = |c: usize| (0..size(taps)).map(|t| self.weight(weight, c, t) * inputs[t][c]).sum::<f32>();
                let values: Vec<f32> = (0..size(channels)).map(|c| tap(c) + bias[c]).collect();
                self.whole(row, out, &values);
            }
            Command::L2Norm { x, heads, head_dim, .. } => {
                let values = self.part(row, x, 0..size(heads) * size(head_dim));
                self.write(row, x, 0, &values);
            }
            Command::DeltaGate { ba, gb, a_log, dt_bias, heads, .. } => {
                assert_ne!(ba, gb);
                let n = size(heads);
                let x = self.read(row, ba);
                let (a_log, dt_bias) = (self.vector(a_log, n), self.vector(dt_bias, n));
                let decay = (0..n).map(|h| (x[n + h] + dt_bias[h]) * a_log[h]);
                let values: Vec<f32> = decay.chain((0..n).map(|h| x[h])).collect();
                self.whole(row, gb, &values);
            }
            Command::Delta { qkv, gb, out, key_heads, value_heads, key_dim, value_dim, share, .. } => {
                assert!(out != qkv && out != gb);
                let [kh, vh, kd, vd] = [key_heads, value_heads, key_dim, value_dim].map(size);
                let (x, gb) = (self.read(row, qkv), self.read(row, gb));
                assert_eq!((x.len(), gb.len()), (2 * kh * kd + vh * vd, 2 * vh));
                let memory = self.memories.entry(layer).or_insert_with(|| vec![0.0; vh * kd * vd]);
                assert_eq!(memory.len(), vh * kd * vd);
                let mut values = Vec::new();
                for head in 0..vh {
                    let key_head = head / share.0 as usize;
                    let q = &x[key_head * kd..(key_head + 1) * kd];
                    let k = &x[(kh + key_head) * kd..(kh + key_head + 1) * kd];
                    let v = &x[2 * kh * kd + head * vd..2 * kh * kd + (head + 1) * vd];
                    let s = &mut memory[head * kd * vd..(head + 1) * kd * vd];
                    for (i, k) in k.iter().enumerate() {
                        for (j, v) in v.iter().enumerate() {
                            s[i * vd + j] = (s[i * vd + j] * gb[head] + k * v * gb[vh + head]).clamp(-1e3, 1e3);
                        }
                    }
                    values.extend((0..vd).map(|j| (0..kd).map(|i| s[i * vd + j] * q[i]).sum::<f32>()));
                }
                self.whole(row, out, &values);
            }
            Command::GatedNorm { x, gate, out, weight, heads, head_dim, .. } => {
                let (x, gate) = (self.read(row, x), self.read(row, gate));
                assert_eq!(x.len(), size(heads) * size(head_dim));
                let weight = self.vector(weight, size(head_dim));
                let values: Vec<f32> = (0..x.len()).map(|i| x[i] * gate[i] * weight[i % size(head_dim)]).collect();
                self.whole(row, out, &values);
            }
            Command::Act { x, out, gated, groups, .. } => {
                assert_ne!(x, out);
                let x = self.read(row, x);
                let inner = self.slots[row][&out].len() / size(groups);
                let mut values = Vec::new();
                for group in 0..size(groups) {
                    let start = group * inner * if gated { 2 } else { 1 };
                    values.extend(
                        (0..inner).map(|i| if gated { x[start + i] * x[start + inner + i] } else { x[start + i] }),
                    );
                }
                self.whole(row, out, &values);
            }
            Command::Add { x, y, out, scale, .. } => {
                let (x, y) = (self.read(row, x), self.read(row, y));
                let values: Vec<f32> = (0..x.len()).map(|i| x[i] + scale.get() * y[i]).collect();
                self.whole(row, out, &values);
            }
            Command::SoftCap { x, cap, .. } => {
                let recip = 1.0 / cap.get();
                assert!(recip.is_finite());
                let values: Vec<f32> = self.read(row, x).iter().map(|v| cap.get() * (v * recip).tanh()).collect();
                self.whole(row, x, &values);
            }
            Command::TopK { logits, picks, weights, experts, k, .. } => {
                assert!(picks != weights && picks != logits && weights != logits);
                let logits = self.read(row, logits);
                let mut order: Vec<usize> = (0..size(experts)).collect();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let picked: Vec<f32> = order[..size(k)].iter().map(|e| *e as f32).collect();
                self.whole(row, picks, &picked);
                let values: Vec<f32> = order[..size(k)].iter().map(|e| logits[*e]).collect();
                self.whole(row, weights, &values);
            }
            Command::RoutedMatvec { x, picks, weights, y, stack, k, .. } => {
                assert!(y != x && y != picks && Some(y) != weights);
                let tensor = self.program.tensor(stack).expect("a stack");
                let TensorKind::Stack { experts } = tensor.kind else { panic!("{} is no stack", tensor.name) };
                let (rows, cols) = (tensor.rows / experts, tensor.cols);
                let (x, picks) = (self.read(row, x), self.read(row, picks));
                assert_eq!(picks.len(), size(k));
                let mut values = if weights.is_some() { vec![0.0; rows] } else { Vec::new() };
                for (j, pick) in picks.iter().enumerate() {
                    let expert = *pick as usize;
                    assert!(expert < experts && expert as f32 == *pick, "{pick} is no expert");
                    match weights {
                        Some(weights) => {
                            let weight = self.read(row, weights)[j];
                            let part = self.matvec(stack, expert * rows, rows, &x[j * cols..(j + 1) * cols]);
                            values.iter_mut().zip(part).for_each(|(v, p)| *v += weight * p);
                        }
                        None => values.extend(self.matvec(stack, expert * rows, rows, &x)),
                    }
                }
                if weights.is_some() {
                    assert_eq!(x.len(), size(k) * cols);
                }
                self.whole(row, y, &values);
            }
        }
    }
}
