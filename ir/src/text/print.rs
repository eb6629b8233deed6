//! The printer: a program as text.

use super::{TEXT_VERSION, is_bare, scaling_name, shape_text};
use crate::command::{Place, Role};
use crate::program::{Program, Tensor, TensorKind};
use crate::spec::{Part, Rope, RopeScaling, RowRange};
use crate::{Command, LayerId, Slot, Word};
use std::fmt::Write;

/// The program as text.
#[must_use]
pub fn to_text(program: &Program) -> String {
    print(program, false)
}

/// The program as text with each command's word, or why it has none, as a comment on its line.
#[must_use]
pub fn to_text_with_words(program: &Program) -> String {
    print(program, true)
}

/// One command's line of text, without its line end. Tensors show the names that the program gives them.
#[must_use]
pub fn command_text(program: &Program, command: &Command) -> String {
    line_of(&Names::of(program), command)
}

/// What command lines call the tensors.
struct Names(Vec<String>);

impl Names {
    /// By name and shape; by index where two tensors share a name.
    fn of(program: &Program) -> Self {
        let mut count = std::collections::HashMap::new();
        for tensor in &program.tensors {
            *count.entry(tensor.name.as_str()).or_insert(0_usize) += 1;
        }
        let name = |(index, tensor): (usize, &Tensor)| match count.get(tensor.name.as_str()) {
            Some(1) => format!("{}{}", quoted(&tensor.name), shape_text(tensor)),
            _ => format!("@{index}{}", shape_text(tensor)),
        };
        Self(program.tensors.iter().enumerate().map(name).collect())
    }
}

fn print(program: &Program, words: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = header(&mut out, program);
    let names = Names::of(program);
    let mut layer = None;
    for command in &program.commands {
        if layer != Some(command.layer()) {
            out.push('\n');
            layer = Some(command.layer());
        }
        out.push_str(&line_of(&names, command));
        if words {
            let _ = match Word::encode(command) {
                Ok(word) => write!(out, "  # {word}"),
                Err(error) => write!(out, "  # no word: {error}"),
            };
        }
        out.push('\n');
    }
    out
}

fn header(out: &mut String, program: &Program) -> std::fmt::Result {
    let identity = &program.identity;
    let (n, cut) = (&identity.numerics, &identity.cut);
    writeln!(out, "program {TEXT_VERSION}")?;
    writeln!(out, "family {}", quoted(&identity.family))?;
    writeln!(out, "spec {}", quoted(&identity.spec))?;
    let [acts, queries, probs] = [n.acts, n.queries, n.probs].map(crate::ActFormat::name);
    let weights = n.weights.name();
    writeln!(out, "numerics weights={weights} acts={acts} queries={queries} probs={probs} lanes={}", n.lanes)?;
    writeln!(out, "cut ctx={} layers={}..{}", cut.ctx, cut.first_layer, cut.last_layer)?;
    writeln!(out, "max_pos {}\n", program.max_pos)?;
    for info in &program.slots {
        writeln!(out, "slot {} {}", info.slot.name(), info.width)?;
    }
    out.push('\n');
    program.tensors.iter().for_each(|tensor| out.push_str(&tensor_text(tensor)));
    for (index, rope) in program.ropes.iter().enumerate() {
        out.push_str(if index == 0 { "\n" } else { "" });
        out.push_str(&rope_text(index, rope));
    }
    Ok(())
}

/// A tensor's lines: the entry and its view's parts.
pub(crate) fn tensor_text(tensor: &Tensor) -> String {
    let mut out = String::new();
    let _ = self::tensor(&mut out, tensor);
    out
}

/// A rotary recipe's line.
pub(crate) fn rope_text(index: usize, rope: &Rope) -> String {
    let mut out = String::new();
    let _ = self::rope(&mut out, index, rope);
    out
}

fn tensor(out: &mut String, tensor: &Tensor) -> std::fmt::Result {
    write!(out, "tensor {} ", quoted(&tensor.name))?;
    match tensor.kind {
        TensorKind::Matrix => out.push_str("matrix"),
        TensorKind::Plain => out.push_str("plain"),
        TensorKind::Stack { experts } => write!(out, "stack {experts} of")?,
    }
    writeln!(out, " {}x{}{}", tensor.rows, tensor.cols, if tensor.view.add_one { " add_one" } else { "" })?;
    for part in &tensor.view.parts {
        let shape: Vec<String> = part.shape.iter().map(usize::to_string).collect();
        let shape = if shape.is_empty() { "scalar".to_owned() } else { shape.join("x") };
        write!(out, "  part {} {shape}", quoted(&part.tensor))?;
        out.push_str(if part.transpose { " transposed" } else { "" });
        if part.rows != [all_rows(part)] {
            let rows: Vec<String> = part.rows.iter().map(|r| format!("{}..{}", r.start, r.end)).collect();
            write!(out, " rows {}", if rows.is_empty() { "none".to_owned() } else { rows.join(",") })?;
        }
        out.push('\n');
    }
    Ok(())
}

