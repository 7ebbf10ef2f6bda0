//! A small network, its session in one process, and its sessions over the simulated fabric.
#![allow(dead_code, reason = "each program of tests uses its own share of this")]

pub(crate) mod driver;
pub(crate) mod generate;
pub(crate) mod oracle;
pub(crate) mod parts;
pub(crate) mod random;

use std::sync::Arc;
use std::time::Duration;

use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_graph::{
    Cluster, Gradient, Graph, Hint, Init, Op, Output, Placement, Plan, PlanOptions, Rule, RunSpec,
    gradients, place, plan, simplify,
};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{Slab, TensorMut, TensorRef};
use tensorwire_runtime::{
    OneSided, OneSidedOptions, Opening, Ports, Session, SessionError, SessionOptions, Storage,
};
use tensorwire_tensor::{DType, Element, Fact, TensorSpec};
use tensorwire_testkit::mesh;

/// x → dense → relu → dense (+ the hidden layer added to itself) → loss; updates by plain SGD.
pub(crate) struct Network {
    pub(crate) graph: Graph,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) classes: usize,
    pub(crate) replicas: u32,
    pub(crate) variables: Vec<String>,
    /// By replica, by variable: the gradient's node.
    pub(crate) gradients: Vec<Vec<String>>,
    roots: Vec<String>,
}

pub(crate) fn network(
    dtype: DType,
    rows: usize,
    inputs: usize,
    hidden: usize,
    classes: usize,
    replicas: u32,
) -> Network {
    let mut graph = Graph::new();
    let names = ["w1", "b1", "w2", "b2"];
    let dims: [&[usize]; 4] = [&[hidden, inputs], &[hidden], &[hidden, classes], &[classes]];
    let mut variables = Vec::new();
    for (name, dims) in names.iter().zip(dims) {
        let spec = TensorSpec::new(dtype, dims).unwrap();
        variables.push(graph.variable(name, spec, Init::Zeros).unwrap());
    }
    let mut found = Vec::new();
    let mut roots = Vec::new();
    for replica in 0..replicas {
        let loss = loss(&mut graph, dtype, rows, inputs, replica, &variables);
        roots.push(loss.node);
        let prefix = format!("replica{replica}/gradient");
        let hint = Hint::Replica(replica);
        let dense = gradients(&mut graph, &prefix, hint, loss, &variables).unwrap();
        found.push(dense.into_iter().filter_map(Gradient::dense).collect::<Vec<Output>>());
    }
    // gradients alone are compared with differences: then nothing may move the variables
    if dtype == DType::F32 {
        for (index, variable) in variables.iter().enumerate() {
            let mut inputs = vec![*variable];
            inputs.extend(found.iter().map(|gradients| gradients[index]));
            let op = Op::Apply { rule: Rule::sgd(0.3), clipped: false };
            let name = format!("update{index}");
            roots.push(graph.add(&name, Hint::With(variable.node), op, &inputs).unwrap());
        }
    } else {
        roots.extend(found.iter().flatten().map(|output| output.node));
    }
    let (small, moved) = simplify(&graph, &roots).unwrap();
    let name = |output: &Output| small.node(moved[&output.node]).name.clone();
    let gradients = found.iter().map(|outputs| outputs.iter().map(name).collect()).collect();
    let roots = roots.iter().map(|root| small.node(moved[root]).name.clone()).collect();
    let variables = names.map(String::from).to_vec();
    Network { graph: small, dtype, rows, inputs, classes, replicas, variables, gradients, roots }
}

fn loss(
    graph: &mut Graph,
    dtype: DType,
    rows: usize,
    inputs: usize,
    replica: u32,
    variables: &[Output],
) -> Output {
    let mut add = |name: &str, op: Op, inputs: &[Output]| -> Output {
        let name = format!("replica{replica}/{name}");
        graph.add(&name, Hint::Replica(replica), op, inputs).unwrap().into()
    };
    let [w1, b1, w2, b2] = variables else { panic!("four variables") };
    let x = add("x", Op::Input { fact: Fact::known(dtype, &[rows, inputs]) }, &[]);
    let labels = add("labels", Op::Input { fact: Fact::known(DType::I32, &[rows]) }, &[]);
    let product = |transpose_b| Op::MatMul { transpose_a: false, transpose_b };
    let y = add("y1", product(true), &[x, *w1]);
    let y = add("z1", Op::BiasAdd, &[y, *b1]);
    let relu = add("relu", Op::Relu, &[y]);
    let twice = add("twice", Op::Add, &[relu, y]);
    let y = add("y2", product(false), &[twice, *w2]);
    let y = add("z2", Op::BiasAdd, &[y, *b2]);
    add("loss", Op::SoftmaxCrossEntropy, &[y, labels])
}

