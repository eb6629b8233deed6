//! Tests of the whole path.

mod mutation;
mod oracle;
mod random;
mod refusals;
mod rules;
mod size;
mod split;
mod text;
