//! Jobs whose processes somebody else started: the real mpirun, torchrun where there is one, which runs the script of
//! `examples/clusters`, and the variables of each set by hand; Slurm has a file of its own. The same bits as by the
//! plain command; any process killed ends all, and the output says which. A launcher that is not installed is skipped,
//! unless TENSORWIRE_LAUNCHERS is set.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::support::{
    Ended, Job, await_file, await_heard, on_path, process_with, processes_in, send,
};
use rustix::process::Signal;
use tensorwire_testkit::skip::skip;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tensorwire");
/// A job ends within this when one of its processes is killed.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const LONG_LIMIT: Duration = Duration::from_secs(60);
const TORCHRUN_SCRIPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clusters/torchrun.sh");

/// What a launcher and its processes leave.
pub(crate) struct Left {
    pub(crate) ended: Ended,
    /// Processes of the job, which are not all in the group of the test.
    pub(crate) processes: Vec<u32>,
}

/// Waits for a job to end, and for every process that it left in its folder.
pub(crate) fn end(job: Job, limit: Duration) -> Left {
    let folder = job.folder().to_path_buf();
    let ended = job.end(limit);
    let start = Instant::now();
    loop {
        let processes = processes_in(&folder);
        if processes.is_empty() || start.elapsed() > Duration::from_secs(3) {
            return Left { ended, processes };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The digest of the weights of five steps by the plain command.
pub(crate) fn plain_digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let json = Job::start("train --steps 5 --json --no-detect").end(LONG_LIMIT).json();
        json["weights_sha256"].as_str().unwrap().to_string()
    })
}

/// A job that makes steps until it is ended, which a file shows.
pub(crate) const STEPPING: [&str; 5] = ["train", "--steps", "100000", "--metrics", "m.jsonl"];

/// What all of them must do: `launch` starts this program four times with these arguments.
pub(crate) fn trains_to_the_same_bits(by: &str, launch: impl Fn(&[&str]) -> Command) {
    let job = Job::start_command(launch(&["train", "--steps", "5", "--json"]));
    let Left { ended, processes } = end(job, LONG_LIMIT);
    let json = ended.json();
    assert_eq!(json["weights_sha256"], plain_digest());
    assert_eq!((&json["workers"], &json["servers"]), (&2.into(), &2.into()));
    assert_eq!(ended.stdout.lines().count(), 1, "only one prints: {}", ended.stdout);
    let line = format!("started by {by}: 4 processes, rank 0 is the launcher at 127.0.0.1:");
    assert_eq!(ended.stderr.matches(&line).count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("error").count(), 0, "{}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?}");
}

/// What is seen of a job before one of its processes is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// The victim is there, and whoever is to say so hears that all are to end.
    Started,
    /// All have come.
    Met,
    Stepping,
}

impl Moment {
    /// Waits for it.
    fn awaited(self, job: &Job, rank_of: &impl Fn(u32) -> String) {
        match self {
            Moment::Started => {
                await_heard(process_with(job.folder(), "train", &rank_of(0)), Signal::TERM);
            }
            // what the process of rank 0 starts then
            Moment::Met => drop(process_with(job.folder(), "member", &rank_of(0))),
            Moment::Stepping => await_file(job, "m.jsonl"),
        }
    }
}

