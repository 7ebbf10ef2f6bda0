//! `tensorwire bench`: tables for people, lines of JSON for programs.

mod allreduce;
mod check;
mod evaluation;
mod gpu_allreduce;
mod kvstore;
mod modes;
mod write;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use tensorwire::program::detected;
use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{
    BenchError, Machine, Overlap, StepEvent, StepOptions, StepResult, TransferResult, TransferSpec,
    receive_over_link, send_over_link, step, transfer_sizes, transfers,
};
use tensorwire_launch::{JobSpec, Transport, verbs_usable};
use tensorwire_train::{ConfigError, Quantiles, Strategy, WireType};

use super::Failure;
use super::args::{
    BenchArgs, Scenario, SocketsArgs, StepArgs, TransferArgs, TransportArg, WireArgs,
};
use super::job::{end_at_once_while, job_spec};
use super::output::{note, print, print_text};
use super::table::{live, table, table_by};

#[cfg(test)]
pub(crate) const ALLREDUCE_HEADER: [&str; 15] = allreduce::HEADER;

pub(crate) fn run(args: BenchArgs) -> Result<(), Failure> {
    let measures_something = !matches!(args.scenario, Scenario::Check(_));
    if measures_something && !is_to_measure() {
        return Ok(());
    }
    match args.scenario {
        Scenario::Transfer(args) => run_transfer(&args),
        Scenario::Step(args) => run_step(*args),
        Scenario::Write(args) => write::run(&args),
        Scenario::Kvstore(args) => kvstore::run(&args),
        Scenario::Allreduce(args) => allreduce::run(&args),
        Scenario::Modes(args) => modes::run(&args),
        Scenario::Evaluation(args) => evaluation::run(&args),
        Scenario::Check(args) => check::run(&args),
        Scenario::Sockets(args) => run_sockets(&args),
    }
}

/// True if this process is to measure: of several that mpirun, srun or torchrun started, one does, with processes of its own.
fn is_to_measure() -> bool {
    // an environment that says half of it started nobody else
    let Some(found) = detected().ok().flatten().filter(|found| found.world > 1) else {
        return true;
    };
    let measures = found.launched_as.is_launcher();
    if measures {
        note(format_args!(
            "{} started {} processes; a benchmark starts its own, of as many as it says: this one measures, and the others \
             are done. --hosts has it measure between machines",
            found.by, found.world
        ));
    }
    measures
}

fn run_sockets(args: &SocketsArgs) -> Result<(), Failure> {
    if let Some(at) = args.receive_at {
        let failed = |error| Failure::other(format!("receiving at {at}: {error}"));
        receive_over_link(at).map_err(failed)?;
    }
    if let Some(to) = args.send_to {
        let failed = |error| Failure::other(format!("sending to {to}: {error}"));
        let carried = send_over_link(to, args.as_long_as.as_deref()).map_err(failed)?;
        Lines::open(args.json.as_deref())?.append(&carried)?;
    }
    Ok(())
}

/// Of the table; the first of them above rows as they come.
const TRANSFERS: [&str; 12] = [
    "transport",
    "exchange",
    "kind",
    "size",
    "transfer",
    "p90",
    "GB/s",
    "end to end",
    "limit",
    "",
    "of limit",
    "copies/byte",
];
const TRANSFERS_LIVE: usize = 5;
/// In place of a speed, where no byte of the tensor was moved.
const STAYS: &str = "-";

fn run_transfer(args: &TransferArgs) -> Result<(), Failure> {
    let mut lines = Lines::open(args.json.as_deref())?;
    let hosts = args.hosts.hosts().map_err(Failure::user)?;
    let job = JobSpec { listen: args.hosts.listen, ..job_spec()? };
    let all = transfer_sizes(args.quick);
    let sizes = if args.sizes.is_empty() { &all } else { &args.sizes };
    let transports = transports_of(&args.transports(), &args.wire, hosts.any_remote())?;
    announce(&Machine::here());
    let (verbs, arrival) = args.wire.clone().options();
    let ways = args.ways(&transports);
    let mut groups: Vec<Vec<TransferSpec>> = Vec::new();
    for &transport in &transports {
        for &bytes in sizes {
            let ways = ways.iter().filter(|(over, ..)| *over == transport);
            let specs = ways.map(|&(_, exchange, kind)| {
                let mut spec = TransferSpec::new(transport, exchange, kind, bytes, args.quick);
                if let Some(iterations) = args.repeat.iterations {
                    spec = spec.with_repetitions(iterations.get());
                }
                spec.warm_up = args.repeat.warm_up.unwrap_or(spec.warm_up);
                spec.hosts = hosts.clone();
                if matches!(transport, Transport::Verbs | Transport::Auto) {
                    (spec.verbs, spec.arrival) = (verbs.clone(), arrival);
                }
                spec
            });
            groups.push(specs.collect());
        }
    }
    // before anything is measured
    groups.iter().flatten().try_for_each(TransferSpec::check)?;
    let (mut rows, mut clock_error_ns) = (Vec::new(), None);
    for specs in &groups {
        for result in transfers(specs, &job)? {
            lines.append(&result)?;
            clock_error_ns = clock_error_ns.max(result.clock_error_ns);
            let row = transfer_row(&result);
            live(&TRANSFERS[..TRANSFERS_LIVE], &row[..TRANSFERS_LIVE], rows.is_empty());
            rows.push(row);
        }
    }
    print(table_by(4, &TRANSFERS, &rows, &[3, 4, 5, 6, 7, 9, 10, 11]))?;
    print_text(
        "medians; transfer: start of the Send to the moment the receiver found the tensor; end to end: to \
         the end of its reduce_max; of limit: the limit's time over the transfer's; -: by reference, of which no byte is moved. Every value \
         and every tensor was verified.",
    )?;
    match clock_error_ns {
        None => Ok(()),
        // fits: for people
        Some(error) => print_text(format_args!(
            "the two hosts have clocks of their own, which are compared to within {}: so far these times may be wrong",
            human_seconds(error as f64 * 1e-9)
        )),
    }
}

