//! f32 and f64 in a machine's vectors, for loops whose registers are laid out by hand: products. Everything
//! else is left to the compiler, which vectorises plain loops.

use pulp::Simd;

/// An element that vectors hold.
pub(crate) trait Lanes: Copy {
    type Vector<S: Simd>: bytemuck::Pod + Send + Sync;

    /// The elements as vectors; what does not fill one is left out.
    fn vectors<S: Simd>(x: &[Self]) -> &[Self::Vector<S>];
    fn vectors_mut<S: Simd>(x: &mut [Self]) -> &mut [Self::Vector<S>];
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// a·b + c, rounded once where the machine has that.
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

impl Lanes for f32 {
    type Vector<S: Simd> = S::f32s;

    #[inline(always)]
    fn vectors<S: Simd>(x: &[f32]) -> &[S::f32s] {
        S::as_simd_f32s(x).0
    }
    #[inline(always)]
    fn vectors_mut<S: Simd>(x: &mut [f32]) -> &mut [S::f32s] {
        S::as_mut_simd_f32s(x).0
    }
    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: f32) -> S::f32s {
        simd.splat_f32s(x)
    }
    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(a, b, c)
    }
}

impl Lanes for f64 {
    type Vector<S: Simd> = S::f64s;

    #[inline(always)]
    fn vectors<S: Simd>(x: &[f64]) -> &[S::f64s] {
        S::as_simd_f64s(x).0
    }
    #[inline(always)]
    fn vectors_mut<S: Simd>(x: &mut [f64]) -> &mut [S::f64s] {
        S::as_mut_simd_f64s(x).0
    }
    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: f64) -> S::f64s {
        simd.splat_f64s(x)
    }
    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        simd.mul_add_e_f64s(a, b, c)
    }
}
