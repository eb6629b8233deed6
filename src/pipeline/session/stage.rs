//! `StageSession`: a stage from its join to the end of the run.

use super::super::plan::{Key, short};
use super::super::wire::{
    About, Assign, Fault, Form, Hello, Hop, Join, Member, Message, Next, Purpose, Ready, Trace, VERSION, WireError,
    claim, model_hash, row_digest,
};
use super::super::worker::{Input, Job, Worker};
use super::{Action, Verify, proof, send};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Why a stage's work ended before the run did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The head sent an error.
    #[error("the head {}: {code}: {text}", short(head))]
    Head {
        /// The head's key.
        head: Key,
        /// The error's name.
        code: String,
        /// What it says.
        text: String,
    },
    /// The head is gone.
    #[error("the head {} is lost: {why}", short(head))]
    Lost {
        /// The head's key.
        head: Key,
        /// Why.
        why: String,
    },
}

/// A fault that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What goes wrong.
    pub kind: InjectionKind,
    /// On which stage; none: whichever this device becomes.
    pub stage: Option<u32>,
    /// At which lap of a sequence.
    pub token: u32,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionKind {
    /// The process ends.
    Kill,
    /// The stage takes hops and gives none, while its heart beats on.
    Stall,
    /// One bit of a hop is turned over on its way.
    Corrupt,
    /// A hop waits for two seconds.
    Slow,
}

/// How long a slow hop waits.
pub(crate) const SLOW: Duration = Duration::from_secs(2);

impl std::str::FromStr for Injection {
    type Err = String;

    /// `kill@stage2:tok17`; the stage may be left out: `stall@tok3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("'{text}' is not kill|stall|corrupt|slow@stageK:tokN");
        let (kind, place) = text.split_once('@').ok_or_else(form)?;
        let kind = match kind {
            "kill" => InjectionKind::Kill,
            "stall" => InjectionKind::Stall,
            "corrupt" => InjectionKind::Corrupt,
            "slow" => InjectionKind::Slow,
            _ => return Err(form()),
        };
        let (stage, token) = match place.split_once(':') {
            Some((stage, token)) => {
                let stage = stage.strip_prefix("stage").and_then(|s| s.parse().ok()).ok_or_else(form)?;
                (Some(stage), token)
            }
            None => (None, place),
        };
        let token = token.strip_prefix("tok").and_then(|t| t.parse().ok()).ok_or_else(form)?;
        Ok(Self { kind, stage, token })
    }
}

/// What a device says of itself when it joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Introduction {
    /// What it is.
    pub hello: Hello,
    /// Bytes that it lends.
    pub memory: u64,
    /// Where other stages reach it.
    pub addresses: Vec<String>,
}

/// A stage from its join to the end of the run.
#[derive(Debug)]
pub struct StageSession {
    me: Key,
    head: Key,
    hello: Hello,
    about: About,
    verify: Verify,
    heard: Vec<Member>,
    held: Option<Held>,
    injection: Option<Injection>,
    stalled: bool,
    laps: u64,
    ended: Option<Result<(), StageError>>,
    out: VecDeque<Action>,
}

/// An assignment, and what has come of it.
#[derive(Debug)]
struct Held {
    assign: Box<Assign>,
    model: u32,
    /// Values of a hidden row, as the spec says.
    width: usize,
    previous: Key,
    /// The next stage's key; none behind the last one, whose rows return.
    next: Option<Key>,
    ready: Option<Ready>,
    linked: bool,
    announced: bool,
    flows: BTreeMap<u32, Flow>,
    finished: BTreeSet<u32>,
    audited: BTreeSet<u32>,
    queue: VecDeque<(Hop, Duration)>,
}

/// What a sequence's next hop must be.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    lap: u32,
    position: u32,
}

