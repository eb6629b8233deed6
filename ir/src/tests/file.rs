//! The program file and its JSON form: exact, and refused with the reason where they lie.

use super::mutate::any_program;
use super::samples;
use crate::file::{FileError, from_bytes, from_json, to_bytes, to_json};
use crate::{Const, Program, Word};
use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

#[test]
fn samples_are_kept_exactly() {
    for (name, program) in samples::all() {
        let bytes = to_bytes(&program).unwrap();
        assert_eq!(from_bytes(&bytes).as_ref(), Ok(&program), "{name}");
        let json = to_json(&program).unwrap();
        assert_eq!(from_json(&json.to_string()).as_ref(), Ok(&program), "{name}");
    }
}

#[test]
fn the_file_begins_and_ends_as_documented() {
    let program = samples::dense();
    let bytes = to_bytes(&program).unwrap();
    assert_eq!(&bytes[..12], b"WORDLINE\x01\0\0\0");
    let tables = u64::from_le_bytes(bytes[12..20].try_into().unwrap()) as usize;
    let value: serde_json::Value = serde_json::from_slice(&bytes[20..20 + tables]).unwrap();
    assert_eq!(value["tensors"].as_array().unwrap().len(), program.tensors.len());
    let (at, count) = (28 + tables, program.commands.len());
    assert_eq!(bytes[at - 8..at], (count as u64).to_le_bytes());
    let first = Word::from_bytes(bytes[at..at + 32].try_into().unwrap());
    assert_eq!(first.decode().as_ref(), Ok(&program.commands[0]));
    let end = at + 32 * count;
    assert_eq!(bytes.len(), end + 32);
    assert_eq!(bytes[end..], Sha256::digest(&bytes[..end])[..]);
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let bytes = to_bytes(&samples::dense()).unwrap();
    for length in 0..bytes.len() {
        match from_bytes(&bytes[..length]) {
            Err(FileError::Truncated { needed, given, .. }) => assert!(given == length && needed > length as u128),
            other => panic!("{length} of {} bytes: {other:?}", bytes.len()),
        }
    }
    let mut longer = bytes.clone();
    longer.extend([0; 3]);
    assert_eq!(from_bytes(&longer), Err(FileError::Trailing { extra: 3 }));
}

#[test]
fn a_file_altered_anywhere_is_refused() {
    let bytes = to_bytes(&samples::classic()).unwrap();
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1 << (at % 8);
        let refused = from_bytes(&altered).unwrap_err();
        let right = match at {
            0..8 => refused == FileError::Magic,
            8..12 => matches!(refused, FileError::Newer { .. } | FileError::Version { given: 0 }),
            // Lengths that no longer fit the file, or fit it otherwise.
            _ => {
                matches!(refused, FileError::Altered { .. } | FileError::Truncated { .. } | FileError::Trailing { .. })
            }
        };
        assert!(right, "byte {at}: {refused:?}");
    }
}

/// The bytes with a change and the checksum made right again.
fn forged(program: &Program, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = to_bytes(program).unwrap();
    bytes.truncate(bytes.len() - 32);
    change(&mut bytes);
    let checksum = Sha256::digest(&bytes);
    bytes.extend(checksum);
    bytes
}

#[test]
fn a_newer_file_is_refused_by_its_version() {
    let newer = forged(&samples::dense(), |bytes| bytes[8] = 2);
    assert_eq!(from_bytes(&newer), Err(FileError::Newer { given: 2, known: 1 }));
    assert_eq!(from_bytes(b"{\"schema\":1}"), Err(FileError::Magic));
    assert_eq!(from_bytes(b"PK\x03\x04"), Err(FileError::Magic));
}

#[test]
fn a_file_that_lies_under_a_right_checksum_is_refused() {
    let program = samples::dense();
    for lie in [u64::MAX, u64::MAX / 32, u64::MAX / 32 + 1, 1 << 40] {
        let tables = forged(&program, |bytes| bytes[12..20].copy_from_slice(&lie.to_le_bytes()));
        assert!(matches!(from_bytes(&tables), Err(FileError::Truncated { what: "the tables", .. })), "{lie}");
        let length = u64::from_le_bytes(to_bytes(&program).unwrap()[12..20].try_into().unwrap()) as usize;
        let words = forged(&program, |bytes| bytes[20 + length..28 + length].copy_from_slice(&lie.to_le_bytes()));
        assert!(matches!(from_bytes(&words), Err(FileError::Truncated { what: "the words", .. })), "{lie}");
    }
    // The last word's opcode, then a spare bit of it.
    let opcode = forged(&program, |bytes| {
        let at = bytes.len() - 32;
        bytes[at] = 200;
    });
    assert!(matches!(from_bytes(&opcode), Err(FileError::Decode { index, .. }) if index == program.commands.len() - 1));
    let spare = forged(&program, |bytes| *bytes.last_mut().unwrap() = 0x80);
    assert!(matches!(from_bytes(&spare), Err(FileError::Decode { .. })));
    // A tensor index in the tables is a name there, so break their grammar instead.
    let tables = forged(&program, |bytes| bytes[20] = b'[');
    assert!(matches!(from_bytes(&tables), Err(FileError::Tables(_))));
}

