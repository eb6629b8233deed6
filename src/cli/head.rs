//! `wordline head`: one model over several machines, led from here.

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs, show_notices};
use super::failure::{Failure, chain};
use super::ring::{LinkArgs, hello, repo};
use super::run::{MAX_TOKENS, SamplingArgs, Texts};
use super::{interrupt, out};
use crate::generate::session::{Request, generate};
use crate::generate::stream::{Decode, TextStream};
use crate::model::Model;
use crate::pipeline::audit::{Finding, replay};
use crate::pipeline::capacity::MACS;
use crate::pipeline::demand::demand;
use crate::pipeline::drive::{self, HeadDrive};
use crate::pipeline::link::{Identity, Link, Quic, Ticket};
use crate::pipeline::load::{Maker, index_of, program_of};
use crate::pipeline::plan::{Device, Key, Plan, Room};
use crate::pipeline::record::{Asked, FORMAT, Header, Recorder};
use crate::pipeline::session::{Admission, Ask, Ending, Facts, HeadConfig, HeadSession, Lap};
use crate::pipeline::wire::claim;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wordline_engine::Capacity;
use wordline_ir::Program;
use wordline_ir::digest::hex;
use wordline_lowering::split::split;

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
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    lap_timeout: f64,
    /// Give up when not all stages have come after this many seconds
    #[arg(long, value_name = "S")]
    wait: Option<f64>,
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

/// What `--json` reports.
#[derive(Serialize)]
struct Report {
    ids: Vec<u32>,
    text: String,
    tokens_per_s: f64,
    stages: Vec<StageReport>,
    check: Option<Check>,
    audit: Vec<AuditReport>,
    losses: Vec<String>,
    laps: LapReport,
    answers: Vec<Answer>,
}

#[derive(Serialize)]
struct StageReport {
    layers: [u32; 2],
    key: String,
    backend: String,
    compute_ms: f64,
    hop_ms: f64,
    bytes: u64,
    requests: u32,
    rtt_ms: Option<f64>,
    relayed: bool,
}

#[derive(Serialize)]
struct Answer {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    finish: Ending,
}

/// The differential check.
#[derive(Serialize)]
struct Check {
    equal: bool,
    difference: Option<Difference>,
}

#[derive(Serialize)]
struct Difference {
    answer: usize,
    index: usize,
    ring: Option<u32>,
    alone: Option<u32>,
}

#[derive(Serialize)]
struct AuditReport {
    stage: u32,
    sequence: u32,
    key: String,
    #[serde(flatten)]
    finding: Finding,
}

/// Laps of one row, in milliseconds, medians.
#[derive(Serialize)]
struct LapReport {
    laps: usize,
    lap_ms: f64,
    compute_ms: f64,
    /// What is not computing: lap - sum of the stages' computing.
    overhead_ms: f64,
    hop_ms: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    if !(0.0..=1.0).contains(&args.audit) {
        return Err(Failure::refused(format!("--audit is {}; a share lies in 0..=1", args.audit)));
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
    let (kernels, hello) = hello(prepared.threads)?;
    let mut link = args.link.bind(&identity)?;
    let secret = identity.secret_for("ticket");
    let place = std::fs::canonicalize(&args.model.model).map_or(String::new(), |path| path.display().to_string());
    let model_place = if args.model.model == crate::model::DEMO { args.model.model.clone() } else { place };
    let ticket = Ticket { head: identity.key(), secret, addresses: link.addresses(), model: model_place }.to_string();
    show_ticket(args, &ticket)?;

    let (repo, revision) = repo(&args.model.model);
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
        demand: needs,
        room,
        stateless: args.stateless,
        audit: args.audit,
        silence: Duration::from_millis(2500),
        lap,
        gather: args.wait.map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e9))),
    };
    let mut session = HeadSession::new(head_config, asks.clone());
    let progress = |done, total| prepared.show_building(done, total);
    let (threads, cache) = (prepared.threads, prepared.cache());
    let maker = Maker { weights: &model.checkpoint.weights, kernels, threads, cache, progress: &progress };
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
    let drive =
        HeadDrive { maker: &maker, program: &program, record, say: &say, token: &mut token, stopping: &stopping };
    let ended = drive::head(&mut link, &mut session, drive);
    let spent = first.map_or(Duration::ZERO, |first| first.elapsed());
    ended.map_err(|e| Failure::refused(format!("head: {}", chain(&e))))?;
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
    let audit = audits(&session, &maker, &program, room)?;
    let check = if args.check && !interrupted {
        Some(check(&prepared, &model, &program, room, &asks, &answers)?)
    } else {
        None
    };
    let laps: Vec<&Lap> = session.laps().filter(|lap| lap.rows == 1).collect();
    let report = Report {
        ids: answers.first().map(|a| a.ids.clone()).unwrap_or_default(),
        text: answers.first().map(|a| a.text.clone()).unwrap_or_default(),
        tokens_per_s,
        stages: stages(&session, &link, &laps),
        losses: session.losses().to_vec(),
        laps: lap_report(&laps),
        check,
        audit,
        answers,
    };
    let right = report.check.as_ref().is_none_or(|check| check.equal)
        && report.audit.iter().all(|audit| matches!(audit.finding, Finding::Right { .. }));
    show(args, &report, decoder.is_some())?;
    match (right, interrupted) {
        (_, true) => Err(Failure::interrupted()),
        (false, _) => Err(Failure::check()),
        (true, _) => Ok(()),
    }
}

