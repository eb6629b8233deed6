//! Text of an authored step: one operation a line, in the order in which it was written.

use super::{Authored, Step};
use std::fmt;
use wordline_ir::graph::Op;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step over {} positions", self.ctx)?;
        for op in &self.ops {
            writeln!(f, "{op}")?;
        }
        writeln!(f, "result %{}", self.result.0)
    }
}

impl fmt::Display for Authored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{} = {}", self.value.0, Op::Prim(self.prim.clone()))?;
        for (port, input) in self.inputs.iter().enumerate() {
            write!(f, "{}%{}", if port == 0 { " " } else { ", " }, input.0)?;
        }
        write!(f, "  # {}", self.name)
    }
}
