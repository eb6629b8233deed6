//! Records as rings of every kind write them, and what becomes of altered ones.

use super::*;
use crate::backends::Backend;
use crate::engines::Unwatched;
use crate::generate::sampler::Sampler;
use crate::model::Model;
use crate::pipeline::load::{Maker, program_of};
use crate::pipeline::plan::{Device, Plan, PlannedStage, Room};
use crate::pipeline::wire::{Trace, row_digest};
use crate::pipeline::worker::{Input, Job};
use std::ops::Range;
use wordline_engine::Kernels;
use wordline_ir::{Numerics, Program};

/// Three layers, 256 positions, 400 tokens.
fn model() -> Model {
    Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/given/llama")).unwrap()
}

fn maker(model: &Model) -> Maker<'_> {
    static KERNELS: std::sync::OnceLock<Kernels> = std::sync::OnceLock::new();
    let kernels = KERNELS.get_or_init(|| Kernels::new().unwrap()).clone();
    let (weights, backend) = (&model.checkpoint.weights, Backend::Cpu);
    Maker { weights, kernels, threads: 1, backend, cache: None, watch: &Unwatched }
}

fn program(model: &Model) -> Program {
    program_of(&model.checkpoint.spec, &Numerics::default()).unwrap()
}

/// Of answers with prompts of so many tokens.
fn header(model: &Model, prompts: &[u32], ctx: u32, step_rows: u32, stateless: bool) -> Header {
    let prompt = |count: u32| (0..count).map(|i| (i * 79 + count * 13 + 5) % 400).collect();
    let asked = |count: &u32| Asked { prompt: prompt(*count), seed: 0, draw: None };
    Header {
        wordline_record: FORMAT,
        model: "llama".into(),
        index: model.checkpoint.weights.index_digest(),
        spec: program(model).identity.spec,
        numerics: Numerics::default(),
        ctx,
        step_rows,
        stateless,
        answers: prompts.iter().map(asked).collect(),
    }
}

/// What one plan did: where it was cut, how many tokens each answer had at its end, and whether its last stage was lost
/// while a lap of each answer was on its way.
struct Leg {
    cuts: &'static [u32],
    tokens: usize,
    lost: bool,
}

/// What a ring has for the recorder.
fn fly(model: &Model, header: &Header, legs: &[Leg]) -> Vec<Entry> {
    let room = Room { ctx: header.ctx, step_rows: header.step_rows, sequences: 1 };
    let (program, step, stateless) = (program(model), header.step_rows as usize, header.stateless);
    let mut texts: Vec<Vec<u32>> = header.answers.iter().map(|asked| asked.prompt.clone()).collect();
    let (mut entries, mut sequence) = (Vec::new(), 0);
    for (epoch, Leg { cuts, tokens, lost }) in (1..).zip(legs) {
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let layers: Vec<Range<u32>> = starts.zip(cuts.iter().copied()).map(|(a, b)| a..b).collect();
        let key = |stage: usize| [stage as u8 + 1; 32];
        let devices = (0..cuts.len()).map(|i| Device { key: key(i), capacity: 1.0, memory: 0 }).collect();
        let stages = layers.iter().cloned().enumerate().map(|(device, layers)| PlannedStage { device, layers });
        let plan = Plan { room, layers: 3, devices, stages: stages.collect() };
        entries.push(Entry::Plan { epoch, plan });
        let ranges: Vec<_> = layers.iter().map(|l| l.start as usize..l.end as usize).collect();
        let mut workers = maker(model).all(&program, &ranges, room).unwrap();
        for (answer, text) in texts.iter_mut().enumerate() {
            entries.push(Entry::Sequence { epoch, answer, sequence });
            let prompt = header.answers[answer].prompt.len();
            let (mut fed, mut late) = (0, None);
            for lap in 0.. {
                let from = if stateless { text.len().saturating_sub(step) } else { fed };
                let to = text.len().min(from + step);
                let position = if stateless { 0 } else { from as u32 };
                let mut input = Input::Tokens(text[from..to].to_vec());
                let (mut came, mut last, mut hops) = (vec![0; to - from], Vec::new(), Vec::new());
                for (stage, made) in (0..).zip(&mut workers) {
                    let job = Job { sequence, position, anew: stateless, input };
                    let hidden = made.worker.run(&[job]).pop().unwrap().unwrap();
                    let width = made.worker.width();
                    let went: Vec<u64> = hidden.chunks_exact(width).map(row_digest).collect();
                    let rows = came.into_iter().zip(went.iter().copied()).collect();
                    let (compute_us, queue_us, came_us, heard) = (7, 0, 0, None);
                    let trace = Trace { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows };
                    hops.push(Entry::Hop { answer, trace });
                    came = went;
                    last = hidden[hidden.len() - width..].to_vec();
                    input = Input::Hidden(hidden);
                }
                let on_its_way = *lost && text.len() == prompt + tokens;
                let mut hops = hops.into_iter();
                entries.extend(hops.next());
                if on_its_way {
                    break;
                }
                entries.extend(late.take());
                // The last stage's rows are read out before it has told of them.
                late = if cuts.len() > 1 { hops.next_back() } else { None };
                entries.extend(hops);
                fed = to;
                if to < text.len() {
                    continue;
                }
                let logits = workers[0].worker.read_out(&[(sequence, last)]).unwrap().pop().unwrap();
                let token = Sampler::new(Sampling::Greedy, 0).pick(&logits, text).unwrap();
                entries.push(Entry::Token { answer, index: (text.len() - prompt) as u32, token });
                text.push(token);
                if !lost && text.len() == prompt + tokens {
                    entries.extend(late.take());
                    break;
                }
            }
            workers.iter_mut().for_each(|made| made.worker.free(None));
            sequence += 1;
        }
        if *lost {
            entries.push(Entry::Lost { key: key(cuts.len() - 1), why: "closed".into() });
        }
    }
    entries
}

