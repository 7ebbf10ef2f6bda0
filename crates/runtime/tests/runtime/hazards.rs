//! Plans in which a tensor could change under its reader, be read before it is there, or be nowhere: several
//! runs, views, what one run leaves for another or for the caller. Over shared memory, where nothing is
//! copied that could hide it.

use std::time::{Duration, Instant};

use crate::support::{self, read, write};
use tensorwire_fabric::{Backend, Fabric};
use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, Rule,
    RunId, RunSpec, SharedMemory, Task, Transfer, WhyWrite, place, plan,
};
use tensorwire_runtime::{Advance, Session, SessionError};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};
use tensorwire_testkit::mesh;

const SHARED: PlanOptions = PlanOptions {
    send_from: tensorwire_graph::SendFrom::Origin,
    shared_memory: SharedMemory::Used,
    variables_shared: false,
    reuse: tensorwire_graph::ReuseRule::Proved,
    devices: tensorwire_graph::DeviceTasks::None,
    device_crossing: tensorwire_graph::DeviceCrossing::ByHost,
    among_devices: tensorwire_graph::AmongDevices::First,
    all_reduce: tensorwire_graph::AllReduceBy::Group,
    wire: None,
    relays: false,
};
const WRITTEN: PlanOptions = PlanOptions { shared_memory: SharedMemory::Unused, ..SHARED };
const WORKERS: [Hint; 3] = [Hint::Replica(0), Hint::Replica(1), Hint::Replica(2)];

/// A graph with a variable of four pages on the server.
struct Job {
    graph: Graph,
    v: Output,
    workers: u32,
    runs: Vec<RunSpec>,
}

fn square() -> TensorSpec {
    TensorSpec::new(DType::F32, &[64, 64]).unwrap()
}

impl Job {
    fn new(workers: u32) -> Job {
        let mut graph = Graph::new();
        let v = graph.variable("v", square(), Init::Zeros).unwrap();
        Job { graph, v, workers, runs: Vec::new() }
    }

    fn server(&self) -> Hint {
        Hint::With(self.v.node)
    }

    fn cluster(&self) -> Cluster {
        Cluster::ParameterServers { workers: self.workers, servers: 1 }
    }

    fn worker(&self, index: usize) -> Task {
        self.cluster().tasks()[index]
    }

    fn add(&mut self, name: &str, at: Hint, op: Op, inputs: &[Output]) -> Output {
        self.graph.add(name, at, op, inputs).unwrap().into()
    }

    /// v grows by 1 in every element.
    fn update(&mut self, at: Hint) -> NodeId {
        let gradient = Op::Fill { value: -1.0, spec: square() };
        let gradient = self.add("gradient", at, gradient, &[]);
        let (at, v) = (self.server(), self.v);
        self.add("update", at, Op::Apply { rule: Rule::sgd(1.0), clipped: false }, &[v, gradient])
            .node
    }

    fn run(&mut self, root: NodeId, followed_by: &[usize]) -> &mut RunSpec {
        let name = ["first", "second", "third"][self.runs.len()];
        let followed_by = followed_by.to_vec();
        let run = RunSpec { name, roots: vec![root], fetch_to: None, given: vec![], followed_by };
        self.runs.push(run);
        self.runs.last_mut().unwrap()
    }

    fn plan(&self, options: PlanOptions) -> Result<Plan, GraphError> {
        let placed = place(&self.graph, self.cluster(), Placement::RoundRobin).unwrap();
        plan(&placed, &self.cluster().tasks(), &self.runs, options)
    }

    fn open(&self, options: PlanOptions) -> (Vec<Session>, Vec<Fabric>) {
        let plan = self.plan(options).unwrap();
        let fabrics = mesh::open(&Backend::Shm, plan.parts.len() as u32, |_| {});
        mesh::connect(&fabrics);
        (support::sessions(&plan, &fabrics, support::options(Duration::from_secs(30))), fabrics)
    }
}

/// Drives a run of these parts to its end.
fn run(sessions: &mut [Session], run: usize, parts: &[usize]) {
    parts.iter().for_each(|part| sessions[*part].start(RunId(run)));
    let start = Instant::now();
    let mut open = parts.to_vec();
    while !open.is_empty() {
        open.retain(|part| sessions[*part].advance().unwrap() != Advance::Finished);
        assert!(start.elapsed() < Duration::from_secs(60), "parts {open:?} do not end");
    }
}

fn transfer(plan: &Plan, name: &str) -> Transfer {
    plan.edges.iter().find(|edge| edge.name == name).unwrap().transfer
}

/// Worker 0 fetches v and takes its time; worker 1 and the server train on.
#[test]
fn what_a_caller_may_still_read_is_not_overwritten_by_a_later_run() {
    let job = |trainer: Hint| {
        let mut job = Job::new(2);
        let update = job.update(trainer);
        job.run(update, &[0, 1]);
        let (v, worker) = (job.v.node, job.worker(0));
        job.run(v, &[0]).fetch_to = Some(worker);
        job.add("max", WORKERS[0], Op::ReduceMax, &[job.v]);
        job
    };
    for options in [SHARED, WRITTEN] {
        let refused = job(WORKERS[1]).plan(options).unwrap_err().to_string();
        let says =
            "worker 0 may still read it after run 'second' when server 0 overwrites it in run";
        assert!(refused.contains(says), "{refused}");
    }
    // where the trainer is the fetcher, the update waits for it
    let plan = job(WORKERS[0]).plan(SHARED).unwrap();
    assert_eq!(transfer(&plan, "v"), Transfer::Reference);
}

