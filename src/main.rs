//! The `wordline` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    wordline::cli::main()
}
