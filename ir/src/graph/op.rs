//! `Op`: what a node of a step graph does: a primitive that knows no unit, or a block that rules made of primitives.

use super::{Block, Prim};
use crate::spec::View;
use std::sync::Arc;

/// A held tensor: its name in the program, and where its values lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Name in the program's tensor table.
    pub name: String,
    /// Where its values come from.
    pub view: Arc<View>,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A primitive.
    Prim(Prim),
    /// A block.
    Block(Block),
}

impl Op {
    /// Name, for errors and graph text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Prim(prim) => prim.name(),
            Op::Block(block) => block.name(),
        }
    }
}
