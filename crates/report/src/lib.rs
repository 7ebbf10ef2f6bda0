//! Lines of JSON in, one page of HTML out: for every figure of the papers that there are lines for, what the paper says, what
//! was measured of ours and of others, the machine's limit, and where ours falls short; and the curves of training runs. Knows
//! no files, no clock and no machine; what a figure is and what its paper claims is data (`figures/`, `runs.rs`).
#![forbid(unsafe_code)]

mod caption;
mod compare;
mod faults;
mod figure;
mod figures;
mod line;
mod measure;
mod numbers;
mod origin;
mod page;
mod plot;
mod plots;
mod runs;
mod saved;
mod section;
mod seeds;
mod table;
mod verdict;

pub use compare::{
    Change, ComparedRow, LIMIT, NothingToCompare, RunComparison, compare, compare_last,
};
pub use line::{Line, LineError};
pub use saved::PlotFiles;
pub use section::LeftOut;
pub use table::TableFormat;

use section::{Evaluation, UselessFile};

/// The page, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One file that needs no other.
    pub html: String,
    /// All plots, in the order of the page.
    pub plots: Vec<PlotFiles>,
    /// With plots.
    pub figures: usize,
    /// Training runs whose curves are shown.
    pub runs: usize,
    /// Of the papers' claims (and the comparisons with peers), each in every plot that can show it.
    pub met: usize,
    pub short: usize,
    /// Claims whose figure lies within the spread of what was measured.
    pub unclear: usize,
    /// Claims for which there are no lines, and what else is said not to have been measured.
    pub unmeasured: usize,
    /// Lines that no figure could use; the page says why.
    pub left_out: Vec<LeftOut>,
}

/// There is nothing to report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToReport {
    #[error(
        "there are no lines to report; write some first: tensorwire bench transfer --quick --json results.jsonl, or \
         tensorwire train --metrics metrics.jsonl"
    )]
    NoLines,
    /// No figure, no goal and no curve could use a line of this file.
    #[error(
        "no line of {file} can be shown ({count} left out); {first}: {reason}; give files that `tensorwire bench … --json FILE` or \
         `tensorwire train --metrics FILE` wrote"
    )]
    Unusable {
        file: String,
        count: usize,
        /// Why the first cannot, and where it stands.
        reason: String,
        first: String,
    },
    /// Goals and failures alone.
    #[error("the lines have no plot, and so no table; `tensorwire report` makes a page of them")]
    NoTable,
    /// Training runs alone.
    #[error(
        "the lines are of training runs, which claim nothing; `tensorwire report` makes a page of them, and --format csv, latex or \
         markdown a table"
    )]
    NoClaims,
}

/// Puts lines together, of however many benchmarks and files. Where something was measured several times, the median
/// counts.
///
/// # Errors
/// When there are none, or a file has none that can be shown.
pub fn report(lines: &[Line]) -> Result<Report, NothingToReport> {
    Ok(page_of(&evaluated(lines)?, None))
}

/// The same of the later run that a comparison is of, with what became of each row.
///
/// # Errors
/// As [`report`].
pub fn report_compared(
    lines: &[Line],
    comparison: &RunComparison,
) -> Result<Report, NothingToReport> {
    Ok(page_of(&evaluated(lines)?, Some(comparison)))
}

/// The data of all plots as text for a paper or a program.
///
/// # Errors
/// As [`report`], and when there is no plot.
pub fn tables(lines: &[Line], format: TableFormat) -> Result<String, NothingToReport> {
    let evaluation = evaluated(lines)?;
    if evaluation.is_of_runs() && matches!(format, TableFormat::Claims | TableFormat::ClaimsJson) {
        return Err(NothingToReport::NoClaims);
    }
    let tables = table::tables(&evaluation, format);
    if tables.is_empty() { Err(NothingToReport::NoTable) } else { Ok(tables) }
}

fn evaluated(lines: &[Line]) -> Result<Evaluation, NothingToReport> {
    if lines.is_empty() {
        return Err(NothingToReport::NoLines);
    }
    let mut evaluation = Evaluation::of(lines);
    match evaluation.useless.take() {
        Some(UselessFile { file, count, reason, first }) => {
            Err(NothingToReport::Unusable { file, count, reason, first })
        }
        None => Ok(evaluation),
    }
}

fn page_of(evaluation: &Evaluation, comparison: Option<&RunComparison>) -> Report {
    let count = evaluation.count();
    let plots = saved::PlotFiles::of(evaluation);
    Report {
        html: page::page(evaluation, &plots, comparison).into_string(),
        plots,
        figures: evaluation.sections.iter().filter(|section| !section.plots.is_empty()).count(),
        runs: evaluation.runs,
        met: count.met,
        short: count.short,
        unclear: count.unclear,
        unmeasured: count.unmeasured,
        left_out: evaluation.left_out.clone(),
    }
}
