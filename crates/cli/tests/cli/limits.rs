//! Jobs whose processes may have few descriptors, or little memory: they are done, or end in time with words that say what to do.

use std::process::Command;
use std::time::Duration;

use crate::checkpoint::{hash, place};
use crate::support::{Job, await_file, children, send};
use rustix::process::Signal;
use tensorwire_testkit::long;

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

/// With many peers each has more connections than the usual limit.
#[test]
fn processes_raise_the_number_of_files_that_they_may_open() {
    let mut command = Command::new("sh");
    let line = "ulimit -Sn 100; exec \"$0\" train --steps 1000000 --metrics m.jsonl";
    command.args(["-c", line, env!("CARGO_BIN_EXE_tensorwire")]);
    let job = Job::start_command(command);
    await_file(&job, "m.jsonl");
    for process in std::iter::once(job.launcher()).chain(children(job.launcher())) {
        let limits = format!("/proc/{}/limits", process.as_raw_nonzero());
        let limits = std::fs::read_to_string(limits).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let files: Vec<&str> = files.split_whitespace().collect();
        assert_eq!(files[3], files[4], "{files:?}");
        assert_ne!(files[3], "100");
    }
    send(job.launcher(), Signal::INT);
    job.end(LIMIT);
}

/// In KiB of address space. A program that is built for debugging takes some 60,000 for itself.
#[test]
fn whatever_memory_there_is_a_job_is_done_or_says_why_not() {
    for strategy in ["ps", "dist-sgd", "allreduce", "local"] {
        let job = format!("train --steps 2 --strategy {strategy} --threads 1");
        let done: Vec<bool> = [70_000, 120_000, 250_000, 500_000, 64_000_000]
            .iter()
            .map(|count| is_done_under(&format!("-v {count}"), &job))
            .collect();
        assert!(done[4], "{job}: {done:?}");
    }
}

/// From what the program maps for itself on, in steps of 200 KiB. What the system cannot even load it ends by itself.
#[test]
fn with_little_more_memory_than_the_program_takes_it_says_so() {
    let limited = |kib: u64| {
        let mut command = Command::new("sh");
        let line =
            format!("ulimit -v {kib}; exec \"$0\" train --steps 1 --strategy local --threads 1");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_tensorwire")]);
        command
    };
    // as soon as it is loaded it says what it lacks, or has enough; what comes before `main` may panic
    let (mut loads, mut above) = (1000_u64, 500_000_u64);
    while above - loads > 100 {
        let middle = loads.midpoint(above);
        let ended = limited(middle).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).contains("error: ");
        match ended.status.code() {
            Some(0) => above = middle,
            Some(1) if said => above = middle,
            _ => loads = middle,
        }
    }
    // and so on, until a job begins and lacks memory itself
    for more in 0..=60 {
        let kib = above + more * 200;
        let ended = Job::start_command(limited(kib)).end(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{kib}: {}", ended.stderr);
        assert!(ended.stderr.contains("error: "), "{kib}: {}", ended.stderr);
        if more == 0 {
            assert!(
                ended.stderr.contains("raise the limit (ulimit -v)"),
                "{kib}: {}",
                ended.stderr
            );
        }
    }
}

/// Files may have so many blocks of 512 bytes: the process that writes more is killed in the middle of it. The checkpoint before
/// stays whole, and the job goes on from it to the bits of one that nobody disturbed.
#[test]
fn a_checkpoint_that_is_cut_at_any_size_leaves_the_one_before() {
    const SMALL: &str = "--model sentence-embedding --batch 8 --threads 1 --transport tcp";
    const ALL: u64 = 30;
    for strategy in ["ps --servers 1", "dist-sgd", "allreduce"] {
        let job = format!("{SMALL} --strategy {strategy}");
        let undisturbed = hash_of(&format!("{job} --steps {ALL}"));
        for blocks in long::of(&[1, 900][..], &[0, 1, 40, 900, 1170]) {
            let (_folder, path) = place();
            let kept = format!("{job} --checkpoint {path} --checkpoint-every 10 --resume auto");
            hash_of(&format!("{kept} --steps 10"));
            let context = format!("{strategy}, {blocks} blocks");
            let done =
                is_done_under(&format!("-f {blocks}"), &format!("train {kept} --steps {ALL}"));
            assert!(!done, "{context}: nothing was cut");
            let shown = Job::start(&format!("checkpoint show {path}")).end(LIMIT);
            assert!(
                shown.status.success() && shown.stdout.contains("whole"),
                "{context}: {}",
                shown.stderr
            );
            assert_eq!(hash_of(&format!("{kept} --steps {ALL}")), undisturbed, "{context}");
            let left = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.collect();
            let is_whole = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("step-");
            assert_eq!(left.iter().filter(is_whole).count(), left.len(), "{context}: {left:?}");
        }
    }
}

fn hash_of(options: &str) -> String {
    let ended = Job::start(&format!("train --json {options}")).end(LIMIT);
    hash(&ended)
}
