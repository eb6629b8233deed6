//! Lowering over every fixture: equal to the oracle command for command, whatever the context.

use crate::support::{fixtures, model};
use wordline_ir::diff::first_difference;
use wordline_ir::{ActFormat, Numerics, Program, file, text, verify};
use wordline_lowering::{hand_lowering, lower};

fn numerics() -> [Numerics; 2] {
    let usual = Numerics::default();
    [usual, Numerics { acts: ActFormat::OneLimb, queries: ActFormat::OneLimb, probs: ActFormat::OneLimb, ..usual }]
}

fn programs() -> impl Iterator<Item = (String, Program)> {
    fixtures().into_iter().map(|name| {
        let spec = model(&name).checkpoint.spec;
        let program = lower(&spec, &Numerics::default(), 256).unwrap_or_else(|e| panic!("{name}: {e}")).program;
        (name, program)
    })
}

#[test]
fn every_fixture_lowers_to_the_oracles_program() {
    for name in fixtures() {
        let spec = model(&name).checkpoint.spec;
        for numerics in numerics() {
            let lowered = lower(&spec, &numerics, 256).unwrap_or_else(|e| panic!("{name}: {e}")).program;
            let oracle = hand_lowering(&spec, &numerics).unwrap_or_else(|e| panic!("{name}: {e}"));
            if let Some(difference) = first_difference(&lowered, &oracle) {
                panic!("{name}: {difference}");
            }
            verify::verify(&lowered).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(lowered.identity.numerics, numerics);
        }
    }
}

#[test]
fn words_do_not_depend_on_the_context() {
    for name in fixtures() {
        let spec = model(&name).checkpoint.spec;
        let at = |ctx| lower(&spec, &Numerics::default(), ctx).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (short, long) = (at(16), at(131_072));
        assert_eq!(short.program.words().unwrap(), long.program.words().unwrap(), "{name}");
        assert_eq!(
            (short.cut.ctx, long.program.identity.cut.ctx),
            (16, 131_072),
            "{name}: the identity records the cut"
        );
    }
}

#[test]
fn every_fixtures_program_prints_parses_and_is_filed() {
    for (name, program) in programs() {
        assert_eq!(text::parse(&text::to_text(&program)).unwrap_or_else(|e| panic!("{name}: {e}")), program);
        assert_eq!(text::parse(&text::to_text_with_words(&program)).unwrap(), program, "{name}");
        assert_eq!(file::from_bytes(&file::to_bytes(&program).unwrap()).unwrap(), program, "{name}");
        assert_eq!(file::from_json(&file::to_json(&program).unwrap().to_string()).unwrap(), program, "{name}");
        let words = program.words().unwrap();
        let decoded: Vec<_> = words.iter().map(|word| word.decode().unwrap()).collect();
        assert_eq!(decoded, program.commands, "{name}");
    }
}
