//! `tensorwire bench write`: the fabric alone, against gRPC if asked for.

use std::net::SocketAddr;

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{Machine, WINDOW_MAX, WriteResult, WriteSpec, transfer_sizes, write};
use tensorwire_launch::{JobSpec, Transport};

use super::{Lines, announce, transports_of};
use crate::Failure;
use crate::args::WriteArgs;
use crate::job::job_spec;
use crate::output::{print, print_text};
use crate::table::{live, table_by};

pub(super) fn run(args: &WriteArgs) -> Result<(), Failure> {
    if !(1..=WINDOW_MAX).contains(&args.window) {
        let found = args.window;
        return Err(Failure::user(format!("--window must be from 1 to {WINDOW_MAX}, not {found}")));
    }
    let mut lines = Lines::open(args.json.as_deref())?;
    let hosts = args.hosts.hosts().map_err(Failure::user)?;
    let listen = match hosts.any_remote() {
        true => args.hosts.listen,
        false => Some(SocketAddr::new(args.address, 0)),
    };
    let job = JobSpec { listen, ..job_spec()? };
    // up to 64 MiB
    let all = transfer_sizes(true);
    let sizes = if args.sizes.is_empty() { &all } else { &args.sizes };
    let transports = transports_of(&args.transports(), &args.wire, hosts.any_remote())?;
    announce(&Machine::here());
    let (verbs, arrival) = args.wire.clone().options();
    let mut rows = Vec::new();
    let mut header = vec!["transport", "size", "window", "round trip", "throughput"];
    if args.against.is_some() {
        header.extend(["gRPC", "gRPC", "times as fast", "times as fast"]);
    }
    for &transport in &transports {
        for &bytes in sizes {
            let mut spec = WriteSpec::new(transport, bytes, args.window, args.quick);
            if let Some(iterations) = args.repeat.iterations {
                spec = spec.with_repetitions(iterations.get());
            }
            spec.warm_up = args.repeat.warm_up.unwrap_or(spec.warm_up);
            let (against_grpc, hosts) = (args.against.is_some(), hosts.clone());
            let spec = WriteSpec { against_grpc, hosts, ..spec };
            let spec = match transport {
                Transport::Verbs | Transport::Auto => {
                    WriteSpec { verbs: verbs.clone(), arrival, ..spec }
                }
                _ => spec,
            };
            let result = write(&spec, &job)?;
            lines.append(&result)?;
            let row = row(&result);
            live(&header, &row, rows.is_empty());
            rows.push(row);
        }
    }
    print(table_by(3, &header, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]))?;
    print_text(
        "medians; round trip: a write into the other process's memory and its answer, one at a time; \
         throughput: as many under way as the window says, the last one answered.",
    )?;
    match args.against {
        None => print_text("The last write of every measurement was compared whole."),
        Some(_) => print_text(format_args!(
            "gRPC: a unary call of as many bytes over TCP{}, measured in alternation; times as fast: first \
             round trip, then throughput. The last write and a call of every measurement were compared whole.",
            if hosts.any_remote() { String::new() } else { format!(" on {}", args.address) }
        )),
    }
}

fn row(result: &WriteResult) -> Vec<String> {
    // fits: for people
    let rate = |bytes_per_second: f64| format!("{}/s", human_bytes(bytes_per_second as u64));
    let time = |us: f64| human_seconds(us * 1e-6);
    let mut row = vec![
        result.transport.name().to_string(),
        human_bytes(result.bytes as u64),
        result.window.to_string(),
        time(result.round_trip_us),
        rate(result.bytes_per_second),
    ];
    row.extend(result.grpc_round_trip_us.map(time));
    row.extend(result.grpc_bytes_per_second.map(rate));
    let ratios = [result.ratio_round_trip, result.ratio_throughput];
    row.extend(ratios.into_iter().flatten().map(|ratio| format!("{ratio:.2}")));
    row
}
