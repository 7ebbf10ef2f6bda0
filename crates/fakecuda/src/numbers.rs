//! Numbers as the libraries of a GPU read and write them, by address.

/// What numbers are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F64,
    Bf16,
}

impl Kind {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F64 => 8,
            Kind::Bf16 => 2,
        }
    }

    /// Reads a number.
    ///
    /// # Safety
    /// There are so many numbers from `first` on, aligned, which nobody writes meanwhile.
    pub(crate) unsafe fn read(self, first: *const u8, at: usize) -> f64 {
        // SAFETY: the caller's duty.
        unsafe {
            match self {
                Kind::F32 => f64::from(first.cast::<f32>().add(at).read()),
                Kind::F64 => first.cast::<f64>().add(at).read(),
                Kind::Bf16 => {
                    f64::from(f32::from_bits(u32::from(first.cast::<u16>().add(at).read()) << 16))
                }
            }
        }
    }

    /// Writes a number, rounded once.
    ///
    /// # Safety
    /// As of [`Kind::read`], and nobody reads it meanwhile.
    pub(crate) unsafe fn write(self, first: *mut u8, at: usize, value: f64) {
        // SAFETY: the caller's duty.
        unsafe {
            match self {
                // what is given was computed in f32
                Kind::F32 => first.cast::<f32>().add(at).write(value as f32),
                Kind::F64 => first.cast::<f64>().add(at).write(value),
                Kind::Bf16 => first.cast::<u16>().add(at).write(bf16_of(value as f32)),
            }
        }
    }
}

/// The nearest number of bf16, the even one of two.
fn bf16_of(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // fits: the upper half
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The nearest number of TF32, the larger one of two.
pub(crate) fn to_tf32(value: f32) -> f32 {
    match value.is_finite() {
        true => f32::from_bits(value.to_bits().wrapping_add(0x1000) & !0x1fff),
        false => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        let round = |x: f32| f32::from_bits(u32::from(bf16_of(x)) << 16);
        assert_eq!(
            (round(1.0), round(1.0 + 1.0 / 256.0), round(1.0 + 3.0 / 256.0)),
            (1.0, 1.0, 1.015625)
        );
        assert!(round(f32::NAN).is_nan());
        let unit = 1.0 / 1024.0;
        assert_eq!(to_tf32(1.0 + 0.4 * unit), 1.0);
        assert_eq!(to_tf32(1.0 + 0.6 * unit), 1.0 + unit);
        assert_eq!(to_tf32(-1.0 - 0.5 * unit), -1.0 - unit);
        assert_eq!(to_tf32(f32::INFINITY), f32::INFINITY);
    }
}
