//! `wordline stage`: takes part in a head's run with a slice of the model.

use super::args::EngineArgs;
use super::failure::{Failure, chain};
use super::hub::HubArgs;
use super::out;
use super::ring::{DEMO_REPO, LinkArgs, assigned_on_hub, hello, weights};
use super::run::Texts;
use crate::checkpoint::Weights;
use crate::checkpoint::hub::Fetched;
use crate::generate::stream::TextStream;
use crate::model::DEMO;
use crate::pipeline::drive::{self, DriveError, StageDrive, named};
use crate::pipeline::link::{Quic, Ticket};
use crate::pipeline::load::Maker;
use crate::pipeline::plan::short;
use crate::pipeline::session::{Injection, Introduction, StageError};
use crate::pipeline::wire::{Assign, Member, Ready};
use crate::pipeline::worker::Worker;
use crate::tokenizer::Tokenizer;
use clap::Args as ClapArgs;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};
use wordline_ir::digest::hex;

/// Time that a ticket file may take to appear.
const TICKET_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "A stage reads its own tensors and no others: from the directory of --model, from the Hub when the \
                        head's model is there, else from the directory that the ticket names when this machine has it \
                        too. What the Hub gives is fetched with this device's own token and kept. No weight comes over \
                        the link."
)]
pub(super) struct Args {
    /// The ticket that `head` prints, or @FILE with it; a file that is not there yet is waited for, a minute at most
    #[arg(long, value_name = "TICKET|@FILE")]
    join: String,
    /// End when the run ends, in place of waiting for the head's next one
    #[arg(long)]
    once: bool,
    /// This device's copy of the model: a directory, `demo`, or owner/name[@revision] on the Hub
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Print each token as the head tells it: sequence, place in the answer, id, and text where this device's copy of the model
    /// has a tokenizer
    #[arg(long)]
    watch: bool,
    /// Have a fault happen: kill|stall|corrupt|slow@stageK:tokN
    #[arg(long, value_name = "FAULT")]
    fault: Option<Injection>,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    hub: HubArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let ticket = ticket(&args.join)?;
    let prepared = args.engine.prepare()?;
    let identity = args.link.identity()?;
    let (kernels, hello) = hello(&prepared)?;
    let mut link = args.link.bind(&identity)?;
    let me = short(&identity.key());
    let key = hex(&identity.key());
    out::note(format_args!("stage {me}: {:.1} GEMMs/s on {}; its key is {key}", hello.capacity, hello.backend));
    let copy: RefCell<Option<(String, Weights)>> = RefCell::new(None);
    let known = || {
        let place = copy.borrow().as_ref().map(|(place, _)| place.clone());
        place.and_then(|place| args.hub.try_open(&place).ok()?.tokenizer().ok())
    };
    let load = |assign: &Assign, heard: &[Member]| -> Result<(Worker, Ready), (String, String)> {
        let place = place(args, &ticket, assign)?;
        let mut copy = copy.borrow_mut();
        // Files of a commit stay what they are; those of a directory may have been replaced since the last run.
        if copy.as_ref().is_none_or(|(known, _)| *known != place) || Path::new(&place).is_dir() {
            *copy = None;
            *copy = Some((place.clone(), weights(&place, &args.hub)?));
        }
        let Some((_, weights)) = copy.as_ref() else { return Err(("model".to_owned(), "no copy".to_owned())) };
        let (threads, backend, cache) = (prepared.threads, prepared.backend, prepared.cache());
        let maker = Maker { weights, kernels: kernels.clone(), threads, backend, cache, watch: prepared.watch() };
        let (made, ready) = maker.assigned(assign, heard).map_err(|e| named(&e))?;
        out::note(format_args!(
            "stage {me}: layers {}..{} of {}, {} bytes of weights in {} reads{}",
            assign.layers.start,
            assign.layers.end,
            assign.repo,
            ready.bytes,
            ready.requests,
            moved(&made.fetched)
        ));
        Ok((made.worker, ready))
    };
    let say = |text: &str| out::note(format_args!("stage {me}: {text}"));
    let mut served = false;
    loop {
        let addresses = args.link.addresses(&link);
        let introduction = Introduction { hello: hello.clone(), memory: args.link.memory(), addresses };
        let mut shown = Shown::default();
        let mut told = |sequence, index, id| {
            if args.watch {
                shown.token(sequence, index, id, &known);
            }
        };
        let drive = StageDrive {
            ticket: &ticket,
            introduction,
            injection: args.fault,
            load: &load,
            say: &say,
            told: &mut told,
        };
        let ended = drive::stage(&mut link, &identity, drive);
        match ended {
            Ok(()) if args.once => return Ok(()),
            Ok(()) => served = true,
            // A head that was there once may come again; one that ended the run for all may too.
            Err(DriveError::Unreached(_)) if served && !args.once => {}
            Err(DriveError::Stage(error @ StageError::Lost { .. })) if !args.once => {
                say(&format!("{error}; waiting for it"));
                served = true;
            }
            // Its run failed, here or elsewhere: the next one's model may be one that this device has.
            Err(DriveError::Stage(error @ StageError::Head { .. })) if !error.kept_out() && !args.once => {
                say(&format!("{error}; waiting for the head's next run"));
                served = true;
            }
            Err(error) => return Err(Failure::refused(format!("stage {me}: {}", chain(&error)))),
        }
        std::thread::sleep(Duration::from_secs(1));
        link = relink(link, args, &identity)?;
    }
}

