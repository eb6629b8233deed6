//! `hand_lowering`: a model's program written from its Spec directly, command by command.
//!
//! It is the oracle that [`crate::lower`] is held to, and never a program that an engine is given. It shares no code with
//! the path it judges: what it knows of a step, it knows from the Spec and from the meaning of the commands alone.

mod tables;

use tables::Hand;
use wordline_ir::spec::{
    Activation, Attention, DeltaNet, Ffn, Layer, Linear, Mixer, Mlp, Moe, Norm, NormKind, SharedExpert, View,
};
use wordline_ir::{
    Command, Const, Cut, Identity, Numerics, Program, ProgramError, Slot, Spec, TensorKind, spec_digest,
};

/// The step of `spec` at `numerics`: the embedding, each layer's mixer and FFN around the residual, the final norm and the
/// head. Its identity records no cut: it was read off none.
///
/// # Errors
/// [`ProgramError::Author`] when a tensor is not as large as the Spec's facts say, [`ProgramError::Block`] for norms that
/// no unit has and for slots of more than one width, [`ProgramError::Field`] when a value overflows a field of the word.
pub fn hand_lowering(spec: &Spec, numerics: &Numerics) -> Result<Program, ProgramError> {
    let mut hand = Hand::default();
    hand.embed(spec)?;
    for (index, layer) in spec.layers.iter().enumerate() {
        hand.layer(spec, index, layer)?;
    }
    hand.head(spec)?;
    let cut = Cut { ctx: 0, first_layer: 0, last_layer: 0 };
    Ok(Program {
        identity: Identity { family: spec.family.clone(), spec: spec_digest(spec), numerics: *numerics, cut },
        max_pos: spec.max_pos,
        slots: hand.widths.into_values().collect(),
        tensors: hand.tensors,
        ropes: hand.ropes,
        commands: hand.commands,
    })
}

const ONE: Const = Const::new(1.0);

/// A product of sizes; one that overflows fits no tensor and is refused with the first that it is compared to.
fn times(a: usize, b: usize) -> usize {
    a.saturating_mul(b)
}

/// A projection about to be written: its tensor's name, its weights, and its output's width.
struct Projection<'a> {
    name: String,
    linear: &'a Linear,
    out: usize,
}

impl Hand {
    fn embed(&mut self, spec: &Spec) -> Result<(), ProgramError> {
        let table = self.matrix("embed", &spec.embed, spec.vocab, spec.hidden)?;
        let positions = match &spec.positions {
            Some(view) => Some(self.plain("positions", view, spec.max_pos, spec.hidden)?),
            None => None,
        };
        self.widen(Slot::X, spec.hidden)?;
        let (layer, scale) = (self.code()?, Const::new(spec.embed_scale));
        self.commands.push(Command::Embed { layer, out: Slot::X, table, positions, scale });
        Ok(())
    }

