//! The delta unit and its memory.
