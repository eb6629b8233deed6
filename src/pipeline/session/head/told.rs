//! What stages tell of their hops, held to what is recorded; and the end, once all is told.

use super::super::{Action, Entry};
use super::report::Share;
use super::{HeadError, HeadSession};
use crate::pipeline::plan::Key;
use crate::pipeline::wire::Trace;
use std::time::Duration;

impl HeadSession {
    pub(super) fn trace(&mut self, from: Key, trace: Trace, now: Duration) {
        let Some((plan, stage)) = self.plan.as_ref().and_then(|plan| Some((plan, plan.stage_of(&from)?))) else {
            return;
        };
        if stage != trace.stage as usize || stage == 0 {
            return;
        }
        let (layers, last) = (plan.stages[stage].layers.clone(), stage + 1 == plan.stages.len());
        let (sequence, lap) = (trace.sequence, trace.lap);
        let answer = self.answer_of(sequence);
        let heard = answer.zip(trace.heard).and_then(|(answer, (token, at))| {
            let told = *self.answers[answer].told.get(token as usize)?;
            Some((told, at))
        });
        let record = self.laps.get_mut(&(sequence, lap));
        let clock = self.clocks.entry(from).or_default();
        if let Some((told, at)) = heard {
            clock.heard(told, at);
        }
        // The last stage's rows come before it tells of them, and the head may be at the next ones by then.
        let told = if last { record.as_ref().and_then(|record| record.back()) } else { Some(now) };
        if let Some(told) = told {
            let busy = u64::from(trace.queue_us) + u64::from(trace.compute_us);
            clock.told(trace.came_us.saturating_add(busy), told);
        }
        if let Some(record) = record {
            let us = |us: u32| Duration::from_micros(us.into());
            let (compute, queue) = (us(trace.compute_us), us(trace.queue_us));
            record.shares.entry(stage).or_insert(Share { compute, queue, came: clock.here(trace.came_us) });
        }
        self.traces.entry((sequence, trace.stage)).or_default().push(trace.clone());
        if let Some(index) = answer {
            let slid = self.config.stateless && self.answers[index].ids.len() > self.config.room.step_rows as usize;
            self.compare(index, &trace, (layers.start, layers.end), slid);
            self.out.push_back(Action::Record(Entry::Hop { answer: index, trace }));
        }
    }

    /// Hold a trace's rows to what is recorded at the same borders and positions: by another stage, or before a loss.
    pub(super) fn compare(&mut self, index: usize, trace: &Trace, borders: (u32, u32), slid: bool) {
        if slid {
            return;
        }
        let stage = trace.stage;
        let answer = &mut self.answers[index];
        for (i, (came, went)) in (0..).zip(&trace.rows) {
            let position = trace.position + i;
            let mut hold = |border: u32, digest: u64| {
                let known = *answer.rows.entry((border, position)).or_insert(digest);
                known == digest
            };
            let (came_right, went_right) = (stage == 0 || hold(borders.0, *came), hold(borders.1, *went));
            if came_right && went_right {
                continue;
            }
            let what = if came_right { "gave" } else { "says it was given" };
            let border = if came_right { borders.1 } else { borders.0 };
            let text = format!(
                "stage {stage}, computing: the hidden row that it {what} at position {position} (before layer {border}) is \
                 not the recorded one; the answer is not continued"
            );
            return self.end(Some(HeadError::Rebuilt(text)));
        }
    }

    /// Every answer is written.
    pub(super) fn written(&self) -> bool {
        self.answers.iter().all(|answer| answer.ending.is_some())
    }

    /// End the run once every answer is written and every stage has said what it made of the last laps, or says nothing
    /// for too long: a token can be back before a stage's own account of it.
    pub(super) fn settle(&mut self, now: Duration) {
        let stages = 1..self.plan.as_ref().map_or(0, |plan| plan.stages.len() as u32);
        let told = |sequence: u32, lap: u32, stage: u32| {
            self.traces.get(&(sequence, stage)).is_some_and(|traces| traces.iter().any(|trace| trace.lap == lap))
        };
        let whole = self.closing.iter().all(|(sequence, (_, lap))| stages.clone().all(|s| told(*sequence, *lap, s)));
        if (whole || self.patience.is_none_or(|until| now > until)) && !self.begin_audit(now) {
            self.end(None);
        }
    }
}
