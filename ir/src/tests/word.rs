//! The word: its layout, its codec, one golden word a command.

use super::golden::golden;
use super::samples;
use crate::command::{DecodeError, OPS, Place, RawWord};
use crate::word::{FIELDS, HexError, USED_BITS, WORD_BITS};
use crate::{Command, Const, LayerId, Offset, ProgramError, RopeId, Slot, Word};
use proptest::prelude::*;

/// The layout as the machine's description gives it, high bit first, written down apart from the codec's table.
const LAYOUT: [(u32, u32); 18] = [
    (7, 0),
    (15, 8),
    (20, 16),
    (25, 21),
    (30, 26),
    (35, 31),
    (40, 36),
    (45, 41),
    (50, 46),
    (70, 51),
    (90, 71),
    (106, 91),
    (122, 107),
    (138, 123),
    (154, 139),
    (174, 155),
    (182, 175),
    (214, 183),
];

#[test]
fn the_fields_are_those_of_the_layout_and_leave_no_gap() {
    let mut next = 0;
    for (field, (high, low)) in FIELDS.iter().zip(LAYOUT) {
        assert_eq!((field.first, field.width), (low as usize, (high - low + 1) as usize), "{}", field.name);
        assert_eq!(field.first, next, "{}", field.name);
        next += field.width;
    }
    assert_eq!((FIELDS.len(), next, USED_BITS, WORD_BITS - USED_BITS), (18, 215, 215, 41));
}

/// A word of 256 bits by shift and or, on the host's integers: bits 127:0 and 255:128.
fn by_hand(values: [u32; 18]) -> [u8; 32] {
    let (mut low, mut high) = (0_u128, 0_u128);
    for (value, (_, first)) in values.into_iter().zip(LAYOUT) {
        let value = u128::from(value);
        if first < 128 {
            low |= value << first;
            if first > 96 {
                high |= value >> (128 - first);
            }
        } else {
            high |= value << (first - 128);
        }
    }
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&low.to_le_bytes());
    bytes[16..].copy_from_slice(&high.to_le_bytes());
    bytes
}

#[test]
fn each_field_at_all_ones_alone_sets_its_own_bits_alone() {
    for (i, (high, low)) in LAYOUT.iter().enumerate() {
        let mut values = [0; 18];
        values[i] = u32::MAX >> (31 - (high - low));
        let raw = raw_of(values);
        let word = Word::pack(&raw).unwrap();
        assert_eq!(word.to_bytes(), by_hand(values), "{}", FIELDS[i].name);
        for bit in 0..256 {
            let set = word.to_bytes()[bit / 8] >> (bit % 8) & 1 == 1;
            assert_eq!(set, (*low as usize..=*high as usize).contains(&bit), "{} bit {bit}", FIELDS[i].name);
        }
        assert_eq!(word.unpack(), Ok(raw), "{}", FIELDS[i].name);
    }
}

fn raw_of(v: [u32; 18]) -> RawWord {
    RawWord {
        opcode: v[0] as u8,
        layer: v[1] as u8,
        slots: std::array::from_fn(|i| v[2 + i] as u8),
        tensors: [v[9], v[10]],
        counts: std::array::from_fn(|i| v[11 + i] as u16),
        offset: v[15],
        rope: v[16] as u8,
        constant: v[17],
    }
}

#[test]
fn each_spare_bit_is_refused() {
    let word = Word::encode(&samples::dense().commands[0]).unwrap();
    assert!(word.decode().is_ok());
    for bit in 215..256 {
        let mut bytes = word.to_bytes();
        bytes[bit / 8] |= 1 << (bit % 8);
        assert_eq!(Word::from_bytes(bytes).decode(), Err(DecodeError::Spare), "bit {bit}");
        assert_eq!(Word::from_bytes(bytes).unpack(), Err(DecodeError::Spare), "bit {bit}");
    }
}

#[test]
fn a_value_wider_than_its_field_is_refused_by_name() {
    let unused = RawWord::unused(1, 0);
    let cases = [
        ("slot3", RawWord { slots: [0, 0, 0, 32, 0, 0, 0], ..unused }, 32, 31),
        ("slot0", RawWord { slots: [255; 7], ..unused }, 255, 31),
        ("tensor1", RawWord { tensors: [0, 1 << 20], ..unused }, 1 << 20, (1 << 20) - 1),
        ("offset", RawWord { offset: u32::MAX, ..unused }, u32::MAX, (1 << 20) - 1),
    ];
    for (field, raw, given, limit) in cases {
        let error = Word::pack(&raw).unwrap_err();
        assert_eq!((error.field, error.given, error.limit), (field, given, limit));
    }
}