/// The ticket on standard error, and in a file for whoever waits for it.
fn show_ticket(args: &Args, ticket: &str) -> Result<(), Failure> {
    out::note(format_args!("ticket: {ticket}"));
    let Some(path) = &args.ticket_file else { return Ok(()) };
    // Under another name first: a file of this name holds a whole ticket.
    let unfinished = path.with_extension("unfinished");
    let write = std::fs::write(&unfinished, format!("{ticket}\n")).and_then(|()| std::fs::rename(&unfinished, path));
    write.map_err(|e| Failure::refused(format!("ticket file {}: {e}", path.display())))
}

/// What a lap may take: what is asked for, and ten times what the slowest thinkable share of the model takes on this device.
fn lap_limit(args: &Args, program: &Program, capacity: f64, room: Room) -> Duration {
    let macs: u64 = program.tensors.iter().map(|t| (t.rows * t.cols) as u64).sum();
    let rows = f64::from(room.step_rows * room.sequences.min(64));
    let seconds = 10.0 * rows * macs as f64 / MACS as f64 / capacity.max(1e-3);
    Duration::from_secs_f64((args.lap_timeout.max(0.1) + seconds.min(3600.0)).min(1e6))
}

fn roster(args: &Args) -> Result<Vec<Key>, Failure> {
    let Some(path) = &args.roster else { return Ok(Vec::new()) };
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::refused(format!("roster {}: {e}", path.display())))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let digits = line.is_ascii().then(|| line.as_bytes().chunks(2)).filter(|_| line.len() == 64);
            let bytes: Option<Vec<u8>> = digits
                .and_then(|digits| digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect());
            bytes.and_then(|bytes| Key::try_from(bytes).ok()).ok_or_else(|| {
                let what = format!("roster {}, line {}: a key has 64 hexadecimal digits", path.display(), number + 1);
                Failure::refused(what)
            })
        })
        .collect()
}

fn prompts(args: &Args, tokenizer: Option<&crate::tokenizer::Tokenizer>) -> Result<Vec<Vec<u32>>, Failure> {
    let ids = args.ids.iter().map(|list| {
        let id =
            |id: &str| id.trim().parse::<u32>().map_err(|_| Failure::refused(format!("--ids: '{id}' is no token id")));
        list.split(',').map(id).collect::<Result<Vec<u32>, Failure>>()
    });
    let texts = args.prompt.iter().map(|text| {
        let tokenizer = tokenizer.ok_or_else(|| Failure::fault("a text prompt without a tokenizer"))?;
        Ok(tokenizer.encode(text, true)?)
    });
    let prompts = ids.chain(texts).collect::<Result<Vec<_>, Failure>>()?;
    match prompts.iter().position(Vec::is_empty) {
        Some(empty) => Err(Failure::refused(format!("prompt {empty} holds no token; give at least one"))),
        None => Ok(prompts),
    }
}

