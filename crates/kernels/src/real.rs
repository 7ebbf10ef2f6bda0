//! The element types that the arithmetic is generic over.

use std::iter::Sum;

use half::bf16;
use tensorwire_tensor::{DType, Element};

use crate::functions::Functions;
use crate::gemm::Gemm;
use crate::lanes::Lanes;

/// `f32` or `f64`.
pub(crate) trait Real:
    Element
    + Functions
    + Gemm
    + Lanes
    + num_traits::Float
    + num_traits::NumAssign
    + Default
    + Sum
    + 'static
{
    /// `value`, rounded to nearest.
    fn narrow(value: f64) -> Self;

    /// The same number in f64.
    fn widen(self) -> f64;

    /// `count` as a divisor, rounded to nearest.
    fn from_count(count: usize) -> Self {
        Self::narrow(count as f64)
    }
}

impl Real for f32 {
    #[inline(always)]
    fn narrow(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn widen(self) -> f64 {
        self.into()
    }
}

impl Real for f64 {
    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
}

/// `f32`, `f64` or `bf16`: a number that can be stored.
pub(crate) trait Floating: Element {
    fn to_f64(self) -> f64;
    /// Rounded to nearest even where f32 has no such number.
    fn to_f32(self) -> f32;
    /// Rounded to nearest even.
    fn from_f64(value: f64) -> Self;
    /// Rounded to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl Floating for f32 {
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.into()
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
}

impl Floating for f64 {
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f64 {
        value.into()
    }
}

impl Floating for bf16 {
    #[inline(always)]
    fn to_f64(self) -> f64 {
        bf16::to_f64(self)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> bf16 {
        // half::bf16::from_f64 drops the lower half of the fraction, and takes a number a hair above a tie
        // for the tie. By way of f32, rounded to odd, nothing is lost (Boldo and Melquiond 2008).
        let near = value as f32;
        if value.is_nan() || f64::from(near) == value {
            return bf16::from_f32(near);
        }
        let is_beyond = f64::from(near).abs() > value.abs();
        bf16::from_f32(f32::from_bits((near.to_bits() - u32::from(is_beyond)) | 1))
    }
    #[inline(always)]
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

/// `x` in another type, rounded once: through f32 only where neither is wider.
#[inline(always)]
pub(crate) fn cast<S: Floating, D: Floating>(x: S) -> D {
    if matches!(S::DTYPE, DType::F64) || matches!(D::DTYPE, DType::F64) {
        D::from_f64(x.to_f64())
    } else {
        D::from_f32(x.to_f32())
    }
}
