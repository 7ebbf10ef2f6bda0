//! Jobs whose launcher is killed, and that the same command takes over: real processes that wait, and go on in the middle of a step.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;
use tensorwire_fabric::handshake::HELLO_BYTES;
use tensorwire_testkit::long;

use crate::checkpoint::{JOB, hash, names, place, step, train};
use crate::hosts::{BESIDE, Rsh};
use crate::json_keys::agree;
use crate::support::{Ended, Job, children, send};

const LIMIT: Duration = Duration::from_secs(120);
/// More than are made before the launcher is killed, on whatever machine.
const STEPS: u64 = 300;

/// The command of a job, which may be given again.
struct Again {
    options: String,
    /// Those that may hold blanks.
    more: Vec<String>,
    path: String,
    /// Where launchers write what others need.
    runtime: tempfile::TempDir,
    _kept: tempfile::TempDir,
}

/// A launcher that is to be killed: what its members say goes to a file, which outlives it.
struct Victim {
    child: Child,
    members: Vec<Pid>,
    folder: tempfile::TempDir,
}

impl Again {
    fn new(options: &str) -> Again {
        let ((kept, path), runtime) = (place(), tempfile::tempdir().unwrap());
        let options = format!(
            "train --json {JOB} --checkpoint {path} --resume auto --launcher-patience 60 {options}"
        );
        Again { options, more: Vec::new(), path, runtime, _kept: kept }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(self.options.split_whitespace()).args(&self.more);
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Starts it, and waits until it makes steps.
    fn start(&self, members: usize) -> Victim {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = self.command();
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(log).spawn().unwrap();
        let mut victim = Victim { child, members: Vec::new(), folder };
        let until = Instant::now() + LIMIT;
        while victim.members.len() < members || self.step(&victim) < 20 {
            assert!(Instant::now() < until, "it makes no steps: {}", victim.log());
            std::thread::sleep(Duration::from_millis(5));
            victim.members = children(Pid::from_child(&victim.child));
        }
        victim
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut ask = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        ask.args(words).env("XDG_RUNTIME_DIR", self.runtime.path()).output().unwrap()
    }

    /// The step that it is in.
    fn step(&self, victim: &Victim) -> u64 {
        let said = self.ask(&["status", &victim.name(), "--json"]);
        let said: Option<Value> = serde_json::from_slice(&said.stdout).ok();
        said.and_then(|said| said["step"].as_u64()).unwrap_or_default()
    }

    /// Where its processes call their launcher.
    fn listens(&self) -> SocketAddr {
        let jobs = self.runtime.path().join("tensorwire/jobs");
        let hosts = std::fs::read_dir(jobs).unwrap().flatten().map(|host| host.path());
        let mut files = hosts.flat_map(|host| std::fs::read_dir(host).unwrap().flatten());
        let record = files.find(|file| file.path().extension().is_some_and(|it| it == "job"));
        let record: Value =
            serde_json::from_slice(&std::fs::read(record.unwrap().path()).unwrap()).unwrap();
        record["listen"].as_str().unwrap().parse().unwrap()
    }

    /// Takes it over, and waits for its end.
    fn end(&self) -> Ended {
        let ended = Job::start_command(self.command()).end(LIMIT);
        let jobs = self.runtime.path().join("tensorwire/jobs");
        for host in std::fs::read_dir(jobs).unwrap().flatten() {
            let mut left = names(&host.path().display().to_string());
            // a killed launcher's is removed by whoever asks for jobs
            left.retain(|name| !name.ends_with(".sock"));
            assert_eq!(left, [""; 0], "{}", ended.stderr);
        }
        ended
    }
}

impl Victim {
    fn name(&self) -> String {
        self.child.id().to_string()
    }