#[test]
fn a_command_that_does_not_fit_names_field_value_and_limit() {
    let mut program = samples::dense();
    let matvec = program.commands.iter_mut().find(|c| matches!(c, Command::Matvec { .. })).unwrap();
    if let Command::Matvec { offset, .. } = matvec {
        *offset = Offset(1 << 20);
    }
    let site = "matvec in layer 0".to_owned();
    let refused = ProgramError::Field { field: "offset", given: 1 << 20, limit: (1 << 20) - 1, site };
    assert_eq!(Word::encode(matvec), Err(refused.clone()));
    assert_eq!(program.words(), Err(refused));

    let mut program = samples::dense();
    let rope = program.commands.iter_mut().find(|c| matches!(c, Command::Rope { .. })).unwrap();
    if let Command::Rope { table, .. } = rope {
        *table = RopeId(255);
    }
    let site = "rope in layer 0".to_owned();
    assert_eq!(Word::encode(rope), Err(ProgramError::Field { field: "table", given: 255, limit: 254, site }));
}

#[test]
fn golden_words_pin_every_opcode() {
    let golden = golden();
    let codes: Vec<u8> = golden.iter().map(|(command, _)| command.info().code).collect();
    assert_eq!(codes, OPS.iter().map(|op| op.code).collect::<Vec<_>>(), "one golden word an opcode");
    for (command, values) in golden {
        let word = Word::encode(&command).unwrap();
        assert_eq!(word.to_bytes(), by_hand(values), "{}", command.info().mnemonic);
        assert_eq!(word.decode(), Ok(command));
    }
}

/// One word written out in full, so that the shift-and-or above is itself held to something.
///
/// add, layer 3, x mix -> x, scale 1.0. Low 64 bits: 0x10 (opcode), 3 << 8, slots 0, 5, 0 at 16, 21, 26, four slots of
/// 31 at 31, 36, 41, 46 (bits 50:31), tensor 0 all ones in bits 70:51:
///   0x10 | 0x300 | 5 << 21 (0xa0_0000) | 0xf_ffff << 31 (0x0007_ffff_8000_0000) | 0x1fff << 51 (0xfff8_0000_0000_0000)
///   = 0xffff_ffff_80a0_0310.
/// Next 64 bits: tensor 0's last 7 bits and tensor 1's 20, bits 90:64, all ones: 0x07ff_ffff.
/// Next 64 bits, 191:128: table 255 in bits 182:175, 0xff << 47; the constant 0x3f80_0000 from bit 183 gives its low 9
/// bits, all zero. Last 64 bits: the constant's upper 23 bits, 0x3f80_0000 >> 9 = 0x1f_c000.
#[test]
fn the_hex_form_shows_the_highest_bits_first() {
    let add = Command::Add { layer: LayerId(3), x: Slot::X, y: Slot::Mix, out: Slot::X, scale: Const::new(1.0) };
    let word = Word::encode(&add).unwrap();
    let hex = "00000000001fc000\
               007f800000000000\
               0000000007ffffff\
               ffffffff80a00310";
    assert_eq!(word.to_string(), hex);
    assert_eq!(hex.parse(), Ok(word));
    assert_eq!(hex.to_uppercase().parse(), Ok(word));
    assert_eq!(serde_json::to_string(&word).unwrap(), format!("\"{hex}\""));
    assert_eq!("12".parse::<Word>(), Err(HexError::Length(2)));
    let at = 1 + hex.len() / 2;
    assert_eq!(
        hex.replacen("0000000007", "00000x0007", 1).parse::<Word>(),
        Err(HexError::Digit { at: at + 5, found: 'x' })
    );
}

#[test]
fn what_is_no_command_is_refused() {
    let zero = Word::from_bytes([0; 32]);
    assert_eq!(zero.decode(), Err(DecodeError::Opcode(0)));
    for code in 0..=255_u8 {
        let known = OPS.iter().any(|op| op.code == code);
        let decoded = Word::pack(&RawWord::unused(code, 0)).unwrap().decode();
        assert_eq!(matches!(decoded, Err(DecodeError::Opcode(c)) if c == code), !known, "opcode {code}");
    }
    for (command, _) in golden() {
        let op = command.info();
        let used: Vec<Place> = op.places().map(|(_, place)| place).collect();
        // Every field that the command does not use, given a value that would be good elsewhere.
        let places = (0..7).map(Place::Slot).chain((0..2).map(Place::Tensor)).chain((0..4).map(Place::Count));
        for place in places.chain([Place::Offset, Place::Table, Place::Constant]).filter(|p| !used.contains(p)) {
            let mut raw = command.to_raw();
            raw.set(place, 1).unwrap();
            let refused = Err(DecodeError::Unused { op: op.mnemonic });
            assert_eq!(Word::pack(&raw).unwrap().decode(), refused, "{} {place:?}", op.mnemonic);
        }
        // Every required index at "none", every choice at zero, every slot at a code that no slot has.
        for (field, place) in op.places() {
            let mut raw = command.to_raw();
            let bad = match place {
                Place::Slot(_) => Some(30),
                Place::Count(_) if field.choices.is_empty() => None,
                Place::Count(_) => Some(0),
                place if field.optional => place.none().filter(|_| false),
                place => place.none(),
            };
            let Some(bad) = bad else { continue };
            raw.set(place, bad).unwrap();
            let decoded = Word::pack(&raw).unwrap().decode();
            assert!(matches!(decoded, Err(DecodeError::Field { field: f, .. }) if f == field.name), "{decoded:?}");
        }
    }
}

