//! The one integration binary: suites over whole checkpoints and over the program as people call it.

mod checkpoint;
mod goldens;
mod lowering;
mod support;
