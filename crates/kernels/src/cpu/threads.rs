//! The threads of a back end, as users' kernels see them.

use tensorwire_tensor::Element;

use super::map::Many;
use super::pool::{CHUNK, Pool};
use super::simd::SimdProof;
use crate::launch::Source;

/// The threads that a kernel may use: the back end's, or the caller's alone.
///
/// A result must not depend on how many there are. So cut work where its size says, never where the number of threads
/// would, and add up what the pieces gave in the order of the pieces.
#[derive(Clone, Copy, Debug)]
pub struct Threads<'a> {
    /// None: the caller's thread.
    pool: Option<&'a Pool>,
    simd: SimdProof,
}

impl<'a> Threads<'a> {
    /// The caller's thread.
    pub(crate) fn callers() -> Threads<'a> {
        Threads { pool: None, simd: SimdProof::Baseline }
    }

    pub(super) fn of(pool: &'a Pool, simd: SimdProof) -> Threads<'a> {
        Threads { pool: Some(pool), simd }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.pool.map_or(1, Pool::threads)
    }

    /// Calls `body` with every index below `count`, in no order. A call should be worth some 10 µs.
    pub fn each(self, count: usize, body: impl Fn(usize) + Send + Sync) {
        match self.pool {
            Some(pool) => pool.each_index(count, true, body),
            None => (0..count).for_each(body),
        }
    }

    /// Returns what `body` gives for every index below `count`, in their order.
    pub fn map<R: Send>(self, count: usize, body: impl Fn(usize) -> R + Send + Sync) -> Vec<R> {
        match self.pool {
            Some(pool) => pool.map_indices(count, true, body),
            None => (0..count).map(body).collect(),
        }
    }

    /// Calls `body` with every piece of `chunk` elements of `y`, of which the last may be shorter, and the index of
    /// the piece's first element, in no order.
    pub fn each_chunk<T: Send>(
        self,
        y: &mut [T],
        chunk: usize,
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        let chunk = chunk.max(1);
        match self.pool {
            Some(pool) => pool.split(y, chunk, true, body),
            None => y.chunks_mut(chunk).enumerate().for_each(|(at, y)| body(at * chunk, y)),
        }
    }

    /// y ← f(x, others), all of one length.
    pub(crate) fn by_elements<T: Element, const N: usize>(
        self,
        x: Source<'_, T>,
        others: [&[T]; N],
        y: &mut [T],
        f: impl Fn(T, [T; N]) -> T + Copy + Sync,
    ) {
        self.each_chunk(y, CHUNK, |start, y| {
            let others = others.map(|other| &other[start..][..y.len()]);
            self.simd.run(Many { x: x.part(start, y.len()), others, y, f });
        });
    }
}
