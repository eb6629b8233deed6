//! The drivers: sessions on links, clock and engine.

use super::link::{Identity, Link, LinkEvent, Quic, Reach, Ticket};
use super::load::{LoadError, Maker};
use super::plan::{Key, Plan, short};
use super::record::Recorder;
use super::rhythm::Rhythm;
use super::session::{
    Action, HeadError, HeadSession, Injection, InjectionKind, Introduction, SLOW, StageError, StageSession,
};
use super::wire::{Assign, Join, Member, Message, Next, Onward, Purpose, Ready, VERSION};
use super::worker::Worker;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wordline_ir::Program;

/// How often a stage says that it is alive.
const BEAT: Duration = Duration::from_millis(400);
/// How often a head looks at the time.
const TICK: Duration = Duration::from_millis(50);
/// How long a stage tries to reach its head.
const REACH: Duration = Duration::from_millis(4500);
/// The same where its address is asked for on the local network.
const SEARCH: Duration = Duration::from_secs(30);
/// Pause before a head that is searched for is dialled again.
const AGAIN: Duration = Duration::from_millis(500);

/// How long before a hop is due a device is awake: timers have a millisecond's grain.
const EARLY: Duration = Duration::from_micros(1500);
/// How long behind it at least, and at most.
const LATE: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(1));

/// Why a stage's process ends.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The head is not reached.
    #[error("joining: the head is not reached: {0}")]
    Unreached(String),
    /// The head ended it, or is gone.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The head's run failed.
    #[error(transparent)]
    Head(Box<HeadError>),
    /// The record cannot be written.
    #[error("the record: {0}")]
    Record(#[from] std::io::Error),
}

impl From<HeadError> for DriveError {
    fn from(error: HeadError) -> Self {
        Self::Head(Box::new(error))
    }
}

/// A hop of a lap; copies for the audit have no rhythm.
fn goes_round(message: &Message) -> bool {
    matches!(message, Message::Hop(hop) if hop.next != Next::Copy)
}

/// Have the link be awake when the next hop is due.
fn expect(link: &mut Quic, rhythm: &Rhythm, start: Instant) {
    if let Some((due, spread)) = rhythm.due() {
        let late = (2 * spread).clamp(LATE.0, LATE.1);
        link.expect(start + due, EARLY + late, late);
    }
}

/// What a stage does with an assignment: its worker and what to say, or an error's name and text.
pub type LoadFn<'a> = dyn Fn(&Assign, &[Member]) -> Result<(Worker, Ready), (String, String)> + 'a;

/// An error of loading as the wire has it.
#[must_use]
pub fn named(error: &LoadError) -> (String, String) {
    (error.code().to_owned(), crate::cli::failure::chain(error))
}

/// What a stage's driver is given.
pub struct StageDrive<'a> {
    /// Says who the head is and where.
    pub ticket: &'a Ticket,
    /// What this device says of itself.
    pub introduction: Introduction,
    /// A fault that is to happen.
    pub injection: Option<Injection>,
    /// Makes what an assignment asks for.
    pub load: &'a LoadFn<'a>,
    /// Told what happens.
    pub say: &'a dyn Fn(&str),
    /// Told of each token that the head has written: its sequence, its place in the answer, and its id.
    pub told: &'a mut dyn FnMut(u32, u32, u32),
}

