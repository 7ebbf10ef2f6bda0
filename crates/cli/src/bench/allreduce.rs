//! `tensorwire bench allreduce`: collective operations, by each algorithm, and of tensors.

use std::io::Write;
use std::path::Path;

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{
    AllreduceResult, AllreduceSpec, CollectiveKind, Machine, allreduce, measure_link, tuned_rows,
};
use tensorwire_collectives::{Algorithm, GroupOptions, LinkCost, Table};
use tensorwire_launch::{Hosts, JobSpec, Transport};
use tensorwire_train::{TunedLink, TunedRow, whole_file};

use super::{Lines, announce, transports_of};
use crate::Failure;
use crate::args::{AllreduceArgs, read_table};
use crate::job::job_spec;
use crate::output::{note, print, print_text};
use crate::table::{live, table_by};

static SIZES: [usize; 9] = sizes();
/// Of [`SIZES`], the first so many.
const QUICK_SIZES: usize = 7;

/// 4 KiB to 256 MiB by fours.
const fn sizes() -> [usize; 9] {
    let mut sizes = [4 << 10; 9];
    let mut at = 1;
    while at < sizes.len() {
        sizes[at] = 4 * sizes[at - 1];
        at += 1;
    }
    sizes
}

/// Of the table, and above rows as they come.
pub(super) const HEADER: [&str; 15] = [
    "ranks",
    "devices",
    "transport",
    "operation",
    "design",
    "algorithm",
    "size",
    "time",
    "p10",
    "p90",
    "GB/s",
    "bus GB/s",
    "sent",
    "over wire",
    "registered",
];

pub(super) fn run(args: &AllreduceArgs) -> Result<(), Failure> {
    let mut lines = Lines::open(args.json.as_deref())?;
    if let Some(gpus) = args.gpus() {
        return super::gpu_allreduce::run(args, &gpus, &mut lines);
    }
    // nobody wants to measure for an hour to hear that it cannot be written
    match (&args.tune, &args.link) {
        (Some(path), _) => check_table(path, whole_file::check_writable_where(path))?,
        (None, Some(path)) => check_table(path, whole_file::check_appendable(path))?,
        (None, None) => {}
    }
    let hosts = args.hosts.hosts().map_err(Failure::user)?;
    let remote = hosts.any_remote();
    let transports = transports_of(&args.transports(), &args.wire, remote)?;
    if transports.iter().all(|transport| args.ways(&possible(*transport, remote)).is_empty()) {
        return Err(Failure::user(
            "--algorithm shared is for processes that share memory (--transport shm), hierarchical for several hosts (--hosts); \
             name others",
        ));
    }
    if args.table.is_some() && args.ways(&Algorithm::ALL).iter().all(|way| way.algorithm.is_some())
    {
        return Err(Failure::user(
            "--table is what --algorithm auto looks at; name auto, or leave one out",
        ));
    }
    let job = JobSpec { listen: args.hosts.listen, ..job_spec()? };
    announce(&Machine::here());
    if let Some(path) = &args.link {
        return links(args, (&transports, &hosts), &job, path);
    }
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for &transport in &transports {
        for result in of_transport(args, (transport, &hosts), &job, &mut rows, &mut lines)? {
            results.push(result);
        }
    }
    if let Some(path) = &args.tune {
        write(path, &results)?;
    }
    show(&rows)
}

/// The sizes to measure.
pub(super) fn sizes_of(args: &AllreduceArgs) -> &[usize] {
    match (args.sizes.is_empty(), args.quick) {
        (false, _) => &args.sizes,
        (true, true) => &SIZES[..QUICK_SIZES],
        (true, false) => &SIZES,
    }
}

/// How often one of them is measured.
pub(super) fn spec_of(args: &AllreduceArgs, ranks: u32, bytes: usize) -> AllreduceSpec {
    let mut spec = AllreduceSpec::new(ranks, bytes, args.quick);
    if let Some(iterations) = args.repeat.iterations {
        spec = spec.with_repetitions(iterations.get());
    }
    spec.warm_up = args.repeat.warm_up.unwrap_or(spec.warm_up);
    AllreduceSpec { dtype: args.dtype.into(), vectors: args.vectors.get(), ..spec }
}

/// The ways between processes over each transport, kept in a file.
fn links(
    args: &AllreduceArgs,
    (transports, hosts): (&[Transport], &Hosts),
    job: &JobSpec,
    path: &Path,
) -> Result<(), Failure> {
    let ranks = args.ranks.iter().copied().max().unwrap_or(2);
    for &transport in transports {
        let (verbs, arrival) = match transport {
            Transport::Verbs | Transport::Auto => args.wire.clone().options(),
            _ => Default::default(),
        };
        let spec = spec_of(args, ranks, 0);
        let spec = AllreduceSpec { transport, verbs, arrival, hosts: hosts.clone(), ..spec };
        let Some(found) = measure_link(&spec, job)? else {
            note(format_args!(
                "{}: the processes share memory, and need no link",
                transport.name()
            ));
            continue;
        };
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| Failure::other(format!("opening {}: {error}", path.display())))?;
        let line = serde_json::to_string(&found).map_err(Failure::other)?;
        writeln!(file, "{line}")
            .map_err(|error| Failure::other(format!("writing to {}: {error}", path.display())))?;
        // fits: as many as there are processes
        let among: Vec<usize> = match transport {
            Transport::Auto => {
                hosts.numbers(ranks as usize).into_iter().map(|host| host as usize).collect()
            }
            // members of one host share no memory
            _ => (0..ranks as usize).collect(),
        };
        print_text(shown(&found, &among))?;
    }
    Ok(())
}

