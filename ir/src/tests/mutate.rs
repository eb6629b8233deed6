//! Programs made wrong at random: one number, one command, one bit.

use super::samples;
use crate::command::{OPS, Place, RawWord};
use crate::program::{Cut, Identity, Program, SlotInfo, Tensor, TensorKind};
use crate::spec::{Part, RowRange, View};
use crate::{ActFormat, Command, LayerId, Numerics, Slot, WeightFormat, Word};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

/// One change of a program.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    /// A number anywhere in the program becomes another.
    Number(Index, Edit),
    /// A bit of a command's word flips; nothing changes when the word is then refused.
    Bit(Index, u8),
    /// A command goes.
    Drop(Index),
    /// A command stands twice.
    Repeat(Index),
    /// Two commands change places.
    Swap(Index, Index),
    /// A command's field takes the value that another command of its kind has.
    Borrow(Index, Index, Index),
    /// An entry of a table goes.
    Forget(u8, Index),
}

#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Set(u64),
    Add(i8),
    Times(u8),
    Negate,
}

pub(crate) fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    let extremes = [0, 1, 2, 31, 254, 255, 65_535, 65_536, 1 << 20, 1 << 24, 1 << 32, 1 << 53, u64::MAX / 2, u64::MAX];
    let edit = prop_oneof![
        prop::sample::select(extremes.to_vec()).prop_map(Edit::Set),
        any::<i8>().prop_map(|d| Edit::Add(d % 4)),
        (2..9_u8).prop_map(Edit::Times),
        Just(Edit::Negate),
    ];
    prop_oneof![
        6 => (index(), edit).prop_map(|(i, e)| Mutation::Number(i, e)),
        6 => (index(), any::<u8>()).prop_map(|(i, b)| Mutation::Bit(i, b)),
        1 => index().prop_map(Mutation::Drop),
        1 => index().prop_map(Mutation::Repeat),
        2 => (index(), index()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        4 => (index(), index(), index()).prop_map(|(a, b, f)| Mutation::Borrow(a, b, f)),
        1 => (0..4_u8, index()).prop_map(|(t, i)| Mutation::Forget(t, i)),
    ]
}

/// The mutated program; the same one where the mutation makes nothing that can be written as a program.
pub(crate) fn apply(program: &Program, mutation: &Mutation) -> Program {
    let mut out = program.clone();
    let count = out.commands.len();
    if count == 0 {
        return out;
    }
    match mutation {
        Mutation::Number(at, edit) => return number(program, at, edit).unwrap_or(out),
        Mutation::Bit(at, bit) => {
            let command = &mut out.commands[at.index(count)];
            if let Ok(word) = Word::encode(command) {
                let mut bytes = word.to_bytes();
                bytes[usize::from(*bit) / 8] ^= 1 << (bit % 8);
                *command = Word::from_bytes(bytes).decode().unwrap_or(*command);
            }
        }
        Mutation::Drop(at) => drop(out.commands.remove(at.index(count))),
        Mutation::Repeat(at) => out.commands.insert(at.index(count), out.commands[at.index(count)]),
        Mutation::Swap(a, b) => out.commands.swap(a.index(count), b.index(count)),
        Mutation::Borrow(a, b, field) => {
            let (to, from) = (a.index(count), out.commands[b.index(count)].to_raw());
            let mut raw = out.commands[to].to_raw();
            let places: Vec<Place> = out.commands[to].info().places().map(|(_, place)| place).collect();
            let place = places[field.index(places.len())];
            raw.set(place, from.get(place)).expect("a field's value fits the field");
            out.commands[to] = Command::from_raw(&raw).unwrap_or(out.commands[to]);
        }
        Mutation::Forget(table, at) => match table {
            0 if !out.slots.is_empty() => drop(out.slots.remove(at.index(out.slots.len()))),
            1 if !out.tensors.is_empty() => drop(out.tensors.remove(at.index(out.tensors.len()))),
            2 if !out.ropes.is_empty() => drop(out.ropes.remove(at.index(out.ropes.len()))),
            _ => drop(out.tensors.first_mut().map(|t| t.view.parts.clear())),
        },
    }
    out
}