/// The heart of a stage: it beats from a thread of its own while the stage computes or reads weights, and says with each beat how
/// the next stage is reached.
struct Heart {
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Pulse {
    epoch: AtomicU32,
    laps: AtomicU64,
    /// Milliseconds since the start when the work at hand began; 0 when idle.
    busy: AtomicU64,
    /// The next stage, once it is linked.
    next: Mutex<Option<Key>>,
}

impl Heart {
    fn start(link: &Quic, head: Key, start: Instant) -> Self {
        let (stop, pulse) = (Arc::new(AtomicBool::new(false)), Arc::new(Pulse::default()));
        let (send, gauge, ended, beating) = (link.sender(), link.gauge(), stop.clone(), pulse.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let now = start.elapsed().as_millis() as u64;
                let busy = beating.busy.load(Ordering::Relaxed);
                let busy_ms = if busy == 0 { 0 } else { u32::try_from(now.saturating_sub(busy)).unwrap_or(u32::MAX) };
                let (epoch, laps) = (beating.epoch.load(Ordering::Relaxed), beating.laps.load(Ordering::Relaxed));
                let next = *beating.next.lock().unwrap_or_else(PoisonError::into_inner);
                let onward = next.and_then(|next| gauge(&next)).map(|reach| Onward {
                    rtt_us: u32::try_from(reach.rtt.as_micros()).unwrap_or(u32::MAX),
                    relayed: reach.relayed,
                });
                send(&head, Message::Beat { epoch, laps, busy_ms, onward }.encode());
                std::thread::park_timeout(BEAT);
            }
        });
        Self { stop, pulse, thread: Some(thread) }
    }

    /// From now on this is the next stage. That is told at once: a run may be over before the next beat.
    fn leads_to(&self, next: Option<Key>) {
        *self.pulse.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        if let (Some(_), Some(thread)) = (next, &self.thread) {
            thread.thread().unpark();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Take part in one head's run as a stage, from the join to the end.
///
/// # Errors
/// See [`DriveError`].
pub fn stage(link: &mut Quic, identity: &Identity, drive: StageDrive<'_>) -> Result<(), DriveError> {
    let StageDrive { ticket, introduction, injection, load, say, told } = drive;
    let start = Instant::now();
    let now = || start.elapsed();
    let head = ticket.head;
    reach(link, ticket)?;
    let sign = |claim: &[u8]| identity.sign(claim);
    let mut session =
        StageSession::new(identity.key(), head, Some(&ticket.secret), introduction, sign, Identity::verify);
    session.inject(injection);
    // The introduction goes out before the first beat: a head hangs up on a device that it does not know.
    for action in session.actions() {
        if let Action::Send { to, message, spoil } = action {
            link.send(&to, bytes(&message, spoil));
        }
    }
    let mut worker: Option<Worker> = None;
    let heart = Heart::start(link, head, start);
    let mut dialled: BTreeMap<Key, u32> = BTreeMap::new();
    let mut rhythm = Rhythm::default();
    loop {
        let actions: Vec<Action> = session.actions().collect();
        let none = actions.is_empty();
        for action in actions {
            match action {
                Action::Send { to, message, spoil } => {
                    if goes_round(&message) {
                        rhythm.sent(now());
                    }
                    link.send(&to, bytes(&message, spoil));
                }
                Action::Dial { to, addresses, epoch } => {
                    dialled.insert(to, epoch);
                    link.dial(to, &addresses);
                }
                Action::Load { assign, heard } => {
                    worker = None;
                    heart.leads_to(None);
                    heart.pulse.epoch.store(assign.epoch, Ordering::Relaxed);
                    heart.pulse.busy.store(now().as_millis() as u64 | 1, Ordering::Relaxed);
                    let result = load(&assign, &heard);
                    heart.pulse.busy.store(0, Ordering::Relaxed);
                    let result = result.map(|(made, ready)| {
                        worker = Some(made);
                        ready
                    });
                    session.loaded(assign.epoch, result);
                }
                Action::Free(sequence) => worker.iter_mut().for_each(|worker| worker.free(sequence)),
                Action::Close { peer } => link.close(&peer),
                Action::Say(text) => say(&text),
                Action::Told { sequence, index, token } => told(sequence, index, token),
                Action::Inject(InjectionKind::Kill) => std::process::exit(137),
                Action::Inject(InjectionKind::Slow) => std::thread::sleep(SLOW),
                Action::Inject(_)
                | Action::Prepare { .. }
                | Action::Record(_)
                | Action::Token { .. }
                | Action::Done => {}
            }
        }
        if let Some(ended) = session.ended() {
            return Ok(ended.clone()?);
        }
        if session.pending()
            && let Some(worker) = &mut worker
        {
            if !none {
                link.flush();
            }
            heart.pulse.busy.store(now().as_millis() as u64 | 1, Ordering::Relaxed);
            session.work(worker, &now);
            heart.pulse.busy.store(0, Ordering::Relaxed);
            heart.pulse.laps.store(session.pulse().1, Ordering::Relaxed);
            continue;
        }
        // What has come meanwhile is taken first, so that hops that wait together are computed together.
        let mut wait = if none { Duration::from_secs(1) } else { Duration::ZERO };
        if none {
            expect(link, &rhythm, start);
        }
        while let Some(event) = link.next(wait) {
            wait = Duration::ZERO;
            match event {
                LinkEvent::Message { peer, bytes, at } => match Message::decode(&bytes) {
                    Ok(message) => {
                        if goes_round(&message) {
                            rhythm.came(now());
                        }
                        session.message(peer, message, at.saturating_duration_since(start));
                    }
                    Err(error) => session.bad(peer, &error),
                },
                LinkEvent::Linked { peer, incoming: false } => {
                    if let Some(epoch) = dialled.get(&peer) {
                        let purpose = Purpose::Hops { epoch: *epoch };
                        link.send(&peer, Message::Join(Join { version: VERSION, purpose, proof: [0; 32] }).encode());
                        session.linked(peer);
                        heart.leads_to(Some(peer));
                    }
                }
                LinkEvent::Linked { .. } => {}
                LinkEvent::Lost { peer, why } => session.lost(peer, &why),
            }
        }
    }
}

/// Link to the head, or say why not.
fn reach(link: &mut Quic, ticket: &Ticket) -> Result<(), DriveError> {
    let deadline = Instant::now() + if link.searches() { SEARCH } else { REACH };
    link.dial(ticket.head, &ticket.addresses);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match link.next(left) {
            Some(LinkEvent::Linked { peer, .. }) if peer == ticket.head => return Ok(()),
            Some(LinkEvent::Lost { peer, .. }) if peer == ticket.head && link.searches() && left > AGAIN => {
                std::thread::sleep(AGAIN);
                link.dial(ticket.head, &ticket.addresses);
            }
            Some(LinkEvent::Lost { peer, why }) if peer == ticket.head => return Err(DriveError::Unreached(why)),
            None if left.is_zero() => {
                let why = format!("no answer from {} at {}", short(&ticket.head), ticket.addresses.join(", "));
                return Err(DriveError::Unreached(why));
            }
            _ => {}
        }
    }
}

/// What a head's driver is given.
pub struct HeadDrive<'a, W: Write> {
    /// What makes its own stage.
    pub maker: &'a Maker<'a>,
    /// The whole program.
    pub program: &'a Program,
    /// Where the record goes.
    pub record: Option<Recorder<W>>,
    /// Told what happens.
    pub say: &'a dyn Fn(&str),
    /// Told of each plan before it is carried out, and how well each of its devices is reached.
    pub planned: &'a dyn Fn(&Plan, &[Option<Reach>]),
    /// How well each device was reached, when the run was planned and when it ended.
    pub reached: &'a mut BTreeMap<Key, Reach>,
    /// Given each token as it is certain.
    pub token: &'a mut dyn FnMut(usize, u32),
    /// Whether the user wants an end.
    pub stopping: &'a dyn Fn() -> bool,
}

