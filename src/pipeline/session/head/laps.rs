//! Laps: rows leave the head's own layers, come back from the last stage, and are read out.

use super::super::answer::{Answer, Flight};
use super::super::{Action, Entry, send};
use super::clock::us;
use super::report::{Share, drawn};
use super::{HeadError, HeadSession, Phase};
use crate::pipeline::plan::Key;
use crate::pipeline::wire::{Form, Hop, Message, Next, Trace, row_digest};
use crate::pipeline::worker::{Input, Job, Worker};
use std::time::Duration;

impl HeadSession {
    /// Whether an answer can send rows on a lap.
    pub(super) fn feeds(&self, answer: &Answer) -> bool {
        let stages = self.plan.as_ref().map_or(1, |plan| plan.stages.len());
        let window = if self.config.stateless { 1 } else { stages };
        answer.ending.is_none()
            && answer.sequence.is_some()
            && answer.awaited.is_empty()
            && answer.fed < answer.ids.len()
            && answer.flights.len() < window
    }

    /// The answers that send rows on a lap together now.
    pub(super) fn chosen(&self) -> Vec<usize> {
        let stages = self.plan.as_ref().map_or(1, |plan| plan.stages.len());
        let active = self.answers.iter().filter(|a| a.ending.is_none() && a.sequence.is_some()).count();
        // A share of the answers a step, so that while one share is on a later stage the next one is here. As long as
        // their number allows it as many are on the way as there are stages; no bit depends on it.
        let together = active.div_ceil(stages).clamp(1, self.config.room.sequences as usize);
        let open = self.answers.iter().filter(|a| a.ending.is_none() && a.fed > 0).count();
        let mut room = (self.config.room.sequences as usize).saturating_sub(open);
        let mut chosen = Vec::new();
        for (index, answer) in self.answers.iter().enumerate() {
            if chosen.len() < together && self.feeds(answer) {
                if answer.fed == 0 {
                    let Some(left) = room.checked_sub(1) else { continue };
                    room = left;
                }
                chosen.push(index);
            }
        }
        chosen
    }

    pub(super) fn feed(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) -> Result<(), HeadError> {
        let chosen = self.chosen();
        let jobs: Vec<Job> = chosen.iter().map(|index| self.next_job(&self.answers[*index])).collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let start = clock();
        let results = worker.run(&jobs);
        let now = clock();
        for ((index, job), hidden) in chosen.into_iter().zip(jobs).zip(results) {
            self.depart(index, &job, hidden?, start, now);
        }
        Ok(())
    }

    /// The rows that an answer sends on its next lap.
    fn next_job(&self, answer: &Answer) -> Job {
        let sequence = answer.sequence.unwrap_or_default();
        let step = self.config.room.step_rows as usize;
        if self.config.stateless {
            let from = answer.ids.len().saturating_sub(step.min(self.config.room.ctx as usize));
            return Job { sequence, position: 0, anew: true, input: Input::Tokens(answer.ids[from..].to_vec()) };
        }
        let to = answer.ids.len().min(answer.fed + step);
        let (position, tokens) = (answer.fed as u32, answer.ids[answer.fed..to].to_vec());
        Job { sequence, position, anew: false, input: Input::Tokens(tokens) }
    }

    /// An answer's rows leave the head's own layers.
    fn depart(&mut self, index: usize, job: &Job, hidden: Vec<f32>, start: Duration, now: Duration) {
        let width = self.config.facts.hidden.max(1);
        let (layers, to) = match &self.plan {
            Some(plan) => (plan.stages[0].layers.end, plan.key(1)),
            None => (0, None),
        };
        let digests: Vec<u64> = hidden.chunks_exact(width).map(row_digest).collect();
        let rows = digests.len();
        let answer = &mut self.answers[index];
        // Laps that begin anew past the first rows of the text have other positions: nothing to compare them with.
        let slid = job.anew && answer.ids.len() > rows;
        answer.fed = if job.anew { answer.ids.len() } else { answer.fed + rows };
        let (lap, sequence) = (answer.lap, job.sequence);
        answer.lap += 1;
        let reads = answer.fed == answer.ids.len();
        answer.flights.push_back(Flight { lap, reads, sent: start });
        let compute = now.saturating_sub(start);
        let record = self.laps.entry((sequence, lap)).or_default();
        (record.rows, record.sent) = (rows, start);
        record.shares.insert(0, Share { compute, queue: Duration::ZERO, came: Some(us(start)) });
        if let Some(to) = to {
            let form =
                if job.anew { Form::Anew } else { Form::Cached { position: job.position, keep: u32::from(reads) } };
            let hop = Hop { sequence, lap, next: Next::Stage(1), model: self.model, form, hidden };
            self.out.push_back(send(to, Message::Hop(hop)));
        } else {
            self.returned(index, lap, &hidden, now);
        }
        let compute_us = u32::try_from(compute.as_micros()).unwrap_or(u32::MAX);
        let rows: Vec<(u64, u64)> = digests.into_iter().map(|went| (0, went)).collect();
        let (came_us, heard) = (u64::try_from(start.as_micros()).unwrap_or(u64::MAX), None);
        let (stage, position, queue_us) = (0, job.position, 0);
        let trace = Trace { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows };
        self.compare(index, &trace, (0, layers), slid);
        self.out.push_back(Action::Record(Entry::Hop { answer: index, trace: trace.clone() }));
        self.traces.entry((sequence, 0)).or_default().push(trace);
    }

