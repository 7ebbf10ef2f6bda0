//! Exponential, logarithm, logistic function, hyperbolic tangent and error function as plain arithmetic without branches, so that
//! loops over them become vectors, with the same bits on every machine: for f32. f64 is what tests
//! compute in, and takes the C library's.
//!
//! Errors against the exact value, in units in the last place, measured over all of f32 by the tests
//! below: exp 2, ln 2, sigmoid 4, tanh 4, erf 8. Results below the smallest normal number may be 0.

/// What back ends compute fast.
pub(crate) trait Functions: Copy {
    fn fast_exp(self) -> Self;
    /// e to a number that is not above 0, but for rounding; with products and sums fused where the machine has that,
    /// which the bits depend on.
    fn exp_below(self, fused: bool) -> Self;
    fn fast_ln(self) -> Self;
    fn fast_erf(self) -> Self;
    fn fast_sigmoid(self) -> Self;
    fn fast_tanh(self) -> Self;
}

impl Functions for f32 {
    #[inline(always)]
    fn fast_exp(self) -> f32 {
        exp(self)
    }

    #[inline(always)]
    fn exp_below(self, fused: bool) -> f32 {
        exp_below(self, fused)
    }

    #[inline(always)]
    fn fast_ln(self) -> f32 {
        ln(self)
    }

    #[inline(always)]
    fn fast_erf(self) -> f32 {
        // x·p(x²)/q(x²), as XLA and Eigen have it; from here on the result is 1, and 1 − erf is exactly 0
        const ONE_FROM: f32 = 3.832_507;
        let x = if self.abs() < ONE_FROM { self } else { ONE_FROM };
        let z = x * x;
        let p = 2.290_506_5e-4_f32;
        let p = p * z + 3.408_291e-3;
        let p = p * z + 5.095_569_5e-2;
        let p = p * z + 1.852_083_2e-1;
        let p = p * z + std::f32::consts::FRAC_2_SQRT_PI;
        let q = -1.179_160_3e-7_f32;
        let q = q * z + 2.354_796_6e-5;
        let q = q * z + 1.017_962_5e-3;
        let q = q * z + 1.407_047e-2;
        let q = q * z + 1.109_850_5e-1;
        let q = q * z + 4.974_692_5e-1;
        let q = q * z + 1.0;
        let near = x * p / q;
        let one = 1.0_f32.copysign(self);
        let near = if near.abs() > 1.0 { one } else { near };
        let far = if self.abs() >= ONE_FROM { one } else { self };
        if self.abs() < ONE_FROM { near } else { far }
    }

    #[inline(always)]
    fn fast_sigmoid(self) -> f32 {
        1.0 / (1.0 + exp(-self))
    }

    #[inline(always)]
    fn fast_tanh(self) -> f32 {
        // Cephes tanhf (Moshier 1989): near zero a polynomial, so that small results are right too
        let z = self * self;
        let p = -5.704_988_6e-3_f32;
        let p = p * z + 2.063_909e-2;
        let p = p * z - 5.373_971_4e-2;
        let p = p * z + 1.333_144_2e-1;
        let p = p * z - 3.333_328e-1;
        let near = p * z * self + self;
        let far = 1.0 - 2.0 / (exp(2.0 * self.abs()) + 1.0);
        if self.abs() < 0.625 { near } else { far.copysign(self) }
    }
}

/// eˣ = 2ⁿ·eʳ with |r| ≤ ln 2 / 2, and a polynomial for eʳ: Cephes expf (Moshier 1989).
#[inline(always)]
fn exp(x: f32) -> f32 {
    // adding 1.5·2²³ rounds to a whole number, which is then in the low bits
    const ROUND: f32 = 12_582_912.0;
    // beyond these the result is 0 or infinite; NaN stays
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, the first of so few bits that its product with n is exact
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4_f32;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_6e-1;
    let p = p * r + 0.5;
    let e = p * (r * r) + r + 1.0;
    // 2ⁿ in two factors, since n is up to 128 and down to −150
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n - half)
}

/// As [`exp`], where 2ⁿ is a number of its own: 0 below e^−87.
#[inline(always)]
fn exp_below(x: f32, fused: bool) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    let clamped = if x < LEAST { LEAST } else { x };
    let shifted = multiply_add(fused, clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add(fused, n, -0.693_359_4, clamped);
    let r = multiply_add(fused, n, 2.121_944_4e-4, r);
    let p = 1.987_569_1e-4_f32;
    let p = multiply_add(fused, p, r, 1.398_2e-3);
    let p = multiply_add(fused, p, r, 8.333_452e-3);
    let p = multiply_add(fused, p, r, 4.166_579_6e-2);
    let p = multiply_add(fused, p, r, 1.666_666_6e-1);
    let p = multiply_add(fused, p, r, 0.5);
    let e = multiply_add(fused, p, r * r, r) + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let y = e * power_of_two(n);
    if x < LEAST { 0.0 } else { y }
}

