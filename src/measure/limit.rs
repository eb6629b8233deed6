//! `Limit`: something that a device cannot do faster, measured again whenever it is asked.

/// A limit of a device.
pub trait Limit {
    /// What one pass reached, in units a second.
    ///
    /// # Errors
    /// The device fails.
    fn pass(&mut self) -> Result<f64, LimitError>;
}

/// Why a limit could not be measured.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} could not be measured: {reason}")]
pub struct LimitError {
    /// What was to be measured.
    pub what: &'static str,
    /// Why not.
    pub reason: String,
}

/// The limits of a device.
pub struct Limits<'a> {
    /// Bytes a second of plain reads.
    pub read: &'a mut dyn Limit,
    /// Multiply-accumulates a second of the array unit, each counted once a limb; none where it is not measured.
    pub array: Option<&'a mut dyn Limit>,
    /// What starting work takes, where that is not nothing.
    pub launch: Option<LaunchLimits<'a>>,
    /// Limbs of the rows that enter the array.
    pub limbs: u64,
}

/// What starting work on a device takes.
pub struct LaunchLimits<'a> {
    /// Kernels a second that do nothing, each waiting for the one before.
    pub kernel: &'a mut dyn Limit,
    /// Submissions a second of one such kernel, each waited for by the host.
    pub submission: &'a mut dyn Limit,
}