fn plan_for(network: &Network, cluster: Cluster) -> Plan {
    plan_with(network, cluster, Placement::RoundRobin, PlanOptions::default())
}

pub(crate) fn plan_with(
    network: &Network,
    cluster: Cluster,
    placement: Placement,
    options: PlanOptions,
) -> Plan {
    let placed = place(&network.graph, cluster, placement).unwrap();
    let roots = network.roots.iter().flat_map(|name| placed.find_all(name)).collect();
    let run = RunSpec { name: "step", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

/// A limit on dynamic tensors that no test but those about it comes near.
pub(crate) const DYNAMIC_BYTES_MAX: usize = 1 << 26;

pub(crate) fn try_session(
    plan: &Plan,
    part: usize,
    exchange: Option<(OneSided, Storage)>,
    options: SessionOptions,
) -> Result<Session, SessionError> {
    let (exchange, storage) = exchange.unzip();
    let alone = || {
        let bytes = plan.parts[part].memory.registered_bytes;
        Storage::new(&plan.parts[part], &Slab::anonymous(bytes).unwrap()).unwrap()
    };
    let storage = storage.unwrap_or_else(alone);
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
    Session::new(plan, part, storage, kernels, exchange.map(Ports::from), options)
}

pub(crate) fn options(step_deadline: Duration) -> SessionOptions {
    SessionOptions {
        step_deadline,
        timeline: false,
        dynamic_bytes_max: DYNAMIC_BYTES_MAX,
        variables_shared: false,
    }
}

pub(crate) fn session_alone(network: &Network) -> Session {
    let plan = plan_for(network, Cluster::Local);
    try_session(&plan, 0, None, options(Duration::from_secs(30))).unwrap()
}

pub(crate) fn sessions_over_sim(
    network: &Network,
    workers: u32,
    servers: u32,
    seed: u64,
    knobs: fn(SimKnobs) -> SimKnobs,
    step_deadline: Duration,
) -> (Vec<Session>, Vec<Fabric>) {
    let plan = plan_for(network, Cluster::ParameterServers { workers, servers });
    sessions_of_plan_over_sim(&plan, seed, knobs, step_deadline)
}

pub(crate) fn sessions_of_plan_over_sim(
    plan: &Plan,
    seed: u64,
    knobs: fn(SimKnobs) -> SimKnobs,
    step_deadline: Duration,
) -> (Vec<Session>, Vec<Fabric>) {
    let sim = SimNetwork::new(seed, knobs(SimKnobs::default()));
    // fits: a job has few processes
    let fabrics = mesh::open(&Backend::Sim(sim), plan.parts.len() as u32, |_| {});
    mesh::connect(&fabrics);
    (sessions(plan, &fabrics, options(step_deadline)), fabrics)
}

/// One session for each part of a plan, all opened by this thread.
pub(crate) fn sessions(plan: &Plan, fabrics: &[Fabric], options: SessionOptions) -> Vec<Session> {
    let told = OneSidedOptions::new(plan, 4, options.dynamic_bytes_max);
    let open =
        |(part, fabric)| Opening::new(fabric, plan, part, told.clone(), mesh::soon()).unwrap();
    let openings = fabrics.iter().enumerate().map(open).collect();
    let opened = Opening::complete_all(openings, mesh::soon()).unwrap();
    let session = |(part, exchange)| try_session(plan, part, Some(exchange), options).unwrap();
    opened.into_iter().enumerate().map(session).collect()
}

/// Random values for every variable and input of an f64 network.
pub(crate) fn fill_f64(session: &Session, network: &Network, seed: u64) {
    let mut state = seed | 1;
    let mut random = move || {
        // xorshift64*: any values do
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    for name in network.variables.iter().map(String::as_str).chain(["replica0/x"]) {
        let count = read::<f64>(session, name).len();
        write(session, name, &(0..count).map(|_| random()).collect::<Vec<f64>>());
    }
    let labels: Vec<i32> = (0..network.rows).map(|row| (row % network.classes) as i32).collect();
    write(session, "replica0/labels", &labels);
}

pub(crate) fn read<T: Element>(session: &Session, name: &str) -> Vec<T> {
    let (spec, bytes) = session.read(session.node(name).unwrap().into()).unwrap();
    TensorRef::new(spec, &bytes).unwrap().elements::<T>().unwrap().to_vec()
}

pub(crate) fn write<T: Element>(session: &Session, name: &str, values: &[T]) {
    let (spec, mut bytes) = session.write(session.node(name).unwrap().into()).unwrap();
    let mut tensor = TensorMut::new(spec, &mut bytes).unwrap();
    tensor.elements::<T>().unwrap().copy_from_slice(values);
}
