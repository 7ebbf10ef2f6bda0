//! Jobs whose processes Slurm starts: a real one of one node, by srun and by the script of `examples/clusters` in a queue. A job
//! whose task is killed, or whose time is over, is queued again and goes on. Skipped where Slurm is not installed, unless
//! TENSORWIRE_LAUNCHERS is set.

use std::time::{Duration, Instant};

use crate::launchers::{
    BINARY, LIMIT, Left, STEPPING, a_killed_process_ends_all, end, is_measured_once, skip_without,
    trains_to_the_same_bits,
};
use crate::support::{Job, await_file, process_with, send};
use rustix::process::Signal;
use tensorwire_testkit::slurm::Slurm;

const SLURM_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clusters/slurm.sh");

/// What trains to its last step is over by then, however busy the machine is. How soon is nothing that is tested here.
const PATIENCE: Duration = Duration::from_secs(300);

/// One Slurm for all its tests, which take turns: a node has few processors.
#[test]
fn srun_trains_to_the_same_bits_and_ends_when_a_process_is_killed() {
    let Some(slurm) = Slurm::start() else {
        skip_without("Slurm (slurm-wlm, munge), or not root");
        return;
    };
    let launch = |arguments: &[&str]| {
        let mut command = slurm.command("srun");
        command.args(["-n", "4", "--overcommit", "--mpi=none", BINARY]).args(arguments);
        command
    };
    trains_to_the_same_bits("srun", launch);
    is_measured_once("srun", launch);
    let job = Job::start_command(launch(&STEPPING));
    let victim = process_with(job.folder(), "train", "SLURM_PROCID=1");
    await_file(&job, "m.jsonl");
    send(victim, Signal::KILL);
    let Left { ended, processes } = end(job, LIMIT);
    assert!(ended.stderr.contains("first to fail: worker 1 (rank 1, "), "{}", ended.stderr);
    assert!(processes.is_empty() && !ended.status.success(), "{processes:?}");

    // what never calls, or is stopped, is ended by srun, if it is told to, as the script tells it
    let killing = |arguments: &[&str]| {
        let mut command = slurm.command(SLURM_SCRIPT);
        command.env("TENSORWIRE", BINARY).args(&arguments[1..]);
        // what srun is told without options
        command.envs([
            ("SLURM_NTASKS", "4"),
            ("SLURM_OVERCOMMIT", "1"),
            ("SLURM_MPI_TYPE", "none"),
        ]);
        command
    };
    a_killed_process_ends_all(LIMIT, |rank| format!("SLURM_PROCID={rank}"), killing);
    let job = Job::start_command(killing(&[&STEPPING[..], &["--deadline", "4"]].concat()));
    let victim = process_with(job.folder(), "train", "SLURM_PROCID=2");
    await_file(&job, "m.jsonl");
    send(victim, Signal::STOP);
    let Left { ended, processes } = end(job, LIMIT);
    assert!(ended.stderr.contains("first to fail: server 0 (rank 2, "), "{}", ended.stderr);
    assert!(ended.stderr.contains("nothing was heard of it"), "{}", ended.stderr);
    assert!(processes.is_empty(), "{processes:?}");

    sbatch_runs_the_script(&slurm);
    a_job_whose_task_is_killed_is_queued_again_and_goes_on(&slurm);
    a_job_that_is_asked_to_end_keeps_its_last_step_and_is_queued_again(&slurm);
}

/// The script that is shipped, in a queue. A node of two processors has room for two tasks.
fn sbatch_runs_the_script(slurm: &Slurm) {
    let mut command = slurm.command("sbatch");
    command.args(["--wait", "--nodes=1", "--cpus-per-task=1", "--output=out", "--error=err"]);
    command.args([SLURM_SCRIPT, "--steps", "5", "--json"]).env("TENSORWIRE", BINARY);
    let Left { ended, processes } = end(Job::start_command(command), PATIENCE);
    assert!(ended.stdout.contains("Submitted batch job"), "{}", ended.stderr);
    let said = |name: &str| String::from_utf8(ended.read(name)).unwrap();
    let (out, err) = (said("out"), said("err"));
    assert!(ended.status.success(), "{err}");
    let json: serde_json::Value = serde_json::from_str(out.trim_end()).unwrap();
    let plain = Job::start("train --workers 1 --servers 1 --steps 5 --json --no-detect");
    assert_eq!(json["weights_sha256"], plain.end(PATIENCE).json()["weights_sha256"]);
    assert!(err.contains("started by srun: 2 processes"), "{err}");
    assert!(processes.is_empty(), "{processes:?}");
}

