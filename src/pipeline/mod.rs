//! One model over several machines: a program cut into stages, and hidden rows that go from stage to stage.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | which device holds which layers: pure, computed by every device and compared |
//! | [`wire`] | the messages as bytes: pure |

pub mod plan;
pub mod wire;
