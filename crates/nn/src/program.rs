//! A model made trainable: replicas, loss, gradients, updates, and the runs that a training job does.
//! Still only a graph: nothing here knows which process does what.

mod updates;

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Rule, RunId, RunSpec, Task,
    gradients, simplify, verify,
};
use tensorwire_tensor::{DType, TensorSpec};

use crate::model::{Model, Outcome};
use crate::scope::{Learned, Mode, Scope, Weights};
use updates::Updates;

/// How a model is to be trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramSpec {
    /// Samples of one replica in one step.
    pub batch: usize,
    pub replicas: u32,
    pub sharing: Sharing,
    /// How a variable is changed, given the mean gradient of a step.
    pub rule: Rule,
    /// Of variables and activations: f32, f64 or bf16.
    pub dtype: DType,
    /// Of what dropout drops.
    pub seed: u64,
}

/// Whose the variables are, and how the replicas come to one gradient. Replicas are in `clients`: groups of
/// processes that fold their gradients before anybody else sees them (Mamidala et al. §4). Replica r is in client
/// r mod `clients`, whose first member, its master, is the replica of that number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All replicas': each gets them and gives its gradient.
    #[default]
    All,
    /// All clients': a client's master gets them, spreads them, and gives the client's mean gradient.
    Clients { clients: u32 },
    /// Each replica's own, changed by its client's mean gradient.
    Own { clients: u32 },
}

impl Sharing {
    fn weights(self, replica: u32) -> Weights {
        match self {
            Sharing::All => Weights::Shared,
            Sharing::Clients { clients } => Weights::Spread { is_first: replica < clients },
            Sharing::Own { .. } => Weights::Own { is_first: replica == 0 },
        }
    }

    /// What `variable` of the model is called at a replica.
    pub fn name(self, variable: &str, replica: u32) -> String {
        match self {
            Sharing::Own { .. } if replica > 0 => format!("replica{replica}/{variable}"),
            _ => variable.to_string(),
        }
    }

    fn spreads(self) -> bool {
        matches!(self, Sharing::Clients { .. })
    }
}

/// A training graph and the names by which its nodes are found again in every partition.
#[derive(Clone, Debug)]
pub struct Program {
    pub graph: Graph,
    /// What is learned, in the order of declaration.
    pub variables: Vec<Variable>,
    /// Moving averages that evaluation uses, in the order of declaration.
    pub averages: Vec<Variable>,
    /// State of the optimizer; starts as zeros.
    pub slots: Vec<String>,
    pub replicas: Vec<ModelCopy>,
    /// Worker 0's copy for [`Program::EVALUATE`]: its first replica, or one of its own where evaluation
    /// computes something else than training.
    pub evaluation: ModelCopy,
    /// How many of the evaluated batch are classified right, i64[].
    pub correct: String,
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
    /// Output 0 is the mean loss of the copy's batch, f32[].
    pub loss: String,
    /// The number of the step, i64[], where the model asks for it.
    pub step: Option<String>,
}

impl ModelCopy {
    /// The node that is fed what the data call `name`.
    pub fn input(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}

impl Program {
    /// One step of training: every update.
    pub const TRAIN: RunId = RunId(0);
    /// The variables come to worker 0.
    pub const FETCH: RunId = RunId(1);
    /// Worker 0 counts what it classifies right, with the variables that it fetched.
    pub const EVALUATE: RunId = RunId(2);

    /// Builds replicas that share variables, the gradient of each replica's loss, and the updates,
    /// which fold the replicas' gradients in rank order.
    ///
    /// # Errors
    /// When the spec makes no sense for the model.
    pub fn new(model: &dyn Model, spec: &ProgramSpec) -> Result<Program, GraphError> {
        let mut graph = Graph::new();
        let mut built = Vec::new();
        for replica in 0..spec.replicas {
            let (prefix, hint) = (format!("replica{replica}"), Hint::Replica(replica));
            let weights = spec.sharing.weights(replica);
            built.push(build(&mut graph, model, spec, prefix, hint, (Mode::Train, weights))?);
        }
        let of_first = |of: fn(&Built) -> Vec<Output>| {
            let outputs = built.first().map(of).unwrap_or_default();
            outputs.into_iter().filter_map(|at| declared(&graph, at)).collect::<Vec<Variable>>()
        };
        let variables = of_first(|copy| copy.learned.iter().map(|l| l.variable).collect());
        let averages = of_first(|copy| copy.averages.iter().map(|(at, _)| *at).collect());
        let mut found = Vec::new();
        for (replica, copy) in (0..spec.replicas).zip(&built) {
            let prefix = format!("replica{replica}/gradient");
            let learned: Vec<Output> = copy.learned.iter().map(|l| l.read_as).collect();
            let hint = Hint::Replica(replica);
            found.push(gradients(&mut graph, &prefix, hint, copy.loss, &learned)?);
        }
        let mut updates = Updates { graph: &mut graph, spec, slots: Vec::new(), roots: Vec::new() };
        updates.add(&built, found)?;
        let Updates { slots, roots: updates, .. } = updates;
        // an own copy behind all updates: what trains is not in its way
        let evaluated = match built.first() {
            Some(first) if !first.has_modes && !spec.sharing.spreads() => first.clone(),
            _ => {
                let (name, hint) = ("evaluation".to_string(), Hint::Replica(0));
                let weights = match spec.sharing {
                    Sharing::Own { .. } => Weights::Own { is_first: true },
                    _ => Weights::Shared,
                };
                build(&mut graph, model, spec, name, hint, (Mode::Evaluate, weights))?
            }
        };
        // what evaluation has no use for is fetched all the same: it is part of what is saved
        let mut looked_at = Vec::new();
        for variable in &averages {
            let Some(average) = graph.find(&variable.name).map(Output::from) else { continue };
            let to = graph.fact(average).dims.clone();
            let name = format!("evaluation/{}", variable.name);
            looked_at.push(graph.add(&name, Hint::Replica(0), Op::Reshape { to }, &[average])?);
        }
        let count = [evaluated.outcome.logits, evaluated.outcome.labels];
        let correct = graph.add("correct", Hint::Replica(0), Op::CountCorrect, &count)?;
        verify(&graph, "gradients")?;
        let losses = built.iter().map(|copy| copy.loss.node);
        let roots: Vec<NodeId> = updates.into_iter().chain(losses).collect();
        let names = roots.iter().map(|id| graph.node(*id).name.clone()).collect();
        let mut kept = roots;
        kept.extend([evaluated.loss.node, correct]);
        kept.extend(looked_at);
        let (graph, _) = simplify(&graph, &kept)?;
        verify(&graph, "simplify")?;
        let replicas = built.iter().map(|copy| copy.named(&graph)).collect();
        let evaluation = evaluated.named(&graph);
        let correct = "correct".to_string();
        Ok(Program {
            graph,
            variables,
            averages,
            slots,
            replicas,
            evaluation,
            correct,
            roots: names,
        })
    }

