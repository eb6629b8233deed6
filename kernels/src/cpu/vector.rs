//! CPU forms of the vector unit.