/// One number of the program's JSON changed.
fn number(program: &Program, at: &Index, edit: &Edit) -> Option<Program> {
    let mut value = serde_json::to_value(program).ok()?;
    let mut numbers = Vec::new();
    collect(&mut value, &mut numbers);
    let index = at.index(numbers.len());
    let number = &mut *numbers[index];
    let (old, float) = (number.as_f64()?, number.is_f64());
    let whole = number.as_u64().unwrap_or(0);
    *number = match edit {
        Edit::Set(v) if float => Value::from(*v as f32 as f64),
        Edit::Set(v) => Value::from(*v),
        Edit::Add(d) if float => Value::from((old as f32 + f32::from(*d)) as f64),
        Edit::Add(d) => Value::from(whole.saturating_add_signed((*d).into())),
        Edit::Times(n) if float => Value::from((old as f32 * f32::from(*n)) as f64),
        Edit::Times(n) => Value::from(whole.saturating_mul((*n).into())),
        Edit::Negate => Value::from(-old),
    };
    drop(numbers);
    serde_json::from_value(value).ok()
}

fn collect<'a>(value: &'a mut Value, out: &mut Vec<&'a mut Value>) {
    match value {
        Value::Number(_) => out.push(value),
        Value::Array(items) => items.iter_mut().for_each(|item| collect(item, out)),
        Value::Object(map) => map.values_mut().for_each(|item| collect(item, out)),
        _ => {}
    }
}

/// Programs of any content, most of them nonsense: every field takes every value that its type has.
pub(crate) fn any_program() -> impl Strategy<Value = Program> {
    let text = || "\\PC{0,12}|[a-z0-9_.]{1,12}";
    let size = || prop_oneof![any::<usize>(), 0..100_usize];
    let limbs = || prop::sample::select(ActFormat::ALL.to_vec());
    let weights = prop::sample::select(WeightFormat::ALL.to_vec());
    let identity = (text(), text(), weights, limbs(), limbs(), limbs(), any::<u8>(), size(), size(), size()).prop_map(
        |(family, spec, weights, acts, queries, probs, lanes, ctx, first_layer, last_layer)| Identity {
            family,
            spec,
            numerics: Numerics { weights, acts, queries, probs, lanes },
            cut: Cut { ctx, first_layer, last_layer },
        },
    );
    let slot = (prop::sample::select(Slot::ALL.to_vec()), size()).prop_map(|(slot, width)| SlotInfo { slot, width });
    let range = (size(), size()).prop_map(|(start, end)| RowRange { start, end });
    let part = (text(), prop::collection::vec(size(), 0..4), prop::collection::vec(range, 0..4), any::<bool>())
        .prop_map(|(tensor, shape, rows, transpose)| Part { tensor, shape, rows, transpose });
    let kind = prop_oneof![
        Just(TensorKind::Matrix),
        Just(TensorKind::Plain),
        size().prop_map(|experts| TensorKind::Stack { experts }),
    ];
    let view = (prop::collection::vec(part, 0..4), any::<bool>()).prop_map(|(parts, add_one)| View { parts, add_one });
    let tensor = (text(), kind, size(), size(), view).prop_map(|(name, kind, rows, cols, view)| Tensor {
        name,
        kind,
        rows,
        cols,
        view,
    });
    let tables = (prop::collection::vec(slot, 0..5), prop::collection::vec(tensor, 0..6));
    (identity, size(), tables, 0..3_usize, prop::collection::vec(any_command(), 0..12)).prop_map(
        |(identity, max_pos, (slots, tensors), ropes, commands)| {
            let ropes = samples::windowed().ropes.into_iter().take(ropes).collect();
            Program { identity, max_pos, slots, tensors, ropes, commands }
        },
    )
}

/// Any command: every field of a kind at any of its values.
pub(crate) fn any_command() -> impl Strategy<Value = Command> {
    let fields = prop::collection::vec((any::<u32>(), any::<Index>(), any::<bool>()), 12);
    (0..OPS.len(), any::<u8>(), fields).prop_map(|(op, layer, fields)| {
        let op = &OPS[op];
        let mut raw = RawWord::unused(op.code, layer);
        for ((field, place), (bits, pick, small)) in op.places().zip(fields) {
            let none = place.none().filter(|_| field.optional && small);
            let value = match place {
                Place::Slot(_) => Slot::ALL[pick.index(Slot::ALL.len())].code().into(),
                Place::Count(_) if !field.choices.is_empty() => field.choices[pick.index(field.choices.len())].0.into(),
                Place::Tensor(_) if small => bits % 8,
                // All ones is "none" there.
                Place::Tensor(_) | Place::Table => bits % place.limit(),
                _ => bits & place.limit(),
            };
            raw.set(place, none.unwrap_or(value)).expect("made to fit");
        }
        let command = Command::from_raw(&raw).expect("each field holds a value of its type");
        assert_eq!(command.layer(), LayerId(layer));
        command
    })
}
