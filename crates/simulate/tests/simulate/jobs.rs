//! Jobs on networks: all-reduces and servers against closed forms, thousands of workers, the paper's cluster.

use tensorwire_collectives::Algorithm;
use tensorwire_graph::{Cluster, Placement, Plan, PlanOptions, Rule, place, plan};
use tensorwire_nn::{Program, ProgramSpec, Sharing};
use tensorwire_simulate::{
    Estimate, Network, SimulateError, SimulatedExchange, SimulatedJob, SimulatedStrategy, cost,
    estimate, paper,
};
use tensorwire_zoo::{Fcn5, InceptionV3, Lstm, Mlp, Seq2Seq, Shipped, Vgg16};

fn planned(
    model: &'static dyn Shipped,
    batch: usize,
    sharing: Sharing,
    replicas: u32,
    cluster: Cluster,
) -> Plan {
    placed(model, (batch, sharing, replicas), cluster, Placement::RoundRobin)
}

fn placed(
    model: &'static dyn Shipped,
    (batch, sharing, replicas): (usize, Sharing, u32),
    cluster: Cluster,
    placement: Placement,
) -> Plan {
    let optimizer = Rule::sgd(0.1);
    let spec = ProgramSpec { batch, replicas, sharing, optimizer, ..ProgramSpec::default() };
    let program = Program::new(model, &model.samples().describe(), &spec).unwrap();
    let placed = place(&program.graph, cluster, placement).unwrap();
    let runs = program.runs(&placed, cluster);
    plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap()
}

pub(crate) fn with_servers(model: &'static dyn Shipped, batch: usize, servers: u32) -> Plan {
    let cluster = Cluster::ParameterServers { workers: 2, servers };
    planned(model, batch, Sharing::All, 2, cluster)
}

/// Servers that hold as many bytes each.
pub(crate) fn with_even_servers(model: &'static dyn Shipped, batch: usize, servers: u32) -> Plan {
    let cluster = Cluster::ParameterServers { workers: 2, servers };
    placed(model, (batch, Sharing::All, 2), cluster, Placement::default())
}

pub(crate) fn without_servers(model: &'static dyn Shipped) -> Plan {
    let cluster = Cluster::Workers { workers: 2 };
    planned(model, 8, Sharing::Own { clients: 1 }, 2, cluster)
}

pub(crate) fn job(
    plan: &Plan,
    strategy: SimulatedStrategy,
    workers: u32,
    servers: u32,
) -> SimulatedJob<'_> {
    SimulatedJob {
        plan,
        master: 1,
        other: 1,
        strategy,
        workers,
        servers,
        is_colocated: false,
        clients: 1,
        exchange: SimulatedExchange::ZeroCopy,
        algorithm: None,
        compute_s: 0.1,
        crowded_s: None,
    }
}

/// A network in which nothing but one link's bandwidth takes time.
pub(crate) fn plain(bandwidth_gbs: f64) -> Network {
    let mut network = Network::preset("rdma-100g").unwrap();
    (network.link.bandwidth_gbs, network.link.latency_us) = (bandwidth_gbs, 0.0);
    (network.link.message_us, network.local.by_reference) = (0.0, true);
    (network.machine.copy_gbs, network.machine.memory_gbs) = (1e6, 1e6);
    (network.machine.update_gbs, network.machine.fold_gbs) = (1e6, 1e6);
    network.machine.own_update_gbs = 1e6;
    network
}

pub(crate) fn bytes(model: &'static dyn Shipped) -> f64 {
    let plan = without_servers(model);
    let vectors = plan.parts[1].graph.nodes().filter(|(_, node)| node.op.vector().is_some());
    let sizes = vectors.map(|(_, node)| node.facts[0].spec().unwrap().unwrap().bytes());
    sizes.sum::<usize>() as f64
}

/// What is over the compute of a job that computes next to nothing.
pub(crate) fn waits_s(plan: &Plan, workers: u32, algorithm: Algorithm, network: &Network) -> f64 {
    let compute_s = 1e-9;
    let job = SimulatedJob {
        algorithm: Some(algorithm),
        compute_s,
        ..job(plan, SimulatedStrategy::AllReduce, workers, 0)
    };
    estimate(&job, network).unwrap().step_s
}

