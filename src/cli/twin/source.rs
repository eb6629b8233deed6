//! What the twin's subcommands price, on what, and under which load.

use crate::cli::args::LimbArgs;
use crate::cli::failure::{Failure, chain};
use crate::cli::hub::HubArgs;
use crate::cli::program_file::{read_bytes, read_program, read_text};
use crate::model::{Model, on_hub};
use crate::shapes::{Shape, ShapeError};
use clap::{ArgGroup, Args as ClapArgs};
use std::path::Path;
use wordline_ir::{Numerics, Program, file, verify::verify};
use wordline_lowering::lower;
use wordline_twin::machine::preset_names;
use wordline_twin::sweep::number;
use wordline_twin::{Formats, Load, Logits, Machine, Provenance, Sequences};

/// The model.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("what").required(true).args(["model", "shape"]))]
pub(in crate::cli) struct SourceArgs {
    /// A model's directory, `demo`, owner/name[@revision] on the Hub, a config.json (no weights needed), or a program file
    #[arg(value_name = "MODEL")]
    pub(in crate::cli) model: Option<String>,
    /// A published model by its config alone; a wrong name lists them
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) shape: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) limbs: LimbArgs,
}

/// A step to price.
pub(in crate::cli) struct Source {
    pub(in crate::cli) name: String,
    pub(in crate::cli) program: Program,
}

impl SourceArgs {
    pub(in crate::cli) fn open(&self) -> Result<Source, Failure> {
        let numerics = self.limbs.numerics();
        match (&self.shape, &self.model) {
            (Some(shape), _) => Source::shape(shape, &numerics),
            (None, Some(model)) => Source::open(model, &numerics),
            (None, None) => Err(Failure::refused("give a MODEL or --shape NAME")),
        }
    }
}

impl Source {
    /// A published shape.
    pub(in crate::cli) fn shape(name: &str, numerics: &Numerics) -> Result<Source, Failure> {
        Source::of_spec(name, &Shape::named(name).map_err(shapeless)?.spec, numerics)
    }

    /// A model's directory, `demo`, a config.json, a program file, a shape's name, or a model on the Hub.
    pub(in crate::cli) fn open(name: &str, numerics: &Numerics) -> Result<Source, Failure> {
        let path = Path::new(name);
        if name == "demo" {
            return Source::of_spec(name, &Model::open(name)?.checkpoint.spec, numerics);
        }
        if path.is_dir() {
            // The weights' headers say more than a config; where there are none, the config is enough.
            return if has_weights(path) {
                Source::of_spec(name, &Model::open(name)?.checkpoint.spec, numerics)
            } else {
                Source::of_spec(name, &Shape::of_config(path).map_err(shapeless)?.spec, numerics)
            };
        }
        if !path.exists() {
            let known = Shape::named(name);
            return match known {
                Ok(shape) => Source::of_spec(name, &shape.spec, numerics),
                // Config and headers are all that a price needs.
                Err(_) if on_hub(name).is_some() => {
                    Source::of_spec(name, &HubArgs::default().open(name)?.checkpoint.spec, numerics)
                }
                Err(error) => Err(Failure::refused(format!("'{name}' is no file and no directory, and {error}"))),
            };
        }
        if is_config(path)? {
            return Source::of_spec(name, &Shape::of_config(path).map_err(shapeless)?.spec, numerics);
        }
        Source::of_program(name, read_program(path)?)
    }

    fn of_spec(name: &str, spec: &wordline_ir::Spec, numerics: &Numerics) -> Result<Source, Failure> {
        let ctx = crate::cli::args::usual_ctx(spec.max_pos);
        Source::of_program(name, lower(spec, numerics, ctx)?.program)
    }

    fn of_program(name: &str, program: Program) -> Result<Source, Failure> {
        verify(&program).map_err(|defects| Failure::refused(defects).at(name))?;
        Ok(Source { name: name.to_owned(), program })
    }
}

fn shapeless(error: ShapeError) -> Failure {
    Failure::refused(chain(&error))
}

/// A directory holds weights.
fn has_weights(path: &Path) -> bool {
    let weights = |name: &std::ffi::OsStr| Path::new(name).extension().is_some_and(|e| e == "safetensors");
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.any(|e| e.is_ok_and(|e| weights(&e.file_name()))))
}

/// A file is a model's config: a JSON object that is no program.
fn is_config(path: &Path) -> Result<bool, Failure> {
    let bytes = read_bytes(path)?;
    if bytes.starts_with(&file::MAGIC) {
        return Ok(false);
    }
    let value: Result<serde_json::Value, _> = serde_json::from_slice(&bytes);
    Ok(value.is_ok_and(|v| v.is_object() && v.get("commands").is_none()))
}

/// The machine.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Machine")]
pub(in crate::cli) struct MachineArgs {
    /// A machine that comes with the twin, or a machine file (docs/twin.md)
    #[arg(long, value_name = "NAME|FILE", required = true)]
    pub(in crate::cli) machine: Option<String>,
    /// Give a knob another value
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    pub(in crate::cli) set: Vec<String>,
    /// Equal devices that share every matrix and head [knob parallel.tensor]
    #[arg(long, value_name = "N")]
    pub(in crate::cli) devices: Option<u32>,
    /// Pipeline stages [knob parallel.stages]
    #[arg(long, value_name = "N")]
    pub(in crate::cli) stages: Option<u32>,
}

