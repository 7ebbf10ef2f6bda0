//! A crowd at the ports of a job, of strangers who are silent, make noise, or say what they heard a member say: the job goes on to
//! the bits of an undisturbed one, and says little of them. What they cost is measured elsewhere: `testkit/examples/flood.rs`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tensorwire_testkit::crowd::{Crowd, hellos, ports};

use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(240);
const PER_SECOND: u32 = 1000;
const STAYS: Duration = Duration::from_secs(3);
/// A process says so many lines of strangers in such a time: once of its launcher's kind, once of its fabric's.
const LINES_MAX: u64 = 2 * 5;
const WINDOW_S: u64 = 10;

/// Its launcher leaves in `keys` what members say to each other first.
fn job(keys: &Path) -> Job {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    let arguments = "train --transport tcp --workers 2 --servers 1 --steps 40 --batch 16 --json \
                     --launcher-patience 1 --checkpoint c";
    command.args(arguments.split_whitespace()).env("XDG_RUNTIME_DIR", keys);
    Job::start_command(command)
}

#[test]
fn a_crowd_of_strangers_changes_nothing_and_is_spoken_of_in_a_few_lines() {
    let keys = tempfile::tempdir().unwrap();
    let undisturbed = job(keys.path()).end(LIMIT).json();
    let mut job = job(keys.path());
    // the launcher and three members
    job.members(3);
    let begun = Instant::now();
    let doors = loop {
        let doors = ports(job.launcher());
        if doors.len() >= 4 {
            break doors;
        }
        assert!(begun.elapsed() < LIMIT, "only {doors:?} are open");
        std::thread::sleep(Duration::from_millis(5));
    };
    let hellos = hellos(keys.path());
    assert_eq!(hellos.len(), 3 + 3, "each member's to each that it calls, and to the launcher");
    let crowd = Crowd::start(doors, PER_SECOND, hellos);
    std::thread::sleep(STAYS);
    let calls = crowd.stop();
    let ended = job.end(LIMIT);
    assert_eq!(ended.json()["weights_sha256"], undisturbed["weights_sha256"]);
    assert!(calls > 300, "{calls} calls are no crowd");
    let lines = ended.stderr.lines().filter(|line| line.contains("refused")).count() as u64;
    let windows = begun.elapsed().as_secs() / WINDOW_S + 1;
    assert!(lines <= 4 * LINES_MAX * windows, "{lines} lines: {}", ended.stderr);
    assert!(lines > 0, "nobody was told: {}", ended.stderr);
}
