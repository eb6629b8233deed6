//! The replay of a record: every answer again on one machine, and each hop that was recorded held to it.

use super::{Header, Line, Record, RecordError};
use crate::generate::sampler::Sampler;
use crate::pipeline::load::{Maker, index_of};
use crate::pipeline::plan::Room;
use crate::pipeline::wire::row_digest;
use crate::pipeline::worker::{Input, Job};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wordline_ir::Program;
use wordline_ir::digest::hex;

impl Record {
    /// Run every answer again on one machine, cut wherever a plan was cut, and hold each recorded hop and token to it.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn replay(&self, program: &Program, maker: &Maker<'_>) -> Result<Replayed, RecordError> {
        let (given, needed) = (hex(&index_of(maker.weights)), &self.header.index);
        if given != *needed {
            return Err(RecordError::Model { given, needed: needed.clone() });
        }
        let (given, needed) = (&program.identity.spec, &self.header.spec);
        if given != needed {
            return Err(RecordError::Spec { given: given.clone(), needed: needed.clone() });
        }
        let layers = program.identity.cut.last_layer as u32;
        let (hops, untold) = self.hops(layers)?;
        let borders = self.borders(layers);
        let starts = std::iter::once(0).chain(borders.iter().copied());
        let ranges: Vec<_> = starts.zip(borders.iter().copied()).map(|(a, b)| a as usize..b as usize).collect();
        // How far laps went, by answer and tokens written. A last token is fed to nobody and takes no place in the context.
        let mut ends: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for hop in &hops {
            let end = ends.entry((hop.answer, hop.due.written)).or_default();
            *end = hop.due.rows.end.max(*end);
        }
        let ctx = ends.values().copied().max().ok_or(RecordError::Empty)?;
        let room = Room { ctx, step_rows: self.header.step_rows.clamp(1, ctx), sequences: 1 };
        let mut workers = maker.all(program, &ranges, room)?;
        let mut replayed = Replayed { hops: 0, rows: 0, tokens: 0, difference: None };
        let stateless = self.header.stateless;
        for (answer, ids) in self.ids().iter().enumerate() {
            let asked = &self.header.answers[answer];
            let mut sampler = Sampler::new(asked.sampling(), asked.seed);
            let mut text = asked.prompt.clone();
            let mut digests = Digests::new();
            let mut fed = 0;
            // Behind the last token too: a run that was ended before its time has laps that were never read out.
            for index in 0..=ids.len() {
                let end = ends.get(&(answer, index)).map_or(0, |end| *end as usize);
                let mut last = Vec::new();
                // A lap of the last tokens alone begins a sequence, and counts its positions from there.
                let (begin, lap) = if stateless { (text.len() - end, index) } else { (0, 0) };
                fed = if stateless { 0 } else { fed };
                while fed < end {
                    let to = end.min(fed + room.step_rows as usize);
                    let mut input = Input::Tokens(text[begin + fed..begin + to].to_vec());
                    for (made, border) in workers.iter_mut().zip(&borders) {
                        let position = fed as u32;
                        let job = Job { sequence: answer as u32, position, anew: stateless, input };
                        let hidden = made.worker.run(&[job]).pop().unwrap_or(Ok(Vec::new()))?;
                        let width = made.worker.width().max(1);
                        for (row, position) in hidden.chunks_exact(width).zip(position..) {
                            digests.insert((*border, lap, position), row_digest(row));
                        }
                        last = hidden[hidden.len().saturating_sub(width)..].to_vec();
                        input = Input::Hidden(hidden);
                    }
                    fed = to;
                }
                let Some(token) = ids.get(index) else { break };
                let head = workers.first_mut().map(|made| made.worker.read_out(&[(answer as u32, last)]));
                let logits = head.transpose()?.and_then(|mut rows| rows.pop()).unwrap_or_default();
                let picked = sampler.pick(&logits, &text);
                replayed.tokens += 1;
                if picked != Some(*token) {
                    replayed.differs(format!("answer {answer}, token {index}: recorded {token}, replayed {picked:?}"));
                }
                text.push(*token);
            }
            for hop in hops.iter().filter(|hop| hop.answer == answer) {
                hop.compare(stateless, &digests, &mut replayed);
            }
            workers.iter_mut().for_each(|made| made.worker.free(None));
        }
        match self.stops {
            // What a stage had still to tell may be what is missing.
            Some(line) => replayed.differs(format!("it stops at line {line} without an end: the record is not whole")),
            None => untold.into_iter().for_each(|what| replayed.differs(what)),
        }
        Ok(replayed)
    }

    /// Where any plan was cut, the end of the model included.
    fn borders(&self, layers: u32) -> BTreeSet<u32> {
        let plans = self.lines.iter().filter_map(|line| match line {
            Line::Plan { stages, .. } => Some(stages),
            _ => None,
        });
        plans.flatten().map(|(_, [_, end])| *end).chain([layers]).collect()
    }

    /// Every hop and the lap that it is of, and what a stage owes; the head's own lines must follow from each other.
    fn hops(&self, layers: u32) -> Result<(Vec<Recorded<'_>>, Option<String>), RecordError> {
        let mut written = vec![0; self.header.answers.len()];
        let (mut ring, mut hops, mut untold) = (Ring::default(), Vec::new(), None);
        for (i, line) in self.lines.iter().enumerate() {
            let wrong = |what: String| Err(RecordError::Contradiction { line: i + 2, what });
            match line {
                Line::Plan { epoch, stages } => {
                    let ends = std::iter::once(0).chain(stages.iter().map(|(_, [_, end])| *end));
                    let joined = ends.zip(stages).all(|(before, (_, [start, end]))| before == *start && start <= end);
                    if !joined || stages.last().is_none_or(|(_, [_, end])| *end != layers) {
                        let what = "a plan that does not go from layer 0 to the end of the model's";
                        return wrong(format!("{what} {layers} layers without a gap"));
                    }
                    if epoch.checked_sub(1) != Some(ring.epoch) {
                        return wrong(format!("plan {epoch} behind plan {}", ring.epoch));
                    }
                    untold = untold.or_else(|| ring.untold());
                    let first = ring.first + ring.courses.len();
                    ring = Ring { epoch: *epoch, stages, first, ..Ring::default() };
                }
                Line::Sequence { epoch, answer, sequence } => {
                    let next = ring.first + ring.courses.len();
                    let taken = ring.courses.iter().any(|course| course.answer == *answer);
                    if *epoch != ring.epoch || *sequence as usize != next || taken || *answer >= written.len() {
                        return wrong(format!(
                            "sequence {sequence} of plan {epoch} for answer {answer}, where sequence {next} of plan {} for \
                             another answer of the {} that were asked for follows",
                            ring.epoch,
                            written.len()
                        ));
                    }
                    let (laps, told) = (Vec::new(), vec![0; ring.stages.len()]);
                    ring.courses.push(Course { answer: *answer, laps, told, read: false });
                }
                Line::Hop { answer, sequence, lap, stage, position, rows, .. } => {
                    let Some((key, layers)) = ring.stages.get(*stage as usize) else {
                        return wrong(format!("stage {stage}, which its plan does not have"));
                    };
                    let at = (*sequence as usize).checked_sub(ring.first);
                    let course = at.and_then(|at| ring.courses.get_mut(at)).filter(|course| course.answer == *answer);
                    let Some(course) = course else {
                        return wrong(format!("answer {answer} as sequence {sequence}, which its plan does not have"));
                    };
                    let told = &mut course.told[*stage as usize];
                    if *lap as usize != *told {
                        return wrong(format!("lap {lap} of stage {stage}, where its lap {told} follows"));
                    }
                    *told += 1;
                    if *stage == 0 {
                        course.laps.extend(self.next_lap(*answer, written[*answer], course.laps.last()));
                        course.read = false;
                    }
                    let Some(due) = course.laps.get(*lap as usize).cloned() else {
                        return wrong(format!("lap {lap} of stage {stage}, which had no rows to leave the head with"));
                    };
                    let (answer, stage, lap, position) = (*answer, *stage, *lap, *position);
                    hops.push(Recorded { answer, stage, key, layers: *layers, lap, due, position, rows });
                }
                Line::Token { answer, index, .. } => {
                    let whole = |course: &&mut Course| {
                        let last = course.laps.last();
                        last.is_some() && self.next_lap(*answer, written[*answer], last).is_none()
                    };
                    let course = ring.courses.iter_mut().find(|course| course.answer == *answer).filter(whole);
                    let Some(course) = course else {
                        return wrong(format!("a token of answer {answer} that no lap was read out for"));
                    };
                    if *index as usize != written[*answer] {
                        let next = written[*answer];
                        return wrong(format!("token {index} of answer {answer}, where its token {next} follows"));
                    }
                    course.read = true;
                    written[*answer] += 1;
                }
                Line::Lost { key, .. } => ring.lost |= ring.stages.iter().any(|(of, _)| of == key),
                Line::End { .. } => return wrong("an end line before the end".into()),
            }
        }
        Ok((hops, untold.or_else(|| ring.untold())))
    }

    /// The lap that an answer of so many tokens sends behind its last one; none: it has no rows to send.
    fn next_lap(&self, answer: usize, written: usize, last: Option<&Lap>) -> Option<Lap> {
        let Header { step_rows, ctx, stateless, .. } = self.header;
        let text = (self.header.answers[answer].prompt.len() + written) as u32;
        let rows = match last {
            Some(last) if stateless && last.written == written => 0..0,
            _ if stateless => 0..text.min(step_rows).min(ctx),
            last => {
                let from = last.map_or(0, |last| last.rows.end);
                from..text.min(from.saturating_add(step_rows))
            }
        };
        (!rows.is_empty()).then_some(Lap { written, rows })
    }
}

