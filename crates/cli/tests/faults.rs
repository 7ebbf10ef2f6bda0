//! A sample of the failure matrix: jobs of every strategy, hurt in every way, and what becomes of them against what is promised.
//! `cargo run -p tensorwire-testkit --example faults` runs all of it. A program of its own: its jobs keep a machine busy, and other
//! tests have limits.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::sync::Mutex;
use std::time::Duration;

use tensorwire_testkit::faults::{
    Fault, FaultCell, FaultOutcome, FaultRunner, Killed, Kills, Phase,
};
use tensorwire_testkit::skip::skip_part;

/// Most of them wait most of the time.
const PARALLEL: usize = 3;
const SAMPLE: usize = 60;
/// Longer than this machine's tests keep a process from running.
const DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn a_sample_of_the_failure_matrix_is_as_promised() {
    let mut cells = FaultCell::drawn(19);
    cells.retain(|cell| cfg!(feature = "baselines") || !cell.is_of_baselines());
    // of processes that lack memory while they meet, now and then another is named (docs/reliability.md)
    cells.retain(|cell| (cell.fault, cell.phase) != (Fault::OutOfMemory, Phase::Meeting));
    cells.truncate(tensorwire_testkit::long::of(SAMPLE, 10 * SAMPLE));
    // these in any case: what a disk has no room for, and a network that is slow
    let always = [
        "dist-sgd/shm/zero-copy/snapshot/disk/",
        "dist-sgd/tcp/zero-copy/elastic/host/training/slow",
    ];
    let is_always = |cell: &FaultCell| always.iter().any(|part| cell.name().starts_with(part));
    let more = FaultCell::all().into_iter().filter(|cell| is_always(cell) && !cells.contains(cell));
    cells = more.chain(cells.iter().cloned()).collect();
    let program = env!("CARGO_BIN_EXE_tensorwire").into();
    let runner = FaultRunner { program, deadline: DEADLINE, seed: 19 };
    let (cells, done) = (Mutex::new(cells.iter()), Mutex::new(Vec::<FaultOutcome>::new()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let next = cells.lock().unwrap().next();
                    let Some(cell) = next else { break };
                    let outcome = runner.run(cell);
                    done.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    let wrong: Vec<String> = done
        .iter()
        .filter_map(|o| Some(format!("{}: {}", o.cell.name(), o.complaint.as_ref()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), done.len(), wrong.join("\n"));
    let of = |outcome: &str| done.iter().filter(|one| one.outcome == outcome).count();
    // both kinds are in it; who is asked to end may be done first, as the machine has it, so that no share of either is certain
    let counts = ["ended", "survived", "spared", "skipped"].map(|outcome| (outcome, of(outcome)));
    assert!(of("ended") > done.len() / 10 && of("survived") > done.len() / 10, "{counts:?}");
    assert!(of("spared") < done.len() / 8, "{counts:?}");
    if let Some(skipped) = done.iter().find(|one| one.outcome == "skipped") {
        skip_part(&format!("{} of {} cells: {}", of("skipped"), done.len(), skipped.cause));
    }
}

/// Each time with a line, and to the bits of a job that nobody disturbed, or to its accuracy.
#[test]
fn a_job_goes_on_however_often_its_processes_or_its_launcher_are_killed() {
    let few = [
        ("ps", Killed::Members, 8),
        ("ps", Killed::Launcher, 2),
        ("allreduce", Killed::Elastic, 3),
    ];
    let all = ["ps", "allreduce", "dist-sgd"].map(|strategy| (strategy, Killed::Members, 20));
    for (strategy, killed, count) in
        tensorwire_testkit::long::of(few.to_vec(), [&few[1..], &all].concat())
    {
        let kills = Kills {
            program: env!("CARGO_BIN_EXE_tensorwire").into(),
            strategy: format!("--strategy {strategy}"),
            killed,
            count,
            steps: killed.steps(count),
            seed: 19,
        };
        let done = kills.run(|_| {});
        assert!(done.is_ok(), "{strategy}, {killed:?}: {}", done.unwrap_err());
    }
}
