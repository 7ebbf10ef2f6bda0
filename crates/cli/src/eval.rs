//! `tensorwire eval`: what saved weights are worth, without training.

use tensorwire_bench::ByName;
use tensorwire_launch::Movement;
use tensorwire_train::{EvaluationSummary, WeightsOrigin};

use super::Failure;
use super::args::EvalArgs;
use super::output::{OnMachine, json_line, last_words, note, print, print_text};

pub(crate) fn run(args: EvalArgs) -> Result<(), Failure> {
    let json = args.json;
    let config = args.config()?;
    let on_still = |movement: Movement| {
        if !matches!(movement, Movement::Stopped(_)) {
            return note(movement);
        }
        last_words(format!("error: {movement}"));
        std::process::exit(1);
    };
    let summary = EvaluationSummary::evaluate(config, &ByName, &on_still)?;
    if json { print(json_line(&OnMachine::here(&summary))?) } else { show(&summary) }
}

fn show(summary: &EvaluationSummary) -> Result<(), Failure> {
    let EvaluationSummary { model, data, weights, samples, seconds, .. } = summary;
    print_text(format_args!(
        "{model} on {data}, {}; weights of {}",
        summary.kernels,
        weights.display()
    ))?;
    print_text(format_args!(
        "{samples} samples in {seconds:.2} s, {:.0} samples/s, test loss {:.4}",
        summary.samples_per_second,
        summary.test_loss.unwrap_or(f64::NAN),
    ))?;
    // of a table that was not cut before, a part tests
    let is_own = WeightsOrigin::read(weights).is_some_and(|said| said.data == *data);
    let table = data.strip_prefix("csv:").filter(|files| !files.contains(','));
    if is_own && table.is_some() {
        print_text(format_args!(
            "these are the tenth of its rows that tests, which training leaves aside"
        ))?;
    } else if let Some(file) = table {
        print_text(format_args!(
            "these are the tenth of {file} that tests; csv:TRAIN,{file}, with the file that was trained on, evaluates all of it"
        ))?;
    }
    print_text(format_args!("weights sha256 {}", summary.weights_sha256))?;
    for (name, value) in &summary.metrics {
        print_text(format_args!("test {} {value:.4}", name.replace('_', " ")))?;
    }
    if let Some(perplexity) = summary.test_perplexity {
        print_text(format_args!("test perplexity {perplexity:.4}"))?;
    }
    match summary.test_accuracy {
        Some(accuracy) => print_text(format_args!("test accuracy {accuracy:.4}")),
        None => Ok(()),
    }
}
