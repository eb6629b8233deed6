//! The command line: one file a subcommand.
//!
//! Results go to standard output, remarks to standard error. Exit codes: 0 fine, 1 the check failed, 2 an input was
//! refused, 3 a fault of the program, 130 ended by Ctrl-C. Reports as JSON are described in docs/json.md.

mod accuracy;
mod args;
mod asm;
mod bench;
mod cache;
mod diff;
mod disasm;
pub mod failure;
mod fetch;
mod head;
mod hub;
mod inspect;
mod interrupt;
mod isa;
mod lower;
mod out;
mod plan;
mod program_file;
mod replay;
mod ring;
mod run;
mod stage;
mod sweep;
mod twin;
mod units;
mod verify;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// A compiler, bit-exact engine and cycle model for LLM decode hardware.
#[derive(Debug, Parser)]
#[command(name = "wordline", version, max_term_width = 110)]
#[command(after_help = "MODEL is a directory that holds config.json and safetensors files, `demo`, a small story \
                        writer inside the program, or owner/name[@revision] on the Hugging Face Hub.\nExit codes: 0 fine, 1 the check failed, 2 input refused, 3 \
                        internal fault, 130 ended by Ctrl-C.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a checkpoint is: its facts, by evidence of its weights
    Inspect(inspect::Args),
    /// Bring a model on the Hub, or some of its layers, into the cache
    Fetch(fetch::Args),
    /// List, verify or remove what is cached
    Cache(cache::Args),
    /// Lower a model's decode step to a program of words
    Lower(lower::Args),
    /// Assemble program text into a program file
    Asm(asm::Args),
    /// Print a program file as text
    Disasm(disasm::Args),
    /// Print the reference of the command words
    Isa(isa::Args),
    /// Compare two programs, or a model's lowering with the oracle, command for command
    Diff(diff::Args),
    /// Write text with a model
    Run(run::Args),
    /// Hold a model to golden values of the reference framework
    Verify(verify::Args),
    /// Measure perplexity on a text, and the int8 engine's distance from the reference
    Accuracy(accuracy::Args),
    /// Check the units of this device
    Units(units::Args),
    /// Say which device would hold which layers, and how fast that would be
    Plan(plan::Args),
    /// Lead one model over several machines
    Head(Box<head::Args>),
    /// Take part in a head's run with a slice of the model
    Stage(Box<stage::Args>),
    /// Run a flight record again on this machine and compare every hop
    Replay(replay::Args),
    /// Measure decode speed against the memory's bandwidth
    Bench(bench::Args),
    /// Price a step on a described machine; trace, compare, calibrate, validate prices
    Twin(Box<twin::Args>),
    /// Price a step at every point of a grid of machines and loads
    Sweep(Box<sweep::Args>),
}

/// Run the program on this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    // A panic is a fault of ours, and says so, with its place, in one line and a hint.
    std::panic::set_hook(Box::new(|panic| {
        if crate::quiet::is_quiet() {
            return;
        }
        let place = panic.location().map(|l| format!("{}:{}: ", l.file(), l.line())).unwrap_or_default();
        let payload = panic.payload();
        let text =
            payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let what = text.unwrap_or("a panic without a message");
        out::note(format_args!("internal fault: {}", Failure::fault(format!("{place}{what}"))));
    }));
    guarded(|| dispatch(command))
}

/// The exit code of a piece of work, also of one that panics.
fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    // What the work held is dropped with it: nothing that a panic left half done is looked at again.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => report(&failure),
        Err(_) => ExitCode::from(failure::Exit::Fault as u8),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Inspect(args) => inspect::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Lower(args) => lower::run(&args),
        Command::Asm(args) => asm::run(&args),
        Command::Disasm(args) => disasm::run(&args),
        Command::Isa(args) => isa::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Accuracy(args) => accuracy::run(&args),
        Command::Units(args) => units::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Head(args) => head::run(&args),
        Command::Stage(args) => stage::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Twin(args) => twin::run(&args),
        Command::Sweep(args) => sweep::run(&args),
    }
}

fn report(failure: &Failure) -> ExitCode {
    if failure.closed {
        return ExitCode::SUCCESS;
    }
    if !failure.what.is_empty() {
        out::note(format_args!("error: {failure}"));
    }
    ExitCode::from(failure.exit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    type Work = fn() -> Result<(), Failure>;

    #[test]
    fn every_ending_has_its_exit_code() {
        let endings: [(Work, u8); 7] = [
            (|| Ok(()), 0),
            (|| Err(Failure::check()), 1),
            (|| Err(Failure::refused("no such model")), 2),
            (|| Err(Failure::fault("a promise of ours was broken")), 3),
            (|| panic!("this test panics here on purpose"), 3),
            (|| Err(Failure::interrupted()), 130),
            (|| Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()), 0),
        ];
        for (number, (work, code)) in endings.into_iter().enumerate() {
            assert_eq!(guarded(work), ExitCode::from(code), "ending {number}");
        }
    }
}
