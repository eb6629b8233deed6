//! `HeadSession`: the head from its first guest to the last token.

use super::super::plan::{Demand, Device, Key, Plan, PlanError, Room, short};
use super::super::wire::{
    About, Assign, Fault, Form, Hello, Hop, Join, Member, Message, Next, Purpose, Ready, Trace, VERSION, WireError,
    claim, model_hash, row_digest,
};
use super::super::worker::{Input, Job, WorkError, Worker};
use super::answer::{Answer, Ask, Flight, Outcome};
use super::{Action, Entry, Verify, proof, send};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Who may take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whoever has this secret.
    pub secret: Option<[u8; 32]>,
    /// Whoever has one of these keys.
    pub roster: Vec<Key>,
}

/// What an assignment says of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Repository, `owner/name`.
    pub repo: String,
    /// Revision.
    pub revision: String,
    /// Digest of the tensor index.
    pub index: [u8; 32],
    /// Spec, as JSON.
    pub spec: String,
    /// Numerics, as JSON.
    pub numerics: String,
    /// Values of a hidden row.
    pub hidden: usize,
}

/// What a head is made with.
#[derive(Clone, Debug)]
pub struct HeadConfig {
    /// The head's own figures.
    pub me: Device,
    /// What it says of itself to the roster.
    pub hello: Hello,
    /// Its signature over its claim.
    pub signature: [u8; 64],
    /// The kernel probe that every device must print.
    pub probe: [u8; 32],
    /// Checks signatures.
    pub verify: Verify,
    /// Who may take part.
    pub admission: Admission,
    /// Stages to wait for, the head not counted.
    pub stages: usize,
    /// The model.
    pub facts: Facts,
    /// What it needs.
    pub demand: Demand,
    /// Room on every stage.
    pub room: Room,
    /// Laps that embed the last tokens again, as many as a step takes, in place of laps of new rows alone.
    pub stateless: bool,
    /// Share of (sequence, stage) pairs whose hops are copied to the head and replayed.
    pub audit: f64,
    /// After this long without a sign of life a stage is lost.
    pub silence: Duration,
    /// After this long a lap is lost, and the stage that holds it.
    pub lap: Duration,
    /// After this long without all stages the head gives up; none: it waits.
    pub gather: Option<Duration>,
}

/// Why the run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HeadError {
    /// Not all stages came.
    #[error("joining: {given} of {wanted} stages came within {:.0} s{}", after.as_secs_f64(), because(refused))]
    Gather {
        /// Stages that came.
        given: usize,
        /// Stages wanted.
        wanted: usize,
        /// How long was waited.
        after: Duration,
        /// The last reason for which one was refused.
        refused: Option<String>,
    },
    /// There is no plan.
    #[error("planning: {0}")]
    Plan(#[from] PlanError),
    /// A stage was lost and nobody can take its layers.
    #[error("{lost}; nobody can take its layers: {source}")]
    NoSpare {
        /// Who was lost and why.
        lost: String,
        /// Why there is no plan without it.
        source: PlanError,
    },
    /// A stage was lost before the first lap, and too few are left.
    #[error("{lost}; {given} of {wanted} stages are left")]
    Short {
        /// Who was lost and why.
        lost: String,
        /// Stages left.
        given: usize,
        /// Stages wanted.
        wanted: usize,
    },
    /// The head's own stage could not be made.
    #[error("stage 0 (the head), loading: {0}")]
    Own(String),
    /// The head's own stage failed.
    #[error("stage 0 (the head), computing: {0}")]
    Work(#[from] WorkError),
    /// A rebuilt state is not the state that was.
    #[error("{0}")]
    Rebuilt(String),
    /// The program gives no logits.
    #[error("stage 0 (the head), reading out: no logits")]
    NoLogits,
}

fn because(refused: &Option<String>) -> String {
    refused.as_ref().map(|why| format!("; the last one refused: {why}")).unwrap_or_default()
}

/// One lap as it was: for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// Rows.
    pub rows: usize,
    /// From the head's step to the row that came back.
    pub time: Duration,
    /// Computing, by stage, the head's first.
    pub compute: Vec<Duration>,
    /// Waiting for a step that was under way, by stage.
    pub queue: Vec<Duration>,
}