    fn layer(&mut self, spec: &Spec, index: usize, layer: &Layer) -> Result<(), ProgramError> {
        self.layer = Some(index);
        let base = format!("layers.{index}");
        let (x, h, mix) = (Slot::X, Slot::H, Slot::Mix);
        self.norm(&format!("{base}.norm.mixer"), &layer.pre_mixer, spec.hidden, x, h)?;
        match &layer.mixer {
            Mixer::Attention(a) => self.attention(&format!("{base}.attn"), spec, a)?,
            Mixer::DeltaNet(d) => self.delta(&format!("{base}.delta"), spec, d)?,
        }
        if let Some(norm) = &layer.post_mixer {
            self.norm(&format!("{base}.norm.mixer_post"), norm, spec.hidden, mix, mix)?;
        }
        self.add(x, mix)?;
        self.norm(&format!("{base}.norm.ffn"), &layer.pre_ffn, spec.hidden, x, h)?;
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                let slots = [Slot::GateUp, Slot::Inner, Slot::Mix];
                self.mlp(&format!("{base}.mlp"), spec, mlp, slots)?;
            }
            Ffn::Moe(moe) => self.moe(&format!("{base}.moe"), spec, moe)?,
        }
        if let Some(norm) = &layer.post_ffn {
            self.norm(&format!("{base}.norm.ffn_post"), norm, spec.hidden, mix, mix)?;
        }
        self.add(x, mix)?;
        self.layer = None;
        Ok(())
    }

    fn head(&mut self, spec: &Spec) -> Result<(), ProgramError> {
        self.norm("norm.final", &spec.final_norm, spec.hidden, Slot::X, Slot::H)?;
        let head = Projection { name: "head".to_owned(), linear: &spec.head, out: spec.vocab };
        self.matvec(&head, spec.hidden, Slot::H, Slot::Logits, 0)?;
        self.widen(Slot::Logits, spec.vocab)?;
        let (layer, x) = (self.code()?, Slot::Logits);
        if spec.logit_scale != 1.0 {
            self.commands.push(Command::Scale { layer, x, width: 0, scale: Const::new(spec.logit_scale) });
        }
        if let Some(cap) = spec.logit_cap {
            self.commands.push(Command::SoftCap { layer, x, cap: Const::new(cap) });
        }
        Ok(())
    }

    fn attention(&mut self, base: &str, spec: &Spec, a: &Attention) -> Result<(), ProgramError> {
        let (q, k, v) = (times(a.heads, a.head_dim), times(a.kv_heads, a.head_dim), times(a.kv_heads, a.v_dim));
        let (attn, qkv) = (times(a.heads, a.v_dim), Slot::Qkv);
        let parts = [("q", &a.q, q), ("k", &a.k, k), ("v", &a.v, v)];
        self.side_by_side(base, "qkv", &parts, spec.hidden, qkv)?;
        if let Some(linear) = &a.gate {
            self.project(format!("{base}.gate"), linear, [spec.hidden, attn], Slot::H, Slot::Gate)?;
        }
        let layer = self.code()?;
        if let Some(eps) = self.head_norms_eps(a)? {
            let weight = |hand: &mut Self, label: &str, norm: &Option<Norm>| {
                let norm = norm.as_ref();
                norm.map(|n| hand.plain(&format!("{base}.{label}"), &n.weight, a.head_dim, 1)).transpose()
            };
            let q_weight = weight(self, "q_norm", &a.q_norm)?;
            let k_weight = weight(self, "k_norm", &a.k_norm)?;
            let [heads, kv_heads, head_dim] = [
                self.count("heads", a.heads)?,
                self.count("kv_heads", a.kv_heads)?,
                self.count("head_dim", a.head_dim)?,
            ];
            self.commands.push(Command::HeadNorm { layer, qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps });
        }
        let scale = Const::new(a.scale);
        match &a.rope {
            Some(rope) => {
                let [heads, kv_heads, head_dim, rot] = [
                    self.count("heads", a.heads)?,
                    self.count("kv_heads", a.kv_heads)?,
                    self.count("head_dim", a.head_dim)?,
                    self.count("rot", rope.rot)?,
                ];
                let table = self.rope(rope)?;
                self.commands.push(Command::Rope { layer, qkv, heads, kv_heads, head_dim, rot, table, scale });
            }
            None if a.scale != 1.0 => {
                let width = self.count("width", q)?;
                self.commands.push(Command::Scale { layer, x: qkv, width, scale });
            }
            None => {}
        }
        let heads = self.count("heads", a.heads)?;
        let kv_heads = self.count("kv_heads", a.kv_heads)?;
        let head_dim = self.count("head_dim", a.head_dim)?;
        let v_dim = self.count("v_dim", a.v_dim)?;
        self.commands.push(Command::CacheAppend { layer, qkv, heads, kv_heads, head_dim, v_dim });
        let window = self.count("window", a.window.filter(|w| *w < spec.max_pos).unwrap_or(0))?;
        self.widen(Slot::Attn, attn)?;
        let (out, cap) = (Slot::Attn, Const::new(a.soft_cap.unwrap_or(0.0)));
        self.commands.push(Command::Attend { layer, qkv, out, heads, kv_heads, head_dim, window, cap });
        if a.gate.is_some() {
            self.commands.push(Command::Gate { layer, x: out, gate: Slot::Gate, out, group: 1 });
        }
        self.project(format!("{base}.o"), &a.o, [attn, spec.hidden], Slot::Attn, Slot::Mix)
    }

    /// The one eps of an attention's head norms; none without norms.
    fn head_norms_eps(&self, a: &Attention) -> Result<Option<Const>, ProgramError> {
        let norms: Vec<&Norm> = a.q_norm.iter().chain(&a.k_norm).collect();
        let eps = norms.first().map(|n| Const::new(n.eps));
        if norms.iter().any(|n| n.kind != NormKind::Rms || n.bias.is_some() || Some(Const::new(n.eps)) != eps) {
            return Err(self.refuse("head_norm", "the norms of q and k are rms, without bias, of one eps"));
        }
        Ok(eps)
    }

    fn delta(&mut self, base: &str, spec: &Spec, d: &DeltaNet) -> Result<(), ProgramError> {
        let (keys, values) = (times(d.key_heads, d.key_dim), times(d.value_heads, d.value_dim));
        let channels = times(2, keys).saturating_add(values);
        self.project(format!("{base}.qkv"), &d.qkv, [spec.hidden, channels], Slot::H, Slot::DeltaIn)?;
        self.project(format!("{base}.z"), &d.z, [spec.hidden, values], Slot::H, Slot::DeltaZ)?;
        let parts = [("b", &d.b, d.value_heads), ("a", &d.a, d.value_heads)];
        self.side_by_side(base, "ba", &parts, spec.hidden, Slot::DeltaBa)?;

        let layer = self.code()?;
        let (x, out) = (Slot::DeltaIn, Slot::DeltaQkv);
        self.widen(out, channels)?;
        let weight = self.plain(&format!("{base}.conv"), &d.conv.weight, channels, d.conv_taps)?;
        let bias = match &d.conv.bias {
            Some(bias) => Some(self.plain(&format!("{base}.conv.bias"), bias, channels, 1)?),
            None => None,
        };
        let (count, taps) = (self.count("channels", channels)?, self.count("taps", d.conv_taps)?);
        self.commands.push(Command::Conv { layer, x, out, weight, bias, channels: count, taps, act: d.conv_act });

        let heads = self.count("heads", times(2, d.key_heads))?;
        let head_dim = self.count("head_dim", d.key_dim)?;
        self.commands.push(Command::L2Norm { layer, x: out, heads, head_dim, eps: Const::new(d.l2_eps) });

        let a_log = self.plain(&format!("{base}.a_log"), &d.a_log, d.value_heads, 1)?;
        let dt_bias = self.plain(&format!("{base}.dt_bias"), &d.dt_bias, d.value_heads, 1)?;
        let value_heads = self.count("value_heads", d.value_heads)?;
        let (ba, gb) = (Slot::DeltaBa, Slot::DeltaGb);
        self.widen(gb, times(2, d.value_heads))?;
        self.commands.push(Command::DeltaGate { layer, ba, gb, a_log, dt_bias, heads: value_heads });

        let share = d.value_heads / d.key_heads.max(1);
        self.widen(Slot::DeltaOut, values)?;
        self.commands.push(Command::Delta {
            layer,
            qkv: Slot::DeltaQkv,
            gb,
            out: Slot::DeltaOut,
            key_heads: self.count("key_heads", d.key_heads)?,
            value_heads,
            key_dim: self.count("key_dim", d.key_dim)?,
            value_dim: self.count("value_dim", d.value_dim)?,
            share: self.offset("share", share)?,
            scale: Const::new(d.q_scale),
        });

        if d.norm.kind != NormKind::Rms || d.norm.bias.is_some() {
            return Err(self.refuse("gated_norm", "a gated norm is rms, without bias"));
        }
        let (x, gate, act) = (Slot::DeltaOut, Slot::DeltaZ, Activation::Silu);
        let weight = self.plain(&format!("{base}.norm"), &d.norm.weight, d.value_dim, 1)?;
        let (head_dim, eps) = (self.count("head_dim", d.value_dim)?, Const::new(d.norm.eps));
        let heads = value_heads;
        self.commands.push(Command::GatedNorm { layer, x, gate, out: x, weight, heads, head_dim, act, eps });
        self.project(format!("{base}.o"), &d.o, [values, spec.hidden], Slot::DeltaOut, Slot::Mix)
    }

    /// A dense network or a shared expert: `[gate | up, inner, out]` are its slots.
    fn mlp(&mut self, base: &str, spec: &Spec, mlp: &Mlp, [both, inner, out]: [Slot; 3]) -> Result<(), ProgramError> {
        match &mlp.gate {
            Some(gate) => {
                let parts = [("gate", gate, mlp.inter), ("up", &mlp.up, mlp.inter)];
                self.side_by_side(base, "gate_up", &parts, spec.hidden, both)?;
            }
            None => self.project(format!("{base}.up"), &mlp.up, [spec.hidden, mlp.inter], Slot::H, both)?,
        }
        self.widen(inner, mlp.inter)?;
        let (layer, kind, gated) = (self.code()?, mlp.act, mlp.gate.is_some());
        self.commands.push(Command::Act { layer, x: both, out: inner, kind, gated, groups: 1 });
        self.project(format!("{base}.down"), &mlp.down, [mlp.inter, spec.hidden], inner, out)
    }

    fn moe(&mut self, base: &str, spec: &Spec, moe: &Moe) -> Result<(), ProgramError> {
        let (hidden, inter, pair) = (spec.hidden, moe.inter, times(2, moe.inter));
        self.project(format!("{base}.router"), &moe.router, [hidden, moe.experts], Slot::H, Slot::Router)?;
        let layer = self.code()?;
        let (experts, k) = (self.count("experts", moe.experts)?, self.count("k", moe.top_k)?);
        let (logits, picks, weights) = (Slot::Router, Slot::Picks, Slot::PickWeights);
        self.widen(picks, moe.top_k)?;
        self.widen(weights, moe.top_k)?;
        let renormalise = moe.renormalise;
        self.commands.push(Command::TopK { layer, logits, picks, weights, experts, k, renormalise });

        let kind = TensorKind::Stack { experts: moe.experts };
        let stack = self.tensor(&format!("{base}.gate_up"), &moe.gate_up, kind, times(pair, moe.experts), hidden)?;
        let (both, inner) = (Slot::ExpertGateUp, Slot::ExpertInner);
        self.widen(both, times(pair, moe.top_k))?;
        self.commands.push(Command::RoutedMatvec { layer, x: Slot::H, picks, weights: None, y: both, stack, k });
        self.widen(inner, times(inter, moe.top_k))?;
        self.commands.push(Command::Act { layer, x: both, out: inner, kind: moe.act, gated: true, groups: k });
        let stack = self.tensor(&format!("{base}.down"), &moe.down, kind, times(hidden, moe.experts), inter)?;
        let weights = Some(weights);
        self.widen(Slot::Mix, hidden)?;
        self.commands.push(Command::RoutedMatvec { layer, x: inner, picks, weights, y: Slot::Mix, stack, k });
        match &moe.shared {
            Some(shared) => self.shared_expert(&format!("{base}.shared"), spec, shared),
            None => Ok(()),
        }
    }

    fn shared_expert(&mut self, base: &str, spec: &Spec, shared: &SharedExpert) -> Result<(), ProgramError> {
        self.mlp(base, spec, &shared.mlp, [Slot::SharedGateUp, Slot::SharedInner, Slot::SharedOut])?;
        if let Some(gate) = &shared.gate {
            self.project(format!("{base}.output_gate"), gate, [spec.hidden, 1], Slot::H, Slot::SharedGate)?;
            let (layer, x, group) = (self.code()?, Slot::SharedOut, self.count("group", spec.hidden)?);
            self.commands.push(Command::Gate { layer, x, gate: Slot::SharedGate, out: x, group });
        }
        self.add(Slot::Mix, Slot::SharedOut)
    }

    fn norm(&mut self, name: &str, norm: &Norm, width: usize, x: Slot, out: Slot) -> Result<(), ProgramError> {
        self.widen(out, width)?;
        let weight = self.plain(name, &norm.weight, width, 1)?;
        let bias = match &norm.bias {
            Some(bias) => Some(self.plain(&format!("{name}.bias"), bias, width, 1)?),
            None => None,
        };
        let (layer, eps) = (self.code()?, Const::new(norm.eps));
        self.commands.push(Command::Norm { layer, x, out, weight, bias, kind: norm.kind, eps });
        Ok(())
    }

    fn add(&mut self, x: Slot, y: Slot) -> Result<(), ProgramError> {
        let layer = self.code()?;
        self.commands.push(Command::Add { layer, x, y, out: x, scale: ONE });
        Ok(())
    }

    /// Projections of `h` whose outputs share a slot: one matrix where the weights stack, else one after the other.
    fn side_by_side(
        &mut self,
        base: &str,
        joint: &str,
        parts: &[(&str, &Linear, usize)],
        input: usize,
        slot: Slot,
    ) -> Result<(), ProgramError> {
        let weights: Vec<&View> = parts.iter().map(|(_, linear, _)| &linear.weight).collect();
        let biases: Vec<&View> = parts.iter().filter_map(|(_, linear, _)| linear.bias.as_ref()).collect();
        let width = parts.iter().fold(0usize, |sum, (_, _, out)| sum.saturating_add(*out));
        self.widen(slot, width)?;
        let bias = if biases.is_empty() { Some(None) } else { View::concat(&biases).map(Some) };
        let whole = biases.is_empty() || biases.len() == parts.len();
        if let (true, Some(weight), Some(bias)) = (whole, View::concat(&weights), bias) {
            let linear = Linear { weight, bias };
            let one = Projection { name: format!("{base}.{joint}"), linear: &linear, out: width };
            return self.matvec(&one, input, Slot::H, slot, 0);
        }
        let mut offset = 0usize;
        for (label, linear, out) in parts {
            let one = Projection { name: format!("{base}.{label}"), linear, out: *out };
            self.matvec(&one, input, Slot::H, slot, offset)?;
            offset = offset.saturating_add(*out);
        }
        Ok(())
    }

    /// A projection that fills its slot.
    fn project(
        &mut self,
        name: String,
        linear: &Linear,
        [input, out]: [usize; 2],
        x: Slot,
        y: Slot,
    ) -> Result<(), ProgramError> {
        self.widen(y, out)?;
        self.matvec(&Projection { name, linear, out }, input, x, y, 0)
    }

    fn matvec(
        &mut self,
        p: &Projection<'_>,
        input: usize,
        x: Slot,
        y: Slot,
        offset: usize,
    ) -> Result<(), ProgramError> {
        let weight = self.matrix(&p.name, &p.linear.weight, p.out, input)?;
        let bias = match &p.linear.bias {
            Some(bias) => Some(self.plain(&format!("{}.bias", p.name), bias, p.out, 1)?),
            None => None,
        };
        let (layer, offset) = (self.code()?, self.offset("offset", offset)?);
        self.commands.push(Command::Matvec { layer, x, y, weight, bias, offset });
        Ok(())
    }
}
