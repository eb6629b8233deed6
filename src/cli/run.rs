//! `wordline run`: writes text with a model.

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs, show_notices};
use super::failure::{Failure, chain};
use super::interrupt;
use super::out;
use super::program_file::{read_program, read_text};
use crate::generate::chat::Message;
use crate::generate::config::GenerationConfig;
use crate::generate::sampler::Sampling;
use crate::generate::session::{Finish, GenerateError, Generated, Request, generate};
use crate::generate::stream::Decode;
use crate::model::{Model, ModelFileError};
use crate::tokenizer::Tokenizer;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use wordline_engine::Capacity;
use wordline_ir::{Program, spec_digest};
use wordline_lowering::lower;

/// Tokens written where neither the command line nor the checkpoint says how many.
pub(super) const MAX_TOKENS: usize = 256;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Without sampling options the checkpoint's generation_config.json decides; a checkpoint without \
                        one is read greedily. The same seed writes the same text on every machine."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens to write at most [default: the checkpoint's wish, or 256]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Write on when the model ends its text
    #[arg(long)]
    ignore_eos: bool,
    /// Positions that the caches hold [default: what the prompt and the tokens to write need]
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Run this program (a file of `lower`, `asm` or an edited text) on the model's weights, at the program's numerics
    #[arg(long, value_name = "FILE", conflicts_with_all = ["weights", "acts", "queries", "probs"])]
    program: Option<PathBuf>,
    /// Do not print the prompt before the text
    #[arg(long)]
    no_echo: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    /// Report as JSON at the end, in place of the text (docs/json.md)
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
struct PromptSource {
    /// Text to continue; with --chat, what the user says
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file; `-` is standard input
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Token ids to continue, separated by commas; no tokenizer is needed
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Prompt")]
struct PromptArgs {
    #[command(flatten)]
    source: PromptSource,
    /// Put the prompt into the checkpoint's chat template
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    /// What the system says, before the user
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    system: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Take the largest logit, ties to the lower id
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"])]
    greedy: bool,
    /// Divide the logits by this; 0 is --greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the likeliest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens less likely than this times the likeliest
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Push ids already seen down by this factor
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Where the random draws start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
}

impl SamplingArgs {
    /// What the command line asks for, over what the checkpoint asks for.
    pub(super) fn sampling(&self, config: &GenerationConfig) -> Result<Sampling, Failure> {
        if self.greedy || self.temperature == Some(0.0) {
            return Ok(Sampling::Greedy);
        }
        let asked = self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some()
            || self.repetition_penalty.is_some();
        if !asked && config.do_sample != Some(true) {
            return config.greedy().map_err(Failure::refused);
        }
        let mut draw = config.draw();
        draw.temperature = self.temperature.unwrap_or(draw.temperature);
        draw.top_k = self.top_k.unwrap_or(draw.top_k);
        draw.top_p = self.top_p.unwrap_or(draw.top_p);
        draw.min_p = self.min_p.unwrap_or(draw.min_p);
        draw.repetition_penalty = self.repetition_penalty.unwrap_or(draw.repetition_penalty);
        draw.checked().map(Sampling::Draw).map_err(Failure::refused)
    }
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    text: &'a str,
    finish: &'a Finish,
    tokens_per_s: f64,
    bytes_per_step: u64,
    prompt_s: f64,
    steps: usize,
    steps_s: f64,
    seed: u64,
    ctx: usize,
    threads: usize,
    numerics: wordline_ir::Numerics,
}

/// The tokenizer as the text stream uses it.
pub(super) struct Texts<'a>(pub(super) &'a Tokenizer);

impl Decode for Texts<'_> {
    fn decode(&self, ids: &[u32]) -> String {
        self.0.decode(ids, true)
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let model = args.model.open()?;
    let config = model.generation()?;
    let sampling = args.sampling.sampling(&config)?;
    if !config.unapplied.is_empty() {
        out::note(format_args!("note: generation settings not applied: {}", config.unapplied.join(", ")));
    }
    let tokenizer = tokenizer(&model, args)?;
    let (prompt, shown) = prompt(&model, tokenizer.as_ref(), &args.prompt)?;
    let spec = &model.checkpoint.spec;
    let max_tokens = args.max_tokens.or(config.max_new_tokens).unwrap_or(MAX_TOKENS);
    let capacity = capacity(args, prompt.len(), max_tokens, spec.max_pos)?;
    let program = match &args.program {
        None => lower(spec, &args.numerics.numerics(), capacity.ctx)?.program,
        Some(file) => edited(&model, file)?,
    };
    let eos = if args.ignore_eos { Vec::new() } else { config.eos };
    let (seed, stop) = (args.sampling.seed, args.stop.clone());
    let request = Request { prompt, sampling, seed, max_tokens, eos, stop };
    let mut engine = prepared.setup(&model, &program, capacity).int8()?;
    let texts = tokenizer.as_ref().map(Texts);
    let decoder = texts.as_ref().map(|t| t as &dyn Decode);
    let quiet = args.json.json;
    if let Some(shown) = shown.filter(|_| !quiet && !args.no_echo && !args.prompt.chat) {
        out::text(&shown)?;
    }
    let guard = interrupt::guard();
    let show = |piece: &str| if quiet || piece.is_empty() { Ok(()) } else { out::raw(piece) };
    let generated = generate(&mut engine, decoder, &request, show, || guard.stopping()).map_err(failed)?;
    drop(guard);
    show_notices(&mut engine);
    if quiet {
        out::json(&Report {
            model: &args.model.model,
            prompt_ids: &request.prompt,
            ids: &generated.ids,
            text: &generated.text,
            finish: &generated.finish,
            tokens_per_s: generated.tokens_per_s(),
            bytes_per_step: generated.bytes_per_step,
            prompt_s: generated.prompt_time.as_secs_f64(),
            steps: generated.steps,
            steps_s: generated.step_time.as_secs_f64(),
            seed,
            ctx: capacity.ctx,
            threads: prepared.threads,
            numerics: program.identity.numerics,
        })?;
    } else {
        finish(&generated, request.prompt.len(), decoder.is_some())?;
    }
    if generated.finish == Finish::Interrupted { Err(Failure::interrupted()) } else { Ok(()) }
}

