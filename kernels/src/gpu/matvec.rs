//! The array unit on the device: `y = W x` for every quantised row of a step, over weights that are read once for up to
//! sixteen rows.
//!
//! [`MatvecRun`] is the product with one matrix, with an optional bias and an optional sum with other rows as the command
//! `add` makes it; [`RoutedRun`] picks a matrix of a stack for each vector by a number in device memory, and
//! [`GatherRun`] sums the picks' results. Each gives its kernels as [`Job`]s.

use super::Method;
use super::device::{Gpu, Kind};
use super::error::GpuError;
use super::job::Job;
use super::matvec_text::{Ends, Gate, Place, Plan, Shape, source};
use super::quantise::{DeviceActs, ROW_GROUP};
use super::region::Region;
use super::weights::{Chunk, DeviceMatrix, QUAD, group};
use super::wgsl::prelude;
use crate::format::{BLOCK, Lanes, Limbs};
use crate::math::Function;
use crate::matvec::{MatrixLayout, ShapeError};

/// How the array unit computes on a device.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// How int8 products are made.
    pub method: Method,
    /// The table of products, for [`Method::Lut`].
    pub table: Option<&'a Region>,
    /// Lanes of the numerics.
    pub lanes: Lanes,
    /// Over the device's own choice of plan; for measurements.
    pub plan: Option<Plan>,
}

/// Why a product is not made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The operands do not fit one another.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The device fails.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The method takes the table of products.
    #[error("{0} takes the table of products")]
    Table(Method),
}

/// Rows that a product is added to, beside the product itself: `out = x + scale * y`, as the command `add` does it.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// f32; row `t` from element `offset + t * stride` on.
    pub x: &'a Region,
    /// The sums, laid out as `x`, which it may be; another buffer than the product's.
    pub out: &'a Region,
    /// First element.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Multiplies the product.
    pub scale: f32,
}

/// One product with every quantised row.
#[derive(Clone, Copy, Debug)]
pub struct MatvecRun<'a> {
    /// Number of the command, for a fault.
    pub command: u32,
    /// The weights; a stack's first expert is not meant.
    pub matrix: &'a DeviceMatrix,
    /// The rows.
    pub acts: &'a DeviceActs,
    /// f32; row `t` is written from element `offset + t * stride` on.
    pub y: &'a Region,
    /// First element.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// f32 a matrix row, flushed.
    pub bias: Option<&'a Region>,
    /// What the product is added to.
    pub residual: Option<Residual<'a>>,
}

/// What becomes of a product whose first half of rows gates the second: `out = act(gate) * up`, quantised besides.
#[derive(Clone, Copy, Debug)]
pub struct GatedRun<'a> {
    /// The activation.
    pub act: Function,
    /// f32, half as many as the product has rows; written.
    pub out: &'a Region,
    /// The same as the array takes it, in other memory than the product's own operand; written.
    pub acts: &'a DeviceActs,
    /// The command whose operand that is, for a fault.
    pub command: u32,
}

/// Products of picked experts: result `p` of `picks` is the expert that `picks[p]` names times its vector.
#[derive(Clone, Copy, Debug)]
pub struct RoutedRun<'a> {
    /// Number of the command, for a fault: a pick that is no expert's number.
    pub command: u32,
    /// The experts.
    pub stack: &'a DeviceMatrix,
    /// Quantised vectors, `vectors` a token-row.
    pub acts: &'a DeviceActs,
    /// Expert numbers as f32, `[token-rows, k]`.
    pub picks: &'a Region,
    /// Token-rows.
    pub tokens: usize,
    /// Picks of a token-row.
    pub k: usize,
    /// Vectors of a token-row: 1, which all its picks share, or `k`, one for each.
    pub vectors: usize,
    /// f32 `[token-rows, k, rows]`; written.
    pub y: &'a Region,
}

/// The weighted sum of each token-row's picks: `y = y + weight * v` from zero on, in the order of the picks.
#[derive(Clone, Copy, Debug)]
pub struct GatherRun<'a> {
    /// f32 `[token-rows, k, rows]`.
    pub results: &'a Region,
    /// f32 `[token-rows, k]`.
    pub weights: &'a Region,
    /// Token-rows.
    pub tokens: usize,
    /// Picks of a token-row.
    pub k: usize,
    /// Elements of a result.
    pub rows: usize,
    /// f32 `[token-rows, rows]`; written.
    pub y: &'a Region,
}

