//! Checkpoints: what is read, what is refused, and that every config key is accounted for.

mod given;
