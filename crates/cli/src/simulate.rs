//! `tensorwire simulate`: steps on a cluster that is described in a file, beside what is measured here.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tensorwire_base::human_seconds;
use tensorwire_bench::{
    Compute, SimulateResult, SimulateSpec, calibrate, measure_compute, simulate, validate,
};
use tensorwire_launch::JobSpec;
use tensorwire_simulate::{Component, Network, Seconds};
use tensorwire_train::whole_file;

use super::args::SimulateArgs;
use super::bench::Lines;
use super::job::{end_at_once_while, job_spec};
use super::output::{note, print, print_text};
use super::{Failure, table::table_by};

/// A process that says nothing for this long has failed a measurement.
const LIVENESS: Duration = Duration::from_secs(30);
const PAPER: &str = "paper-xue";

pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let job = JobSpec { liveness: LIVENESS, ..job_spec()? };
    if let Some(path) = &args.calibrate {
        return write_network(path, &job);
    }
    args.check()?;
    let network = network(args)?;
    network.check().map_err(Failure::user)?;
    if args.validate && network.machine.workers != 0 {
        return Err(Failure::user(format!(
            "--validate runs all processes on this machine, and '{}' puts {} workers on each; give --network FILE as \
             --calibrate writes it, or --preset loopback",
            network.name, network.machine.workers
        )));
    }
    let mut lines = Lines::open(args.json.as_deref())?;
    let alone = Arc::new(AtomicBool::new(false));
    end_at_once_while(&alone)?;
    let specs = args.specs()?;
    let given = match args.compute_ms {
        Some(ms) => Some(Compute::Given { alone_s: ms * 1e-3, crowded_s: None }),
        None if args.network.is_none() && args.preset == PAPER => Some(Compute::Paper),
        None => None,
    };
    let mut compute = given;
    let mut results = Vec::new();
    for spec in &specs {
        let result = match args.validate {
            true => validate(spec, &network, given, &job, &alone)?,
            false => {
                let known = match compute {
                    Some(known) => known,
                    None => measured(spec, &job, &alone)?,
                };
                compute = Some(known);
                simulate(spec, &network, known)?
            }
        };
        lines.append(&result)?;
        results.push(result);
    }
    show(&network, &results)
}

/// What one worker computes: measured once, if nobody says it.
fn measured(spec: &SimulateSpec, job: &JobSpec, alone: &AtomicBool) -> Result<Compute, Failure> {
    let compute = measure_compute(spec, job, alone)?;
    if let Compute::Given { alone_s, crowded_s } = compute {
        let crowded = crowded_s.map(human_seconds).unwrap_or_default();
        note(format_args!(
            "one worker alone, measured here: {}; one on each core: {crowded}",
            human_seconds(alone_s),
        ));
    }
    Ok(compute)
}

fn network(args: &SimulateArgs) -> Result<Network, Failure> {
    let Some(path) = &args.network else {
        let none = || Failure::user(format!("there is no network '{}'", args.preset));
        return Network::preset(&args.preset).ok_or_else(none);
    };
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::user(format!(
            "cannot read the network {shown}: {error}; write one with --calibrate {shown}"
        ))
    })?;
    toml::from_str(&text).map_err(|error| {
        // one line of what toml says in many
        let what = error.message();
        Failure::user(format!(
            "{shown} is no network: {what}; write one with --calibrate, and change its figures"
        ))
    })
}

fn write_network(path: &Path, job: &JobSpec) -> Result<(), Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::user(format!("cannot write {}: {error}; choose another file", path.display()))
    };
    // found out before anything is measured
    whole_file::check_writable_where(path).map_err(|error| cannot(&error))?;
    let name = path.file_stem().map_or("here".into(), |stem| stem.to_string_lossy().into_owned());
    let network = calibrate(&name, job)?;
    let text = toml::to_string(&network).map_err(Failure::other)?;
    match whole_file::write_where(path, text.as_bytes()).map_err(|error| cannot(&error))? {
        // there it is already
        true => Ok(()),
        false => print(text.trim_end()),
    }
}