fn record(
    args: &Args,
    model: &Model,
    program: &Program,
    room: Room,
    asks: &[Ask],
) -> Result<Option<Recorder<BufWriter<std::fs::File>>>, Failure> {
    let Some(path) = &args.record else { return Ok(None) };
    let header = Header {
        wordline_record: FORMAT,
        model: args.model.model.clone(),
        index: model.checkpoint.weights.index_digest(),
        spec: program.identity.spec.clone(),
        numerics: program.identity.numerics,
        ctx: room.ctx,
        step_rows: room.step_rows,
        stateless: args.stateless,
        answers: asks.iter().map(Asked::of).collect(),
    };
    let file = std::fs::File::create(path).and_then(|file| Recorder::new(BufWriter::new(file), &header));
    file.map(Some).map_err(|e| Failure::refused(format!("record {}: {e}", path.display())))
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

/// Replay what was copied, each stage on an engine of its own here.
fn audits(
    session: &HeadSession,
    maker: &Maker<'_>,
    program: &Program,
    room: Room,
) -> Result<Vec<AuditReport>, Failure> {
    let audited = session.audited();
    let Some(plan) = session.plan().filter(|_| !audited.is_empty()) else { return Ok(Vec::new()) };
    let stages = split(program, &plan.ranges()).map_err(|e| Failure::fault(chain(&e)))?;
    let mut reports = Vec::new();
    for (number, stage) in stages.iter().enumerate().skip(1) {
        let mut own = audited.iter().filter(|a| a.stage as usize == number).peekable();
        if own.peek().is_none() {
            continue;
        }
        let mut made = maker.make(stage, room).map_err(|e| Failure::refused(chain(&e)))?;
        for audited in own {
            let finding = replay(audited, &mut made.worker).map_err(|e| Failure::refused(chain(&e)))?;
            let key = plan.key(number).map(|key| hex(&key)).unwrap_or_default();
            reports.push(AuditReport { stage: audited.stage, sequence: audited.sequence, key, finding });
        }
    }
    Ok(reports)
}

/// The whole model on this machine alone, and its tokens against the ring's.
fn check(
    prepared: &super::args::Prepared,
    model: &Model,
    program: &Program,
    room: Room,
    asks: &[Ask],
    answers: &[Answer],
) -> Result<Check, Failure> {
    let capacity = Capacity { ctx: room.ctx as usize, step_rows: room.step_rows as usize };
    let mut engine = prepared.setup(model, program, capacity).int8()?;
    for (answer, (ask, ring)) in asks.iter().zip(answers).enumerate() {
        let Ask { prompt, max_tokens, eos, sampling, seed } = ask.clone();
        let request = Request { prompt, sampling, seed, max_tokens, eos, stop: Vec::new() };
        let show = |_: &str| Ok::<(), std::io::Error>(());
        let alone = generate(&mut engine, None, &request, show, || false).map_err(|e| Failure::refused(chain(&e)))?.ids;
        let length = alone.len().max(ring.ids.len());
        if let Some(index) = (0..length).find(|i| alone.get(*i) != ring.ids.get(*i)) {
            let (ring, alone) = (ring.ids.get(index).copied(), alone.get(index).copied());
            return Ok(Check { equal: false, difference: Some(Difference { answer, index, ring, alone }) });
        }
    }
    show_notices(&mut engine);
    Ok(Check { equal: true, difference: None })
}

fn stages(session: &HeadSession, link: &Quic, laps: &[&Lap]) -> Vec<StageReport> {
    let Some(plan): Option<&Plan> = session.plan() else { return Vec::new() };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let hop = hop_ms(laps);
    let report = |(number, stage): (usize, crate::pipeline::session::StageReport)| {
        let layers = &plan.stages[number].layers;
        let reach = link.reach(&stage.key);
        StageReport {
            layers: [layers.start, layers.end],
            key: hex(&stage.key),
            backend: stage.backend,
            compute_ms: median(laps.iter().filter_map(|lap| lap.compute.get(number)).map(|time| ms(*time)).collect()),
            hop_ms: if plan.stages.len() > 1 { hop } else { 0.0 },
            bytes: stage.ready.map_or(0, |ready| ready.bytes),
            requests: stage.ready.map_or(0, |ready| ready.requests),
            rtt_ms: reach.map(|reach| ms(reach.rtt)),
            relayed: reach.is_some_and(|reach| reach.relayed),
        }
    };
    session.stages().into_iter().enumerate().map(report).collect()
}

/// What a lap spends on neither computing nor waiting for a step under way, by hop.
fn hop_ms(laps: &[&Lap]) -> f64 {
    let hop = |lap: &&Lap| {
        let busy: Duration = lap.compute.iter().chain(&lap.queue).sum();
        lap.time.saturating_sub(busy).as_secs_f64() * 1e3 / lap.compute.len().max(1) as f64
    };
    median(laps.iter().map(hop).collect())
}

fn lap_report(laps: &[&Lap]) -> LapReport {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let compute = |lap: &&Lap| lap.compute.iter().sum::<Duration>();
    LapReport {
        laps: laps.len(),
        lap_ms: median(laps.iter().map(|lap| ms(lap.time)).collect()),
        compute_ms: median(laps.iter().map(|lap| ms(compute(lap))).collect()),
        overhead_ms: median(laps.iter().map(|lap| ms(lap.time.saturating_sub(compute(lap)))).collect()),
        hop_ms: hop_ms(laps),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn show(args: &Args, report: &Report, has_text: bool) -> Result<(), Failure> {
    if args.json.json {
        return out::json(report);
    }
    if report.answers.len() > 1 || !has_text {
        for answer in &report.answers {
            let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
            out::line(if has_text { answer.text.clone() } else { ids.join(",") })?;
        }
    }
    for stage in &report.stages {
        let key = stage.key.get(..10).unwrap_or(&stage.key);
        let [start, end] = stage.layers;
        let reach = stage
            .rtt_ms
            .map(|rtt| format!(", {} at {rtt:.2} ms there and back", if stage.relayed { "relayed" } else { "direct" }));
        out::note(format_args!(
            "[{key}: layers {start}..{end} on {}, {:.2} ms a row{}]",
            stage.backend,
            stage.compute_ms,
            reach.unwrap_or_default()
        ));
    }
    let laps = &report.laps;
    out::note(format_args!(
        "[{:.1} tokens/s; a lap {:.2} ms, {:.2} of them not computing; {:.2} a hop]",
        report.tokens_per_s, laps.lap_ms, laps.overhead_ms, laps.hop_ms
    ));
    for audit in &report.audit {
        let key = audit.key.get(..10).unwrap_or(&audit.key);
        let (stage, sequence) = (audit.stage, audit.sequence);
        out::note(match &audit.finding {
            Finding::Right { rows } => {
                format!("[audit: stage {stage} ({key}), sequence {sequence}: {rows} rows are right]")
            }
            Finding::Wrong { position, lap } => {
                format!(
                    "audit: stage {stage} ({key}) computed position {position} of sequence {sequence} wrongly (lap {lap})"
                )
            }
            Finding::Disputed { position } => format!(
                "audit: stages {} and {stage} ({key}) disagree about position {position} of sequence {sequence}",
                stage - 1
            ),
            Finding::Untold { position } => {
                format!("audit: stage {stage} ({key}) has not told of position {position} of sequence {sequence}")
            }
        });
    }
    match &report.check {
        Some(Check { equal: true, .. }) => out::note("[check: one machine alone writes the same tokens]"),
        Some(Check { difference: Some(d), .. }) => out::note(format_args!(
            "check: answer {}, token {}: the ring wrote {}, one machine alone {}",
            d.answer,
            d.index,
            shown(d.ring),
            shown(d.alone)
        )),
        _ => {}
    }
    Ok(())
}

fn shown(token: Option<u32>) -> String {
    token.map_or_else(|| "nothing".to_owned(), |token| token.to_string())
}
