//! Programs: a model with replicas, gradients, updates and evaluation, and the runs of a training job. Still only a graph:
//! nothing here knows which process does what.

mod accumulate;
pub(crate) mod average;
mod build;
mod compress;
mod decay;
mod metric;
mod updates;

use std::borrow::Cow;

use tensorwire_graph::{
    Cluster, Gradient, Graph, GraphError, Hint, Init, NodeId, Op, Output, RunId, RunSpec, Task,
    gradients, simplify, verify,
};
use tensorwire_tensor::{DType, TensorSpec};

use crate::Optimizer;
use crate::data::Description;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::scope::{Mode, Weights};
use accumulate::Sums;
use build::{Blueprint, Built, CopyNames, declared};
use updates::Updates;

pub use average::average_of;
pub use compress::{Compression, is_residual};
pub use decay::{is_named, rule_of};
pub use metric::{Mean, Metric, Tally};

/// How a model is to be trained.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramSpec {
    /// Samples per replica and step.
    pub batch: usize,
    pub replicas: u32,
    pub sharing: Sharing,
    /// How a variable is changed, given the mean gradient of a step.
    pub optimizer: Optimizer,
    /// Largest norm of the mean gradient of all variables; a larger one is scaled down to it. None: any.
    pub clip_norm: Option<f64>,
    /// Names of parameters that do not decay, whatever their shape; `*` in one stands for any characters.
    pub no_decay: Vec<String>,
    /// Decay of the exponential moving averages of the parameters, which are evaluated in their place. None: there are none.
    pub ema: Option<f64>,
    /// Batches of which a replica's gradient is the mean: so many times the samples of a step, in the memory of one.
    pub accumulate: usize,
    /// Devices of a replica: each has a copy of the model and batches of its own. Their gradients are reduced on the first,
    /// which has the variables, before anybody else sees them (Li et al. §3.1).
    pub devices: u32,
    /// Type of variables: f32, f64 or bf16.
    pub dtype: DType,
    /// Type of activations, if it is another: bf16 beside variables and slots of f32.
    pub activations: Option<DType>,
    /// What crosses of gradients of f32, if it is less than all.
    pub compression: Option<Compression>,
    /// Seed of dropout.
    pub seed: u64,
}

impl Default for ProgramSpec {
    /// One replica of batches of one sample, in f32.
    fn default() -> ProgramSpec {
        ProgramSpec {
            batch: 1,
            replicas: 1,
            sharing: Sharing::All,
            optimizer: Optimizer::default(),
            clip_norm: None,
            no_decay: Vec::new(),
            ema: None,
            accumulate: 1,
            devices: 1,
            dtype: DType::F32,
            activations: None,
            compression: None,
            seed: 1,
        }
    }
}

/// Who owns the variables, and how the replicas' gradients become one. Replicas form `clients`: groups of processes that
/// all-reduce their gradients before anybody else sees them (Mamidala et al. §4). Replica r is in client r mod `clients`, whose
/// first member, the master, is the replica with the client's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All replicas share them: each reads them and contributes its gradient.
    #[default]
    All,
    /// All clients share them: a client's master reads them, broadcasts them, and contributes the client's mean gradient.
    Clients { clients: u32 },
    /// Each replica has its own, updated with its client's mean gradient.
    Own { clients: u32 },
    /// Each replica has its own, updated with the mean gradient of all, which is made of the clients' where servers are.
    Reduced { clients: u32 },
}

impl Sharing {
    fn weights(self, replica: u32) -> Weights {
        match self {
            Sharing::All => Weights::Shared,
            Sharing::Clients { clients } => Weights::Spread { is_first: replica < clients },
            Sharing::Own { .. } | Sharing::Reduced { .. } => {
                Weights::Own { is_first: replica == 0 }
            }
        }
    }

    /// The name of a model's variable at a replica.
    pub fn name(self, variable: &str, replica: u32) -> String {
        match self {
            _ if self.has_own() && replica > 0 => format!("replica{replica}/{variable}"),
            _ => variable.to_string(),
        }
    }

    /// True if each replica has variables of its own.
    pub fn has_own(self) -> bool {
        matches!(self, Sharing::Own { .. } | Sharing::Reduced { .. })
    }