/// What to measure over on this machine, or on several hosts if `spread`: members of these settle themselves what `auto` is.
/// RDMA must be there before anything is measured.
fn transports_of(
    given: &[TransportArg],
    wire: &WireArgs,
    spread: bool,
) -> Result<Vec<Transport>, Failure> {
    let settled = |given: &TransportArg| {
        Transport::from(*given).settled(spread, false).unwrap_or(Transport::Auto)
    };
    let all: Vec<Transport> = given.iter().map(settled).collect();
    if spread && all.contains(&Transport::Shm) {
        return Err(Failure::user(
            "--transport shm is for processes of one host; leave it out for --transport auto, which takes it within a host",
        ));
    }
    if all.contains(&Transport::Verbs) {
        let (verbs, _) = wire.clone().options();
        let chosen = verbs_usable(&verbs, None).map_err(Failure::user)?;
        note(format_args!("verbs: {chosen}"));
        return Ok(all);
    }
    if all.contains(&Transport::Auto) {
        // may come to RDMA
        return Ok(all);
    }
    match wire.given().into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(ConfigError::VerbsOption { option }.into()),
        None => Ok(all),
    }
}

fn transfer_row(result: &TransferResult) -> Vec<String> {
    let time = |ns: f64| human_seconds(ns * 1e-9);
    let (rate, ratio) = match result.is_moved() {
        true => {
            // fits: bytes over nanoseconds are gigabytes over seconds, for people
            let rate = result.bytes as f64 / result.transfer_ns.median;
            let ratio = result.ratio_to_limit.map(|ratio| format!("{ratio:.2}"));
            (format!("{rate:.2}"), ratio.unwrap_or_default())
        }
        false => (STAYS.to_string(), STAYS.to_string()),
    };
    vec![
        result.transport.name().to_string(),
        result.exchange.name().to_string(),
        result.sizes.name().to_string(),
        human_bytes(result.bytes as u64),
        time(result.transfer_ns.median),
        time(result.transfer_ns.p90),
        rate,
        time(result.end_to_end_ns.median),
        result.limit.map_or("", |limit| limit.name()).to_string(),
        result.limit_ns.map(|limit| time(limit.median)).unwrap_or_default(),
        ratio,
        format!("{:.2}", result.copies_per_byte),
    ]
}

fn run_step(args: StepArgs) -> Result<(), Failure> {
    let (repetitions, overlap, json) = (args.iterations, args.overlap, args.json.clone());
    let warm_up = args.warm_up;
    let against = args.against();
    let config = args.config()?;
    if config.strategy == Strategy::Local && !against.is_empty() {
        return Err(Failure::user(
            "--against is for jobs of several processes; --strategy local exchanges nothing",
        ));
    }
    let mut lines = Lines::open(json.as_deref())?;
    let alone = Arc::new(AtomicBool::new(false));
    end_at_once_while(&alone)?;
    let options = StepOptions { repetitions, warm_up, against, overlap, alone };
    let job = job_spec()?;
    announce(&Machine::here());
    let results = step(&config, &options, &job, &mut |event| match event {
        StepEvent::Transport(choice) => note(choice),
        StepEvent::Measured { kind, ms } => note(format_args!("{kind}: {ms:.2} ms/step")),
    })?;
    results.iter().try_for_each(|result| lines.append(result))?;
    show_step(&results)
}

