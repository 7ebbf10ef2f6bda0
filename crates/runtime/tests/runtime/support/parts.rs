//! Small graphs over several parts, built node by node: their plans, fabrics and sessions.

use std::time::Duration;

use tensorwire_fabric::{Backend, Between, Fabric, SimKnobs, SimNetwork};
use tensorwire_graph::{
    Cluster, Graph, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, RunSpec, place,
    plan,
};
use tensorwire_runtime::{OneSidedOptions, Opening, Session, SessionOptions};
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};
use tensorwire_testkit::mesh::{self, MakeBackend};

/// Every way to another part of the same process.
pub(crate) const BACKENDS: [(&str, MakeBackend); 3] =
    [("sim", hostile_sim), ("shm", || Backend::Shm), ("tcp", || Backend::Tcp)];

fn hostile_sim() -> Backend {
    Backend::Sim(SimNetwork::new(7, hostile()))
}

/// Everything at once that a network may do without breaking a promise.
pub(crate) fn hostile() -> SimKnobs {
    SimKnobs {
        between: Between::Random,
        delay_turns_max: 20,
        duplicate_per_mille: 200,
        full_per_mille: 100,
        ..SimKnobs::default()
    }
}

/// An open dimension; each name is another size.
pub(crate) fn open(name: u32) -> Dim {
    Dim::Dynamic(Symbol(name))
}

/// A graph over `workers` and one server, with a variable there that nothing need use.
pub(crate) struct Parts {
    pub(crate) graph: Graph,
    pub(crate) server: Hint,
    cluster: Cluster,
    roots: Vec<NodeId>,
}

impl Parts {
    pub(crate) fn new(workers: u32) -> Parts {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, &[1]).unwrap();
        let anchor = graph.variable("anchor", spec, Init::Zeros).unwrap();
        let cluster = Cluster::ParameterServers { workers, servers: 1 };
        Parts { graph, server: Hint::With(anchor.node), cluster, roots: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, at: Hint, op: Op, inputs: &[Output]) -> Output {
        self.graph.add(name, at, op, inputs).unwrap().into()
    }

    pub(crate) fn input(&mut self, name: &str, at: Hint, dtype: DType, dims: &[Dim]) -> Output {
        let fact = Fact { dtype, dims: dims.to_vec() };
        self.add(name, at, Op::Input { fact }, &[])
    }

    /// The same, and every run must compute it.
    pub(crate) fn root(&mut self, name: &str, at: Hint, op: Op, inputs: &[Output]) -> Output {
        let root = self.add(name, at, op, inputs);
        self.roots.push(root.node);
        root
    }

    pub(crate) fn plan(&self, options: PlanOptions) -> Plan {
        let placed = place(&self.graph, self.cluster, Placement::RoundRobin).unwrap();
        let roots = self.roots.clone();
        let run =
            RunSpec { name: "step", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &self.cluster.tasks(), &[run], options).unwrap()
    }
}

/// Sessions of all parts over a mesh of this process. `limits`: each part's dynamic_bytes_max.
pub(crate) fn open_all(
    plan: &Plan,
    make: MakeBackend,
    limits: impl Fn(usize) -> usize,
) -> (Vec<Session>, Vec<Fabric>) {
    let fabrics = mesh::mesh(make, plan.parts.len() as u32);
    let open = |(part, fabric)| {
        let told = OneSidedOptions::new(plan, 4, limits(part));
        Opening::new(fabric, plan, part, told, mesh::soon()).unwrap()
    };
    let openings = fabrics.iter().enumerate().map(open).collect();
    let opened = Opening::complete_all(openings, mesh::soon()).unwrap();
    let session = |(part, exchange)| {
        let options = SessionOptions { dynamic_bytes_max: limits(part), ..patient() };
        super::try_session(plan, part, Some(exchange), options).unwrap()
    };
    (opened.into_iter().enumerate().map(session).collect(), fabrics)
}

/// Long enough that only a hang exceeds it.
pub(crate) fn patient() -> SessionOptions {
    super::options(Duration::from_secs(60))
}

/// Runs `life` for each session on a thread of its own, as processes would.
pub(crate) fn each_on_a_thread(
    sessions: &mut [Session],
    life: impl Fn(usize, &mut Session) + Sync,
) {
    std::thread::scope(|scope| {
        for (part, session) in sessions.iter_mut().enumerate() {
            let life = &life;
            scope.spawn(move || life(part, session));
        }
    });
}

/// Gives an input dimensions and bytes, if this part has it.
pub(crate) fn feed(session: &mut Session, name: &str, dims: &[usize], byte: impl Fn(usize) -> u8) {
    if let Ok(node) = session.node(name) {
        let (_, mut bytes) = session.feed(node.into(), dims).unwrap();
        bytes.iter_mut().enumerate().for_each(|(at, place)| *place = byte(at));
    }
}
