//! A model made trainable: replicas, loss, gradients, updates, and the runs that a training job does.
//! Still only a graph: nothing here knows which process does what.

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Rule, RunId, RunSpec, Task,
    gradients, simplify, verify,
};
use tensorwire_tensor::{DType, TensorSpec};

use crate::mlp;
use crate::scope::Scope;

/// The models there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    Mlp,
}

/// How the servers change a variable, given the mean gradient of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    Sgd { rate: f64 },
    Momentum { rate: f64, momentum: f64 },
}

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramSpec {
    pub model: Model,
    pub features: usize,
    pub classes: usize,
    /// Samples of one replica in one step.
    pub batch: usize,
    pub replicas: u32,
    pub optimizer: Optimizer,
}

/// A training graph and the names by which its nodes are found again in every partition.
#[derive(Clone, Debug)]
pub struct Program {
    pub graph: Graph,
    /// What is learned, in the order of declaration.
    pub variables: Vec<Variable>,
    /// State of the optimizer, one or none a variable; starts as zeros.
    pub slots: Vec<String>,
    pub replicas: Vec<Replica>,
    /// Nodes that one training step must compute.
    roots: Vec<String>,
}

/// A variable that is learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    pub name: String,
    pub spec: TensorSpec,
    pub init: Init,
}

/// The names of one replica's nodes.
#[derive(Clone, Debug)]
pub struct Replica {
    /// f32[batch, features].
    pub input: String,
    /// i32[batch].
    pub labels: String,
    /// Output 0 is the mean loss of the replica's batch, f32[].
    pub loss: String,
    /// How many of the batch are classified right, i64[]; part of [`Program::EVALUATE`] only.
    pub correct: String,
}

impl Model {
    pub const ALL: [Model; 1] = [Model::Mlp];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
        }
    }

    /// The model of this name.
    pub fn from_name(name: &str) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Features and classes of the data that the literature trains it on: MNIST's.
    pub fn input_shape(self) -> (usize, usize) {
        match self {
            Model::Mlp => (784, 10),
        }
    }

    fn logits(
        self,
        scope: &mut Scope<'_>,
        x: Output,
        classes: usize,
    ) -> Result<Output, GraphError> {
        match self {
            Model::Mlp => mlp::logits(scope, x, classes),
        }
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
        let (mut replicas, mut per_replica) = (Vec::new(), Vec::new());
        let mut evaluations = Vec::new();
        for replica in 0..spec.replicas {
            let built = build_replica(&mut graph, spec, replica)?;
            evaluations.push(built.correct);
            replicas.push(built.names);
            per_replica.push(built.loss);
        }
        let variables = declared(&graph);
        let learned: Vec<Output> =
            variables.iter().filter_map(|v| graph.find(&v.name)).map(Output::from).collect();
        let mut folded: Vec<Vec<Output>> = vec![Vec::new(); learned.len()];
        for (replica, loss) in (0..spec.replicas).zip(&per_replica) {
            let prefix = format!("replica{replica}/gradient");
            let hint = Hint::Replica(replica);
            let found = gradients(&mut graph, &prefix, hint, *loss, &learned)?;
            folded.iter_mut().zip(found).for_each(|(parts, gradient)| parts.push(gradient));
        }
        let (mut updates, mut slots) = (Vec::new(), Vec::new());
        for ((variable, at), parts) in variables.iter().zip(&learned).zip(&folded) {
            let update = add_update(&mut graph, spec.optimizer, variable, *at, parts, &mut slots)?;
            updates.push(update);
        }
        verify(&graph, "gradients")?;
        let losses = per_replica.iter().map(|loss| loss.node);
        let roots: Vec<NodeId> = updates.into_iter().chain(losses).collect();
        let names = roots.iter().map(|id| graph.node(*id).name.clone()).collect();
        let kept: Vec<NodeId> = roots.into_iter().chain(evaluations).collect();
        let (graph, _) = simplify(&graph, &kept)?;
        verify(&graph, "simplify")?;
        Ok(Program { graph, variables, slots, replicas, roots: names })
    }

    /// The runs of a training job over a graph that was placed on `cluster`, in the order of
    /// [`Program::TRAIN`], [`Program::FETCH`] and [`Program::EVALUATE`].
    pub fn runs(&self, placed: &Graph, cluster: Cluster) -> Vec<RunSpec> {
        let find = |name: &String| placed.find(name);
        let variables: Vec<NodeId> =
            self.variables.iter().filter_map(|v| placed.find(&v.name)).collect();
        let first: Option<Task> = cluster.tasks().first().copied();
        let correct = self.replicas.iter().take(1).filter_map(|r| find(&r.correct)).collect();
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
            run("fetch", variables.clone(), first, vec![], vec![2]),
            run("evaluate", correct, None, variables, vec![2]),
        ]
    }
}

struct Built {
    names: Replica,
    loss: Output,
    correct: NodeId,
}

fn build_replica(graph: &mut Graph, spec: &ProgramSpec, replica: u32) -> Result<Built, GraphError> {
    let mut scope = Scope { graph, replica };
    let x = scope.input("input", DType::F32, &[spec.batch, spec.features])?;
    let labels = scope.input("labels", DType::I32, &[spec.batch])?;
    let logits = spec.model.logits(&mut scope, x, spec.classes)?;
    let loss = scope.add("loss", Op::SoftmaxCrossEntropy, &[logits, labels])?;
    let correct = scope.add("correct", Op::CountCorrect, &[logits, labels])?;
    let names = Replica {
        input: scope.name("input"),
        labels: scope.name("labels"),
        loss: scope.name("loss"),
        correct: scope.name("correct"),
    };
    Ok(Built { names, loss, correct: correct.node })
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
    optimizer: Optimizer,
    variable: &Variable,
    at: Output,
    parts: &[Output],
    slots: &mut Vec<String>,
) -> Result<NodeId, GraphError> {
    let hint = Hint::With(at.node);
    let mut inputs = vec![at];
    let op = match optimizer {
        Optimizer::Sgd { rate } => Op::Apply { rule: Rule::Sgd { rate } },
        Optimizer::Momentum { rate, momentum } => {
            let name = format!("{}/velocity", variable.name);
            let op = Op::Variable { spec: variable.spec.clone(), init: Init::Zeros };
            inputs.push(graph.add(&name, hint, op, &[])?.into());
            slots.push(name);
            Op::Apply { rule: Rule::Momentum { rate, momentum } }
        }
    };
    inputs.extend_from_slice(parts);
    graph.add(&format!("{}/update", variable.name), hint, op, &inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{PlanOptions, place, plan};

    fn spec(replicas: u32) -> ProgramSpec {
        ProgramSpec {
            model: Model::Mlp,
            features: 64,
            classes: 10,
            batch: 8,
            replicas,
            optimizer: Optimizer::Momentum { rate: 0.05, momentum: 0.9 },
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

    #[test]
    fn names_are_known_both_ways() {
        for model in Model::ALL {
            assert_eq!(Model::from_name(model.name()), Some(model));
        }
        assert_eq!(Model::from_name("perceptron"), None);
    }
}
