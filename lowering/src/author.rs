//! `author`: the decode step of a model as its author writes it, in primitive operations that know no unit.
//!
//! The step is plain data: a list of operations in single assignment, each with a name, the part of the model it belongs
//! to, a primitive, and the values it reads. A norm is multiplications, a mean and a reciprocal root; attention is
//! products, a mask and the pieces of a softmax. Whatever an engine has a unit for is found later, by rules.

mod attention;
mod check;
mod delta;
mod ffn;
mod moe;
mod parts;
mod text;

use std::sync::Arc;
use wordline_ir::graph::{Binary, Part, Prim, Reduce, Site, Unary, Wave, Weight};
use wordline_ir::spec::{Layer, Mixer, Rope, View};
use wordline_ir::{Const, ProgramError, Spec};

/// A value of an authored step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub usize);

/// One operation of an authored step.
#[derive(Clone, Debug, PartialEq)]
pub struct Authored {
    /// The value it makes; unique.
    pub value: Value,
    /// Name: the dotted path of the part, then what the operation is to it. Unique.
    pub name: String,
    /// Where it stands.
    pub site: Site,
    /// What it does.
    pub prim: Prim,
    /// The values it reads, in order.
    pub inputs: Vec<Value>,
}

/// A decode step as its author writes it, over a cache of `ctx` positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Cache positions.
    pub ctx: usize,
    /// The operations, each after the ones it reads.
    pub ops: Vec<Authored>,
    /// The logits.
    pub result: Value,
}

/// The decode step of `spec`, over a cache of `ctx` positions.
///
/// # Errors
/// [`ProgramError::Author`] when the facts contradict one another: it names the layer, the part and the fact.
pub fn author(spec: &Spec, ctx: usize) -> Result<Step, ProgramError> {
    check::check(spec, ctx)?;
    let mut author = Author::new(ctx);
    author.shared(spec);
    let mut x = author.embed(spec);
    for (index, layer) in spec.layers.iter().enumerate() {
        x = author.layer(index, layer, spec, x);
    }
    let logits = author.head(spec, x);
    Ok(author.finish(logits))
}

/// A window as the program means it: one that no position can leave is none.
fn window_of(window: Option<usize>, max_pos: usize) -> Option<usize> {
    window.filter(|window| *window < max_pos)
}

/// Writes a step, operation by operation.
pub(crate) struct Author {
    ctx: usize,
    ops: Vec<Authored>,
    path: String,
    site: Site,
    position: Option<Value>,
    rotary: Vec<(Arc<Rope>, [Value; 2])>,
    masks: Vec<(Option<usize>, Value)>,
}

impl Author {
    pub(crate) fn new(ctx: usize) -> Self {
        Self {
            ctx,
            ops: Vec::new(),
            path: "step".to_owned(),
            site: Site { layer: None, part: Part::Step },
            position: None,
            rotary: Vec::new(),
            masks: Vec::new(),
        }
    }

    pub(crate) fn finish(self, result: Value) -> Step {
        Step { ctx: self.ctx, ops: self.ops, result }
    }

    /// Write what follows under this path and part.
    pub(crate) fn at(&mut self, path: &str, layer: Option<usize>, part: Part) {
        path.clone_into(&mut self.path);
        self.site = Site { layer, part };
    }

    /// One operation.
    pub(crate) fn op(&mut self, label: &str, prim: Prim, inputs: &[Value]) -> Value {
        let value = Value(self.ops.len());
        let name = format!("{}.{label}", self.path);
        self.ops.push(Authored { value, name, site: self.site, prim, inputs: inputs.to_vec() });
        value
    }

    pub(crate) fn binary(&mut self, label: &str, how: Binary, a: Value, b: Value) -> Value {
        self.op(label, Prim::Binary(how), &[a, b])
    }

    pub(crate) fn unary(&mut self, label: &str, how: Unary, x: Value) -> Value {
        self.op(label, Prim::Unary(how), &[x])
    }

    pub(crate) fn reduce(&mut self, label: &str, how: Reduce, axis: usize, x: Value) -> Value {
        self.op(label, Prim::Reduce { how, axis }, &[x])
    }

    pub(crate) fn slice(&mut self, label: &str, axis: usize, start: usize, len: usize, x: Value) -> Value {
        self.op(label, Prim::Slice { axis, start, len }, &[x])
    }

    pub(crate) fn reshape(&mut self, label: &str, shape: &[usize], x: Value) -> Value {
        self.op(label, Prim::Reshape { shape: shape.to_vec() }, &[x])
    }

    /// Elements of an axis repeated; nothing is written when there is one copy.
    pub(crate) fn repeat(&mut self, label: &str, axis: usize, times: usize, x: Value) -> Value {
        if times == 1 { x } else { self.op(label, Prim::Repeat { axis, times }, &[x]) }
    }

    pub(crate) fn constant(&mut self, label: &str, value: f32) -> Value {
        self.op(label, Prim::Const(Const::new(value)), &[])
    }

    /// x times a constant; nothing is written when it is 1.
    pub(crate) fn scaled(&mut self, label: &str, factor: f32, x: Value) -> Value {
        if factor == 1.0 {
            return x;
        }
        let c = self.constant(&format!("{label}.factor"), factor);
        self.binary(label, Binary::Mul, x, c)
    }

