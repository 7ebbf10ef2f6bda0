//! `tensorwire eval`: what saved weights are worth, without training.

use std::sync::Arc;

use tensorwire_bench::ByName;
use tensorwire_launch::Movement;
use tensorwire_nn::{Data, Error, Model};
use tensorwire_train::{ConfigError, EvaluationSummary, Supply, TrainConfig};

use super::Failure;
use super::args::EvalArgs;
use super::output::{OnMachine, json_line, last_words, note, print, print_text};

pub(crate) fn run(args: EvalArgs) -> Result<(), Failure> {
    let json = args.json;
    let (config, is_own) = args.config()?;
    let on_still = |movement: Movement| {
        if !matches!(movement, Movement::Stopped(_)) {
            return note(movement);
        }
        last_words(format!("error: {movement}"));
        std::process::exit(1);
    };
    let summary = match is_own {
        true => EvaluationSummary::evaluate(config, &NamedByWeights, &on_still),
        false => EvaluationSummary::evaluate(config, &ByName, &on_still),
    }?;
    if json { print(json_line(&OnMachine::here(&summary))?) } else { show(&summary, is_own) }
}

/// What is shipped, of data that weights name and the user need not have said.
struct NamedByWeights;

impl Supply for NamedByWeights {
    fn model(&self, config: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError> {
        ByName.model(config)
    }

    fn data(&self, config: &TrainConfig) -> Result<Data, ConfigError> {
        ByName.data(config).map_err(|error| {
            let mend = "these are what the weights were trained on: say where they are now, or give others, by --data";
            ConfigError::from(Error::Mismatch(format!("{error}; {mend}")))
        })
    }
}

fn show(summary: &EvaluationSummary, is_own: bool) -> Result<(), Failure> {
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
