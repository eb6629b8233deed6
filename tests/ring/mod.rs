//! Rings of processes, as people start them: on loopback, over wires between namespaces, and over a network that delays, drops,
//! reorders and doubles; what each says when something fails.
//!
//! Where the system allows it every process runs in a network namespace of its own making, with nothing in it but what the
//! test put there.

mod aside;
mod basic;
mod failures;
mod forward;
mod hub;
mod kit;
mod wires;
