//! One model over several machines: a program cut into stages, and hidden rows that go from stage to stage.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | which device holds which layers: pure, computed by every device and compared |
//! | [`wire`] | the messages as bytes: pure |
//! | [`session`] | who says what when, as state machines without input or output |
//! | [`worker`] | the engine of one stage, and the ring's sequences on it |
//! | [`demand`] | what a model asks of devices |
//! | [`forecast`] | how fast 1 to N devices would be: pure, by the twin |
//! | [`drive`] | sessions on links, clock and engine |
//! | [`record`] | the flight recorder and its replay |
//! | [`rhythm`] | when the next hop is due |
//! | [`link`] | messages between devices, over QUIC |
//! | [`load`] | stages from assignments |
//! | [`audit`] | hops replayed, and blame |
//! | [`capacity`] | what a device can do, measured |

pub mod audit;
pub mod capacity;
pub mod demand;
pub mod drive;
pub mod forecast;
pub mod link;
pub mod load;
pub mod plan;
pub mod record;
pub mod rhythm;
pub mod session;
pub mod wire;
pub mod worker;
