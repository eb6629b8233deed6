//! Asking memory for bytes before they are needed. A hint: no result depends on it, and any address may be named.

/// Bytes that one [`line()`] asks for.
pub const LINE: usize = 64;

/// Ask for the cache line at an address, to lie in this core's first cache.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn near(at: *const u8) {
    // SAFETY: a prefetch touches no memory that the program can see and never faults; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
}

/// Ask for the cache line at an address, to lie near this core but not in its way.
#[inline(always)]
pub fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches no memory that the program can see and never faults; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the instruction reads its address register only.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