/// A lap as it leaves the head.
#[derive(Clone, Debug)]
struct Lap {
    /// Tokens of the answer that are written.
    written: usize,
    /// Positions.
    rows: Range<u32>,
}

/// One sequence in a ring.
#[derive(Debug)]
struct Course {
    answer: usize,
    /// Laps that have left the head.
    laps: Vec<Lap>,
    /// How many of them each stage has told of: it does so in their order.
    told: Vec<usize>,
    /// The last of them was read out.
    read: bool,
}

/// The ring of one plan.
#[derive(Debug, Default)]
struct Ring<'a> {
    epoch: u32,
    stages: &'a [(String, [u32; 2])],
    /// Sequence of the first course.
    first: usize,
    courses: Vec<Course>,
    /// One of its stages was lost.
    lost: bool,
}

impl Ring<'_> {
    /// What a stage has not told of. A ring that lost a stage, or that was ended with laps on their way, owes nothing: the
    /// head did not wait for what it still had to tell.
    fn untold(&self) -> Option<String> {
        if self.lost || self.courses.iter().any(|course| !course.read) {
            return None;
        }
        self.courses.iter().find_map(|Course { answer, laps, told, .. }| {
            let (stage, told) = told.iter().enumerate().find(|(_, told)| **told < laps.len())?;
            let key = short(&self.stages[stage].0);
            Some(format!("answer {answer}, stage {stage} ({key}): of {} laps the record has {told}", laps.len()))
        })
    }
}

