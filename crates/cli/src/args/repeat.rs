//! How often a benchmark repeats what it measures.

use std::num::NonZeroUsize;

use clap::Args;

use super::headings::MEASUREMENT;

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = MEASUREMENT)]
pub(crate) struct RepeatArgs {
    /// Measured repetitions of each size [default: by the size, or by time]
    #[arg(long, value_name = "N", alias = "times")]
    pub(crate) iterations: Option<NonZeroUsize>,
    /// Repetitions before those [default: 1 to 3; allreduce: to 2000]
    ///
    /// In each job of new processes, unmeasured. `bench allreduce` has more for
    /// short vectors, since new processes may share a core at first.
    #[arg(long, value_name = "N")]
    pub(crate) warm_up: Option<usize>,
}
