//! The pure parts of the pipeline, compiled by themselves.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "a target uses a part of what is compiled")]

#[path = "../../src/pipeline/plan/mod.rs"]
pub mod plan;
#[path = "../../src/pipeline/wire/mod.rs"]
pub mod wire;
