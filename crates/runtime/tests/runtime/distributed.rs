//! Sessions of several tasks over the simulated fabric: whatever order its bytes land in, a job's
//! results have the bits of one process that folds in the same order.

use std::time::Duration;

use crate::support::{
    Network, network, plan_with, read, session_alone, sessions_of_plan_over_sim, sessions_over_sim,
    write,
};
use tensorwire_fabric::{Between, Fabric, SimKnobs, Within};
use tensorwire_graph::{Cluster, Graph, Op, Placement, PlanOptions, RunId, SharedMemory};
use tensorwire_runtime::Session;
use tensorwire_tensor::DType;

pub(crate) const STEPS: u64 = 6;

/// Gives variables and inputs values that depend on the step, so that a stale or torn tensor shows.
pub(crate) fn feed(session: &Session, network: &Network, step: u64) {
    let graph: &Graph = &session.part().graph;
    for replica in 0..network.replicas {
        let input = format!("replica{replica}/x");
        if graph.find(&input).is_some() {
            let value =
                |i: usize| ((i as u64 * 7 + step * 3 + u64::from(replica)) % 11) as f32 / 11.0;
            let x: Vec<f32> = (0..network.rows * network.inputs).map(value).collect();
            write(session, &input, &x);
            let label = |i: usize| ((i as u64 + step) % network.classes as u64) as i32;
            let labels: Vec<i32> = (0..network.rows).map(label).collect();
            write(session, &format!("replica{replica}/labels"), &labels);
        }
    }
}

/// Gives the variables of a part, and pieces of such, their first values.
pub(crate) fn initialise(session: &Session, network: &Network) {
    for (seed, variable) in network.variables.iter().enumerate() {
        for (name, first) in held(session, variable) {
            let count = read::<f32>(session, &name).len();
            let value = |i: usize| (((i + first + seed) * 37 % 101) as f32 - 50.0) / 60.0;
            write(session, &name, &(0..count).map(value).collect::<Vec<f32>>());
        }
    }
}

/// What a part has of a variable: names, and the first element of each.
fn held(session: &Session, variable: &str) -> Vec<(String, usize)> {
    let nodes = session.part().graph.nodes().map(|(_, node)| node);
    let held = nodes.filter_map(|node| match (&node.op, &node.piece) {
        (Op::Variable { .. }, None) if node.name == variable => Some((node.name.clone(), 0)),
        (Op::Variable { spec, .. }, Some(piece)) if piece.of == variable => {
            Some((node.name.clone(), piece.first_row * spec.elements() / spec.dims()[0]))
        }
        _ => None,
    });
    held.collect()
}

pub(crate) fn variables(sessions: &[Session], network: &Network) -> Vec<Vec<f32>> {
    let of = |variable: &String| {
        let here = |s: &Session| {
            let held = held(s, variable).into_iter();
            held.map(|(name, first)| (first, read::<f32>(s, &name))).collect::<Vec<_>>()
        };
        let mut pieces: Vec<(usize, Vec<f32>)> = sessions.iter().flat_map(here).collect();
        pieces.sort_by_key(|(first, _)| *first);
        pieces.into_iter().flat_map(|(_, values)| values).collect()
    };
    network.variables.iter().map(of).collect()
}

pub(crate) fn locally(network: &Network) -> Vec<Vec<f32>> {
    let mut session = session_alone(network);
    initialise(&session, network);
    for step in 0..STEPS {
        feed(&session, network, step);
        session.run(RunId(0)).unwrap();
    }
    variables(&[session], network)
}

fn over_sim(
    network: &Network,
    servers: u32,
    seed: u64,
    knobs: fn(SimKnobs) -> SimKnobs,
) -> Vec<Vec<f32>> {
    let deadline = Duration::from_secs(30);
    train(network, sessions_over_sim(network, network.replicas, servers, seed, knobs, deadline))
}

/// Makes all steps of a job's sessions; returns the variables.
fn train(network: &Network, (mut sessions, fabrics): (Vec<Session>, Vec<Fabric>)) -> Vec<Vec<f32>> {
    std::thread::scope(|scope| {
        for session in &mut sessions {
            scope.spawn(|| {
                initialise(session, network);
                for step in 0..STEPS {
                    feed(session, network, step);
                    session.run(RunId(0)).unwrap();
                }
                assert_eq!(session.copies().bytes(), 0);
            });
        }
    });
    let found = variables(&sessions, network);
    tensorwire_testkit::mesh::close(&fabrics);
    found
}

fn adversarial(knobs: SimKnobs) -> SimKnobs {
    SimKnobs {
        within: Within::Random,
        between: Between::Random,
        delay_turns_max: 40,
        duplicate_per_mille: 200,
        full_per_mille: 100,
        ..knobs
    }
}

#[test]
fn any_order_of_bytes_gives_the_bits_of_one_process() {
    for (replicas, servers) in [(1, 1), (2, 1), (2, 2), (3, 4)] {
        let network = network(DType::F32, 3, 4, 8, 3, replicas);
        let expected = locally(&network);
        for seed in 0..25 {
            let found = over_sim(&network, servers, seed, adversarial);
            assert_eq!(found, expected, "{replicas} replicas, {servers} servers, seed {seed}");
        }
    }
}

/// Three workers on one host and two on another: a weight comes to one of each, who sends it on while it computes with it.
#[test]
fn what_one_of_a_host_sends_on_has_the_bits_of_one_process_in_any_order() {
    let network = network(DType::F32, 3, 32, 48, 33, 5);
    let expected = locally(&network);
    let options = PlanOptions {
        shared_memory: SharedMemory::UsedOnHosts([1, 1, 1, 2, 2, 9].into()),
        relays: true,
        ..PlanOptions::default()
    };
    let cluster = Cluster::ParameterServers { workers: 5, servers: 1 };
    let plan = plan_with(&network, cluster, Placement::RoundRobin, options);
    let sent_on = plan.edges.iter().filter(|edge| edge.from < 5 && edge.to < 5);
    // two weights, to two others on the first host and to one on the second
    assert_eq!(sent_on.count(), 2 * (2 + 1));
    for seed in 0..40 {
        let deadline = Duration::from_secs(30);
        let sessions = sessions_of_plan_over_sim(&plan, seed, adversarial, deadline);
        assert_eq!(train(&network, sessions), expected, "seed {seed}");
    }
}

#[test]
fn training_changes_what_is_compared() {
    let network = network(DType::F32, 3, 4, 8, 3, 2);
    let session = session_alone(&network);
    initialise(&session, &network);
    let start = variables(&[session], &network);
    for (before, after) in start.iter().zip(locally(&network)) {
        assert_ne!(*before, after);
    }
}
