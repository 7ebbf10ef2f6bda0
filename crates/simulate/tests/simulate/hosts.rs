//! Several workers a machine: what they send goes over one link, what stays on the machine does not, and sockets cost cores.
//! Against closed forms.

use tensorwire_collectives::Algorithm;
use tensorwire_simulate::{
    Component, Estimate, Network, SimulateError, SimulatedJob, SimulatedStrategy, estimate,
};
use tensorwire_zoo::{Fcn5, Mlp};

use crate::jobs::{bytes, job, plain, waits_s, with_even_servers, with_servers, without_servers};

/// Next to nothing.
const COMPUTE_S: f64 = 1e-9;

/// Machines of one core and so many workers, with a link of 1 GB/s.
fn hosts(workers: u32) -> Network {
    let mut network = plain(1.0);
    (network.machine.workers, network.machine.cores) = (workers, 1);
    (network.local.latency_us, network.local.message_us) = (0.0, 0.0);
    network.local.core_gbs = 1e6;
    network
}

fn is_near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.05, "{found}, not {wanted}");
}

#[test]
fn workers_of_a_host_share_its_link_in_each_direction() {
    for a_host in [1, 2, 4] {
        let workers = 2 * a_host;
        let plan = with_even_servers(&Fcn5, 8, workers);
        let job = SimulatedJob {
            is_colocated: true,
            compute_s: COMPUTE_S,
            ..job(&plan, SimulatedStrategy::Ps, workers, workers)
        };
        let found = estimate(&job, &hosts(a_host)).unwrap();
        // the half that a host holds goes to the other host once, and each worker sends its gradient of the other half
        let least = f64::from(1 + a_host) / 2.0 * bytes(&Fcn5) / 1e9;
        // no sooner, and next to nothing later: not all servers are done at the same moment
        assert!((1.0 - 1e-6..1.08).contains(&(found.step_s / least)), "{least}, {found:?}");
        assert!(found.bottleneck.starts_with("nic of server"), "{found:?}");
    }
}

#[test]
fn what_stays_on_a_host_takes_nothing_of_its_link() {
    let plan = with_servers(&Fcn5, 8, 1);
    let job = SimulatedJob { compute_s: COMPUTE_S, ..job(&plan, SimulatedStrategy::Ps, 4, 1) };
    let step_s = |network: &Network| estimate(&job, network).unwrap().step_s;
    // the server's two neighbours read there; the weights go to the other two once, and come back as two gradients
    is_near(step_s(&hosts(2)), (1.0 + 2.0) * bytes(&Fcn5) / 1e9);
    assert!(step_s(&hosts(4)) < 0.01 * step_s(&hosts(2)), "all are on one");
}

#[test]
fn a_store_of_several_hosts_is_written_to_within_one_too() {
    let mut network = hosts(2);
    (network.link.bandwidth_gbs, network.local.core_gbs) = (1e6, 1.0);
    let plan = with_servers(&Fcn5, 8, 1);
    let store =
        SimulatedJob { compute_s: COMPUTE_S, ..job(&plan, SimulatedStrategy::DistSgd, 4, 4) };
    let found = estimate(&store, &network).unwrap();
    // half of all is on each host, for two workers there and from two
    is_near(found.step_s, 2.0 * bytes(&Fcn5) / 1e9);
    is_near(found.cores_s[&Component::Copies], 2.0 * bytes(&Fcn5) / 1e9);
    // where all are on one, a value is read where it lies
    network.machine.workers = 4;
    let here = estimate(&store, &network).unwrap();
    assert!(here.step_s < 0.01 * found.step_s, "{here:?}");
}

#[test]
fn hosts_send_what_one_member_would_where_an_all_reduce_is_hierarchical() {
    let plan = without_servers(&Fcn5);
    for a_host in [2, 4] {
        let of = |algorithm| waits_s(&plan, 2 * a_host, algorithm, &hosts(a_host));
        is_near(of(Algorithm::Hierarchical), bytes(&Fcn5) / 1e9);
        // of a ring one member of each host sends to the other
        let n = f64::from(2 * a_host);
        is_near(of(Algorithm::Ring), 2.0 * (n - 1.0) / n * bytes(&Fcn5) / 1e9);
        // and so does what such a job chooses, which does not know the link: it is told of one of 25 Gb/s
        let mut ethernet = hosts(a_host);
        ethernet.link.core_gbs = Some(1e6);
        let job = job(&plan, SimulatedStrategy::AllReduce, 2 * a_host, 0);
        let job = SimulatedJob { compute_s: COMPUTE_S, ..job };
        is_near(estimate(&job, &ethernet).unwrap().step_s, bytes(&Fcn5) / 1e9);
    }
}