    fn spreads(self) -> bool {
        matches!(self, Sharing::Clients { .. })
    }
}

/// A training graph, and the names by which its nodes are found in every partition.
#[derive(Clone, Debug)]
pub struct Program {
    pub graph: Graph,
    /// The parameters, in the order of declaration.
    pub variables: Vec<Variable>,
    /// Moving averages that evaluation uses, in the order of declaration.
    pub averages: Vec<Variable>,
    /// The optimizer's state, by name. Starts as zeros.
    pub slots: Vec<String>,
    /// What replicas have not sent yet of their gradients, each its own, by name. Starts as zeros.
    pub residuals: Vec<String>,
    /// As many for each replica as it has devices and each of these accumulates gradients of, those of one device together.
    pub replicas: Vec<ModelCopy>,
    /// Worker 0's copy for [`Program::EVALUATE`]: the first replica, or a separate copy if evaluation computes something else
    /// than training.
    pub evaluation: ModelCopy,
    /// What evaluation measures.
    pub metrics: Vec<Metric>,
    /// Batches that a device of a replica takes in a step.
    pub accumulate: usize,
    /// Devices of a replica.
    pub devices: u32,
    /// Parameters are evaluated as their averages.
    is_averaged: bool,
    /// Nodes that one training step must compute.
    roots: Vec<String>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    pub name: String,
    pub spec: TensorSpec,
    pub init: Init,
}

/// The names of one copy of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCopy {
    prefix: String,
    /// Output 0 is the mean loss of the copy's batch, `f32[]`.
    pub loss: String,
    /// The input that counts steps, `i64[]`, if the model needs it.
    pub step: Option<String>,
    /// The tensors of the data that it reads.
    inputs: Vec<String>,
}

impl ModelCopy {
    /// The node to feed with the data's tensor `name`. None if the model does not read it.
    pub fn input(&self, name: &str) -> Option<String> {
        let is_read = self.inputs.iter().any(|input| input == name);
        is_read.then(|| format!("{}/{name}", self.prefix))
    }
}

impl Program {
    /// One training step, with all updates.
    pub const TRAIN: RunId = RunId(0);
    /// Brings the variables to worker 0.
    pub const FETCH: RunId = RunId(1);
    /// Worker 0 measures a batch, with the variables that it fetched.
    pub const EVALUATE: RunId = RunId(2);

