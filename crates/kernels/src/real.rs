//! The element types that the arithmetic is generic over.

use std::iter::Sum;

use tensorwire_tensor::Element;

/// `f32` or `f64`.
pub(crate) trait Real:
    Element + num_traits::Float + num_traits::NumAssign + Default + Sum + 'static
{
    /// `value`, rounded to nearest.
    fn narrow(value: f64) -> Self;

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
}

impl Real for f64 {
    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }
}
