//! `Step`: the commands of a step with its rows, as they go to a backend, and `StepFault`: why it did not end as it should.

use super::recorded::Recorded;
use crate::units::{Failure, StepRow};
use wordline_kernels::gpu::GpuError;

/// Why a step did not end as it should.
#[derive(Debug)]
pub(super) enum StepFault {
    /// A command found an operand that it cannot take.
    Command {
        command: usize,
        /// The step's row that the operand's first is.
        first_row: usize,
        operand: Option<OperandValues>,
    },
    /// A command failed on the processor.
    Unit(Failure),
    /// The device failed: another backend has to run the step.
    Device(String),
}

impl From<GpuError> for StepFault {
    fn from(error: GpuError) -> Self {
        StepFault::Device(error.to_string())
    }
}

/// What a command that failed has read.
#[derive(Clone, Debug)]
pub(super) struct OperandValues {
    /// `[rows, width]`.
    pub(super) values: Vec<f32>,
    pub(super) rows: usize,
    /// Picks of a routed command.
    pub(super) picks: Vec<f32>,
}

/// A step to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) rows: Vec<StepRow>,
    pub(super) ops: Vec<Recorded>,
    /// Commands before the rows were picked.
    pub(super) body: usize,
    /// The rows picked; `None`: the tail does not run.
    pub(super) kept: Option<Vec<usize>>,
    /// What the caller has filled X with.
    pub(super) hidden: Option<Vec<f32>>,
}