/// Any process killed at any moment: the job ends in time, and what it leaves names that process.
pub(crate) fn a_killed_process_ends_all(
    limit: Duration,
    rank_of: impl Fn(u32) -> String,
    launch: impl Fn(&[&str]) -> Command,
) {
    let victims = [
        (1, "worker 1", Moment::Stepping),
        (2, "server 0", Moment::Met),
        (3, "server 1", Moment::Started),
    ];
    for (rank, role, moment) in victims {
        let job = Job::start_command(launch(&STEPPING));
        let victim = process_with(job.folder(), "train", &rank_of(rank));
        moment.awaited(&job, &rank_of);
        send(victim, Signal::KILL);
        let Left { ended, processes } = end(job, limit);
        let context = format!("{role}, {moment:?}:\n{}", ended.stderr);
        assert!(!ended.status.success(), "{context}");
        let pid = victim.as_raw_nonzero();
        let told = format!("error: first to fail: {role} (rank {rank}, pid {pid}) ");
        // before it has been told what it is, it is known by its rank
        let waiting = format!("error: first to fail: rank {rank} (pid {pid} on ");
        // others may be late as well
        let is_missing = || {
            let lists = context.lines().filter_map(|line| line.split_once("had come; missing: "));
            lists.flat_map(|(_, list)| list.split(", ")).any(|one| one == format!("rank {rank}"))
        };
        let is_named = context.contains(&told)
            || moment != Moment::Stepping && context.contains(&waiting)
            || moment == Moment::Started && is_missing();
        assert!(is_named, "{context}");
        assert!(processes.is_empty(), "{processes:?} are left: {context}");
    }
    // the member that the process of rank 0 has started
    let job = Job::start_command(launch(&STEPPING));
    let victim = process_with(job.folder(), "member", &rank_of(0));
    await_file(&job, "m.jsonl");
    send(victim, Signal::KILL);
    let Left { ended, processes } = end(job, limit);
    assert!(ended.stderr.contains("first to fail: worker 0 (rank 0, "), "{}", ended.stderr);
    assert!(ended.stderr.contains("killed by signal 9"), "{}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?} are left");
    // and that process itself: nobody is left to say more than that
    let job = Job::start_command(launch(&STEPPING));
    let victim = process_with(job.folder(), "train", &rank_of(0));
    await_file(&job, "m.jsonl");
    send(victim, Signal::KILL);
    let Left { ended, processes } = end(job, limit);
    assert!(!ended.status.success() && processes.is_empty(), "{processes:?}: {}", ended.stderr);
}

/// The program of this name; a test without it is skipped.
fn installed(name: &str) -> Option<PathBuf> {
    let found = on_path(name);
    if found.is_none() {
        skip_without(name);
    }
    found
}

pub(crate) fn skip_without(what: &str) {
    let reason = format!("no {what}; scripts/setup.sh --tests installs it on Debian");
    skip(Some("TENSORWIRE_LAUNCHERS"), &reason);
}

/// Seconds that mpirun waits before it sends SIGTERM to those that it ends, and once more before SIGKILL: it would be one, in
/// which they are to say why on a busy machine.
const WAITS: u64 = 3;
/// As [`LIMIT`], behind these.
const MPIRUN_LIMIT: Duration = Duration::from_secs(10 + 2 * WAITS);

fn mpirun(program: PathBuf) -> impl Fn(&[&str]) -> Command {
    move |arguments| {
        let mut command = Command::new(&program);
        command.args(["--mca", "odls_base_sigkill_timeout", &WAITS.to_string()]);
        let options = ["--allow-run-as-root", "--oversubscribe", "-np", "4", BINARY];
        command.args(options).args(arguments);
        command
    }
}

fn mpi_rank(rank: u32) -> String {
    format!("OMPI_COMM_WORLD_RANK={rank}")
}

#[test]
fn mpirun_trains_to_the_same_bits() {
    let Some(program) = installed("mpirun") else { return };
    trains_to_the_same_bits("mpirun", mpirun(program));
}

const WRITES: &str = "bench write --quick --sizes 4KiB --transport shm --json lines";

