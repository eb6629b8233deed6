//! CPU forms of the conv unit.
