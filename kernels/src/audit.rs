//! Live-shape audit.
