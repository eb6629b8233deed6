//! `wordline head`: one model over several machines, led from here.

mod input;
mod prove;
mod report;

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs};
use super::failure::{Failure, chain};
use super::ring::{LinkArgs, hello, repo};
use super::run::{MAX_TOKENS, SamplingArgs, Texts};
use super::{interrupt, out};
use crate::generate::stream::{Decode, TextStream};
use crate::pipeline::demand::demand;
use crate::pipeline::drive::{self, DriveError, HeadDrive};
use crate::pipeline::forecast::{self, Speed};
use crate::pipeline::link::{Identity, Reach, Ticket};
use crate::pipeline::load::{Maker, index_of, program_of};
use crate::pipeline::plan::{Demand, Device, Plan, Room, short};
use crate::pipeline::session::{Admission, Ask, Facts, HeadConfig, HeadError, HeadSession, Lap};
use crate::pipeline::wire::claim;
use clap::{Args as ClapArgs, ValueEnum};
use input::{lap_limit, prompts, record, roster};
use prove::{audits, check};
use report::{Answer, Report, lap_report, show, stages};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wordline_ir::Program;

/// Longest `--lap-timeout`, in seconds.
const MOST_LAP: f64 = 86_400.0;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Stages to wait for, this one not counted
    #[arg(long, value_name = "N", default_value_t = 1)]
    stages: usize,
    /// Write the ticket to this file too
    #[arg(long, value_name = "FILE")]
    ticket_file: Option<PathBuf>,
    /// Show the ticket as a QR code too
    #[arg(long)]
    qr: bool,
    /// File with the keys of devices that may take part without a ticket, one a line in hex
    #[arg(long, value_name = "FILE")]
    roster: Option<PathBuf>,
    /// Text to continue; may be given several times, and all are written at the same time
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "ids")]
    prompt: Vec<String>,
    /// Token ids to continue, separated by commas; may be given several times
    #[arg(long, value_name = "IDS", conflicts_with = "prompt")]
    ids: Vec<String>,
    /// Tokens to write at most [default: the checkpoint's wish, or 256]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Write on when the model ends its text
    #[arg(long)]
    ignore_eos: bool,
    /// Run the answers again on this machine alone and compare the tokens
    #[arg(long)]
    check: bool,
    /// Share of answers and stages whose hops are replayed here and compared, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    audit: f64,
    /// Who replays them: this machine, or another stage that lends enough memory, where there is one
    #[arg(long, value_enum, default_value_t = Auditor::Head)]
    auditor: Auditor,
    /// Write a flight record, which `replay` runs again
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Laps that embed the last tokens again, in place of laps of new rows alone
    #[arg(long)]
    stateless: bool,
    /// Rows of one sequence in one lap
    #[arg(long, value_name = "N", default_value_t = 32)]
    step_rows: u32,
    /// Answers on the way at the same time [default: all]
    #[arg(long, value_name = "N")]
    sequences: Option<u32>,
    /// Seconds that a lap may take beyond what the devices' figures say
    #[arg(long, value_name = "S", default_value_t = 4.0, allow_negative_numbers = true)]
    lap_timeout: f64,
    /// Give up when not all stages have come after this many seconds; 0 waits without limit
    #[arg(long, value_name = "S", default_value_t = 300.0, allow_negative_numbers = true)]
    wait: f64,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    /// Report as JSON at the end, in place of the text (docs/json.md)
    #[command(flatten)]
    json: JsonArg,
}

