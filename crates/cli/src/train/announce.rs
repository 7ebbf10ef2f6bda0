//! What is said before a job begins: what was chosen, and why.

use console::Term;
use tensorwire_base::human_bytes;
use tensorwire_graph::Op;
use tensorwire_launch::{Hosts, RanksByHost, Transport};
use tensorwire_nn::Program;
use tensorwire_train::{
    Averaging, DeviceDesign, Exchange, Prepared, Strategy, Topology, TrainConfig,
};

use crate::table::partition_table;

/// How many samples there are, as it is shown.
struct Samples(Option<usize>);

impl std::fmt::Display for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(count) => write!(f, "{count}"),
            None => f.write_str("endless"),
        }
    }
}

/// What was chosen, and why: paragraphs that are said once.
pub(super) fn announcement(prepared: &Prepared) -> Vec<String> {
    let mut said = Vec::new();
    let mut note = |text: std::fmt::Arguments<'_>| said.push(text.to_string());
    let Prepared { config, plan, data, program, .. } = prepared;
    let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
    note(format_args!(
        "{}: {} variables, {} parameters, {}; {}: {} train and {} test samples",
        config.model,
        program.variables.len(),
        prepared.parameters(),
        human_bytes(bytes as u64),
        data.train.name(),
        Samples(data.train.samples()),
        data.test.as_ref().map_or(0, |test| test.test_samples()),
    ));
    if let Some(text) = data.train.note() {
        note(format_args!("{text}"));
    }
    if let Some(weights) = prepared.begins_with() {
        note(format_args!("{weights}"));
    }
    if let Some(resumed) = &prepared.resumed {
        note(format_args!("{resumed}"));
    }
    note(format_args!("kernels: {}", prepared.kernels()));
    if config.devices_per_worker > 1 {
        let each = config.devices_per_worker;
        // fits: batches are in memory
        let samples = u64::from(config.workers) * u64::from(each) * config.batch as u64;
        let by = prepared.device_design().map_or("", DeviceDesign::name);
        note(format_args!(
            "{each} GPUs a worker, a batch on each: {samples} samples a step; reduced by {by}"
        ));
    }
    if config.strategy == Strategy::Local {
        let replicas = if config.workers == 1 { "replica" } else { "replicas" };
        note(format_args!("local: {} {replicas} in one process, nothing crosses", config.workers));
        return said;
    }
    let (hosts, roles) = (&config.hosts, &prepared.roles());
    if hosts.any_remote() {
        note(format_args!("hosts: {}", RanksByHost { hosts, roles }));
    }
    let transport = match (config.transport, config.settled_transport()) {
        _ if config.exchange == Exchange::Zmq => "tcp (ZeroMQ)",
        _ if config.exchange.is_over_tcp() => "tcp (gRPC)",
        (_, Some(Transport::Tcp)) if config.encrypt => "tcp, encrypted",
        (Transport::Auto, Some(_)) if hosts.any_remote() => {
            "shm (auto: all processes are on one host)"
        }
        (Transport::Auto, Some(_)) => "shm (auto: all processes are on this host)",
        (Transport::Auto, None) => {
            "auto (shm within a host; between hosts verbs if every one can, else tcp)"
        }
        (Transport::Tcp, _) if share_hosts(hosts, roles.len()) => {
            "tcp, also within a host, where auto shares memory"
        }
        (Transport::Verbs, _) if share_hosts(hosts, roles.len()) => {
            "verbs, also within a host, where auto shares memory"
        }
        (given, _) => given.name(),
    };
    if config.topology().has_store() {
        said.extend(announcement_of_store(prepared, transport));
        return said;
    }
    if config.topology().is_replicated() {
        said.push(announcement_of_group(prepared, transport));
        return said;
    }
    let traffic = plan.traffic(Program::TRAIN);
    let written = if config.exchange.is_by_message() { "in messages" } else { "written" };
    let asynchronous = if config.asynchronous { " (async: each at its own pace)" } else { "" };
    let servers = match config.servers {
        0 => "each a server of its share of the variables (--servers K: K processes beside them)"
            .to_string(),
        1 => "1 server".to_string(),
        servers => format!("{servers} servers"),
    };
    note(format_args!(
        "ps: {} worker{}{asynchronous}, {servers}; transport {transport}; per step {} by reference, {} {written}, {} sends",
        config.workers,
        if config.workers == 1 { "" } else { "s" },
        human_bytes(traffic.by_reference),
        human_bytes(traffic.written),
        traffic.sends,
    ));
    said
}

/// True if there are several hosts, and several processes on one of them.
fn share_hosts(hosts: &Hosts, processes: usize) -> bool {
    let first_there = hosts.numbers(processes);
    hosts.spread(processes) && first_there.iter().zip(0..).any(|(first, rank)| *first != rank)
}

/// What workers without servers all-reduce in a step.
fn announcement_of_group(prepared: &Prepared, transport: &str) -> String {
    let Prepared { config, plan, .. } = prepared;
    if prepared.reduces_by_edges() {
        let traffic = plan.traffic(Program::TRAIN);
        return format!(
            "{}: {} workers with weights of their own, each of which makes a share of the means; transport {transport}; per step {} by reference, {} written, {} sends",
            config.strategy.name(),
            config.workers,
            human_bytes(traffic.by_reference),
            human_bytes(traffic.written),
            traffic.sends,
        );
    }
    let part = plan.parts.first();
    let reduced = part.into_iter().flat_map(|part| {
        let of_group =
            part.graph.nodes().filter(|(_, node)| matches!(node.op, Op::AllReduce { .. }));
        of_group.filter_map(|(id, _)| part.memory.spot(id.into()))
    });
    let bytes: usize = reduced.map(|spot| spot.spec.bytes()).sum();
    format!(
        "{}: {} workers with weights of their own; transport {transport}; per step {} all-reduced{}",
        config.strategy.name(),
        config.workers,
        // fits: sizes in memory
        human_bytes(bytes as u64),
        if config.clients.deterministic { ", in the order of ranks" } else { "" },
    )
}

