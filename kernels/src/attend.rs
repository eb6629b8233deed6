//! The attention unit.
