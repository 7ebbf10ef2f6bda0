//! Variables whose rows lie on several servers: the bits of one process, and nothing copied, whatever brings the rows.

use crate::distributed::{STEPS, feed, initialise, locally, variables};
use crate::support::parts::BACKENDS;
use crate::support::{Network, network, options, plan_with, sessions};
use std::time::Duration;
use tensorwire_graph::{
    Cluster, Op, Placement, Plan, PlanOptions, RunId, SendFrom, SharedMemory, Transfer, WhyWrite,
};
use tensorwire_tensor::DType;
use tensorwire_testkit::mesh;

/// Everything that is larger than an equal share is split.
const SPLIT: Placement = Placement::Balanced { split_above: Some(0) };

/// Of its two matrices the first, of 128 KiB, is above an equal share. Its pieces are worth reading where they lie.
fn matrices(replicas: u32) -> Network {
    network(DType::F32, 3, 256, 128, 64, replicas)
}

fn pieces(plan: &Plan) -> usize {
    let nodes = plan.parts.iter().flat_map(|part| part.graph.nodes());
    let is_piece = |op: &Op, is: bool| matches!(op, Op::Variable { .. }) && is;
    nodes.filter(|(_, node)| is_piece(&node.op, node.piece.is_some())).count()
}

#[test]
fn rows_of_several_servers_give_the_bits_of_one_process_over_every_fabric() {
    for (replicas, servers) in [(1, 2), (2, 3), (2, 4)] {
        let network = matrices(replicas);
        let expected = locally(&network);
        for (backend, make) in BACKENDS {
            let shared = [SharedMemory::None, SharedMemory::Unused, SharedMemory::Used];
            let shared = &shared[..if backend == "shm" { 3 } else { 1 }];
            for (shared_memory, send_from) in shared
                .iter()
                .flat_map(|shared| [(shared, SendFrom::Origin), (shared, SendFrom::Staging)])
            {
                let shared_memory = shared_memory.clone();
                let told = PlanOptions { shared_memory, send_from, ..PlanOptions::default() };
                let cluster = Cluster::ParameterServers { workers: replicas, servers };
                let plan = plan_with(&network, cluster, SPLIT, told.clone());
                assert_eq!(pieces(&plan), servers as usize);
                let fabrics = mesh::mesh(make, replicas + servers);
                let mut all = sessions(&plan, &fabrics, options(Duration::from_secs(60)));
                std::thread::scope(|scope| {
                    for session in &mut all {
                        scope.spawn(|| {
                            initialise(session, &network);
                            for step in 0..STEPS {
                                feed(session, &network, step);
                                session.run(RunId(0)).unwrap();
                            }
                        });
                    }
                });
                let case = format!("{backend} {told:?}, {replicas} and {servers}");
                assert_eq!(variables(&all, &network), expected, "{case}");
                let copied: u64 = all.iter().map(|session| session.copies().bytes()).sum();
                assert_eq!(copied == 0, send_from == SendFrom::Origin, "{case}: {copied}");
                drop(all);
                mesh::close(&fabrics);
            }
        }
    }
}

#[test]
fn where_memory_is_shared_gradients_are_read_where_they_lie_and_rows_of_weights_written() {
    let told = PlanOptions { shared_memory: SharedMemory::Used, ..PlanOptions::default() };
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    let plan = plan_with(&matrices(2), cluster, SPLIT, told);
    let mut found = (0, 0);
    for edge in plan.edges.iter().filter(|edge| edge.name.ends_with(']')) {
        let from_worker = edge.from < 2;
        let expected = match from_worker {
            true => Transfer::Reference,
            false => Transfer::Write(WhyWrite::Joined),
        };
        assert_eq!(edge.transfer, expected, "{}", edge.name);
        *(if from_worker { &mut found.0 } else { &mut found.1 }) += 1;
    }
    assert!(found.0 >= 4 && found.1 >= 4, "{found:?}");
}