    /// Builds the replicas, the gradient of each replica's loss, the updates, which reduce the replicas' gradients in rank
    /// order, and the evaluation.
    ///
    /// # Errors
    /// When the model and the data do not fit each other, or the spec makes no sense for them.
    pub fn new(model: &dyn Model, data: &Description, spec: &ProgramSpec) -> Result<Program> {
        model.check(data)?;
        let blueprint = Blueprint { model, data, spec };
        let mut graph = Graph::new();
        let (accumulate, devices) = (spec.accumulate.max(1), spec.devices.max(1));
        // fits: devices are few
        let each = accumulate * devices as usize;
        let mut built = Vec::new();
        let mut sums = Vec::new();
        for replica in 0..spec.replicas {
            let owner = format!("replica{replica}");
            let weights = (Mode::Train, spec.sharing.weights(replica));
            let mut of_devices = Vec::new();
            for device in 0..devices {
                let (place, hint) = match device {
                    0 => (owner.clone(), Hint::Replica(replica)),
                    _ => (format!("{owner}/device{device}"), Hint::Device { replica, device }),
                };
                // what is drawn is what a worker of its own would draw
                let drawn_as = format!("replica{}", replica * devices + device);
                let mut of_device = Sums::default();
                for index in 0..accumulate {
                    let names =
                        CopyNames { owner: &owner, place: &place, drawn_as: &drawn_as, index };
                    let copy = blueprint.build(&mut graph, names, hint, weights)?;
                    if copy.made.learned.is_empty() {
                        return Err(Error::NoParameters { model: model.name() });
                    }
                    let found = differentiate(&mut graph, &copy, hint)?;
                    of_device.add(&mut graph, &copy, each > 1, found)?;
                    built.push(copy);
                }
                of_devices.push(of_device.mean(&mut graph, &place)?);
            }
            sums.push(Sums::of_devices(of_devices, &mut graph, (&owner, Hint::Replica(replica)))?);
        }
        let of_first = |of: fn(&Built) -> Vec<Output>| {
            let outputs = built.first().map(of).unwrap_or_default();
            outputs.into_iter().filter_map(|at| declared(&graph, at)).collect::<Vec<Variable>>()
        };
        let variables = of_first(|copy| copy.made.learned.iter().map(|l| l.variable).collect());
        let averages =
            of_first(|copy| copy.made.averages.iter().map(|average| average.variable).collect());
        let (slots, residuals, roots) = (Vec::new(), Vec::new(), Vec::new());
        let mut updates = Updates { graph: &mut graph, spec, slots, residuals, roots };
        let firsts: Vec<&Built> = built.iter().step_by(each).collect();
        updates.add(&firsts, sums)?;
        let Updates { mut slots, residuals, roots: mut updates, .. } = updates;
        let is_averaged = spec.ema.is_some();
        let mut averaged = Vec::new();
        if let (Some(decay), Some(first)) = (spec.ema, built.first()) {
            let added = average::add(&mut graph, decay, first)?;
            slots.extend(added.kept);
            updates.extend(added.updates);
            averaged = added.now;
        }
        let evaluated = evaluated(blueprint, &mut graph, &built)?;
        let looked_at = look_at(&mut graph, &averages)?;
        let metrics = measured(&mut graph, &evaluated)?;
        verify(&graph, "gradients")?;
        let losses = built.iter().map(|copy| copy.loss.node);
        let roots: Vec<NodeId> = updates.into_iter().chain(losses).collect();
        let names = roots.iter().map(|id| graph.node(*id).name.clone()).collect();
        let mut kept = roots;
        kept.push(evaluated.loss.node);
        kept.extend(metrics.iter().filter_map(|metric| graph.find(&metric.node)));
        kept.extend(looked_at);
        kept.extend(averaged);
        let (graph, _) = simplify(&graph, &kept)?;
        verify(&graph, "simplify")?;
        Ok(Program {
            replicas: built.iter().map(|copy| copy.named(data, &graph)).collect(),
            evaluation: evaluated.named(data, &graph),
            graph,
            variables,
            averages,
            slots,
            residuals,
            metrics,
            accumulate,
            devices,
            is_averaged,
            roots: names,
        })
    }

    /// The copies of the model that a replica has: one for each batch that it takes in a step, device by device.
    pub fn copies(&self, replica: usize) -> &[ModelCopy] {
        // fits: devices are few
        let each = self.accumulate * self.devices as usize;
        self.replicas.get(replica * each..(replica + 1) * each).unwrap_or_default()
    }

    /// True if the graph has convolutions.
    pub fn convolves(&self) -> bool {
        self.graph.nodes().any(|(_, node)| matches!(node.op, Op::Conv2d { .. }))
    }

    /// What is saved of a trained model: the parameters and the moving averages.
    pub fn weights(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter().chain(&self.averages)
    }

    /// The node that has the mean of what all clients give to a parameter or a moving average ([`Sharing::Reduced`]).
    pub fn mean_of(name: &str) -> String {
        format!("mean/{name}")
    }

