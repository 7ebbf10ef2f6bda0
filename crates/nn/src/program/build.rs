//! One copy of the model in the graph: what it is fed with, what it learns, its loss and what is measured.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorwire_graph::{Graph, Hint, Op, Output};
use tensorwire_tensor::{DType, Dim};

use super::metric::{ACCURACY, LOSS, Metric, Tally};
use super::{ModelCopy, ProgramSpec, Variable};
use crate::data::Description;
use crate::error::{Error, Result, said};
use crate::model::{Batch, Loss, Measure, Model, Outputs};
use crate::scope::{Made, Mode, Scope, ScopeSpec, Weights};

/// What all copies of the model have in common.
#[derive(Clone, Copy)]
pub(super) struct Blueprint<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) data: &'a Description,
    pub(super) spec: &'a ProgramSpec,
}

/// What a copy of the model is called.
#[derive(Clone, Copy)]
pub(super) struct CopyNames<'a> {
    /// The prefix of the first copy of its replica, which has the parameters of all.
    pub(super) owner: &'a str,
    /// The prefix of the first copy on its device.
    pub(super) place: &'a str,
    /// The same, as far as it decides what is drawn at random.
    pub(super) drawn_as: &'a str,
    /// Its number on its device.
    pub(super) index: usize,
}

/// A copy of the model in the graph.
#[derive(Clone)]
pub(super) struct Built {
    pub(super) prefix: String,
    pub(super) made: Made,
    /// What training minimises, `f32[]`.
    pub(super) loss: Output,
    loss_name: String,
    /// What evaluation measures; of a classifier its logits and labels are counted.
    pub(super) metrics: Vec<Metric>,
    pub(super) classes: Option<[Output; 2]>,
}

impl Blueprint<'_> {
    /// Adds a copy of the model.
    pub(super) fn build(
        &self,
        graph: &mut Graph,
        names: CopyNames<'_>,
        hint: Hint,
        (mode, weights): (Mode, Weights),
    ) -> Result<Built> {
        let ProgramSpec { batch, dtype: kept_as, seed, ema, .. } = *self.spec;
        let dtype = self.spec.activations.unwrap_or(kept_as);
        let numbered = |first: &str| match names.index {
            0 => first.to_string(),
            index => format!("{first}.{index}"),
        };
        let (prefix, drawn_as) = (numbered(names.place), numbered(names.drawn_as));
        let owner = names.owner.to_string();
        let scope = ScopeSpec {
            prefix: prefix.clone(),
            owner,
            drawn_as,
            hint,
            mode,
            batch,
            dtype,
            kept_as,
            seed,
            weights,
            reads_averages: mode == Mode::Evaluate && ema.is_some(),
        };
        let mut scope = Scope::new(graph, scope);
        let fed = Batch::new(&mut scope, self.data)?;
        let outputs = self.forward(&mut scope, &fed)?;
        if !outputs.auxiliary.is_empty() {
            scope.differs_in_training();
        }
        let Losses { loss, each, classes } = losses(&mut scope, &outputs, mode)?;
        let mut metrics = Vec::with_capacity(outputs.metrics.len() + 1);
        for (name, measure) in &outputs.metrics {
            metrics.push(measured(&mut scope, name, *measure)?);
        }
        let made = scope.into_made();
        let name = |output: Output| graph.node(output.node).name.clone();
        let tally = match (classes, each) {
            (Some(_), _) => Tally::Labels,
            (None, Some(_)) => Tally::Samples,
            (None, None) => Tally::FullBatches,
        };
        let node = name(each.unwrap_or(loss));
        metrics.push(Metric { name: LOSS.to_string(), node, tally });
        let loss_name = name(loss);
        Ok(Built { prefix, made, loss, loss_name, metrics, classes })
    }

    /// Has the model add its layers, and turns a panic of its author's code into an error. The graph is thrown away then.
    fn forward(&self, scope: &mut Scope<'_>, fed: &Batch<'_>) -> Result<Outputs> {
        let forward = AssertUnwindSafe(|| self.model.forward(scope, fed));
        catch_unwind(forward).unwrap_or_else(|panic| {
            let (model, reason) = (self.model.name(), said(&*panic).to_string());
            Err(Error::Panicked { model, method: "forward", reason })
        })
    }
}

impl Built {
    /// Its names, where `graph` is what became of the one that it was built in.
    pub(super) fn named(&self, data: &Description, graph: &Graph) -> ModelCopy {
        let full = |name: &str| format!("{}/{name}", self.prefix);
        let is_read = |name: &str| graph.find(&full(name)).is_some();
        let inputs = data.features().iter().map(|feature| feature.name.clone());
        let inputs = inputs.filter(|name| is_read(name)).collect();
        let step = is_read(crate::data::STEP).then(|| full(crate::data::STEP));
        ModelCopy { prefix: self.prefix.clone(), loss: self.loss_name.clone(), step, inputs }
    }
}

/// The variable at an output, if it is one.
pub(super) fn declared(graph: &Graph, at: Output) -> Option<Variable> {
    let node = graph.node(at.node);
    match &node.op {
        Op::Variable { spec, init } => {
            Some(Variable { name: node.name.clone(), spec: spec.clone(), init: *init })
        }
        _ => None,
    }
}

