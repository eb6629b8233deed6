//! tests
mod checkpoint;
