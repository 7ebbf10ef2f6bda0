//! How often a benchmark repeats what it measures.

use std::num::NonZeroUsize;

use clap::Args;

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RepeatArgs {
    /// Measured repetitions of each size [default: by the size]
    #[arg(long, value_name = "N", alias = "times")]
    pub(crate) iterations: Option<NonZeroUsize>,
    /// Repetitions before those that are not measured, in each job of new processes [default: 2 or 3]
    #[arg(long, value_name = "N")]
    pub(crate) warm_up: Option<usize>,
}
