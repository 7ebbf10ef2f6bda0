//! Training jobs as benchmarks start them.

/// The rate for samples that have nothing to teach: at `train`'s own some models diverge.
pub const QUIET_RATE: f64 = 1e-4;