#[test]
fn a_ring_takes_two_times_n_minus_one_nths_of_the_vector() {
    let (plan, size, network) = (without_servers(&Fcn5), bytes(&Fcn5), plain(1.0));
    for n in [2, 3, 8, 64] {
        let found = waits_s(&plan, n, Algorithm::Ring, &network);
        let n = f64::from(n);
        let wanted = 2.0 * (n - 1.0) / n * size / 1e9;
        assert!((found / wanted - 1.0).abs() < 0.01, "{n}: {found}, not {wanted}");
    }
}

#[test]
fn a_ring_waits_for_a_latency_each_round() {
    let (plan, mut network) = (without_servers(&Mlp), plain(1e6));
    network.link.latency_us = 1000.0;
    for n in [2, 5, 16] {
        // all vectors go round at the same time
        let found = waits_s(&plan, n, Algorithm::Ring, &network);
        let wanted = 2.0 * (f64::from(n) - 1.0) * 1e-3;
        assert!((found / wanted - 1.0).abs() < 0.02, "{n}: {found}, not {wanted}");
    }
}

#[test]
fn all_algorithms_but_exchange_send_what_they_must_and_halving_takes_fewer_rounds() {
    let (plan, size) = (without_servers(&Fcn5), bytes(&Fcn5));
    let least = |n: f64| 2.0 * (n - 1.0) / n * size / 1e9;
    for algorithm in [Algorithm::Direct, Algorithm::MultiRing, Algorithm::HalvingDoubling] {
        let found = waits_s(&plan, 8, algorithm, &plain(1.0));
        assert!((found / least(8.0) - 1.0).abs() < 0.05, "{algorithm:?}: {found}");
    }
    let all = waits_s(&plan, 8, Algorithm::Exchange, &plain(1.0));
    assert!((all / (7.0 * size / 1e9) - 1.0).abs() < 0.05, "{all}");
    let mut slow = plain(1e6);
    slow.link.latency_us = 1000.0;
    let rounds = waits_s(&plan, 16, Algorithm::HalvingDoubling, &slow) / 1e-3;
    assert!((rounds - 8.0).abs() < 0.2, "{rounds} rounds of 2 log2 16");
    let uneven = waits_s(&plan, 6, Algorithm::HalvingDoubling, &plain(1.0));
    assert!(uneven > least(6.0), "who stands for two gets a whole vector");
}

#[test]
fn a_server_sends_to_all_and_gets_from_all() {
    let plan = with_servers(&Fcn5, 8, 1);
    let mut network = plain(1.0);
    network.machine.servers_apart = true;
    let job = SimulatedJob { compute_s: 1e-9, ..job(&plan, SimulatedStrategy::Ps, 5, 1) };
    let found = estimate(&job, &network).unwrap();
    // one direction at a time: what the workers get, and then what they give
    let wanted = 2.0 * 5.0 * bytes(&Fcn5) / 1e9;
    assert!((found.step_s / wanted - 1.0).abs() < 0.05, "{}, not {wanted}", found.step_s);
    assert!(found.bottleneck.contains("nic of server 0"), "{}", found.bottleneck);
}

#[test]
fn a_worker_alone_takes_what_it_computes() {
    let plan = without_servers(&Mlp);
    let mut network = plain(1e6);
    (network.machine.workers, network.local.latency_us) = (0, 0.0);
    let job = job(&plan, SimulatedStrategy::AllReduce, 1, 0);
    let found = estimate(&job, &network).unwrap();
    assert!((found.efficiency - 1.0).abs() < 1e-6, "{found:?}");
    // eight on its 32 cores take eight times as long, and what they fold takes next to nothing
    let job = SimulatedJob { workers: 8, ..job };
    let eight = estimate(&job, &network).unwrap();
    assert!((eight.compute_s / found.compute_s - 8.0).abs() < 1e-6);
    assert!((eight.step_s / found.step_s - 8.0).abs() < 0.08, "{eight:?}");
}

#[test]
fn more_bandwidth_never_slows_and_the_same_again_is_the_same() {
    let plan = with_servers(&Fcn5, 8, 4);
    let mut last = f64::INFINITY;
    for bandwidth in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
        let mut network = Network::preset("rdma-100g").unwrap();
        network.link.bandwidth_gbs = bandwidth;
        let job = job(&plan, SimulatedStrategy::Ps, 8, 4);
        let found = estimate(&job, &network).unwrap();
        assert_eq!(found, estimate(&job, &network).unwrap());
        assert!(found.step_s <= last * (1.0 + 1e-9), "{bandwidth}: {} > {last}", found.step_s);
        last = found.step_s;
    }
}

