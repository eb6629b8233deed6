//! `isa_reference`: the instruction set in words, generated from the tables that the codec and the engine run on.

use crate::command::{FieldInfo, OPS, OpInfo, Place, Role, Unit};
use crate::file::{FILE_VERSION, MAGIC};
use crate::text::FORM;
use crate::word::{FIELDS, FieldBits, USED_BITS, WORD_BITS};
use crate::{LayerId, Slot, TensorId};
use std::fmt::Write;

/// The ISA reference in Markdown: the word's layout, the slots, every command with its unit and fields.
#[must_use]
pub fn isa_reference() -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out);
    out
}

fn write(out: &mut String) -> std::fmt::Result {
    writeln!(out, "# The instruction set\n")?;
    writeln!(
        out,
        "One step of a model is a list of {WORD_BITS}-bit words. A word is one command: one unit's job over"
    )?;
    writeln!(out, "every token-row of the step, in the step's row order, finished before the next command starts.")?;
    writeln!(out, "This text is `wordline isa`; it is generated from the tables that encode and decode the words.\n")?;
    word(out)?;
    slots(out)?;
    commands(out)?;
    OPS.iter().try_for_each(|op| command(out, op))?;
    write!(out, "\n## Program text\n\n{FORM}")
}

fn word(out: &mut String) -> std::fmt::Result {
    writeln!(out, "## The word\n")?;
    writeln!(out, "Bit 0 is the least significant. Fields are contiguous: {USED_BITS} bits are used.\n")?;
    writeln!(out, "| bits | width | field | unused |\n|---|---|---|---|")?;
    for field in FIELDS {
        let unused = match field.name {
            "command" => "never: 0 is no command".to_owned(),
            "layer" => format!("{} outside any layer", LayerId::OUTSIDE.0),
            name if name.starts_with("count") || matches!(name, "offset" | "constant") => "0".to_owned(),
            _ => format!("all ones, {}", field.all_ones()),
        };
        writeln!(out, "| {} | {} | {} | {unused} |", bits(field), field.width, field.name)?;
    }
    let spare = WORD_BITS - USED_BITS;
    writeln!(out, "| {}:{USED_BITS} | {spare} | spare | 0 |\n", WORD_BITS - 1)?;
    writeln!(
        out,
        "- A word is refused when a spare bit is set, no command has its opcode, a field that the command does"
    )?;
    writeln!(
        out,
        "  not use is set, or a used field holds no value of its type. So every command has one word and every"
    )?;
    writeln!(out, "  word that is not refused is one command.")?;
    writeln!(out, "- A tensor is an index in the program's tensor table, which is the weight image's order; at most")?;
    writeln!(
        out,
        "  {}. Rows and columns come from that table, so that no vocabulary overflows a count.",
        TensorId::LIMIT
    )?;
    writeln!(out, "- A rotary table is an index in the program's list of recipes, 0 to {}.", u8::MAX - 1)?;
    writeln!(out, "- Layers are 0 to {}. The embedding, the final norm and the head carry {}.", u8::MAX - 1, u8::MAX)?;
    writeln!(out, "- The constant is an f32, kept and compared by bits.")?;
    writeln!(
        out,
        "- In hex a word is 64 digits, bits {}:{} first. In a file it is 32 bytes, bits 7:0 first;",
        WORD_BITS - 1,
        WORD_BITS - 4
    )?;
    let magic = String::from_utf8_lossy(&MAGIC);
    writeln!(
        out,
        "  the file begins with `{magic}`, has version {FILE_VERSION} and ends with the SHA-256 of all before it.\n"
    )
}

fn slots(out: &mut String) -> std::fmt::Result {
    writeln!(out, "## Slots\n")?;
    writeln!(
        out,
        "Vectors that each token-row carries, f32. A slot's width is the program's; elementwise commands take"
    )?;
    writeln!(out, "their width from it. Only `x` passes from one layer to the next.\n")?;
    writeln!(out, "| code | slot | holds |\n|---|---|---|")?;
    Slot::ALL.iter().try_for_each(|s| writeln!(out, "| {} | {} | {} |", s.code(), s.name(), cell(s.meaning())))?;
    out.push('\n');
    Ok(())
}

fn commands(out: &mut String) -> std::fmt::Result {
    writeln!(out, "## Commands\n")?;
    writeln!(out, "| opcode | command | unit | fields |\n|---|---|---|---|")?;
    for op in OPS {
        let fields: Vec<&str> = op.fields.iter().map(|field| field.name).collect();
        let fields = fields.join(", ");
        writeln!(out, "| {} | [{m}](#{m}) | {} | {fields} |", op.code, unit(op.unit), m = op.mnemonic)?;
    }
    Ok(())
}

fn command(out: &mut String, op: &OpInfo) -> std::fmt::Result {
    writeln!(out, "\n### {}\n", op.mnemonic)?;
    writeln!(out, "Opcode {}, {} unit. {}\n", op.code, unit(op.unit), op.doc)?;
    writeln!(out, "| field | bits | in | use | meaning |\n|---|---|---|---|---|")?;
    for (field, place) in op.places() {
        let bits_of = place.bits();
        let meaning = meaning(field);
        writeln!(
            out,
            "| {} | {} | {} | {} | {meaning} |",
            field.name,
            bits(bits_of),
            bits_of.name,
            usage(field, place)
        )?;
    }
    Ok(())
}

fn bits(field: &FieldBits) -> String {
    format!("{}:{}", field.first + field.width - 1, field.first)
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Array => "array",
        Unit::Vector => "vector",
        Unit::Conv => "conv",
        Unit::Delta => "delta",
        Unit::Attend => "attend",
    }
}

fn usage(field: &FieldInfo, place: Place) -> String {
    let role = match field.role {
        Role::Read => "read",
        Role::Write => "written",
        Role::Update => "updated in place",
        Role::Part => "written in part",
        Role::Matrix => "int8 matrix",
        Role::Plain => "f32 tensor",
        Role::Count if !field.choices.is_empty() => "choice",
        Role::Count => "count",
        Role::Offset => "number",
        Role::Table => "rotary table",
        Role::Constant => "f32",
    };
    match place.none() {
        Some(none) if field.optional => format!("{role}, or none ({none})"),
        _ => role.to_owned(),
    }
}

/// Text in a table's cell, which a bar would end.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn meaning(field: &FieldInfo) -> String {
    let meaning = cell(field.meaning);
    if field.choices.is_empty() {
        return meaning;
    }
    let choices: Vec<String> = field.choices.iter().map(|(code, name)| format!("{code} {name}")).collect();
    format!("{meaning}: {}", choices.join(", "))
}
