//! The steps of a function, one operation each, as the recorder saw them.
//!
//! The recorder is an [`Ops`] whose values are numbers of steps. Running a function on it once gives the whole function
//! as a straight line of code: what a shader is printed from and what a cost is counted from.

use super::Function;
use super::ops::{Ops, Scalar};
use std::cell::RefCell;
use std::fmt;

/// Number of an earlier step, whose value is meant.
pub type Value = u16;

/// One operation. Floats, integers and masks are numbered together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The argument.
    Input,
    /// A float constant, by bits.
    Num(u32),
    /// An integer constant.
    Int(i32),
    /// r(a + b).
    Add(Value, Value),
    /// r(a - b).
    Sub(Value, Value),
    /// r(a * b).
    Mul(Value, Value),
    /// r(x).
    Flush(Value),
    /// Bits of a float.
    Bits(Value),
    /// Float of some bits.
    Float(Value),
    /// Wrapping sum.
    IAdd(Value, Value),
    /// Wrapping difference.
    ISub(Value, Value),
    /// Bitwise and.
    And(Value, Value),
    /// Bitwise or.
    Or(Value, Value),
    /// Bitwise exclusive or.
    Xor(Value, Value),
    /// Left shift by a constant.
    Shl(Value, i32),
    /// Logical right shift by a constant.
    Shr(Value, i32),
    /// Float compare.
    Lt(Value, Value),
    /// Signed compare.
    ILt(Value, Value),
    /// Mask, value where true, value where false.
    Select(Value, Value, Value),
}

/// How many operations of each kind a function takes on one element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Float sums and differences.
    pub add: usize,
    /// Float products.
    pub mul: usize,
    /// Integer and bit operations, the flush of the argument among them.
    pub int: usize,
    /// Compares and selects.
    pub select: usize,
}

/// A function as a straight line of steps; the last is its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Tape {
    steps: Vec<Step>,
    /// Of each step: it was made by [`Ops::within`], where `r` changes no bit of the function.
    within: Vec<bool>,
}

impl Tape {
    /// The steps of a function.
    #[must_use]
    pub fn of(function: Function) -> Tape {
        let recorder = Recorder::default();
        let input = recorder.push(Step::Input);
        let last = function.on(Pen { to: &recorder, within: false }, input);
        live(&recorder.steps.into_inner(), last)
    }

    /// The steps in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// True for a step whose `r` a form may leave out: see [`Ops::within`].
    #[must_use]
    pub fn within(&self, step: usize) -> bool {
        self.within.get(step).copied().unwrap_or(false)
    }

    /// Operations by kind.
    #[must_use]
    pub fn operations(&self) -> Operations {
        let mut count = Operations::default();
        for step in &self.steps {
            match step {
                Step::Input | Step::Num(_) | Step::Int(_) | Step::Bits(_) | Step::Float(_) => {}
                Step::Add(..) | Step::Sub(..) => count.add += 1,
                Step::Mul(..) => count.mul += 1,
                Step::Lt(..) | Step::ILt(..) | Step::Select(..) => count.select += 1,
                _ => count.int += 1,
            }
        }
        count
    }

    /// Runs the steps on a scalar.
    #[must_use]
    pub fn eval(&self, x: f32) -> f32 {
        let o = Scalar;
        let mut values: Vec<u32> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let f = |v: Value| f32::from_bits(values[usize::from(v)]);
            let i = |v: Value| values[usize::from(v)] as i32;
            let value = match *step {
                Step::Input => x.to_bits(),
                Step::Num(bits) => bits,
                Step::Int(value) => value as u32,
                Step::Add(a, b) => o.add(f(a), f(b)).to_bits(),
                Step::Sub(a, b) => o.sub(f(a), f(b)).to_bits(),
                Step::Mul(a, b) => o.mul(f(a), f(b)).to_bits(),
                Step::Flush(a) => o.flush(f(a)).to_bits(),
                Step::Bits(a) | Step::Float(a) => i(a) as u32,
                Step::IAdd(a, b) => o.iadd(i(a), i(b)) as u32,
                Step::ISub(a, b) => o.isub(i(a), i(b)) as u32,
                Step::And(a, b) => o.and(i(a), i(b)) as u32,
                Step::Or(a, b) => o.or(i(a), i(b)) as u32,
                Step::Xor(a, b) => o.xor(i(a), i(b)) as u32,
                Step::Shl(a, n) => (i(a) as u32) << n,
                Step::Shr(a, n) => (i(a) as u32) >> n,
                Step::Lt(a, b) => u32::from(f(a) < f(b)),
                Step::ILt(a, b) => u32::from(i(a) < i(b)),
                Step::Select(m, yes, no) => {
                    if i(m) != 0 {
                        i(yes) as u32
                    } else {
                        i(no) as u32
                    }
                }
            };
            values.push(value);
        }
        values.last().copied().map_or(0.0, f32::from_bits)
    }
}