#[test]
fn sockets_take_of_the_cores_what_they_send_and_receive() {
    let mut network = hosts(1);
    (network.link.bandwidth_gbs, network.link.core_gbs) = (1e6, Some(1.0));
    let (plan, size) = (without_servers(&Fcn5), bytes(&Fcn5));
    let job = job(&plan, SimulatedStrategy::AllReduce, 2, 0);
    let job = SimulatedJob { compute_s: COMPUTE_S, algorithm: Some(Algorithm::Direct), ..job };
    let found = estimate(&job, &network).unwrap();
    is_near(found.step_s, 2.0 * size / 1e9);
    is_near(found.cores_s[&Component::Sockets], 2.0 * size / 1e9);
    assert!(found.bottleneck.starts_with("cores of"), "{found:?}");
    // and computing waits for the same core
    let busy = estimate(&SimulatedJob { compute_s: 1.0, ..job }, &network).unwrap();
    assert!(busy.step_s > 0.95 * (1.0 + 2.0 * size / 1e9), "{busy:?}");
}

#[test]
fn what_a_ring_keeps_on_a_host_is_copied_and_the_rest_goes_by_sockets() {
    let mut network = hosts(2);
    (network.link.core_gbs, network.local.core_gbs) = (Some(4.0), 2.0);
    let (plan, size) = (without_servers(&Fcn5), bytes(&Fcn5));
    let job = job(&plan, SimulatedStrategy::AllReduce, 4, 0);
    let job = SimulatedJob { algorithm: Some(Algorithm::Ring), compute_s: COMPUTE_S, ..job };
    let found = estimate(&job, &network).unwrap();
    // each of two workers sends one and a half times the vector; one of them to the other host, which sends as much back
    is_near(found.cores_s[&Component::Copies], 1.5 * size / 2e9);
    is_near(found.cores_s[&Component::Sockets], 2.0 * 1.5 * size / 4e9);
    network.link.core_gbs = None;
    let by_nic = estimate(&job, &network).unwrap();
    assert!(!by_nic.cores_s.contains_key(&Component::Sockets), "{by_nic:?}");
}

fn sum(found: &Estimate) -> f64 {
    found.way_s.values().sum()
}

#[test]
fn the_way_through_a_step_is_as_long_as_the_step() {
    let (with, without) = (with_servers(&Mlp, 8, 2), without_servers(&Mlp));
    for preset in Network::PRESETS {
        let mut network = Network::preset(preset).unwrap();
        network.machine.workers = network.machine.workers.min(1);
        for (plan, strategy, servers) in [
            (&with, SimulatedStrategy::Ps, 2),
            (&with, SimulatedStrategy::DistSgd, 2),
            (&without, SimulatedStrategy::AllReduce, 0),
        ] {
            let job = SimulatedJob { compute_s: 1e-3, ..job(plan, strategy, 4, servers) };
            let found = estimate(&job, &network).unwrap();
            assert!((sum(&found) / found.step_s - 1.0).abs() < 1e-6, "{preset}: {found:?}");
        }
    }
}

#[test]
fn a_step_that_waits_for_nothing_is_its_kernels_and_its_updates() {
    let plan = without_servers(&Mlp);
    let mut network = plain(1e6);
    (network.machine.workers, network.local.latency_us) = (0, 0.0);
    network.machine.own_update_gbs = 1.0;
    let found = estimate(&job(&plan, SimulatedStrategy::AllReduce, 1, 0), &network).unwrap();
    let keys: Vec<&Component> = found.way_s.keys().collect();
    assert_eq!(keys, [&Component::Compute, &Component::Updates], "{found:?}");
    // plain gradient descent: weights are read and written, a gradient is read; all cores do it
    is_near(found.way_s[&Component::Updates], 3.0 * bytes(&Mlp) / 1e9);
    let all = f64::from(network.machine.cores) * found.step_s;
    is_near(found.cores_s.values().sum(), all);
}

#[test]
fn a_slow_link_is_what_a_step_waits_for() {
    let plan = without_servers(&Fcn5);
    let job = job(&plan, SimulatedStrategy::AllReduce, 2, 0);
    let found = estimate(&SimulatedJob { compute_s: 0.01, ..job }, &hosts(1)).unwrap();
    assert!(found.way_s[&Component::Wire] > 0.9 * found.step_s, "{found:?}");
}

#[test]
fn hosts_and_servers_that_do_not_fit_are_refused() {
    let (with, without) = (with_servers(&Mlp, 8, 2), without_servers(&Mlp));
    let uneven = SimulatedJob {
        algorithm: Some(Algorithm::Hierarchical),
        ..job(&without, SimulatedStrategy::AllReduce, 5, 0)
    };
    let error = estimate(&uneven, &hosts(2)).unwrap_err();
    assert_eq!(error, SimulateError::UnevenHosts { workers: 5, a_machine: 2 });
    let few = SimulatedJob { is_colocated: true, ..job(&with, SimulatedStrategy::Ps, 4, 2) };
    let error = estimate(&few, &hosts(2)).unwrap_err();
    assert_eq!(error, SimulateError::Colocated { workers: 4, servers: 2 });
}