/// a·b + c, rounded once where `fused`: to be asked for only where that is one instruction.
#[inline(always)]
fn multiply_add(fused: bool, a: f32, b: f32, c: f32) -> f32 {
    if fused { a.mul_add(b, c) } else { a * b + c }
}

/// ln x = n·ln 2 + ln m with m in √½..√2, and a polynomial for ln m: Cephes logf (Moshier 1989).
#[inline(always)]
fn ln(x: f32) -> f32 {
    // a subnormal number has its digits elsewhere
    let is_small = x < f32::MIN_POSITIVE;
    let (scaled, moved) = if is_small { (x * 8_388_608.0, -23.0) } else { (x, 0.0) };
    const ROOT_OF_HALF: i32 = 0x3f35_04f3;
    let n = (scaled.to_bits().cast_signed().wrapping_sub(ROOT_OF_HALF)) >> 23;
    let m = f32::from_bits(scaled.to_bits().wrapping_sub((n << 23).cast_unsigned()));
    // exact: n is small
    let n = n as f32 + moved;
    let f = m - 1.0;
    let z = f * f;
    let p = 7.037_683_6e-2_f32;
    let p = p * f - 1.151_461e-1;
    let p = p * f + 1.167_699_9e-1;
    let p = p * f - 1.242_014_1e-1;
    let p = p * f + 1.424_932_3e-1;
    let p = p * f - 1.666_805_7e-1;
    let p = p * f + 2.000_071_5e-1;
    let p = p * f - 2.499_999_4e-1;
    let p = p * f + 3.333_333e-1;
    let rest = p * f * z + n * -2.121_944_4e-4 - 0.5 * z;
    let y = (f + rest) + n * 0.693_359_4;
    let y = if x == f32::INFINITY { f32::INFINITY } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    // of less than nothing, and of NaN
    if x >= 0.0 { y } else { f32::NAN }
}

/// 2ⁿ for n in −126..=127; for others any number.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127).cast_unsigned()) << 23)
}

impl Functions for f64 {
    #[inline(always)]
    fn fast_exp(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn exp_below(self, _: bool) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn fast_ln(self) -> f64 {
        self.ln()
    }

    #[inline(always)]
    fn fast_erf(self) -> f64 {
        erf(self)
    }

    #[inline(always)]
    fn fast_sigmoid(self) -> f64 {
        1.0 / (1.0 + (-self).exp())
    }

    #[inline(always)]
    fn fast_tanh(self) -> f64 {
        self.tanh()
    }
}

/// The error function, 2/√π·∫₀ˣ e^(−t²) dt: the C library's, which the standard library links.
pub(crate) fn erf(x: f64) -> f64 {
    mod c {
        unsafe extern "C" {
            // SAFETY: of C99: any argument, no state
            pub(super) safe fn erf(x: f64) -> f64;
        }
    }
    c::erf(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error over every 509th f32, in units in the last place of the exact value.
    fn worst(fast: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(509) {
            let x = f32::from_bits(bits);
            let (found, expected) = (fast(x), exact(x.into()));
            if x.is_nan() {
                assert!(found.is_nan());
                continue;
            }
            let rounded = expected as f32;
            if found == rounded {
                continue;
            }
            if rounded.is_infinite() || found.is_infinite() {
                // one rounding decides between the largest number and infinity
                assert!(found >= f32::MAX && expected >= f64::from(f32::MAX) * 0.999_999, "{x}");
                continue;
            }
            if rounded.abs() < f32::MIN_POSITIVE {
                assert!(found.abs() <= f32::MIN_POSITIVE, "{x}: {found:e} for {expected:e}");
                continue;
            }
            let ulp = f64::from(f32::from_bits(rounded.abs().to_bits() + 1) - rounded.abs());
            let error = (f64::from(found) - expected).abs() / ulp;
            if error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    #[test]
    fn errors_are_bounded_everywhere() {
        let (error, at) = worst(Functions::fast_exp, f64::exp);
        assert!(error <= 2.0, "exp({at}): {error}");
        for fused in [false, true] {
            let below =
                |x: f32| if x > -87.0 && x <= 0.0 { x.exp_below(fused) } else { x.fast_exp() };
            let (error, at) = worst(below, f64::exp);
            assert!(error <= 2.0, "exp_below({at}): {error}");
        }
        let (error, at) = worst(Functions::fast_ln, f64::ln);
        assert!(error <= 2.0, "ln({at}): {error}");
        let (error, at) = worst(Functions::fast_erf, erf);
        assert!(error <= 8.0, "erf({at}): {error}");
        let (error, at) = worst(Functions::fast_sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        assert!(error <= 4.0, "sigmoid({at}): {error}");
        let (error, at) = worst(Functions::fast_tanh, f64::tanh);
        assert!(error <= 4.0, "tanh({at}): {error}");
    }
}
