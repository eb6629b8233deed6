//! What full sweeps found.

#[cfg(test)]
mod tests {
    use crate::math::Function;
    use crate::math::exhaustive::*;
    use crate::vector::Form;
    #[test]
    fn explore() {
        let stride: usize = std::env::var("STRIDE").map_or(65_537, |s| s.parse().unwrap());
        for &f in Function::ALL {
            let t = std::time::Instant::now();
            let s = sample(f, Form::Avx2, stride);
            let m = sample(f, Form::Mirror, stride.max(4001));
            let s2 = sample(f, Form::Avx2, stride.max(4001));
            let ops = crate::math::record::Tape::of(f).operations();
            let mut x: Vec<f32> = (0..4096).map(|i| (i as f32) * 0.003 - 6.0).collect();
            let mut y = vec![0.0; 4096];
            let mut ns = f64::MAX;
            for _ in 0..500 {
                let tt = std::time::Instant::now();
                Form::Avx2.map(f, &x, &mut y);
                x[0] += y[0] * 1e-9;
                ns = ns.min(tt.elapsed().as_nanos() as f64);
            }
            println!(
                "{:10} worst {:.4} at {:e} ({:08x}) same {} {:?} 4096 row {ns} ns {:?}",
                f.name(),
                s.worst_ulp,
                f32::from_bits(s.at),
                s.at,
                m == s2,
                t.elapsed(),
                ops
            );
        }
    }
}
