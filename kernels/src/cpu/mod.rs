//! The CPU forms of the units.

pub(crate) mod attend;
#[cfg(target_arch = "x86_64")]
mod codes_avx2;
#[cfg(target_arch = "aarch64")]
mod codes_neon;
#[cfg(target_arch = "x86_64")]
mod codes_vnni;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod matvec;
#[cfg(target_arch = "x86_64")]
pub(crate) mod matvec_avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) mod matvec_neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod matvec_vnni;
#[cfg(target_arch = "x86_64")]
mod quantise_avx2;
#[cfg(target_arch = "aarch64")]
mod quantise_neon;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
mod walk;