    /// Kills the launcher, and nobody else.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        assert!(self.members.iter().all(|member| lives(*member)), "{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

fn lives(member: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", member.as_raw_nonzero()));
    let is_there = stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"));
    is_there && test_kill_process(member).is_ok()
}

fn wait_until_gone(members: &[Pid], log: &dyn Fn() -> String) {
    let until = Instant::now() + LIMIT;
    while members.iter().any(|member| lives(*member)) {
        assert!(Instant::now() < until, "they are left: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_same_processes_go_on_to_the_bits_of_an_undisturbed_job() {
    let undisturbed = |strategy: &str| hash(&train(&format!("--steps {STEPS} {strategy}")));
    // two workers have the same bits in each
    let (two, four) = (undisturbed("--strategy ps"), "--strategy mpi-sgd --workers 4 --clients 2");
    let (again_in_two, in_four) = (|| two.clone(), || undisturbed(four));
    let jobs: [(&str, usize, &dyn Fn() -> String); 4] = [
        ("--strategy allreduce --early-stop 1000 --val-every 25", 2, &again_in_two),
        ("--strategy dist-sgd --transport tcp", 4, &again_in_two),
        ("--strategy ps", 4, &again_in_two),
        (four, 6, &in_four),
    ];
    for (strategy, members, undisturbed) in &jobs[..long::of(2, jobs.len())] {
        let mut again = Again::new(&format!("--steps {STEPS} --checkpoint-every 15 {strategy}"));
        let metrics = again.runtime.path().join("metrics.jsonl");
        again.more = vec!["--metrics".to_string(), metrics.display().to_string()];
        let mut first = again.start(*members);
        first.kill();
        let ended = again.end();
        let context = format!("{strategy}:\n{}\n{}", first.log(), ended.stderr);
        let json = ended.json();
        assert_eq!(json["weights_sha256"], undisturbed(), "{context}");
        assert_eq!((&json["restarts"], &json["steps"]), (&0.into(), &STEPS.into()), "{context}");
        let said = "the job's processes go on with this launcher, in step ";
        assert!(ended.stderr.contains(said), "{context}");
        assert!(!first.members.iter().any(|member| lives(*member)), "{context}");
        assert!(Path::new(&again.path).join(format!("step-{STEPS:08}")).is_dir(), "{context}");
        let lines = std::fs::read_to_string(metrics).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: Vec<u64> = lines.filter_map(|line| line["step"].as_u64()).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "each once: {steps:?}");
        // those in which it was killed are told to nobody
        assert!(steps[0] == 1 && steps.len() as u64 > STEPS - 10, "{steps:?} {context}");
    }
}

/// Each step is evaluated and kept, and evaluations take most of the time: a launcher dies over one of them.
#[test]
fn no_checkpoint_is_lost_and_no_evaluation() {
    const EVALUATED: u64 = 24;
    let strategies = ["--strategy ps", "--strategy allreduce"];
    for strategy in &strategies[..long::of(1, 2)] {
        let kept = "--val-every 1 --checkpoint-every 1 --keep 1000";
        let again = Again::new(&format!("--steps {EVALUATED} {kept} {strategy}"));
        let mut first = again.start(2);
        first.kill();
        let ended = again.end();
        let context = format!("{strategy}:\n{}\n{}", first.log(), ended.stderr);
        assert!(ended.stderr.contains("go on with this launcher"), "{context}");
        assert_eq!(ended.json()["steps"], EVALUATED, "{context}");
        let (mut least, mut since) = (f64::INFINITY, 0);
        for at in 1..=EVALUATED {
            let state = std::fs::read(step(&again.path, at).join("state.json"));
            let state = state.unwrap_or_else(|error| panic!("step {at}: {error}: {context}"));
            let state: Value = serde_json::from_slice(&state).unwrap();
            let loss = state["test_loss"].as_f64();
            let loss = loss.unwrap_or_else(|| panic!("step {at} has no loss: {context}"));
            since = if loss < least { 0 } else { since + 1 };
            least = least.min(loss);
            // each counts once
            assert_eq!(state["best"]["since"], since, "step {at}: {context}");
        }
    }
}

/// Its record is not found from there, as where a job of a login session is begun once more by cron.
#[test]
fn processes_that_are_not_found_keep_another_job_out_of_their_folder() {
    let again = Again::new(&format!("--steps {STEPS} --strategy allreduce"));
    let mut first = again.start(2);
    first.kill();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = again.command();
    command.env("XDG_RUNTIME_DIR", elsewhere.path());
    let refused = Job::start_command(command).end(LIMIT);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("wait for another launcher"), "{}", refused.stderr);
    let ended = again.end();
    assert!(ended.stderr.contains("go on with this launcher"), "{}", ended.stderr);
    let left = names(&again.path);
    assert!(!left.iter().any(|name| name.starts_with('.')), "{left:?}");
}

/// The launcher dies between what it was asked for and what comes of it.
#[test]
fn what_a_launcher_was_asked_for_before_it_died_the_next_one_does() {
    let again = Again::new(&format!("--steps {STEPS} --workers 2..4 --strategy allreduce"));
    let mut first = again.start(4);
    // nobody comes to the end of a step meanwhile
    send(first.members[3], Signal::STOP);
    let said = again.ask(&["scale", &first.name(), "2", "--timeout", "0"]);
    assert!(said.status.success(), "{said:?}");
    first.kill();
    send(first.members[3], Signal::CONT);
    let ended = again.end();
    let context = format!("{}\n{}", first.log(), ended.stderr);
    assert!(ended.stderr.contains("go on with this launcher"), "{context}");
    assert!(ended.stderr.contains("asked for: 2 workers go on, from step "), "{context}");
    let json = ended.json();
    assert_eq!((&json["resizes"], &json["steps"]), (&1.into(), &STEPS.into()), "{context}");
    assert_eq!(json["workers_finished"], 2, "{context}");
}

/// It has gone on with other workers than it began with, which the command alone does not say.
#[test]
fn a_job_that_was_resized_goes_on_as_it_was_left() {
    let steps = 4 * STEPS;
    let again = Again::new(&format!("--steps {steps} --workers 2..4 --strategy allreduce"));
    let mut first = again.start(4);
    let said = again.ask(&["scale", &first.name(), "2"]);
    assert!(said.status.success(), "{said:?}\n{}", first.log());
    first.members = children(Pid::from_child(&first.child));
    first.members.retain(|member| lives(*member));
    assert_eq!(first.members.len(), 2, "{}", first.log());
    first.kill();
    let ended = again.end();
    let context = format!("{}\n{}", first.log(), ended.stderr);
    for said in ["the job has gone on with 2 workers since it began", "go on with this launcher"] {
        assert!(ended.stderr.contains(said), "{context}");
    }
    let json = ended.json();
    assert_eq!((&json["resizes"], &json["steps"]), (&1.into(), &steps.into()), "{context}");
    assert_eq!(json["workers_finished"], 2, "{context}");
}

/// What started a process there outlives the launcher, too.
#[test]
fn processes_of_other_hosts_wait_as_well() {
    let (rsh, strategy) = (Rsh::new(BESIDE), "--strategy allreduce");
    let undisturbed = hash(&train(&format!("--steps {STEPS} {strategy}")));
    let mut again = Again::new(&format!("--steps {STEPS} {strategy}"));
    again.more = rsh.options().map(str::to_string).to_vec();
    let mut first = again.start(2);
    first.kill();
    let ended = again.end();
    let context = format!("{}\n{}", first.log(), ended.stderr);
    assert_eq!(ended.json()["weights_sha256"], undisturbed.as_str(), "{context}");
    assert!(ended.stderr.contains("go on with this launcher"), "{context}");
    // a launcher that nobody follows: all end by themselves, there too
    let brief = again.options.replace("--launcher-patience 60", "--launcher-patience 1");
    let brief =
        Again { options: brief.replace(&format!("--steps {STEPS}"), "--steps 100000"), ..again };
    let mut first = brief.start(2);
    first.kill();
    wait_until_gone(&first.members, &|| first.log());
}

/// Says to one that calls, without any proof, that it does not know the job's secret.
fn send_away(stranger: &TcpListener) {
    let (mut caller, _) = stranger.accept().unwrap();
    let mut hello = [0; HELLO_BYTES];
    if caller.read_exact(&mut hello).is_ok() {
        let _ = caller.write_all(&[&hello[..10], &5u16.to_le_bytes(), &[0; 44]].concat());
    }
}

/// Once a launcher is dead its port is anybody's: who answers there and proves nothing sends no process away, and who stays there
/// costs the steps since the last checkpoint, and no more.
#[test]
fn a_stranger_where_the_launcher_listened_ends_no_job() {
    let strategy = "--strategy allreduce";
    let undisturbed = hash(&train(&format!("--steps {STEPS} {strategy}")));
    for stays in [false, true] {
        let again = Again::new(&format!("--steps {STEPS} --checkpoint-every 15 {strategy}"));
        let mut first = again.start(2);
        let at = again.listens();
        first.kill();
        let stranger = TcpListener::bind(at).unwrap();
        (0..6).for_each(|_| send_away(&stranger));
        assert!(first.members.iter().all(|member| lives(*member)), "{}", first.log());
        // until this process ends
        let stranger = Some(stranger).filter(|_| stays);
        let _there = stranger.map(|stranger| {
            std::thread::spawn(move || {
                loop {
                    send_away(&stranger);
                }
            })
        });
        let ended = again.end();
        let context = format!("{}\n{}", first.log(), ended.stderr);
        assert_eq!(ended.json()["weights_sha256"], undisturbed.as_str(), "{context}");
        let said = match stays {
            false => "go on with this launcher",
            true => "the processes of an earlier launcher were ended (cannot listen on ",
        };
        assert!(ended.stderr.contains(said), "{context}");
    }
}

/// Whoever kills one of them as well has the job begin behind its last checkpoint.
#[test]
fn where_not_all_processes_are_left_the_job_begins_behind_a_checkpoint() {
    let strategy = "--strategy allreduce";
    let undisturbed = hash(&train(&format!("--steps {STEPS} {strategy}")));
    let again = Again::new(&format!("--steps {STEPS} --checkpoint-every 5 {strategy}"));
    let mut first = again.start(2);
    first.kill();
    let said = String::from_utf8(again.ask(&["status"]).stderr).unwrap();
    assert!(said.contains("2 workers: 2 processes wait for another launcher"), "{said}");
    let launcher = first.name();
    let mut members: Vec<i32> =
        first.members.iter().map(|member| member.as_raw_nonzero().get()).collect();
    members.sort_unstable();
    for question in [&["status", "--json"][..], &["status", &launcher, "--json"]] {
        let said: Value = serde_json::from_slice(&again.ask(question).stdout).unwrap();
        assert_eq!(said["job"], launcher.as_str());
        agree("Processes that wait", [&said], &[], &[]);
        let mut waiting: Vec<i32> = serde_json::from_value(said["waiting"].clone()).unwrap();
        waiting.sort_unstable();
        assert_eq!(waiting, members);
    }
    for question in
        [&["top", &launcher, "--once"][..], &["scale", &launcher, "1"], &["stop", &launcher]]
    {
        let said = String::from_utf8(again.ask(question).stderr).unwrap();
        assert!(
            said.contains("was killed, and 2 processes wait for another"),
            "{question:?}: {said}"
        );
    }
    send(first.members[1], Signal::KILL);
    let ended = again.end();
    let context = format!("{}\n{}", first.log(), ended.stderr);
    assert_eq!(ended.json()["weights_sha256"], undisturbed.as_str(), "{context}");
    assert!(ended.stderr.contains("the processes of an earlier launcher were ended"), "{context}");
    assert!(!first.members.iter().any(|member| lives(*member)), "{context}");
}

#[test]
fn a_job_that_runs_is_not_begun_twice_and_other_options_end_what_waits() {
    let again = Again::new("--steps 100000000 --strategy allreduce");
    let mut first = again.start(2);
    let second = again.end_refused();
    assert_eq!(second.status.code(), Some(2), "{}", second.stderr);
    let said = format!("its launcher is process {}", first.child.id());
    assert!(second.last_line().contains(&said), "{}", second.stderr);
    assert!(!second.stderr.contains("goes on from there"), "{}", second.stderr);
    first.kill();
    let other = Again { options: again.options.replace("100000000", "30"), ..again };
    let ended = other.end();
    assert!(ended.stderr.contains("they were started with other options"), "{}", ended.stderr);
    assert_eq!(ended.json()["steps"], 30, "{}", ended.stderr);
    wait_until_gone(&first.members, &|| first.log());
}

#[test]
fn processes_wait_no_longer_than_they_may_and_not_at_all_after_an_interrupt() {
    let again = Again::new("--steps 100000000 --strategy ps");
    let brief = again.options.replace("--launcher-patience 60", "--launcher-patience 1");
    let brief = Again { options: brief, ..again };
    let mut first = brief.start(4);
    first.kill();
    wait_until_gone(&first.members, &|| first.log());
    // the second Ctrl-C does not wait
    let again = Again::new("--steps 100000000 --strategy ps");
    let mut first = again.start(4);
    let launcher = Pid::from_child(&first.child);
    send(launcher, Signal::INT);
    send(launcher, Signal::INT);
    first.child.wait().unwrap();
    wait_until_gone(&first.members, &|| first.log());
}

/// One that is stopped for longer than members believe it to live is none that ended.
#[test]
fn a_launcher_that_was_stopped_goes_on_with_its_members() {
    let again = Again::new("--steps 1000 --strategy allreduce --deadline 4");
    let mut first = again.start(2);
    let launcher = Pid::from_child(&first.child);
    send(launcher, Signal::STOP);
    let wait = Instant::now();
    while wait.elapsed() < Duration::from_secs(8) {
        assert!(first.members.iter().all(|member| lives(*member)), "{}", first.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    send(launcher, Signal::CONT);
    let ended = first.child.wait().unwrap();
    assert!(ended.success(), "{}", first.log());
}

impl Again {
    /// Starts it where it cannot be.
    fn end_refused(&self) -> Ended {
        Job::start_command(self.command()).end(LIMIT)
    }
}
