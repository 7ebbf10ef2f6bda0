//! Jobs whose number of workers changes while they run: as is asked for, when a worker dies, and when a host is lost and found
//! again. Real processes; every step is made once, and takes as many samples as ever.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tensorwire_testkit::long;

use crate::checkpoint::place;
use crate::support::{Ended, Job, send};

const LIMIT: Duration = Duration::from_secs(120);
/// More than are made before the number of workers has changed, on whatever machine.
const STEPS: u64 = 100;

/// A job of at most four workers, with what it keeps and where it answers.
struct Resizing {
    job: Job,
    folder: tempfile::TempDir,
    _kept: tempfile::TempDir,
}

impl Resizing {
    /// A job that has no end.
    fn start(strategy: &str) -> Resizing {
        Resizing::start_with(&format!("{strategy} --steps 100000000"), &[])
    }

    fn start_with(strategy: &str, more: &[&str]) -> Resizing {
        let ((kept, path), folder) = (place(), tempfile::tempdir().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        let options = format!(
            "train --json --checkpoint {path} --checkpoint-every 10 --metrics metrics.jsonl {strategy}"
        );
        command.args(options.split_whitespace()).args(more).env("XDG_RUNTIME_DIR", folder.path());
        Resizing { job: Job::start_command(command), folder, _kept: kept }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(words).env("XDG_RUNTIME_DIR", self.folder.path()).output().unwrap()
    }

    fn name(&self) -> String {
        self.job.launcher().as_raw_nonzero().to_string()
    }

    /// Waits until each of so many workers has made a step, so that all have and `--metrics` has its line; returns their process ids.
    fn with_workers(&self, count: usize) -> Vec<i32> {
        let until = Instant::now() + LIMIT;
        loop {
            let said = self.ask(&["status", &self.name(), "--json"]);
            if let Ok(answer) = serde_json::from_slice::<Value>(&said.stdout) {
                let members = answer["members"].as_array().unwrap().clone();
                let is_worker =
                    |member: &&Value| member["role"].as_str().unwrap().starts_with("worker");
                let workers: Vec<&Value> = members.iter().filter(is_worker).collect();
                let make_steps = workers.iter().all(|worker| !worker["progress"].is_null());
                if make_steps && workers.len() == count {
                    let pids = workers.iter().map(|member| member["pid"].as_i64().unwrap());
                    return pids.map(|pid| pid as i32).collect();
                }
            }
            assert!(Instant::now() < until, "no {count} workers: {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it makes steps with a worker on each of these hosts, by rank; none: this one.
    fn with_workers_on(&self, hosts: &[Option<&str>]) {
        let until = Instant::now() + LIMIT;
        loop {
            self.with_workers(hosts.len());
            let said = self.ask(&["status", &self.name(), "--json"]);
            if let Ok(answer) = serde_json::from_slice::<Value>(&said.stdout) {
                let members = answer["members"].as_array().unwrap();
                if members.iter().map(|member| member["host"].as_str()).eq(hosts.iter().copied()) {
                    return;
                }
            }
            assert!(Instant::now() < until, "not on {hosts:?}: {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it stands so; returns how.
    fn asked_status(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + LIMIT;
        loop {
            let said = self.ask(&["status", &self.name(), "--json"]);
            let job = serde_json::from_slice::<Value>(&said.stdout).unwrap_or_default();
            if is_so(&job) {
                return job;
            }
            assert!(Instant::now() < until, "{said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// As [`Resizing::with_workers`], once none of them is this one.
    fn with_workers_but(&self, count: usize, gone: i32) -> Vec<i32> {
        let until = Instant::now() + LIMIT;
        loop {
            let members = self.with_workers(count);
            if !members.contains(&gone) {
                return members;
            }
            assert!(Instant::now() < until, "{gone} is there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn scale(&self, workers: u32) {
        self.scale_with(workers, &[]);
    }

    fn scale_with(&self, workers: u32, more: &[&str]) {
        let asked = self.asked(workers, more);
        assert!(asked.status.success(), "{asked:?}");
        let said: Value = serde_json::from_slice(&asked.stdout).unwrap();
        assert_eq!((&said["job"], &said["workers"]), (&self.name().into(), &workers.into()));
        assert!(said["answer"].is_string() && said["goes_on_so"] == true, "{said}");
    }

    fn asked(&self, workers: u32, more: &[&str]) -> Output {
        let (name, count) = (self.name(), workers.to_string());
        self.ask(&[&["scale", &name, &count, "--json", "--timeout", "100"], more].concat())
    }
}

/// Each step was made once, up to the last.
fn check_steps(ended: &Ended) -> u64 {
    let lines = String::from_utf8(ended.read("metrics.jsonl")).unwrap();
    let steps = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps: Vec<u64> = steps.filter_map(|line| line["step"].as_u64()).collect();
    let last = *steps.last().unwrap();
    assert!(steps.iter().copied().eq(1..=last), "{steps:?}: {}", ended.stderr);
    last
}

#[test]
fn a_job_that_lost_half_of_its_workers_ends_as_one_that_has_them() {
    let job = format!("--workers 2..4 --strategy allreduce --steps {STEPS}");
    let resizing = Resizing::start_with(&job, &[]);
    resizing.with_workers(4);
    resizing.scale(2);
    let ended = resizing.job.end(LIMIT);
    let summary = ended.json();
    assert_eq!((&summary["resizes"], &summary["workers_finished"]), (&1.into(), &2.into()));
    assert!(summary["test_accuracy"].as_f64().unwrap() > 0.9, "{summary}");
    assert_eq!(check_steps(&ended), STEPS);
}

#[test]
fn a_job_goes_on_with_as_many_workers_as_are_asked_for() {
    let jobs = [
        ("--workers 1..4 --strategy allreduce", &[1, 4][..]),
        ("--workers 2..4 --strategy ps --transport tcp", &[2, 4]),
        ("--workers 2..4 --strategy dist-sgd", &[2, 4]),
        ("--workers 2..4 --strategy mpi-sgd --clients 2", &[2]),
        // at their own pace
        ("--workers 2..4 --strategy dist-asgd", &[2, 4]),
        ("--workers 2..4 --strategy dist-esgd --interval 4", &[2, 4]),
        ("--workers 2..4 --strategy mpi-esgd --clients 2 --interval 4", &[2, 4]),
    ];
    for (strategy, sizes) in &jobs[..long::of(4, jobs.len())] {
        let resizing = Resizing::start(strategy);
        resizing.with_workers(4);
        for (number, size) in sizes.iter().enumerate() {
            if number == 0 {
                let refused = resizing.ask(&["scale", &resizing.name(), "3"]);
                assert_eq!(refused.status.code(), Some(2));
                let said = String::from_utf8(refused.stderr).unwrap();
                assert!(said.contains("it cannot have 3 workers; give one of 4, "), "{said}");
            }
            resizing.scale(*size);
            resizing.with_workers(*size as usize);
        }
        send(resizing.job.launcher(), Signal::TERM);
        let ended = resizing.job.end(LIMIT);
        check_steps(&ended);
        let asked = ended.stderr.lines().filter(|line| line.starts_with("asked for: "));
        assert_eq!(asked.count(), sizes.len(), "{}", ended.stderr);
    }
}

#[test]
fn where_a_worker_dies_the_next_smaller_number_goes_on() {
    let (four, two, one) = (
        "; restart 1 of 1, from step ",
        "; 2 workers go on, from step ",
        "; 1 worker goes on, from step ",
    );
    let jobs = [
        // the first death has as many started again
        (
            "--workers 1..4 --strategy allreduce --restarts 1",
            &[(4, 4, four), (4, 2, two), (2, 1, one)][..],
        ),
        ("--workers 2..4 --strategy ps", &[(4, 2, two)]),
        ("--workers 2..4 --strategy dist-sgd --transport tcp", &[(4, 2, two)]),
        ("--workers 2..4 --strategy dist-asgd", &[(4, 2, two)]),
        ("--workers 2..4 --strategy dist-esgd --interval 4", &[(4, 2, two)]),
        ("--workers 2..4 --strategy mpi-esgd --clients 2 --interval 4", &[(4, 2, two)]),
    ];
    for (strategy, deaths) in &jobs[..long::of(3, jobs.len())] {
        let resizing = Resizing::start(strategy);
        for &(count, left, _) in *deaths {
            let gone = *resizing.with_workers(count).last().unwrap();
            send(rustix::process::Pid::from_raw(gone).unwrap(), Signal::KILL);
            resizing.with_workers_but(left, gone);
        }
        send(resizing.job.launcher(), Signal::TERM);
        let ended = resizing.job.end(LIMIT);
        check_steps(&ended);
        for (.., said) in *deaths {
            assert!(ended.stderr.contains(said), "{strategy}: {}", ended.stderr);
        }
    }
}

#[test]
fn a_job_that_has_no_fewer_workers_ends_and_says_so() {
    let resizing = Resizing::start("--workers 1..2 --strategy allreduce");
    let kill = |pid: i32| send(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL);
    let gone = *resizing.with_workers(2).last().unwrap();
    kill(gone);
    kill(resizing.with_workers_but(1, gone)[0]);
    let ended = resizing.job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let said = "; the job has no fewer workers to go on with (--workers MIN..MAX)";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn a_job_whose_number_of_workers_is_fixed_says_so() {
    let resizing = Resizing::start("--workers 2 --strategy allreduce");
    resizing.with_workers(2);
    let refused = resizing.ask(&["scale", &resizing.name(), "1"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("start it with --workers MIN..MAX and --checkpoint DIR"), "{said}");
    send(resizing.job.launcher(), Signal::KILL);
    resizing.job.end(LIMIT);
}

/// What logs in on other hosts, which are this one by other names, for as long as a file is there.
fn log_in(folder: &Path) -> (PathBuf, String) {
    let (up, script) = (folder.join("up"), folder.join("rsh.sh"));
    std::fs::write(&up, "").unwrap();
    let body = format!("[ -e {} ] || exit 255\nshift\nexec sh -c \"$1\"\n", up.display());
    std::fs::write(&script, body).unwrap();
    (up, format!("sh {}", script.display()))
}

#[test]
fn a_job_goes_on_where_it_is_asked_to() {
    let place = tempfile::tempdir().unwrap();
    let (_, rsh) = log_in(place.path());
    let resizing = Resizing::start("--workers 2..4 --strategy allreduce");
    resizing.with_workers_on(&[None; 4]);
    let name = resizing.name();
    let on = |hosts, rsh| ["--hosts", hosts, "--listen", "127.0.0.1:0", "--rsh", rsh];
    for (hosts, rsh, says) in [
        ("127.0.0.1,other,third", "false", "error: no command runs on other, third, and"),
        ("127.0.0.1,other", "false", "see what `false other true` says"),
        ("127.0.0.1,other:0", &rsh, "has no number of slots"),
    ] {
        let wanted = [&["scale", &name, "4"], &on(hosts, rsh)[..]].concat();
        let refused = resizing.ask(&wanted);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(says), "{said}");
    }
    // one on which the program does not start, and an address that is another's: the job goes back to where it was
    let only_answers = place.path().join("answers.sh");
    std::fs::write(&only_answers, "[ \"$2\" = true ]\n").unwrap();
    let only_answers = format!("sh {}", only_answers.display());
    let elsewhere = ["--hosts", "127.0.0.1,other", "--listen", "192.0.2.1:0", "--rsh", &rsh];
    for wanted in [on("127.0.0.1,other", &only_answers), elsewhere] {
        let before = resizing.with_workers(4);
        let asked = resizing.asked(4, &wanted);
        assert_eq!(asked.status.code(), Some(1), "{asked:?}");
        let said = String::from_utf8(asked.stderr).unwrap();
        assert!(
            said.contains("goes on otherwise: ") && said.contains(" go on as before"),
            "{said}"
        );
        resizing.with_workers_but(4, before[0]);
        resizing.with_workers_on(&[None; 4]);
    }
    // it came; then it is the only one
    resizing.scale_with(4, &on("127.0.0.1,other", &rsh));
    resizing.with_workers_on(&[None, Some("other"), None, Some("other")]);
    resizing.scale(2);
    resizing.with_workers_on(&[None, Some("other")]);
    resizing.scale_with(2, &on("other", &rsh));
    resizing.with_workers_on(&[Some("other"); 2]);
    send(resizing.job.launcher(), Signal::TERM);
    let ended = resizing.job.end(LIMIT);
    check_steps(&ended);
    let asked: Vec<&str> =
        ended.stderr.lines().filter(|line| line.starts_with("asked for")).collect();
    let back = ended.stderr.lines().filter(|line| line.contains("; 4 workers go on as before"));
    assert_eq!(back.count(), 2, "{}", ended.stderr);
    let moved = "4 workers go on, on 127.0.0.1,other, ";
    let says = [moved, moved, moved, "2 workers go on, from", "2 workers go on, on other, "];
    assert_eq!(asked.len(), says.len(), "{}", ended.stderr);
    assert!(asked.iter().zip(says).all(|(line, says)| line.contains(says)), "{asked:?}");
}

#[test]
fn a_host_that_is_lost_takes_its_workers_and_brings_them_back() {
    let place = tempfile::tempdir().unwrap();
    let (up, rsh) = log_in(place.path());
    let job = "--workers 2..4 --strategy allreduce --hosts 127.0.0.1,other --listen 127.0.0.1:0";
    let resizing = Resizing::start_with(&format!("{job} --steps 1000000"), &["--rsh", &rsh]);
    let members = resizing.with_workers(4);
    lose(&up, members[1]);
    resizing.with_workers(2);
    std::fs::write(&up, "").unwrap();
    resizing.with_workers(4);
    send(resizing.job.launcher(), Signal::TERM);
    let ended = resizing.job.end(LIMIT);
    for said in ["other does not answer, and 2 workers go on without it", "other answers again: 4"]
    {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}

/// What comes to a job that waits for a host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Host,
    Stop,
    Scale,
}

#[test]
fn a_host_that_a_job_cannot_do_without_is_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let (up, rsh) = log_in(place.path());
    let hosts = "--hosts 127.0.0.1,other --listen 127.0.0.1:0 --strategy allreduce --steps 1000000";
    for (workers, comes) in [
        ("2..2", Comes::Host),
        ("2 --restarts 1", Comes::Host),
        ("2 --restarts 1", Comes::Stop),
        ("2..2", Comes::Scale),
    ] {
        std::fs::write(&up, "").unwrap();
        let job = format!("--workers {workers} {hosts}");
        let resizing = Resizing::start_with(&job, &["--rsh", &rsh]);
        lose(&up, resizing.with_workers(2)[1]);
        let is_awaited =
            |job: &Value| job["meanwhile"] == "other does not answer, and is waited for";
        let waits = resizing.asked_status(is_awaited);
        assert!(waits["step"].as_u64() >= Some(1) && waits["launches"] == 1, "{waits}");
        let says = match comes {
            Comes::Host => std::fs::write(&up, "").map(|()| "other answers again").unwrap(),
            Comes::Scale => {
                resizing.scale_with(2, &["--hosts", "127.0.0.1"]);
                "asked for: 2 workers go on, on 127.0.0.1"
            }
            Comes::Stop => "it makes no steps at the moment",
        };
        if comes != Comes::Stop {
            let makes_steps =
                |job: &Value| job["launches"] == 2 && !job["members"][1]["progress"].is_null();
            let goes_on = resizing.asked_status(makes_steps);
            let why = goes_on["launched_again"].as_str().unwrap();
            assert!(why.contains(says), "{why}");
        }
        let stopped = resizing.ask(&["stop", &resizing.name(), "--timeout", "60"]);
        assert!(stopped.status.success(), "{stopped:?}");
        let said = String::from_utf8(stopped.stdout).unwrap();
        assert!(comes != Comes::Stop || said.contains(says), "{said}");
        let ended = resizing.job.end(LIMIT);
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        // where it waits, what it waits for is what it ends with
        let says =
            if comes == Comes::Stop { "error: first to fail: worker 1" } else { "error: stopped" };
        assert!(ended.last_line().starts_with(says), "{}", ended.stderr);
        let awaits = "; other does not answer, and the job waits for it";
        assert!(ended.stderr.contains(awaits), "{}", ended.stderr);
        let restarts = usize::from(workers.contains("restarts") && comes == Comes::Host);
        assert_eq!(ended.stderr.matches("restart 1 of 1").count(), restarts, "{}", ended.stderr);
        check_steps(&ended);
    }
}

/// A host goes down with what ran there.
fn lose(up: &Path, pid: i32) {
    std::fs::remove_file(up).unwrap();
    send(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL);
}