    /// A held tensor under the present path; an empty label stands for the path itself.
    pub(crate) fn param(&mut self, label: &str, view: &View, shape: Vec<usize>) -> Value {
        let name = if label.is_empty() { self.path.clone() } else { format!("{}.{label}", self.path) };
        let value = Value(self.ops.len());
        let prim = Prim::Param { weight: Weight { name: name.clone(), view: Arc::new(view.clone()) }, shape };
        self.ops.push(Authored { value, name, site: self.site, prim, inputs: Vec::new() });
        value
    }

    pub(crate) fn vector(&mut self, label: &str, view: &View) -> Value {
        self.param(label, view, vec![view.rows()])
    }

    pub(crate) fn matrix(&mut self, label: &str, view: &View) -> Value {
        self.param(label, view, vec![view.rows(), view.cols()])
    }

    /// The row's position, written once.
    pub(crate) fn position(&mut self) -> Value {
        if let Some(position) = self.position {
            return position;
        }
        let position = self.op("position", Prim::Position, &[]);
        self.position = Some(position);
        position
    }

    /// Cosines and sines of a recipe at the row's position, written once for all layers with the same recipe.
    pub(crate) fn rotary(&mut self, rope: &Rope) -> [Value; 2] {
        if let Some((_, waves)) = self.rotary.iter().find(|(known, _)| **known == *rope) {
            return *waves;
        }
        let (position, rope, n) = (self.position(), Arc::new(rope.clone()), self.rotary.len());
        let mut wave = |label: &str, wave| {
            self.op(&format!("rotary.{n}.{label}"), Prim::Rotary { rope: rope.clone(), wave }, &[position])
        };
        let waves = [wave("cos", Wave::Cos), wave("sin", Wave::Sin)];
        self.rotary.push((rope, waves));
        waves
    }

    /// What the row's position may see, written once for all layers with the same window.
    pub(crate) fn mask(&mut self, window: Option<usize>) -> Value {
        if let Some((_, mask)) = self.masks.iter().find(|(known, _)| *known == window) {
            return *mask;
        }
        let (position, label) = (self.position(), format!("mask.{}", self.masks.len()));
        let mask = self.op(&label, Prim::Mask { ctx: self.ctx, window }, &[position]);
        self.masks.push((window, mask));
        mask
    }

    /// What layers share stands at the head of the step.
    fn shared(&mut self, spec: &Spec) {
        for layer in &spec.layers {
            if let Mixer::Attention(attention) = &layer.mixer {
                if let Some(rope) = &attention.rope {
                    self.rotary(rope);
                }
                self.mask(window_of(attention.window, spec.max_pos));
            }
        }
    }

    pub(crate) fn embed(&mut self, spec: &Spec) -> Value {
        let position = spec.positions.as_ref().map(|_| self.position());
        self.at("embed", None, Part::Embed);
        let token = self.op("token", Prim::Token, &[]);
        let table = self.matrix("", &spec.embed);
        let row = self.op("row", Prim::Rows, &[table, token]);
        let row = self.scaled("scaled", spec.embed_scale, row);
        match (&spec.positions, position) {
            (Some(view), Some(position)) => {
                self.path = "positions".to_owned();
                let table = self.matrix("", view);
                let learned = self.op("row", Prim::Rows, &[table, position]);
                self.binary("added", Binary::Add, row, learned)
            }
            _ => row,
        }
    }

    fn layer(&mut self, index: usize, layer: &Layer, spec: &Spec, x: Value) -> Value {
        let base = format!("layers.{index}");
        let at = Some(index);
        self.at(&format!("{base}.norm.mixer"), at, Part::MixerNorm);
        let h = self.norm("", &layer.pre_mixer, x, 0);
        let mut mixed = match &layer.mixer {
            Mixer::Attention(attention) => {
                self.at(&format!("{base}.attn"), at, Part::Attn);
                self.attention(attention, spec.max_pos, h)
            }
            Mixer::DeltaNet(delta) => {
                self.at(&format!("{base}.delta"), at, Part::Delta);
                self.delta(delta, h)
            }
        };
        if let Some(norm) = &layer.post_mixer {
            self.at(&format!("{base}.norm.mixer_post"), at, Part::MixerPost);
            mixed = self.norm("", norm, mixed, 0);
        }
        self.at(&format!("{base}.residual.mixer"), at, Part::MixerAdd);
        let x = self.binary("sum", Binary::Add, x, mixed);
        self.at(&format!("{base}.norm.ffn"), at, Part::FfnNorm);
        let h = self.norm("", &layer.pre_ffn, x, 0);
        let mut fed = self.ffn(&base, index, &layer.ffn, spec.hidden, h);
        if let Some(norm) = &layer.post_ffn {
            self.at(&format!("{base}.norm.ffn_post"), at, Part::FfnPost);
            fed = self.norm("", norm, fed, 0);
        }
        self.at(&format!("{base}.residual.ffn"), at, Part::FfnAdd);
        self.binary("sum", Binary::Add, x, fed)
    }

    fn head(&mut self, spec: &Spec, x: Value) -> Value {
        self.at("norm.final", None, Part::FinalNorm);
        let h = self.norm("", &spec.final_norm, x, 0);
        self.at("head", None, Part::Head);
        let logits = self.linear("", &spec.head, h);
        let logits = self.scaled("scaled", spec.logit_scale, logits);
        match spec.logit_cap {
            Some(cap) => self.soft_cap("logits", cap, logits),
            None => logits,
        }
    }
}