#[test]
fn what_a_word_or_json_cannot_hold_is_not_written() {
    let mut program = samples::dense();
    program.ropes[0].theta = f64::NAN;
    assert_eq!(to_bytes(&program), Err(FileError::NotFinite { rope: 0 }));
    assert_eq!(to_json(&program), Err(FileError::NotFinite { rope: 0 }));
    let mut program = samples::dense();
    for command in &mut program.commands {
        if let crate::Command::Rope { table, .. } = command {
            *table = crate::RopeId(255);
        }
    }
    assert!(matches!(to_bytes(&program), Err(FileError::Word(_))));
}

#[test]
fn json_is_readable_and_its_words_may_be_left_out() {
    let program = samples::windowed();
    let mut value = to_json(&program).unwrap();
    assert_eq!(value["schema"], 1);
    assert_eq!(
        value["commands"][1],
        json!({
            "op": "norm", "layer": 0, "x": "x", "out": "h", "weight": 1, "bias": null, "kind": "rms",
            // The exact value of the f32 1e-5.
            "eps": 9.999_999_747_378_752e-6,
        })
    );
    for (command, json) in program.commands.iter().zip(value["commands"].as_array().unwrap()) {
        assert_eq!(json["op"], command.info().mnemonic);
        assert_eq!(json["layer"], command.layer().0);
        for field in command.info().fields {
            assert!(json.get(field.name).is_some(), "{json}: {}", field.name);
        }
    }
    let words: Vec<Word> = serde_json::from_value(value["words"].clone()).unwrap();
    assert_eq!(words, program.words().unwrap());

    value["words"][3] = value["words"][2].clone();
    assert_eq!(from_json(&value.to_string()), Err(FileError::Disagree { index: 3 }));
    value.as_object_mut().unwrap().remove("words");
    assert_eq!(from_json(&value.to_string()), Ok(program));
    value["schema"] = json!(2);
    assert_eq!(from_json(&value.to_string()), Err(FileError::Newer { given: 2, known: 1 }));
    value.as_object_mut().unwrap().remove("schema");
    assert!(matches!(from_json(&value.to_string()), Err(FileError::Tables(_))));
    value["schema"] = json!(1);
    value["commands"][1]["weight"] = json!(1_048_575);
    let refused = from_json(&value.to_string()).unwrap_err().to_string();
    assert!(refused.contains("1048575"), "{refused}");
}

#[test]
fn a_constant_in_json_is_exact_or_refused() {
    for bits in [0, 0x8000_0000, 1, 0x3727_c5ac, 0x7f7f_ffff, 0x7f80_0000, 0x7fc0_0001, 0xffff_ffff] {
        let text = serde_json::to_string(&Const(bits)).unwrap();
        let back: Const = serde_json::from_str(&text).unwrap();
        assert_eq!(back.0, bits, "{text}");
    }
    assert!(serde_json::from_str::<Const>("0.1").is_err(), "no f32 holds 0.1");
    assert!(serde_json::from_str::<Const>("\"0x123\"").is_err());
    assert!(serde_json::from_str::<Const>("null").is_err());
}

proptest! {
    #[test]
    fn any_constant_survives_json(bits: u32) {
        let text = serde_json::to_string(&Const(bits)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Const>(&text).unwrap().0, bits);
    }

    #[test]
    fn any_program_is_kept_exactly(program in any_program()) {
        prop_assert_eq!(from_bytes(&to_bytes(&program).unwrap()).unwrap(), program.clone());
        prop_assert_eq!(from_json(&to_json(&program).unwrap().to_string()).unwrap(), program);
    }

    #[test]
    fn any_bytes_are_a_program_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        if magic {
            bytes.splice(0..bytes.len().min(12), *b"WORDLINE\x01\0\0\0");
        }
        prop_assert!(from_bytes(&bytes).is_err());
    }

    #[test]
    fn edited_json_is_a_program_or_an_error(
        which in 0..5_usize,
        at in any::<prop::sample::Index>(),
        with in prop::sample::select(vec!['0', '9', '"', '-', '.', 'e', ',', '}', '[', ' ', 'x']),
    ) {
        let text = to_json(&samples::all()[which].1).unwrap().to_string();
        let mut chars: Vec<char> = text.chars().collect();
        let i = at.index(chars.len());
        chars[i] = with;
        let _ = from_json(&chars.into_iter().collect::<String>());
    }
}