#[test]
fn copies_serialization_and_a_narrow_core_cost() {
    let plan = with_servers(&Fcn5, 8, 4);
    let network = Network::preset("rdma-100g").unwrap();
    let step_s = |exchange, network: &Network| {
        let job = SimulatedJob { exchange, ..job(&plan, SimulatedStrategy::Ps, 8, 4) };
        estimate(&job, network).unwrap().step_s
    };
    let all = [
        SimulatedExchange::ZeroCopy,
        SimulatedExchange::Copy,
        SimulatedExchange::GrpcRdma,
        SimulatedExchange::GrpcTcp,
    ];
    let times = all.map(|exchange| step_s(exchange, &network));
    assert!(times[1..].iter().all(|time| *time > 1.05 * times[0]), "{times:?}");
    let mut narrow = network.clone();
    narrow.link.oversubscription = 8.0;
    // 8 machines of 12.5 GB/s, an eighth of that; each server's values go to 7 others' workers and back
    let least = 2.0 * 7.0 * bytes(&Fcn5) / 12.5e9;
    let found = step_s(SimulatedExchange::ZeroCopy, &narrow);
    // two steps are a mean that a job not quite in its stride is off by a percent
    assert!(found > (0.98 * least).max(times[0]), "{found}, {least}, {times:?}");
    // over a wide core the port of the hottest server: its values to 7 others' workers, and their gradients back
    let mut held = [0.0; 4];
    for edge in plan.edges.iter().filter(|edge| edge.to == 1) {
        let from = plan.parts[edge.from].task;
        if from.job == tensorwire_graph::Job::Server {
            held[from.index as usize] += edge.bytes().unwrap() as f64;
        }
    }
    let hot = held.into_iter().fold(0.0, f64::max);
    let least = 2.0 * 7.0 * hot / 12.5e9;
    assert!(hot > 0.0 && times[0] > 0.98 * least, "{times:?}, {least}");
    let mut wide = network;
    wide.link.ports = 4;
    assert!(step_s(SimulatedExchange::ZeroCopy, &wide) < times[0]);
}

#[test]
fn four_thousand_workers_are_over_soon_and_small() {
    let (with, without) = (with_servers(&Vgg16, 1, 32), without_servers(&Fcn5));
    let network = Network::preset("rdma-100g").unwrap();
    let check = |job: &SimulatedJob<'_>| -> Estimate {
        let found = estimate(job, &network).unwrap();
        assert!(found.step_s.is_finite() && found.step_s > 0.0);
        assert!(found.activities < 100_000, "{}", found.activities);
        found
    };
    let hot = check(&job(&with, SimulatedStrategy::Ps, 4096, 32));
    assert!(hot.efficiency < 0.01, "fc6 is on one server: {hot:?}");
    assert!(hot.bottleneck.starts_with("nic of server"), "{}", hot.bottleneck);
    for algorithm in [Algorithm::Ring, Algorithm::MultiRing, Algorithm::HalvingDoubling] {
        let algorithm = Some(algorithm);
        check(&SimulatedJob { algorithm, ..job(&without, SimulatedStrategy::AllReduce, 4096, 0) });
    }
    let store = with_servers(&Fcn5, 1, 1);
    check(&job(&store, SimulatedStrategy::DistSgd, 4096, 16));
}

#[test]
fn clients_of_a_store_send_less_than_its_workers() {
    let cluster = Cluster::ParameterServers { workers: 4, servers: 1 };
    let plan = planned(&Fcn5, 8, Sharing::Clients { clients: 2 }, 4, cluster);
    let all = with_servers(&Fcn5, 8, 1);
    let network = plain(1.0);
    let of_workers = estimate(&job(&all, SimulatedStrategy::DistSgd, 16, 1), &network).unwrap();
    let of_clients = SimulatedJob {
        other: 3,
        clients: 2,
        algorithm: Some(Algorithm::HalvingDoubling),
        ..job(&plan, SimulatedStrategy::MpiSgd, 16, 1)
    };
    let of_clients = estimate(&of_clients, &network).unwrap();
    assert!(of_clients.step_s < of_workers.step_s, "{of_clients:?} {of_workers:?}");
}

