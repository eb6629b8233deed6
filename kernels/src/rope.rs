//! Rotary rows.
