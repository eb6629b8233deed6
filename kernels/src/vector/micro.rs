//! What a micro-program is: its steps, its operands, its text and its cost.
//!
//! A micro-program runs over the `heads` of one token-row, each `width` elements long. A value is either one for each
//! element or one for each head. Steps on elements, one after the other, form a pass, which a reduction ends: the vector
//! unit goes over the head once a pass, and no element value outlives its pass.

use crate::math::Function;
use crate::math::record::Tape;
use std::fmt;

/// Number of an earlier step, whose value is meant.
pub type Value = u8;

/// Where the first of a head's elements lies, from the head's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// At 0.
    First,
    /// At 1.
    Odd,
    /// At `width`.
    Second,
}

/// Elements of an operand: `start + step * i` from the head's start, for each i below `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the operand.
    pub operand: u8,
    /// First element.
    pub start: Start,
    /// Distance between elements, 1 or 2.
    pub step: u8,
}

impl Place {
    /// Distance of element `i` from the head's start.
    #[must_use]
    pub const fn at(self, i: usize, width: usize) -> usize {
        let start = match self.start {
            Start::First => 0,
            Start::Odd => 1,
            Start::Second => width,
        };
        start + self.step as usize * i
    }
}

/// One step. Float operations are `r(op)` of [`crate::flush`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Elements of an operand.
    Load(Place),
    /// Writes elements; its value is what it wrote.
    Store(Place, Value),
    /// One value of an operand for each head.
    LoadHead(u8),
    /// Writes one value for each head; its value is what it wrote.
    StoreHead(u8, Value),
    /// A constant.
    Number(f32),
    /// A parameter of the command, by index.
    Param(u8),
    /// Sum.
    Add(Value, Value),
    /// Difference.
    Sub(Value, Value),
    /// Product.
    Mul(Value, Value),
    /// A function.
    Map(Function, Value),
    /// The activation that the command names.
    Act(Value),
    /// Sum over the head's elements: element i to lane (first lane + i) mod 32, ascending, then the tree 16, 8, 4, 2, 1.
    Sum(Value),
    /// The largest of the head's elements.
    Max(Value),
    /// A head's value for each of its elements.
    Spread(Value),
}

/// Whether a value is one for each element or one for each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One for each element.
    Element,
    /// One for each head.
    Head,
}

/// How a micro-program uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    In,
    /// Written, perhaps read back.
    Out,
    /// Read and written in place.
    Update,
}

/// An operand's name and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandInfo {
    /// Name.
    pub name: &'static str,
    /// Use.
    pub access: Access,
}

/// One micro-program of the table.
#[derive(Clone, Copy, Debug)]
pub struct Micro {
    /// Name: the command's mnemonic, then the variant.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Operands, in binding order.
    pub operands: &'static [OperandInfo],
    /// Names of the parameters, in binding order.
    pub params: &'static [&'static str],
    /// Names of the steps' values.
    pub values: &'static [&'static str],
    /// The steps.
    pub steps: &'static [Step],
    /// The pass that each step is part of, from 1 on; 0: none. See [`passes`].
    pub passes: [u8; MOST_STEPS],
}

/// Steps of the longest micro-program.
pub const MOST_STEPS: usize = 32;

/// The pass of each step: steps on elements, one after the other, and the reductions that end them. 0 for a step whose
/// operands and value are a head's.
#[must_use]
pub const fn passes(steps: &[Step]) -> [u8; MOST_STEPS] {
    let mut passes = [0; MOST_STEPS];
    let (mut number, mut at) = (0, 0);
    let (mut open, mut reduced) = (false, false);
    while at < steps.len() {
        let reduces = matches!(steps[at], Step::Sum(_) | Step::Max(_));
        if reduces || matches!(level(steps, at), Level::Element) {
            if !open || (reduced && !reduces) {
                number += 1;
            }
            passes[at] = number;
            (open, reduced) = (true, reduces);
        } else {
            (open, reduced) = (false, false);
        }
        at += 1;
    }
    passes
}

/// Whether the value of step `at` is one for each element or one for each head.
#[must_use]
pub const fn level(steps: &[Step], at: usize) -> Level {
    match steps[at] {
        Step::Load(_) | Step::Store(..) | Step::Spread(_) => Level::Element,
        Step::LoadHead(_) | Step::StoreHead(..) | Step::Number(_) | Step::Param(_) | Step::Sum(_) | Step::Max(_) => {
            Level::Head
        }
        Step::Add(a, _) | Step::Sub(a, _) | Step::Mul(a, _) | Step::Map(_, a) | Step::Act(a) => {
            level(steps, a as usize)
        }
    }
}

/// Operations of one run of a micro-program over a token-row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Elements loaded.
    pub load: usize,
    /// Elements stored.
    pub store: usize,
    /// Sums and differences outside functions and reductions.
    pub add: usize,
    /// Products outside functions.
    pub mul: usize,
    /// Elements that went into sums over a head.
    pub sum: usize,
    /// Elements that went into maxima over a head.
    pub max: usize,
    /// Trees that ended a reduction, 31 operations each.
    pub trees: usize,
    /// Values of each function, in order of first use.
    pub map: Vec<(Function, usize)>,
    /// Values of the command's activation.
    pub act: usize,
    /// Passes over a head's elements, all heads together.
    pub passes: usize,
}

