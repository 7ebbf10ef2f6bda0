//! Where the paper's argument fails (Xue et al. §4: the loop's own dependencies order the next write
//! behind the last read), a plan that trusts it reads torn and foreign data, and one that proves it does
//! not. Every element of a tensor is the number of its step, so that what is wrong says how.

use std::time::Duration;

use crate::support::driver::{Life, drive};
use crate::support::parts::hostile;
use crate::support::random::Random;
use crate::support::{options, read, sessions, write};
use tensorwire_fabric::{Backend, SimKnobs, SimNetwork};
use tensorwire_graph::{
    Cluster, Graph, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, Reuse, ReuseRule,
    Rule, RunId, RunSpec, place, plan,
};
use tensorwire_runtime::Session;
use tensorwire_tensor::{DType, Fact, TensorSpec};
use tensorwire_testkit::mesh;

const STEPS: usize = 6;
const SEEDS: u64 = 400;
const ELEMENTS: usize = 48;

/// A graph and the tensor that shows whether its memory was overwritten under its reader.
struct Shape {
    graph: Graph,
    cluster: Cluster,
    roots: Vec<NodeId>,
    /// The edge whose next write nothing orders behind the read.
    edge: &'static str,
    /// What the reader made of it: the step's number in every element.
    witness: &'static str,
}

/// What the witnesses of all steps of all seeds were.
#[derive(Debug, Default)]
struct Tally {
    right: usize,
    /// Of one other step, whole.
    foreign: usize,
    /// Of several steps.
    torn: usize,
    seeds_torn: usize,
}

fn vector(graph: &mut Graph, name: &str, at: Hint) -> Output {
    let fact = Fact::known(DType::F32, &[ELEMENTS]);
    graph.add(name, at, Op::Input { fact }, &[]).unwrap().into()
}

fn variable(graph: &mut Graph, name: &str) -> Output {
    let spec = TensorSpec::new(DType::F32, &[ELEMENTS]).unwrap();
    graph.variable(name, spec, Init::Zeros).unwrap()
}

/// A worker's gradient for v goes to server 0 as soon as it is computed, and server 0 then has all that
/// it needs to send the next v. But the worker reads v once more, for what goes to server 1.
fn late_reader() -> Shape {
    let mut graph = Graph::new();
    let (v, u) = (variable(&mut graph, "v"), variable(&mut graph, "u"));
    let worker = Hint::Replica(0);
    let mut add = |name: &str, at: Hint, op: Op, inputs: &[Output]| -> Output {
        graph.add(name, at, op, inputs).unwrap().into()
    };
    let fact = Fact::known(DType::F32, &[ELEMENTS]);
    let minus_one = add("minus one", worker, Op::Input { fact: fact.clone() }, &[]);
    let zero = add("zero", worker, Op::Input { fact }, &[]);
    // v is positive, so the gradient is what is fed: each step adds one to v, and nothing to u
    let gradient = add("gradient of v", worker, Op::ReluGrad, &[minus_one, v]);
    let late = add("late", worker, Op::Add, &[u, v]);
    let other = add("gradient of u", worker, Op::ReluGrad, &[zero, late]);
    let rate = Op::Apply { rule: Rule::sgd(1.0), clipped: false };
    let roots = [
        add("update v", Hint::With(v.node), rate.clone(), &[v, gradient]),
        add("update u", Hint::With(u.node), rate, &[u, other]),
        late,
    ];
    let cluster = Cluster::ParameterServers { workers: 1, servers: 2 };
    let roots = roots.map(|root| root.node).to_vec();
    Shape { graph, cluster, roots, edge: "v", witness: "late" }
}

/// Worker 0 feeds worker 1, which feeds worker 2, and nobody ever answers.
fn one_way() -> Shape {
    let mut graph = Graph::new();
    variable(&mut graph, "anchor");
    let x = vector(&mut graph, "x", Hint::Replica(0));
    let y = graph.add("y", Hint::Replica(1), Op::Relu, &[x]).unwrap();
    let z = graph.add("z", Hint::Replica(2), Op::Relu, &[y.into()]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 3, servers: 1 };
    Shape { graph, cluster, roots: vec![z], edge: "x", witness: "z" }
}

