//! Measuring a model: against golden values, against text, against the memory it streams from.

pub mod accuracy;
pub mod array_rate;
pub mod backends;
pub mod bandwidth;
#[cfg(feature = "gpu")]
pub mod device_limits;
pub mod distance;
pub mod follow;
pub mod golden;
pub mod limit;
pub mod run_hash;
pub mod speed;
pub mod verify;
