//! A part gives up a step that its device was told as a whole, and its stream computes on: what others report as done is right.

use std::time::{Duration, Instant};

use tensorwire_base::Rank;
use tensorwire_fabric::{SimKnobs, SimNetwork};
use tensorwire_graph::{
    Cluster, Graph, Hint, Init, NodeId, Op, Placement, Plan, Rule, RunId, RunSpec, SharedMemory,
    place, plan,
};
use tensorwire_runtime::{Advance, ExchangeError, RunError, Session};
use tensorwire_tensor::{DType, Fact, TensorSpec};

use crate::devices::{
    Between, HANGS, LATE, OnDevices, child, crossing, open_plan, own_seeds, run_child,
};

/// Of a tensor: what is as large as a page is read where it lies.
const NUMBERS: usize = 2048;

fn planned(graph: &Graph, cluster: Cluster, roots: &[NodeId], shared: SharedMemory) -> Plan {
    let placed = place(graph, cluster, Placement::default()).unwrap();
    let (name, roots) = ("step", roots.to_vec());
    let run = RunSpec { name, roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], crossing(shared)).unwrap()
}

/// Fills a tensor of a session, if that has one of this name.
fn feed(session: &mut Session, name: &str, number: f32) {
    let Ok(node) = session.node(name) else { return };
    let (_, mut bytes) = session.write(node.into()).unwrap();
    bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&number.to_le_bytes()));
}

