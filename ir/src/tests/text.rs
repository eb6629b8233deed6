//! Program text: golden forms, errors that point, `parse(print(p)) == p`.

use super::mutate::any_program;
use super::samples;
use crate::spec::{Rope, RopeScaling, RowRange};
use crate::text::{FORM, SCALINGS, TextError, TextErrorKind, command_text, parse, to_text, to_text_with_words};
use crate::{Command, Const, Program};
use proptest::prelude::*;

#[test]
fn samples_print_as_before() {
    for (name, program) in samples::all() {
        insta::assert_snapshot!(name, to_text(&program));
    }
}

#[test]
fn the_documented_example_is_a_program() {
    let example = FORM.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let program = parse(example).unwrap();
    assert_eq!(crate::verify(&program), Ok(()));
    // Printed it is the same text, blanks and comments apart.
    let words = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    assert_eq!(words(&to_text(&program)), words(example));
    SCALINGS.iter().for_each(|name| assert!(FORM.contains(&format!("`{name}`")), "{name}"));
}

#[test]
fn samples_parse_back() {
    for (name, program) in samples::all() {
        assert_eq!(parse(&to_text(&program)).as_ref(), Ok(&program), "{name}");
        assert_eq!(parse(&to_text_with_words(&program)).as_ref(), Ok(&program), "{name}");
        assert_eq!(program.to_string().parse().as_ref(), Ok(&program), "{name}");
    }
}

#[test]
fn words_stand_beside_their_commands() {
    let program = samples::dense();
    let text = to_text_with_words(&program);
    for (command, word) in program.commands.iter().zip(program.words().unwrap()) {
        let line = format!("{}  # {word}", command_text(&program, command));
        assert!(text.lines().any(|l| l == line), "{line}");
    }
}

#[test]
fn a_constant_keeps_its_bits() {
    let mut program = samples::dense();
    let last = program.commands.len() - 1;
    let cases = [
        (0x0000_0000, "0.0"),
        (0x8000_0000, "-0.0"),
        (0x3727_c5ac, "1e-5"),
        (0x3e80_0000, "0.25"),
        (0x0000_0001, "1e-45"),
        (0x7f7f_ffff, "3.4028235e38"),
        (0x7f80_0000, "0x7f800000"),
        (0xff80_0000, "0xff800000"),
        (0x7fc0_0001, "0x7fc00001"),
    ];
    for (bits, text) in cases {
        program.commands[last] =
            Command::SoftCap { layer: crate::LayerId::OUTSIDE, x: crate::Slot::Logits, cap: Const(bits) };
        let line = command_text(&program, &program.commands[last]);
        assert!(line.ends_with(&format!("cap={text}")), "{line}");
        assert_eq!(parse(&to_text(&program)).as_ref(), Ok(&program));
    }
}

#[test]
fn names_of_any_kind_and_names_held_twice_are_kept() {
    let mut program = samples::dense();
    program.identity.family = String::new();
    program.tensors[0].name = "blanks \"and\" quotes\\\n# ünicode".to_owned();
    program.tensors[1].name = "->".to_owned();
    program.tensors[2].name = program.tensors[3].name.clone();
    program.tensors[2].view.parts[0].tensor = "=".to_owned();
    let text = to_text(&program);
    assert!(text.contains("weight=@2["), "{text}");
    assert_eq!(parse(&text), Ok(program));
}