/// The tokens that the head has told of, as they are shown.
#[derive(Default)]
struct Shown {
    /// Looked for once there is a token to show; none where this device has none.
    tokenizer: Option<Option<Tokenizer>>,
    ids: BTreeMap<u32, Vec<u32>>,
}

impl Shown {
    fn token(&mut self, sequence: u32, index: u32, id: u32, known: &dyn Fn() -> Option<Tokenizer>) {
        let ids = self.ids.entry(sequence).or_default();
        ids.push(id);
        let text = self.tokenizer.get_or_insert_with(known).as_ref().map(|tokenizer| {
            // The text that this id makes certain: the last of what the ids give so far.
            let texts = Texts(tokenizer);
            let mut stream = TextStream::new(&texts, &[]);
            ids.iter().map(|id| stream.push(*id)).last().unwrap_or_default()
        });
        let text = text.map(|text| format!(" {text:?}")).unwrap_or_default();
        // Nobody who listens is no reason to leave the ring.
        let _ = out::line(format_args!("{sequence} {index} {id}{text}"));
    }
}

/// Fresh links for the next run.
fn relink(old: Quic, args: &Args, identity: &crate::pipeline::link::Identity) -> Result<Quic, Failure> {
    drop(old);
    args.link.bind(identity)
}

/// What came from the Hub just now, in words; nothing where all was here.
fn moved(fetched: &[Fetched]) -> String {
    let sum = |of: fn(&Fetched) -> u64| fetched.iter().map(of).sum::<u64>();
    match sum(|f| f.requests) {
        0 => String::new(),
        requests => {
            format!("; {} bytes fetched in {requests} requests, {} were here", sum(|f| f.bytes), sum(|f| f.cached))
        }
    }
}

/// Where this device's copy of the assigned model is.
fn place(args: &Args, ticket: &Ticket, assign: &Assign) -> Result<String, (String, String)> {
    if let Some(model) = &args.model {
        return Ok(model.clone());
    }
    if assign.repo == DEMO_REPO {
        return Ok(DEMO.to_owned());
    }
    if let Some(model) = assigned_on_hub(&assign.repo, &assign.revision) {
        return Ok(model.to_string());
    }
    if ticket.model != DEMO && Path::new(&ticket.model).is_dir() {
        return Ok(ticket.model.clone());
    }
    let text = format!(
        "this device has no copy of {} {}: give its directory, or owner/name on the Hub, with --model",
        assign.repo, assign.revision
    );
    Err(("model".to_owned(), text))
}

/// A file's text, once it is there: whoever starts a ring starts its stages and its head in any order. `head` gives a
/// file its name when it is whole.
fn written(file: &str) -> std::io::Result<String> {
    let give_up = Instant::now() + TICKET_WAIT;
    let mut said = false;
    loop {
        match std::fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < give_up => {}
            read => return read,
        }
        if !said {
            out::note(format_args!("waiting for the ticket file {file}"));
            said = true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ticket(join: &str) -> Result<Ticket, Failure> {
    let text = match join.strip_prefix('@') {
        Some(file) => written(file).map_err(|e| Failure::refused(format!("ticket file {file}: {e}")))?,
        None => join.to_owned(),
    };
    text.parse().map_err(|e| Failure::refused(format!("--join: {e}")))
}