/// One of four that a launcher started measures; the others do not measure beside it.
pub(crate) fn is_measured_once(by: &str, launch: impl Fn(&[&str]) -> Command) {
    let arguments: Vec<&str> = WRITES.split_whitespace().collect();
    let Left { ended, processes } = end(Job::start_command(launch(&arguments)), LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let said = format!("{by} started 4 processes; a benchmark");
    assert_eq!(ended.stderr.matches(&said).count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stdout.matches("round trip: a write").count(), 1, "{}", ended.stdout);
    assert!(processes.is_empty(), "{processes:?}");
}

#[test]
fn a_benchmark_that_mpirun_started_is_measured_once() {
    let Some(program) = installed("mpirun") else { return };
    is_measured_once("mpirun", mpirun(program));
}

#[test]
fn a_benchmark_with_the_variables_of_torchrun_is_measured_once() {
    let jobs = started_by_hand(WRITES, &torchs(4, port(), "bench"));
    let ended: Vec<Ended> = jobs.into_iter().map(|job| job.end(LONG_LIMIT)).collect();
    for (rank, ended) in ended.iter().enumerate() {
        assert!(ended.status.success(), "{}", ended.stderr);
        let (measured, said) = ("round trip: a write", "torchrun started 4 processes; a benchmark");
        assert_eq!(ended.stdout.contains(measured), rank == 0, "{rank}: {}", ended.stdout);
        assert_eq!(ended.stderr.contains(said), rank == 0, "{rank}: {}", ended.stderr);
    }
}

#[test]
fn any_process_killed_under_mpirun() {
    let Some(program) = installed("mpirun") else { return };
    a_killed_process_ends_all(MPIRUN_LIMIT, mpi_rank, mpirun(program));
}

#[test]
fn mpirun_that_is_told_to_end_ends_all() {
    let Some(program) = installed("mpirun") else { return };
    let job = Job::start_command(mpirun(program)(&STEPPING));
    await_file(&job, "m.jsonl");
    send(job.launcher(), Signal::TERM);
    let Left { ended, processes } = end(job, MPIRUN_LIMIT);
    assert!(ended.stderr.contains("error: interrupted"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("first to fail"), "nobody failed: {}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?}");
}

#[test]
fn what_mpirun_started_is_not_started_again_by_us_and_the_error_says_who_may() {
    let Some(program) = installed("mpirun") else { return };
    let job = mpirun(program)(&["train", "--steps", "5", "--restarts", "2"]);
    let Left { ended, processes } = end(Job::start_command(job), MPIRUN_LIMIT);
    let says = "error: --restarts is of jobs whose processes tensorwire starts itself";
    assert_eq!(ended.stderr.matches(says).count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("--resume auto"), "{}", ended.stderr);
    assert!(processes.is_empty() && !ended.status.success(), "{processes:?}");
}

#[test]
fn a_number_of_processes_that_is_not_the_jobs_is_said_with_the_right_one() {
    let Some(program) = installed("mpirun") else { return };
    let job = mpirun(program)(&["train", "--workers", "3", "--servers", "2"]);
    let Left { ended, processes } = end(Job::start_command(job), MPIRUN_LIMIT);
    let wrong = "error: the job has 3 workers and 2 servers, and mpirun started 4 processes; give mpirun -np 5";
    assert!(ended.stderr.contains(wrong), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("error: ").count(), 1, "one says it: {}", ended.stderr);
    assert!(processes.is_empty() && !ended.status.success(), "{processes:?}");
}

/// As PyTorch's environment or the PATH has it.
fn torchrun_program() -> Option<PathBuf> {
    let python = std::env::var_os("TENSORWIRE_PYTORCH").map(PathBuf::from);
    let beside = python.map(|python| python.with_file_name("torchrun"));
    let found = beside.filter(|program| program.exists()).or_else(|| on_path("torchrun"));
    if found.is_none() {
        skip(None, &"no torchrun, which PyTorch brings; its variables are tried");
    }
    found
}

/// The script that is shipped.
fn torchrun() -> Option<impl Fn(&[&str]) -> Command> {
    let program = torchrun_program()?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent()?.display());
    Some(move |arguments: &[&str]| {
        let mut command = Command::new(TORCHRUN_SCRIPT);
        command.args(&arguments[1..]).env("PATH", &path).env("TENSORWIRE", BINARY);
        command.env("PROCESSES", "4").env("MASTER_PORT", port().to_string());
        command
    })
}

#[test]
fn torchrun_trains_to_the_same_bits() {
    let Some(launch) = torchrun() else { return };
    trains_to_the_same_bits("torchrun", launch);
}

#[test]
fn torchrun_starts_all_again_and_they_go_on_from_the_newest_checkpoint() {
    let Some(launch) = torchrun() else { return };
    let options = ["train", "--json", "--threads", "1", "--batch", "8", "--steps", "300"];
    let kept = ["--checkpoint", "ck", "--checkpoint-every", "25", "--resume", "auto"];
    let plain = Job::start_with(options.into_iter().chain(["--no-detect"])).end(LONG_LIMIT).json();
    let job = Job::start_command(launch(&[&options[..], &kept[..]].concat()));
    await_file(&job, "ck/step-00000025");
    send(process_with(job.folder(), "train", "RANK=2"), Signal::KILL);
    let Left { ended, processes } = end(job, LONG_LIMIT);
    assert_eq!(ended.json()["weights_sha256"], plain["weights_sha256"], "{}", ended.stderr);
    assert!(ended.stderr.contains("goes on from ck/step-"), "{}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?}");
}

/// Two agents with two processes each: one agent is lost with its own, and the other starts its two again, which make the batches of
/// four.
#[test]
fn an_agent_of_torchrun_that_is_left_alone_goes_on_with_its_own_workers() {
    let Some(program) = torchrun_program() else { return };
    let at = format!("127.0.0.1:{}", port());
    let kept = tempfile::tempdir().unwrap();
    let agent = || {
        let mut command = Command::new(&program);
        let elastic =
            "--no-python --nnodes 1:2 --nproc-per-node 2 --max-restarts 8 --rdzv-backend c10d";
        command.args(elastic.split(' ')).args(["--rdzv-endpoint", &at, "--rdzv-id", "elastic"]);
        // how long it waits for a second agent once there is one
        command.args(["--rdzv-conf", "last_call_timeout=5"]).arg(BINARY);
        let job =
            "train --strategy allreduce --workers 1..4 --json --threads 1 --batch 8 --steps 300";
        command.args(job.split(' ')).arg("--checkpoint").arg(kept.path());
        command.args(["--checkpoint-every", "25", "--resume", "auto"]);
        Job::start_command(command)
    };
    // the store of both is the first one's
    let first = agent();
    let begun = Instant::now();
    while TcpStream::connect(&at).is_err() {
        assert!(begun.elapsed() < LONG_LIMIT, "nobody serves");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut second = agent();
    while !kept.path().join("step-00000025").exists() {
        assert!(begun.elapsed() < 2 * LONG_LIMIT, "nothing is kept");
        std::thread::sleep(Duration::from_millis(5));
    }
    let lost = [second.members(2), vec![second.launcher()]].concat();
    lost.into_iter().for_each(|process| send(process, Signal::KILL));
    drop(second.end(LONG_LIMIT));
    let Left { ended, processes } = end(first, 3 * LONG_LIMIT);
    let json = ended.json();
    assert_eq!((&json["workers"], &json["steps"]), (&2.into(), &300.into()), "{}", ended.stderr);
    let said = "now workers 2 (was 4), batches a step 2 (was 1)";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?}");
}

/// Processes with variables of their own, started by this test as a launcher would. The first leads.
fn started_by_hand(arguments: &str, each: &[String]) -> Vec<Job> {
    // one at a time: no two tests take the same port while they look for one
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let start = |variables: &String| {
        let mut command = Command::new(BINARY);
        command.args(arguments.split_whitespace());
        let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
        command.envs(pairs);
        Job::start_command(command)
    };
    each.iter().map(start).collect()
}

fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn torchs(world: u32, master_port: u16, run: &str) -> Vec<String> {
    let variables = |rank| {
        format!(
            "RANK={rank} WORLD_SIZE={world} LOCAL_RANK={rank} MASTER_ADDR=127.0.0.1 MASTER_PORT={master_port} TORCHELASTIC_RUN_ID={run}"
        )
    };
    (0..world).map(variables).collect()
}

/// As where one host is drained, or a batch system tells all: whoever is told, all end behind a step, and it is kept.
#[test]
fn one_that_is_told_to_end_has_all_end_behind_a_step_that_is_kept() {
    let everybody: [usize; 4] = [0, 1, 2, 3];
    for told in [&everybody[3..], &everybody] {
        let folder = tempfile::tempdir().unwrap();
        let (kept, metrics) = (folder.path().join("ck"), folder.path().join("m.jsonl"));
        let options = format!(
            "--steps 100000 --threads 1 --batch 8 --checkpoint {} --checkpoint-every 1000000 --metrics {}",
            kept.display(),
            metrics.display()
        );
        let jobs = started_by_hand(&format!("train {options}"), &torchs(4, port(), "told"));
        let deadline = Instant::now() + LONG_LIMIT;
        while !metrics.metadata().is_ok_and(|file| file.len() > 0) {
            assert!(Instant::now() < deadline, "no step");
            std::thread::sleep(Duration::from_millis(2));
        }
        for rank in told {
            jobs[*rank].signal_group(Signal::TERM);
        }
        let ended: Vec<Ended> = jobs.into_iter().map(|job| job.end(LONG_LIMIT)).collect();
        let said = &ended[0].stderr;
        assert!(said.contains("interrupted: all end behind step"), "{told:?}: {said}");
        assert!(!said.contains("first to fail"), "{told:?}: {said}");
        let names = std::fs::read_dir(&kept).unwrap().flatten().map(|entry| entry.file_name());
        let steps = names.filter(|name| name.to_string_lossy().starts_with("step-")).count();
        assert_eq!(steps, 1, "{told:?}: {said}");
    }
}

#[test]
fn two_jobs_of_one_port_do_not_meet() {
    // as two torchruns would have it that were given the same port
    let master_port = port();
    let one = started_by_hand("train --steps 5 --json", &torchs(4, master_port, "one"));
    let other =
        started_by_hand("train --steps 5 --json --seed 2", &torchs(4, master_port, "other"));
    let digests: Vec<String> = [one, other]
        .into_iter()
        .map(|jobs| {
            let mut ended = jobs.into_iter().map(|job| job.end(LONG_LIMIT));
            let json = ended.next().unwrap().json();
            for silent in ended {
                assert!(silent.status.success() && silent.stdout.is_empty(), "{}", silent.stderr);
            }
            json["weights_sha256"].as_str().unwrap().to_string()
        })
        .collect();
    assert_eq!(digests[0], plain_digest());
    assert_ne!(digests[1], plain_digest(), "another seed");
}

/// As before the host of one of them goes, or before the time that a scheduler gives is over.
#[test]
fn any_process_that_is_asked_to_end_has_all_end_behind_a_step_that_is_kept() {
    for signal in [Signal::INT, Signal::USR1] {
        let kept = tempfile::tempdir().unwrap();
        let checkpoints = kept.path().join("ck");
        let line = format!(
            "train --steps 1000000 --metrics m.jsonl --checkpoint {} --checkpoint-every 1000000 \
             --resume auto",
            checkpoints.display()
        );
        let jobs = started_by_hand(&line, &torchs(4, port(), "run"));
        await_file(&jobs[0], "m.jsonl");
        send(jobs[2].launcher(), signal);
        let ended: Vec<Ended> = jobs.into_iter().map(|job| job.end(LONG_LIMIT)).collect();
        let said = &ended[0].stderr;
        assert!(said.contains("the newest checkpoint is of step "), "{signal:?}: {said}");
        assert!(ended[0].last_line().contains("interrupted"), "{signal:?}: {said}");
        assert_eq!(ended[0].status.code(), Some(1), "{signal:?}: {said}");
        assert!(ended[1..].iter().all(|ended| ended.stderr.is_empty()), "{signal:?}: one says it");
        assert_eq!(
            std::fs::read_dir(&checkpoints)
                .unwrap()
                .filter(|entry| {
                    entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("step-")
                })
                .count(),
            1,
            "{signal:?}: it wrote no other"
        );
    }
    let job = Job::start(&format!("{} --no-detect", STEPPING.join(" ")));
    await_file(&job, "m.jsonl");
    send(job.launcher(), Signal::USR1);
    let ended = job.end(LIMIT);
    assert!(ended.last_line().contains("interrupted"), "{}", ended.stderr);
}

/// Each agent of torchrun counts its own restarts.
#[test]
fn processes_of_agents_that_have_counted_other_restarts_meet() {
    let counted = torchs(4, port(), "run").into_iter().zip([0, 0, 1, 1]);
    let each: Vec<String> = counted
        .map(|(variables, count)| format!("{variables} TORCHELASTIC_RESTART_COUNT={count}"))
        .collect();
    let mut jobs = started_by_hand("train --steps 5 --json", &each).into_iter();
    assert_eq!(jobs.next().unwrap().end(LONG_LIMIT).json()["weights_sha256"], plain_digest());
    assert!(jobs.all(|job| job.end(LIMIT).status.success()));
}

#[test]
fn a_tracker_of_ps_lite_gives_ranks_as_they_come() {
    let root = port();
    let roles = ["scheduler", "server", "worker", "worker", "server"];
    let each = roles.map(|role| {
        format!(
            "DMLC_ROLE={role} DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT={root} DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2"
        )
    });
    let mut jobs = started_by_hand("train --steps 5 --json", &each).into_iter();
    let ended = jobs.next().unwrap().end(LONG_LIMIT);
    assert_eq!(ended.json()["weights_sha256"], plain_digest());
    let line = "started by a ps-lite tracker: 5 processes, the scheduler is the launcher at ";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    assert!(jobs.all(|job| job.end(LIMIT).status.success()));
}

#[test]
fn the_user_is_told_once_what_cannot_be_right() {
    let mut jobs = started_by_hand("train --steps 0", &torchs(3, port(), "run")).into_iter();
    let ended = jobs.next().unwrap().end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.last_line().contains("--steps must be at least 1"), "{}", ended.stderr);
    // whoever starts them sees by any of them that it is the user's mistake
    for other in jobs {
        let ended = other.end(LIMIT);
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(2), ""));
    }
}

