//! Tests of the crate, over programs written by hand: nothing here depends on how a program is lowered.

mod diff;
mod digest;
mod faults;
mod file;
mod fuzz;
mod golden;
mod isa;
mod machine;
mod mutate;
mod samples;
mod shapes;
mod text;
mod verify;
mod word;