    /// What a trained model is: what is learned, and the averages.
    pub fn weights(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter().chain(&self.averages)
    }

    /// The runs of a training job over a graph that was placed on `cluster`, in the order of
    /// [`Program::TRAIN`], [`Program::FETCH`] and [`Program::EVALUATE`].
    pub fn runs(&self, placed: &Graph, cluster: Cluster) -> Vec<RunSpec> {
        let find = |name: &String| placed.find(name);
        let weights: Vec<NodeId> = self.weights().filter_map(|v| placed.find(&v.name)).collect();
        let first: Option<Task> = cluster.tasks().first().copied();
        let evaluated =
            [&self.correct, &self.evaluation.loss].into_iter().filter_map(find).collect();
        let run = |name, roots, fetch_to, given, followed_by| RunSpec {
            name,
            roots,
            fetch_to,
            given,
            followed_by,
        };
        let train = self.roots.iter().filter_map(find).collect();
        vec![
            run("train", train, None, vec![], vec![0, 1]),
            run("fetch", weights.clone(), first, vec![], vec![2]),
            run("evaluate", evaluated, None, weights, vec![2]),
        ]
    }
}

/// A copy of the model in the graph.
#[derive(Clone)]
struct Built {
    prefix: String,
    outcome: Outcome,
    loss: Output,
    loss_name: String,
    learned: Vec<Learned>,
    /// Moving averages, each with the value that it takes up.
    averages: Vec<(Output, Output)>,
    has_modes: bool,
}

impl Built {
    fn named(&self, graph: &Graph) -> ModelCopy {
        let step = format!("{}/step", self.prefix);
        let step = graph.find(&step).map(|_| step);
        ModelCopy { prefix: self.prefix.clone(), loss: self.loss_name.clone(), step }
    }
}

fn build(
    graph: &mut Graph,
    model: &dyn Model,
    spec: &ProgramSpec,
    prefix: String,
    hint: Hint,
    (mode, weights): (Mode, Weights),
) -> Result<Built, GraphError> {
    let ProgramSpec { batch, dtype, seed, .. } = *spec;
    let (averages, learned, has_modes) = (Vec::new(), Vec::new(), false);
    let mut scope = Scope {
        graph,
        prefix,
        hint,
        mode,
        batch,
        dtype,
        seed,
        averages,
        weights,
        learned,
        has_modes,
    };
    let mut outcome = model.forward(&mut scope)?;
    if dtype != DType::F32 {
        // a loss of 8 bits says little
        let cast = Op::Cast { to: DType::F32 };
        outcome.logits = scope.add("logits/f32", cast.clone(), &[outcome.logits])?;
        if let Some((logits, _)) = &mut outcome.auxiliary {
            *logits = scope.add("auxiliary/f32", cast, &[*logits])?;
        }
    }
    let mut loss = scope.add("loss", Op::SoftmaxCrossEntropy, &[outcome.logits, outcome.labels])?;
    if let (Some((logits, weight)), Mode::Train) = (outcome.auxiliary, mode) {
        let inputs = [logits, outcome.labels];
        let other = scope.add("auxiliary/loss", Op::SoftmaxCrossEntropy, &inputs)?;
        let weighed = scope.add("auxiliary/weighed", Op::Scale { by: weight }, &[other])?;
        loss = scope.add("loss/total", Op::Add, &[loss, weighed])?;
    }
    let Scope { prefix, averages, learned, has_modes, .. } = scope;
    let loss_name = graph.node(loss.node).name.clone();
    Ok(Built { prefix, outcome, loss, loss_name, learned, averages, has_modes })
}

/// The variable at an output, if it is one.
fn declared(graph: &Graph, at: Output) -> Option<Variable> {
    let node = graph.node(at.node);
    match &node.op {
        Op::Variable { spec, init } => {
            Some(Variable { name: node.name.clone(), spec: spec.clone(), init: *init })
        }
        _ => None,
    }
}
