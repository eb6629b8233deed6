//! The scalar interpreter: each step in turn over all elements of a head. It is the definition of the bits.

use super::micro::{Micro, Step};
use super::run::{LANES, Run};
use crate::flush;

/// A step's value for one head.
enum Value {
    Head(f32),
    Elements(Vec<f32>),
}

/// Runs a micro-program; `run` has been checked against it.
pub(super) fn interpret(micro: &Micro, run: &mut Run<'_, '_>) {
    for head in 0..run.heads {
        let mut values: Vec<Value> = Vec::with_capacity(micro.steps.len());
        for step in micro.steps {
            let value = one(*step, head, &values, run);
            values.push(value);
        }
    }
}

fn one(step: Step, head: usize, values: &[Value], run: &mut Run<'_, '_>) -> Value {
    let width = run.width;
    let of = |v: u8| &values[usize::from(v)];
    match step {
        Step::Load(place) => {
            let operand = &run.operands[usize::from(place.operand)];
            let start = head * operand.stride;
            Value::Elements((0..width).map(|i| operand.data()[start + place.at(i, width)]).collect())
        }
        Step::Store(place, v) => {
            let written = elements(of(v)).to_vec();
            let operand = &mut run.operands[usize::from(place.operand)];
            let start = head * operand.stride;
            for (i, x) in written.iter().enumerate() {
                operand.data_mut()[start + place.at(i, width)] = *x;
            }
            Value::Elements(written)
        }
        Step::LoadHead(operand) => {
            let operand = &run.operands[usize::from(operand)];
            Value::Head(operand.data()[head * operand.stride])
        }
        Step::StoreHead(operand, v) => {
            let x = scalar(of(v));
            let operand = &mut run.operands[usize::from(operand)];
            let at = head * operand.stride;
            operand.data_mut()[at] = x;
            Value::Head(x)
        }
        Step::Number(n) => Value::Head(n),
        Step::Param(p) => Value::Head(run.params[usize::from(p)]),
        Step::Add(a, b) => zip(of(a), of(b), flush::add),
        Step::Sub(a, b) => zip(of(a), of(b), flush::sub),
        Step::Mul(a, b) => zip(of(a), of(b), flush::mul),
        Step::Map(function, a) => map(of(a), |x| function.eval(x)),
        Step::Act(a) => map(of(a), |x| run.act.eval(x)),
        Step::Sum(a) => Value::Head(sum(elements(of(a)), run.first_lane)),
        Step::Max(a) => Value::Head(elements(of(a)).iter().fold(f32::NEG_INFINITY, |m, x| if m < *x { *x } else { m })),
        Step::Spread(a) => Value::Elements(vec![scalar(of(a)); width]),
    }
}

/// Element i goes to lane (first + i) mod 32, ascending; then `lane[i] += lane[i + s]` for i < s, s = 16, 8, 4, 2, 1.
pub(crate) fn sum(elements: &[f32], first: usize) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, x) in elements.iter().enumerate() {
        let lane = &mut lanes[(first + i) % LANES];
        *lane = flush::add(*lane, *x);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = flush::add(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

// The table is checked by a test: a step's operands are all of one level, so the fallbacks below are never met.

fn elements(value: &Value) -> &[f32] {
    match value {
        Value::Elements(all) => all,
        Value::Head(one) => std::slice::from_ref(one),
    }
}

fn scalar(value: &Value) -> f32 {
    elements(value).first().copied().unwrap_or(0.0)
}

fn map(a: &Value, f: impl Fn(f32) -> f32) -> Value {
    match a {
        Value::Head(x) => Value::Head(f(*x)),
        Value::Elements(all) => Value::Elements(all.iter().map(|x| f(*x)).collect()),
    }
}

fn zip(a: &Value, b: &Value, f: impl Fn(f32, f32) -> f32) -> Value {
    match (a, b) {
        (Value::Head(x), Value::Head(y)) => Value::Head(f(*x, *y)),
        _ => Value::Elements(elements(a).iter().zip(elements(b)).map(|(x, y)| f(*x, *y)).collect()),
    }
}