/// Xue et al., figure 11. What they have besides, of TensorFlow, is not simulated, so that ours are above theirs: 7.2 for
/// their 5 (lstm), 8.0 for 7.9 (inception-v3), 4.3 for 4.3 (vgg16); bounds as found.
#[test]
fn the_papers_cluster_speeds_up_as_the_paper_says() {
    let network = Network::preset("paper-xue").unwrap();
    let mut off = Vec::new();
    for (model, bound) in [(&Lstm as &dyn Shipped, 0.5), (&InceptionV3, 0.05), (&Vgg16, 0.05)] {
        let plan = with_servers(model, paper::BATCH, paper::MACHINES);
        let part = &plan.parts[1].graph;
        let flops = plan.runs[0].nodes[1].iter().map(|id| cost::flops(part, *id)).sum();
        let benchmark = paper::benchmark(&model.name()).unwrap();
        let compute_s = benchmark.compute_s(flops);
        let job = SimulatedJob {
            compute_s,
            ..job(&plan, SimulatedStrategy::Ps, paper::MACHINES, paper::MACHINES)
        };
        let found = estimate(&job, &network).unwrap();
        let wanted = benchmark.speedup_of_8.unwrap();
        println!("{}: {:.2}, paper {wanted}, {found:?}", model.name(), found.speedup);
        off.push((found.speedup / wanted - 1.0, bound, found));
    }
    assert!(off.iter().all(|(off, bound, _)| off.abs() < *bound), "{off:?}");
}

#[test]
fn a_step_on_one_machine_is_never_shorter_than_its_compute() {
    for (model, batch) in [(&Mlp as &dyn Shipped, 8), (&Mlp, 512), (&Fcn5, 1), (&Lstm, 8)] {
        let plan = with_servers(model, batch, 1);
        for strategy in [SimulatedStrategy::Ps, SimulatedStrategy::DistSgd] {
            for preset in Network::PRESETS {
                for compute_s in [1e-6, 1e-3, 1.0] {
                    let network = Network::preset(preset).unwrap();
                    let job = SimulatedJob { compute_s, ..job(&plan, strategy, 1, 1) };
                    let found = estimate(&job, &network).unwrap();
                    let at_most = 1.0 + 1e-6;
                    assert!(
                        found.efficiency <= at_most && found.speedup <= at_most,
                        "{} of {batch}, {strategy:?} on {preset}, {compute_s}: {found:?}",
                        model.name()
                    );
                }
            }
        }
    }
}