/// The steps that `last` depends on, renumbered. A function that shares a piece may not need all that the piece gives.
fn live(recorded: &[(Step, bool)], last: Value) -> Tape {
    let steps: Vec<Step> = recorded.iter().map(|(step, _)| *step).collect();
    let mut needed = vec![false; steps.len()];
    needed[usize::from(last)] = true;
    for at in (0..steps.len()).rev().filter(|at| *at <= usize::from(last)) {
        if needed[at] {
            let _ = steps[at].map_reads(|v| {
                needed[usize::from(v)] = true;
                v
            });
        }
    }
    let mut number = vec![0; steps.len()];
    let (mut kept, mut within) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate().filter(|(at, _)| needed[*at]) {
        number[at] = kept.len() as Value;
        kept.push(step.map_reads(|v| number[usize::from(v)]));
        within.push(recorded[at].1);
    }
    Tape { steps: kept, within }
}

impl Step {
    /// The same operation on other values.
    #[must_use]
    pub fn map_reads(self, mut to: impl FnMut(Value) -> Value) -> Step {
        match self {
            Step::Input | Step::Num(_) | Step::Int(_) => self,
            Step::Add(a, b) => Step::Add(to(a), to(b)),
            Step::Sub(a, b) => Step::Sub(to(a), to(b)),
            Step::Mul(a, b) => Step::Mul(to(a), to(b)),
            Step::Flush(a) => Step::Flush(to(a)),
            Step::Bits(a) => Step::Bits(to(a)),
            Step::Float(a) => Step::Float(to(a)),
            Step::IAdd(a, b) => Step::IAdd(to(a), to(b)),
            Step::ISub(a, b) => Step::ISub(to(a), to(b)),
            Step::And(a, b) => Step::And(to(a), to(b)),
            Step::Or(a, b) => Step::Or(to(a), to(b)),
            Step::Xor(a, b) => Step::Xor(to(a), to(b)),
            Step::Shl(a, n) => Step::Shl(to(a), n),
            Step::Shr(a, n) => Step::Shr(to(a), n),
            Step::Lt(a, b) => Step::Lt(to(a), to(b)),
            Step::ILt(a, b) => Step::ILt(to(a), to(b)),
            Step::Select(m, yes, no) => Step::Select(to(m), to(yes), to(no)),
        }
    }
}

impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "  %{at} = ")?;
            match *step {
                Step::Input => write!(f, "input"),
                Step::Num(bits) => write!(f, "num {:?}", f32::from_bits(bits)),
                Step::Int(value) => write!(f, "int {value:#x}"),
                Step::Add(a, b) => write!(f, "add %{a} %{b}"),
                Step::Sub(a, b) => write!(f, "sub %{a} %{b}"),
                Step::Mul(a, b) => write!(f, "mul %{a} %{b}"),
                Step::Flush(a) => write!(f, "flush %{a}"),
                Step::Bits(a) => write!(f, "bits %{a}"),
                Step::Float(a) => write!(f, "float %{a}"),
                Step::IAdd(a, b) => write!(f, "iadd %{a} %{b}"),
                Step::ISub(a, b) => write!(f, "isub %{a} %{b}"),
                Step::And(a, b) => write!(f, "and %{a} %{b}"),
                Step::Or(a, b) => write!(f, "or %{a} %{b}"),
                Step::Xor(a, b) => write!(f, "xor %{a} %{b}"),
                Step::Shl(a, n) => write!(f, "shl %{a} {n}"),
                Step::Shr(a, n) => write!(f, "shr %{a} {n}"),
                Step::Lt(a, b) => write!(f, "lt %{a} %{b}"),
                Step::ILt(a, b) => write!(f, "ilt %{a} %{b}"),
                Step::Select(m, yes, no) => write!(f, "select %{m} %{yes} %{no}"),
            }?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Recorder {
    /// Each with whether all that asked for it were inside a function.
    steps: RefCell<Vec<(Step, bool)>>,
}

