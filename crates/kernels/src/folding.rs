//! Folds of vectors that several members of a group hold: sums, means and maxima of f32, f64 and bf16, in one thread
//! and in a fixed order. What is added up in bf16 is added up in f32 and rounded once a call.

use half::bf16;
use pulp::NullaryFnOnce;
use tensorwire_tensor::DType;

use crate::cpu::{SimdLevel, SimdProof};
use crate::real::{Floating, Real};

/// Elements that are added up at a time: of f32, a quarter of a small L1 cache.
const BLOCK: usize = 1024;

/// What a fold makes of its addends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FoldKind {
    Sum,
    /// The sum times the share of one in all.
    Mean,
    /// Not a number where any is not.
    Max,
}

/// There is no arithmetic for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vectors of {0} cannot be folded; f32, f64 and bf16 can")]
pub struct NoFold(pub DType);

/// A fold of one kind and type.
#[derive(Clone, Copy, Debug)]
pub struct Folding {
    dtype: DType,
    kind: FoldKind,
    simd: SimdProof,
}

impl Folding {
    /// # Errors
    /// For types without arithmetic.
    pub fn new(dtype: DType, kind: FoldKind) -> Result<Folding, NoFold> {
        match dtype {
            DType::F32 | DType::F64 | DType::BF16 => {
                Ok(Folding { dtype, kind, simd: SimdProof::up_to(SimdLevel::detect()) })
            }
            other => Err(NoFold(other)),
        }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn kind(&self) -> FoldKind {
        self.kind
    }

    /// into ← parts\[0\] ∘ parts\[1\] ∘ …; `whole`: with these, so many addends are folded, and a mean is made.
    ///
    /// # Panics
    /// If lengths differ, or memory is not aligned as the type is.
    pub fn fold(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        let share = self.share(whole);
        match self.dtype {
            DType::F64 => self.run::<f64, f64>(parts, into, share),
            DType::BF16 => self.run::<bf16, f32>(parts, into, share),
            _ => self.run::<f32, f32>(parts, into, share),
        }
    }

    /// into ← from ∘ into.
    ///
    /// # Panics
    /// As [`Folding::fold`].
    pub fn fold_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        let share = self.share(whole);
        match self.dtype {
            DType::F64 => self.run_into::<f64, f64>(into, from, share),
            DType::BF16 => self.run_into::<bf16, f32>(into, from, share),
            _ => self.run_into::<f32, f32>(into, from, share),
        }
    }

    /// What the result is multiplied by; none: nothing.
    fn share(&self, whole: Option<usize>) -> Option<usize> {
        whole.filter(|_| self.kind == FoldKind::Mean)
    }

    fn run<S: Stored<T>, T: Real>(&self, parts: &[&[u8]], into: &mut [u8], share: Option<usize>) {
        let into: &mut [S] = bytemuck::cast_slice_mut(into);
        let parts: Vec<&[S]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        let share = share.map(|count| T::one() / T::from_count(count));
        self.simd.run(Fold { kind: self.kind, parts: &parts, into, share });
    }

    fn run_into<S: Stored<T>, T: Real>(&self, into: &mut [u8], from: &[u8], share: Option<usize>) {
        let into: &mut [S] = bytemuck::cast_slice_mut(into);
        let from: &[S] = bytemuck::cast_slice(from);
        assert_eq!(into.len(), from.len(), "lengths of what is folded");
        let share = share.map(|count| T::one() / T::from_count(count));
        self.simd.run(FoldInto { kind: self.kind, from, into, share });
    }
}

/// An element as it is stored, and as it is computed with.
trait Stored<T>: Floating + bytemuck::Pod {
    fn widen(self) -> T;
    fn narrow(value: T) -> Self;
}

impl Stored<f32> for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Stored<f64> for f64 {
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }
}

impl Stored<f32> for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        Floating::from_f32(value)
    }
}

struct Fold<'a, S, T> {
    kind: FoldKind,
    parts: &'a [&'a [S]],
    into: &'a mut [S],
    share: Option<T>,
}

impl<S: Stored<T>, T: Real> NullaryFnOnce for Fold<'_, S, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Fold { kind, parts, into, share } = self;
        let share = share.unwrap_or(T::one());
        match kind {
            FoldKind::Max => fold(parts, into, T::one(), larger),
            FoldKind::Sum | FoldKind::Mean => fold(parts, into, share, |a, b| a + b),
        }
    }
}

