//! Shape inference: the shape of a primitive's value from its operands' shapes.

use wordline_ir::graph::{Node, Prim};

/// Shape of the value, and whether it holds indices; or why the operands do not fit.
pub(super) fn infer(prim: &Prim, operands: &[&Node], ctx: usize) -> Result<(Vec<usize>, bool), String> {
    arity(prim, operands)?;
    let shapes: Vec<&[usize]> = operands.iter().map(|n| n.shape.as_slice()).collect();
    let wants_index: &[bool] = match prim {
        Prim::Rows | Prim::Take | Prim::Pick => &[false, true],
        Prim::Rotary { .. } | Prim::Mask { .. } => &[true],
        _ => &[],
    };
    for (port, operand) in operands.iter().enumerate() {
        let wanted = wants_index.get(port).copied().unwrap_or(false);
        if operand.index != wanted {
            let (is, needs) = if wanted { ("values", "indices") } else { ("indices", "values") };
            return Err(format!("operand {port}, '{}', holds {is} where {needs} are needed", operand.name));
        }
    }
    let index = matches!(prim, Prim::Token | Prim::Position | Prim::TopK { .. });
    let shape = shape_of(prim, &shapes, ctx)?;
    if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_none_or(|n| n == 0) {
        return Err(format!("its value's shape {shape:?} holds no elements, or too many"));
    }
    Ok((shape, index))
}

fn arity(prim: &Prim, operands: &[&Node]) -> Result<(), String> {
    let wanted = match prim {
        Prim::Token | Prim::Position | Prim::Param { .. } | Prim::Const(_) | Prim::Load { .. } => 0,
        Prim::Rows | Prim::MatMul | Prim::Binary(_) | Prim::Take | Prim::Pick => 2,
        Prim::Concat { .. } => operands.len().max(1),
        _ => 1,
    };
    if operands.len() == wanted { Ok(()) } else { Err(format!("{} operands, {wanted} are needed", operands.len())) }
}

fn shape_of(prim: &Prim, shapes: &[&[usize]], ctx: usize) -> Result<Vec<usize>, String> {
    match (prim, shapes) {
        (Prim::Token | Prim::Position | Prim::Const(_), _) => Ok(vec![]),
        (Prim::Param { weight, shape }, _) => {
            let held = weight.view.rows().checked_mul(weight.view.cols());
            let read = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let row = shape.last().copied().unwrap_or(0);
            let whole = if shape.len() == 1 { weight.view.cols() == 1 } else { weight.view.cols() == row };
            if held == read && whole { Ok(shape.clone()) } else { Err(format!("its view is not {shape:?}")) }
        }
        (Prim::Load { shape, .. }, _) => Ok(shape.clone()),
        (Prim::Rows, [[_, width], []]) => Ok(vec![*width]),
        (Prim::MatMul, [x, w]) => matmul(x, w),
        (Prim::Binary(_), [a, b]) => broadcast(a, b),
        (Prim::Unary(_) | Prim::Store { .. }, [x]) => Ok(x.to_vec()),
        (Prim::Reduce { axis, .. }, [x]) => with_axis(x, *axis, |_| Ok(1)),
        (Prim::Slice { axis, start, len }, [x]) => with_axis(x, *axis, |n| match start.checked_add(*len) {
            Some(end) if end <= n => Ok(*len),
            _ => Err(format!("elements {start} on, {len} of them, of an axis of {n}")),
        }),
        (Prim::Concat { axis }, [first, rest @ ..]) => concat(first, rest, *axis),
        (Prim::Reshape { shape }, [x]) => {
            let count = |s: &[usize]| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            if count(shape) == count(x) { Ok(shape.clone()) } else { Err(format!("{x:?} under shape {shape:?}")) }
        }
        (Prim::Repeat { axis, times }, [x]) => {
            with_axis(x, *axis, |n| n.checked_mul(*times).ok_or_else(|| "too many copies".to_owned()))
        }
        (Prim::Transpose, [[lead @ .., a, b]]) => Ok([lead, &[*b, *a]].concat()),
        (Prim::Rotary { rope, .. }, [[]]) => Ok(vec![rope.rot]),
        (Prim::Mask { ctx: own, .. }, [[]]) => cache(*own, ctx).map(|ctx| vec![ctx]),
        (Prim::Append { ctx: own, .. }, [[heads, dim]]) => cache(*own, ctx).map(|ctx| vec![*heads, ctx, *dim]),
        (Prim::Shift { taps, .. }, [[channels]]) => Ok(vec![*channels, *taps]),
        (Prim::TopK { k }, [[n]]) if k <= n => Ok(vec![*k]),
        (Prim::Take, [[_], [k]]) => Ok(vec![*k]),
        (Prim::Pick, [[_, out, input], [k]]) => Ok(vec![*k, *out, *input]),
        _ => Err(format!("operands of shapes {shapes:?}")),
    }
}

fn cache(own: usize, ctx: usize) -> Result<usize, String> {
    if own == ctx { Ok(ctx) } else { Err(format!("{own} positions in a step over {ctx}")) }
}

fn matmul(x: &[usize], w: &[usize]) -> Result<Vec<usize>, String> {
    let ([x_lead @ .., x_in], [w_lead @ .., out, w_in]) = (x, w) else {
        return Err(format!("product of {x:?} and {w:?}"));
    };
    let lead = match (x_lead, w_lead) {
        (lead, []) | ([], lead) => lead,
        (a, b) if a == b => a,
        _ => return Err(format!("leading axes of {x:?} and {w:?} differ")),
    };
    if x_in != w_in {
        return Err(format!("{x_in} elements meet a matrix of {w_in} columns"));
    }
    Ok([lead, &[*out]].concat())
}

/// The reference framework's broadcasting: aligned at the last axis, an axis of 1 or a missing one stretches.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let axis = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|i| match (axis(a, i), axis(b, i)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            _ => Err(format!("shapes {a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

fn concat(first: &[usize], rest: &[&[usize]], axis: usize) -> Result<Vec<usize>, String> {
    with_axis(first, axis, |n| {
        rest.iter().try_fold(n, |sum, other| {
            let same = other.len() == first.len() && (0..first.len()).all(|i| i == axis || other[i] == first[i]);
            let sum = if same { sum.checked_add(other[axis]) } else { None };
            sum.ok_or_else(|| format!("{other:?} does not follow {first:?} along axis {axis}"))
        })
    })
}

fn with_axis(
    x: &[usize],
    axis: usize,
    length: impl FnOnce(usize) -> Result<usize, String>,
) -> Result<Vec<usize>, String> {
    let mut shape = x.to_vec();
    match shape.get_mut(axis) {
        Some(n) => *n = length(*n)?,
        None => return Err(format!("axis {axis} of shape {x:?}")),
    }
    Ok(shape)
}
