//! Lines of JSON in, one page of HTML out: for every figure of the papers that there are lines for, what the paper says, what
//! was measured of ours and of others, the machine's limit, and where ours falls short; and the curves of training runs. Knows
//! no files, no clock and no machine; what a figure is and what its paper claims is data (`figures/`, `runs.rs`).
#![forbid(unsafe_code)]

mod faults;
mod figure;
mod figures;
mod line;
mod page;
mod plot;
mod plots;
mod runs;
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
    /// Training runs whose curves are shown.
    pub runs: usize,
    /// Of the papers' claims (and the comparisons with peers), each in every plot that can show it.
    pub met: usize,
    pub short: usize,
    /// Claims for which there are no lines.
    pub unmeasured: usize,
    /// Lines that no figure could use; the page says why.
    pub left_out: usize,
}

/// There is nothing to report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToReport {
    #[error(
        "there are no lines to report; write some first: tensorwire bench transfer --quick --json results.jsonl, or \
         tensorwire train --metrics metrics.jsonl"
    )]
    NoLines,
    /// No figure, no goal and no curve could use a line.
    #[error(
        "none of the {count} lines can be shown: {reason} ({first}); give files that `tensorwire bench … --json FILE` or \
         `tensorwire train --metrics FILE` wrote"
    )]
    Unusable {
        count: usize,
        /// Why the first cannot, and where it stands.
        reason: String,
        first: String,
    },
}

/// Puts lines together, of however many benchmarks and files. Where something was measured several times, the median
/// counts.
///
/// # Errors
/// When there are none, or none can be shown.
pub fn report(lines: &[Line]) -> Result<Report, NothingToReport> {
    let Some(first) = lines.first() else {
        return Err(NothingToReport::NoLines);
    };
    let evaluation = Evaluation::of(lines);
    if !evaluation.shows_any() {
        let (count, first) = (lines.len(), first.place());
        let of_first = evaluation.left_out.iter().find(|left| left.first == first);
        let reason = of_first.map(|left| left.reason.clone()).unwrap_or_default();
        return Err(NothingToReport::Unusable { count, reason, first });
    }
    let count = evaluation.count();
    Ok(Report {
        html: page::page(&evaluation).into_string(),
        figures: evaluation.sections.len(),
        runs: evaluation.runs(),
        met: count.met,
        short: count.short,
        unmeasured: count.unmeasured,
        left_out: evaluation.left_out.iter().map(|left| left.count).sum(),
    })
}