fn recorded(header: &Header, entries: &[Entry]) -> String {
    let mut bytes = Vec::new();
    let mut recorder = Recorder::new(&mut bytes, header).unwrap();
    entries.iter().for_each(|entry| recorder.write(entry).unwrap());
    recorder.finish().unwrap();
    String::from_utf8(bytes).unwrap()
}

/// What a replay says.
fn replayed(model: &Model, record: &str) -> String {
    let replay = |record: Record| record.replay(&program(model), &maker(model));
    match Record::read(record.as_bytes()).and_then(replay) {
        Err(error) => format!("refused: {error}"),
        Ok(Replayed { difference: Some(difference), .. }) => format!("differs: {difference}"),
        Ok(Replayed { hops, rows, tokens, .. }) => format!("equal: {hops} hops, {rows} rows, {tokens} tokens"),
    }
}

/// That all that was written is held to the replay.
fn equal(entries: &[Entry]) -> String {
    let rows = entries.iter().filter_map(|entry| match entry {
        Entry::Hop { trace, .. } => Some(trace.rows.len()),
        _ => None,
    });
    let (hops, rows) = rows.fold((0, 0), |(hops, sum), rows| (hops + 1, sum + rows));
    let tokens = entries.iter().filter(|entry| matches!(entry, Entry::Token { .. })).count();
    format!("equal: {hops} hops, {rows} rows, {tokens} tokens")
}

#[test]
fn all_that_a_ring_wrote_is_compared() {
    let model = model();
    let whole = |cuts, tokens| Leg { cuts, tokens, lost: false };
    let lost = |cuts, tokens| Leg { cuts, tokens, lost: true };
    for (stateless, step_rows) in [(false, 4), (true, 5)] {
        let header = header(&model, &[3, 10], 24, step_rows, stateless);
        for legs in [
            vec![whole(&[3], 4)],
            vec![whole(&[1, 2, 3], 4)],
            // The laps on their way are lost, and so is what stages had still to tell of those before.
            vec![lost(&[1, 2, 3], 2), lost(&[2, 3], 2), whole(&[3], 4)],
            vec![lost(&[1, 2, 3], 0), whole(&[1, 3], 4)],
        ] {
            let entries = fly(&model, &header, &legs);
            assert_eq!(replayed(&model, &recorded(&header, &entries)), equal(&entries), "{stateless}");
        }
        // Ended by the user, with laps on their way that were never read out: nobody was lost.
        for tokens in [0, 3] {
            let mut entries = fly(&model, &header, &[lost(&[1, 2, 3], tokens)]);
            entries.pop();
            assert_eq!(replayed(&model, &recorded(&header, &entries)), equal(&entries), "{stateless} {tokens}");
        }
    }
}

