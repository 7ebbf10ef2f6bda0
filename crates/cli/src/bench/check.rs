//! `tensorwire bench check`: whether a later run is slower than an earlier one.

use tensorwire_report::{Change, compare, compare_last};

use crate::args::CheckArgs;
use crate::output::print_text;
use crate::{Failure, report};

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let baseline = report::read_file(&args.baseline)?;
    let before = args.baseline.display().to_string();
    let comparison = match &args.new {
        Some(new) => {
            let lines = report::read_file(new)?;
            compare((&before, &baseline), (&new.display().to_string(), &lines), args.tolerance)
        }
        None => compare_last((&before, &baseline), args.tolerance),
    };
    let comparison = comparison.map_err(Failure::user)?;
    report::show(&comparison, args.json)?;
    let slower: Vec<String> = comparison
        .of(Change::Regressed)
        .map(|row| format!("\n  {}: {} to {} ({})", row.name, row.before, row.after, row.change()))
        .collect();
    match slower.len() {
        0 if args.json => Ok(()),
        0 => print_text("no row is slower or worse"),
        1 => Err(Failure::other(format!(
            "1 row is slower or worse than in {before}:{}",
            slower.concat()
        ))),
        count => Err(Failure::other(format!(
            "{count} rows are slower or worse than in {before}:{}",
            slower.concat()
        ))),
    }
}
