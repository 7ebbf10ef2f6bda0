//! Under a real `mpirun`: this program starts jobs of itself. Without one it says so and is done.
#![allow(clippy::unwrap_used)]

mod calls;
mod folds;
mod members;

use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_testkit::program;

/// Longest that a job may take: only a hang does.
const LONGEST: Duration = Duration::from_secs(120);

fn main() {
    match program::arguments().as_slice() {
        [role, what] if role == "member" => members::member(what),
        _ => jobs(),
    }
}

fn jobs() {
    if let Err(error) = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status() {
        program::say(&format!("skipped: there is no mpirun to run jobs with: {error}"));
        return;
    }
    for processes in 1..=4 {
        for what in ["world", "calls", "bits", "mistakes"] {
            let status = job(processes, what);
            assert!(status.success(), "{what} with {processes} processes: {status}");
            program::say(&format!("test {what} with {processes} processes ... ok"));
        }
    }
    let status = job(3, "death");
    assert!(!status.success(), "the death of a process is to end the job");
    program::say(&"test the death of a process ends the job ... ok");
}

/// Runs so many of this program under mpirun.
fn job(processes: usize, what: &str) -> ExitStatus {
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", &processes.to_string()]);
    let mut job = mpirun.arg(program::itself()).args(["member", what]).spawn().unwrap();
    let deadline = Deadline::after(LONGEST);
    loop {
        if let Some(status) = job.try_wait().unwrap() {
            return status;
        }
        if deadline.passed() {
            job.kill().unwrap();
            panic!("{what} with {processes} processes hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
