//! The one integration binary: suites over whole checkpoints and over the program as people call it.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod accuracy;
mod arrows;
mod bad_input;
mod bits;
mod checkpoint;
mod cli;
mod commands;
mod docs;
mod goldens;
mod hub;
mod isa_doc;
mod large;
mod links;
mod lowering;
mod oracle;
mod ring;
mod run_hashes;
mod stages;
mod support;
mod twin;