struct Losses {
    /// `f32[]`; in training with all that is added to it.
    loss: Output,
    /// `f32[batch]`, where the model says it by sample.
    each: Option<Output>,
    /// Logits and labels of a classifier.
    classes: Option<[Output; 2]>,
}

fn losses(scope: &mut Scope<'_>, outputs: &Outputs, mode: Mode) -> Result<Losses> {
    // a loss of 8 bits says little
    let mut auxiliary = Vec::with_capacity(outputs.auxiliary.len());
    let (main, each) = in_f32(scope, "logits", "loss", outputs.loss)?;
    for (index, (loss, weight)) in outputs.auxiliary.iter().enumerate() {
        // the first has no number
        let name = match index {
            0 => "auxiliary".to_string(),
            _ => format!("auxiliary{}", index + 1),
        };
        let (loss, _) = in_f32(scope, &name, &name, *loss)?;
        auxiliary.push((name, loss, *weight));
    }
    let mut total = reduced(scope, "loss", main)?;
    if mode == Mode::Train {
        for (name, loss, weight) in auxiliary {
            let other = reduced(scope, &format!("{name}/loss"), loss)?;
            let weighed =
                scope.op(&format!("{name}/weighed"), Op::Scale { by: weight }, &[other])?;
            let sum = name.replacen("auxiliary", "loss/total", 1);
            total = scope.op(&sum, Op::Add, &[total, weighed])?;
        }
    }
    let classes = match main {
        Loss::Classes { logits, labels } => Some([logits, labels]),
        Loss::Value(_) => None,
    };
    Ok(Losses { loss: total, each, classes })
}

/// A loss of f32, and if it says a number a sample, those.
fn in_f32(
    scope: &mut Scope<'_>,
    logits_name: &str,
    name: &str,
    loss: Loss,
) -> Result<(Loss, Option<Output>)> {
    match loss {
        Loss::Classes { logits, labels } => {
            let logits = scope.as_f32(&format!("{logits_name}/f32"), logits)?;
            Ok((Loss::Classes { logits, labels }, None))
        }
        Loss::Value(value) => {
            let is_each = is_by_sample(scope, "loss", name, value)?;
            let value = scope.as_f32(&format!("{name}/f32"), value)?;
            let value = named(scope, &format!("{name}/value"), value)?;
            Ok((Loss::Value(value), is_each.then_some(value)))
        }
    }
}

/// A loss as one number.
fn reduced(scope: &mut Scope<'_>, name: &str, loss: Loss) -> Result<Output> {
    match loss {
        Loss::Classes { logits, labels } => scope.softmax_cross_entropy(name, logits, labels),
        Loss::Value(value) if scope.fact(value)?.dims.is_empty() => Ok(value),
        Loss::Value(value) => scope.reduce_mean(&format!("{name}/mean"), value, 0),
    }
}

fn measured(scope: &mut Scope<'_>, name: &str, measure: Measure) -> Result<Metric> {
    let refused = |reason: String| Error::Output { what: "metric", name: name.to_string(), reason };
    if [LOSS, ACCURACY].contains(&name) {
        return Err(refused(format!("{LOSS} and {ACCURACY} are there already; call it otherwise")));
    }
    let node = format!("metric/{name}");
    let (value, tally) = match measure {
        Measure::Count(right) => {
            let fact = scope.fact(right)?;
            if fact.dtype != DType::I64 || !fact.dims.is_empty() {
                return Err(refused(format!(
                    "is {fact}; a count is i64[], as CountCorrect gives it"
                )));
            }
            (right, Tally::Right)
        }
        Measure::Mean(value) => {
            let tally = match is_by_sample(scope, "metric", name, value)? {
                true => Tally::Samples,
                false => Tally::FullBatches,
            };
            (scope.as_f32(&format!("{node}/f32"), value)?, tally)
        }
    };
    let value = named(scope, &node, value)?;
    let node = scope.graph().node(value.node).name.clone();
    Ok(Metric { name: name.to_string(), node, tally })
}

/// A tensor as the only output of a node of its own.
fn named(scope: &mut Scope<'_>, name: &str, x: Output) -> Result<Output> {
    let to = scope.fact(x)?.dims.clone();
    scope.op(name, Op::Reshape { to }, &[x])
}

/// True if `value` is `f[batch]`, false if it is `f[]`.
fn is_by_sample(scope: &Scope<'_>, what: &'static str, name: &str, value: Output) -> Result<bool> {
    let fact = scope.fact(value)?;
    match fact.dims[..] {
        [] if fact.dtype.is_floating() => Ok(false),
        [Dim::Known(rows)] if fact.dtype.is_floating() && rows == scope.batch() => Ok(true),
        _ => {
            let batch = scope.batch();
            let reason = format!(
                "is {fact}; one number is needed, or one a sample, of which there are {batch}"
            );
            Err(Error::Output { what, name: name.to_string(), reason })
        }
    }
}
