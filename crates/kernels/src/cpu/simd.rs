//! Which vector instructions the element-wise loops are compiled for, chosen at run time.
//!
//! The loops are written once, as plain Rust. [`SimdLevel::run`] inlines a loop into a function that
//! is compiled for the level, where the compiler vectorises it. Rust neither fuses a multiplication
//! with an addition nor reorders a sum, so a level changes the speed and never a bit.

use pulp::{NullaryFnOnce, Simd, WithSimd};

/// A set of vector instructions, from what every x86-64 has upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SimdLevel {
    /// What the target has without asking: SSE2 on x86-64.
    Baseline,
    Avx2,
    Avx512,
}

/// A level that was found on this machine, with the proof of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SimdProof {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
}

impl SimdLevel {
    /// The best that this machine has.
    pub fn detect() -> SimdLevel {
        SimdProof::up_to(SimdLevel::Avx512).level()
    }

    /// The level's name, for people.
    pub fn name(self) -> &'static str {
        match self {
            SimdLevel::Baseline => "baseline",
            SimdLevel::Avx2 => "AVX2",
            SimdLevel::Avx512 => "AVX-512",
        }
    }
}

impl SimdProof {
    /// The best level of this machine that is not above `level`.
    pub(crate) fn up_to(level: SimdLevel) -> SimdProof {
        #[cfg(target_arch = "x86_64")]
        {
            if level >= SimdLevel::Avx512
                && let Some(proof) = pulp::x86::V4::try_new()
            {
                return SimdProof::Avx512(proof);
            }
            if level >= SimdLevel::Avx2
                && let Some(proof) = pulp::x86::V3::try_new()
            {
                return SimdProof::Avx2(proof);
            }
        }
        let _ = level;
        SimdProof::Baseline
    }

    pub(crate) fn level(self) -> SimdLevel {
        match self {
            SimdProof::Baseline => SimdLevel::Baseline,
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx2(_) => SimdLevel::Avx2,
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx512(_) => SimdLevel::Avx512,
        }
    }

    /// Runs `body` compiled for this level, as far as it is `#[inline(always)]`.
    #[inline(always)]
    pub(crate) fn run<F: NullaryFnOnce>(self, body: F) -> F::Output {
        match self {
            SimdProof::Baseline => body.call(),
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx2(proof) => Simd::vectorize(proof, body),
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx512(proof) => Simd::vectorize(proof, body),
        }
    }
    /// Runs `body` with this level's vectors.
    #[inline(always)]
    pub(crate) fn run_with<F: WithSimd>(self, body: F) -> F::Output {
        match self {
            SimdProof::Baseline => body.with_simd(pulp::Scalar),
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx2(proof) => Simd::vectorize(proof, body),
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx512(proof) => Simd::vectorize(proof, body),
        }
    }

    /// Elements of a vector of [`SimdProof::run_with`].
    pub(crate) fn lanes<T>(self) -> usize {
        match self {
            SimdProof::Baseline => 1,
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx2(_) => 32 / size_of::<T>(),
            #[cfg(target_arch = "x86_64")]
            SimdProof::Avx512(_) => 64 / size_of::<T>(),
        }
    }
}