impl Array<'_> {
    /// The plan for a matrix and this many token-rows, by what the device is.
    #[must_use]
    pub fn plan(&self, gpu: &Gpu, layout: &MatrixLayout, tokens: usize) -> Plan {
        let tile = tokens.next_power_of_two().clamp(1, ROW_GROUP) as u32;
        if let Some(plan) = self.plan {
            return Plan { tokens: tile.min(plan.tokens), ..plan };
        }
        let lanes = self.lanes.count() as u32;
        let fits = |size: &u32| size.is_multiple_of(lanes) && *size <= 128;
        match gpu.facts().subgroup_size().filter(fits) {
            Some(size) if self.method == Method::Dp4a => subgroup_plan(gpu, size, lanes, layout, tokens),
            // Sixteen reads of the table a word: a text with several rows of them takes a driver long to compile.
            _ if self.method == Method::Lut => {
                Plan { subgroup: None, rows: 1, unroll: 1, ahead: false, subgroups: 1, tokens: 1 }
            }
            _ => Plan { subgroup: None, rows: 1, unroll: 1, ahead: false, subgroups: 1, tokens: tile.min(4) },
        }
    }

    fn shape(&self, layout: &MatrixLayout, limbs: Limbs, quads: usize) -> Shape {
        Shape {
            method: self.method,
            lanes: self.lanes.count() as u32,
            limbs,
            weights: layout.weights(),
            blocks: layout.blocks() as u32,
            group: group(layout) as u32,
            quads: quads as u32,
            bias: false,
            residual: None,
            gated: None,
            routed: false,
            first: 0,
            ends: Ends::default(),
        }
    }

    /// The kernels of a product: one, or one a chunk of the matrix.
    ///
    /// # Errors
    /// The operands do not fit one another, or the method lacks its table.
    pub fn matvec(&self, gpu: &Gpu, run: &MatvecRun<'_>) -> Result<Vec<Job>, RunError> {
        let layout = run.matrix.layout();
        fits(run.matrix, run.acts)?;
        if let Some(bias) = run.bias.map(|b| b.size() as usize / 4).filter(|b| *b < layout.rows()) {
            return Err(ShapeError::Bias { rows: layout.rows(), bias }.into());
        }
        let tokens = run.acts.rows();
        let plan = self.plan(gpu, &layout, tokens);
        let residual = run.residual.map(|r| {
            let same = (r.x.buffer(), r.x.offset()) == (r.out.buffer(), r.out.offset());
            if same { Place::InPlace } else { Place::Apart }
        });
        let r = run.residual.unwrap_or(Residual { x: run.y, out: run.y, offset: 0, stride: 0, scale: 0.0 });
        let mut jobs = Vec::new();
        for chunk in run.matrix.chunks() {
            let shape =
                Shape { bias: run.bias.is_some(), residual, ..self.shape(&layout, run.acts.format(), chunk.quads()) };
            let ends = Ends {
                offset: run.offset as u32,
                stride: run.stride as u32,
                x_offset: r.offset as u32,
                x_stride: r.stride as u32,
                scale: r.scale,
                ..Ends::of(chunk)
            };
            let shape = Shape { ends, ..shape };
            let constants = vec![run.command, tokens as u32, 0, 0];
            let apart = run.residual.filter(|_| residual == Some(Place::Apart)).map(|r| r.x);
            let more = [run.bias, apart, run.residual.map(|r| r.out)].into_iter().flatten();
            let columns = tokens.div_ceil(plan.tokens as usize) as u32;
            self.jobs(gpu, &mut jobs, "matvec", plan, shape, chunk, run.acts, run.y, more, constants, columns)?;
        }
        Ok(jobs)
    }

    /// The kernel of a product of one row whose first half gates its second; `None` where the device has no subgroups of
    /// one size for it, or the halves are no whole blocks in one piece.
    ///
    /// # Errors
    /// The operands do not fit one another, or the method lacks its table.
    pub fn gated(&self, gpu: &Gpu, run: &MatvecRun<'_>, gated: &GatedRun<'_>) -> Result<Option<Job>, RunError> {
        let layout = run.matrix.layout();
        fits(run.matrix, run.acts)?;
        let (plan, half) = (self.plan(gpu, &layout, 1), layout.rows() / 2);
        let [chunk] = run.matrix.chunks() else { return Ok(None) };
        let one = run.acts.rows() == 1 && run.residual.is_none() && (gated.acts.rows(), gated.acts.cols()) == (1, half);
        let whole = layout.rows() == 2 * half && half.is_multiple_of(BLOCK) && self.method == Method::Dp4a;
        let Some(size) = plan.subgroup.filter(|_| one && whole) else { return Ok(None) };
        let rows = (2 * QUAD as u32).max(2 * size / self.lanes.count() as u32);
        let subgroups = BLOCK as u32 / (rows / 2);
        let threads = gpu.limits().max_compute_invocations_per_workgroup.min(gpu.limits().max_compute_workgroup_size_x);
        if subgroups * size > threads || half / BLOCK > gpu.facts().groups_limit as usize {
            return Ok(None);
        }
        let ahead = layout.blocks() as u32 > size;
        let plan = Plan { rows, unroll: 1, ahead, subgroups, tokens: 1, ..plan };
        let gate = Gate { act: gated.act, limbs: gated.acts.format() };
        let shape = self.shape(&layout, run.acts.format(), chunk.quads());
        let ends = Ends { offset: run.offset as u32, stride: run.stride as u32, ..Ends::of(chunk) };
        let shape = Shape { bias: run.bias.is_some(), gated: Some(gate), ends, ..shape };
        let made = [gated.out, gated.acts.limbs(), gated.acts.scales()];
        let more = run.bias.into_iter().chain(made);
        let mut jobs = Vec::new();
        self.jobs(
            gpu,
            &mut jobs,
            "matvec + act",
            plan,
            shape,
            chunk,
            run.acts,
            run.y,
            more,
            vec![run.command, 1, 0, gated.command],
            1,
        )?;
        Ok(jobs.pop())
    }

    /// The kernels of picked products: one, or one a chunk of the stack.
    ///
    /// # Errors
    /// The operands do not fit one another, or the method lacks its table.
    pub fn routed(&self, gpu: &Gpu, run: &RoutedRun<'_>) -> Result<Vec<Job>, RunError> {
        let layout = run.stack.layout();
        fits(run.stack, run.acts)?;
        let given = run.tokens * run.vectors;
        if given > run.acts.rows() {
            return Err(ShapeError::Row { given, rows: run.acts.rows() }.into());
        }
        let plan = self.plan(gpu, &layout, 1);
        let picks = run.tokens * run.k;
        let mut jobs = Vec::new();
        for chunk in run.stack.chunks() {
            let shape = Shape { routed: true, ..self.shape(&layout, run.acts.format(), chunk.quads()) };
            let ends = Ends {
                stride: layout.rows() as u32,
                k: run.k as u32,
                vectors: run.vectors as u32,
                first_expert: chunk.experts.start as u32,
                experts: chunk.experts.len() as u32,
                all_experts: run.stack.experts() as u32,
                ..Ends::of(chunk)
            };
            let shape = Shape { ends, ..shape };
            let constants = vec![run.command, picks as u32, 0, 0];
            let more = [run.picks].into_iter();
            self.jobs(gpu, &mut jobs, "routed", plan, shape, chunk, run.acts, run.y, more, constants, picks as u32)?;
        }
        Ok(jobs)
    }

    /// The dispatches over one chunk: as many as the device's limit of workgroups makes it.
    #[expect(clippy::too_many_arguments, reason = "what the two kinds of products have in common")]
    fn jobs<'r>(
        &self,
        gpu: &Gpu,
        jobs: &mut Vec<Job>,
        label: &'static str,
        plan: Plan,
        shape: Shape,
        chunk: &Chunk,
        acts: &DeviceActs,
        y: &Region,
        more: impl Iterator<Item = &'r Region>,
        constants: Vec<u32>,
        columns: u32,
    ) -> Result<(), RunError> {
        let table = match self.method {
            Method::Dp4a => None,
            Method::Lut => Some(self.table.ok_or(RunError::Table(self.method))?),
        };
        let fixed = [&chunk.elements, &chunk.scales, acts.limbs(), acts.scales(), y];
        let mut operands: Vec<Region> = fixed.into_iter().cloned().collect();
        operands.extend(more.cloned());
        operands.extend(table.cloned());
        let groups = (chunk.rows.len() as u32).div_ceil(plan.group_rows(shape.lanes));
        let limit = gpu.facts().groups_limit;
        let mut first = 0;
        while first < groups && columns > 0 {
            let n = limit.min(groups - first);
            jobs.push(Job {
                label,
                source: source(&plan, &Shape { first, ..shape }),
                groups: [columns, n, 1],
                constants: constants.clone(),
                operands: operands.clone(),
            });
            first += n;
        }
        Ok(())
    }
}

