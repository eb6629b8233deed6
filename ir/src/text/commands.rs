//! Command lines: slots around an arrow, then the other fields by name.

use super::line::{Line, TextError, TextErrorKind};
use super::shape_text;
use crate::command::{FieldInfo, OPS, OpInfo, Place, RawWord, Role};
use crate::program::{Tensor, TensorId};
use crate::{Command, LayerId, Slot};
use std::collections::HashMap;

/// The tensors' indices by name.
#[derive(Default)]
pub(super) struct TensorNames(HashMap<String, (usize, Option<usize>)>);

impl TensorNames {
    pub(super) fn add(&mut self, name: &str, index: usize) {
        self.0.entry(name.to_owned()).and_modify(|(_, other)| *other = Some(index)).or_insert((index, None));
    }
}

/// The command that the rest of a line, after its layer, holds.
pub(super) fn command(
    line: &mut Line,
    layer: LayerId,
    tensors: &[Tensor],
    names: &TensorNames,
) -> Result<Command, TextError> {
    let mnemonic = line.word("a mnemonic")?;
    let Some(op) = OpInfo::named(&mnemonic.text) else {
        return Err(line.wrong(&mnemonic, "a mnemonic", OPS.iter().map(|op| op.mnemonic)));
    };
    let mut raw = RawWord::unused(op.code, layer.0);
    let arrow = op.fields.iter().any(|field| is_written(field.role));
    slots(line, op, &mut raw, false)?;
    if arrow && !line.eat("->") {
        return Err(line.expected("',' or '->' before the slots written", None));
    }
    slots(line, op, &mut raw, true)?;
    pairs(line, op, &mut raw, tensors, names)?;
    Command::from_raw(&raw).map_err(|e| line.error(mnemonic.column, e.into()))
}

/// A slot by name.
pub(super) fn slot(line: &mut Line) -> Result<Slot, TextError> {
    let token = line.word("a slot")?;
    Slot::from_name(&token.text).ok_or_else(|| line.wrong(&token, "a slot", Slot::ALL.iter().map(|s| s.name())))
}

/// Slots after the arrow.
fn is_written(role: Role) -> bool {
    matches!(role, Role::Write | Role::Part)
}

/// The slots on one side of the arrow, with commas between them; the last may be absent where it is optional.
fn slots(line: &mut Line, op: &OpInfo, raw: &mut RawWord, written: bool) -> Result<(), TextError> {
    let places =
        op.places().filter(|(field, place)| matches!(place, Place::Slot(_)) && is_written(field.role) == written);
    for (i, (field, place)) in places.enumerate() {
        let absent = if i == 0 { line.at_arrow() || line.at_pair() || line.peek().is_none() } else { !line.eat(",") };
        if absent && field.optional {
            continue;
        }
        if absent {
            return Err(line.expected(&format!("slot '{}' ({})", field.name, field.meaning), None));
        }
        let slot = slot(line)?;
        raw.set(place, slot.code().into()).map_err(|_| line.expected("a slot", None))?;
    }
    Ok(())
}

/// The fields that are not slots.
fn pairs(
    line: &mut Line,
    op: &OpInfo,
    raw: &mut RawWord,
    tensors: &[Tensor],
    names: &TensorNames,
) -> Result<(), TextError> {
    let fields: Vec<(&FieldInfo, Place)> = op.places().filter(|(_, place)| !matches!(place, Place::Slot(_))).collect();
    let known = || fields.iter().map(|(field, _)| field.name);
    let expected = if fields.is_empty() {
        "the end of the line".to_owned()
    } else {
        format!("a field of {} ({})", op.mnemonic, known().collect::<Vec<_>>().join(", "))
    };
    let mut seen = vec![false; fields.len()];
    while line.peek().is_some() {
        let key = line.word(&expected)?;
        let Some(i) = known().position(|name| name == key.text) else {
            return Err(line.wrong(&key, &expected, known()));
        };
        if std::mem::replace(&mut seen[i], true) {
            return Err(line.error(key.column, TextErrorKind::Twice { what: format!("field '{}'", key.text) }));
        }
        if !line.eat("=") {
            return Err(line.expected("'='", None));
        }
        let (field, place) = fields[i];
        let column = line.column();
        let bits = match place {
            Place::Tensor(_) => tensor(line, field, tensors, names)?,
            _ => number(line, field, place)?,
        };
        raw.set(place, bits).map_err(|e| {
            let (what, given) = (format!("field '{}'", field.name), e.given.to_string());
            line.error(column, TextErrorKind::TooLarge { what, given, limit: place.limit().into() })
        })?;
    }
    let absent = |((field, place), seen): (&(&FieldInfo, Place), &bool)| {
        (!seen && !field.optional && *place != Place::Offset).then_some((field.name, field.meaning))
    };
    if let Some((name, meaning)) = fields.iter().zip(&seen).find_map(absent) {
        let column = line.column();
        let what = format!("field '{name}' of {} ({meaning})", op.mnemonic);
        return Err(line.error(column, TextErrorKind::Missing { what }));
    }
    Ok(())
}

/// A count, choice, offset, table or constant.
fn number(line: &mut Line, field: &FieldInfo, place: Place) -> Result<u32, TextError> {
    if place == Place::Constant {
        let token = line.word("a constant")?;
        return line.single(&token, &format!("constant '{}'", field.name));
    }
    if field.choices.is_empty() {
        let token = line.word("a whole number")?;
        // No field is wider than 32 bits.
        return Ok(line.number(&token, &format!("field '{}'", field.name), place.limit().into())? as u32);
    }
    let choices = || field.choices.iter().map(|(_, name)| *name);
    let expected = choices().collect::<Vec<_>>().join(", ");
    let token = line.word(&expected)?;
    match field.choices.iter().find(|(_, name)| *name == token.text) {
        Some((code, _)) => Ok((*code).into()),
        None => Err(line.wrong(&token, &expected, choices())),
    }
}

/// A tensor by name or index, its shape checked where it is given.
fn tensor(line: &mut Line, field: &FieldInfo, tensors: &[Tensor], names: &TensorNames) -> Result<u32, TextError> {
    let column = line.column();
    let limit = TensorId::LIMIT - 1;
    let index = if line.eat("@") {
        let token = line.word("a tensor's index")?;
        line.number(&token, "a tensor's index", limit as u64)? as usize
    } else {
        let name = line.name(&format!("a tensor's name ({})", field.meaning))?;
        match names.0.get(&name.text) {
            Some((index, None)) => *index,
            Some((first, Some(second))) => {
                let (name, first, second) = (name.text, *first, *second);
                return Err(line.error(column, TextErrorKind::Ambiguous { name, first, second }));
            }
            None => {
                let known = tensors.iter().map(|t| t.name.as_str());
                return Err(line.wrong(&name, "a tensor declared above", known));
            }
        }
    };
    if line.at_here('[') {
        let at = line.column();
        let given = line.bracket()?;
        if let Some(tensor) = tensors.get(index)
            && given != shape_text(tensor)
        {
            let (tensor, declared) = (tensor.name.clone(), shape_text(tensor));
            return Err(line.error(at, TextErrorKind::Shape { tensor, declared, given }));
        }
    }
    u32::try_from(index).ok().filter(|_| index <= limit).ok_or_else(|| {
        let (what, given) = ("a tensor's index".to_owned(), index.to_string());
        line.error(column, TextErrorKind::TooLarge { what, given, limit: limit as u64 })
    })
}
