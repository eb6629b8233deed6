//! Tests of the room.

mod counts;
mod machines;
mod properties;
mod published;
mod specs;
mod tools;
