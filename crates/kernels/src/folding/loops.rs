//! The loops over memory, of any element and operator. They do not know which there are.

use pulp::NullaryFnOnce;

use super::stored::Stored;
use crate::cpu::SimdProof;

/// Elements that are folded at a time: of f32, a quarter of a small L1 cache.
const BLOCK: usize = 1024;

/// What is folded into a vector.
#[derive(Clone, Copy)]
pub(super) enum Addends<'a> {
    /// In this order, and not what the vector holds.
    All(&'a [&'a [u8]]),
    /// This, and then what the vector holds.
    Before(&'a [u8]),
}

/// into ← finish(the addends, one after the other).
pub(super) fn fold<S: Stored>(
    simd: SimdProof,
    addends: Addends<'_>,
    into: &mut [u8],
    by: impl Fn(S::Wide, S::Wide) -> S::Wide + Copy,
    finish: impl Fn(S::Wide) -> S::Wide + Copy,
) {
    let into: &mut [S] = bytemuck::cast_slice_mut(into);
    match addends {
        Addends::All(parts) => {
            let parts: Vec<&[S]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
            simd.run(Fold { parts: &parts, into, by, finish });
        }
        Addends::Before(from) => {
            let from: &[S] = bytemuck::cast_slice(from);
            assert_eq!(into.len(), from.len(), "lengths of what is folded");
            simd.run(FoldInto { from, into, by, finish });
        }
    }
}

struct Fold<'a, S, By, Finish> {
    parts: &'a [&'a [S]],
    into: &'a mut [S],
    by: By,
    finish: Finish,
}

/// One pass over memory for up to four parts, which is what groups mostly are; more go through a block of the L1
/// cache.
impl<S: Stored, By, Finish> NullaryFnOnce for Fold<'_, S, By, Finish>
where
    By: Fn(S::Wide, S::Wide) -> S::Wide,
    Finish: Fn(S::Wide) -> S::Wide,
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Fold { parts, into, by, finish } = self;
        let len = into.len();
        match *parts {
            [] => {}
            [a, b] => {
                for ((into, a), b) in into.iter_mut().zip(&a[..len]).zip(&b[..len]) {
                    *into = S::narrow(finish(by(a.widen(), b.widen())));
                }
            }
            [a, b, c] => {
                let rest = a[..len].iter().zip(&b[..len]).zip(&c[..len]);
                for (into, ((a, b), c)) in into.iter_mut().zip(rest) {
                    *into = S::narrow(finish(by(by(a.widen(), b.widen()), c.widen())));
                }
            }
            [a, b, c, d] => {
                let rest = a[..len].iter().zip(&b[..len]).zip(&c[..len]).zip(&d[..len]);
                for (into, (((a, b), c), d)) in into.iter_mut().zip(rest) {
                    let three = by(by(a.widen(), b.widen()), c.widen());
                    *into = S::narrow(finish(by(three, d.widen())));
                }
            }
            [first, ref rest @ ..] => {
                let mut sums = [S::Wide::default(); BLOCK];
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
                        *into = S::narrow(finish(*sum));
                    }
                }
            }
        }
    }
}

struct FoldInto<'a, S, By, Finish> {
    from: &'a [S],
    into: &'a mut [S],
    by: By,
    finish: Finish,
}

impl<S: Stored, By, Finish> NullaryFnOnce for FoldInto<'_, S, By, Finish>
where
    By: Fn(S::Wide, S::Wide) -> S::Wide,
    Finish: Fn(S::Wide) -> S::Wide,
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let FoldInto { from, into, by, finish } = self;
        for (into, from) in into.iter_mut().zip(from) {
            *into = S::narrow(finish(by(from.widen(), into.widen())));
        }
    }
}
