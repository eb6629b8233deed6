//! CPU forms of the delta unit.
