//! Steps of models beside PyTorch's, in turns: eager, and as one CUDA graph, at equal precision: products of f32, and of TF32.
//! What is slower than it may be fails.

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

/// What both multiply, as `--math` and the peer's `--precision` have it.
const PRECISIONS: [&str; 2] = ["f32", "tf32"];

/// Of PyTorch's eager step, and of its graph's, that a step may take at most.
const OVER_EAGER_MAX: f64 = 1.0;
const OVER_GRAPH_MAX: f64 = 0.9;
/// Models that are held against the graph, too.
const BESIDE_GRAPH: [&str; 2] = ["mlp", "fcn5"];

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
    let python = bench.python.filter(|_| !is_stand_in);
    let no_cuda = python.and_then(|python| without_cuda(bench, python));
    let beside = match (bench.python, &no_cuda) {
        (None, _) => "; no PyTorch is here to measure beside (--with-torch installs it)".to_owned(),
        (_, Some(why)) => format!("; PyTorch is here and uses no GPU: {why}"),
        _ => String::new(),
    };
    let cases: Vec<_> =
        PRECISIONS.iter().flat_map(|by| models.iter().map(move |m| (*by, m))).collect();
    let mut measured: Vec<Measured> = cases.iter().map(|_| Measured::default()).collect();
    let mut first_error: Option<String> = None;
    for _ in 0..if is_stand_in { 1 } else { ROUNDS } {
        for (&(precision, &(model, batch, steps)), measured) in cases.iter().zip(&mut measured) {
            let job = format!(
                "--strategy local --workers 1 --model {model} --data synthetic:{batch} --batch {batch} --steps {steps} \
                 --repetitions 1 --math {precision}"
            );
            match step(bench, tensorwire, &job) {
                Ok(line) => measured.ours.extend(line["local_ms"]["median"].as_f64()),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
            let peer = match no_cuda {
                Some(_) => Ok(None),
                None => peer(bench, (model, batch, steps), precision),
            };
            match peer {
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
    for (&(precision, &(model, batch, _)), measured) in cases.iter().zip(&measured) {
        let Measured { ours, eager, graph } = measured;
        let [ours_ms, eager_ms, graph_ms] = [ours, eager, graph].map(|all| median(all));
        let over = |theirs: Option<f64>| Some(ours_ms? / theirs?);
        bench.say(json!({
            "model": model, "batch": batch, "precision": precision, "rounds": ours.len(),
            "tensorwire_ms": ours_ms, "eager_ms": eager_ms, "graph_ms": graph_ms,
            "over_eager": over(eager_ms), "over_graph": over(graph_ms), "all_ms": [ours, eager, graph],
        }))?;
        counted += usize::from(ours_ms.is_some());
        let overs = [over(eager_ms), over(graph_ms)];
        // beside no PyTorch there is nothing to miss
        let missed = if beside.is_empty() { missed(model, overs) } else { Vec::new() };
        slower.extend(missed.into_iter().map(|why| format!("{precision}: {why}")));
    }
    if counted < cases.len() {
        let why = first_error.unwrap_or_default();
        return Err(format!("{counted} of {} steps were measured: {why}", cases.len()));
    }
    let mut wrong = if is_stand_in { Vec::new() } else { slower };
    wrong.extend(first_error);
    let said = format!("{} models in {}{beside}", models.len(), PRECISIONS.join(" and "));
    Ok(match wrong.is_empty() {
        false => Outcome::Failed(format!("{}; {said}", wrong.join("; "))),
        // steps beside nothing are no answer
        true if !beside.is_empty() && !is_stand_in => Outcome::NotRun(said),
        true => Outcome::Passed(said),
    })
}

/// What of a model's step takes longer than it may, of PyTorch's eager step and its graph's, or was not measured beside it.
fn missed(model: &str, [over_eager, over_graph]: [Option<f64>; 2]) -> Vec<String> {
    let mut limits = vec![(over_eager, OVER_EAGER_MAX, "eager")];
    if BESIDE_GRAPH.contains(&model) {
        limits.push((over_graph, OVER_GRAPH_MAX, "graph"));
    }
    let missed = limits.into_iter().filter_map(|(over, most, what)| match over {
        Some(over) if over <= most => None,
        Some(over) => {
            Some(format!("{model} takes {over:.2} of PyTorch's {what} step, {most} is asked for"))
        }
        None => Some(format!("{model} was not measured beside PyTorch's {what} step")),
    });
    missed.collect()
}

/// Why PyTorch computes nothing on this GPU; none: it does.
fn without_cuda(bench: &mut Bench<'_, '_>, python: &Path) -> Option<String> {
    let script = "import torch\nif not torch.cuda.is_available(): torch.cuda.init()";
    let mut command = bench.command(python);
    match bench.run(command.args(["-c", script])) {
        Ok(ended) if ended.succeeded => None,
        Ok(ended) => {
            Some(ended.stderr.lines().last().unwrap_or("it does not say why").trim().to_owned())
        }
        Err(why) => Some(why),
    }
}

/// PyTorch's step; none where it is not there.
fn peer(
    bench: &mut Bench<'_, '_>,
    (model, batch, steps): (&str, usize, u64),
    precision: &str,
) -> Result<Option<Value>, String> {
    let Some(python) = bench.python else { return Ok(None) };
    let mut command = bench.command(python);
    command.arg(crate::root().join(PEER)).args([model, &batch.to_string()]);
    command.args(["--steps", &steps.to_string(), "--precision", precision]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_longer_than_it_may_is_said() {
        assert!(missed("mlp", [Some(1.0), Some(0.9)]).is_empty());
        assert!(missed("vgg16", [Some(0.7), Some(1.4)]).is_empty());
        assert!(missed("vgg16", [Some(0.7), None]).is_empty());
        let said = missed("mlp", [Some(1.2), Some(0.95)]);
        assert!(said[0].contains("mlp takes 1.20 of PyTorch's eager step"), "{said:?}");
        assert!(said[1].contains("0.95 of PyTorch's graph step, 0.9 is asked for"), "{said:?}");
        assert_eq!(missed("vgg16", [Some(f64::NAN), None]).len(), 1);
        let said = missed("fcn5", [None, None]);
        assert!(said.len() == 2 && said[0].contains("was not measured"), "{said:?}");
    }
}
