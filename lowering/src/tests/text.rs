//! Text of authored steps and of fused graphs, one layer of each kind.

use crate::testing::{families, llama, oddities, qwen3_next};
use crate::{Shim, author, fuse, lift};

#[test]
fn authored_steps_read_at_a_glance() {
    for mut spec in [llama(), oddities(), qwen3_next()] {
        spec.layers.truncate(if spec.family == "oddities" { 3 } else { 1 });
        let step = author(&spec, 16).expect("authored");
        insta::assert_snapshot!(format!("authored_{}", spec.family), step.to_string());
    }
}

#[test]
fn fused_graphs_read_at_a_glance() {
    for spec in families() {
        let mut graph = lift(&author(&spec, 16).expect("authored")).expect("lifts");
        fuse(&mut graph, &Shim::engine());
        insta::assert_snapshot!(format!("fused_{}", spec.family), graph.to_string());
    }
}