impl StageSession {
    /// A stage that begins to join a head: it says what it is. `sign` signs its claim.
    #[must_use]
    pub fn new(
        me: Key,
        head: Key,
        secret: Option<&[u8; 32]>,
        introduction: Introduction,
        sign: impl FnOnce(&[u8]) -> [u8; 64],
        verify: Verify,
    ) -> Self {
        let Introduction { hello, memory, addresses } = introduction;
        let signature = sign(&claim(&head, &me, &hello, memory));
        let about = About { memory, addresses, signature };
        let proof = secret.map_or([0; 32], |secret| proof(secret, &head, &me));
        let join = Join { version: VERSION, purpose: Purpose::Member, proof };
        let messages = [Message::Join(join), Message::Hello(hello.clone()), Message::About(about.clone())];
        let out = messages.into_iter().map(|message| send(head, message)).collect();
        let (heard, held, injection, stalled, laps, ended) = (Vec::new(), None, None, false, 0, None);
        Self { me, head, hello, about, verify, heard, held, injection, stalled, laps, ended, out }
    }

    /// Have a fault happen.
    pub fn inject(&mut self, injection: Option<Injection>) {
        self.injection = injection;
    }

    /// What is to be done now.
    pub fn actions(&mut self) -> impl Iterator<Item = Action> + use<> {
        std::mem::take(&mut self.out).into_iter()
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<&Result<(), StageError>> {
        self.ended.as_ref()
    }

    /// The assignment's number, and laps done.
    #[must_use]
    pub fn pulse(&self) -> (u32, u64) {
        (self.held.as_ref().map_or(0, |held| held.assign.epoch), self.laps)
    }

    /// Hops wait to be computed.
    #[must_use]
    pub fn pending(&self) -> bool {
        !self.stalled && self.held.as_ref().is_some_and(|held| !held.queue.is_empty())
    }

    /// Take a message.
    pub fn message(&mut self, from: Key, message: Message, now: Duration) {
        if self.ended.is_some() {
            return;
        }
        match message {
            Message::Hop(hop) => self.hop(from, hop, now),
            Message::Join(join) => self.join(from, join),
            _ if from != self.head => {
                let text = format!("{} sent what only a head sends; it is not heard", short(&from));
                self.out.push_back(Action::Say(text));
                self.out.push_back(Action::Close { peer: from });
            }
            Message::Roster(members) => self.roster(members),
            Message::Assign(assign) => self.assign(assign),
            Message::Finished { sequence } => self.finished(sequence),
            Message::Cancel { sequence } => self.finished(Some(sequence)),
            Message::Audit { sequence } => {
                if let Some(held) = &mut self.held {
                    held.audited.insert(sequence);
                    self.out.push_back(send(self.head, Message::Audit { sequence }));
                }
            }
            Message::Error(fault) => {
                let head = self.head;
                self.ended = Some(Err(StageError::Head { head, code: fault.code, text: fault.text }));
                self.out.push_back(Action::Done);
            }
            Message::Token { .. } | Message::Beat { .. } => {}
            _ => self.out.push_back(Action::Say("the head sent what a head does not send; it is not heard".into())),
        }
    }

    /// Bytes came that are no message.
    pub fn bad(&mut self, from: Key, error: &WireError) {
        let code = if matches!(error, WireError::Corrupt { .. }) { "corrupt" } else { "message" };
        let stage = self.held.as_ref().map_or(0, |held| held.assign.stage);
        self.fail(code, None, format!("stage {stage} refuses what {} sent: {error}", short(&from)));
    }

    /// A link is lost.
    pub fn lost(&mut self, peer: Key, why: &str) {
        if self.ended.is_some() {
            return;
        }
        if peer == self.head {
            self.ended = Some(Err(StageError::Lost { head: peer, why: why.into() }));
            self.out.push_back(Action::Free(None));
            self.out.push_back(Action::Done);
            return;
        }
        let Some(held) = &self.held else { return };
        let stage = held.assign.stage;
        if held.next == Some(peer) {
            self.fail("link", None, format!("stage {stage} has lost stage {} ({}): {why}", stage + 1, short(&peer)));
        } else if held.previous == peer {
            self.out.push_back(Action::Say(format!("stage {} ({}) is gone: {why}", stage - 1, short(&peer))));
        }
    }

    /// The link for hops to the next stage is there.
    pub fn linked(&mut self, peer: Key) {
        if let Some(held) = self.held.as_mut().filter(|held| held.next == Some(peer)) {
            held.linked = true;
        }
        self.announce();
    }

    /// The assignment of this number was loaded, or not: an error's name and text.
    pub fn loaded(&mut self, epoch: u32, result: Result<Ready, (String, String)>) {
        let Some(held) = self.held.as_mut().filter(|held| held.assign.epoch == epoch) else { return };
        match result {
            Ok(ready) => {
                held.ready = Some(ready);
                self.announce();
            }
            Err((code, text)) => self.fail(&code, None, text),
        }
    }

    /// Compute all that waits, in as few steps as may be.
    pub fn work(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) {
        let Some(held) = &mut self.held else { return };
        if self.stalled || held.queue.is_empty() {
            return;
        }
        let (stage, injection) = (held.assign.stage, self.injection);
        let hit = |hop: &Hop, kind: InjectionKind| {
            injection.is_some_and(|i| i.kind == kind && i.token == hop.lap && i.stage.is_none_or(|s| s == stage))
        };
        let batch: Vec<(Hop, Duration)> = held.queue.drain(..).collect();
        for kind in [InjectionKind::Kill, InjectionKind::Stall, InjectionKind::Slow] {
            if batch.iter().any(|(hop, _)| hit(hop, kind)) {
                self.injection = None;
                self.stalled = kind == InjectionKind::Stall;
                self.out.push_back(Action::Inject(kind));
                if kind != InjectionKind::Slow {
                    return;
                }
            }
        }
        let jobs: Vec<Job> = batch.iter().map(|(hop, _)| job(hop)).collect();
        let start = clock();
        let results = worker.run(&jobs);
        let compute = clock().saturating_sub(start);
        let width = worker.width().max(1);
        for ((hop, came), result) in batch.into_iter().zip(results) {
            let hidden = match result {
                Ok(hidden) => hidden,
                Err(error) => {
                    self.fail("step", Some(hop.sequence), format!("stage {stage}: {error}"));
                    continue;
                }
            };
            let spoil = hit(&hop, InjectionKind::Corrupt);
            if spoil {
                self.injection = None;
            }
            self.laps += 1;
            let digests = |values: &[f32]| values.chunks_exact(width).map(row_digest).collect::<Vec<_>>();
            let rows = digests(&hop.hidden).into_iter().zip(digests(&hidden)).collect();
            let position = position(&hop);
            let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            let (compute_us, queue_us) = (us(compute), us(start.saturating_sub(came)));
            let (sequence, lap) = (hop.sequence, hop.lap);
            let onward = self.onward(hop, hidden, width);
            self.out.push_back(Action::Send { to: onward.0, message: Message::Hop(onward.1), spoil });
            let trace = Trace { sequence, lap, stage, position, compute_us, queue_us, rows };
            self.out.push_back(send(self.head, Message::Trace(trace)));
        }
    }

    /// The hop as it goes on.
    fn onward(&self, hop: Hop, mut hidden: Vec<f32>, width: usize) -> (Key, Hop) {
        let next = self.held.as_ref().and_then(|held| held.next.map(|key| (key, held.assign.stage + 1)));
        if let Some((key, stage)) = next {
            return (key, Hop { next: Next::Stage(stage), hidden, ..hop });
        }
        if let Form::Cached { keep, .. } = hop.form {
            let from = hidden.len().saturating_sub(keep as usize * width);
            hidden.drain(..from);
        }
        (self.head, Hop { next: Next::Return, hidden, ..hop })
    }

    fn hop(&mut self, from: Key, hop: Hop, now: Duration) {
        let Some(held) = &mut self.held else { return };
        let stage = held.assign.stage;
        let (sequence, lap) = (hop.sequence, hop.lap);
        if from != held.previous {
            let text =
                format!("a hop from {}, which is not the stage before stage {stage}; it is not run", short(&from));
            return self.out.push_back(Action::Say(text));
        }
        // What was meant for an assignment of before is late, whatever it says.
        if sequence < held.assign.first_sequence || held.finished.contains(&sequence) {
            return self.out.push_back(Action::Say(format!("sequence {sequence}, lap {lap}: late; dropped")));
        }
        if hop.model != held.model {
            let text = format!(
                "stage {stage} holds a slice of model {:08x} ({} {}), the hop is of model {:08x}",
                held.model, held.assign.repo, held.assign.revision, hop.model
            );
            return self.fail("model-mismatch", Some(sequence), text);
        }
        if hop.next != Next::Stage(stage) {
            let text = format!("a hop addressed {} came to stage {stage}", hop.next.code());
            return self.fail("address", Some(sequence), text);
        }
        if held.ready.is_none() {
            return self.fail("order", Some(sequence), format!("a hop came to stage {stage} before it was ready"));
        }
        let known = held.flows.get(&sequence).copied();
        // Twice as many as the plan says: news of a sequence's end comes on another link than the next one's first hop.
        if known.is_none() && held.flows.len() >= 2 * held.assign.plan.room.sequences as usize {
            let text = format!("stage {stage} holds {} sequences, twice what the plan says", held.flows.len());
            return self.fail("sequences", Some(sequence), text);
        }
        let flow = known.unwrap_or_default();
        if lap < flow.lap {
            return self.out.push_back(Action::Say(format!("sequence {sequence}, lap {lap}: a duplicate; dropped")));
        }
        let expected = if matches!(hop.form, Form::Anew) { 0 } else { flow.position };
        if lap > flow.lap || position(&hop) != expected {
            let text = format!(
                "stage {stage}, sequence {sequence}: lap {lap} at position {} came, lap {} at position {expected} is next",
                position(&hop),
                flow.lap
            );
            return self.fail("order", Some(sequence), text);
        }
        let width = held.width;
        if width == 0 || hop.hidden.is_empty() || !hop.hidden.len().is_multiple_of(width) {
            let text = format!("stage {stage}: {} values are no rows of {width}", hop.hidden.len());
            return self.fail("shape", Some(sequence), text);
        }
        let rows = (hop.hidden.len() / width) as u32;
        if rows > held.assign.plan.room.step_rows {
            let text = format!("stage {stage}: {rows} rows, the plan says at most {}", held.assign.plan.room.step_rows);
            return self.fail("shape", Some(sequence), text);
        }
        held.flows.insert(sequence, Flow { lap: lap + 1, position: expected + rows });
        if held.audited.contains(&sequence) {
            let copy = Hop { next: Next::Copy, ..hop.clone() };
            self.out.push_back(send(self.head, Message::Hop(copy)));
        }
        held.queue.push_back((hop, now));
    }

    fn join(&mut self, from: Key, join: Join) {
        let known = from == self.head || self.heard.iter().any(|member| member.key == from);
        if join.version == VERSION && known && matches!(join.purpose, Purpose::Hops { .. }) {
            return;
        }
        let text = format!("{} is not on the roster: its link is refused", short(&from));
        let fault = Fault { epoch: 0, sequence: None, code: "roster".into(), text: text.clone() };
        self.out.extend([Action::Say(text), send(from, Message::Error(fault)), Action::Close { peer: from }]);
    }

    fn roster(&mut self, mut members: Vec<Member>) {
        for member in &mut members {
            if member.key == self.me {
                // Its own figures are those it measured, whatever is said of them.
                (member.hello, member.about) = (self.hello.clone(), self.about.clone());
                continue;
            }
            let claim = claim(&self.head, &member.key, &member.hello, member.about.memory);
            if !(self.verify)(&member.key, &claim, &member.about.signature) {
                let text = format!("the roster's figures of {} are not signed by it", short(&member.key));
                return self.fail("roster", None, text);
            }
        }
        self.heard = members;
    }

    fn assign(&mut self, assign: Box<Assign>) {
        let (stage, plan) = (assign.stage, &assign.plan);
        self.out.push_back(Action::Free(None));
        let key = |stage: u32| plan.key(stage as usize);
        let wrong = if key(stage) != Some(self.me) {
            Some(format!("stage {stage} of the plan is another device"))
        } else if key(0) != Some(self.head) {
            Some("the plan's head is not the head that sent it".to_owned())
        } else if stage == 0 {
            Some("stage 0 is the head's own".to_owned())
        } else {
            None
        };
        let previous = stage.checked_sub(1).and_then(key);
        let (Some(previous), None) = (previous, &wrong) else {
            let text = wrong.unwrap_or_else(|| "a plan without the stage before".to_owned());
            return self.fail("assignment", None, text);
        };
        let next = key(stage + 1);
        let model = model_hash(&assign.repo, &assign.revision, &assign.index);
        if let Some(to) = next {
            let member = self.heard.iter().find(|member| member.key == to);
            let addresses = member.map(|member| member.about.addresses.clone()).unwrap_or_default();
            self.out.push_back(Action::Dial { to, addresses, epoch: assign.epoch });
        }
        self.out.push_back(Action::Load { assign: assign.clone(), heard: self.heard.clone() });
        self.held = Some(Held {
            width: hidden_width(&assign),
            assign,
            model,
            previous,
            next,
            ready: None,
            linked: next.is_none(),
            announced: false,
            flows: BTreeMap::new(),
            finished: BTreeSet::new(),
            audited: BTreeSet::new(),
            queue: VecDeque::new(),
        });
    }

    fn finished(&mut self, sequence: Option<u32>) {
        if let Some(held) = &mut self.held {
            match sequence {
                Some(sequence) => {
                    held.flows.remove(&sequence);
                    held.finished.insert(sequence);
                    held.queue.retain(|(hop, _)| hop.sequence != sequence);
                }
                None => self.held = None,
            }
        }
        self.out.push_back(Action::Free(sequence));
        if sequence.is_none() {
            self.ended = Some(Ok(()));
            self.out.push_back(Action::Done);
        }
    }

    /// Say once that all is loaded and linked.
    fn announce(&mut self) {
        let Some(held) = self.held.as_mut().filter(|held| held.linked && !held.announced) else { return };
        if let Some(ready) = held.ready {
            held.announced = true;
            self.out.push_back(send(self.head, Message::Ready(ready)));
        }
    }

    fn fail(&mut self, code: &str, sequence: Option<u32>, text: String) {
        let epoch = self.held.as_ref().map_or(0, |held| held.assign.epoch);
        self.out.push_back(Action::Say(format!("{code}: {text}")));
        let fault = Fault { epoch, sequence, code: code.into(), text };
        self.out.push_back(send(self.head, Message::Error(fault)));
    }
}

/// Values of a hidden row, by the assignment's spec; 0 when it does not say.
fn hidden_width(assign: &Assign) -> usize {
    #[derive(serde::Deserialize)]
    struct Width {
        hidden: usize,
    }
    serde_json::from_str::<Width>(&assign.spec).map_or(0, |width| width.hidden)
}

fn position(hop: &Hop) -> u32 {
    match hop.form {
        Form::Anew => 0,
        Form::Cached { position, .. } => position,
    }
}

fn job(hop: &Hop) -> Job {
    let anew = hop.form == Form::Anew;
    Job { sequence: hop.sequence, position: position(hop), anew, input: Input::Hidden(hop.hidden.clone()) }
}