#[test]
fn the_table_numbers_and_names_each_command_once() {
    for (i, op) in OPS.iter().enumerate() {
        assert!(op.code != 0, "opcode 0 is never a command");
        assert!(OPS[..i].iter().all(|o| o.code < op.code && o.mnemonic != op.mnemonic), "{}", op.mnemonic);
        assert!(op.places().all(|(_, place)| match place {
            Place::Slot(i) => i < 7,
            Place::Tensor(i) => i < 2,
            Place::Count(i) => i < 4,
            _ => true,
        }));
        // The text form leaves an absent optional slot out: it must be the last of those read.
        let read: Vec<bool> = op.fields.iter().filter(|f| f.role.reads()).map(|f| f.optional).collect();
        assert!(read.iter().rev().skip(1).all(|optional| !optional), "{}", op.mnemonic);
        for kind in [Place::Offset, Place::Table, Place::Constant] {
            assert!(op.places().filter(|(_, place)| *place == kind).count() <= 1, "{}", op.mnemonic);
        }
    }
    for (i, slot) in Slot::ALL.iter().enumerate() {
        assert_eq!(usize::from(slot.code()), i);
        assert!(slot.code() < RawWord::NO_SLOT);
        assert_eq!(Slot::from_name(slot.name()), Some(*slot));
    }
}

#[test]
fn the_role_of_a_field_is_where_its_type_lies() {
    // Each field of a golden command, changed through its place, changes that field of the command alone.
    for (command, _) in golden() {
        for (field, place) in command.info().places() {
            let mut raw = command.to_raw();
            let old = raw.get(place);
            raw.set(place, if old == 1 { 2 } else { 1 }).unwrap();
            let changed = Command::from_raw(&raw).unwrap();
            let [before, after] = [command, changed].map(|c| serde_json::to_value(c).unwrap());
            for (key, value) in before.as_object().unwrap() {
                assert_eq!(after[key] == *value, key != field.name, "{}: {key}", command.info().mnemonic);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_word_that_decodes_encodes_to_itself(bytes: [u8; 32], code in 1_u8..=19, noise in 0_usize..9) {
        // Mostly unused fields: a random word is almost never a command.
        let mut raw = RawWord::unused(code, bytes[0]);
        let places: Vec<Place> = OPS[usize::from(code) - 1].places().map(|(_, place)| place).collect();
        for (i, place) in places.iter().enumerate() {
            let value = u32::from_le_bytes([bytes[4 * i % 29], bytes[4 * i % 29 + 1], bytes[4 * i % 29 + 2], bytes[i]]);
            let value = if noise == 0 { value & place.limit() } else { value % 5 % (place.limit()) };
            raw.set(*place, value).unwrap();
        }
        let word = Word::pack(&raw).unwrap();
        prop_assert_eq!(word.unpack(), Ok(raw));
        if let Ok(command) = word.decode() {
            prop_assert_eq!(Word::encode(&command), Ok(word));
        }
        // Any bytes at all: an error or a command, never a panic; and a command is those bits.
        if let Ok(command) = Word::from_bytes(bytes).decode() {
            prop_assert_eq!(Word::encode(&command), Ok(Word::from_bytes(bytes)));
        }
    }

    #[test]
    fn the_fields_are_where_shift_and_or_puts_them(v in prop::array::uniform18(any::<u32>())) {
        let values: [u32; 18] = std::array::from_fn(|i| v[i] & FIELDS[i].all_ones());
        let word = Word::pack(&raw_of(values)).unwrap();
        prop_assert_eq!(word.to_bytes(), by_hand(values));
        prop_assert_eq!(word.unpack().unwrap().values(), values);
    }
}

#[test]
fn one_changed_bit_is_another_command_or_none() {
    for (name, program) in samples::all() {
        for command in &program.commands {
            let word = Word::encode(command).unwrap();
            for bit in 0..256 {
                let mut bytes = word.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Word::from_bytes(bytes).decode().as_ref(), Ok(command), "{name} bit {bit}");
            }
        }
    }
}
