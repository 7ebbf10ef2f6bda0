//! Jobs that are started again when they fail: real processes, killed. Where workers train in step they end with the bits of a
//! job that nobody disturbed; what would only fail again is not tried for ever.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tensorwire_testkit::long;

use crate::checkpoint::{JOB, hash, place, train};
use crate::support::{Job, children, send, wait_until_stopped};

const LIMIT: Duration = Duration::from_secs(120);
/// More than are made before whoever is to be killed is, on whatever machine.
const STEPS: u64 = 300;
const EVERY: u64 = 20;

/// The members of a job none of which is one of `before`; waits until there are `count`.
fn members_after(job: &Job, before: &[Pid], count: usize) -> Vec<Pid> {
    let start = Instant::now();
    loop {
        let members = children(job.launcher());
        if members.len() == count && !members.iter().any(|member| before.contains(member)) {
            return members;
        }
        assert!(start.elapsed() < LIMIT, "no {count} new members");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for(path: &std::path::Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < LIMIT, "no {}", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Killed once there is a checkpoint, and again before the processes have met.
#[test]
fn whoever_is_killed_the_job_ends_with_the_bits_of_an_undisturbed_one() {
    let jobs = [
        ("--strategy ps", 4, 2),
        // killed while steps begin early
        ("--strategy allreduce --transport tcp", 2, 0),
        ("--strategy dist-sgd --transport tcp", 4, 3),
        ("--strategy ps --transport tcp --workers 3", 5, 0),
        ("--strategy mpi-sgd --workers 4 --clients 2", 6, 1),
    ];
    for &(strategy, members, victim) in &jobs[..long::of(3, jobs.len())] {
        let undisturbed = hash(&train(&format!("--steps {STEPS} {strategy}")));
        let options = format!("{JOB} --steps {STEPS} {strategy}");
        let (_folder, path) = place();
        let kept = format!("--checkpoint {path} --checkpoint-every {EVERY} --restarts 3");
        let mut job = Job::start(&format!("train --json {options} {kept} --metrics metrics.jsonl"));
        let first = job.members(members);
        wait_for(&crate::checkpoint::step(&path, EVERY));
        send(first[victim], Signal::KILL);
        let second = members_after(&job, &first, members);
        send(second[members - 1 - victim], Signal::KILL);
        let ended = job.end(LIMIT);
        let json = ended.json();
        let context = format!("{strategy}:\n{}", ended.stderr);
        assert_eq!(json["weights_sha256"], undisturbed.as_str(), "{context}");
        assert_eq!((&json["restarts"], &json["steps"]), (&2.into(), &STEPS.into()), "{context}");
        let said: Vec<&str> =
            ended.stderr.lines().filter(|line| line.contains("; restart ")).collect();
        assert_eq!(said.len(), 2, "{context}");
        assert!(said[0].contains("killed by signal 9") && !said[0].ends_with("from step 0"));
        assert!(said[1].contains("restart 2 of 3"), "{context}");
        let lines = String::from_utf8(ended.read("metrics.jsonl")).unwrap();
        let steps = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: Vec<u64> = steps.filter_map(|line| line["step"].as_u64()).collect();
        assert!(steps.iter().copied().eq(1..=STEPS), "each step once: {context}");
    }
}

/// Nobody is in step here: what is promised is that it ends, with all of the steps.
#[test]
fn workers_at_their_own_pace_are_started_again_too() {
    for (strategy, members) in [
        ("--strategy ps --async", 4),
        ("--strategy dist-asgd", 4),
        ("--strategy dist-esgd --interval 8", 4),
    ] {
        let (_folder, path) = place();
        let kept = format!("--checkpoint {path} --checkpoint-every {EVERY} --restarts 1");
        let options = format!("{JOB} --steps {STEPS} {strategy} {kept}");
        let mut job = Job::start(&format!("train --json {options}"));
        let first = job.members(members);
        wait_for(&crate::checkpoint::step(&path, EVERY));
        send(first[1], Signal::KILL);
        let ended = job.end(LIMIT);
        let json = ended.json();
        let context = format!("{strategy}:\n{}", ended.stderr);
        assert_eq!((&json["restarts"], &json["steps"]), (&1.into(), &STEPS.into()), "{context}");
        assert!(json["test_accuracy"].as_f64().unwrap() > 0.3, "by chance 0.1: {context}");
    }
}

#[test]
fn it_ends_when_it_was_started_as_often_as_it_may_be() {
    let mut job = Job::start("train --steps 100000 --restarts 1");
    let first = job.members(4);
    send(first[0], Signal::KILL);
    let second = members_after(&job, &first, 4);
    send(second[1], Signal::KILL);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let last = ended.last_line();
    assert!(last.starts_with("error: first to fail: worker 1 (rank 1"), "{}", ended.stderr);
    assert!(last.ends_with("started again 1 times, as --restarts allows"), "{}", ended.stderr);
}

#[test]
fn what_fails_twice_by_the_same_error_or_by_the_user_is_not_started_again() {
    let ended = Job::start("train --steps 20 --lr 1e23 --restarts 50").end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.last_line().contains("training diverged"), "{}", ended.stderr);
    assert!(ended.last_line().ends_with("it did so twice, and is not started again"));
    assert_eq!(ended.stderr.matches("; restart ").count(), 1, "{}", ended.stderr);
    // the launcher itself refuses it
    let ended =
        Job::start("train --steps 20 --restarts 50 --nic none0 --transport verbs").end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("; restart ").count(), 0, "{}", ended.stderr);
}

#[test]
fn an_interrupt_ends_a_job_that_would_be_started_again() {
    let (_folder, path) = place();
    let mut job = Job::start(&format!("train --steps 100000 --checkpoint {path} --restarts 50"));
    job.members(4);
    send(job.launcher(), Signal::INT);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("; restart ").count(), 0, "{}", ended.stderr);
}

