//! Tests of the room.

mod counts;
mod hostile;
mod machines;
mod properties;
mod published;
mod ring;
mod specs;
mod tools;
