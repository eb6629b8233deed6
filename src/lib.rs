//! Wordline: a compiler, bit-exact engine and cycle model for LLM decode hardware.
pub mod checkpoint;
pub mod generate;
pub mod tokenizer;
