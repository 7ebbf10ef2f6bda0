//! `tensorwire bench kvstore`: the store, against itself over ZeroMQ.

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{KvstoreResult, KvstoreSpec, Machine, PAPER_BYTES, Pull, kvstore};
use tensorwire_launch::{JobSpec, Transport};
use tensorwire_train::StoreWire;

use super::{Lines, announce, transports_of};
use crate::Failure;
use crate::args::KvstoreArgs;
use crate::job::job_spec;
use crate::output::{print, print_text};
use crate::table::{live, table_by};

/// The paper's, and some of them.
const WORKERS: &[u32] = &[1, 2, 4, 8, 16, 32];
const QUICK_WORKERS: &[u32] = &[1, 2, 4];

/// Of the table, and above rows as they come.
const HEADER: [&str; 16] = [
    "workers",
    "servers",
    "transport",
    "exchange",
    "pull",
    "size",
    "push + pull",
    "p10",
    "p90",
    "memcpy",
    "of it",
    "of zmq",
    "reg. worker",
    "reg. server",
    "reg. all",
    "copied/step",
];

pub(super) fn run(args: &KvstoreArgs) -> Result<(), Failure> {
    let jobs = jobs(args)?;
    let mut lines = Lines::open(args.json.as_deref())?;
    let hosts = args.hosts.hosts().map_err(Failure::user)?;
    let job = JobSpec { listen: args.hosts.listen, ..job_spec()? };
    let sizes = if args.sizes.is_empty() { &[PAPER_BYTES][..] } else { &args.sizes };
    let transports = transports_of(&args.transports(), &args.wire, hosts.any_remote())?;
    announce(&Machine::here());
    let (verbs, arrival) = args.wire.clone().options();
    let mut rows = Vec::new();
    for &transport in &transports {
        for &(workers, servers) in &jobs {
            for &bytes in sizes {
                let mut spec = KvstoreSpec::new(workers, servers, bytes, args.quick);
                if let Some(iterations) = args.repeat.iterations {
                    spec = spec.with_repetitions(iterations.get());
                }
                spec.warm_up = args.repeat.warm_up.unwrap_or(spec.warm_up);
                spec = KvstoreSpec { transport, hosts: hosts.clone(), ..spec };
                if matches!(transport, Transport::Verbs | Transport::Auto) {
                    spec = KvstoreSpec { verbs: verbs.clone(), arrival, ..spec };
                }
                for result in kvstore(&spec, &ways(args, &spec), &job)? {
                    lines.append(&result)?;
                    let row = row(&result);
                    live(&HEADER, &row, rows.is_empty());
                    rows.push(row);
                }
            }
        }
    }
    show(&rows)
}

/// All that was asked for and can be.
fn ways(args: &KvstoreArgs, spec: &KvstoreSpec) -> Vec<(StoreWire, Pull)> {
    let mut ways = Vec::new();
    for exchange in args.exchange.iter().copied().map(Into::into) {
        let spec = KvstoreSpec { exchange, ..spec.clone() };
        for pull in args.pull.iter().copied().map(Into::into) {
            if pull == Pull::Filled || spec.can_show() {
                ways.push((exchange, pull));
            }
        }
    }
    ways
}

/// How many workers and servers each measurement has.
fn jobs(args: &KvstoreArgs) -> Result<Vec<(u32, u32)>, Failure> {
    let default = if args.quick { QUICK_WORKERS } else { WORKERS };
    let workers = if args.workers.is_empty() { default } else { &args.workers };
    match args.servers.as_slice() {
        [] => Ok(workers.iter().map(|&workers| (workers, workers)).collect()),
        &[servers] => Ok(workers.iter().map(|&workers| (workers, servers)).collect()),
        servers if servers.len() == workers.len() => {
            Ok(workers.iter().copied().zip(servers.iter().copied()).collect())
        }
        servers => Err(Failure::user(format!(
            "--servers has {} numbers and --workers {}; give one for all, or one for each",
            servers.len(),
            workers.len()
        ))),
    }
}

fn show(rows: &[Vec<String>]) -> Result<(), Failure> {
    print(table_by(6, &HEADER, rows, &[0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]))?;
    print_text(
        "medians of what worker 0 waits for, from a push to the end of the pull, all workers in step; pull: into a \
         tensor of the worker's own, or shown where the server has it; memcpy: of the value, by all workers at a time, \
         in the same run; of it: push and pull over one such copy; of zmq: times as fast as over ZeroMQ; reg.: registered \
         memory of the worker and the server that have most, and of all; copied/step: by all processes for a push and pull of \
         all workers. The sums were compared whole.",
    )
}

fn row(result: &KvstoreResult) -> Vec<String> {
    // zmq names no transport of ours: it is over TCP beside each
    let (exchange, transport) = match result.exchange {
        StoreWire::ZeroCopy => ("zero-copy", result.transport.name()),
        StoreWire::Zmq => ("zmq", "tcp"),
    };
    vec![
        result.workers.to_string(),
        result.servers.to_string(),
        transport.to_string(),
        exchange.to_string(),
        match result.pull {
            Pull::Filled => "filled",
            Pull::Shown => "shown",
        }
        .to_string(),
        human_bytes(result.bytes as u64),
        human_seconds(result.median_s),
        human_seconds(result.p10_s),
        human_seconds(result.p90_s),
        human_seconds(result.limit_ns * 1e-9),
        format!("{:.2}", result.ratio_to_limit),
        result.ratio_to_zmq.map_or(String::new(), |ratio| format!("{ratio:.2}")),
        human_bytes(result.registered_bytes_worker),
        human_bytes(result.registered_bytes_server),
        human_bytes(result.registered_bytes),
        // fits: for people
        human_bytes(result.bytes_copied_per_step as u64),
    ]
}
