//! Invariants 1 to 6: identity, slots, tensors with their views, rotary recipes, and that each is used.

use super::{At, Defect, DefectKind, Ends, limits};
use crate::command::{Place, RawWord};
use crate::program::{Program, Tensor, TensorId, TensorKind};
use crate::spec::{Part, Rope, RopeScaling};
use crate::{LayerId, Slot};
use std::collections::{HashMap, HashSet};

/// The lengths of the lists; true when all are within their limits.
pub(super) fn counts(program: &Program, found: &mut Vec<Defect>) -> bool {
    let before = found.len();
    let checks = [
        limit("the number of commands", program.commands.len() as u128, limits::COMMANDS),
        limit("the number of slots", program.slots.len() as u128, u128::from(RawWord::NO_SLOT)),
        limit("the number of tensors", program.tensors.len() as u128, TensorId::LIMIT as u128),
        limit("the number of rotary tables", program.ropes.len() as u128, u128::from(RawWord::NO_ROPE)),
        program.commands.is_empty().then_some(DefectKind::Zero { what: "the number of commands" }),
    ];
    found.extend(checks.into_iter().flatten().map(|kind| Defect { at: At::Program, kind }));
    found.len() == before
}

/// Invariants 1 to 5, of a program whose lists are within their limits.
pub(super) fn check(program: &Program, ends: Ends, found: &mut Vec<Defect>) {
    sizes(program, found);
    identity(program, ends, found);
    slots(program, found);
    tensors(program, found);
    for (index, rope) in program.ropes.iter().enumerate() {
        let mut push = |kind| found.push(Defect { at: At::Rope(index), kind });
        self::rope(rope, &mut push);
    }
}

fn limit(what: &'static str, given: u128, limit: u128) -> Option<DefectKind> {
    (given > limit).then_some(DefectKind::Limit { what, given, limit })
}

fn sizes(program: &Program, found: &mut Vec<Defect>) {
    // A product of two usize does not overflow u128, and a sum of a table of them neither.
    let elements = program.tensors.iter().map(|t| t.rows as u128 * t.cols as u128).fold(0, u128::saturating_add);
    let checks = [
        limit("the number of positions", program.max_pos as u128, limits::POSITIONS),
        limit("the number of tensor elements", elements, limits::ELEMENTS),
        (program.max_pos == 0).then_some(DefectKind::Zero { what: "the number of positions" }),
    ];
    found.extend(checks.into_iter().flatten().map(|kind| Defect { at: At::Program, kind }));
}

fn identity(program: &Program, ends: Ends, found: &mut Vec<Defect>) {
    let mut value = |ok: bool, field, given: String, need: &str| {
        if !ok {
            found.push(Defect { at: At::Program, kind: DefectKind::Value { field, given, need: need.to_owned() } });
        }
    };
    let (lanes, cut) = (program.identity.numerics.lanes, program.identity.cut);
    value(lanes.is_power_of_two() && lanes <= 32, "lanes", lanes.to_string(), "a power of two up to 32");
    let layers = format!("{}..{}", cut.first_layer, cut.last_layer);
    let last = usize::from(LayerId::OUTSIDE.0);
    let run = cut.first_layer <= cut.last_layer && cut.last_layer <= last;
    value(run, "the cut", layers.clone(), "a run of layers among 0..255");
    if ends.embeds {
        value(cut.first_layer == 0, "the cut", layers, "from layer 0 on, as the program embeds");
    }
}

fn slots(program: &Program, found: &mut Vec<Defect>) {
    let mut seen = HashSet::new();
    for info in &program.slots {
        let checks = [
            (!seen.insert(info.slot)).then_some(DefectKind::Twice),
            (info.width == 0).then_some(DefectKind::Zero { what: "its width" }),
            limit("its width", info.width as u128, limits::WIDTH),
        ];
        found.extend(checks.into_iter().flatten().map(|kind| Defect { at: At::Slot(info.slot), kind }));
    }
}

fn tensors(program: &Program, found: &mut Vec<Defect>) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, tensor) in program.tensors.iter().enumerate() {
        let mut push = |kind| found.push(Defect { at: At::Tensor { index, name: tensor.name.clone() }, kind });
        if tensor.name.is_empty() || tensor.name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            push(DefectKind::Name);
        }
        if let Some(other) = names.insert(&tensor.name, index) {
            push(DefectKind::SameName { other });
        }
        for (what, size) in [("its number of rows", tensor.rows), ("its number of columns", tensor.cols)] {
            if size == 0 {
                push(DefectKind::Zero { what });
            }
        }
        if let TensorKind::Stack { experts } = tensor.kind
            && (experts == 0 || !tensor.rows.is_multiple_of(experts))
        {
            push(DefectKind::Stack { rows: tensor.rows, experts });
        }
        view(tensor, &mut push);
    }
}

fn view(tensor: &Tensor, push: &mut impl FnMut(DefectKind)) {
    let mut elements = Some(0_u128);
    for (part, stored) in tensor.view.parts.iter().enumerate() {
        match part_elements(stored, tensor.cols) {
            Ok(count) => elements = elements.and_then(|sum| sum.checked_add(count)),
            Err(what) => {
                push(DefectKind::Part { part, what });
                elements = None;
            }
        }
    }
    let (rows, cols) = (tensor.rows, tensor.cols);
    // A part that is wrong itself says enough.
    if let Some(view) = elements.filter(|count| *count != rows as u128 * cols as u128) {
        push(DefectKind::View { view, rows, cols });
    }
}