#[test]
fn an_answer_may_fill_the_context() {
    let model = model();
    for (prompt, tokens, stateless) in [(250, 7, false), (256, 1, false), (250, 40, true)] {
        let header = header(&model, &[prompt], 256, 32, stateless);
        let entries = fly(&model, &header, &[Leg { cuts: &[1, 3], tokens, lost: false }]);
        assert_eq!(replayed(&model, &recorded(&header, &entries)), equal(&entries), "{prompt} {stateless}");
    }
}

/// Lap, stage, position, rows and answer of a hop.
type Found<'a> = (&'a mut u32, &'a mut u32, &'a mut u32, &'a mut Vec<[String; 2]>, &'a mut usize);

/// A stage's first hop.
fn hop<'a>(lines: &'a mut [Line], of: u32) -> Found<'a> {
    let hop = |line: &'a mut Line| match line {
        Line::Hop { answer, lap, stage, position, rows, .. } if *stage == of => {
            Some((lap, stage, position, rows, answer))
        }
        _ => None,
    };
    lines.iter_mut().find_map(hop).unwrap()
}

fn remove(lines: &mut Vec<Line>, is: fn(&Line) -> bool) {
    let at = lines.iter().position(is).unwrap();
    lines.remove(at);
}

/// Index and id of the first token.
fn token<'a>(lines: &'a mut [Line]) -> (&'a mut u32, &'a mut u32) {
    let token = |line: &'a mut Line| match line {
        Line::Token { index, token, .. } => Some((index, token)),
        _ => None,
    };
    lines.iter_mut().find_map(token).unwrap()
}

fn layers(lines: &mut [Line], stage: usize) -> &mut [u32; 2] {
    let Line::Plan { stages, .. } = &mut lines[0] else { panic!("a record begins with a plan") };
    &mut stages[stage].1
}

type Alter = fn(&mut Header, &mut Vec<Line>);

/// Each with an end line that fits, so that it is the alteration that is found.
const ALTERATIONS: &[(Alter, &str)] = &[
    (|header, _| header.wordline_record = 1, "refused: a record of format 1; this program replays 2"),
    (|header, _| header.index.replace_range(..1, "x"), "refused: the record is of a model with the tensor index x"),
    (|header, _| header.spec.replace_range(..1, "x"), "refused: the record is of a model with the spec x"),
    (|header, _| header.answers[0].prompt[1] += 1, "differs: "),
    (|header, _| header.step_rows = 1, "a token of answer 0 that no lap was read out for"),
    (|header, _| header.stateless = true, "lap 1 of stage 0, which had no rows to leave the head with"),
    (|_, lines| lines.clear(), "refused: the record holds no hop"),
    (|_, lines| lines.retain(|l| !matches!(l, Line::Hop { .. })), "a token of answer 0 that no lap was read out for"),
    (|_, lines| remove(lines, |l| matches!(l, Line::Hop { stage: 0, .. })), "had no rows to leave the head with"),
    (
        |_, lines| remove(lines, |l| matches!(l, Line::Hop { stage: 1, .. })),
        "lap 1 of stage 1, where its lap 0 follows",
    ),
    (|_, lines| lines.truncate(lines.len() - 1), "differs: answer 1, stage 2 (0303030303): of 6 laps the record has 5"),
    (|_, lines| lines.retain(|l| !matches!(l, Line::Token { .. })), "lap 1 of stage 0, which had no rows"),
    (|_, lines| remove(lines, |l| matches!(l, Line::Token { .. })), "lap 1 of stage 0, which had no rows"),
    (|_, lines| remove(lines, |l| matches!(l, Line::Plan { .. })), "sequence 0 of plan 1"),
    (|_, lines| remove(lines, |l| matches!(l, Line::Sequence { .. })), "answer 0 as sequence 0, which its plan"),
    (|_, lines| *layers(lines, 0) = [1, 1], "a plan that does not go from layer 0"),
    (|_, lines| *layers(lines, 1) = [20, 30], "a plan that does not go from layer 0"),
    (|_, lines| *layers(lines, 2) = [2, 4], "to the end of the model's 3 layers"),
    (|_, lines| *hop(lines, 1).0 = 50, "lap 50 of stage 1, where its lap 0 follows"),
    (|_, lines| *hop(lines, 1).1 = 7, "stage 7, which its plan does not have"),
    (|_, lines| *hop(lines, 0).2 = 4_000_000_000, "differs: answer 0, stage 0 (0101010101), lap 0: 3 rows from"),
    (|_, lines| *hop(lines, 1).2 = 4_000_000_000, "differs: answer 0, stage 1 (0202020202), lap 0: 3 rows from"),
    (|_, lines| hop(lines, 0).3.clear(), "differs: answer 0, stage 0 (0101010101), lap 0: 0 rows from position 0"),
    (|_, lines| hop(lines, 2).3.clear(), "differs: answer 0, stage 2 (0303030303), lap 0: 0 rows from position 0"),
    (|_, lines| hop(lines, 2).3.truncate(1), "1 rows from position 0 on, where the lap has 3 from 0 on"),
    (|_, lines| hop(lines, 0).3[1][0].replace_range(..1, "1"), "position 1: the row as it came is not"),
    (|_, lines| hop(lines, 1).3[2][0].replace_range(..1, "x"), "position 2: the row as it came is not"),
    (|_, lines| hop(lines, 2).3[0][1].replace_range(..1, "x"), "position 0: the row as it went is not"),
    (|_, lines| *hop(lines, 1).4 = 9, "answer 9 as sequence 0, which its plan does not have"),
    (|_, lines| *hop(lines, 1).4 = 1, "answer 1 as sequence 0, which its plan does not have"),
    (|_, lines| *token(lines).0 = 99999, "token 99999 of answer 0, where its token 0 follows"),
    (|_, lines| *token(lines).1 = (*token(lines).1 + 1) % 400, "differs: answer 0, token 0: recorded"),
    (|_, lines| lines.insert(0, Line::End { hops: 0, tokens: 0 }), "refused: line 2: an end line before the end"),
];

