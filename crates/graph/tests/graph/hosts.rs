//! Plans for tasks of several hosts, some of which share memory.

use tensorwire_graph::{
    Cluster, Edge, NodeId, Placement, PlanOptions, RunSpec, SharedMemory, place, plan,
};

use crate::plan::network;

/// A server and two workers, one of them on its host: each edge is what it would be if all its ends shared memory, or none.
#[test]
fn tensors_stay_where_they_are_within_a_host_and_are_written_between_hosts() {
    // workers first
    let hosts = SharedMemory::UsedOnHosts([7, 3, 3].into());
    let (graph, roots) = network(2, 2);
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots: Vec<NodeId> =
        roots.iter().flat_map(|id| placed.find_all(&graph.node(*id).name)).collect();
    let run = RunSpec { name: "step", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let tasks = cluster.tasks();
    let with = |shared_memory: SharedMemory| {
        let options = PlanOptions { shared_memory, ..PlanOptions::default() };
        plan(&placed, &tasks, std::slice::from_ref(&run), options).unwrap()
    };
    let mixed = with(hosts);
    let [apart, together] = [SharedMemory::None, SharedMemory::Used].map(with);
    let mut seen = [0, 0];
    for edge in &mixed.edges {
        let is_near = edge.from != 0 && edge.to != 0;
        let like = if is_near { &together } else { &apart };
        let same =
            |other: &&Edge| (&other.name, other.from, other.to) == (&edge.name, edge.from, edge.to);
        assert_eq!(edge.transfer, like.edges.iter().find(same).unwrap().transfer, "{}", edge.name);
        seen[usize::from(is_near)] += 1;
    }
    assert!(seen[0] > 0 && seen[0] == seen[1], "{seen:?}");
    assert_ne!(mixed.digest(), apart.digest());
}