/// The row list that a part line leaves out: every row of the stored tensor, once.
pub(super) fn all_rows(part: &Part) -> RowRange {
    let axis = usize::from(part.transpose);
    RowRange { start: 0, end: part.shape.get(axis).copied().unwrap_or(0) }
}

fn rope(out: &mut String, index: usize, rope: &Rope) -> std::fmt::Result {
    let pairs = if rope.interleaved { "interleaved" } else { "half" };
    let name = scaling_name(&rope.scaling);
    write!(out, "rope {index} theta={} rot={} pairs={pairs} scaling={name}", double(rope.theta), rope.rot)?;
    let list = |values: &[f64]| values.iter().map(|v| double(*v)).collect::<Vec<_>>().join(",");
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => write!(out, " factor={}", double(*factor))?,
        RopeScaling::Dynamic { factor, original } => write!(out, " factor={} original={original}", double(*factor))?,
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor } => write!(
            out,
            " factor={} original={original} beta_fast={} beta_slow={} truncate={} attention_factor={}",
            double(*factor),
            double(*beta_fast),
            double(*beta_slow),
            if *truncate { "yes" } else { "no" },
            double(*attention_factor),
        )?,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => write!(
            out,
            " factor={} low_freq_factor={} high_freq_factor={} original={original}",
            double(*factor),
            double(*low_freq_factor),
            double(*high_freq_factor),
        )?,
        RopeScaling::LongRope { short, long, original, attention_factor } => write!(
            out,
            " original={original} attention_factor={} short={} long={}",
            double(*attention_factor),
            list(short),
            list(long),
        )?,
    }
    out.push('\n');
    Ok(())
}

fn line_of(names: &Names, command: &Command) -> String {
    let info = command.info();
    let raw = command.to_raw();
    let layer = match command.layer() {
        LayerId::OUTSIDE => "--".to_owned(),
        LayerId(layer) => format!("L{layer}"),
    };
    let (mut read, mut written, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (field, place) in info.places() {
        let bits = raw.get(place);
        let none = field.optional && place.none() == Some(bits);
        match (place, field.role) {
            _ if none => {}
            (Place::Slot(i), role) => {
                let slot = Slot::from_code(raw.slots[i]).map_or("?", Slot::name);
                if matches!(role, Role::Write | Role::Part) { &mut written } else { &mut read }.push(slot);
            }
            (Place::Tensor(_), _) => {
                let name = names.0.get(bits as usize).cloned().unwrap_or_else(|| format!("@{bits}"));
                rest.push(format!("{}={name}", field.name));
            }
            (Place::Offset, _) if bits == 0 => {}
            (Place::Constant, _) => rest.push(format!("{}={}", field.name, single(bits))),
            (Place::Count(_), _) if !field.choices.is_empty() => {
                let choice = field.choices.iter().find(|(code, _)| u32::from(*code) == bits);
                rest.push(format!("{}={}", field.name, choice.map_or("?", |(_, name)| name)));
            }
            (Place::Count(_) | Place::Offset | Place::Table, _) => rest.push(format!("{}={bits}", field.name)),
        }
    }
    let mut slots = read.join(", ");
    if !written.is_empty() {
        slots.push_str(if read.is_empty() { "-> " } else { " -> " });
        slots.push_str(&written.join(", "));
    }
    format!("{layer:<4} {:<13} {slots:<24} {}", info.mnemonic, rest.join(" ")).trim_end().to_owned()
}

/// An f32 by its bits: the shortest decimal that gives them back, or the bits themselves.
fn single(bits: u32) -> String {
    let value = f32::from_bits(bits);
    if value.is_finite() { format!("{value:?}") } else { format!("{bits:#010x}") }
}

/// An f64: the shortest decimal that gives its bits back, or the bits themselves.
fn double(value: f64) -> String {
    if value.is_finite() { format!("{value:?}") } else { format!("{:#018x}", value.to_bits()) }
}

/// A name, in quotes where it needs them.
pub(super) fn quoted(name: &str) -> String {
    if !name.is_empty() && name.chars().all(is_bare) {
        return name.to_owned();
    }
    serde_json::Value::from(name).to_string()
}
