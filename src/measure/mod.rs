//! Measuring a model: against golden values, against text, against the memory it streams from.

pub mod distance;
pub mod golden;
