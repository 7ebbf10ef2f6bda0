//! Runs the failure matrix, or a part of it, over a program: `cargo run -p tensorwire-testkit --example faults -- --help`.
//! `tensorwire report` shows the lines that it writes.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that people run")]

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use tensorwire_testkit::faults::{FaultCell, FaultOutcome, FaultRunner, Killed, Kills};

/// What a line says of its cell, as in its name.
const FIELDS: [&str; 7] = ["strategy", "transport", "exchange", "heals", "role", "phase", "fault"];

/// Hurts jobs in every way, and holds what becomes of them against what is promised.
///
/// Exit status: 0 all is as promised, 1 something is not.
#[derive(Parser)]
struct Arguments {
    /// Only cells whose names hold this: STRATEGY/TRANSPORT/EXCHANGE/HEALS/ROLE/PHASE/FAULT
    #[arg(default_value = "")]
    filter: String,
    /// The program under test, with the feature `baselines`
    #[arg(long, default_value = "target/release/tensorwire")]
    program: PathBuf,
    /// So many of them, drawn by the seed [default: all]
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Leave out the first so many that the seed draws: they ran before
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds within which a job is to end; as many again are granted to a busy machine
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    deadline: u64,
    /// How many run at the same time: most of them wait most of the time
    #[arg(long, value_name = "N", default_value_t = 3)]
    parallel: usize,
    /// Append a line of JSON a cell to this file; cells that it has a line of are left out, so that a run that was ended goes on
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the names of the cells, and run none
    #[arg(long)]
    list: bool,
    /// Instead of cells, run one job in which processes are killed so often, at random moments, and started again
    #[arg(long, value_name = "N", conflicts_with = "launcher_kills")]
    kills: Option<usize>,
    /// The same of an elastic job: half of its workers go on each time, until all are asked for again
    #[arg(long, value_name = "N", conflicts_with_all = ["kills", "launcher_kills"])]
    elastic_kills: Option<usize>,
    /// The same of launchers, whose job the same command takes over
    #[arg(long, value_name = "N")]
    launcher_kills: Option<usize>,
    /// The strategy of that job
    #[arg(long, value_name = "NAME", default_value = "ps")]
    strategy: String,
    /// The steps of that job [default: 60 for each kill of a process, of an elastic job at least 1,800; 125 for each of a launcher]
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let program = match arguments.program.canonicalize() {
        Ok(program) => program,
        Err(error) => {
            eprintln!(
                "{}: {error}; build it: cargo build --release --features tensorwire-cli/baselines",
                arguments.program.display()
            );
            return ExitCode::FAILURE;
        }
    };
    let of_one_job = [
        (Killed::Members, arguments.kills),
        (Killed::Elastic, arguments.elastic_kills),
        (Killed::Launcher, arguments.launcher_kills),
    ];
    let of_one_job = of_one_job.into_iter().find_map(|(killed, count)| Some((killed, count?)));
    if let Some((killed, count)) = of_one_job {
        let steps = arguments.steps.unwrap_or(killed.steps(count));
        let strategy = format!("--strategy {}", arguments.strategy);
        let kills = Kills { program, strategy, killed, count, steps, seed: arguments.seed };
        return match kills.run(|line| println!("{line}")) {
            Ok(how) => {
                println!("{count} kills, {steps} steps: done with {how}");
                ExitCode::SUCCESS
            }
            Err(what) => {
                eprintln!("{what}");
                ExitCode::FAILURE
            }
        };
    }
    let mut cells = FaultCell::drawn(arguments.seed);
    cells.retain(|cell| cell.name().contains(&arguments.filter));
    cells.drain(..arguments.skip.min(cells.len()));
    cells.truncate(arguments.sample.unwrap_or(usize::MAX));
    let done = arguments.json.as_deref().map(done).unwrap_or_default();
    cells.retain(|cell| !done.contains(&cell.name()));
    if arguments.list {
        cells.iter().for_each(|cell| println!("{}", cell.name()));
        return ExitCode::SUCCESS;
    }
    let file =
        arguments.json.map(|path| File::options().create(true).append(true).open(path).unwrap());
    let deadline = Duration::from_secs(arguments.deadline);
    let runner = FaultRunner { program, deadline, seed: arguments.seed };
    let file = Mutex::new(file);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::<FaultOutcome>::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.parallel.max(1) {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = runner.run(cell);
                    if let Some(file) = &mut *file.lock().unwrap() {
                        writeln!(file, "{}", serde_json::to_string(&outcome).unwrap()).unwrap();
                    }
                    let mut done = done.lock().unwrap();
                    if let Some(complaint) = &outcome.complaint {
                        println!("{}: {complaint}\n", cell.name());
                    }
                    done.push(outcome);
                    if done.len().is_multiple_of(100) {
                        println!("{} of {}", done.len(), cells.len());
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in &done {
        *counts.entry(outcome.outcome).or_default() += 1;
    }
    let counts: Vec<String> =
        counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let wrong = done.iter().filter(|outcome| outcome.complaint.is_some()).count();
    println!("{} cells: {}; {wrong} not as promised", done.len(), counts.join(", "));
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The names of the cells that a file has lines of.
fn done(path: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .map(|line| FIELDS.map(|field| line[field].as_str().unwrap_or_default()).join("/"))
        .collect()
}
