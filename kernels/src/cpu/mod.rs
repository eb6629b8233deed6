//! The CPU forms of the units.

pub(crate) mod attend;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod matvec;
pub(crate) mod vector;