fn fits(matrix: &DeviceMatrix, acts: &DeviceActs) -> Result<(), ShapeError> {
    let (matrix, acts) = (matrix.layout().cols(), acts.cols());
    if matrix == acts { Ok(()) } else { Err(ShapeError::Columns { matrix, acts }) }
}

/// Few registers, so that many subgroups are at work and hide memory's delay from one another. A workgroup of one
/// subgroup ends when its rows do; with several token-rows it pays to have neighbours that use the same activations.
fn subgroup_plan(gpu: &Gpu, size: u32, lanes: u32, layout: &MatrixLayout, tokens: usize) -> Plan {
    let most = (gpu.limits().max_compute_invocations_per_workgroup.min(128) / size).max(1);
    let wide = size >= 32;
    let rows = (QUAD as u32).max(size / lanes);
    let (tokens, subgroups) = if tokens == 1 {
        (1, 1)
    } else {
        let groups = layout.rows().div_ceil(rows as usize);
        (sharing(gpu.facts().kind, groups, tokens, if wide { 8 } else { 4 }), 4)
    };
    // Few rows are few subgroups, which do not hide one another's waiting: each asks for its next blocks before it
    // multiplies these, for more of them where rows are long.
    let blocks = layout.blocks() as u32;
    let ahead = tokens == 1 && layout.rows() <= FEW_ROWS && blocks > size;
    let unroll = if ahead && blocks >= 8 * size { 2 } else { 1 };
    let subgroups = if ahead { 2 } else { subgroups };
    Plan { subgroup: Some(size), rows, unroll, ahead, subgroups: most.min(subgroups), tokens }
}

