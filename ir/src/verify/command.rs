//! Invariants 7 to 10: a command by itself, against the tables it indexes.

use super::{At, Defect, DefectKind};
use crate::command::{Place, Role};
use crate::program::{Program, Tensor, TensorId, TensorKind};
use crate::{Command, Slot};

/// The smallest magnitude that the vector unit does not flush to zero, 2^-120.
const FLUSH: f32 = f32::from_bits((127 - 120) << 23);

/// Check one command; true when nothing is wrong with it.
pub(super) fn check(program: &Program, index: usize, found: &mut Vec<Defect>) -> bool {
    let before = found.len();
    let Some(command) = program.commands.get(index) else { return false };
    let mut c = Check { program, command, at: At::command(program, index), found };
    c.operands();
    // What follows multiplies widths and shapes of operands that exist.
    if c.found.len() == before {
        c.shapes();
    }
    found.len() == before
}

struct Check<'a> {
    program: &'a Program,
    command: &'a Command,
    at: At,
    found: &'a mut Vec<Defect>,
}

impl Check<'_> {
    fn push(&mut self, kind: DefectKind) {
        self.found.push(Defect { at: self.at.clone(), kind });
    }

    /// Invariants 7 to 9, and that counts are not zero: everything that the table alone decides.
    fn operands(&mut self) {
        let routed = matches!(self.command, Command::RoutedMatvec { .. });
        let elementwise = matches!(
            self.command,
            Command::Norm { .. } | Command::Gate { .. } | Command::GatedNorm { .. } | Command::Add { .. }
        );
        let mut slots: Vec<(&'static str, Role, Slot)> = Vec::new();
        for (field, slot) in self.command.slots() {
            if self.program.width(slot).is_none() {
                self.push(DefectKind::NoSlot { field: field.name, slot });
            }
            let clash = |(_, role, other): &&(&str, Role, Slot)| {
                let both_write = role.writes() && field.role.writes();
                let one_writes = role.writes() || field.role.writes();
                *other == slot && (both_write || one_writes && !elementwise)
            };
            if let Some((first, _, _)) = slots.iter().find(clash) {
                let (first, second) = (*first, field.name);
                self.push(DefectKind::Alias { slot, first, second });
            }
            slots.push((field.name, field.role, slot));
        }
        for (field, id) in self.command.tensors() {
            let needed = match field.role {
                Role::Matrix if routed => "stack",
                Role::Matrix => "matrix",
                _ => "plain tensor",
            };
            self.tensor(field.name, id, needed);
        }
        let raw = self.command.to_raw();
        for (field, place) in self.command.info().places() {
            match place {
                Place::Constant => self.constant(field.name, f32::from_bits(raw.constant)),
                // Zero stands for "the whole slot" and "all positions" there.
                Place::Count(_) if matches!(field.name, "width" | "window") => {}
                Place::Count(i) if raw.counts[i] == 0 => {
                    self.push(DefectKind::Count { field: field.name, given: 0, need: "at least 1".to_owned() });
                }
                Place::Offset if raw.offset > Place::Offset.limit() => {
                    let need = format!("at most {}", Place::Offset.limit());
                    self.push(DefectKind::Count { field: field.name, given: raw.offset.into(), need });
                }
                Place::Table if usize::from(raw.rope) >= self.program.ropes.len().min(255) => {
                    let (index, held) = (raw.rope.into(), self.program.ropes.len());
                    self.push(DefectKind::NoRope { index, held });
                }
                _ => {}
            }
        }
    }

    fn tensor(&mut self, field: &'static str, id: TensorId, needed: &'static str) {
        let Some(tensor) = self.program.tensor(id) else {
            let (index, held) = (id.index(), self.program.tensors.len());
            return self.push(DefectKind::NoTensor { field, index, held });
        };
        let given = match tensor.kind {
            TensorKind::Matrix => "matrix",
            TensorKind::Stack { .. } => "stack",
            TensorKind::Plain => "plain tensor",
        };
        if given != needed {
            self.push(DefectKind::Kind { field, tensor: tensor.name.clone(), given, needed });
        }
    }

    fn constant(&mut self, field: &'static str, value: f32) {
        let may_be_off = matches!(self.command, Command::Attend { .. });
        let (ok, need) = match field {
            // A negative zero would be a second word for the same command.
            "eps" => (value >= 0.0 && value.is_sign_positive(), "finite and not below 0"),
            "cap" if may_be_off => {
                (value.to_bits() == 0 || value >= FLUSH, "0 for none, or finite and at least 2^-120")
            }
            "cap" => (value >= FLUSH, "finite and at least 2^-120"),
            _ => (true, "finite"),
        };
        if !(ok && value.is_finite()) {
            self.push(DefectKind::Constant { field, value, need });
        }
    }

    fn width(&self, slot: Slot) -> u64 {
        self.program.width(slot).unwrap_or(0) as u64
    }

    /// A slot is as wide as needed.
    fn wide(&mut self, field: &'static str, slot: Slot, needed: u64, why: &str) {
        let given = self.width(slot);
        if given != needed {
            self.push(DefectKind::Width { field, slot, given, needed, why: why.to_owned() });
        }
    }

    /// A tensor's rows or columns are as many as needed.
    fn shape(&mut self, field: &'static str, tensor: &Tensor, axis: &'static str, needed: u64, why: &str) {
        let given = match axis {
            "columns" => tensor.cols as u64,
            _ => tensor.rows as u64,
        };
        if given != needed {
            let (tensor, why) = (tensor.name.clone(), why.to_owned());
            self.push(DefectKind::Shape { field, tensor, axis, given, needed, why });
        }
    }

    /// A plain vector has as many elements as needed.
    fn vector(&mut self, field: &'static str, id: impl Into<Option<TensorId>>, needed: u64, why: &str) {
        let program = self.program;
        if let Some(tensor) = id.into().and_then(|id| program.tensor(id)) {
            self.shape(field, tensor, "columns", 1, "a vector");
            self.shape(field, tensor, "elements", needed, why);
        }
    }

    fn count(&mut self, ok: bool, field: &'static str, given: u64, need: impl Into<String>) {
        if !ok {
            self.push(DefectKind::Count { field, given, need: need.into() });
        }
    }

    /// Elements of a slot lie inside it.
    fn inside(&mut self, field: &'static str, slot: Slot, start: u64, end: u64) {
        let width = self.width(slot);
        if end > width {
            self.push(DefectKind::Range { field, slot, start, end, width });
        }
    }

    fn heads_share(&mut self, heads: u16, kv_heads: u16) {
        let whole = heads.is_multiple_of(kv_heads);
        self.count(whole, "heads", heads.into(), format!("a multiple of the {kv_heads} key heads"));
    }

    /// Invariant 10.
    fn shapes(&mut self) {
        let program = self.program;
        match *self.command {
            Command::Embed { out, table, positions, .. } => {
                let width = self.width(out);
                if let Some(table) = program.tensor(table) {
                    self.shape("table", table, "columns", width, "the width of 'out'");
                }
                if let Some(positions) = positions.and_then(|id| program.tensor(id)) {
                    self.shape("positions", positions, "columns", width, "the width of 'out'");
                    self.shape("positions", positions, "rows", program.max_pos as u64, "the program's positions");
                }
            }
            Command::Norm { x, out, weight, bias, .. } => {
                let width = self.width(x);
                self.wide("out", out, width, "the width of 'x'");
                self.vector("weight", weight, width, "the width of 'x'");
                self.vector("bias", bias, width, "the width of 'x'");
            }
            Command::HeadNorm { qkv, q_weight, k_weight, heads, kv_heads, head_dim, .. } => {
                self.heads_share(heads, kv_heads);
                self.vector("q_weight", q_weight, head_dim.into(), "head_dim");
                self.vector("k_weight", k_weight, head_dim.into(), "head_dim");
                let some = q_weight.is_some() || k_weight.is_some();
                self.count(some, "the number of weights", 0, "1 or 2: without a weight nothing is normed");
                self.inside("qkv", qkv, 0, (u64::from(heads) + u64::from(kv_heads)) * u64::from(head_dim));
            }
            Command::Rope { qkv, heads, kv_heads, head_dim, rot, table, .. } => {
                self.heads_share(heads, kv_heads);
                self.inside("qkv", qkv, 0, (u64::from(heads) + u64::from(kv_heads)) * u64::from(head_dim));
                self.count(rot <= head_dim, "rot", rot.into(), format!("at most the head dim, {head_dim}"));
                let table = program.ropes.get(usize::from(table.0)).map_or(0, |rope| rope.rot);
                self.count(usize::from(rot) == table, "rot", rot.into(), format!("its rotary table's, {table}"));
            }
            Command::Scale { x, width, .. } => self.inside("x", x, 0, width.into()),
            Command::Matvec { x, y, weight, bias, offset, .. } => {
                let Some(matrix) = program.tensor(weight) else { return };
                let (rows, start) = (matrix.rows as u64, u64::from(offset.0));
                self.shape("weight", matrix, "columns", self.width(x), "the width of 'x'");
                self.vector("bias", bias, rows, "the weight's rows");
                self.inside("y", y, start, start.saturating_add(rows));
            }
            Command::CacheAppend { qkv, heads, kv_heads, head_dim, v_dim, .. } => {
                self.heads_share(heads, kv_heads);
                let [h, kv, hd, vd] = [heads, kv_heads, head_dim, v_dim].map(u64::from);
                self.wide("qkv", qkv, h * hd + kv * (hd + vd), "heads * head_dim + kv_heads * (head_dim + v_dim)");
            }
            Command::Attend { qkv, heads, kv_heads, head_dim, window, .. } => {
                // The width of `out` waits for the layer's value dim.
                self.heads_share(heads, kv_heads);
                self.inside("qkv", qkv, 0, u64::from(heads) * u64::from(head_dim));
                let need = format!("below the {} positions, or 0 for all of them", program.max_pos);
                self.count(window == 0 || usize::from(window) < program.max_pos, "window", window.into(), need);
            }
            Command::Gate { x, gate, out, group, .. } => {
                let width = self.width(x);
                self.wide("out", out, width, "the width of 'x'");
                let covered = self.width(gate).saturating_mul(group.into());
                let need = format!("the width of 'x' by the width of 'gate', {width} / {}", self.width(gate));
                self.count(covered == width, "group", group.into(), need);
            }
            Command::Conv { x, out, weight, bias, channels, taps, .. } => {
                let channels = channels.into();
                self.wide("x", x, channels, "channels");
                self.wide("out", out, channels, "channels");
                if let Some(weight) = program.tensor(weight) {
                    self.shape("weight", weight, "rows", channels, "channels");
                    self.shape("weight", weight, "columns", taps.into(), "taps");
                }
                self.vector("bias", bias, channels, "channels");
            }
            Command::L2Norm { x, heads, head_dim, .. } => {
                self.inside("x", x, 0, u64::from(heads) * u64::from(head_dim));
            }
            Command::DeltaGate { ba, gb, a_log, dt_bias, heads, .. } => {
                self.wide("ba", ba, 2 * u64::from(heads), "2 * heads");
                self.wide("gb", gb, 2 * u64::from(heads), "2 * heads");
                self.vector("a_log", a_log, heads.into(), "heads");
                self.vector("dt_bias", dt_bias, heads.into(), "heads");
            }
            Command::Delta { qkv, gb, out, key_heads, value_heads, key_dim, value_dim, share, .. } => {
                let [kh, vh, kd, vd] = [key_heads, value_heads, key_dim, value_dim].map(u64::from);
                self.wide("qkv", qkv, 2 * kh * kd + vh * vd, "2 * key_heads * key_dim + value_heads * value_dim");
                self.wide("gb", gb, 2 * vh, "2 * value_heads");
                self.wide("out", out, vh * vd, "value_heads * value_dim");
                let share = u64::from(share.0);
                self.count(share * kh == vh, "share", share, format!("value_heads by key_heads, {vh} / {kh}"));
            }
            Command::GatedNorm { x, gate, out, weight, heads, head_dim, .. } => {
                let width = u64::from(heads) * u64::from(head_dim);
                for (field, slot) in [("x", x), ("gate", gate), ("out", out)] {
                    self.wide(field, slot, width, "heads * head_dim");
                }
                self.vector("weight", weight, head_dim.into(), "head_dim");
            }
            Command::Act { x, out, gated, groups, .. } => {
                let inner = self.width(out);
                let (needed, why) =
                    if gated { (inner.saturating_mul(2), "twice the width of 'out'") } else { (inner, "as 'out'") };
                self.wide("x", x, needed, why);
                let whole = inner.is_multiple_of(groups.into());
                self.count(whole, "groups", groups.into(), format!("a divisor of the width of 'out', {inner}"));
            }
            Command::Add { x, y, out, .. } => {
                let width = self.width(x);
                self.wide("y", y, width, "the width of 'x'");
                self.wide("out", out, width, "the width of 'x'");
            }
            Command::SoftCap { .. } => {}
            Command::TopK { logits, picks, weights, experts, k, .. } => {
                self.wide("logits", logits, experts.into(), "experts");
                self.wide("picks", picks, k.into(), "k");
                self.wide("weights", weights, k.into(), "k");
                self.count(k <= experts, "k", k.into(), format!("at most the {experts} experts"));
            }
            Command::RoutedMatvec { x, picks, weights, y, stack, k, .. } => {
                let Some(stack) = program.tensor(stack) else { return };
                let TensorKind::Stack { experts } = stack.kind else { return };
                let k = u64::from(k);
                // A stack that does not divide is a defect of the tensor table.
                let rows = (stack.rows as u64).checked_div(experts as u64).unwrap_or(0);
                let cols = stack.cols as u64;
                self.wide("picks", picks, k, "k");
                if let Some(weights) = weights {
                    self.wide("weights", weights, k, "k");
                    self.wide("x", x, k.saturating_mul(cols), "k * the stack's columns");
                    self.wide("y", y, rows, "one expert's rows");
                } else {
                    self.wide("x", x, cols, "the stack's columns");
                    self.wide("y", y, k.saturating_mul(rows), "k * one expert's rows");
                }
            }
        }
    }
}