fn planned(shape: &Shape, reuse: ReuseRule) -> Plan {
    let placed = place(&shape.graph, shape.cluster, Placement::RoundRobin).unwrap();
    let roots = shape.roots.clone();
    let run = RunSpec { name: "step", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let options = PlanOptions { reuse, ..PlanOptions::default() };
    plan(&placed, &shape.cluster.tasks(), &[run], options).unwrap()
}

/// Feeds the steps' numbers and counts what became of them.
struct Numbers<'a> {
    witness: &'a str,
    tally: Tally,
    is_torn: bool,
}

impl Life for Numbers<'_> {
    fn begin(&mut self, _part: usize, step: usize, session: &mut Session) -> Option<RunId> {
        // steps are counted from 1: every element is positive
        let number = (step + 1) as f32;
        let fed = [("x", number), ("minus one", -1.0), ("zero", 0.0)];
        let start = [("v", 1.0), ("u", 0.0)];
        for (name, value) in fed.into_iter().chain(start.into_iter().filter(|_| step == 0)) {
            let node = session.part().graph.find(name).map(|id| &session.part().graph.node(id).op);
            if matches!(node, Some(Op::Input { .. } | Op::Variable { .. })) {
                write(session, name, &[value; ELEMENTS]);
            }
        }
        (step < STEPS).then_some(RunId(0))
    }

    fn end(&mut self, _part: usize, step: usize, session: &Session) -> Result<(), String> {
        if session.part().graph.find(self.witness).is_none() {
            return Ok(());
        }
        let found = read::<f32>(session, self.witness);
        let is_whole = found.iter().all(|element| *element == found[0]);
        match is_whole {
            true if found[0] == (step + 1) as f32 => self.tally.right += 1,
            true => self.tally.foreign += 1,
            false => {
                self.tally.torn += 1;
                self.is_torn = true;
            }
        }
        Ok(())
    }
}

fn tally(shape: &Shape, reuse: ReuseRule) -> Tally {
    let plan = planned(shape, reuse);
    let mut numbers = Numbers { witness: shape.witness, tally: Tally::default(), is_torn: false };
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        // many pieces: a tensor is half there for long
        let network = SimNetwork::new(seed, SimKnobs { pieces_max: 48, ..hostile() });
        let fabrics = mesh::open(&Backend::Sim(network.clone()), plan.parts.len() as u32, |_| {});
        mesh::connect(&fabrics);
        let mut sessions = sessions(&plan, &fabrics, options(Duration::ZERO));
        numbers.is_torn = false;
        let advance = &mut || network.advance();
        drive(&mut sessions, advance, &mut random, 8, &mut numbers).unwrap();
        numbers.tally.seeds_torn += usize::from(numbers.is_torn);
    }
    numbers.tally
}

#[test]
fn what_is_trusted_is_torn_and_what_is_proved_is_not() {
    for (name, shape) in [("a late reader", late_reader()), ("one way", one_way())] {
        let reuse = |rule| {
            let plan = planned(&shape, rule);
            let edge = plan.edges.iter().find(|edge| edge.name == shape.edge).unwrap();
            edge.reuse.clone()
        };
        assert_eq!(reuse(ReuseRule::Trusted), Reuse::Trusted, "{name}");
        assert!(matches!(reuse(ReuseRule::Proved), Reuse::Credit { .. }), "{name}");
        let trusted = tally(&shape, ReuseRule::Trusted);
        println!("{name}, trusted: {trusted:?} of {SEEDS} seeds of {STEPS} steps");
        assert!(trusted.seeds_torn > 0 && trusted.foreign > 0, "{name}: {trusted:?}");
        let proved = tally(&shape, ReuseRule::Proved);
        assert_eq!(proved.right, SEEDS as usize * STEPS, "{name}: {proved:?}");
    }
}
