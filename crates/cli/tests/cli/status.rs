//! `tensorwire status`: what a running job says of itself, while it runs and after it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Job, send};

const LIMIT: Duration = Duration::from_secs(60);

fn status(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.arg("status").args(arguments).env("XDG_RUNTIME_DIR", folder);
    command.output().unwrap()
}

/// Asks until a job answers that `is_there`.
fn asked(folder: &Path, job: &str, is_there: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + LIMIT;
    loop {
        let said = status(folder, &[job, "--json"]);
        let answer = serde_json::from_slice::<Value>(&said.stdout);
        match answer {
            Ok(answer) if is_there(&answer) => return answer,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_job_says_where_its_processes_stand_until_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args("train --strategy dist-sgd --steps 100000000".split_whitespace());
    command.env("XDG_RUNTIME_DIR", folder.path());
    let mut job = Job::start_command(command);
    let members = job.members(4);
    let name = job.launcher().as_raw_nonzero().to_string();
    let answer = asked(folder.path(), &name, |answer| {
        answer["step"].as_u64() > Some(1) && !answer["members"][0]["progress"].is_null()
    });
    assert_eq!(answer["title"], "mlp on digits, dist-sgd, 2 workers, 2 servers");
    assert_eq!(answer["steps"], 100_000_000);
    let found = answer["members"].as_array().unwrap();
    let roles: Vec<&str> = found.iter().map(|member| member["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["worker 0", "worker 1", "server 0", "server 1"]);
    assert!(found.iter().all(|member| member["phase"] == "running"), "{answer}");
    // a member that stands still is said to
    send(members[1], Signal::STOP);
    let stands = |answer: &Value| answer["members"][0]["still"].is_object();
    let answer = asked(folder.path(), &name, stands);
    let still = &answer["members"][0]["still"];
    assert_eq!(still["waits"], true, "{answer}");
    assert!(still["what"].as_str().unwrap().starts_with("waits for "), "{answer}");
    send(members[1], Signal::CONT);
    let table = String::from_utf8(status(folder.path(), &[&name]).stdout).unwrap();
    assert!(table.contains("worker 1") && table.contains(" steps/s, for "), "{table}");
    let list = String::from_utf8(status(folder.path(), &[]).stdout).unwrap();
    assert!(list.contains(&name) && list.contains(" of 100000000"), "{list}");
    // a process is not its job
    let worker = answer["members"][0]["pid"].to_string();
    let said = String::from_utf8(status(folder.path(), &[&worker]).stderr).unwrap();
    assert!(
        said.contains(&format!("process {worker} is worker ")) && said.contains(&name),
        "{said}"
    );
    send(job.launcher(), Signal::TERM);
    job.end(LIMIT);
    let gone = status(folder.path(), &[&name]);
    assert_eq!(gone.status.code(), Some(2));
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(said.contains(&format!("no job '{name}' of this user runs on this host")), "{said}");
    let none = status(folder.path(), &[]);
    assert!(none.status.success() && none.stdout.is_empty());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let jobs = folder.path().join("tensorwire/jobs").join(host);
    assert_eq!(std::fs::read_dir(jobs).unwrap().count(), 0, "a socket is left");
}

#[test]
fn a_job_ends_when_it_is_asked_to_and_keeps_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("ckpt");
    let stop = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.arg("stop").args(words).env("XDG_RUNTIME_DIR", folder.path());
        command.output().unwrap()
    };
    let start = |more: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args("train --strategy allreduce --steps 100000000".split_whitespace());
        command.args(more.split_whitespace()).env("XDG_RUNTIME_DIR", folder.path());
        let job = Job::start_command(command);
        let name = job.launcher().as_raw_nonzero().to_string();
        let step = asked(folder.path(), &name, |job| job["step"].as_u64() > Some(1));
        (job, name, step["step"].as_u64().unwrap())
    };
    // one that keeps nothing is asked twice
    let (job, name, _) = start("");
    let refused = stop(&[&name]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("it keeps no checkpoint") && said.contains("--now"), "{said}");
    assert!(stop(&[&name, "--now"]).status.success());
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert!(ended.last_line().starts_with("error: stopped"), "{}", ended.stderr);
    // one that does ends behind its step
    let (job, name, step) = start(&format!("--checkpoint {}", kept.display()));
    let stopped = stop(&[&name, "--json"]);
    assert!(stopped.status.success(), "{stopped:?}");
    let said: Value = serde_json::from_slice(&stopped.stdout).unwrap();
    assert_eq!((&said["job"], &said["has_ended"]), (&name.as_str().into(), &true.into()));
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    for said in [
        "stopped: all end behind step ",
        "is written\n",
        "error: stopped; the newest checkpoint is of step ",
        "--resume",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    let mut last = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    let last = last.args(["checkpoint", "show", "--json"]).arg(&kept).output().unwrap();
    let last: Value = serde_json::from_slice(&last.stdout).unwrap();
    assert!(last["step"].as_u64() >= Some(step), "{last}");
    let gone = stop(&[&name]);
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
}
