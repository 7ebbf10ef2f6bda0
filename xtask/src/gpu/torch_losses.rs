//! Losses of a model's first steps on the GPU beside PyTorch's, from one file of weights and the same batches. PyTorch computes them
//! on the processor, so that no library of CUDA's is behind both.

use std::path::Path;

use serde_json::{Value, json};

use super::jobs::RELATIVE_MAX;
use super::suites::{built, outcome};
use super::{Bench, Outcome};

const PEER: &str = "bench/peers/pytorch_loss.py";

/// A model, and how many steps: of the last one rounding has grown by the fifth, in f64, too.
const MODELS: &[(&str, u64)] = &[
    ("mlp", 10),
    ("fcn5", 10),
    ("cifar", 10),
    ("lstm", 10),
    ("gru", 10),
    ("seq2seq", 10),
    ("sentence-embedding", 10),
    ("gpt-mini", 10),
    ("bert-mini", 10),
    ("vit-small", 10),
    ("alexnet", 10),
    ("resnet50", 10),
    ("gpt2-small", 10),
    ("vgg16", 10),
    ("inception-v3", 4),
];
const OF_STAND_IN: &[(&str, u64)] = &[("mlp", 2), ("cifar", 2)];

pub(super) fn losses(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    let Some(python) = bench.python else {
        return Outcome::NotRun(
            "no PyTorch is here to compute beside (--with-torch installs it)".to_owned(),
        );
    };
    outcome(losses_of(bench, python, &tensorwire))
}

fn losses_of(
    bench: &mut Bench<'_, '_>,
    python: &Path,
    tensorwire: &Path,
) -> Result<Outcome, String> {
    let models = if bench.is_stand_in() { OF_STAND_IN } else { MODELS };
    let mut wrong = Vec::new();
    for &model in models {
        match beside(bench, python, tensorwire, model, &[]) {
            Ok(line) => {
                let apart = apart(&line);
                bench.say(line)?;
                if apart.is_some() {
                    // whether a library's numbers are apart, or ours
                    let own = ["--cuda-libs", "none"];
                    match beside(bench, python, tensorwire, model, &own) {
                        Ok(line) => bench.say(line)?,
                        Err(why) => wrong.push(format!("{} by own kernels: {why}", model.0)),
                    }
                }
                wrong.extend(apart);
            }
            Err(why) => wrong.push(format!("{}: {why}", model.0)),
        }
    }
    Ok(match wrong.is_empty() {
        true => {
            Outcome::Passed(format!("{} models within {RELATIVE_MAX} of PyTorch's", models.len()))
        }
        false => Outcome::Failed(wrong.join("; ")),
    })
}

/// Why a model's losses are not PyTorch's; none: they are.
fn apart(line: &Value) -> Option<String> {
    let worst = line["worst_apart"].as_f64().unwrap_or(f64::NAN);
    (worst.is_nan() || worst > RELATIVE_MAX).then(|| {
        format!(
            "{} is {worst:.1e} apart, {RELATIVE_MAX} is asked for",
            line["model"].as_str().unwrap_or("a model")
        )
    })
}

/// A model's steps by both.
fn beside(
    bench: &mut Bench<'_, '_>,
    python: &Path,
    tensorwire: &Path,
    (model, steps): (&str, u64),
    options: &[&str],
) -> Result<Value, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = bench.command(python);
    command.arg(crate::root().join(PEER)).arg("--tensorwire").arg(tensorwire);
    command.args(["--models", model, "--steps", &steps.to_string(), "--threads", &threads]);
    command.args(["--device", "cuda"]).args(bench.driver_option()).args(options);
    command.arg("--json").arg(file.path());
    if bench.is_stand_in() {
        command.args(["--batch", "2"]);
    }
    // it also ends with a failure where they differ
    let ended = bench.run(&mut command)?;
    let text = std::fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let line = text.lines().last().ok_or_else(|| ended.why())?;
    let line: Value = serde_json::from_str(line).map_err(|error| format!("{error} in '{line}'"))?;
    let last = |key: &str| line[key].as_array().and_then(|losses| losses.last().cloned());
    Ok(json!({
        "model": line["model"],
        "dtype": line["dtype"],
        "steps": line["steps"],
        "gpu_loss": last("losses"),
        "torch_loss": last("pytorch"),
        "worst_apart": line["worst"],
        "options": (!options.is_empty()).then(|| options.join(" ")),
        "gpu_losses": line["losses"],
        "torch_losses": line["pytorch"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_apart_or_was_not_said_fails() {
        let of = |worst: Value| apart(&json!({ "model": "mlp", "worst_apart": worst }));
        assert_eq!(of(json!(1e-3)), None);
        assert_eq!(of(json!(0.002)).unwrap(), "mlp is 2.0e-3 apart, 0.001 is asked for");
        assert!(of(Value::Null).is_some());
    }
}