/// The folder of its checkpoints is not there for a while, as where a server of files boots.
#[test]
fn a_disk_that_does_not_answer_for_a_while_is_waited_for() {
    let undisturbed = hash(&train("--steps 60"));
    let (folder, path) = place();
    let said = folder.path().join("said");
    let mut command = std::process::Command::new("sh");
    let job = format!("{JOB} --json --steps 60 --checkpoint {path} --checkpoint-every 5");
    let program = env!("CARGO_BIN_EXE_tensorwire");
    let line = format!("exec {program} train {job} --restarts 20 2>{}", said.display());
    command.args(["-c", &line]);
    let mut job = Job::start_command(command);
    let members = job.members(4);
    wait_for(&crate::checkpoint::step(&path, 5));
    let away = folder.path().join("away");
    members.iter().for_each(|member| send(*member, Signal::STOP));
    // whoever still writes a checkpoint makes the folder anew
    members.iter().for_each(|member| wait_until_stopped(*member));
    std::fs::rename(&path, &away).unwrap();
    send(members[1], Signal::KILL);
    let text = || std::fs::read_to_string(&said).unwrap_or_default();
    let start = Instant::now();
    // the second comes after a pause
    while !text().contains("; restart 2 of 20 in 2 s, from step 0") {
        assert!(start.elapsed() < LIMIT, "{}", text());
        std::thread::sleep(Duration::from_millis(2));
    }
    std::fs::rename(&away, &path).unwrap();
    let json = job.end(LIMIT).json();
    assert_eq!(json["weights_sha256"], undisturbed.as_str(), "{}", text());
    assert!(text().contains(&format!("cannot read {path}: ")), "{}", text());
    assert!(json["restarts"].as_u64().unwrap() >= 2, "{json}");
}

/// The last checkpoint is there and there are no others: the job ends all the same, as one that goes on does and one that is
/// given again.
#[test]
fn one_that_is_killed_at_its_end_or_is_done_already_ends_well() {
    let (_folder, path) = place();
    let options = format!("{JOB} --steps 20 --checkpoint {path} --keep 1");
    let mut job = Job::start(&format!("train --json {options} --restarts 2"));
    let members = job.members(4);
    wait_for(&crate::checkpoint::step(&path, 20));
    send(members[1], Signal::KILL);
    let first = job.end(LIMIT).json();
    let second = Job::start(&format!("train --json {options} --resume auto")).end(LIMIT).json();
    for json in [&first, &second] {
        assert_eq!((&json["steps"], &json["workers_finished"]), (&20.into(), &2.into()), "{json}");
        assert!(json["final_loss"].is_f64(), "{json}");
    }
    assert_eq!(first["weights_sha256"], second["weights_sha256"]);
}

#[test]
fn one_command_begins_and_goes_on() {
    let (_folder, path) = place();
    let with = |steps| train(&format!("--steps {steps} --checkpoint {path} --resume auto"));
    let first = with(10);
    assert!(!first.stderr.contains("goes on from"), "{}", first.stderr);
    let second = with(30);
    assert!(second.stderr.contains("step-00000010, after step 10"), "{}", second.stderr);
    assert_eq!(hash(&second), hash(&train("--steps 30")));
}
