//! Lines of JSON in, one page of HTML out: for every figure of the papers that there are lines for, what the paper says, what
//! was measured of ours and of others, the machine's limit, and where ours falls short. Knows no files, no clock and no
//! machine; what a figure is and what its paper claims is data (`figures/`).
#![forbid(unsafe_code)]

mod figure;
mod figures;
mod line;
mod page;
mod plot;
mod plots;
mod section;
mod verdict;

pub use line::{Line, LineError};

use section::Evaluation;

/// The page, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One file that needs no other.
    pub html: String,
    /// With lines.
    pub figures: usize,
    /// Of the papers' claims (and the comparisons with peers), each in every plot that can show it.
    pub met: usize,
    pub short: usize,
    /// Claims for which there are no lines.
    pub unmeasured: usize,
    /// Lines that no figure could use; the page says why.
    pub left_out: usize,
}

/// There is nothing to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are no lines to report; write some first: tensorwire bench transfer --quick --json results.jsonl"
)]
pub struct NoLines;

/// Puts lines together, of however many benchmarks and files. Where something was measured several times, the median
/// counts.
///
/// # Errors
/// When there are none.
pub fn report(lines: &[Line]) -> Result<Report, NoLines> {
    if lines.is_empty() {
        return Err(NoLines);
    }
    let evaluation = Evaluation::of(lines);
    let count = evaluation.count();
    Ok(Report {
        html: page::page(&evaluation).into_string(),
        figures: evaluation.sections.len(),
        met: count.met,
        short: count.short,
        unmeasured: count.unmeasured,
        left_out: evaluation.left_out.iter().map(|left| left.count).sum(),
    })
}