/// fetch, update on the server, evaluate with what was fetched.
#[test]
fn what_was_fetched_is_what_is_given_whatever_the_transfer() {
    for options in [SHARED, WRITTEN] {
        let mut job = Job::new(1);
        let max = job.add("max", WORKERS[0], Op::ReduceMax, &[job.v]);
        let server = job.server();
        let update = job.update(server);
        let (v, worker) = (job.v.node, job.worker(0));
        job.run(v, &[1]).fetch_to = Some(worker);
        job.run(update, &[2]);
        job.run(max.node, &[]).given = vec![v];
        let plan = job.plan(SHARED).unwrap();
        assert_eq!(transfer(&plan, "v"), Transfer::Write(WhyWrite::Given));
        let (mut sessions, _fabrics) = job.open(options);
        (0..3).for_each(|step| run(&mut sessions, step, &[0, 1]));
        assert_eq!(read::<f32>(&sessions[0], "max"), [0.0]);
        assert_eq!(read::<f32>(&sessions[1], "v")[7], 1.0);
    }
}

#[test]
fn a_dynamic_tensor_can_be_fetched_and_given() {
    let mut job = Job::new(2);
    let rows = Dim::Dynamic(job.graph.symbol());
    let fact = Fact { dtype: DType::F32, dims: vec![rows, Dim::Known(4)] };
    let x = job.add("x", WORKERS[0], Op::Input { fact }, &[]);
    let y = job.add("y", WORKERS[0], Op::Relu, &[x]);
    let max = job.add("max", WORKERS[1], Op::ReduceMax, &[y]);
    let worker = job.worker(1);
    job.run(y.node, &[1]).fetch_to = Some(worker);
    job.run(max.node, &[]).given = vec![y.node];
    let recv = job.plan(WRITTEN).unwrap().edges[0].recv;
    let (mut sessions, _fabrics) = job.open(WRITTEN);
    let x = sessions[0].node("x").unwrap();
    let (_, mut bytes) = sessions[0].feed(x.into(), &[3, 4]).unwrap();
    bytes.copy_from_slice([3.5f32; 12].map(f32::to_le_bytes).as_flattened());
    drop(bytes);
    run(&mut sessions, 0, &[0, 1, 2]);
    let (spec, bytes) = sessions[1].read(recv.into()).unwrap();
    assert_eq!((spec.dims(), &bytes[44..]), (&[3, 4][..], &3.5f32.to_le_bytes()[..]));
    drop(bytes);
    run(&mut sessions, 1, &[0, 1, 2]);
    assert_eq!(read::<f32>(&sessions[1], "max"), [3.5]);
}

#[test]
fn a_view_of_known_size_of_a_dynamic_tensor_crosses() {
    let mut job = Job::new(2);
    let rows = Dim::Dynamic(job.graph.symbol());
    let fact = Fact { dtype: DType::F32, dims: vec![rows, Dim::Known(32)] };
    let x = job.add("x", WORKERS[0], Op::Input { fact }, &[]);
    let flat = Op::Reshape { to: vec![Dim::Known(1024)] };
    let flat = job.add("flat", WORKERS[0], flat, &[x]);
    let max = job.add("max", WORKERS[1], Op::ReduceMax, &[flat]);
    job.run(max.node, &[0]);
    assert_eq!(transfer(&job.plan(SHARED).unwrap(), "flat"), Transfer::Write(WhyWrite::Unplaced));
    let (mut sessions, _fabrics) = job.open(SHARED);
    let x = sessions[0].node("x").unwrap();
    for step in 1..4u8 {
        let (_, mut bytes) = sessions[0].feed(x.into(), &[32, 32]).unwrap();
        bytes.copy_from_slice([f32::from(step); 1024].map(f32::to_le_bytes).as_flattened());
        drop(bytes);
        run(&mut sessions, 0, &[0, 1, 2]);
        assert_eq!(read::<f32>(&sessions[1], "max"), [f32::from(step)]);
    }
    // the first one was allocated before anybody knew that it would be sent
    assert_eq!(sessions[0].copies().bytes(), 4096);
}

#[test]
fn a_variable_that_peers_read_in_place_is_written_before_the_first_run_only() {
    let mut job = Job::new(1);
    let max = job.add("max", WORKERS[0], Op::ReduceMax, &[job.v]);
    job.run(max.node, &[0]);
    let (mut sessions, _fabrics) = job.open(SHARED);
    write(&sessions[1], "v", &[1.0f32; 4096]);
    run(&mut sessions, 0, &[0, 1]);
    assert_eq!(read::<f32>(&sessions[0], "max"), [1.0]);
    let v = sessions[1].node("v").unwrap();
    let refused = sessions[1].write(v.into()).unwrap_err();
    assert!(matches!(refused, SessionError::ReadByPeers { .. }), "{refused}");
}

#[test]
fn a_view_of_a_received_tensor_can_be_sent_on() {
    let mut job = Job::new(3);
    let fact = Fact::known(DType::F32, &[32, 32]);
    let x = job.add("x", WORKERS[0], Op::Input { fact }, &[]);
    let flat = Op::Reshape { to: vec![Dim::Known(1024)] };
    let flat = job.add("flat", WORKERS[1], flat, &[x]);
    let max = job.add("max", WORKERS[2], Op::ReduceMax, &[flat]);
    job.run(max.node, &[0]);
    for options in [SHARED, WRITTEN] {
        let (mut sessions, _fabrics) = job.open(options);
        for step in 1..4u8 {
            write(&sessions[0], "x", &[f32::from(step); 1024]);
            run(&mut sessions, 0, &[0, 1, 2, 3]);
            assert_eq!(read::<f32>(&sessions[2], "max"), [f32::from(step)]);
        }
    }
}