/// What was measured, and what follows for processes by the number of each one's host.
fn shown(found: &TunedLink, hosts: &[usize]) -> String {
    let by = |bytes| found.link.choose_on_hosts(hosts, bytes, &GroupOptions::default()).name();
    let ranks = hosts.len();
    format!(
        "{found}; {ranks} processes reduce 4 KiB by {}, 1 MiB by {}, 64 MiB by {}",
        by(4 << 10),
        by(1 << 20),
        by(64 << 20),
    )
}

/// Every measurement over one transport.
fn of_transport(
    args: &AllreduceArgs,
    (transport, hosts): (Transport, &Hosts),
    job: &JobSpec,
    rows: &mut Vec<Vec<String>>,
    lines: &mut Lines,
) -> Result<Vec<AllreduceResult>, Failure> {
    let (verbs, arrival) = match transport {
        Transport::Verbs | Transport::Auto => args.wire.clone().options(),
        _ => Default::default(),
    };
    let sizes = sizes_of(args);
    let ways = args.ways(&possible(transport, hosts.any_remote()));
    let mut results = Vec::new();
    for &ranks in &args.ranks {
        // fits: as many as there are processes
        let spread = hosts.spread(ranks as usize);
        let known = args.table.as_deref().map(|path| read(path, transport, spread)).transpose()?;
        let (table, link) = known.unwrap_or_default();
        for collective in args.collective.iter().copied().map(CollectiveKind::from) {
            for &bytes in sizes {
                let spec = spec_of(args, ranks, bytes);
                let (verbs, table) = (verbs.clone(), table.clone());
                let deterministic = args.deterministic;
                let spec = AllreduceSpec {
                    transport,
                    verbs,
                    arrival,
                    table,
                    link,
                    hosts: hosts.clone(),
                    ..spec
                };
                let spec = AllreduceSpec { collective, deterministic, ..spec };
                for result in allreduce(&spec, &ways, job)? {
                    lines.append(&result)?;
                    let row = row(&result);
                    live(&HEADER, &row, rows.is_empty());
                    rows.push(row);
                    results.push(result);
                }
            }
        }
    }
    Ok(results)
}

/// Algorithms that can be taken.
fn possible(transport: Transport, remote: bool) -> Vec<Algorithm> {
    let shares = !remote && matches!(transport, Transport::Shm | Transport::Auto);
    let can = |algorithm: &Algorithm| match algorithm {
        Algorithm::Shared => shares,
        Algorithm::Hierarchical => remote,
        _ => true,
    };
    Algorithm::ALL.into_iter().filter(can).collect()
}

fn read(
    path: &Path,
    transport: Transport,
    spread: bool,
) -> Result<(Option<Table>, Option<LinkCost>), Failure> {
    let (rows, links) = read_table(path).map_err(|error| Failure::user(error.to_string()))?;
    // what members settle between hosts is not known yet
    let among: &[Transport] = match transport {
        Transport::Auto => &[Transport::Verbs, Transport::Tcp],
        _ => &[transport],
    };
    let table = among.iter().find_map(|transport| TunedRow::table(&rows, *transport));
    let link = among.iter().find_map(|transport| TunedLink::link(&links, *transport, spread));
    if table.is_none() && link.is_none() {
        let (path, transport) = (path.display(), transport.name());
        let says = format!(
            "the table {path} has no row for {transport} between these processes; --tune or --link writes some"
        );
        return Err(Failure::user(says));
    }
    Ok((table, link))
}

/// Fails if a file that measurements are to be kept in cannot be written.
fn check_table(path: &Path, tried: std::io::Result<()>) -> Result<(), Failure> {
    tried.map_err(|error| {
        let path = path.display();
        Failure::user(format!("cannot write the table to {path}: {error}; choose another file"))
    })
}

fn write(path: &Path, results: &[AllreduceResult]) -> Result<(), Failure> {
    let rows = tuned_rows(results);
    let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
    let text = lines.map_err(Failure::other)?.join("\n") + "\n";
    whole_file::write_where(path, text.as_bytes()).map(drop).map_err(|error| {
        Failure::other(format!("writing the table to {}: {error}", path.display()))
    })
}

fn show(rows: &[Vec<String>]) -> Result<(), Failure> {
    print(table_by(7, &HEADER, rows, &[0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14]))?;
    print_text(
        "medians of the slowest process's time, from a barrier on; GB/s: bytes of a process's vectors over it; bus: times \
         2(n-1)/n of an all-reduce, (n-1)/n of a reduce-scatter or all-gather, as nccl-tests count it; sent: by the \
         process that sent most, in one operation; over wire: of all processes of a host together, to those that share \
         no memory with them; registered: of the process with most. After every operation all vectors were compared whole.",
    )
}

fn row(result: &AllreduceResult) -> Vec<String> {
    // fits: for people
    let rate = |bytes_per_s: f64| format!("{:.2}", bytes_per_s / 1e9);
    let algorithm = result.algorithm.name();
    vec![
        result.ranks.to_string(),
        result.devices.to_string(),
        result.transport.name().to_string(),
        result.collective.to_string(),
        result.design.unwrap_or_default().to_string(),
        if result.by_table { format!("auto: {algorithm}") } else { algorithm.to_string() },
        match result.vectors {
            None => human_bytes(result.bytes as u64),
            Some(vectors) => format!("{vectors} x {}", human_bytes(result.bytes as u64)),
        },
        human_seconds(result.median_s),
        human_seconds(result.p10_s),
        human_seconds(result.p90_s),
        rate(result.algorithm_bytes_per_s),
        rate(result.bus_bytes_per_s),
        human_bytes(result.bytes_sent),
        human_bytes(result.bytes_over_wire),
        human_bytes(result.registered_bytes),
    ]
}