/// The script that is shipped, with these options, whose output is in `out` and `err`.
fn batch(slurm: &Slurm, options: &str) -> Job {
    let mut command = slurm.command("sbatch");
    command.args(["--nodes=1", "--cpus-per-task=1", "--output=out", "--error=err"]);
    command.args(["--open-mode=append", SLURM_SCRIPT]).env("TENSORWIRE", BINARY);
    command.args(options.split(' '));
    Job::start_command(command)
}

/// The numbers of the jobs in the queue.
fn queue(slurm: &Slurm) -> String {
    let queue = slurm.command("squeue").args(["-h", "-o", "%A"]).output().unwrap();
    String::from_utf8(queue.stdout).unwrap().trim().to_string()
}

fn await_empty(slurm: &Slurm) {
    let deadline = Instant::now() + PATIENCE;
    while !queue(slurm).is_empty() {
        assert!(Instant::now() < deadline, "it is still in the queue");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a file of a job says this.
fn await_words(job: &Job, name: &str, words: &str) {
    let path = job.folder().join(name);
    let deadline = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&path).unwrap_or_default().contains(words) {
        let err = || std::fs::read_to_string(job.folder().join("err"));
        assert!(Instant::now() < deadline, "{name}: no {words}: {:?}", err());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As where a node is lost: the script queues the job again.
fn a_job_whose_task_is_killed_is_queued_again_and_goes_on(slurm: &Slurm) {
    let options = "--json --threads 1 --batch 8 --steps 300";
    let kept = "--checkpoint ck --checkpoint-every 25 --resume auto";
    let job = batch(slurm, &format!("{options} {kept}"));
    await_file(&job, "ck/step-00000025");
    send(process_with(job.folder(), "train", "SLURM_PROCID=1"), Signal::KILL);
    await_empty(slurm);
    let Left { ended, processes } = end(job, PATIENCE);
    let said = |name: &str| String::from_utf8(ended.read(name)).unwrap();
    let (out, err) = (said("out"), said("err"));
    let json: serde_json::Value = serde_json::from_str(out.trim_end()).expect(&err);
    let plain = format!("train --workers 1 --servers 1 --no-detect {options}");
    assert_eq!(json["weights_sha256"], Job::start(&plain).end(PATIENCE).json()["weights_sha256"]);
    assert_eq!(err.matches("started by srun: 2 processes").count(), 2, "{err}");
    assert!(err.contains("goes on from ck/step-"), "{err}");
    assert!(processes.is_empty(), "{processes:?}");
    // what another command line mends is not tried again
    let job = batch(slurm, "--steps 0");
    await_words(&job, "err", "--steps must be at least 1");
    await_empty(slurm);
    let err = String::from_utf8(end(job, PATIENCE).ended.read("err")).unwrap();
    assert_eq!(err.matches("started by srun: 2 processes").count(), 1, "{err}");
}

/// As before the time limit (`--signal`).
fn a_job_that_is_asked_to_end_keeps_its_last_step_and_is_queued_again(slurm: &Slurm) {
    let job = batch(slurm, "--steps 100000 --metrics m.jsonl --checkpoint ck --resume auto");
    await_file(&job, "m.jsonl");
    let told = slurm.command("scancel").args(["--signal=INT", &queue(slurm)]).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    await_words(&job, "err", "goes on from ck/step-");
    let ended = slurm.command("scancel").arg(queue(slurm)).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    await_empty(slurm);
    let Left { ended, processes } = end(job, PATIENCE);
    let err = String::from_utf8(ended.read("err")).unwrap();
    assert_eq!(err.matches("started by srun: 2 processes").count(), 2, "{err}");
    assert!(processes.is_empty(), "{processes:?}");
}