/// Elements that a part holds of a tensor with `cols` columns.
fn part_elements(part: &Part, cols: usize) -> Result<u128, String> {
    if part.tensor.is_empty() {
        return Err("the stored tensor has no name".to_owned());
    }
    let (rows, width) = match (part.transpose, part.shape.as_slice()) {
        (true, [input, output]) => (*output, *input as u128),
        (true, shape) => return Err(format!("only a matrix is read transposed, this has {} dimensions", shape.len())),
        (false, [rows, rest @ ..]) => {
            let width = rest.iter().try_fold(1_u128, |product, d| product.checked_mul(*d as u128));
            (*rows, width.filter(|w| *w <= limits::ELEMENTS).ok_or("a stored row has too many elements")?)
        }
        (false, []) => return Err("a scalar has no rows".to_owned()),
    };
    let whole = if part.transpose { width == cols as u128 } else { cols != 0 && width.is_multiple_of(cols as u128) };
    if !whole {
        return Err(format!("a stored row has {width} elements, the tensor's have {cols}"));
    }
    let mut count = 0_u128;
    for range in &part.rows {
        if range.start >= range.end || range.end > rows {
            return Err(format!("rows {}..{} of {rows}", range.start, range.end));
        }
        count = count.saturating_add((range.end - range.start) as u128);
    }
    count.checked_mul(width).filter(|c| *c <= limits::ELEMENTS).ok_or_else(|| "it has too many elements".to_owned())
}

fn rope(rope: &Rope, push: &mut impl FnMut(DefectKind)) {
    let mut value = |ok: bool, field, given: String, need: &str| {
        if !ok {
            push(DefectKind::Value { field, given, need: need.to_owned() });
        }
    };
    let positive = |v: f64| v.is_finite() && v > 0.0;
    const POSITIVE: &str = "finite and above 0";
    let rot = rope.rot;
    value(rot != 0 && rot.is_multiple_of(2) && rot <= 0xffff, "rot", rot.to_string(), "even, from 2 to 65,534");
    // Above 1, so that its logarithm, by which the blends divide, is above 0.
    value(rope.theta.is_finite() && rope.theta > 1.0, "theta", rope.theta.to_string(), "finite and above 1");
    let mut above_zero = |fields: &[(&'static str, f64)]| {
        fields.iter().for_each(|(field, v)| value(positive(*v), field, v.to_string(), POSITIVE));
    };
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => above_zero(&[("factor", *factor)]),
        RopeScaling::Dynamic { factor, original } => {
            above_zero(&[("factor", *factor)]);
            value(*original > 0, "original", original.to_string(), "above 0");
            // The base changes by the power rot / (rot - 2).
            value(rot > 2, "rot", rot.to_string(), "above 2 with dynamic scaling");
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate: _, attention_factor } => {
            let attention = ("attention_factor", *attention_factor);
            above_zero(&[("factor", *factor), ("beta_fast", *beta_fast), ("beta_slow", *beta_slow), attention]);
            value(*original > 0, "original", original.to_string(), "above 0");
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            let (low, high) = (*low_freq_factor, *high_freq_factor);
            above_zero(&[("factor", *factor), ("low_freq_factor", low), ("high_freq_factor", high)]);
            value(high > low, "high_freq_factor", high.to_string(), "above low_freq_factor");
            value(*original > 0, "original", original.to_string(), "above 0");
        }
        RopeScaling::LongRope { short, long, original, attention_factor } => {
            above_zero(&[("attention_factor", *attention_factor)]);
            value(*original > 0, "original", original.to_string(), "above 0");
            for (field, list) in [("short", short), ("long", long)] {
                let need = format!("{} numbers, one a frequency", rot / 2);
                value(list.len() == rot / 2, field, format!("{} numbers", list.len()), &need);
                if let Some(bad) = list.iter().find(|v| !positive(**v)) {
                    value(false, field, bad.to_string(), POSITIVE);
                }
            }
        }
    }
}

/// Invariant 6.
pub(super) fn unused(program: &Program, found: &mut Vec<Defect>) {
    let mut slots = HashSet::new();
    let (mut tensors, mut ropes) = (vec![false; program.tensors.len()], vec![false; program.ropes.len()]);
    for command in &program.commands {
        slots.extend(command.slots().map(|(_, slot)| slot));
        for (_, id) in command.tensors() {
            tensors.get_mut(id.index()).map(|used| *used = true).unwrap_or_default();
        }
        if command.info().places().any(|(_, place)| place == Place::Table) {
            ropes.get_mut(usize::from(command.to_raw().rope)).map(|used| *used = true).unwrap_or_default();
        }
    }
    let slot = |slot: Slot| (!slots.contains(&slot)).then_some(At::Slot(slot));
    let tensor =
        |(index, tensor): (usize, &Tensor)| (!tensors[index]).then(|| At::Tensor { index, name: tensor.name.clone() });
    let places = (program.slots.iter().filter_map(|info| slot(info.slot)))
        .chain(program.tensors.iter().enumerate().filter_map(tensor))
        .chain(ropes.iter().enumerate().filter(|(_, used)| !**used).map(|(index, _)| At::Rope(index)));
    found.extend(places.map(|at| Defect { at, kind: DefectKind::Unused }));
}
