//! CPU forms of the array unit.