    /// The node that has a parameter or a moving average as it is evaluated, after [`Program::FETCH`]: the variable of that name,
    /// or its average.
    pub fn evaluated_as<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.is_averaged && self.variables.iter().any(|variable| variable.name == name) {
            true => average::now(name).into(),
            false => name.into(),
        }
    }

    /// The parameter whose average the variable of this name is; the name itself of any other. Both begin alike.
    pub fn begins_as<'n>(&self, name: &'n str) -> &'n str {
        let of = average::of(name).filter(|_| self.is_averaged);
        let is_known = |of: &&str| self.variables.iter().any(|variable| variable.name == *of);
        of.filter(is_known).unwrap_or(name)
    }

    /// The runs of a training job, for the graph as placed on `cluster`: [`Program::TRAIN`], [`Program::FETCH`] and
    /// [`Program::EVALUATE`].
    pub fn runs(&self, placed: &Graph, cluster: Cluster) -> Vec<RunSpec> {
        let find = |name: &String| placed.find_all(name);
        let evaluated = self.weights().map(|variable| self.evaluated_as(&variable.name));
        let weights: Vec<NodeId> = evaluated.filter_map(|name| placed.find(&name)).collect();
        let first: Option<Task> = cluster.tasks().first().copied();
        let measured = self.metrics.iter().map(|metric| &metric.node);
        let mut evaluated: Vec<NodeId> = Vec::new();
        for node in measured.chain([&self.evaluation.loss]).flat_map(find) {
            if !evaluated.contains(&node) {
                evaluated.push(node);
            }
        }
        let run = |name, roots, fetch_to, given, followed_by| RunSpec {
            name,
            roots,
            fetch_to,
            given,
            followed_by,
        };
        // an update may have been split over servers
        let train = self.roots.iter().flat_map(find).collect();
        vec![
            run("train", train, None, vec![], vec![0, 1]),
            run("fetch", weights.clone(), first, vec![], vec![2]),
            run("evaluate", evaluated, None, weights, vec![2]),
        ]
    }
}

/// The node that counts the right labels of the evaluated batch, `i64[]`.
const CORRECT: &str = "correct";

/// The copy that is evaluated: the first replica, or one of its own where evaluation computes something else. It comes
/// behind all updates, so that what trains does not wait for it.
fn evaluated(blueprint: Blueprint<'_>, graph: &mut Graph, built: &[Built]) -> Result<Built> {
    let sharing = blueprint.spec.sharing;
    match built.first() {
        Some(first)
            if !first.made.has_modes && !sharing.spreads() && blueprint.spec.ema.is_none() =>
        {
            Ok(first.clone())
        }
        _ => {
            let hint = Hint::Replica(0);
            let weights = match sharing {
                sharing if sharing.has_own() => Weights::Own { is_first: true },
                _ => Weights::Shared,
            };
            let name = "evaluation";
            let names = CopyNames { owner: name, place: name, drawn_as: name, index: 0 };
            blueprint.build(graph, names, hint, (Mode::Evaluate, weights))
        }
    }
}

/// The gradients of a copy's loss, in the order of what it learns.
fn differentiate(graph: &mut Graph, copy: &Built, hint: Hint) -> Result<Vec<Gradient>> {
    let prefix = format!("{}/gradient", copy.prefix);
    let learned: Vec<Output> = copy.made.learned.iter().map(|l| l.read_as).collect();
    let made = gradients(graph, &prefix, hint, copy.loss, &learned);
    made.map_err(|error| unused(error, copy, graph))
}

/// Fetches the averages for evaluation, which may have no use for some: they are part of what is saved.
fn look_at(graph: &mut Graph, averages: &[Variable]) -> Result<Vec<NodeId>> {
    let mut looked_at = Vec::with_capacity(averages.len());
    for variable in averages {
        let Some(average) = graph.find(&variable.name).map(Output::from) else { continue };
        let to = graph.fact(average).dims.clone();
        let name = format!("evaluation/{}", variable.name);
        looked_at.push(graph.add(&name, Hint::Replica(0), Op::Reshape { to }, &[average])?);
    }
    Ok(looked_at)
}

/// What evaluation measures, a classifier's accuracy first.
fn measured(graph: &mut Graph, evaluated: &Built) -> Result<Vec<Metric>> {
    let mut metrics = evaluated.metrics.clone();
    if let Some(classes) = evaluated.classes {
        graph.add(CORRECT, Hint::Replica(0), Op::CountCorrect, &classes)?;
        let (name, node) = (metric::ACCURACY.to_string(), CORRECT.to_string());
        metrics.insert(0, Metric { name, node, tally: Tally::Right });
    }
    Ok(metrics)
}

/// Names a parameter that the loss does not depend on.
fn unused(error: GraphError, copy: &Built, graph: &Graph) -> Error {
    let mut learned = copy.made.learned.iter().map(|l| &graph.node(l.variable.node).name);
    match error {
        GraphError::NoGradient { node, .. } if learned.any(|name| *name == node) => {
            Error::UnusedParameter { name: node }
        }
        error => error.into(),
    }
}
