//! The pure parts of the pipeline, compiled by themselves.
#![allow(dead_code, reason = "a target uses a part of what is compiled")]

#[path = "../../src/pipeline/plan.rs"]
pub mod plan;
#[path = "../../src/pipeline/wire/mod.rs"]
pub mod wire;