impl Step {
    /// The values it reads.
    #[must_use]
    pub fn reads(self) -> Vec<Value> {
        match self {
            Step::Load(_) | Step::LoadHead(_) | Step::Number(_) | Step::Param(_) => vec![],
            Step::Store(_, a) | Step::StoreHead(_, a) | Step::Map(_, a) | Step::Act(a) => vec![a],
            Step::Sum(a) | Step::Max(a) | Step::Spread(a) => vec![a],
            Step::Add(a, b) | Step::Sub(a, b) | Step::Mul(a, b) => vec![a, b],
        }
    }
}

impl Micro {
    /// Operations of a run over this many heads of this width.
    #[must_use]
    pub fn count(&self, heads: usize, width: usize) -> Count {
        let passes = usize::from(self.passes.iter().copied().max().unwrap_or(0));
        let mut count = Count { passes: heads * passes, ..Count::default() };
        for (at, &step) in self.steps.iter().enumerate() {
            let times = match level(self.steps, at) {
                Level::Element => heads * width,
                Level::Head => heads,
            };
            match step {
                Step::Load(_) | Step::LoadHead(_) => count.load += times,
                Step::Store(..) | Step::StoreHead(..) => count.store += times,
                Step::Add(..) | Step::Sub(..) => count.add += times,
                Step::Mul(..) => count.mul += times,
                Step::Act(_) => count.act += times,
                Step::Sum(_) => (count.sum, count.trees) = (count.sum + heads * width, count.trees + heads),
                Step::Max(_) => (count.max, count.trees) = (count.max + heads * width, count.trees + heads),
                Step::Map(f, _) => match count.map.iter_mut().find(|(g, _)| *g == f) {
                    Some((_, n)) => *n += times,
                    None => count.map.push((f, times)),
                },
                Step::Number(_) | Step::Param(_) | Step::Spread(_) => {}
            }
        }
        count
    }

    fn place(&self, p: Place) -> String {
        let name = self.operands[usize::from(p.operand)].name;
        match (p.start, p.step) {
            (Start::First, 1) => format!("{name}[i]"),
            (Start::First, _) => format!("{name}[2i]"),
            (Start::Odd, _) => format!("{name}[2i+1]"),
            (Start::Second, _) => format!("{name}[width+i]"),
        }
    }
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |access: &[Access]| {
            let of: Vec<_> = self.operands.iter().filter(|o| access.contains(&o.access)).map(|o| o.name).collect();
            of.join(", ")
        };
        let inputs = names(&[Access::In, Access::Update]);
        let outputs = names(&[Access::Out, Access::Update]);
        writeln!(f, "{} ({inputs}) -> ({outputs}) [{}]", self.name, self.params.join(", "))?;
        writeln!(f, "    ; {}", self.doc)?;
        let value = |v: Value| self.values[usize::from(v)];
        for (at, (step, name)) in self.steps.iter().zip(self.values).enumerate() {
            let per = match level(self.steps, at) {
                Level::Element => "element",
                Level::Head => "head",
            };
            let text = match *step {
                Step::Load(p) => format!("load {}", self.place(p)),
                Step::Store(p, v) => format!("store {} {}", self.place(p), value(v)),
                Step::LoadHead(o) => format!("load {}[head]", self.operands[usize::from(o)].name),
                Step::StoreHead(o, v) => format!("store {}[head] {}", self.operands[usize::from(o)].name, value(v)),
                Step::Number(n) => format!("const {n:?}"),
                Step::Param(p) => format!("param {}", self.params[usize::from(p)]),
                Step::Add(a, b) => format!("add {} {}", value(a), value(b)),
                Step::Sub(a, b) => format!("sub {} {}", value(a), value(b)),
                Step::Mul(a, b) => format!("mul {} {}", value(a), value(b)),
                Step::Map(function, a) => format!("map {} {}", function.name(), value(a)),
                Step::Act(a) => format!("map act {}", value(a)),
                Step::Sum(a) => format!("reduce sum {}", value(a)),
                Step::Max(a) => format!("reduce max {}", value(a)),
                Step::Spread(a) => format!("broadcast {}", value(a)),
            };
            let line = format!("    {name:<8} = {text}");
            writeln!(f, "{line:<48} ; {per}")?;
        }
        Ok(())
    }
}

/// The whole table as text, and the cost of each function on one element.
#[must_use]
pub fn micro_text() -> String {
    let mut text = String::from(
        "Micro-programs of the vector unit.\n\
         A program runs once for each head of a token-row; a head has `width` elements. Each step's value is one for an\n\
         element or one for a head, as the comment says. add, sub and mul round once and flush: +0.0 below 2^-120 in size.\n\
         reduce sum: element i goes to lane i mod 32, ascending, then the halving tree 16, 8, 4, 2, 1.\n\
         inv_width is recip(width); act is the activation that the command names.\n\n",
    );
    for micro in super::MICRO {
        text += &micro.to_string();
        text.push('\n');
    }
    text += "Functions, in operations on one element.\n";
    for &function in Function::ALL {
        let n = Tape::of(function).operations();
        text += &format!(
            "    {:<10} {:>3} add {:>3} mul {:>3} integer {:>3} compare and select\n",
            function.name(),
            n.add,
            n.mul,
            n.int,
            n.select
        );
    }
    text
}
