//! The array unit.
