//! A model made trainable: replicas, loss, gradients, updates, and the runs that a training job does.
//! Still only a graph: nothing here knows which process does what.

use tensorwire_graph::{
    Cluster, Gradient, Graph, GraphError, Hint, Init, NodeId, Op, Output, Rule, RunId, RunSpec,
    Task, gradients, simplify, verify,
};
use tensorwire_tensor::{DType, TensorSpec};

use crate::data::Shape;
use crate::scope::{AVERAGE_RATE, Mode, Scope};
use crate::zoo::{Model, Outcome};

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramSpec {
    pub model: Model,
    /// What it is trained on; [`Model::check`] says whether it can be.
    pub shape: Shape,
    /// Samples of one replica in one step.
    pub batch: usize,
    pub replicas: u32,
    /// How the servers change a variable, given the mean gradient of a step.
    pub rule: Rule,
    /// Of variables and activations: f32, f64 or bf16.
    pub dtype: DType,
    /// Of what dropout drops.
    pub seed: u64,
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
    pub fn new(spec: &ProgramSpec) -> Result<Program, GraphError> {
        let mut graph = Graph::new();
        let replica = |replica| (format!("replica{replica}"), Hint::Replica(replica));
        let mut built = Vec::new();
        for (prefix, hint) in (0..spec.replicas).map(replica) {
            built.push(build(&mut graph, spec, prefix, hint, Mode::Train)?);
        }
        let averaged: Vec<String> = built
            .iter()
            .take(1)
            .flat_map(|b| b.averages.iter().map(|(name, _)| name.clone()))
            .collect();
        let (averages, variables): (Vec<Variable>, Vec<Variable>) =
            declared(&graph).into_iter().partition(|v| averaged.contains(&v.name));
        let learned: Vec<Output> =
            variables.iter().filter_map(|v| graph.find(&v.name)).map(Output::from).collect();
        let mut folded: Vec<Vec<Gradient>> = vec![Vec::new(); learned.len()];
        for (replica, copy) in (0..spec.replicas).zip(&built) {
            let prefix = format!("replica{replica}/gradient");
            let hint = Hint::Replica(replica);
            let found = gradients(&mut graph, &prefix, hint, copy.loss, &learned)?;
            folded.iter_mut().zip(found).for_each(|(parts, gradient)| parts.push(gradient));
        }
        let (mut updates, mut slots) = (Vec::new(), Vec::new());
        for ((variable, at), parts) in variables.iter().zip(&learned).zip(&folded) {
            updates.push(add_update(&mut graph, spec.rule, variable, *at, parts, &mut slots)?);
        }
        for (index, name) in averaged.iter().enumerate() {
            let latest = built.iter().map(|copy| copy.averages[index].1);
            updates.push(add_average(&mut graph, name, latest)?);
        }
        // an own copy behind all updates: what trains is not in its way
        let evaluated = match built.first() {
            Some(first) if !first.has_modes => first.clone(),
            _ => {
                let hint = Hint::Replica(0);
                build(&mut graph, spec, "evaluation".to_string(), hint, Mode::Evaluate)?
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
    averages: Vec<(String, Output)>,
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
    spec: &ProgramSpec,
    prefix: String,
    hint: Hint,
    mode: Mode,
) -> Result<Built, GraphError> {
    let ProgramSpec { model, shape, batch, dtype, seed, .. } = *spec;
    let (averages, has_modes) = (Vec::new(), false);
    let mut scope = Scope { graph, prefix, hint, mode, batch, dtype, seed, averages, has_modes };
    let mut outcome = model.build(&mut scope, &shape)?;
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
    let Scope { prefix, averages, has_modes, .. } = scope;
    let loss_name = graph.node(loss.node).name.clone();
    Ok(Built { prefix, outcome, loss, loss_name, averages, has_modes })
}

fn declared(graph: &Graph) -> Vec<Variable> {
    graph
        .nodes()
        .filter_map(|(_, node)| match &node.op {
            Op::Variable { spec, init } => {
                Some(Variable { name: node.name.clone(), spec: spec.clone(), init: *init })
            }
            _ => None,
        })
        .collect()
}

fn add_update(
    graph: &mut Graph,
    rule: Rule,
    variable: &Variable,
    at: Output,
    parts: &[Gradient],
    slots: &mut Vec<String>,
) -> Result<NodeId, GraphError> {
    let hint = Hint::With(at.node);
    let mut inputs = vec![at];
    let names: &[&str] = match rule {
        Rule::Sgd { .. } => &[],
        Rule::Momentum { .. } => &["velocity"],
        Rule::AdaGrad { .. } => &["accumulator"],
        Rule::Adam { .. } => &["first_moment", "second_moment", "steps"],
    };
    for name in names {
        let spec = match *name {
            "steps" => TensorSpec::new(DType::I64, &[]),
            // where a variable is bf16, what is summed up over steps is not: a small change would be lost
            _ if variable.spec.dtype == DType::BF16 => {
                TensorSpec::new(DType::F32, variable.spec.dims())
            }
            _ => Ok(variable.spec.clone()),
        };
        let name = format!("{}/{name}", variable.name);
        let spec = spec.map_err(|source| GraphError::Shape { node: name.clone(), source })?;
        let op = Op::Variable { spec, init: Init::Zeros };
        inputs.push(graph.add(&name, hint, op, &[])?.into());
        slots.push(name);
    }
    let all_rows: Option<Vec<[Output; 2]>> = parts
        .iter()
        .map(|part| match *part {
            Gradient::Rows { indices, rows } => Some([indices, rows]),
            Gradient::Dense(_) => None,
        })
        .collect();
    let op = match all_rows {
        Some(pairs) => {
            inputs.extend(pairs.into_iter().flatten());
            Op::ApplyRows { rule }
        }
        // every replica is built alike: none is of rows
        None => {
            inputs.extend(parts.iter().copied().filter_map(Gradient::dense));
            Op::Apply { rule }
        }
    };
    graph.add(&format!("{}/update", variable.name), hint, op, &inputs)
}

fn add_average(
    graph: &mut Graph,
    name: &str,
    latest: impl Iterator<Item = Output>,
) -> Result<NodeId, GraphError> {
    let unknown = || GraphError::UnknownOutput { node: name.to_string() };
    let average = graph.find(name).ok_or_else(unknown)?;
    let inputs: Vec<Output> = std::iter::once(average.into()).chain(latest).collect();
    let op = Op::ApplyAverage { rate: AVERAGE_RATE };
    graph.add(&format!("{name}/update"), Hint::With(average), op, &inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{PlanOptions, place, plan};

    fn spec(replicas: u32) -> ProgramSpec {
        ProgramSpec {
            model: Model::Mlp,
            shape: Shape::Images { dims: [8, 8, 1], classes: 10 },
            batch: 8,
            replicas,
            rule: Rule::Momentum { rate: 0.05, momentum: 0.9 },
            dtype: DType::F32,
            seed: 0,
        }
    }

    #[test]
    fn the_mlp_has_the_variables_of_its_definition() {
        let program = Program::new(&spec(2)).unwrap();
        let found: Vec<(&str, &[usize])> =
            program.variables.iter().map(|v| (v.name.as_str(), v.spec.dims())).collect();
        let expected: [(&str, &[usize]); 6] = [
            ("hidden1/weight", &[2048, 64]),
            ("hidden1/bias", &[2048]),
            ("hidden2/weight", &[2048, 2048]),
            ("hidden2/bias", &[2048]),
            ("output/weight", &[10, 2048]),
            ("output/bias", &[10]),
        ];
        assert_eq!(found, expected);
        assert_eq!(program.slots.len(), 6);
    }

    #[test]
    fn every_step_moves_each_variable_to_each_worker_and_its_gradient_back() {
        let program = Program::new(&spec(2)).unwrap();
        let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
        let placed = place(&program.graph, cluster).unwrap();
        let runs = program.runs(&placed, cluster);
        let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        assert_eq!(plan.traffic(Program::TRAIN).written, 4 * bytes as u64);
        assert_eq!(plan.traffic(Program::FETCH).written, bytes as u64);
        assert_eq!(plan.traffic(Program::EVALUATE).sends, 0);
    }

    #[test]
    fn nothing_crosses_when_all_replicas_are_local() {
        let program = Program::new(&spec(3)).unwrap();
        let placed = place(&program.graph, Cluster::Local).unwrap();
        let runs = program.runs(&placed, Cluster::Local);
        let plan = plan(&placed, &Cluster::Local.tasks(), &runs, PlanOptions::default()).unwrap();
        assert!(plan.edges.is_empty());
        let evaluated = plan.runs[Program::EVALUATE.0].nodes[0].len();
        let trained = plan.runs[Program::TRAIN.0].nodes[0].len();
        assert!(0 < evaluated && evaluated < trained);
    }

    /// Xue et al. table 2: variables and MiB, and the parameters that follow from the definitions.
    #[test]
    fn the_papers_models_have_the_papers_sizes() {
        let table = [
            (Model::AlexNet, 16, 46_247_882, "176.42"),
            (Model::InceptionV3, 196, 24_353_332, "92.90"),
            (Model::Vgg16, 32, 134_301_514, "512.32"),
            (Model::Lstm, 14, 9_417_704, "35.93"),
            (Model::Gru, 11, 7_319_528, "27.92"),
            (Model::Fcn5, 10, 53_600_266, "204.47"),
        ];
        for (model, variables, parameters, mib) in table {
            let program = Program::new(&of(model, 1)).unwrap();
            let found: usize = program.variables.iter().map(|v| v.spec.elements()).sum();
            let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
            assert_eq!(program.variables.len(), variables, "{}", model.name());
            assert_eq!(found, parameters, "{}", model.name());
            assert_eq!(
                format!("{:.2}", bytes as f64 / f64::from(1 << 20)),
                mib,
                "{}",
                model.name()
            );
        }
    }

    fn of(model: Model, replicas: u32) -> ProgramSpec {
        ProgramSpec { model, shape: model.sample_shape(), batch: 4, ..spec(replicas) }
    }

    #[test]
    fn every_model_is_planned_over_servers_and_alone() {
        for model in Model::ALL {
            let program = Program::new(&of(model, 2)).unwrap();
            for cluster in [Cluster::Local, Cluster::ParameterServers { workers: 2, servers: 2 }] {
                let placed = place(&program.graph, cluster).unwrap();
                let runs = program.runs(&placed, cluster);
                let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
                let dynamic = plan.traffic(Program::TRAIN).dynamic;
                let varies = matches!(model, Model::Seq2Seq) && cluster != Cluster::Local;
                assert_eq!(dynamic > 0, varies, "{}: {dynamic}", model.name());
            }
        }
    }

    #[test]
    fn averages_and_dropout_make_evaluation_another_graph() {
        for (model, has_own) in
            [(Model::ResNet50, true), (Model::AlexNet, true), (Model::Gru, false)]
        {
            let program = Program::new(&of(model, 1)).unwrap();
            let own = program.evaluation != program.replicas[0];
            assert_eq!(own, has_own, "{}", model.name());
            assert_eq!(program.averages.is_empty(), model != Model::ResNet50);
            let drops = program.replicas[0].step.is_some();
            assert_eq!(drops, model == Model::AlexNet, "{}", model.name());
            assert_eq!(program.evaluation.step, None);
        }
    }

    /// In one process an update comes right behind its gradient, so gradients share their memory: beside
    /// variables and slots there is room for the largest gradient and what the batch becomes, no more.
    #[test]
    fn gradients_are_dead_when_the_next_are_made() {
        for (model, rule, copies) in [
            (Model::Fcn5, Rule::Sgd { rate: 0.1 }, 1),
            (Model::Fcn5, Rule::Momentum { rate: 0.1, momentum: 0.9 }, 2),
            (Model::AlexNet, Rule::Momentum { rate: 0.1, momentum: 0.9 }, 2),
        ] {
            let program = Program::new(&ProgramSpec { rule, ..of(model, 1) }).unwrap();
            let placed = place(&program.graph, Cluster::Local).unwrap();
            let runs = program.runs(&placed, Cluster::Local);
            let tasks = Cluster::Local.tasks();
            let plan = plan(&placed, &tasks, &runs, PlanOptions::default()).unwrap();
            let sizes = || program.variables.iter().map(|v| v.spec.bytes());
            let (all, largest) = (sizes().sum::<usize>(), sizes().max().unwrap());
            let activations = 48 << 20;
            let found = plan.parts[0].memory.private_bytes;
            let most = copies * all + largest + activations;
            assert!(found <= most, "{} {rule:?}: {found} of {most}", model.name());
        }
    }

    #[test]
    fn data_that_do_not_fit_are_refused_with_what_would() {
        let said = |model: Model, shape| model.check(&shape).unwrap_err().to_string();
        let small = Shape::Images { dims: [32, 32, 3], classes: 10 };
        let text = said(Model::AlexNet, small);
        assert!(text.contains("224×224×3") && text.contains("32×32×3"), "{text}");
        let text = said(Model::Seq2Seq, small);
        assert!(text.contains("images") && text.contains("--model mlp|fcn5|alexnet"), "{text}");
        let tiny = Shape::Images { dims: [3, 9, 1], classes: 10 };
        assert!(said(Model::Cifar, tiny).contains("4×4"));
        for model in Model::ALL {
            model.check(&model.sample_shape()).unwrap();
        }
    }

    #[test]
    fn names_are_known_both_ways() {
        for model in Model::ALL {
            assert_eq!(Model::from_name(model.name()), Some(model));
        }
        assert_eq!(Model::from_name("perceptron"), None);
    }
}
