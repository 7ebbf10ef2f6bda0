//! What training runs on: the matrix product of the crates gemm-f32 and gemm-f64, everything else as loops that the
//! compiler vectorises for the machine at hand, both split over a pool of threads when large.
//!
//! A result's bits do not depend on the number of threads: work is cut where the operands' shapes
//! say, never where the number of threads would, and what is summed is summed inside one piece or in
//! the order of the pieces.

mod attention;
mod cells;
mod compression;
mod conv;
mod element_wise;
mod elements;
mod few_rows;
mod images;
mod map;
mod matmul;
mod moves;
mod norm;
mod panels;
mod pool;
mod pooling;
mod recurrent;
mod reduce;
mod sample_norm;
mod scratch;
mod shared;
mod simd;
mod softmax;
mod threads;
mod transpose;
mod update;
mod windows;

use crate::launch::{Backend, Product, Products};
use crate::real::Real;
use pool::Pool;
pub(crate) use simd::SimdProof;

pub use simd::SimdLevel;
pub use threads::Threads;

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

    pub(crate) fn thread_count(&self) -> usize {
        self.pool.threads()
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
    type Loops = Cpu;

    fn loops(&self) -> &Cpu {
        self
    }

    fn threads(&self) -> Threads<'_> {
        Threads::of(&self.pool, self.simd)
    }
}

impl Products for Cpu {
    fn matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        matmul::matmul(&self.pool, self.simd, product, a, b, y);
    }

    fn batch_matmul<T: Real>(&self, product: Product, a: &[T], b: &[T], y: &mut [T]) {
        matmul::batch(&self.pool, self.simd, product, a, b, y);
    }
}