/// What a stage was and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageReport {
    /// Its key.
    pub key: Key,
    /// What it said when it was ready; none for the head.
    pub ready: Option<Ready>,
    /// What computes, by name.
    pub backend: String,
}

#[derive(Debug)]
struct Guest {
    key: Key,
    hello: Option<Hello>,
    about: Option<About>,
    heard: Duration,
    ready: Option<Ready>,
}

impl Guest {
    fn member(&self) -> Option<Member> {
        Some(Member { key: self.key, hello: self.hello.clone()?, about: self.about.clone()? })
    }

    fn device(&self) -> Option<Device> {
        let (hello, about) = (self.hello.as_ref()?, self.about.as_ref()?);
        Some(Device { key: self.key, capacity: hello.capacity, memory: about.memory })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Loading,
    Running,
    Ended,
}

/// A hop's position and its hidden state.
type Copied = (u32, Vec<f32>);

/// The head from its first guest to the last token.
#[derive(Debug)]
pub struct HeadSession {
    config: HeadConfig,
    model: u32,
    phase: Phase,
    guests: Vec<Guest>,
    refused: Option<String>,
    plan: Option<Plan>,
    epoch: u32,
    /// Digests of the stages' programs, once the head's own stage is there.
    programs: Option<Vec<[u8; 32]>>,
    next_sequence: u32,
    answers: Vec<Answer>,
    /// Rows that came back, by answer: to be read out.
    returns: VecDeque<(usize, Vec<f32>)>,
    laps: BTreeMap<(u32, u32), Lap>,
    /// Copies of hops for the audit, by sequence and stage.
    copies: BTreeMap<(u32, u32), Vec<Copied>>,
    traces: BTreeMap<(u32, u32), Vec<Trace>>,
    /// Sequences whose answers are written while stages may still be telling of their last lap: answer and lap.
    closing: BTreeMap<u32, (usize, u32)>,
    /// When the telling is waited for no longer.
    patience: Option<Duration>,
    lost: Vec<String>,
    error: Option<HeadError>,
    out: VecDeque<Action>,
}

impl HeadSession {
    /// A head that waits for its stages, to write these answers.
    #[must_use]
    pub fn new(config: HeadConfig, asks: Vec<Ask>) -> Self {
        let Facts { repo, revision, index, .. } = &config.facts;
        let model = model_hash(repo, revision, index);
        Self {
            model,
            config,
            phase: Phase::Gathering,
            guests: Vec::new(),
            refused: None,
            plan: None,
            epoch: 0,
            programs: None,
            next_sequence: 0,
            answers: asks.into_iter().map(Answer::new).collect(),
            returns: VecDeque::new(),
            laps: BTreeMap::new(),
            copies: BTreeMap::new(),
            traces: BTreeMap::new(),
            closing: BTreeMap::new(),
            patience: None,
            lost: Vec::new(),
            error: None,
            out: VecDeque::new(),
        }
    }

    /// What is to be done now.
    pub fn actions(&mut self) -> impl Iterator<Item = Action> + use<> {
        std::mem::take(&mut self.out).into_iter()
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<Result<(), HeadError>> {
        (self.phase == Phase::Ended).then(|| self.error.clone().map_or(Ok(()), Err))
    }

    /// The answers as they are: ids written, and why each ended.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |a: &Answer| Some(Outcome { ids: a.written().to_vec(), ending: a.ending.clone()? });
        self.answers.iter().filter_map(outcome).collect()
    }

    /// The plan at work.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Stages that were lost on the way, in words.
    #[must_use]
    pub fn losses(&self) -> &[String] {
        &self.lost
    }

    /// What each stage of the plan was.
    #[must_use]
    pub fn stages(&self) -> Vec<StageReport> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let report = |stage: usize| {
            let key = plan.key(stage).unwrap_or_default();
            let guest = self.guests.iter().find(|guest| guest.key == key);
            let backend = guest.and_then(|g| g.hello.as_ref()).map_or(&self.config.hello.backend, |h| &h.backend);
            StageReport { key, ready: guest.and_then(|g| g.ready), backend: backend.clone() }
        };
        (0..plan.stages.len()).map(report).collect()
    }

