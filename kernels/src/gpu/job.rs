//! `Job`: one kernel of a step before it is bound: its source, its constants, its operands.

use super::device::Gpu;
use super::error::GpuError;
use super::record::Dispatch;
use super::region::Region;

/// A kernel over its operands. Binding 0 is the step's words, binding 1 the constants, then the operands follow.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name for reports.
    pub label: &'static str,
    /// WGSL.
    pub source: String,
    /// Workgroups.
    pub groups: [u32; 3],
    /// What stays from step to step.
    pub constants: Vec<u32>,
    /// Operands.
    pub operands: Vec<Region>,
}

impl Job {
    /// Compile and bind it.
    ///
    /// # Errors
    /// The device refuses the shader or a binding, or has no memory left.
    pub fn dispatch(&self, gpu: &Gpu, step: &Region) -> Result<Dispatch, GpuError> {
        let constants = gpu.upload("constants", bytemuck::cast_slice(&self.constants))?;
        self.bind(gpu, step, &constants)
    }

    /// Compile and bind it; `constants` holds its constants.
    ///
    /// # Errors
    /// The device refuses the shader or a binding.
    pub fn bind(&self, gpu: &Gpu, step: &Region, constants: &Region) -> Result<Dispatch, GpuError> {
        let pipeline = gpu.pipeline(self.label, &self.source)?;
        let regions: Vec<&Region> = [step, constants].into_iter().chain(&self.operands).collect();
        Dispatch::new(gpu, self.label, &pipeline, self.groups, &regions)
    }
}

/// A template with each `$NAME` replaced; longer names are given before their prefixes.
pub(super) fn fill(template: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}
