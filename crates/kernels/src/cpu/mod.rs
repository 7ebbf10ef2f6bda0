//! What training runs on: the matrix product of the `gemm` crate, everything else as loops that the
//! compiler vectorises for the machine at hand, both split over a pool of threads when large.
//!
//! A result's bits do not depend on the number of threads: work is cut where the operands' shapes
//! say, never where the number of threads would, and what is summed is summed inside one piece or in
//! the order of the pieces.

mod conv;
mod images;
mod map;
mod matmul;
mod norm;
mod pool;
mod pooling;
mod reduce;
mod scratch;
mod simd;
mod softmax;
mod transpose;
mod update;
mod windows;

use tensorwire_tensor::Element;

use crate::launch::{Backend, Momentum, Product, Sgd, Source};
use crate::real::Real;
use pool::Pool;
use simd::SimdProof;

pub use simd::SimdLevel;

/// The opened back end.
#[derive(Debug)]
pub(crate) struct Cpu {
    simd: SimdProof,
    pool: Pool,
}

impl Cpu {
    /// Opens with `threads` threads and element-wise loops of at most `level`.
    pub(crate) fn open(level: SimdLevel, threads: usize) -> Cpu {
        Cpu { simd: SimdProof::up_to(level), pool: Pool::new(threads) }
    }

    pub(crate) fn description(&self) -> String {
        // gemm asks the CPU itself, as `detect` does, and cannot be held to a lower level
        let product = match SimdLevel::detect() {
            SimdLevel::Baseline => "plain loops",
            level => level.name(),
        };
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        let loops = self.simd.level().name();
        format!("cpu: gemm with {product}, element-wise {loops}, {threads} thread{plural}")
    }
}

impl Backend for Cpu {
    fn fill<T: Element>(&self, value: T, y: &mut [T]) {
        self.pool.each_chunk(y, |_, y| y.fill(value));
    }

    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        matmul::matmul(&self.pool, product, a, b, y);
    }

    fn bias_add<T: Real>(&self, x: Source<'_, T>, bias: &[T], y: &mut [T]) {
        let rows = pool::CHUNK.div_ceil(bias.len().max(1));
        self.pool.each_chunk_of(y, rows * bias.len().max(1), |start, y| {
            let x = x.part(start, y.len());
            self.simd.run(map::RowWise { x, row: bias, y, f: |x, bias| x + bias });
        });
    }

    fn sum_rows<T: Real>(&self, x: &[T], y: &mut [T]) {
        reduce::sum_rows(&self.pool, self.simd, x, y);
    }

    fn relu<T: Real>(&self, x: Source<'_, T>, y: &mut [T]) {
        let f = |x: T| if x <= T::zero() { T::zero() } else { x };
        self.map_one(x, y, f);
    }

    fn relu_grad<T: Real>(&self, dy: Source<'_, T>, y: &[T], dx: &mut [T]) {
        let f = |dy: T, y: T| if y > T::zero() { dy } else { T::zero() };
        self.map_two(dy, y, dx, f);
    }

    fn add<T: Real>(&self, a: Source<'_, T>, b: &[T], y: &mut [T]) {
        self.map_two(a, b, y, |a, b| a + b);
    }

    fn scale_by<T: Real>(&self, x: Source<'_, T>, scale: T, y: &mut [T]) {
        self.map_one(x, y, |x| x * scale);
    }

    fn softmax_cross_entropy<T: Real>(&self, logits: &[T], labels: &[i32], dlogits: &mut [T]) -> T {
        softmax::softmax_cross_entropy(&self.pool, self.simd, logits, labels, dlogits)
    }

    fn count_correct<T: Real>(&self, logits: &[T], labels: &[i32]) -> i64 {
        softmax::count_correct(&self.pool, self.simd, logits, labels)
    }

    fn reduce_max<T: Real>(&self, x: &[T]) -> T {
        reduce::reduce_max(&self.pool, self.simd, x)
    }

    fn apply_sgd<T: Real>(&self, rule: Sgd<T>, v: &mut [T], gradients: &[&[T]]) {
        self.pool.each_chunk(v, |start, v| {
            self.simd.run(update::SgdChunk { rule, v, gradients, start });
        });
    }

    fn apply_momentum<T: Real>(
        &self,
        rule: Momentum<T>,
        v: &mut [T],
        u: &mut [T],
        gradients: &[&[T]],
    ) {
        self.pool.each_chunk_pair(v, u, |start, v, u| {
            self.simd.run(update::MomentumChunk { rule, v, u, gradients, start });
        });
    }
}

impl Cpu {
    fn map_one<T: Real>(&self, x: Source<'_, T>, y: &mut [T], f: impl Fn(T) -> T + Copy + Sync) {
        self.pool.each_chunk(y, |start, y| {
            self.simd.run(map::One { x: x.part(start, y.len()), y, f });
        });
    }

    fn map_two<T: Real>(
        &self,
        a: Source<'_, T>,
        b: &[T],
        y: &mut [T],
        f: impl Fn(T, T) -> T + Copy + Sync,
    ) {
        self.pool.each_chunk(y, |start, y| {
            let (a, b) = (a.part(start, y.len()), &b[start..][..y.len()]);
            self.simd.run(map::Two { a, b, y, f });
        });
    }
}