/// A number of a network, and how to set it.
type Field = (&'static str, fn(&mut Network, f64));

const RATES: [Field; 11] = [
    ("link.bandwidth_gbs", |network, found| network.link.bandwidth_gbs = found),
    ("link.core_gbs", |network, found| network.link.core_gbs = Some(found)),
    ("local.core_gbs", |network, found| network.local.core_gbs = found),
    ("machine.device_gbs", |network, found| network.machine.device_gbs = Some(found)),
    ("machine.copy_gbs", |network, found| network.machine.copy_gbs = found),
    ("machine.memory_gbs", |network, found| network.machine.memory_gbs = found),
    ("machine.update_gbs", |network, found| network.machine.update_gbs = found),
    ("machine.own_update_gbs", |network, found| network.machine.own_update_gbs = found),
    ("machine.fold_gbs", |network, found| network.machine.fold_gbs = found),
    ("rpc.serialize_gbs", |network, found| network.rpc.serialize_gbs = found),
    ("rpc.tcp_gbs", |network, found| network.rpc.tcp_gbs = found),
];
const TIMES: [Field; 4] = [
    ("link.latency_us", |network, found| network.link.latency_us = found),
    ("link.message_us", |network, found| network.link.message_us = found),
    ("local.latency_us", |network, found| network.local.latency_us = found),
    ("local.message_us", |network, found| network.local.message_us = found),
];
const CORE: [Field; 1] =
    [("link.oversubscription", |network, found| network.link.oversubscription = found)];

#[test]
fn a_number_out_of_its_range_is_an_error_and_one_at_its_end_is_not() {
    let plan = with_servers(&Mlp, 8, 2);
    let preset = Network::preset("rdma-100g").unwrap();
    let never = [f64::NAN, f64::INFINITY, -1.0, 1e300];
    for (fields, wrong, right, range) in [
        (&RATES[..], &[0.0, 5e-324, 1e-320, 1e-7, 1e7][..], [1e-6, 1e6], "from 1e-6 to 1e6 GB/s"),
        (&TIMES, &[1e308, 2e9], [0.0, 1e9], "from 0 to 1e9 µs"),
        (&CORE, &[0.0, 0.5, 1e7], [1.0, 1e6], "from 1 to 1e6"),
    ] {
        for (name, set) in fields {
            for found in wrong.iter().chain(&never) {
                let mut network = preset.clone();
                set(&mut network, *found);
                let error =
                    estimate(&job(&plan, SimulatedStrategy::Ps, 4, 2), &network).unwrap_err();
                let says = format!("network 'rdma-100g': {name} must be {range}, not {found:?}");
                assert_eq!(error.to_string(), says);
                assert!(matches!(error, SimulateError::Network(_)));
            }
            for (found, exchange) in right.into_iter().flat_map(|found| {
                [
                    SimulatedExchange::ZeroCopy,
                    SimulatedExchange::Copy,
                    SimulatedExchange::GrpcRdma,
                    SimulatedExchange::GrpcTcp,
                ]
                .map(|exchange| (found, exchange))
            }) {
                let mut network = preset.clone();
                set(&mut network, found);
                let job = SimulatedJob { exchange, ..job(&plan, SimulatedStrategy::Ps, 4, 2) };
                let step_s = estimate(&job, &network).unwrap().step_s;
                assert!(step_s.is_finite() && step_s > 0.0, "{name} {found}: {step_s}");
            }
        }
    }
}

#[test]
fn the_ends_of_all_ranges_at_once_are_simulated() {
    let (with, without) = (with_servers(&Mlp, 8, 2), without_servers(&Mlp));
    for (rate, other_rate) in [(1e-6, 1e-6), (1e-6, 1e6), (1e6, 1e-6), (1e6, 1e6)] {
        for (time, compute_s) in [(0.0, 1e-12), (0.0, 1e6), (1e9, 1e-12), (1e9, 1e6)] {
            for (plan, strategy, servers) in [
                (&with, SimulatedStrategy::Ps, 2),
                (&with, SimulatedStrategy::DistSgd, 2),
                (&without, SimulatedStrategy::AllReduce, 0),
            ] {
                let mut network = Network::preset("paper-xue").unwrap();
                for (at, (_, set)) in RATES.iter().enumerate() {
                    set(&mut network, if at % 2 == 0 { rate } else { other_rate });
                }
                TIMES.iter().for_each(|(_, set)| set(&mut network, time));
                let job = SimulatedJob { compute_s, ..job(plan, strategy, 4, servers) };
                let step_s = estimate(&job, &network).unwrap().step_s;
                assert!(step_s.is_finite() && step_s > 0.0, "{strategy:?}: {step_s}");
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_said() {
    let plan = with_servers(&Mlp, 8, 2);
    let network = Network::preset("loopback").unwrap();
    let said = |job: SimulatedJob<'_>| estimate(&job, &network).unwrap_err().to_string();
    let fine = job(&plan, SimulatedStrategy::Ps, 2, 2);
    assert!(said(SimulatedJob { workers: 0, ..fine }).contains("--workers"));
    for compute_s in [f64::NAN, f64::INFINITY, 0.0, -1.0, 5e-324, 1e-13, 1e7, 1e305] {
        let error = said(SimulatedJob { compute_s, ..fine });
        assert!(error.starts_with("--compute-ms must be from 1e-9 to 1e9 ms, not "), "{error}");
    }
    let uneven =
        SimulatedJob { strategy: SimulatedStrategy::MpiSgd, workers: 5, clients: 2, ..fine };
    assert!(said(uneven).contains("--clients 2"));
    let mut wrong = network.clone();
    wrong.link.bandwidth_gbs = -1.0;
    let error = estimate(&fine, &wrong).unwrap_err();
    assert!(matches!(error, SimulateError::Network(_)));
    assert!(error.to_string().contains("link.bandwidth_gbs"), "{error}");
    let spoken =
        planned(&Seq2Seq, 4, Sharing::All, 2, Cluster::ParameterServers { workers: 2, servers: 1 });
    assert!(matches!(
        estimate(&job(&spoken, SimulatedStrategy::Ps, 2, 1), &network),
        Err(SimulateError::Dynamic { .. })
    ));
}