    /// Laps whose rows have come back and whose traces are whole, in order.
    pub fn laps(&self) -> impl Iterator<Item = &Lap> {
        let stages = self.plan.as_ref().map_or(0, |plan| plan.stages.len());
        self.laps.values().filter(move |lap| !lap.time.is_zero() && lap.compute.len() == stages)
    }

    /// What was copied of a stage's hops for the audit, and what the stage says that it made of them.
    #[must_use]
    pub fn audited(&self) -> Vec<Audited> {
        let of = |(sequence, stage): (u32, u32), hops: &Vec<Copied>| Audited {
            stage,
            sequence,
            hops: hops.clone(),
            traces: self.traces.get(&(sequence, stage)).cloned().unwrap_or_default(),
            sent: self.traces.get(&(sequence, stage - 1)).cloned().unwrap_or_default(),
        };
        self.copies.iter().map(|(at, hops)| of(*at, hops)).collect()
    }

    /// Take a message.
    pub fn message(&mut self, from: Key, message: Message, now: Duration) {
        if self.phase == Phase::Ended {
            return;
        }
        if let Message::Join(join) = &message {
            return self.join(from, join, now);
        }
        let Some(guest) = self.guests.iter_mut().find(|guest| guest.key == from) else {
            // Who was refused or lost may go on for a while; it is not answered again.
            return self.out.push_back(Action::Close { peer: from });
        };
        guest.heard = now;
        match message {
            Message::Hello(hello) if hello.probe != self.config.probe => {
                let text = format!(
                    "its kernel probe {} is not the pinned {}: its units would give other bits",
                    hex8(&hello.probe),
                    hex8(&self.config.probe)
                );
                self.refuse(from, "probe", text);
            }
            Message::Hello(hello) => guest.hello = Some(hello),
            Message::About(about) => {
                guest.about = Some(about);
                self.arrived(from);
            }
            Message::Ready(ready) => self.ready(from, ready),
            Message::Hop(hop) => self.hop(from, hop, now),
            Message::Trace(trace) => self.trace(from, trace),
            Message::Audit { sequence } => {
                let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&from));
                let answer = self.answers.iter_mut().find(|a| a.sequence == Some(sequence));
                if let (Some(stage), Some(answer)) = (stage, answer) {
                    answer.awaited.retain(|s| *s as usize != stage);
                }
            }
            Message::Error(fault) if fault.epoch == self.epoch || fault.epoch == 0 => self.fault(from, &fault),
            Message::Beat { .. } | Message::Error(_) => {}
            _ => self.out.push_back(Action::Say(format!("{} sent what only a head sends", short(&from)))),
        }
    }

    /// Bytes came that are no message.
    pub fn bad(&mut self, from: Key, error: &WireError) {
        let code = if matches!(error, WireError::Corrupt { .. }) { "corrupted hop" } else { "no message" };
        self.lose(from, format!("{code}: {error}"));
    }

    /// A link is lost.
    pub fn lost(&mut self, peer: Key, why: &str) {
        self.lose(peer, format!("the link is lost: {why}"));
    }

    /// The head's own stage of this plan was made, with the digests of all stages' programs; or not.
    pub fn prepared(&mut self, epoch: u32, result: Result<Vec<[u8; 32]>, String>) {
        if epoch != self.epoch || self.phase == Phase::Ended {
            return;
        }
        match result {
            Ok(programs) => {
                self.programs = Some(programs);
                self.start();
            }
            Err(error) => self.end(Some(HeadError::Own(error))),
        }
    }

    /// Look at the time: who is silent, what is overdue.
    pub fn tick(&mut self, now: Duration) {
        if let (Phase::Gathering, Some(after)) = (self.phase, self.config.gather.filter(|after| now > *after)) {
            let (given, wanted) = (self.present(), self.config.stages);
            let refused = self.refused.clone();
            return self.end(Some(HeadError::Gather { given, wanted, after, refused }));
        }
        if self.phase == Phase::Ended {
            return;
        }
        let silent = self.guests.iter().find(|guest| now.saturating_sub(guest.heard) > self.config.silence);
        if let Some((key, since)) = silent.map(|guest| (guest.key, now.saturating_sub(guest.heard))) {
            return self.lose(key, format!("no sign of life for {:.1} s", since.as_secs_f64()));
        }
        if self.phase != Phase::Running {
            return;
        }
        if self.written() {
            return self.settle(now);
        }
        let overdue = self.answers.iter().find_map(|answer| {
            let flight = answer.flights.front().filter(|f| now.saturating_sub(f.sent) > self.config.lap)?;
            Some((answer.sequence?, *flight))
        });
        let Some(((sequence, flight), plan)) = overdue.zip(self.plan.as_ref()) else { return };
        // The first stage that has not said what it made of the lap holds it.
        let silent = |stage: &u32| {
            let traces = self.traces.get(&(sequence, *stage)).map_or(&[][..], Vec::as_slice);
            traces.iter().all(|trace| trace.lap != flight.lap)
        };
        let stage = (1..plan.stages.len() as u32).find(silent).unwrap_or(plan.stages.len() as u32 - 1);
        let key = plan.key(stage as usize).unwrap_or_default();
        let waited = now.saturating_sub(flight.sent).as_secs_f64();
        let why = format!("stalled: it holds lap {} of sequence {sequence} for {waited:.1} s", flight.lap);
        self.lose(key, why);
    }

    /// There is something to compute.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.phase == Phase::Running && (!self.returns.is_empty() || self.answers.iter().any(|a| self.feeds(a)))
    }

    /// Read out what came back, then send every answer's next rows on their lap.
    pub fn work(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) {
        if self.phase != Phase::Running {
            return;
        }
        if let Err(error) = self.read_out(worker).and_then(|()| self.feed(worker, clock)) {
            return self.end(Some(error));
        }
        if self.written() {
            self.patience = Some(clock() + self.config.silence);
            self.settle(clock());
        }
    }

    /// Every answer is written.
    fn written(&self) -> bool {
        self.answers.iter().all(|answer| answer.ending.is_some())
    }

    /// End the run once every answer is written and every stage has said what it made of the last laps, or says nothing
    /// for too long: a token can be back before a stage's own account of it.
    fn settle(&mut self, now: Duration) {
        let stages = 1..self.plan.as_ref().map_or(0, |plan| plan.stages.len() as u32);
        let told = |sequence: u32, lap: u32, stage: u32| {
            self.traces.get(&(sequence, stage)).is_some_and(|traces| traces.iter().any(|trace| trace.lap == lap))
        };
        let whole = self.closing.iter().all(|(sequence, (_, lap))| stages.clone().all(|s| told(*sequence, *lap, s)));
        if whole || self.patience.is_none_or(|until| now > until) {
            self.end(None);
        }
    }

    /// End an answer before its time.
    pub fn cancel(&mut self, answer: usize) {
        if let Some(answer) = self.answers.get_mut(answer).filter(|a| a.ending.is_none()) {
            answer.ending = Some(super::Ending::Interrupted);
            if let Some(sequence) = answer.sequence.take() {
                self.tell_stages(&Message::Cancel { sequence });
                self.out.push_back(Action::Free(Some(sequence)));
            }
        }
        if self.answers.iter().all(|answer| answer.ending.is_some()) {
            self.end(None);
        }
    }

    /// End every answer before its time, and the run.
    pub fn stop(&mut self) {
        (0..self.answers.len()).for_each(|answer| self.cancel(answer));
        self.end(None);
    }

    fn present(&self) -> usize {
        self.guests.iter().filter(|guest| guest.member().is_some()).count()
    }

    fn join(&mut self, from: Key, join: &Join, now: Duration) {
        if join.version != VERSION {
            let text = format!("it speaks version {} of the wire, this head {VERSION}", join.version);
            return self.refuse(from, "version", text);
        }
        if join.purpose != Purpose::Member {
            return self.refuse(from, "join", "hops come on the link of a member".into());
        }
        let Admission { secret, roster } = &self.config.admission;
        let proved = secret.as_ref().is_some_and(|secret| proof(secret, &self.config.me.key, &from) == join.proof);
        if !proved && !roster.contains(&from) {
            let text = "its key is not on the roster and its ticket is not this head's".to_owned();
            return self.refuse(from, "ticket", text);
        }
        self.guests.retain(|guest| guest.key != from);
        let (hello, about, ready) = (None, None, None);
        self.guests.push(Guest { key: from, hello, about, heard: now, ready });
    }

    fn refuse(&mut self, from: Key, code: &str, text: String) {
        let text = format!("device {} is refused: {text}", short(&from));
        let fault = Fault { epoch: 0, sequence: None, code: code.into(), text: text.clone() };
        self.guests.retain(|guest| guest.key != from);
        self.refused = Some(text.clone());
        self.out.extend([Action::Say(text), send(from, Message::Error(fault)), Action::Close { peer: from }]);
    }

    /// A guest has said all of itself.
    fn arrived(&mut self, from: Key) {
        let Some(member) = self.guests.iter().find(|g| g.key == from).and_then(Guest::member) else {
            return self.refuse(from, "join", "it said what it lends before what it is".into());
        };
        let Member { hello, about, .. } = &member;
        let signed = claim(&self.config.me.key, &from, hello, about.memory);
        if !(self.config.verify)(&from, &signed, &about.signature) {
            return self.refuse(from, "signature", "it has not signed its figures".into());
        }
        self.out.push_back(Action::Say(format!(
            "device {} joins: {:.1} GEMMs/s on {}, lends {} MiB",
            short(&from),
            hello.capacity,
            hello.backend,
            about.memory >> 20
        )));
        if self.phase == Phase::Gathering && self.present() >= self.config.stages {
            self.gathered();
        }
    }

    /// All are there, or none are waited for: plan.
    pub fn gathered(&mut self) {
        if self.present() >= self.config.stages
            && let Err(error) = self.assign()
        {
            self.end(Some(error.into()));
        }
    }

    /// Plan over the devices that are there, and tell each what it holds.
    fn assign(&mut self) -> Result<(), PlanError> {
        let devices: Vec<Device> = self.guests.iter().filter_map(Guest::device).collect();
        let plan = Plan::of(self.config.me, &devices, &self.config.demand, self.config.room)?;
        self.epoch += 1;
        (self.phase, self.programs) = (Phase::Loading, None);
        self.guests.iter_mut().for_each(|guest| guest.ready = None);
        self.returns.clear();
        self.answers.iter_mut().for_each(|answer| answer.restart(None));
        let epoch = self.epoch;
        let own = Member {
            key: self.config.me.key,
            hello: self.config.hello.clone(),
            about: About { memory: self.config.me.memory, addresses: Vec::new(), signature: self.config.signature },
        };
        let members = self.guests.iter().filter_map(Guest::member);
        let roster: Vec<Member> = std::iter::once(own).chain(members).collect();
        let facts = &self.config.facts;
        for (stage, planned) in plan.stages.iter().enumerate().skip(1) {
            let to = plan.devices[planned.device].key;
            let assign = Assign {
                epoch,
                first_sequence: self.next_sequence,
                repo: facts.repo.clone(),
                revision: facts.revision.clone(),
                index: facts.index,
                spec: facts.spec.clone(),
                numerics: facts.numerics.clone(),
                plan: plan.clone(),
                stage: stage as u32,
                layers: planned.layers.clone(),
            };
            self.out.push_back(send(to, Message::Roster(roster.clone())));
            self.out.push_back(send(to, Message::Assign(Box::new(assign))));
        }
        self.out.push_back(Action::Record(Entry::Plan { epoch, plan: plan.clone() }));
        self.out.push_back(Action::Prepare { epoch, plan: plan.clone() });
        self.plan = Some(plan);
        Ok(())
    }

    fn ready(&mut self, from: Key, ready: Ready) {
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&from));
        if ready.epoch != self.epoch || self.phase != Phase::Loading {
            return;
        }
        if stage != Some(ready.stage as usize) {
            return self.lose(from, format!("it says that it is stage {}", ready.stage));
        }
        if let Some(guest) = self.guests.iter_mut().find(|guest| guest.key == from) {
            guest.ready = Some(ready);
        }
        self.start();
    }

    /// Begin the laps once every stage has its layers.
    fn start(&mut self) {
        let (Some(plan), Some(programs), Phase::Loading) = (&self.plan, &self.programs, self.phase) else { return };
        let mut others = (1..plan.stages.len()).map(|stage| (stage, plan.key(stage).unwrap_or_default()));
        let ready = |key: &Key| self.guests.iter().find(|g| g.key == *key).and_then(|guest| guest.ready);
        let wrong =
            others.clone().find(|(stage, key)| ready(key).is_some_and(|r| Some(&r.program) != programs.get(*stage)));
        if let Some((_, key)) = wrong {
            return self.lose(key, "its program is not the one that the head has lowered for it".into());
        }
        if !others.all(|(_, key)| ready(&key).is_some()) {
            return;
        }
        let stages = plan.stages.len() as u32;
        self.phase = Phase::Running;
        self.out.push_back(Action::Say(format!("{stages} stages are ready")));
        for (index, answer) in self.answers.iter_mut().enumerate().filter(|(_, a)| a.ending.is_none()) {
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            answer.restart(Some(sequence));
            let entry = Entry::Sequence { epoch: self.epoch, answer: index, sequence };
            self.out.push_back(Action::Record(entry));
            for stage in (1..stages).filter(|stage| drawn(self.config.audit, index as u32, *stage)) {
                answer.awaited.push(stage);
                let to = self.plan.as_ref().and_then(|plan| plan.key(stage as usize)).unwrap_or_default();
                self.out.push_back(send(to, Message::Audit { sequence }));
            }
        }
        if self.answers.iter().all(|answer| answer.ending.is_some()) {
            self.end(None);
        }
    }

    /// Whether an answer can send rows on a lap.
    fn feeds(&self, answer: &Answer) -> bool {
        let stages = self.plan.as_ref().map_or(1, |plan| plan.stages.len());
        let window = if self.config.stateless { 1 } else { stages };
        answer.ending.is_none()
            && answer.sequence.is_some()
            && answer.awaited.is_empty()
            && answer.fed < answer.ids.len()
            && answer.flights.len() < window
    }

    fn feed(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) -> Result<(), HeadError> {
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
        (record.rows, record.compute, record.queue) = (rows, vec![compute], vec![Duration::ZERO]);
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
        let trace = Trace { sequence, lap, stage: 0, position: job.position, compute_us, queue_us: 0, rows };
        self.compare(index, &trace, (0, layers), slid);
        self.out.push_back(Action::Record(Entry::Hop { answer: index, trace: trace.clone() }));
        self.traces.entry((sequence, 0)).or_default().push(trace);
    }

    fn hop(&mut self, from: Key, hop: Hop, now: Duration) {
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
    fn answer_of(&self, sequence: u32) -> Option<usize> {
        let now = self.answers.iter().position(|answer| answer.sequence == Some(sequence));
        now.or_else(|| self.closing.get(&sequence).map(|(answer, _)| *answer))
    }

    /// Rows have come back from their lap.
    fn returned(&mut self, index: usize, lap: u32, hidden: &[f32], now: Duration) {
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
    fn read_out(&mut self, worker: &mut Worker) -> Result<(), HeadError> {
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
            self.tell_stages(&Message::Token { sequence, index: position, token });
            if ended {
                self.answers[index].sequence = None;
                self.closing.insert(sequence, (index, self.answers[index].lap.saturating_sub(1)));
                self.tell_stages(&Message::Finished { sequence: Some(sequence) });
                worker.free(Some(sequence));
            }
        }
        Ok(())
    }

    fn trace(&mut self, from: Key, trace: Trace) {
        let Some((plan, stage)) = self.plan.as_ref().and_then(|plan| Some((plan, plan.stage_of(&from)?))) else {
            return;
        };
        if stage != trace.stage as usize || stage == 0 {
            return;
        }
        let layers = plan.stages[stage].layers.clone();
        let (sequence, lap) = (trace.sequence, trace.lap);
        if let Some(record) = self.laps.get_mut(&(sequence, lap))
            && record.compute.len() == stage
        {
            record.compute.push(Duration::from_micros(trace.compute_us.into()));
            record.queue.push(Duration::from_micros(trace.queue_us.into()));
        }
        self.traces.entry((sequence, trace.stage)).or_default().push(trace.clone());
        if let Some(index) = self.answer_of(sequence) {
            let slid = self.config.stateless && self.answers[index].ids.len() > self.config.room.step_rows as usize;
            self.compare(index, &trace, (layers.start, layers.end), slid);
            self.out.push_back(Action::Record(Entry::Hop { answer: index, trace }));
        }
    }

    /// Hold a trace's rows to what is recorded at the same borders and positions: by another stage, or before a loss.
    fn compare(&mut self, index: usize, trace: &Trace, borders: (u32, u32), slid: bool) {
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

    fn fault(&mut self, from: Key, fault: &Fault) {
        let blamed = match (fault.code.as_str(), &self.plan) {
            // Whoever receives a bent hop is not the one that bent it.
            ("corrupt" | "model-mismatch" | "order" | "address" | "shape", Some(plan)) => plan
                .stage_of(&from)
                .and_then(|stage| plan.key(stage.checked_sub(1)?))
                .filter(|key| *key != self.config.me.key),
            ("link", Some(plan)) => plan.stage_of(&from).and_then(|stage| plan.key(stage + 1)),
            _ => None,
        };
        self.lose(blamed.unwrap_or(from), format!("{}: {}", fault.code, fault.text));
    }

    /// A device is lost: without it the ring is planned again, every sequence is rebuilt, and its rows are held to those
    /// that were recorded.
    fn lose(&mut self, key: Key, why: String) {
        let known = self.guests.iter().any(|guest| guest.key == key);
        if !known || self.phase == Phase::Ended {
            return;
        }
        self.guests.retain(|guest| guest.key != key);
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&key));
        let phase = match self.phase {
            Phase::Gathering => "joining",
            Phase::Loading => "loading",
            Phase::Running | Phase::Ended => "computing",
        };
        let who = stage.map_or_else(|| format!("device {}", short(&key)), |s| format!("stage {s} ({})", short(&key)));
        let text = format!("{who}, {phase}: {why}");
        let fault = Fault { epoch: 0, sequence: None, code: "lost".into(), text: text.clone() };
        self.out.extend([send(key, Message::Error(fault)), Action::Close { peer: key }, Action::Say(text.clone())]);
        self.out.push_back(Action::Record(Entry::Lost { key, why }));
        self.refused = Some(text.clone());
        if stage.is_none() || self.phase == Phase::Gathering {
            return;
        }
        self.lost.push(text.clone());
        // What this ring still had to tell is not waited for.
        self.closing.clear();
        if self.phase == Phase::Running && self.written() {
            return self.end(None);
        }
        self.out.push_back(Action::Free(None));
        let (given, wanted) = (self.present(), self.config.stages);
        // Nothing is written yet: the ring that was asked for is waited for, not a smaller one made do with.
        if self.next_sequence == 0 && given < wanted {
            return self.end(Some(HeadError::Short { lost: text, given, wanted }));
        }
        if let Err(source) = self.assign() {
            self.end(Some(HeadError::NoSpare { lost: text, source }));
        }
    }

    /// Say something to every device of the plan.
    fn tell_stages(&mut self, message: &Message) {
        let Some(plan) = &self.plan else { return };
        let stages = (1..plan.stages.len()).filter_map(|stage| plan.key(stage));
        self.out.extend(stages.map(|to| send(to, message.clone())));
    }

    fn end(&mut self, error: Option<HeadError>) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        for guest in self.guests.iter() {
            let message = match &error {
                None => Message::Finished { sequence: None },
                Some(error) => {
                    let text = error.to_string();
                    Message::Error(Fault { epoch: self.epoch, sequence: None, code: "ended".into(), text })
                }
            };
            self.out.push_back(send(guest.key, message));
        }
        self.error = error;
        self.out.extend([Action::Free(None), Action::Done]);
    }
}

/// What was copied of one sequence's hops to one stage, and what was said of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Audited {
    /// Stage.
    pub stage: u32,
    /// Sequence.
    pub sequence: u32,
    /// First position and rows of each hop as it came in.
    pub hops: Vec<(u32, Vec<f32>)>,
    /// What the stage says that it made of them.
    pub traces: Vec<Trace>,
    /// What the stage before says that it sent.
    pub sent: Vec<Trace>,
}

/// Whether the hops of an answer to a stage are audited: the same draw wherever and whenever it is made.
fn drawn(share: f64, answer: u32, stage: u32) -> bool {
    let mut z = (u64::from(answer) << 32 | u64::from(stage)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    share > 0.0 && (z >> 11) as f64 / (1_u64 << 53) as f64 <= share
}

fn hex8(digest: &[u8; 32]) -> String {
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
