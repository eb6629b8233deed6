//! Functions of the reference units, in f64.

use wordline_ir::spec::Activation;

/// 1 / (1 + e^-x).
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// ln(1 + e^x).
pub(crate) fn softplus(x: f64) -> f64 {
    // Past 40 the term e^-x is below f64's resolution of x.
    if x > 40.0 { x } else { libm::log1p(libm::exp(x)) }
}

/// An activation.
pub(crate) fn activate(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x * sigmoid(x),
        Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + libm::tanh(inner))
        }
        Activation::Relu => x.max(0.0),
    }
}

/// x * rsqrt(mean(x^2) + eps), times the weight that `weight` gives for each element, in place.
pub(crate) fn rms_norm(x: &mut [f32], eps: f32, weight: impl Fn(usize) -> f64) {
    let square: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let factor = 1.0 / (square / x.len() as f64 + f64::from(eps)).sqrt();
    for (i, v) in x.iter_mut().enumerate() {
        *v = (f64::from(*v) * factor * weight(i)) as f32;
    }
}

/// e^(x - max) / sum, in place.
pub(crate) fn softmax(x: &mut [f64]) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for v in x.iter_mut() {
        *v = libm::exp(*v - max);
        sum += *v;
    }
    for v in x.iter_mut() {
        *v /= sum;
    }
}
