//! The text that every shader of the float units begins with: the step's words, `r`, the rounding barrier, functions.
//!
//! A shader compiler may contract, reassociate and fold float operations; it may not see through an exclusive or with a
//! zero that arrives at run time. Every sum and product therefore passes `b` (the barrier) or `r` (the flush, which holds
//! the barrier too), and what the device computes is what was written.

use crate::flush::{EXPONENT, MIN_FIELD};
use crate::math::Function;
use crate::math::record::{Step, Tape};
use std::fmt::Write as _;

/// No command of the step has failed.
pub const NO_FAULT: u32 = u32::MAX;
/// Bytes before the rows in the step's words.
pub const STEP_HEADER: usize = 16;
/// Bytes of a row in the step's words.
pub const STEP_ROW: usize = 32;

/// The step's words, at binding 0 of every shader of a step: what changes from step to step.
///
/// `fault` is the index of the first command that failed; once it is set, the commands after it write nothing, so that
/// what the command read is still there to be looked at. A kernel that computes a command and quantises its results for a
/// later one begins for the later: a workgroup may have found that one at fault before another begins, whose results are
/// what it reads too.
const STEP: &str = "
struct Row { token: u32, position: u32, state: u32, next: u32, first: u32, source: u32, kept: u32, spare: u32 }
struct Step { fault: atomic<u32>, zero: u32, rows: u32, spare: u32, row: array<Row> }
@group(0) @binding(0) var<storage, read_write> step: Step;
const NONE: u32 = 0xffffffffu;
var<private> zero: u32;
fn begin() -> bool { zero = step.zero; return atomicLoad(&step.fault) == NONE; }
fn begin_for(command: u32) -> bool { zero = step.zero; return atomicLoad(&step.fault) >= command; }
fn fail(command: u32) { atomicMin(&step.fault, command); }
";

/// A row of a step as the shaders read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRowWords {
    /// Position in its sequence.
    pub position: u32,
    /// Place of its sequence's state.
    pub state: u32,
    /// The sequence's next row in the step; none: `u32::MAX`.
    pub next: u32,
    /// The row is its sequence's first in the step.
    pub first: bool,
    /// Of the rows that are kept for the tail: the row that the `i`-th of them was.
    pub source: u32,
}

/// The step's words for these rows. `zero` is what the barrier takes; it is 0.
#[must_use]
pub fn step_words(rows: &[StepRowWords]) -> Vec<u32> {
    let mut words = vec![NO_FAULT, 0, rows.len() as u32, 0];
    for row in rows {
        words.extend([0, row.position, row.state, row.next, row.first.into(), row.source, 0, 0]);
    }
    words
}

/// The step's words, `b`, `apart`, `r`, and the functions given, each `f_name(x)`.
///
/// `apart` is a barrier for what meets `b`: a compiler knows that two exclusive ors with one value are none, and where a sum
/// begins with zero it leaves that addition out, which would bring them together.
#[must_use]
pub fn prelude(functions: &[Function]) -> String {
    let mut text = STEP.to_owned();
    let (mask, least) = (EXPONENT, MIN_FIELD << 23);
    let _ = write!(
        text,
        "fn b(x: f32) -> f32 {{ return bitcast<f32>(bitcast<u32>(x) ^ zero); }}\n\
         fn apart(x: f32) -> f32 {{ return bitcast<f32>(bitcast<u32>(x) + zero); }}\n\
         fn r(x: f32) -> f32 {{\n\
         \x20 let u = bitcast<u32>(x) ^ zero;\n\
         \x20 return bitcast<f32>(select(u, 0u, (u & {mask:#x}u) < {least:#x}u));\n\
         }}\n"
    );
    let mut done: Vec<Function> = Vec::new();
    for &f in functions {
        if !done.contains(&f) {
            done.push(f);
            text += &function(f);
        }
    }
    text
}

/// A function as WGSL, from its tape: the same steps in the same order. Inside the function `r` is left out where the
/// tape says that it changes no bit; the barrier never is.
#[must_use]
pub fn function(function: Function) -> String {
    let tape = Tape::of(function);
    let mut text = format!("fn f_{}(x: f32) -> f32 {{\n", function.name());
    let is_int = |v: u16| matches!(tape.steps()[usize::from(v)], Step::Int(_));
    for (at, step) in tape.steps().iter().enumerate() {
        let round = if tape.within(at) { "b" } else { "r" };
        let value = match *step {
            Step::Input => "x".to_owned(),
            Step::Num(bits) => format!("bitcast<f32>({bits:#x}u)"),
            Step::Int(value) => format!("{:#x}u", value as u32),
            Step::Add(a, b) => format!("{round}(v{a} + v{b})"),
            Step::Sub(a, b) => format!("{round}(v{a} - v{b})"),
            Step::Mul(a, b) => format!("{round}(v{a} * v{b})"),
            Step::Flush(a) => format!("r(v{a})"),
            Step::Bits(a) => format!("bitcast<u32>(v{a})"),
            // An infinity or a NaN must not become a constant: WGSL has neither.
            Step::Float(a) if is_int(a) => format!("bitcast<f32>(v{a} ^ zero)"),
            Step::Float(a) => format!("bitcast<f32>(v{a})"),
            Step::IAdd(a, b) => format!("v{a} + v{b}"),
            Step::ISub(a, b) => format!("v{a} - v{b}"),
            Step::And(a, b) => format!("v{a} & v{b}"),
            Step::Or(a, b) => format!("v{a} | v{b}"),
            Step::Xor(a, b) => format!("v{a} ^ v{b}"),
            Step::Shl(a, n) => format!("v{a} << {n}u"),
            Step::Shr(a, n) => format!("v{a} >> {n}u"),
            Step::Lt(a, b) => format!("v{a} < v{b}"),
            Step::ILt(a, b) => format!("bitcast<i32>(v{a}) < bitcast<i32>(v{b})"),
            Step::Select(m, yes, no) => format!("select(v{no}, v{yes}, v{m})"),
        };
        let _ = writeln!(text, "  let v{at} = {value};");
    }
    let _ = writeln!(text, "  return v{};\n}}", tape.steps().len() - 1);
    text
}