/// Lead a run as its head, from the first guest to the last token.
///
/// # Errors
/// See [`DriveError`].
pub fn head<W: Write>(link: &mut Quic, session: &mut HeadSession, drive: HeadDrive<'_, W>) -> Result<(), DriveError> {
    let start = Instant::now();
    let now = || start.elapsed();
    let HeadDrive { maker, program, mut record, say, planned, reached, token, stopping } = drive;
    let mut worker: Option<Worker> = None;
    let mut rhythm = Rhythm::default();
    let mut looked = Instant::now();
    session.gathered();
    loop {
        let mut later = Vec::new();
        let mut none = true;
        for action in session.actions() {
            none = false;
            match action {
                Action::Send { to, message, spoil } => {
                    if goes_round(&message) {
                        rhythm.sent(now());
                    }
                    link.send(&to, bytes(&message, spoil));
                }
                other => later.push(other),
            }
        }
        // Hops are on their way before anything is printed, recorded or loaded.
        if !none && !later.is_empty() {
            link.flush();
        }
        let mut unrecorded = false;
        for action in later {
            match action {
                Action::Prepare { epoch, plan } => {
                    worker = None;
                    let reaches: Vec<Option<Reach>> = plan.devices.iter().map(|d| link.reach(&d.key)).collect();
                    planned(&plan, &reaches);
                    let known =
                        plan.devices.iter().zip(&reaches).filter_map(|(device, reach)| Some((device.key, (*reach)?)));
                    reached.extend(known);
                    let result = maker.head(program, &plan).map(|(made, programs)| {
                        worker = Some(made.worker);
                        programs
                    });
                    session.prepared(epoch, result.map_err(|e| crate::cli::failure::chain(&e)));
                }
                Action::Free(sequence) => worker.iter_mut().for_each(|worker| worker.free(sequence)),
                Action::Close { peer } => link.close(&peer),
                Action::Say(text) => say(&text),
                Action::Record(entry) => {
                    if let Some(Err(error)) = record.as_mut().map(|record| record.write(&entry)) {
                        (record, unrecorded) = (None, true);
                        session.fail(HeadError::Record(error.to_string()));
                    }
                }
                Action::Token { answer, token: id } => token(answer, id),
                Action::Send { .. }
                | Action::Inject(_)
                | Action::Dial { .. }
                | Action::Load { .. }
                | Action::Told { .. }
                | Action::Done => {}
            }
        }
        if unrecorded {
            // The stages are told why the run ends.
            continue;
        }
        if let Some(ended) = session.ended() {
            let devices = session.plan().map_or(&[][..], |plan| plan.devices.as_slice());
            reached.extend(devices.iter().filter_map(|device| Some((device.key, link.reach(&device.key)?))));
            if let Some(record) = record {
                record.finish()?;
            }
            return Ok(ended?);
        }
        if stopping() {
            session.stop();
            continue;
        }
        let mut idle = none;
        if session.pending()
            && let Some(worker) = &mut worker
        {
            if !none {
                link.flush();
            }
            session.work(worker, &now);
            // What was computed goes out before anything else is looked at, but whoever always computes looks now and then.
            if looked.elapsed() < TICK {
                continue;
            }
            idle = false;
        }
        looked = Instant::now();
        let mut wait = if idle { TICK } else { Duration::ZERO };
        if idle {
            expect(link, &rhythm, start);
        }
        while let Some(event) = link.next(wait) {
            wait = Duration::ZERO;
            match event {
                LinkEvent::Message { peer, bytes, at } => match Message::decode(&bytes) {
                    Ok(message) => {
                        if goes_round(&message) {
                            rhythm.came(now());
                        }
                        session.message(peer, message, at.saturating_duration_since(start));
                    }
                    Err(error) => session.bad(peer, &error),
                },
                LinkEvent::Linked { .. } => {}
                LinkEvent::Lost { peer, why } => session.lost(peer, &why),
            }
        }
        session.tick(now());
    }
}

fn bytes(message: &Message, spoil: bool) -> Vec<u8> {
    let mut bytes = message.encode();
    if spoil && let Some(last) = bytes.last_mut() {
        *last ^= 0x10;
    }
    bytes
}
