//! qwen3: qwen2's layers with a norm of each query and key head.

use super::decoder::Given;
use super::error::ArchError;
use super::qwen2::read_as;
use wordline_ir::Spec;

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    read_as(given, "qwen3", true)
}
