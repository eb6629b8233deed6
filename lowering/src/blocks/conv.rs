//! Reader of the convolution.

use super::reader::Reader;
use wordline_ir::graph::{NodeId, Weight};
use wordline_ir::spec::Activation;
use wordline_ir::{Command, ProgramError, Slot};

pub(super) fn conv(
    r: &mut Reader<'_>,
    id: NodeId,
    weight: &Weight,
    bias: Option<&Weight>,
    [channels, taps]: [usize; 2],
    act: Activation,
) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let (weight, bias) = (r.plain(id, weight)?, r.optional(id, bias)?);
    let [channels, taps] = r.counts(id, [("channels", channels), ("taps", taps)])?;
    r.fill(id, Slot::DeltaQkv)?;
    r.emit(Command::Conv { layer, x, out: Slot::DeltaQkv, weight, bias, channels, taps, act });
    Ok(())
}