/// One pass over memory for up to four parts, which is what groups mostly are; more go through a block of the L1
/// cache.
#[inline(always)]
fn fold<S: Stored<T>, T: Real>(
    parts: &[&[S]],
    into: &mut [S],
    share: T,
    by: impl Fn(T, T) -> T + Copy,
) {
    let len = into.len();
    match *parts {
        [] => {}
        [a, b] => {
            for ((into, a), b) in into.iter_mut().zip(&a[..len]).zip(&b[..len]) {
                *into = S::narrow(by(a.widen(), b.widen()) * share);
            }
        }
        [a, b, c] => {
            let rest = a[..len].iter().zip(&b[..len]).zip(&c[..len]);
            for (into, ((a, b), c)) in into.iter_mut().zip(rest) {
                *into = S::narrow(by(by(a.widen(), b.widen()), c.widen()) * share);
            }
        }
        [a, b, c, d] => {
            let rest = a[..len].iter().zip(&b[..len]).zip(&c[..len]).zip(&d[..len]);
            for (into, (((a, b), c), d)) in into.iter_mut().zip(rest) {
                let three = by(by(a.widen(), b.widen()), c.widen());
                *into = S::narrow(by(three, d.widen()) * share);
            }
        }
        [first, ref rest @ ..] => {
            let mut sums = [T::zero(); BLOCK];
            for (index, into) in into.chunks_mut(BLOCK).enumerate() {
                let block = index * BLOCK..index * BLOCK + into.len();
                let sums = &mut sums[..into.len()];
                for (sum, x) in sums.iter_mut().zip(&first[block.clone()]) {
                    *sum = x.widen();
                }
                for part in rest {
                    for (sum, x) in sums.iter_mut().zip(&part[block.clone()]) {
                        *sum = by(*sum, x.widen());
                    }
                }
                for (into, sum) in into.iter_mut().zip(sums) {
                    *into = S::narrow(*sum * share);
                }
            }
        }
    }
}

struct FoldInto<'a, S, T> {
    kind: FoldKind,
    from: &'a [S],
    into: &'a mut [S],
    share: Option<T>,
}

impl<S: Stored<T>, T: Real> NullaryFnOnce for FoldInto<'_, S, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let FoldInto { kind, from, into, share } = self;
        let share = share.unwrap_or(T::one());
        if kind == FoldKind::Max {
            for (into, from) in into.iter_mut().zip(from) {
                *into = S::narrow(larger(from.widen(), into.widen()));
            }
        } else {
            for (into, from) in into.iter_mut().zip(from) {
                *into = S::narrow((from.widen() + into.widen()) * share);
            }
        }
    }
}

/// The larger of two, whatever their order: of two zeros that without a sign. Not a number if one is not.
#[inline(always)]
fn larger<T: Real>(a: T, b: T) -> T {
    let is_first = a > b || a.is_nan() || (a == b && !a.is_sign_negative());
    if is_first { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T: bytemuck::Pod>(x: &[T]) -> &[u8] {
        bytemuck::cast_slice(x)
    }

    #[test]
    fn three_kinds_of_f32_in_order() {
        for members in 1..7 {
            fold_of(members);
        }
    }

    fn fold_of(members: usize) {
        let count = 2500;
        let parts: Vec<Vec<f32>> = (0..members)
            .map(|j| (0..count).map(|i| ((i * 31 + j * 17) % 101) as f32 * 0.37 - 9.0).collect())
            .collect();
        let folded = |i: usize, by: fn(f32, f32) -> f32| {
            parts[1..].iter().fold(parts[0][i], |sum, part| by(sum, part[i]))
        };
        let sum = |i: usize| folded(i, |a, b| a + b);
        let share = 1.0 / members as f32;
        let cases: [(FoldKind, &dyn Fn(usize) -> f32); 3] = [
            (FoldKind::Sum, &sum),
            (FoldKind::Mean, &|i| sum(i) * share),
            (FoldKind::Max, &|i| folded(i, f32::max)),
        ];
        let views: Vec<&[u8]> = parts.iter().map(|part| bytes(part)).collect();
        for (kind, wanted) in cases {
            let folding = Folding::new(DType::F32, kind).unwrap();
            let wanted: Vec<f32> = (0..count).map(wanted).collect();
            let mut all = vec![0.0f32; count];
            folding.fold(&views, bytemuck::cast_slice_mut(&mut all), Some(members));
            assert_eq!(all, wanted, "{kind:?}");
            // one after the other
            let mut steps = parts[0].clone();
            for (at, view) in views.iter().enumerate().skip(1) {
                let whole = (at + 1 == members).then_some(members);
                folding.fold_into(bytemuck::cast_slice_mut(&mut steps), view, whole);
            }
            assert_eq!(steps, wanted, "{kind:?}");
        }
    }

    #[test]
    fn bf16_is_rounded_once() {
        // 256 + 0.5 + 0.5 + 1 + 1: each alone is lost beside 256 in bf16, all together are not
        let parts = [256.0_f32, 0.5, 0.5, 1.0, 1.0].map(|x| [bf16::from_f32(x)]);
        let views: Vec<&[u8]> = parts.iter().map(|part| bytes(part)).collect();
        let mut sum = [bf16::ZERO];
        let folding = Folding::new(DType::BF16, FoldKind::Sum).unwrap();
        folding.fold(&views, bytemuck::cast_slice_mut(&mut sum), Some(5));
        // 259 lies between 258 and 260, and goes to the even one
        assert_eq!(sum[0].to_f32(), 260.0);
    }

    #[test]
    fn what_is_no_number_stays() {
        let folding = Folding::new(DType::F64, FoldKind::Max).unwrap();
        for parts in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
            let mut max = [0.0_f64];
            folding.fold(
                &[bytes(&parts[..1]), bytes(&parts[1..])],
                bytemuck::cast_slice_mut(&mut max),
                None,
            );
            assert!(max[0].is_nan());
        }
        assert_eq!(Folding::new(DType::I32, FoldKind::Sum).unwrap_err(), NoFold(DType::I32));
    }
}