/// End the text and say how fast it was written.
fn finish(generated: &Generated, prompt: usize, has_text: bool) -> Result<(), Failure> {
    if has_text {
        out::text("\n")?;
    } else {
        let ids: Vec<String> = generated.ids.iter().map(u32::to_string).collect();
        out::line(ids.join(","))?;
    }
    let why = match generated.finish {
        Finish::Eos => "the model ended the text",
        Finish::Stop => "stop string",
        Finish::Length => "length reached",
        Finish::Context => "context full",
        Finish::Interrupted => "interrupted",
    };
    out::note(format_args!(
        "[{prompt} prompt tokens in {:.2} s; {} tokens, {:.1} tokens/s; {why}]",
        generated.prompt_time.as_secs_f64(),
        generated.ids.len(),
        generated.tokens_per_s(),
    ));
    Ok(())
}

fn failed(error: GenerateError<std::io::Error>) -> Failure {
    match error {
        GenerateError::Show(error) => error.into(),
        GenerateError::EmptyPrompt => Failure::refused(error).hint("give at least one token: text or ids"),
        error => Failure::refused(chain(&error)),
    }
}

/// The tokenizer; none when ids are given and the checkpoint has none.
fn tokenizer(model: &Model, args: &Args) -> Result<Option<Tokenizer>, Failure> {
    match model.tokenizer() {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(ModelFileError::Absent { .. }) if args.prompt.source.ids.is_some() && args.stop.is_empty() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The prompt's ids, and its text.
fn prompt(
    model: &Model,
    tokenizer: Option<&Tokenizer>,
    args: &PromptArgs,
) -> Result<(Vec<u32>, Option<String>), Failure> {
    if let Some(ids) = &args.source.ids {
        return Ok((ids.clone(), None));
    }
    let text = match (&args.source.prompt, &args.source.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => return Err(Failure::fault("the command line holds no prompt")),
    };
    let tokenizer = tokenizer.ok_or_else(|| Failure::fault("a text prompt without a tokenizer"))?;
    if !args.chat {
        return Ok((tokenizer.encode(&text, true)?, Some(text)));
    }
    let template = model.chat_template()?.ok_or_else(|| {
        let what = format!("{}: the checkpoint has no chat template", model.name);
        Failure::refused(what).hint("leave --chat out to continue the prompt as plain text")
    })?;
    let system = args.system.iter().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
    let rendered = template.render(&messages).map_err(|e| Failure::refused(e).at(&model.name))?;
    // The template writes the special tokens itself.
    Ok((tokenizer.encode(&rendered, false)?, Some(rendered)))
}

/// Room for the prompt and what follows it.
fn capacity(args: &Args, prompt: usize, max_tokens: usize, max_pos: usize) -> Result<Capacity, Failure> {
    if let Some(ctx) = args.ctx.filter(|ctx| !(1..=max_pos).contains(ctx)) {
        return Err(Failure::refused(format!("--ctx is {ctx}; the model takes 1 to {max_pos} positions")));
    }
    let ctx = args.ctx.unwrap_or_else(|| prompt.saturating_add(max_tokens).clamp(1, max_pos.max(1)));
    if prompt > ctx {
        let hint = if ctx < max_pos { "raise --ctx" } else { "shorten the prompt: the model takes no more" };
        return Err(Failure::refused(format!("the prompt has {prompt} tokens, the context holds {ctx}")).hint(hint));
    }
    Ok(Capacity { ctx, step_rows: Capacity::default().step_rows.min(ctx.max(1)) })
}

/// A program from a file, for this model's weights.
fn edited(model: &Model, file: &std::path::Path) -> Result<Program, Failure> {
    let program = read_program(file)?;
    if program.identity.spec != spec_digest(&model.checkpoint.spec) {
        let what = format!("{}: a program of another model ({})", file.display(), program.identity.family);
        let hint = format!("lower this one: wordline lower {} --format bin -o FILE", model.name);
        return Err(Failure::refused(what).hint(hint));
    }
    Ok(program)
}
