//! Under a real `mpirun`: this program starts jobs of itself. It reports in the words of `cargo test`, so that
//! whoever counts those counts these; where it cannot run they are ignored, and it says why.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

#[cfg(feature = "mpi")]
mod calls;
#[cfg(feature = "mpi")]
mod members;
#[cfg(feature = "mpi")]
mod reducers;

use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_testkit::program::{self, say};

/// Longest that a job may take: only a hang does.
const LONGEST: Duration = Duration::from_secs(120);

/// What the processes of a job do, and how many there are.
type Case = (&'static str, u32);

fn main() -> ExitCode {
    match program::arguments().as_slice() {
        #[cfg(feature = "mpi")]
        [role, what] if role == "member" => {
            members::member(what);
            ExitCode::SUCCESS
        }
        _ => jobs(),
    }
}

fn cases() -> Vec<Case> {
    let works = ["world", "calls", "bits", "mistakes"];
    let cases = (1..=4).flat_map(|processes| works.map(|what| (what, processes)));
    cases.chain([("death", 3)]).collect()
}

/// Why no job can run here.
fn missing() -> Option<String> {
    if !cfg!(feature = "mpi") {
        return Some(
            "built without the feature mpi, which takes an MPI library and libclang".into(),
        );
    }
    let mpirun = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status();
    let reason = format!("there is no mpirun to run jobs with: {}", mpirun.err()?);
    let expected = std::env::var_os("TENSORWIRE_LAUNCHERS").is_some();
    assert!(!expected, "{reason}, though TENSORWIRE_LAUNCHERS is set");
    Some(reason)
}

fn jobs() -> ExitCode {
    let cases = cases();
    let missing = missing();
    let (mut failed, mut ignored) = (0, 0);
    say(&format!("\nrunning {} tests", cases.len()));
    for (what, processes) in &cases {
        let name = format!("{what} with {processes} processes");
        if let Some(reason) = &missing {
            ignored += 1;
            say(&format!("test {name} ... ignored, {reason}"));
            continue;
        }
        let started = Instant::now();
        let outcome = job((what, *processes));
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => say(&format!("test {name} ... ok ({seconds:.1} s)")),
            Err(reason) => {
                failed += 1;
                say(&format!("test {name} ... FAILED ({seconds:.1} s): {reason}"));
            }
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let passed = cases.len() - failed - ignored;
    say(&format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out\n"
    ));
    ExitCode::from(u8::from(failed > 0))
}

/// Runs so many of this program under mpirun. A job in which a process dies must end, and not well; any other, well.
fn job((what, processes): Case) -> Result<(), String> {
    let status = run(what, processes)?;
    match status.success() == (what != "death") {
        true => Ok(()),
        false => Err(status.to_string()),
    }
}

fn run(what: &str, processes: u32) -> Result<ExitStatus, String> {
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", &processes.to_string()]);
    let mut job = mpirun.arg(program::itself()).args(["member", what]).spawn().unwrap();
    let deadline = Deadline::after(LONGEST);
    loop {
        if let Some(status) = job.try_wait().unwrap() {
            return Ok(status);
        }
        if deadline.passed() {
            job.kill().unwrap();
            job.wait().unwrap();
            return Err(format!("still running after {} s", LONGEST.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
