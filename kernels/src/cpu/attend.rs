//! CPU forms of the attention unit.
