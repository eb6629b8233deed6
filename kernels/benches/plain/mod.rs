//! A plain read: what the units are measured beside.

/// Read every byte once, as plainly as the device can.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn sum(bytes: &[u8]) -> u64 {
            use std::arch::x86_64::*;
            let mut sums = [_mm256_setzero_si256(); 4];
            for line in bytes.chunks_exact(128) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a chunk has 128 bytes.
                    let x = unsafe { _mm256_loadu_si256(line.as_ptr().add(32 * i).cast()) };
                    *sum = _mm256_xor_si256(*sum, x);
                }
            }
            let all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
            _mm256_extract_epi64::<0>(all) as u64
        }
        // SAFETY: the processor has AVX2.
        return unsafe { sum(bytes) };
    }
    bytes
        .chunks_exact(8)
        .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
        .fold(0, |a, b| a ^ b)
}
