//! A model made trainable: replicas, loss, gradients, updates, and the runs that a training job does.
//! Still only a graph: nothing here knows which process does what.

mod updates;

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Rule, RunId, RunSpec, Task,
    gradients, simplify, verify,
};
use tensorwire_tensor::{DType, TensorSpec};

use crate::data::Shape;
use crate::scope::{Learned, Mode, Scope, Weights};
use crate::zoo::{Model, Outcome};
use updates::Updates;

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramSpec {
    pub model: Model,
    /// What it is trained on; [`Model::check`] says whether it can be.
    pub shape: Shape,
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
    pub fn new(spec: &ProgramSpec) -> Result<Program, GraphError> {
        let mut graph = Graph::new();
        let mut built = Vec::new();
        for replica in 0..spec.replicas {
            let (prefix, hint) = (format!("replica{replica}"), Hint::Replica(replica));
            let weights = spec.sharing.weights(replica);
            built.push(build(&mut graph, spec, prefix, hint, (Mode::Train, weights))?);
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
                build(&mut graph, spec, name, hint, (Mode::Evaluate, weights))?
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
    spec: &ProgramSpec,
    prefix: String,
    hint: Hint,
    (mode, weights): (Mode, Weights),
) -> Result<Built, GraphError> {
    let ProgramSpec { model, shape, batch, dtype, seed, .. } = *spec;
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

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{Part, Plan, PlanOptions, place, plan};

    fn spec(replicas: u32) -> ProgramSpec {
        ProgramSpec {
            model: Model::Mlp,
            shape: Shape::Images { dims: [8, 8, 1], classes: 10 },
            batch: 8,
            replicas,
            sharing: Sharing::All,
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

    fn planned(spec: &ProgramSpec) -> (Program, Plan) {
        let program = Program::new(spec).unwrap();
        let workers = spec.replicas;
        let cluster = match spec.sharing {
            Sharing::Own { .. } => Cluster::Workers { workers },
            _ => Cluster::ParameterServers { workers, servers: 1 },
        };
        let placed = place(&program.graph, cluster).unwrap();
        let runs = program.runs(&placed, cluster);
        let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
        (program, plan)
    }

    /// By part: what it folds and spreads in a step, and how large that is.
    fn vectors(plan: &Plan) -> Vec<Vec<(u32, TensorSpec)>> {
        let of_part = |(part, nodes): (&Part, &Vec<NodeId>)| {
            let spec = |id: &NodeId| Some(part.memory.spot((*id).into())?.spec.clone());
            let vector = |id: &NodeId| Some((part.graph.node(*id).op.vector()?, spec(id)?));
            let mut all: Vec<(u32, TensorSpec)> = nodes.iter().filter_map(vector).collect();
            all.sort_unstable_by_key(|(vector, _)| *vector);
            all
        };
        plan.parts.iter().zip(&plan.runs[Program::TRAIN.0].nodes).map(of_part).collect()
    }

    #[test]
    fn all_members_of_a_client_fold_and_spread_the_same() {
        for model in Model::ALL {
            for (sharing, spread) in
                [(Sharing::Own { clients: 2 }, 0), (Sharing::Clients { clients: 2 }, 1)]
            {
                let (program, plan) = planned(&ProgramSpec { sharing, ..of(model, 4) });
                let (learned, averages) = (program.variables.len(), program.averages.len());
                let all = vectors(&plan);
                assert_eq!(all[0].len(), (1 + spread) * learned + averages, "{}", model.name());
                assert!(all[..4].iter().all(|other| *other == all[0]), "{}", model.name());
                let bytes = |variables: &[Variable]| -> usize {
                    variables.iter().map(|v| v.spec.bytes()).sum()
                };
                let found: usize = all[0].iter().map(|(_, spec)| spec.bytes()).sum();
                let wanted = (1 + spread) * bytes(&program.variables) + bytes(&program.averages);
                assert_eq!(found, wanted, "{}", model.name());
            }
        }
    }

    #[test]
    fn only_masters_have_to_do_with_servers_and_nobody_where_each_has_variables_of_its_own() {
        let (program, plan) =
            planned(&ProgramSpec { sharing: Sharing::Clients { clients: 2 }, ..spec(4) });
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        // fits: sizes in memory
        assert_eq!(plan.traffic(Program::TRAIN).written, 4 * bytes as u64);
        let carries = |e: &&tensorwire_graph::Edge| e.bytes() > Some(0);
        let ends = plan.edges.iter().filter(carries).map(|e| e.from.min(e.to));
        assert!(ends.into_iter().all(|worker| worker < 2));
        for clients in [1, 2, 4] {
            let sharing = Sharing::Own { clients };
            let (_, plan) = planned(&ProgramSpec { sharing, ..spec(4) });
            assert!(plan.edges.is_empty());
            let folds = vectors(&plan).iter().all(|vectors| vectors.len() == 6);
            assert_eq!(folds, clients < 4, "one alone has nobody to fold with");
        }
    }

    /// Besides its gradients, which lie where the others reach them, a worker has what one alone has.
    #[test]
    fn a_gradient_is_folded_where_it_was_made() {
        let of_one =
            planned(&ProgramSpec { sharing: Sharing::Own { clients: 1 }, ..of(Model::Fcn5, 1) });
        let sharing = Sharing::Own { clients: 1 };
        let (program, plan) = planned(&ProgramSpec { sharing, ..of(Model::Fcn5, 2) });
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        for part in &plan.parts {
            let reduced = part.graph.nodes().filter(|(_, node)| node.op.vector().is_some());
            assert!(reduced.into_iter().all(|(id, _)| part.memory.is_in_place(id)));
            let slack = 64 * part.graph.len();
            assert!(part.memory.registered_bytes <= bytes + slack);
            assert!(part.memory.private_bytes <= of_one.1.parts[0].memory.private_bytes + slack);
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