/// Who replays hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Auditor {
    /// This machine
    Head,
    /// Another stage
    Other,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    if !(0.0..=1.0).contains(&args.audit) {
        return Err(Failure::refused(format!("--audit is {}; a share lies in 0..=1", args.audit)));
    }
    if !(args.lap_timeout > 0.0 && args.lap_timeout <= MOST_LAP) {
        let given = args.lap_timeout;
        return Err(Failure::refused(format!(
            "--lap-timeout is {given}; it is above 0 and at most {MOST_LAP} seconds"
        )));
    }
    if !(args.wait >= 0.0 && args.wait.is_finite()) {
        return Err(Failure::refused(format!("--wait is {}; it is a number of seconds, 0 for no limit", args.wait)));
    }
    for (name, given) in [("--sequences", args.sequences), ("--step-rows", Some(args.step_rows))] {
        if given == Some(0) {
            return Err(Failure::refused(format!("{name} is 0; it is at least 1")));
        }
    }
    let model = args.model.open()?;
    let config = model.generation()?;
    let sampling = args.sampling.sampling(&config)?;
    let tokenizer = if args.ids.is_empty() { Some(model.tokenizer()?) } else { model.tokenizer().ok() };
    let prompts = prompts(args, tokenizer.as_ref())?;
    let spec = &model.checkpoint.spec;
    let max_tokens = args.max_tokens.or(config.max_new_tokens).unwrap_or(MAX_TOKENS);
    let eos = if args.ignore_eos { Vec::new() } else { config.eos };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    if longest > spec.max_pos {
        return Err(Failure::refused(format!("a prompt has {longest} tokens, the model takes {}", spec.max_pos)));
    }
    if let Some(id) = prompts.iter().flatten().find(|id| **id as usize >= spec.vocab) {
        return Err(Failure::refused(format!("a prompt has token {id}, the model has {} tokens", spec.vocab)));
    }
    let ctx = longest.saturating_add(max_tokens).clamp(1, spec.max_pos.max(1)) as u32;
    let sequences = args.sequences.unwrap_or(prompts.len() as u32).clamp(1, 1024);
    let room = Room { ctx, step_rows: args.step_rows.clamp(1, ctx), sequences };
    let numerics = args.numerics.numerics();
    let program = program_of(spec, &numerics)?;
    let asks: Vec<Ask> = prompts
        .iter()
        .map(|prompt| Ask { prompt: prompt.clone(), max_tokens, eos: eos.clone(), sampling, seed: args.sampling.seed })
        .collect();

    let identity = args.link.identity()?;
    let (kernels, hello) = hello(&prepared)?;
    let mut link = args.link.bind(&identity)?;
    let secret = identity.secret_for("ticket");
    let (repo, revision) = repo(&args.model.model, &model.checkpoint.folder);
    let model_place = match model.checkpoint.folder.repo() {
        Some(_) => format!("{repo}@{revision}"),
        None if args.model.model == crate::model::DEMO => args.model.model.clone(),
        None => std::fs::canonicalize(&args.model.model).map_or(String::new(), |path| path.display().to_string()),
    };
    let ticket = Ticket { head: identity.key(), secret, addresses: args.link.addresses(&link), model: model_place };
    show_ticket(args, &ticket)?;

    let me = Device { key: identity.key(), capacity: hello.capacity, memory: args.link.memory() };
    let head_claim = claim(&me.key, &me.key, &hello, me.memory);
    let needs = demand(&program, room).map_err(|e| Failure::refused(chain(&e)))?;
    let json = |value: serde_json::Result<String>| value.map_err(|e| Failure::fault(format!("cannot write JSON: {e}")));
    let lap = lap_limit(args, &program, hello.capacity, room);
    let head_config = HeadConfig {
        me,
        signature: identity.sign(&head_claim),
        hello: hello.clone(),
        probe: wordline_kernels::probe::ARRAY.0,
        verify: Identity::verify,
        admission: Admission { secret: Some(secret), roster: roster(args)? },
        stages: args.stages,
        facts: Facts {
            repo,
            revision,
            index: index_of(&model.checkpoint.weights),
            spec: json(serde_json::to_string(spec))?,
            numerics: json(serde_json::to_string(&numerics))?,
            hidden: spec.hidden,
        },
        demand: needs.clone(),
        room,
        stateless: args.stateless,
        audit: args.audit,
        audit_by_others: args.auditor == Auditor::Other,
        silence: Duration::from_millis(2500),
        lap,
        idle: Duration::from_secs_f64(args.lap_timeout),
        gather: (args.wait > 0.0).then(|| Duration::from_secs_f64(args.wait.min(1e9))),
    };
    let planned = |plan: &Plan, reaches: &[Option<Reach>]| {
        foretell(&program, plan, reaches, &needs);
        for device in plan.devices.iter().filter(|device| plan.stage_of(&device.key).is_none()) {
            out::note(format_args!("device {} has no layers and waits in reserve", short(&device.key)));
        }
    };
    let mut session = HeadSession::new(head_config, asks.clone());
    let (threads, backend, cache) = (prepared.threads, prepared.backend, prepared.cache());
    let (weights, watch) = (&model.checkpoint.weights, prepared.watch());
    let maker = Maker { weights, kernels, threads, backend, cache, watch };
    let record = record(args, &model, &program, room, &asks)?;

    let texts = tokenizer.as_ref().map(Texts);
    let decoder = texts.as_ref().map(|texts| texts as &dyn Decode);
    let quiet = args.json.json || prompts.len() > 1;
    let mut stream = decoder.filter(|_| !quiet).map(|decoder| TextStream::new(decoder, &prompts[0]));
    if let (Some(text), false) = (args.prompt.first(), quiet) {
        out::text(text)?;
    }
    let (mut first, mut count) = (None, 0_usize);
    let mut token = |_: usize, id: u32| {
        first.get_or_insert_with(Instant::now);
        count += 1;
        if let Some(piece) = stream.as_mut().map(|stream| stream.push(id)) {
            let _ = out::raw(&piece);
        }
    };
    let guard = interrupt::guard();
    let say = |text: &str| out::note(text);
    let stopping = || guard.stopping();
    let mut reached = BTreeMap::new();
    let drive = HeadDrive {
        maker: &maker,
        program: &program,
        record,
        say: &say,
        planned: &planned,
        reached: &mut reached,
        token: &mut token,
        stopping: &stopping,
    };
    let ended = drive::head(&mut link, &mut session, drive);
    let spent = first.map_or(Duration::ZERO, |first| first.elapsed());
    ended.map_err(|e| failed(args, &e, &args.link.addresses(&link)))?;
    let interrupted = guard.stopping();
    drop(guard);
    if let Some(mut stream) = stream {
        out::text(&stream.finish())?;
        out::text("\n")?;
    }

    // The first token ends the prompts; the rate is of those that follow.
    let tokens_per_s = count.saturating_sub(prompts.len()) as f64 / spent.as_secs_f64().max(f64::MIN_POSITIVE);
    let outcomes = session.outcomes();
    let answers: Vec<Answer> = outcomes
        .iter()
        .zip(&prompts)
        .map(|(outcome, prompt)| Answer {
            prompt_ids: prompt.clone(),
            ids: outcome.ids.clone(),
            text: text(decoder, prompt, &outcome.ids, &eos),
            finish: outcome.ending.clone(),
        })
        .collect();
    let audit = audits(&session, &maker, &program, room, &identity.key())?;
    let check = if args.check && !interrupted {
        let window = args.stateless.then_some(room.step_rows.min(room.ctx) as usize);
        Some(check(&session, (&prepared, &model), &program, room, window, &asks, &answers)?)
    } else {
        None
    };
    let laps: Vec<&Lap> = session.laps().filter(|lap| lap.rows == 1).collect();
    let report = Report {
        ids: answers.first().map(|a| a.ids.clone()).unwrap_or_default(),
        text: answers.first().map(|a| a.text.clone()).unwrap_or_default(),
        tokens_per_s,
        stages: stages(&session, &reached, &laps),
        losses: session.losses().to_vec(),
        laps: lap_report(&laps),
        check,
        audit,
        answers,
    };
    let finding = report.finding();
    show(args, &report, decoder.is_some())?;
    match finding {
        _ if interrupted => Err(Failure::interrupted()),
        Some(finding) => Err(Failure::found(format_args!("head: checking: {finding}"))),
        None => Ok(()),
    }
}

