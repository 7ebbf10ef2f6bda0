//! Jobs whose processes may have few descriptors, or little memory: they are done, or end in time with words that say what to do.

use std::process::Command;
use std::time::Duration;

use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(40);

/// Runs a job under a limit of the shell's; true if it was done.
fn is_done_under(limit: &str, job: &str) -> bool {
    let mut command = Command::new("sh");
    let line = format!("ulimit {limit}; exec \"$0\" {job}");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_tensorwire")]);
    let ended = Job::start_command(command).end(LIMIT);
    let context = format!("ulimit {limit}; {job}:\n{}", ended.stderr);
    match ended.status.code() {
        Some(0) => true,
        Some(1 | 2) => {
            assert!(ended.stderr.contains("error: "), "{context}");
            false
        }
        other => panic!("{other:?}: {context}"),
    }
}

#[test]
fn whatever_descriptors_there_are_a_job_is_done_or_says_why_not() {
    for transport in ["shm", "tcp"] {
        for strategy in ["ps", "dist-sgd", "allreduce"] {
            let job = format!("train --steps 2 --strategy {strategy} --transport {transport}");
            let done: Vec<bool> = [8, 11, 16, 24, 40, 256]
                .iter()
                .map(|count| is_done_under(&format!("-n {count}"), &job))
                .collect();
            assert!(!done[0] && done[5], "{job}: {done:?}");
        }
    }
}

/// In KiB of address space.
#[test]
fn whatever_memory_there_is_a_job_is_done_or_says_why_not() {
    for strategy in ["ps", "dist-sgd", "allreduce", "local"] {
        let job = format!("train --steps 2 --strategy {strategy} --threads 1");
        let done: Vec<bool> = [60_000, 120_000, 250_000, 500_000, 64_000_000]
            .iter()
            .map(|count| is_done_under(&format!("-v {count}"), &job))
            .collect();
        assert!(done[4], "{job}: {done:?}");
    }
}
