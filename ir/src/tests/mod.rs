//! Tests of the crate, over programs written by hand: nothing here depends on how a program is lowered.

mod samples;
mod text;
mod verify;
mod word;