impl Recorder {
    fn push(&self, step: Step) -> Value {
        Pen { to: self, within: false }.push(step)
    }
}

/// A recorder at work outside or inside a function.
#[derive(Clone, Copy)]
struct Pen<'a> {
    to: &'a Recorder,
    within: bool,
}

impl Pen<'_> {
    /// The number of a step with this operation: an equal earlier one, or a new one.
    fn push(self, step: Step) -> Value {
        let mut steps = self.to.steps.borrow_mut();
        let at = steps.iter().position(|(s, _)| *s == step).unwrap_or_else(|| {
            steps.push((step, true));
            steps.len() - 1
        });
        steps[at].1 &= self.within;
        Value::try_from(at).unwrap_or(Value::MAX)
    }
}

impl Ops for Pen<'_> {
    type F = Value;
    type I = Value;
    type M = Value;
    type Within = Self;

    fn within(self) -> Self {
        Self { within: true, ..self }
    }
    fn num(self, value: f32) -> Value {
        self.push(Step::Num(value.to_bits()))
    }
    fn int(self, value: i32) -> Value {
        self.push(Step::Int(value))
    }
    fn add(self, a: Value, b: Value) -> Value {
        self.push(Step::Add(a, b))
    }
    fn sub(self, a: Value, b: Value) -> Value {
        self.push(Step::Sub(a, b))
    }
    fn mul(self, a: Value, b: Value) -> Value {
        self.push(Step::Mul(a, b))
    }
    fn flush(self, x: Value) -> Value {
        self.push(Step::Flush(x))
    }
    fn bits(self, x: Value) -> Value {
        self.push(Step::Bits(x))
    }
    fn float(self, x: Value) -> Value {
        self.push(Step::Float(x))
    }
    fn iadd(self, a: Value, b: Value) -> Value {
        self.push(Step::IAdd(a, b))
    }
    fn isub(self, a: Value, b: Value) -> Value {
        self.push(Step::ISub(a, b))
    }
    fn and(self, a: Value, b: Value) -> Value {
        self.push(Step::And(a, b))
    }
    fn or(self, a: Value, b: Value) -> Value {
        self.push(Step::Or(a, b))
    }
    fn xor(self, a: Value, b: Value) -> Value {
        self.push(Step::Xor(a, b))
    }
    fn shl<const N: i32>(self, x: Value) -> Value {
        self.push(Step::Shl(x, N))
    }
    fn shr<const N: i32>(self, x: Value) -> Value {
        self.push(Step::Shr(x, N))
    }
    fn lt(self, a: Value, b: Value) -> Value {
        self.push(Step::Lt(a, b))
    }
    fn ilt(self, a: Value, b: Value) -> Value {
        self.push(Step::ILt(a, b))
    }
    fn select(self, mask: Value, yes: Value, no: Value) -> Value {
        self.push(Step::Select(mask, yes, no))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_computes_the_function_bit_for_bit() {
        for &function in Function::ALL {
            let tape = Tape::of(function);
            let mut bits = 1u32;
            for _ in 0..20_000 {
                bits = bits.wrapping_mul(0x915f_77f5).wrapping_add(0x3c6e_f372);
                let x = f32::from_bits(bits);
                assert_eq!(tape.eval(x).to_bits(), function.eval(x).to_bits(), "{} at {x:e}", function.name());
            }
        }
    }

    #[test]
    fn every_step_reads_earlier_ones_and_is_read() {
        for &function in Function::ALL {
            let tape = Tape::of(function);
            let text = tape.to_string();
            for (at, line) in text.lines().enumerate() {
                for word in line.split(" = ").nth(1).unwrap().split_whitespace().filter_map(|w| w.strip_prefix('%')) {
                    assert!(word.parse::<usize>().unwrap() < at, "{}: {line}", function.name());
                }
                let name = format!("%{at}");
                let used = text.lines().skip(at + 1).any(|l| l.split_whitespace().skip(2).any(|w| w == name));
                assert!(used || at + 1 == tape.steps().len(), "{}: dead step {line}", function.name());
            }
        }
    }

    #[test]
    fn relu_is_counted_by_hand() {
        // flush; 0 < x, select; is the size of x above infinity: and, ilt, select.
        assert_eq!(Tape::of(Function::Relu).operations(), Operations { add: 0, mul: 0, int: 2, select: 4 });
    }
}
