//! Tests of the room.

mod counts;
mod machines;
mod specs;
