//! Why a command failed on a device: the operand, read back, goes through the processor's own quantiser, whose error it is.

use super::device::Device;
use super::recorded::Recorded;
use super::step::OperandValues;
use crate::image::Image;
use crate::int8::Kernels;
use crate::units::{self, UnitError};
use wordline_ir::Slot;
use wordline_kernels::attend::{AttendError, Cache};
use wordline_kernels::format::Limbs;
use wordline_kernels::matvec::{ActError, Acts};

/// The error that the processor's units give for this operand; `None` when they would not fail. `first_row` is the step's
/// row that the operand's first is.
pub(super) fn reason(
    kernels: &Kernels,
    device: &Device,
    image: &Image,
    op: &Recorded,
    first_row: usize,
    operand: &OperandValues,
) -> Option<UnitError> {
    match op {
        Recorded::Matvec(op) => quantised(kernels, device, op.x, 1, operand, first_row),
        Recorded::RoutedMatvec(op) => {
            let experts = image.stack(op.stack)?.layout().experts();
            let picks = &operand.picks[..(operand.rows * op.k).min(operand.picks.len())];
            if let Err(error) = units::experts(picks, op.picks, op.k, experts, &mut Vec::new()) {
                return Some(moved(error, first_row));
            }
            quantised(kernels, device, op.x, if op.weights.is_some() { op.k } else { 1 }, operand, first_row)
        }
        Recorded::CacheAppend(op) => {
            let layout = device.states.layers[op.layer].cache.as_ref()?.layout;
            let width = device.width(op.qkv);
            let keys = op.heads * op.head_dim;
            let values = keys + op.kv_heads * op.head_dim;
            operand.values.chunks_exact(width).take(operand.rows).enumerate().find_map(|(row, qkv)| {
                let value = &qkv[values..values + op.kv_heads * op.v_dim];
                let error = Cache::new(layout).append(&qkv[keys..values], value).err()?;
                Some(UnitError::value(op.qkv, first_row + row, &error))
            })
        }
        Recorded::Attend(op) => {
            let width = device.width(op.qkv);
            let each = op.heads / op.kv_heads * op.head_dim;
            operand.values.chunks_exact(width).take(operand.rows).enumerate().find_map(|(row, qkv)| {
                qkv[..op.heads * op.head_dim].chunks_exact(each).enumerate().find_map(|(kv_head, q)| {
                    let error = quantise(kernels, q, op.head_dim, device.formats.queries)?;
                    let ActError::Quant(e) = error else { return None };
                    let error = AttendError::Query { head: e.row, block: e.block, cause: e.cause };
                    Some(UnitError::value(op.qkv, first_row + row, &format_args!("key head {kv_head}: {error}")))
                })
            })
        }
        _ => None,
    }
}

fn quantised(
    kernels: &Kernels,
    device: &Device,
    slot: Slot,
    vectors: usize,
    operand: &OperandValues,
    first_row: usize,
) -> Option<UnitError> {
    let width = device.width(slot);
    let values = &operand.values[..(operand.rows * width).min(operand.values.len())];
    let ActError::Quant(mut error) = quantise(kernels, values, width / vectors, device.formats.acts)? else {
        return None;
    };
    let row = first_row + error.row / vectors;
    error.row += first_row * vectors;
    Some(UnitError::value(slot, row, &error))
}

fn quantise(kernels: &Kernels, values: &[f32], cols: usize, limbs: Limbs) -> Option<ActError> {
    Acts::new().quantise(&kernels.array, values, cols, values.len() / cols, cols, limbs).err()
}

fn moved(error: UnitError, by: usize) -> UnitError {
    match error {
        UnitError::Value { slot, row, reason } => UnitError::Value { slot, row: row + by, reason },
        other => other,
    }
}