/// The error of a text made from the dense sample's by one replacement.
fn error_of(from: &str, to: &str) -> TextError {
    let text = to_text(&samples::dense());
    assert!(text.contains(from), "{from:?} is not in\n{text}");
    parse(&text.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn errors_point_at_the_word_and_name_the_nearest() {
    let cases = [
        ("L0   cache_append", "L0   cache_apend"),
        ("h -> qkv", "h -> qkw"),
        ("h -> qkv", "h qkv"),
        ("h -> qkv", "-> qkv"),
        ("h -> qkv", "h -> qkv, x"),
        ("weight=l0.qkv[128x64]", "weight=l0.qvk[128x64]"),
        ("weight=l0.qkv[128x64]", "weight=l0.qkv[128x65]"),
        ("weight=l0.qkv[128x64]", "weigth=l0.qkv"),
        ("weight=l0.qkv[128x64]", "weight=@1048575"),
        ("weight=l0.qkv[128x64]", "weight=l0.qkv[128x64] weight=l0.qkv"),
        ("weight=l0.qkv[128x64]", ""),
        ("kind=rms", "kind=rsm"),
        ("eps=1e-5", "eps=tiny"),
        ("heads=4", "heads=65536"),
        ("heads=4", "heads=-4"),
        ("heads=4 ", ""),
        ("L0   norm", "L255 norm"),
        ("slot h 64", "slot hh 64"),
        ("slot h 64", "slot h"),
        ("tensor l0.o matrix", "tensor l0.o matrics"),
        ("  part model.embed.weight 320x64", "  part model.embed.weight 320*64"),
        ("  part model.embed.weight 320x64", "  part model.embed.weight 320x64 rows 3"),
        ("scaling=llama3", "scaling=lama3"),
        ("scaling=llama3 factor=8.0", "scaling=default factor=8.0"),
        ("rope 0", "rope 1"),
        ("lanes=8", "lanes=256"),
        ("acts=two_limbs", "acts=three_limbs"),
        ("max_pos 256\n", ""),
        ("max_pos 256\n", "max_pos 256\nmax_pos 256\n"),
        ("program 1", "program 2"),
        ("program 1\n", ""),
        ("family dense", "famly dense"),
        ("family dense", "family \"dense"),
        ("family dense", "family dense dense"),
    ];
    let mut lines = String::new();
    for (from, to) in cases {
        lines += &format!("{:?} for {:?}\n    {}\n", to, from, error_of(from, to));
    }
    insta::assert_snapshot!("errors", lines);
}

#[test]
fn an_error_gives_line_and_column_in_characters() {
    let error = parse("program 1\nfamily \"ünïcødé\" extra # comment").unwrap_err();
    let kind = TextErrorKind::Expected {
        expected: "the end of the line".to_owned(),
        found: "'extra'".to_owned(),
        nearest: None,
    };
    assert_eq!(error, TextError { line: 2, column: 18, kind });
}

#[test]
fn two_tensors_of_one_name_are_told_apart_by_index_only() {
    let mut program = samples::dense();
    program.tensors[3].name = program.tensors[2].name.clone();
    let text = to_text(&program).replace("weight=@2[128x64]", "weight=l0.qkv");
    let error = parse(&text).unwrap_err();
    let name = "l0.qkv".to_owned();
    assert_eq!(error.kind, TextErrorKind::Ambiguous { name, first: 2, second: 3 });
}

/// A line is read in time that grows with its length alone.
#[test]
fn a_very_long_line_is_read_at_once() {
    let mut program = samples::dense();
    let list = vec![1.5; 200_000];
    let (short, long) = (list.clone(), list);
    program.ropes[0].scaling = RopeScaling::LongRope { short, long, original: 64, attention_factor: 1.0 };
    program.tensors[1].view.parts[0].rows = vec![RowRange { start: 0, end: 1 }; 200_000];
    let start = std::time::Instant::now();
    assert_eq!(parse(&to_text(&program)), Ok(program));
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

#[test]
fn comments_blanks_and_line_ends_do_not_matter() {
    let program = samples::moe();
    let mut text = String::new();
    for line in to_text(&program).lines() {
        text += &format!("\t{}  # said aside, weight=none ->\r\n\n", line.replace(", ", " ,").replace('=', " = "));
    }
    assert_eq!(parse(&text), Ok(program));
}

proptest! {
    #[test]
    fn any_program_parses_back(program in any_program()) {
        let text = to_text(&program);
        prop_assert_eq!(parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?, program);
    }

    #[test]
    fn any_recipe_parses_back(
        numbers in prop::array::uniform6(any::<u64>().prop_map(f64::from_bits)),
        list in prop::collection::vec(any::<f64>(), 0..5),
        kind in 0..6,
        original: usize,
        interleaved: bool,
    ) {
        let [theta, factor, a, b, c, attention_factor] = numbers;
        let scaling = match kind {
            0 => RopeScaling::Default,
            1 => RopeScaling::Linear { factor },
            2 => RopeScaling::Dynamic { factor, original },
            3 => RopeScaling::Yarn { factor, original, beta_fast: a, beta_slow: b, truncate: interleaved, attention_factor },
            4 => RopeScaling::Llama3 { factor, low_freq_factor: a, high_freq_factor: c, original },
            _ => RopeScaling::LongRope { short: list.clone(), long: list, original, attention_factor },
        };
        let mut program = samples::dense();
        program.ropes = vec![Rope { theta, rot: original, interleaved, scaling }];
        // By text again: a NaN is not equal to itself.
        let text = to_text(&program);
        prop_assert_eq!(to_text(&parse(&text).unwrap()), text);
    }

    #[test]
    fn damaged_text_is_a_program_or_an_error_that_points(
        which in 0..5_usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<char>(), 0..4), 1..6),
    ) {
        let mut chars: Vec<char> = to_text(&samples::all()[which].1).chars().collect();
        let special: Vec<char> = "#\"=,[]->@x.0L\n ".chars().collect();
        for (at, other, kind) in edits {
            let i = at.index(chars.len());
            match kind {
                0 => drop(chars.remove(i)),
                1 => chars.insert(i, other),
                2 => chars[i] = special[at.index(special.len())],
                _ => chars.insert(i, special[at.index(special.len())]),
            }
        }
        check(&chars.into_iter().collect::<String>())?;
    }

    #[test]
    fn any_text_is_a_program_or_an_error(text in "(program 1\n)?(\\PC|\n){0,200}") {
        check(&text)?;
    }
}

/// A text is a program that prints and parses back, or an error inside the text.
fn check(text: &str) -> Result<(), TestCaseError> {
    match parse(text) {
        Ok(program) => {
            let again: Program = parse(&to_text(&program)).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(to_text(&again), to_text(&program));
        }
        Err(error) => {
            let lines: Vec<&str> = text.lines().collect();
            prop_assert!((1..=lines.len() + 1).contains(&error.line), "{}", error);
            let length = lines.get(error.line - 1).map_or(0, |l| l.chars().count());
            prop_assert!((1..=length + 1).contains(&error.column), "{} in a line of {}", error, length);
        }
    }
    Ok(())
}
