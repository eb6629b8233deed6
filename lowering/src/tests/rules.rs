//! Each rule on a fragment that it fires on: the graph as the rules above it left it, and what it makes of it.

use crate::author::{Author, Step, Value};
use crate::fuse::{Rule, run};
use crate::rules::PHASES;
use crate::testing::{HIDDEN, VOCAB, attention, biased, delta, linear, mlp, moe, rms, rope};
use crate::{Shim, fuse, lift, lower_graph};
use wordline_ir::graph::{Binary, Part, Prim, Unary};
use wordline_ir::spec::{Activation, Attention, Norm, NormKind, Rope, View};
use wordline_ir::{ProgramError, StepGraph};

/// A step whose input vector is a row of a table.
fn fragment(path: &str, part: Part, build: impl FnOnce(&mut Author, Value) -> Value) -> Step {
    let mut author = Author::new(4);
    author.at("input", None, Part::Embed);
    let token = author.op("token", Prim::Token, &[]);
    let table = author.matrix("", &View::whole("input", &[VOCAB, HIDDEN]));
    let x = author.op("row", Prim::Rows, &[table, token]);
    author.at(path, Some(0), part);
    let result = build(&mut author, x);
    author.finish(result)
}

fn attention_of(change: impl FnOnce(&mut Attention)) -> Step {
    let mut a = attention("m", 4, 2, 6);
    change(&mut a);
    fragment("layers.0.attn", Part::Attn, |author, x| author.attention(&a, 64, x))
}

fn delta_step() -> Step {
    fragment("layers.0.delta", Part::Delta, |author, x| author.delta(&delta("m", 2, 4, 3, 2), x))
}

fn moe_step() -> Step {
    fragment("layers.0.moe", Part::Moe, |author, x| author.moe("layers.0", 0, &moe("m", 4, 2, false), HIDDEN, x))
}

fn activated(kind: Activation) -> Step {
    fragment("layers.0.mlp", Part::Mlp, |author, x| author.activation("up", kind, x))
}

fn turned(change: impl FnOnce(&mut Rope)) -> Step {
    let mut rope = rope(6);
    change(&mut rope);
    fragment("layers.0.attn", Part::Attn, |author, x| {
        let heads = author.reshape("q.heads", &[4, 6], x);
        author.rotated("q", [4, 6], &rope, heads)
    })
}

/// The fragment that shows a rule.
fn shown_on(rule: &str) -> Step {
    let ln = Norm { kind: NormKind::Ln, bias: Some(View::whole("b", &[HIDDEN])), ..rms("w", HIDDEN, 1e-5) };
    match rule {
        "layer_norm" => fragment("norm", Part::FinalNorm, |a, x| a.norm("", &ln, x, 0)),
        "rms_norm" => fragment("norm", Part::FinalNorm, |a, x| a.norm("", &rms("w", HIDDEN, 1e-6), x, 0)),
        "l2" => fragment("layers.0.delta", Part::Delta, |a, x| a.l2("q", 1e-6, x, 0)),
        "silu" => activated(Activation::Silu),
        "gelu_erf" => activated(Activation::GeluErf),
        "gelu_tanh" => activated(Activation::GeluTanh),
        "relu" | "act" => activated(Activation::Relu),
        "soft_cap" => fragment("head", Part::Head, |a, x| a.soft_cap("logits", 30.0, x)),
        "softmax" => fragment("layers.0.moe", Part::Moe, |a, x| a.softmax("router", x, 0)),
        "rotate_halves" => turned(|_| {}),
        "rotate_pairs" => turned(|rope| rope.interleaved = true),
        "rotate_part" => turned(|rope| rope.rot = 4),
        "attend" => attention_of(|a| (a.soft_cap, a.window) = (Some(50.0), Some(8))),
        "rope" => attention_of(|_| {}),
        "scale_q" => attention_of(|a| a.rope = None),
        "head_norm" => attention_of(|a| {
            (a.q_norm, a.k_norm) = (Some(rms("m.q_norm", 6, 1e-6)), Some(rms("m.k_norm", 6, 1e-6)));
        }),
        "pack_of_linears" => attention_of(|a| {
            (a.q, a.k, a.v) = (biased("m.q", 24, HIDDEN), biased("m.k", 12, HIDDEN), biased("m.v", 12, HIDDEN));
        }),
        "conv" | "delta" | "l2_norm" | "delta_gate" | "gated_norm" | "pack_of_slices" => delta_step(),
        "top_k" | "routed_spread" | "routed_gather" => moe_step(),
        "gated_act" => {
            let gated = mlp("m", 8, Activation::Silu, true);
            fragment("layers.0.mlp", Part::Mlp, |a, x| a.mlp(&gated, x))
        }
        "gate" => fragment("layers.0.attn", Part::Attn, |a, x| {
            let gate = a.linear("gate", &linear("g", HIDDEN, HIDDEN), x);
            let open = a.unary("gate.sigmoid", Unary::Sigmoid, gate);
            a.binary("context.gated", Binary::Mul, x, open)
        }),
        "linear" => fragment("layers.0.attn", Part::Attn, |a, x| {
            let y = a.linear("q", &linear("m.q", 8, HIDDEN), x);
            a.linear("o", &biased("m.o", HIDDEN, 8), y)
        }),
        "embed" => embedding(),
        "logit_scale" => fragment("head", Part::Head, |a, x| {
            let logits = a.linear("", &linear("head", VOCAB, HIDDEN), x);
            a.scaled("scaled", 0.25, logits)
        }),
        "residual" => fragment("layers.0.attn", Part::Attn, |a, x| {
            let y = a.linear("o", &linear("m.o", HIDDEN, HIDDEN), x);
            a.binary("sum", Binary::Add, x, y)
        }),
        other => panic!("no fragment shows rule '{other}'; add one"),
    }
}