/// The first digits of a key.
fn short(key: &str) -> &str {
    key.get(..10).unwrap_or(key)
}

/// A hop as the record has it, and the lap that it is of.
#[derive(Debug)]
struct Recorded<'a> {
    answer: usize,
    stage: u32,
    key: &'a str,
    layers: [u32; 2],
    lap: u32,
    due: Lap,
    position: u32,
    rows: &'a [[String; 2]],
}

impl Recorded<'_> {
    fn compare(&self, stateless: bool, digests: &Digests, replayed: &mut Replayed) {
        let Self { answer, stage, layers: [start, end], lap, due, position, rows, .. } = self;
        let who = format!("answer {answer}, stage {stage} ({}), lap {lap}", short(self.key));
        if (*position, rows.len()) != (due.rows.start, due.rows.len()) {
            return replayed.differs(format!(
                "{who}: {} rows from position {position} on, where the lap has {} from {} on",
                rows.len(),
                due.rows.len(),
                due.rows.start
            ));
        }
        replayed.hops += 1;
        for ([came, went], at) in rows.iter().zip(due.rows.clone()) {
            replayed.rows += 1;
            let here = |border: u32| digests.get(&(border, if stateless { due.written } else { 0 }, at)).copied();
            // The head embeds: its rows come from nowhere.
            let given = if *stage == 0 { Some(0) } else { here(*start) };
            for (here, recorded, how) in [(given, came, "came"), (here(*end), went, "went")] {
                if here.is_none_or(|digest| format!("{digest:016x}") != *recorded) {
                    let what = "is not what this machine computes";
                    replayed.differs(format!("{who}, position {at}: the row as it {how} {what}"));
                }
            }
        }
    }
}

/// Digest of the hidden row at a border between layers, on the lap of a token (0 where laps go on from each other), at a
/// position.
type Digests = BTreeMap<(u32, usize, u32), u64>;

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Hops compared.
    pub hops: usize,
    /// Rows of them.
    pub rows: usize,
    /// Tokens picked again.
    pub tokens: usize,
    /// The first difference, in words; none: all is equal.
    pub difference: Option<String>,
}

impl Replayed {
    /// Only the first difference is kept: others may follow from it.
    fn differs(&mut self, what: String) {
        self.difference.get_or_insert(what);
    }
}
