//! Sessions of one process: gradients of whole graphs against central differences, and errors that say
//! where.

use std::time::Duration;

use crate::support::{self, network, read, session_alone, write};
use proptest::prelude::*;
use tensorwire_graph::{
    Cluster, Graph, Hint, Op, Placement, PlanOptions, RunId, RunSpec, place, plan,
};
use tensorwire_runtime::{RunError, SessionError};
use tensorwire_tensor::{DType, Fact};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// d loss / d w of a network with every differentiable operator, in f64: each gradient that the
    /// table built against (loss(w + h) − loss(w − h)) / 2h.
    #[test]
    fn gradients_agree_with_central_differences(
        rows in 1usize..5, inputs in 1usize..5, hidden in 1usize..6, classes in 2usize..5, seed: u64,
    ) {
        let network = network(DType::F64, rows, inputs, hidden, classes, 1);
        let mut session = session_alone(&network);
        support::fill_f64(&session, &network, seed);
        for (variable, gradient) in network.variables.iter().zip(&network.gradients[0]) {
            session.run(RunId(0)).unwrap();
            let found = read::<f64>(&session, gradient);
            let values = read::<f64>(&session, variable);
            for index in 0..values.len() {
                let h = 1e-6;
                let mut loss_at = |value: f64| {
                    let mut moved = values.clone();
                    moved[index] = value;
                    write(&session, variable, &moved);
                    session.run(RunId(0)).unwrap();
                    read::<f64>(&session, "replica0/loss")[0]
                };
                let expected = (loss_at(values[index] + h) - loss_at(values[index] - h)) / (2.0 * h);
                write(&session, variable, &values);
                // h² (1e-12) and rounding / h (1e-9), with room; a kink of ReLU is hit almost never
                prop_assert!(
                    (found[index] - expected).abs() <= 1e-8 * (1.0 + expected.abs()),
                    "{variable}[{index}]: {} against {expected}", found[index]
                );
            }
        }
    }
}

#[test]
fn a_kernels_error_names_the_node_and_the_step() {
    let network = network(DType::F64, 2, 3, 4, 3, 1);
    let mut session = session_alone(&network);
    support::fill_f64(&session, &network, 1);
    session.run(RunId(0)).unwrap();
    write(&session, "replica0/labels", &[0i32, 3]);
    let error = session.run(RunId(0)).unwrap_err();
    assert!(matches!(error, RunError::Kernel { step: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("step 2: node 'replica0/loss': "), "{text}");
    assert!(text.contains("the label of row 1 is 3"), "{text}");
}

#[test]
fn a_tensor_that_is_read_cannot_be_written_under_the_reader() {
    let network = network(DType::F64, 2, 3, 4, 3, 1);
    let mut session = session_alone(&network);
    support::fill_f64(&session, &network, 1);
    session.run(RunId(0)).unwrap();
    let loss = session.node("replica0/loss").unwrap();
    let reading = session.read(loss.into()).unwrap();
    let refused = session.write(loss.into()).unwrap_err();
    assert!(matches!(refused, SessionError::Lent { .. }), "{refused}");
    drop(reading);
    session.write(loss.into()).unwrap();
    let missing = session.node("loss").unwrap_err().to_string();
    assert_eq!(missing, "there is no node 'loss' in worker 0's part");
}

#[test]
fn a_part_with_edges_needs_an_exchange() {
    let mut graph = Graph::new();
    let fact = Fact::known(DType::F32, &[4]);
    let x = graph.add("x", Hint::Replica(0), Op::Input { fact }, &[]).unwrap();
    let max = graph.add("max", Hint::Replica(1), Op::ReduceMax, &[x.into()]).unwrap();
    let v = tensorwire_tensor::TensorSpec::new(DType::F32, &[1]).unwrap();
    graph.variable("v", v, tensorwire_graph::Init::Zeros).unwrap();
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots = vec![max];
    let run = RunSpec { name: "run", roots, fetch_to: None, given: vec![], followed_by: vec![] };
    let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
    let error =
        support::try_session(&plan, 0, None, support::options(Duration::from_secs(1))).unwrap_err();
    assert!(matches!(error, SessionError::NoExchange { part: 0, edges: 1 }), "{error}");
}

#[test]
fn a_peer_that_is_alive_and_says_nothing_is_named_when_the_deadline_passes() {
    let network = network(DType::F32, 2, 3, 4, 3, 1);
    let deadline = Duration::from_secs(2);
    let (mut sessions, fabrics) =
        support::sessions_over_sim(&network, 1, 1, 0, |knobs| knobs, deadline);
    let mut server = sessions.pop().unwrap();
    let error = server.run(RunId(0)).unwrap_err();
    let RunError::Stalled { step: 1, missing, .. } = &error else { panic!("{error}") };
    assert!(missing.contains("gradient") && missing.contains("from worker 0"), "{missing}");
    drop((sessions, server, fabrics));
}