fn embedding() -> Step {
    let mut author = Author::new(4);
    let spec = wordline_ir::Spec {
        embed_scale: 4.5,
        positions: Some(View::whole("wpe", &[256, HIDDEN])),
        ..crate::testing::llama()
    };
    let x = author.embed(&spec);
    author.finish(x)
}

/// A fragment's graph as the rules above `rule` leave it.
fn before(rule: &Rule) -> StepGraph {
    let mut graph = lift(&shown_on(rule.name)).unwrap_or_else(|e| panic!("{}: {e}", rule.name));
    for above in PHASES.iter().flat_map(|p| p.rules).take_while(|above| above.name != rule.name) {
        let nodes = graph.authored();
        run(&mut graph, above, &nodes);
    }
    graph
}

#[test]
fn every_rule_has_its_before_and_after() {
    for rule in PHASES.iter().flat_map(|phase| phase.rules) {
        let mut graph = before(rule);
        let text = graph.to_string();
        let nodes = graph.authored();
        assert!(run(&mut graph, rule, &nodes) > 0, "{} does not fire on its fragment", rule.name);
        let golden = format!("rule {}: {}\n\nbefore\n{text}\nafter\n{graph}", rule.name, rule.doc);
        insta::assert_snapshot!(format!("rule_{}", rule.name), golden);
    }
}

#[test]
fn a_second_pass_changes_nothing() {
    for spec in crate::testing::families() {
        let mut graph = lift(&crate::author(&spec, 16).expect("authored")).expect("lifts");
        fuse(&mut graph, &Shim::engine());
        let once = graph.to_string();
        assert_eq!(fuse(&mut graph, &Shim::engine()), vec![], "{}", spec.family);
        assert_eq!(graph.to_string(), once);
    }
}

#[test]
fn names_are_unique_and_found() {
    let names: Vec<&str> = PHASES.iter().flat_map(|p| p.rules).map(|r| r.name).collect();
    for (i, name) in names.iter().enumerate() {
        assert!(!names[..i].contains(name), "{name} stands twice");
        assert_eq!(crate::rules::rule(name).map(|r| r.name), Some(*name));
    }
    assert!(crate::rules::rule("no such rule").is_none());
}

#[test]
fn an_empty_table_is_refused_by_block_name() {
    for spec in crate::testing::families() {
        let mut graph = lift(&crate::author(&spec, 16).expect("authored")).expect("lifts");
        let lifted = graph.to_string();
        assert_eq!(fuse(&mut graph, &Shim::empty()), vec![]);
        assert_eq!(graph.to_string(), lifted);
        match lower_graph(&graph) {
            Err(ProgramError::Block { block, site, .. }) => {
                assert_eq!((block.as_str(), site.starts_with("embedding")), ("rows", true), "{}", spec.family);
            }
            other => panic!("{}: {other:?}", spec.family),
        }
    }
}

/// What each rule makes is missed by name when the rule is off.
#[test]
fn each_rule_switched_off_is_refused_by_what_it_left_behind_or_lowers_otherwise() {
    let mut lines = String::new();
    for rule in PHASES.iter().flat_map(|phase| phase.rules) {
        for spec in crate::testing::families() {
            let mut graph = lift(&crate::author(&spec, 16).expect("authored")).expect("lifts");
            let fired = fuse(&mut graph.clone(), &Shim::engine());
            if !fired.iter().any(|f| f.rule == rule.name) {
                continue;
            }
            fuse(&mut graph, &Shim::engine().without(rule.name));
            let result = match lower_graph(&graph) {
                Err(error) => error.to_string(),
                Ok(body) => format!("{} commands", body.commands.len()),
            };
            lines += &format!("{} off, {}: {result}\n", rule.name, spec.family);
            break;
        }
    }
    insta::assert_snapshot!("rules_off", lines);
}