fn show(network: &Network, results: &[SimulateResult]) -> Result<(), Failure> {
    let measured = results.iter().any(|result| result.measured_step_s.is_some());
    let paper = results.iter().any(|result| result.paper_speedup.is_some());
    let placed = results.iter().any(|result| result.placement.is_some());
    let mut header = vec!["strategy"];
    header.extend(placed.then_some("placement"));
    header.push("exchange");
    let first = header.len();
    let keys = first + 1;
    header.extend(["workers", "servers", "step", "compute", "efficiency", "speed-up"]);
    header.extend(paper.then_some("paper"));
    header.extend(measured.then_some(["measured", "off"]).into_iter().flatten());
    let mut numbers: Vec<usize> = (first..header.len()).collect();
    header.extend(["most used", "used"]);
    numbers.push(header.len() - 1);
    let rows: Vec<Vec<String>> =
        results.iter().map(|result| row(result, placed, measured, paper)).collect();
    if let Some(first) = results.first() {
        print_text(format_args!(
            "{} on {}, batch {} per worker; simulated",
            first.model, network.name, first.batch
        ))?;
    }
    print(table_by(keys, &header, &rows, &numbers))?;
    for result in results {
        print_text(consists_of(result))?;
    }
    if results.iter().any(|result| result.estimate.efficiency > 1.0) {
        print_text(
            "Efficiency above 1: compute has the updates of all variables in every worker, as one process by itself makes them; \
             servers make each once for all workers.",
        )?;
    }
    print_text(
        "Above, by component: the longest way through a step, and what the cores of the busiest machine do in it. compute: a step that waits for nothing. speed-up: samples a second over one machine's without \
         communication. most used: the bottleneck, if it is used all the time; else a step waits for one after the other.",
    )
}

/// What the longest way through a step consists of, and what the cores do of it that have most to do.
fn consists_of(result: &SimulateResult) -> String {
    let SimulateResult { strategy, exchange, workers, estimate, .. } = result;
    let all = |seconds: &Seconds| {
        let each = |(of, s): (&Component, &f64)| format!("{} {}", of.name(), human_seconds(*s));
        seconds.iter().map(each).collect::<Vec<String>>().join(", ")
    };
    let placement = result.placement.map(|placement| format!(" {placement}")).unwrap_or_default();
    let (way, cores) = (all(&estimate.way_s), all(&estimate.cores_s));
    let cores = if cores.is_empty() { "nothing".to_string() } else { cores };
    let who = if *workers == 1 { "worker" } else { "workers" };
    let waits = human_seconds((estimate.step_s - estimate.compute_s).max(0.0));
    format!(
        "{strategy}{placement} {exchange}, {workers} {who}: {way}; workers wait {waits}; cores do {cores}"
    )
}

fn row(result: &SimulateResult, placed: bool, measured: bool, paper: bool) -> Vec<String> {
    let estimate = &result.estimate;
    let mut row = vec![result.strategy.to_string()];
    row.extend(placed.then(|| result.placement.unwrap_or_default().to_string()));
    row.extend([
        result.exchange.to_string(),
        result.workers.to_string(),
        result.servers.to_string(),
        human_seconds(estimate.step_s),
        human_seconds(estimate.compute_s),
        format!("{:.3}", estimate.efficiency),
        format!("{:.2}", estimate.speedup),
    ]);
    let theirs = result.paper_speedup.map(|speedup| format!("{speedup:.1}"));
    row.extend(paper.then(|| theirs.unwrap_or_default()));
    if measured {
        let step_s = result.measured_step_s;
        let off = step_s.map(|s| format!("{:+.0} %", 100.0 * (estimate.step_s / s - 1.0)));
        row.extend([step_s.map(human_seconds).unwrap_or_default(), off.unwrap_or_default()]);
    }
    row.push(estimate.bottleneck.clone());
    row.push(format!("{:.0} %", 100.0 * estimate.utilization));
    row
}