/// Who pushes and pulls how much, and how often.
fn traffic_of_store(config: &TrainConfig, bytes: u64) -> String {
    let (workers, clients) = (config.workers, config.topology().groups);
    let who = match clients == workers {
        true => "worker".to_string(),
        false => format!("client (of {} workers)", workers / clients.max(1)),
    };
    let size = human_bytes(bytes);
    match config.topology().averaging {
        None => format!("per step and {who} {size} pushed, {size} pulled"),
        Some(Averaging { interval, alpha }) => {
            let step = human_bytes(2 * bytes / interval);
            format!(
                "every {interval} steps per {who} {size} pushed, {size} pulled: {step} a step, a {interval}th of \
                 dist-sgd's; alpha {alpha}"
            )
        }
    }
}

/// Returns a warning where a group's workers are on two hosts, and a worker of another group on either of them: what a host could
/// reduce by itself crosses the network then.
fn parted_groups(topology: &Topology, hosts: &Hosts) -> Option<String> {
    let together =
        |worker, other| hosts.together(topology.rank_of(worker), topology.rank_of(other));
    let workers = || 0..topology.workers;
    let is_of = |worker, other| topology.client_of(worker) == topology.client_of(other);
    let has_others = |one| workers().any(|other| together(one, other) && !is_of(one, other));
    let is_parted = |one, other| {
        is_of(one, other) && !together(one, other) && (has_others(one) || has_others(other))
    };
    let parted = |one: u32| workers().find(|other| is_parted(one, *other));
    let (one, other) = workers().find_map(|one| Some((one, parted(one)?)))?;
    Some(format!(
        "warning: worker {one} and worker {other} are of one group and on two hosts, so that their gradients cross the network twice; \
         a group is on one host where each host is named once (--hosts a,b), and there are as many groups as hosts, and servers"
    ))
}

/// What is in the store, and where.
fn announcement_of_store(prepared: &Prepared, transport: &str) -> Vec<String> {
    let Prepared { config, program, .. } = prepared;
    let bytes: usize = program.weights().map(|variable| variable.spec.bytes()).sum();
    // fits: sizes in memory
    let traffic = traffic_of_store(config, bytes as u64);
    let store = &config.store;
    let snapshot = store.snapshot.as_ref().map(|path| {
        format!("; snapshots every {} steps at {}", store.snapshot_every, path.display())
    });
    let mut said = vec![format!(
        "{}: {} workers, {} servers; transport {transport}; {traffic}{}{}",
        config.strategy.name(),
        config.workers,
        config.servers,
        if store.elastic { "; elastic" } else { "" },
        snapshot.unwrap_or_default(),
    )];
    if let Some(warning) = parted_groups(&config.topology(), &config.hosts) {
        said.push(warning);
    }
    let steps = prepared.steps();
    if let Some(interval) = config.topology().averaging.map(|averaging| averaging.interval)
        && steps <= interval
    {
        said.push(format!(
            "warning: nobody meets the centre, which is evaluated and saved, in {steps} steps; make more than {interval}, or give a \
             smaller --interval"
        ));
    }
    said.push(partition_table(Term::stderr(), &prepared.store_table().unwrap_or_default()));
    said
}

#[cfg(test)]
mod tests {
    use tensorwire_train::ClientConfig;

    use super::*;

    #[test]
    fn processes_share_a_host_where_there_are_more_than_hosts() {
        for (hosts, processes, expected) in
            [("a,b", 2, false), ("a,b", 3, true), ("a:2,b", 3, true), ("127.0.0.1", 4, false)]
        {
            assert_eq!(share_hosts(&hosts.parse().unwrap(), processes), expected, "{hosts}");
        }
    }

    #[test]
    fn a_group_on_several_hosts_is_told_of_where_it_could_be_on_one() {
        let told = |hosts: &str, workers: u32, servers: u32, clients: u32| {
            let clients = ClientConfig { clients: Some(clients), ..ClientConfig::default() };
            let strategy = Strategy::MpiSgd;
            let config =
                TrainConfig { strategy, workers, servers, clients, ..TrainConfig::default() };
            parted_groups(&config.topology(), &hosts.parse().unwrap())
        };
        for (hosts, workers, servers, clients, parted) in [
            ("a:2,b:2", 4, 4, 2, "worker 0 and worker 2"),
            ("a:1,b:4", 4, 1, 2, "worker 0 and worker 2"),
            ("a,b,c", 6, 2, 2, "worker 0 and worker 2"),
        ] {
            let said = told(hosts, workers, servers, clients).unwrap();
            assert!(said.contains(&format!("{parted} are of one group")), "{hosts}: {said}");
        }
        // a group a host; one worker a host; one group of all; none
        for (hosts, workers, servers, clients) in
            [("a,b", 4, 2, 2), ("a,b,c,d", 4, 4, 2), ("a:2,b:2", 4, 4, 1), ("a:2,b:2", 4, 4, 4)]
        {
            assert_eq!(told(hosts, workers, servers, clients), None, "{hosts} {clients}");
        }
    }
}
