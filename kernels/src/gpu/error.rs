//! `GpuError`: every way in which a device can fail.

/// Why a device does not do what is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// There is no adapter at all.
    #[error(
        "no graphics adapter was found; it takes a Vulkan, Metal or Direct3D 12 driver \
         (the package mesa-vulkan-drivers holds one in software)"
    )]
    NoAdapter,
    /// No adapter is meant by the choice.
    #[error("no graphics adapter is '{given}'; there are: {}", found.join(", "))]
    NoSuch {
        /// The choice.
        given: String,
        /// Names of the adapters.
        found: Vec<String>,
    },
    /// The adapter gives no device, or lacks what every kernel needs.
    #[error("adapter '{adapter}' cannot be used: {reason}")]
    Unfit {
        /// Name of the adapter.
        adapter: String,
        /// What is wrong.
        reason: String,
    },
    /// Device memory ran out.
    #[error("{what}: the device has no memory left")]
    OutOfMemory {
        /// What was asked for.
        what: String,
    },
    /// More than the device's limit.
    #[error("{what}: {given} is above the device's limit of {limit}")]
    TooLarge {
        /// What was asked for.
        what: String,
        /// How much.
        given: u64,
        /// The limit.
        limit: u64,
    },
    /// The driver or the validation refused something: a bug here, or in the driver.
    #[error("{what}: {reason}")]
    Refused {
        /// What was asked for.
        what: String,
        /// The refusal.
        reason: String,
    },
    /// The device is gone: reset, unplugged, or crashed.
    #[error("the device was lost: {reason}")]
    Lost {
        /// The driver's words.
        reason: String,
    },
    /// A submission did not end.
    #[error("the device has not finished after {seconds} seconds")]
    Hung {
        /// How long it was waited for.
        seconds: u64,
    },
}
