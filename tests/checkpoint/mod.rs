//! Checkpoints: what is read, what is refused and by which name, and that every config key is accounted for.
#![expect(clippy::unwrap_used, reason = "what a suite cannot read fails the suite")]

mod config;
mod docs;
mod evidence;
mod given;
mod header;
mod identity;
mod logits;
mod mutation;
mod mxfp4;
mod published;
mod shapes;
mod shards;
mod support;
mod tokenizer;
mod view;