/// Why the run failed, and what to do about stages that did not come.
fn failed(args: &Args, error: &DriveError, addresses: &[String]) -> Failure {
    let failure = Failure::refused(format!("head: {}", chain(error)));
    match error {
        DriveError::Record(why) => not_recorded(args, &why.to_string()),
        DriveError::Head(error) => match &**error {
            HeadError::Record(why) => not_recorded(args, why),
            HeadError::Gather { .. } => failure.hint(format!(
                "does every machine run `wordline stage --join` with this run's ticket, and does UDP from it reach {}? \
                 --wait S waits longer",
                addresses.join(", ")
            )),
            _ => failure,
        },
        _ => failure,
    }
}

/// The record's file took no more.
fn not_recorded(args: &Args, why: &str) -> Failure {
    let file = args.record.as_ref().map_or_else(String::new, |file| format!(" {}", file.display()));
    Failure::refused(format!("head: recording{file}: {why}"))
}

/// The ticket on standard error, and in a file for whoever waits for it.
fn show_ticket(args: &Args, ticket: &Ticket) -> Result<(), Failure> {
    out::note(format_args!("ticket: {ticket}"));
    if args.qr {
        match ticket.qr() {
            Some(code) => out::note(code),
            None => out::note("note: the ticket is longer than a QR code holds"),
        }
    }
    let Some(path) = &args.ticket_file else { return Ok(()) };
    let write = write_ticket(path, &format!("{ticket}\n"));
    write.map_err(|e| Failure::refused(format!("ticket file {}: {e}", path.display())))
}

