//! Steps of models beside PyTorch's, in turns: eager, and as one CUDA graph, at the same precision.

use std::path::Path;

use serde_json::{Value, json};

use super::speeds::step;
use super::suites::{built, outcome};
use super::{Bench, Outcome};

const PEER: &str = "bench/peers/pytorch_gpu_step.py";
const ROUNDS: usize = 3;

/// A model, its batch, and the steps of a measurement.
const MODELS: &[(&str, usize, u64)] = &[
    ("mlp", 64, 60),
    ("fcn5", 64, 30),
    ("lstm", 64, 10),
    ("gru", 64, 10),
    ("alexnet", 64, 10),
    ("resnet50", 32, 8),
    ("gpt2-small", 4, 8),
    ("inception-v3", 32, 8),
    ("vgg16", 32, 8),
];
const OF_STAND_IN: &[(&str, usize, u64)] = &[("mlp", 4, 3)];

/// What was measured of a model, by round, in milliseconds a step.
#[derive(Debug, Default)]
struct Measured {
    ours: Vec<f64>,
    eager: Vec<f64>,
    graph: Vec<f64>,
}

pub(super) fn steps(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    outcome(steps_of(bench, &tensorwire))
}

fn steps_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let is_stand_in = bench.is_stand_in();
    let models = if is_stand_in { OF_STAND_IN } else { MODELS };
    let mut measured: Vec<Measured> = models.iter().map(|_| Measured::default()).collect();
    let mut first_error: Option<String> = None;
    for _ in 0..if is_stand_in { 1 } else { ROUNDS } {
        for (&(model, batch, steps), measured) in models.iter().zip(&mut measured) {
            let job = format!(
                "--strategy local --workers 1 --model {model} --data synthetic:{batch} --batch {batch} --steps {steps} \
                 --repetitions 1"
            );
            match step(bench, tensorwire, &job) {
                Ok(line) => measured.ours.extend(line["local_ms"]["median"].as_f64()),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
            match peer(bench, model, batch, steps) {
                Ok(Some(line)) => {
                    measured.eager.extend(line["eager_ms"].as_f64());
                    measured.graph.extend(line["graph_ms"].as_f64());
                }
                Ok(None) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
    }
    let (mut slower, mut counted) = (Vec::new(), 0);
    for (&(model, batch, _), Measured { ours, eager, graph }) in models.iter().zip(&measured) {
        let [ours_ms, eager_ms, graph_ms] = [ours, eager, graph].map(|all| median(all));
        let over = |theirs: Option<f64>| Some(ours_ms? / theirs?);
        bench.say(json!({
            "model": model, "batch": batch, "precision": "f32", "rounds": ours.len(),
            "tensorwire_ms": ours_ms, "eager_ms": eager_ms, "graph_ms": graph_ms,
            "over_eager": over(eager_ms), "over_graph": over(graph_ms), "all_ms": [ours, eager, graph],
        }))?;
        counted += usize::from(ours_ms.is_some());
        if over(eager_ms).is_some_and(|over| over > 1.0) && !is_stand_in {
            slower.push(model);
        }
    }
    let beside = match bench.python {
        Some(_) => String::new(),
        None => "; no PyTorch is here to measure beside (--with-torch installs it)".to_owned(),
    };
    if counted < models.len() {
        let why = first_error.unwrap_or_default();
        return Err(format!("{counted} of {} models were measured: {why}", models.len()));
    }
    let slow = if slower.is_empty() {
        String::new()
    } else {
        format!("; slower than PyTorch eager: {}", slower.join(", "))
    };
    let failed = first_error.map_or_else(String::new, |error| format!("; {error}"));
    Ok(Outcome::Passed(format!("{counted} models{slow}{beside}{failed}")))
}

/// PyTorch's step; none where it is not there.
fn peer(
    bench: &mut Bench<'_, '_>,
    model: &str,
    batch: usize,
    steps: u64,
) -> Result<Option<Value>, String> {
    let Some(python) = bench.python else { return Ok(None) };
    let mut command = bench.command(python);
    command.arg(crate::root().join(PEER)).args([model, &batch.to_string()]);
    command.args(["--steps", &steps.to_string()]);
    if bench.is_stand_in() {
        command.args(["--device", "cpu"]);
    }
    let ended =
        bench.run(&mut command)?.checked().map_err(|why| format!("PyTorch {model}: {why}"))?;
    let line = ended.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).map(Some).map_err(|error| format!("PyTorch {model}: {error}"))
}

fn median(all: &[f64]) -> Option<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