    pub(super) fn hop(&mut self, from: Key, hop: Hop, now: Duration) {
        let Some(plan) = &self.plan else { return };
        let (stage, last) = (plan.stage_of(&from), plan.stages.len() - 1);
        let answer = self.answer_of(hop.sequence);
        let (Some(stage), Some(index), Phase::Running) = (stage, answer, self.phase) else {
            // Late: of a sequence that has ended or goes under another number now.
            return;
        };
        if hop.model != self.model {
            let text = format!("model-mismatch: a hop of model {:08x}, the head's is {:08x}", hop.model, self.model);
            return self.lose(from, text);
        }
        let position = match hop.form {
            Form::Cached { position, .. } => position,
            Form::Anew => 0,
        };
        match hop.next {
            Next::Copy if drawn(self.config.audit, index as u32, stage as u32) => {
                let copies = self.copies.entry((hop.sequence, stage as u32)).or_default();
                if hop.form == Form::Anew {
                    copies.clear();
                }
                copies.push((position, hop.hidden));
            }
            Next::Return if stage == last => self.returned(index, hop.lap, &hop.hidden, now),
            _ => self.lose(from, format!("address: a hop addressed {} came to the head", hop.next.code())),
        }
    }

    /// The answer that goes under this number, or did until it was written.
    pub(super) fn answer_of(&self, sequence: u32) -> Option<usize> {
        let now = self.answers.iter().position(|answer| answer.sequence == Some(sequence));
        now.or_else(|| self.closing.get(&sequence).map(|(answer, _)| *answer))
    }

    /// Rows have come back from their lap.
    pub(super) fn returned(&mut self, index: usize, lap: u32, hidden: &[f32], now: Duration) {
        let width = self.config.facts.hidden.max(1);
        let answer = &mut self.answers[index];
        // Duplicates and laps of before are not in flight; they are dropped.
        let Some(at) = answer.flights.iter().position(|flight| flight.lap == lap) else { return };
        let flight = answer.flights[at];
        let row = hidden.len().checked_sub(width).map(|from| hidden[from..].to_vec());
        let (true, row) = (!flight.reads || row.is_some(), row) else {
            let last = self.plan.as_ref().and_then(|plan| plan.key(plan.stages.len() - 1)).unwrap_or_default();
            return self.lose(last, format!("shape: {} values came back, a row has {width}", hidden.len()));
        };
        answer.flights.remove(at);
        if let Some(record) = answer.sequence.and_then(|sequence| self.laps.get_mut(&(sequence, lap))) {
            record.time = now.saturating_sub(flight.sent).max(Duration::from_nanos(1));
        }
        if let Some(row) = row.filter(|_| flight.reads) {
            self.returns.push_back((index, row));
        }
    }

    /// Final norm and head over the rows that came back, one row an answer, and the tokens that follow.
    pub(super) fn read_out(&mut self, worker: &mut Worker) -> Result<(), HeadError> {
        if self.returns.is_empty() {
            return Ok(());
        }
        let returns: Vec<(usize, Vec<f32>)> = self.returns.drain(..).collect();
        let rows: Vec<(usize, (u32, Vec<f32>))> =
            returns.into_iter().filter_map(|(i, row)| Some((i, (self.answers[i].sequence?, row)))).collect();
        let (indices, rows): (Vec<usize>, Vec<(u32, Vec<f32>)>) = rows.into_iter().unzip();
        let logits = worker.read_out(&rows)?;
        let ctx = self.config.room.ctx as usize;
        for (index, logits) in indices.into_iter().zip(logits) {
            let stateless = self.config.stateless;
            let answer = &mut self.answers[index];
            // A stateless lap takes the last tokens, however many there are: it never fills the context.
            let token = answer.pick(&logits, if stateless { usize::MAX } else { ctx }).ok_or(HeadError::NoLogits)?;
            let (position, sequence) = (answer.written().len() as u32 - 1, answer.sequence.unwrap_or_default());
            let ended = answer.ending.is_some();
            self.out.push_back(Action::Token { answer: index, token });
            self.out.push_back(Action::Record(Entry::Token { answer: index, index: position, token }));
            // Whoever is here may watch, with layers or without.
            let guests = self.guests.iter().map(|guest| guest.key);
            self.out.extend(guests.map(|to| send(to, Message::Token { sequence, index: position, token })));
            if ended {
                self.answers[index].sequence = None;
                self.closing.insert(sequence, (index, self.answers[index].lap.saturating_sub(1)));
                self.tell_stages(&Message::Finished { sequence: Some(sequence) });
                worker.free(Some(sequence));
            }
        }
        Ok(())
    }
}
