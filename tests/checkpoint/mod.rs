//! Checkpoints: what is read, what is refused and by which name, and that every config key is accounted for.

mod config;
mod docs;
mod evidence;
mod given;
mod header;
mod identity;
mod mutation;
mod published;
mod shards;
mod support;
mod tokenizer;
mod view;