#[test]
fn half_an_environment_is_the_users_mistake() {
    let half = ["RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=2000".to_string()];
    let job = started_by_hand("train --steps 5", &half).pop().unwrap();
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.last_line().contains("WORLD_SIZE is not"), "{}", ended.stderr);
    let job = started_by_hand("train --steps 2 --no-detect --json", &half).pop().unwrap();
    assert_eq!(job.end(LONG_LIMIT).json()["workers"], 2, "it starts its own");
}

#[test]
fn what_launch_says_of_this_process_and_what_it_runs() {
    let variables = ["SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_STEP_NODELIST=node[03-04] MASTER_PORT=3000"
        .to_string()];
    let ended = started_by_hand("launch --detect", &variables).pop().unwrap().end(LIMIT);
    let says =
        "srun: rank 2 of 4 members, local rank 1; the launcher is at node03, port 3000 to 3007\n";
    assert_eq!(ended.stdout, says, "{}", ended.stderr);
    let nobody = Job::start("launch --detect").end(LIMIT);
    assert!(nobody.stdout.starts_with("nobody started several processes"), "{}", nobody.stdout);
    let ended = started_by_hand("launch --detect --json", &variables).pop().unwrap().end(LIMIT);
    let ports: Vec<u16> = (3000..3008).collect();
    let says = serde_json::json!({
        "by": "srun", "launched_as": "rank 2", "members": 4, "local_rank": 1, "host": "node03", "ports": ports,
    });
    assert_eq!(ended.json(), says);
    let nobody = Job::start("launch --detect --json").end(LIMIT).json();
    assert_eq!((&nobody["by"], &nobody["members"]), (&serde_json::Value::Null, &0.into()));

    let run = Job::start("launch --hosts localhost,127.0.0.1 train --steps 5 --json");
    let ended = run.end(LONG_LIMIT);
    assert_eq!(ended.json()["weights_sha256"], plain_digest());
    let unknown = Job::start("launch --hosts localhost models").end(LIMIT);
    assert_eq!(unknown.status.code(), Some(2), "it has no hosts: {}", unknown.stderr);
}
