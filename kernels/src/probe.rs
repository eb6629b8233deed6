//! The kernel probe.