/// Token-rows that share one reading of the weights, at most `most`, where a matrix has `groups` groups of rows: they follow one
/// another, so with few groups it is better that more subgroups read the same, which a cache holds, than that some of the
/// device has nothing to do. On one of 132 units the products of 896 rows with 16 token-rows take half the time with 3,584
/// subgroups, and nothing is gained above.
fn sharing(kind: Kind, groups: usize, tokens: usize, most: u32) -> u32 {
    let full = match kind {
        Kind::Discrete => 3500,
        Kind::Software => 0,
        Kind::Integrated | Kind::Virtual | Kind::Other => 500,
    };
    let mut tile = (tokens.next_power_of_two() as u32).min(most);
    while tile > 1 && groups * tokens.div_ceil(tile as usize) < full {
        tile /= 2;
    }
    tile
}

/// Rows below which the largest devices are not full of subgroups.
const FEW_ROWS: usize = 8192;

impl Ends {
    fn of(chunk: &Chunk) -> Self {
        Self { rows: chunk.rows.len() as u32, first_row: chunk.rows.start as u32, ..Self::default() }
    }
}

impl GatherRun<'_> {
    /// The kernel.
    #[must_use]
    pub fn job(&self) -> Job {
        Job {
            label: "gather",
            source: prelude(&[]) + GATHER,
            groups: [(self.rows as u32).div_ceil(64), self.tokens as u32, 1],
            constants: vec![self.k as u32, self.rows as u32, 0, 0],
            operands: vec![self.results.clone(), self.weights.clone(), self.y.clone()],
        }
    }
}

const GATHER: &str = "
struct Params { k: u32, rows: u32, spare0: u32, spare1: u32 }
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> results: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (!begin() || id.x >= params.rows) { return; }
  var sum = 0.0;
  for (var pick = id.y * params.k; pick < (id.y + 1u) * params.k; pick += 1u) {
    sum = r(sum + r(weights[pick] * results[pick * params.rows + id.x]));
  }
  y[id.y * params.rows + id.x] = sum;
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_of_a_matrix_are_read_by_more_subgroups() {
        for (kind, groups, tokens, shared) in [
            (Kind::Discrete, 224, 4, 1),
            (Kind::Discrete, 224, 16, 1),
            (Kind::Discrete, 224, 64, 4),
            (Kind::Discrete, 2432, 4, 2),
            (Kind::Discrete, 2432, 16, 8),
            (Kind::Discrete, 32_064, 3, 4),
            (Kind::Integrated, 224, 16, 4),
            (Kind::Software, 1, 16, 8),
        ] {
            assert_eq!(sharing(kind, groups, tokens, 8), shared, "{kind} {groups} {tokens}");
        }
    }
}