impl MachineArgs {
    pub(in crate::cli) fn machine(&self) -> Result<Machine, Failure> {
        self.apply(open_machine(self.machine.as_deref().unwrap_or_default())?)
    }

    /// A machine with the knobs of the command line.
    pub(in crate::cli) fn apply(&self, mut machine: Machine) -> Result<Machine, Failure> {
        for text in &self.set {
            let wrong = || {
                Failure::refused(format!("--set {text}: write KNOB=VALUE, a number"))
                    .hint("`wordline twin knobs` lists them")
            };
            let (name, value) = text.split_once('=').ok_or_else(wrong)?;
            machine.set_named(name, number(value).ok_or_else(wrong)?, Provenance::Guessed).map_err(Failure::refused)?;
        }
        for (name, value) in [("parallel.tensor", self.devices), ("parallel.stages", self.stages)] {
            if let Some(value) = value {
                machine.set_named(name, f64::from(value), Provenance::Datasheet).map_err(Failure::refused)?;
            }
        }
        machine.check().map_err(Failure::refused)?;
        Ok(machine)
    }
}

/// A preset by its name, or a machine file.
pub(in crate::cli) fn open_machine(name: &str) -> Result<Machine, Failure> {
    if preset_names().contains(&name) {
        return Machine::preset(name).map_err(Failure::fault);
    }
    if !Path::new(name).exists() {
        let known = preset_names().join(", ");
        return Err(Failure::refused(format!("'{name}' is no file and no machine that comes with the twin"))
            .hint(format!("there are {known}")));
    }
    Machine::parse(&read_text(Path::new(name))?).map_err(|e| Failure::refused(e).at(name))
}

/// A whole number, with `k` and `M` for 2^10 and 2^20.
fn count(text: &str) -> Result<u64, String> {
    let whole = number(text).filter(|n| *n >= 0.0 && n.fract() == 0.0 && *n < 9e15);
    whole.map(|n| n as u64).ok_or_else(|| "a whole number is wanted, as 4096 or 4k".to_owned())
}

/// What a step advances, and in which formats.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Load")]
pub(in crate::cli) struct LoadArgs {
    /// Positions in each sequence's cache before the step
    #[arg(long, value_name = "N", default_value = "1024", value_parser = count)]
    ctx: u64,
    /// Token-rows of each sequence: 1 decodes, more take a prompt in or check a draft
    #[arg(long, value_name = "R", default_value = "1", value_parser = count)]
    rows: u64,
    /// Sequences
    #[arg(long, value_name = "S", default_value = "1", value_parser = count)]
    sequences: u64,
    /// More sequences, unlike the others: how many, rows of each, positions of each
    #[arg(long, value_name = "COUNT:ROWS:CTX")]
    also: Vec<String>,
    /// Exponent of the law by which experts are picked; 0: all alike
    #[arg(long, value_name = "X", default_value_t = wordline_twin::SKEW)]
    pub(in crate::cli) skew: f64,
    /// Format of the weights, with exceptions by parts of tensors' names: bfp8,mlp=bfp4; without it, the program's own
    #[arg(long, value_name = "FORMAT")]
    weights: Option<String>,
    /// Format of the caches
    #[arg(long, value_name = "FORMAT", default_value = "int8")]
    pub(in crate::cli) kv: String,
    /// Format of memories and rings
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    pub(in crate::cli) state: String,
}

impl LoadArgs {
    pub(in crate::cli) const fn ctx(&self) -> u64 {
        self.ctx
    }

    pub(in crate::cli) const fn rows(&self) -> u64 {
        self.rows
    }

    pub(in crate::cli) const fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Format of the weights of a program.
    pub(in crate::cli) fn weights<'a>(&'a self, program: &Program) -> &'a str {
        self.weights.as_deref().unwrap_or(program.identity.numerics.weights.name())
    }

    pub(in crate::cli) fn formats(&self, program: &Program) -> Result<Formats, Failure> {
        Ok(Formats::new(self.weights(program), &self.kv, &self.state)?)
    }

    /// The sequences that are unlike the others.
    pub(in crate::cli) fn also(&self) -> Result<Vec<Sequences>, Failure> {
        let parse = |text: &String| -> Result<Sequences, Failure> {
            let parts: Vec<u64> = text.split(':').map(count).collect::<Result<_, _>>().unwrap_or_default();
            let [count, rows, ctx] = parts[..] else {
                return Err(Failure::refused(format!("--also {text}: write COUNT:ROWS:CTX")));
            };
            Ok(Sequences { count, rows, ctx })
        };
        self.also.iter().map(parse).collect()
    }

    /// The load; `draft`: every row reads logits out.
    pub(in crate::cli) fn load(&self, draft: bool) -> Result<Load, Failure> {
        let mut groups = vec![Sequences { count: self.sequences, rows: self.rows, ctx: self.ctx }];
        groups.extend(self.also()?);
        Ok(Load::new(groups, if draft { Logits::All } else { Logits::Last }, self.skew)?)
    }
}
