//! The command line of `tensorwire bench check`.

use std::path::PathBuf;

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire bench transfer --quick --json new.jsonl
  tensorwire bench check baseline.jsonl new.jsonl        fails where a row became slower than the baseline's
  tensorwire bench check results.jsonl                   the last line of each row against those before it

A row is slower where its median is so by more than --tolerance, and each median is outside of the other's 10th to 90th
percentile: noise alone fails nothing.

Exit status: 0 no row is slower; 1 a row is; 2 something given cannot be right.";

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Lines of JSON of an earlier run
    ///
    /// As `tensorwire bench … --json FILE` writes them.
    #[arg(value_name = "BASELINE")]
    pub(crate) baseline: PathBuf,
    /// Of a later run
    ///
    /// [default: the last line of each row of BASELINE, to which runs were appended]
    #[arg(value_name = "NEW")]
    pub(crate) new: Option<PathBuf>,
    /// How much slower a row may be, in percent
    #[arg(long, value_name = "PERCENT", default_value = "10", allow_negative_numbers = true, value_parser = tolerance)]
    pub(crate) tolerance: f64,
    /// One object of JSON instead of the table
    ///
    /// What is slower is said on standard error all the same.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A share, of a percentage.
pub(super) fn tolerance(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err("give a percentage of 0 or more, as 10".to_string()),
    }
}