fn numbers(session: &Session, name: &str) -> Vec<f32> {
    let node = session.node(name).unwrap();
    let (_, bytes) = session.read(node.into()).unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Drives a session until `is_enough`, or its run is over.
fn drive(session: &mut Session, is_enough: impl Fn() -> bool) -> Result<Advance, RunError> {
    let begun = Instant::now();
    loop {
        let advanced = session.advance()?;
        if advanced == Advance::Finished || is_enough() {
            return Ok(advanced);
        }
        assert!(begun.elapsed() < HANGS, "it hangs");
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// The seed of this process, if it is a child.
fn own_seed() -> Option<u64> {
    if let Some(seeds) = own_seeds() {
        return Some(seeds.start);
    }
    if let Some(mut command) = child((0, 1), LATE) {
        run_child(&mut command);
    }
    None
}

/// A worker's gradient changes a variable of the server's, which the other worker has read before: with that gradient, if
/// `with_gradient`.
fn trained(with_gradient: bool, shared: SharedMemory) -> Plan {
    let mut graph = Graph::new();
    let spec = TensorSpec::new(DType::F32, &[NUMBERS]).unwrap();
    let variable = graph.variable("v", spec, Init::Zeros).unwrap();
    let (at, fact) = (Hint::Replica(0), Fact::known(DType::F32, &[NUMBERS]));
    let x = graph.add("x", at, Op::Input { fact }, &[]).unwrap();
    let twice = Op::Scale { by: 2.0 };
    let gradient = graph.add("gradient", at, twice.clone(), &[x.into()]).unwrap();
    let read = match with_gradient {
        true => graph.add("read", Hint::Replica(1), Op::Add, &[variable, gradient.into()]),
        false => graph.add("read", Hint::Replica(1), twice, &[variable]),
    };
    let read = read.unwrap();
    let apply = Op::Apply { rule: Rule::sgd(0.5), clipped: false };
    let inputs = [variable, gradient.into()];
    let update = graph.add("update", Hint::With(variable.node), apply, &inputs).unwrap();
    graph.control(read, update);
    planned(&graph, Cluster::ParameterServers { workers: 2, servers: 1 }, &[update, read], shared)
}

/// One step of all sessions, which is told in parts as every first one.
fn first_step(sessions: &mut [Session], network: &SimNetwork) {
    let begun = Instant::now();
    sessions.iter_mut().for_each(|session| session.start(RunId(0)));
    let mut left: Vec<&mut Session> = sessions.iter_mut().collect();
    while !left.is_empty() {
        network.advance();
        left.retain_mut(|session| session.advance().unwrap() != Advance::Finished);
        assert!(begun.elapsed() < HANGS, "it hangs");
    }
}

/// Where the server is among sessions, and the worker that reads.
fn places(sessions: &[Session]) -> [usize; 2] {
    let has = |name: &str| sessions.iter().position(|session| session.node(name).is_ok()).unwrap();
    [has("update"), has("read")]
}

/// The reader waits for the gradient and then reads the variable where it lies, when the server has given up the step and its
/// stream has changed it.
#[test]
fn what_a_peer_changes_behind_its_gates_is_not_reported_as_done() {
    let Some(seed) = own_seed() else { return };
    let plan = trained(true, SharedMemory::Used);
    let network = Between::MapsKnown.network(seed, SimKnobs::default());
    let OnDevices { mut sessions, fabrics, network } =
        open_plan(&plan, (network, Between::MapsKnown), (16, 1));
    let [server, reader] = places(&sessions);
    let worker = 3 - server - reader;
    for session in &mut sessions {
        feed(session, "v", 3.0);
        feed(session, "x", 1.0);
    }
    first_step(&mut sessions, &network);
    let mut sessions: Vec<Option<Session>> = sessions.into_iter().map(Some).collect();
    // all are told, and their news is out; nobody looks at it yet but the worker with the gradient
    let of_gradient = plan.edges.iter().filter(|edge| edge.from == worker).count();
    assert_eq!(of_gradient, 2, "to the server and to the reader");
    // the server tells of its variable; the reader has nothing to tell yet
    for (at, news) in [(server, 1), (reader, 0), (worker, of_gradient)] {
        let session = sessions[at].as_mut().unwrap();
        session.start(RunId(0));
        // fits: few
        let all = fabrics[at].stats().writes + news as u64;
        drive(session, || fabrics[at].stats().writes >= all).unwrap();
        assert_eq!(session.counters().whole_steps, 1, "{:?}", session.how_told(RunId(0)));
    }
    sessions[server] = None;
    let error = match drive(sessions[reader].as_mut().unwrap(), || false) {
        Ok(_) => panic!("done, with {}", numbers(sessions[reader].as_ref().unwrap(), "read")[0]),
        Err(error) => error,
    };
    let RunError::Exchange { source: ExchangeError::GivenUp { peer, cause }, .. } = error else {
        panic!("{error}");
    };
    // fits: few
    assert_eq!((peer, cause), (Rank(server as u32), Rank(server as u32)));
}

/// A NIC is about to read what the step that is given up changes next: it has read it when the stream goes on.
#[test]
fn a_nic_has_read_what_a_step_that_is_given_up_changes() {
    let Some(seed) = own_seed() else { return };
    let plan = trained(false, SharedMemory::None);
    let knobs = SimKnobs { delay_turns_max: 10_000, turns_max: 1, ..SimKnobs::default() };
    let network = Between::Nics.network(seed, knobs);
    let OnDevices { mut sessions, fabrics, network } =
        open_plan(&plan, (network, Between::Nics), (16, 1));
    let [server, reader] = places(&sessions);
    for session in &mut sessions {
        feed(session, "v", 3.0);
        feed(session, "x", 1.0);
    }
    first_step(&mut sessions, &network);
    let before = fabrics[server].stats().bytes_written;
    sessions[server].start(RunId(0));
    let posted = || fabrics[server].stats().bytes_written > before;
    drive(&mut sessions[server], posted).unwrap();
    assert_eq!(sessions[server].counters().whole_steps, 1);
    let mut reading = sessions.remove(reader);
    // the server and the other worker
    drop(sessions);
    reading.start(RunId(0));
    let begun = Instant::now();
    while reading.advance().unwrap() != Advance::Finished {
        network.advance();
        assert!(begun.elapsed() < HANGS, "it hangs");
    }
    // the first step has taken 0.5 · 2 from 3
    let wrong = numbers(&reading, "read").into_iter().filter(|number| *number != 4.0).count();
    assert_eq!(wrong, 0);
}