fn show_step(results: &[StepResult]) -> Result<(), Failure> {
    let ms = |ms: f64| human_seconds(ms * 1e-3);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for result in results {
        let workers = result.workers;
        if rows.is_empty() {
            let peak = human_bytes(result.local_peak_bytes);
            let replicas = if workers == 1 { "replica" } else { "replicas" };
            let local = format!("local: {workers} {replicas} in one process, {peak} at most");
            let of = &result.local_ms;
            rows.push(vec![local, ms(of.median), ms(of.p90), "1.00".to_string()]);
        }
        let Some(ps) = &result.ps else { continue };
        let (transport, exchange) = (ps.transport.name(), ps.exchange.name());
        let StepResult { strategy, servers, .. } = result;
        let wire = match ps.wire {
            WireType::F32 => String::new(),
            wire => format!(", --wire {wire}"),
        };
        let job = format!(
            "{strategy}: {workers} workers, {servers} servers, {transport}, {exchange}{wire}"
        );
        let halves = ps.overlap.iter().flat_map(halves);
        let halves = halves.map(|(what, of)| (what.to_string(), of));
        for (what, of) in std::iter::once((job, &ps.ps_ms)).chain(halves) {
            let ratio = format!("{:.2}", of.median / result.local_ms.median);
            rows.push(vec![what, ms(of.median), ms(of.p90), ratio]);
        }
    }
    let Some(first) = results.first() else { return Ok(()) };
    print_text(format_args!(
        "{} on {}, batch {} per worker, {} steps; {}",
        first.model, first.data, first.batch, first.steps, first.kernels
    ))?;
    print(table(&["", "step", "p90", "ratio"], &rows, &[1, 2, 3]))?;
    for ps in results.iter().filter_map(|result| result.ps.as_ref()) {
        let (exchange, copied) = (ps.exchange.name(), ps.bytes_copied);
        print_text(format_args!("{exchange}: {copied} bytes copied between processes"))?;
        if let Some(busy) = ps.cores_busy {
            let busy = 100.0 * busy;
            print_text(format_args!(
                "{exchange}: this machine's cores were busy {busy:.0} % of the steps"
            ))?;
        }
        if let Some(overlap) = &ps.overlap {
            print_text(format_args!(
                "{exchange}: a step is {:.2} of the longer of computing and communicating, {:.2} of both",
                overlap.step_over_longer, overlap.step_over_sum
            ))?;
        }
    }
    let has_bits =
        results.iter().filter_map(|result| result.ps.as_ref()).all(|ps| ps.has_bits_of_one);
    let whose = if has_bits { "the same weights in all" } else { "the weights of one process" };
    let (count, sha256) = (first.local_ms.count, &first.weights_sha256);
    print_text(format_args!("medians of {count}; {whose}, sha256 {sha256}"))
}

/// What a step does, each by itself.
fn halves(overlap: &Overlap) -> [(&'static str, &Quantiles); 2] {
    [
        ("computing alone: as many workers at once, nobody talks", &overlap.compute_ms),
        ("communicating alone: the same job without kernels", &overlap.communication_ms),
    ]
}

fn announce(machine: &Machine) {
    note(format_args!("{} cores, {}", machine.cores, machine.cpu));
}

/// What `bench/link.sh` says to those whom it tells of its hosts: how fast the links between them are.
const LINK: &str = "LINK_RATE";

/// A line that says over which link it was measured.
fn over_link(mut line: serde_json::Value, link: &str) -> serde_json::Value {
    if let Some(fields) = line.as_object_mut() {
        fields.entry("link").or_insert_with(|| link.into());
    }
    line
}

/// `--json FILE`: one line a result, appended whole.
pub(super) struct Lines {
    path: PathBuf,
    file: Option<File>,
}

impl Lines {
    /// Opens the file before anything is measured, if there is to be one.
    pub(super) fn open(path: Option<&Path>) -> Result<Lines, Failure> {
        let Some(path) = path else {
            return Ok(Lines { path: PathBuf::new(), file: None });
        };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| Failure::unwritable("results", path, &error))?;
        Ok(Lines { path: path.to_path_buf(), file: Some(file) })
    }

    pub(super) fn append(&mut self, result: &impl Serialize) -> Result<(), Failure> {
        self.append_all(std::slice::from_ref(result))
    }

    /// All of them by one write: whoever is ended in the middle leaves all or none.
    pub(super) fn append_all(&mut self, results: &[impl Serialize]) -> Result<(), Failure> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut text = String::new();
        for result in results {
            let line = match std::env::var(LINK) {
                Ok(link) => {
                    serde_json::to_value(result).map(|line| over_link(line, &link).to_string())
                }
                Err(_) => serde_json::to_string(result),
            };
            text.push_str(&line.map_err(Failure::other)?);
            text.push('\n');
        }
        file.write_all(text.as_bytes()).map_err(|error| {
            Failure::other(format!("writing results to {}: {error}", self.path.display()))
        })
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Config(error) => error.into(),
            BenchError::Job(error) => error.into(),
            BenchError::Train(error) => (*error).into(),
            error if error.is_user_error() => Failure::user(error),
            error => Failure::other(error),
        }
    }
}
