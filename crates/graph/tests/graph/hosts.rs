//! Plans for tasks of several hosts, some of which share memory.

use tensorwire_graph::{
    Cluster, Edge, NodeId, Placement, Plan, PlanOptions, RunSpec, SharedMemory, Transfer, WhyWrite,
    place, plan,
};

use crate::networks::{network, network_of};

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

/// Two workers on each of two hosts, one of which has the server: what the far ones need of it comes to the first of them, who sends
/// it on.
#[test]
fn what_several_of_a_host_need_crosses_to_it_once() {
    let hosts: std::sync::Arc<[u32]> = [7, 7, 3, 3, 7].into();
    let planned = |width: usize, options: PlanOptions| -> Plan {
        let (graph, roots) = network_of(2, 4, width);
        let cluster = Cluster::ParameterServers { workers: 4, servers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let roots: Vec<NodeId> =
            roots.iter().flat_map(|id| placed.find_all(&graph.node(*id).name)).collect();
        let step = |name| RunSpec {
            name,
            roots: roots.clone(),
            fetch_to: None,
            given: vec![],
            followed_by: vec![0],
        };
        plan(&placed, &cluster.tasks(), &[step("step")], options).unwrap()
    };
    let on_hosts = || PlanOptions {
        shared_memory: SharedMemory::UsedOnHosts(hosts.clone()),
        relays: true,
        ..PlanOptions::default()
    };
    let ways = |plan: &Plan| -> Vec<(usize, usize, Transfer)> {
        let of = |edge: &&Edge| edge.name == "w0" && hosts[edge.to] == 3;
        plan.edges.iter().filter(of).map(|edge| (edge.from, edge.to, edge.transfer)).collect()
    };
    let plan = planned(32, on_hosts());
    let apart = Transfer::Write(WhyWrite::Apart);
    let sent_on = Transfer::Write(WhyWrite::Borrowed);
    assert_eq!(ways(&plan), [(4, 2, apart), (2, 3, sent_on)]);
    // nobody waits for another of his host for a small tensor, or where that is not asked for
    assert_eq!(ways(&planned(4, on_hosts())), [(4, 2, apart), (4, 3, apart)]);
    let direct = PlanOptions { relays: false, ..on_hosts() };
    assert_eq!(ways(&planned(32, direct)), [(4, 2, apart), (4, 3, apart)]);
    // what is on the server's own host is read there
    let near = plan.edges.iter().filter(|edge| edge.name == "w0" && edge.to < 2);
    assert!(near.clone().count() == 2 && near.into_iter().all(|edge| edge.from == 4));
}