#[test]
fn an_altered_record_is_nobodys_equal() {
    let model = model();
    let header = header(&model, &[3, 10], 24, 4, false);
    let legs = [Leg { cuts: &[1, 2, 3], tokens: 4, lost: false }];
    let good = recorded(&header, &fly(&model, &header, &legs));
    for (number, (alter, found)) in ALTERATIONS.iter().enumerate() {
        let Record { mut header, mut lines, .. } = Record::read(good.as_bytes()).unwrap();
        alter(&mut header, &mut lines);
        let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
        let hops = count(|line| matches!(line, Line::Hop { .. }));
        let tokens = count(|line| matches!(line, Line::Token { .. }));
        lines.push(Line::End { hops, tokens });
        let lines = lines.iter().map(|line| serde_json::to_string(line).unwrap());
        let text: Vec<String> = std::iter::once(serde_json::to_string(&header).unwrap()).chain(lines).collect();
        let said = replayed(&model, &text.join("\n"));
        assert!(said.contains(found), "alteration {number}, '{found}': {said}");
    }
}

#[test]
fn a_record_that_is_not_whole_is_nobodys_equal() {
    let model = model();
    let header = header(&model, &[3], 24, 4, false);
    let legs = [Leg { cuts: &[1, 3], tokens: 3, lost: false }];
    let good = recorded(&header, &fly(&model, &header, &legs));
    let lines: Vec<&str> = good.lines().collect();
    let stops = |line: usize| format!("differs: it stops at line {line} without an end: the record is not whole");
    for count in 1..lines.len() {
        let said = replayed(&model, &lines[..count].join("\n"));
        let hops = lines[..count].iter().any(|line| line.contains(r#""hop""#));
        let expected = if hops { stops(count) } else { "refused: the record holds no hop".into() };
        assert!(said.starts_with(&expected), "{count}: {said}");
    }
    let end = lines.len();
    for (at, line) in lines.iter().enumerate().filter(|(_, l)| l.contains(r#""hop""#) || l.contains(r#""token""#)) {
        let others = [&lines[..at], &lines[at + 1..]].concat().join("\n");
        let said = Record::read(others.as_bytes()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("line {}: written were 6 hops and 3 tokens", end - 1)), "{line}: {said}");
    }
    assert!(matches!(Record::read(&b""[..]), Err(RecordError::Empty)));
    // A line that was cut off is none.
    assert_eq!(replayed(&model, &good[..good.len() - 4]), stops(end - 1));
}
