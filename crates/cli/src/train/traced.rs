//! What a trace shows in figures.

use tensorwire_train::{Hidden, TraceSummary};

use crate::Failure;
use crate::output::print_text;

/// Says what of communication was hidden, and how well the clocks of other hosts are known.
pub(super) fn show(trace: Option<&TraceSummary>) -> Result<(), Failure> {
    let Some(TraceSummary { hidden, clock_error_ns, unknown }) = trace else { return Ok(()) };
    if let Some(hidden) = hidden {
        print_text(line(hidden))?;
    }
    if let Some(error) = clock_error_ns {
        print_text(format_args!(
            "clocks: times of other hosts are put in this one's, to within {}",
            ms(*error as f64)
        ))?;
    }
    if !unknown.is_empty() {
        let ranks: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        print_text(format_args!(
            "not in the trace: rank {}, on other hosts, whose clocks were not read in so short a job",
            ranks.join(", ")
        ))?;
    }
    Ok(())
}

fn line(hidden: &Hidden) -> String {
    let Hidden { step_ns, waited_ns, under_way_ns, .. } = *hidden;
    let waited = format!("workers waited {} of {} a step", ms(waited_ns), ms(step_ns));
    match hidden.share() {
        None => waited,
        Some(share) => format!(
            "communication: tensors under way for {} a step, {:.0} % of it hidden behind kernels; {waited}",
            ms(under_way_ns),
            share * 100.0,
        ),
    }
}

/// Nanoseconds as milliseconds.
fn ms(ns: f64) -> String {
    format!("{:.3} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_what_was_under_way() {
        let hidden = Hidden { step_ns: 4e6, waited_ns: 5e5, under_way_ns: 2e6, hidden_ns: 1.5e6 };
        assert_eq!(
            line(&hidden),
            "communication: tensors under way for 2.000 ms a step, 75 % of it hidden behind kernels; workers waited \
             0.500 ms of 4.000 ms a step"
        );
        let nothing = Hidden { under_way_ns: 0.0, hidden_ns: 0.0, ..hidden };
        assert_eq!(line(&nothing), "workers waited 0.500 ms of 4.000 ms a step");
    }
}