/// Under another name first: a file of this name holds a whole ticket. A pipe, a device, or a link to something
/// (`/dev/stdout` is one) is written to as it is.
fn write_ticket(path: &Path, text: &str) -> std::io::Result<()> {
    if path.exists() && std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes());
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}.unfinished", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    // It holds the secret of the ring: a file of our own, never one that somebody has put there to read it.
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&unfinished)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// Say before anything runs how fast this ring would be, and this machine alone, where it holds the model.
fn foretell(program: &Program, plan: &Plan, reaches: &[Option<Reach>], needs: &Demand) {
    let speed = |(device, reach): (&Device, &Option<Reach>)| {
        let rtt = reach.map_or(Duration::ZERO, |reach| reach.rtt);
        forecast::machine(device.capacity, None).ok().map(|machine| Speed { machine, rtt })
    };
    let speeds: Option<Vec<Speed>> = plan.devices.iter().zip(reaches).map(speed).collect();
    let Some(speeds) = speeds else { return };
    let pace = |count: usize| forecast::pace(program, &plan.devices[..count], &speeds, needs, plan.room);
    let Ok(ring) = pace(plan.devices.len()) else { return };
    let alone = match pace(1) {
        Ok(alone) => format!("{:.1} on this machine alone", alone.tokens_per_s),
        Err(_) => "this machine alone does not hold the model".to_owned(),
    };
    let (rate, low, high) = (ring.tokens_per_s, ring.low, ring.high);
    out::note(format_args!(
        "forecast: {rate:.1} tokens/s of one sequence over this ring ({low:.1} to {high:.1}); {alone}"
    ));
}

/// The text of an answer, as `run` gives it: an ending id has none.
fn text(decoder: Option<&dyn Decode>, prompt: &[u32], ids: &[u32], eos: &[u32]) -> String {
    let Some(decoder) = decoder else { return String::new() };
    let mut stream = TextStream::new(decoder, prompt);
    let shown = ids.iter().take_while(|id| !eos.contains(id));
    let mut text: String = shown.map(|id| stream.push(*id)).collect();
    text.push_str(&stream.finish());
    text
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_ticket_file_is_of_its_own_and_what_is_no_file_is_written_to() {
        let folder = tempfile::TempDir::new().unwrap();
        let (ticket, other, link) = (folder.path().join("t.a"), folder.path().join("t.b"), folder.path().join("link"));
        std::fs::write(&ticket, "an older and longer ticket").unwrap();
        write_ticket(&ticket, "one\n").unwrap();
        write_ticket(&other, "two\n").unwrap();
        assert_eq!(std::fs::metadata(&ticket).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&ticket, &link).unwrap();
        write_ticket(&link, "3\n").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        write_ticket(Path::new("/dev/null"), "gone\n").unwrap();
        assert!(write_ticket(folder.path(), "a folder\n").is_err());
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((text(&ticket), text(&other)), ("3\n".to_owned(), "two\n".to_owned()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing unfinished stays");
    }
}
