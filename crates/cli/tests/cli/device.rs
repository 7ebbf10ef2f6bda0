//! Workers on a GPU. There is none here: a driver for tests stands in its place, which each process loads as it would load the
//! real one, maps memory for others as that does, and runs the kernels' own source compiled for the processor.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;
use tensorwire_testkit::long;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

use crate::hosts::{IN_PLACE, Rsh};
use crate::support::{Ended, Job, send};

pub(crate) const LIMIT: Duration = Duration::from_secs(240);
/// What learns soon: the kernels are slow here.
pub(crate) const MODEL: &str = "--model cifar --data synthetic:16,8x8x1";
/// A job that is over soon.
pub(crate) const SMALL: &str = "--model cifar --data synthetic:16,8x8x1 --batch 4 --steps 3";
/// One of a weight of 16 MiB, which is split, and crosses in pieces.
const LARGE: &str = "--model mlp --data synthetic:16,8x8x1 --batch 4 --steps 3";

/// The driver, and the kernels that it runs.
pub(crate) struct Driver {
    pub(crate) library: PathBuf,
    pub(crate) kernels: PathBuf,
}

/// None where this machine cannot build kernels, and says so.
pub(crate) fn driver() -> Option<Driver> {
    let library = tensorwire_fakecuda::library().expect("cargo builds it for these tests");
    match cuda_shim() {
        Ok(kernels) => Some(Driver { library, kernels }),
        Err(reason) => {
            skip(Some("TENSORWIRE_LAUNCHERS"), &reason);
            None
        }
    }
}

impl Driver {
    /// Starts `tensorwire train` on it, where what is in `faults` goes wrong.
    pub(crate) fn start(&self, arguments: &str, faults: &[(&str, &str)]) -> Job {
        self.start_on("cuda", arguments, faults)
    }

    pub(crate) fn start_on(&self, device: &str, arguments: &str, faults: &[(&str, &str)]) -> Job {
        let mut command = self.command(device, arguments);
        command.envs(faults.iter().copied());
        Job::start_command(command)
    }

    /// `tensorwire train` on it.
    pub(crate) fn command(&self, device: &str, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(["train", "--device", device, "--cuda-driver"]).arg(&self.library);
        if !arguments.contains("--cuda-libs") {
            // whatever this machine has
            command.args(["--cuda-libs", "none"]);
        }
        command.args(arguments.split_whitespace());
        command.env("FAKE_CUDA_KERNELS", &self.kernels);
        command
    }

    /// Starts a job of so many members that would go on for long, and comes back when some steps of it were made.
    pub(crate) fn start_stepping(
        &self,
        arguments: &str,
        faults: &[(&str, &str)],
        members: usize,
    ) -> Stepping {
        let folder = tempfile::tempdir().unwrap();
        let steps = folder.path().join("steps.jsonl");
        let job = format!("{arguments} --steps 100000 --deadline 5 --metrics {}", steps.display());
        let mut job = self.start(&job, faults);
        let members = job.members(members);
        await_steps(&steps, SOME);
        Stepping { job, members, _folder: folder }
    }

    pub(crate) fn train(&self, arguments: &str, faults: &[(&str, &str)]) -> Value {
        self.start(&format!("--json {arguments}"), faults).end(LIMIT).json()
    }
}

/// A job that makes steps.
pub(crate) struct Stepping {
    pub(crate) job: Job,
    pub(crate) members: Vec<Pid>,
    _folder: TempDir,
}

impl Stepping {
    /// Sends a member a signal; returns how the job ended.
    pub(crate) fn end_by(self, member: usize, signal: Signal) -> Ended {
        send(self.members[member], signal);
        self.job.end(Duration::from_secs(60))
    }
}

/// From the second step on all are told as they go on.
const SOME: usize = 4;

/// Until so many steps are in a job's file.
pub(crate) fn await_steps(file: &Path, count: usize) {
    let begun = Instant::now();
    let steps = || std::fs::read_to_string(file).map_or(0, |text| text.matches("\"loss\"").count());
    while steps() < count && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn number(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key} in {result}"))
}

pub(crate) fn hash(result: &Value) -> String {
    result["weights_sha256"].as_str().expect("weights were hashed").to_owned()
}

/// How a device is told a step where nothing of it is the host's.
const WHOLE: &str = "whole steps, as graphs";

/// Parameters of the small job, in bytes.
pub(crate) const WEIGHTS: u64 = 278_666 * 4;

/// Samples and labels that two workers are fed in a step.
const BATCHES: u64 = 2 * 4 * (8 * 8 + 1) * 4;

#[test]
fn the_same_bits_by_every_way_to_cross() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SMALL}"), &[]);
    assert!(alone["kernels"].as_str().unwrap().starts_with("cuda: GPU 0"), "{alone}");
    // the second step is told as a graph, and so are later batches of the evaluation
    assert!(number(&alone, "graphs_launched") > 0, "{alone}");
    assert_eq!(alone["device_steps"], WHOLE, "{alone}");
    // the second step's batches and the third's come while the step before computes, unless they are made too late: 8·8
    // numbers and a label of each of 8 samples
    let ahead = number(&alone, "bytes_copied_ahead");
    assert!([0, 1, 2].contains(&(ahead / BATCHES)) && ahead.is_multiple_of(BATCHES), "{alone}");
    let same = |way: &str| {
        let result = driver.train(&format!("{way} {SMALL}"), &[]);
        assert_eq!(hash(&result), hash(&alone), "{way}");
        result
    };
    // an evaluation feeds the inputs that the next step is fed ahead
    same("--strategy local --val-every 1");
    // from memory to memory: not a byte goes by the host but what is fed, shown or evaluated
    for way in ["", "--exchange write", "--servers 1 --split-above 0"] {
        let result = same(&format!("--strategy ps {way}"));
        assert_eq!(result["device_steps"], WHOLE, "{way}: {result}");
        assert_eq!(number(&result, "bytes_copied"), 0, "{way}");
        let of_alone = number(&alone, "bytes_copied_to_host");
        assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{way}: {result}");
    }
    // by way of the host: gradients there, weights back
    for way in ["--strategy ps --transport tcp", "--strategy dist-sgd --transport tcp"] {
        let result = same(way);
        assert!(result["device_steps"].as_str().unwrap().contains("between two looks"), "{result}");
        assert!(number(&result, "bytes_copied_to_host") >= 2 * 3 * WEIGHTS, "{way}: {result}");
    }
    // messages are made on the host, where both share memory, too
    #[cfg(feature = "baselines")]
    for way in ["grpc-tcp-tuned", "grpc-rdma"] {
        let result = same(&format!("--strategy ps --exchange {way}"));
        assert!(number(&result, "bytes_copied_to_host") >= 2 * 3 * WEIGHTS, "{way}: {result}");
    }
    // what a group reduces stays there, too: in each step all but one give a gradient, and all but one get a mean, staged once
    let staged = same("--strategy allreduce --transport tcp");
    same("--strategy allreduce --transport tcp --exchange write");
    for way in ["", "--exchange write"] {
        let result = same(&format!("--strategy allreduce {way}"));
        let [found, staged] =
            [&result, &staged].map(|result| number(result, "bytes_copied_to_host"));
        assert_eq!(found + 2 * 3 * WEIGHTS, staged, "{way}");
    }
    // a worker's own rows are joined with those that come: all in its device's memory, or those that come in the host's
    for way in ["", "--exchange write", "--transport tcp", "--exchange copy"] {
        same(&format!("--strategy ps --colocate --split-above 1KiB {way}"));
    }
    assert_ne!(hash(&alone), hash(&on_processor(SMALL)), "sums are added in another order");
}

/// A weight that is reduced by rows, which each writes to the others, and one that crosses in pieces.
#[test]
fn large_weights_have_the_same_bits_by_every_way_to_cross() {
    let Some(driver) = driver() else { return };
    let alone = hash(&driver.train(&format!("--strategy local {LARGE}"), &[]));
    for way in ["ps", "ps --transport tcp", "allreduce", "allreduce --exchange write"] {
        let result = driver.train(&format!("--strategy {way} {LARGE}"), &[]);
        assert_eq!(hash(&result), alone, "{way}");
    }
}

/// A step more is one graph more of each process that has a device, whatever crosses in it.
#[test]
fn a_step_is_one_graph() {
    let Some(driver) = driver() else { return };
    let graphs = |strategy: &str, steps: u32| {
        let job = format!("--strategy {strategy} {MODEL} --batch 1");
        let result = driver.train(&format!("{job} --steps {steps}"), &[]);
        assert_eq!(result["device_steps"], WHOLE, "{result}");
        number(&result, "graphs_launched")
    };
    let all = [
        ("ps --servers 1", 3),
        ("allreduce", 2),
        ("local", 1),
        ("ps --servers 1 --exchange write", 3),
    ];
    for (strategy, processes) in &all[..long::of(1, 4) as usize] {
        assert_eq!(graphs(strategy, 5) - graphs(strategy, 3), 2 * processes, "{strategy}");
    }
}

/// Gradients of embeddings are rows, as many as a batch has words: servers read them in the memory of the workers' devices.
#[test]
fn rows_go_from_device_to_device() {
    let Some(driver) = driver() else { return };
    let rows = "--model seq2seq --data reverse:16 --batch 2 --steps";
    let train =
        |how: &str, faults: &[(&str, &str)]| driver.train(&format!("--strategy {how}"), faults);
    let alone = train(&format!("local {rows} 3"), &[]);
    let of_alone = number(&alone, "bytes_copied_to_host");
    let late = [("FAKE_CUDA_SEED", "4"), ("FAKE_CUDA_FAULTS", "delay=1000,garbage")];
    let mut copied_first = 0;
    for (way, faults) in [("", &[][..]), ("--exchange write", &[]), ("", &late)] {
        let result = train(&format!("ps {way} {rows} 3"), faults);
        assert_eq!(hash(&result), hash(&alone), "{way}");
        assert!(number(&result, "bytes_copied_from_peers") > 0, "{result}");
        // losses, and nothing that crosses
        assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{way}: {result}");
        copied_first = number(&result, "bytes_copied_staging");
    }
    // in the first step, of which it learns where to allocate what is sent
    assert!(copied_first > 0);
    let more = train(&format!("ps {rows} 6"), &[]);
    assert_eq!(number(&more, "bytes_copied_staging"), copied_first);
    // over sockets they go by pinned memory at both ends; what is copied first is the host's
    for faults in [&[][..], &late] {
        let by_pieces = train(&format!("ps --transport tcp {rows} 3"), faults);
        assert_eq!(hash(&by_pieces), hash(&alone));
        let of = |key| number(&by_pieces, key);
        assert_eq!(of("bytes_copied_from_peers"), 0);
        assert!(of("bytes_copied_staging") < copied_first, "{by_pieces}");
        assert!(of("bytes_copied_to_host") > 2 * of_alone, "{by_pieces}");
    }
    let by_host = train(&format!("ps --transport tcp --exchange copy {rows} 3"), &[]);
    assert_eq!(hash(&by_host), hash(&alone));
    // a worker dies while servers read what it announced
    let rows = rows.trim_end_matches(" --steps");
    let job = driver.start_stepping(&format!("--strategy ps {rows}"), &late, 4);
    refused(&job.end_by(0, Signal::KILL), 1, &["worker 0"]);
}

/// Means are made in the order of the workers, whoever makes which, and however they cross.
#[test]
fn groups_of_any_size_have_the_bits_of_one() {
    let Some(driver) = driver() else { return };
    let job = format!("{MODEL} --batch 2 --steps 3 --workers 4");
    let alone = hash(&driver.train(&format!("--strategy local {job}"), &[]));
    let late = [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];
    for (way, faults) in [
        ("", &[][..]),
        ("--exchange write", &[]),
        ("", &late),
        // by the host's memory, and not reduced there
        ("--transport tcp", &late),
    ] {
        let result = driver.train(&format!("--strategy allreduce {job} {way}"), faults);
        assert_eq!(hash(&result), alone, "{way} {faults:?}");
    }
    // what crosses as bf16 is added up in f32, there and here, and rounded once
    let narrow = |way: &str| {
        let job = format!("--strategy allreduce {SMALL} --wire bf16 {way}");
        hash(&driver.train(&job, &[]))
    };
    let expected = narrow("--transport tcp");
    for way in ["", "--exchange write"] {
        assert_eq!(narrow(way), expected, "{way}");
    }
}

/// Weights of each group's own, which a centre in a store draws together: the gradients of a group stay on its devices.
#[test]
fn groups_reduce_on_their_devices_and_meet_at_a_centre() {
    let Some(driver) = driver() else { return };
    let job =
        format!("--strategy mpi-esgd --workers 4 --clients 2 --servers 1 --interval 2 {SMALL}");
    let device = driver.train(&job, &[]);
    let processor = Job::start(&format!("train --json {job}")).end(LIMIT).json();
    let [found, expected] =
        [&device, &processor].map(|result| result["final_loss"].as_f64().unwrap());
    // groups come to the centre in any order
    assert!((found - expected).abs() < 0.2 * expected, "{found} and {expected}");
    // a gradient and a mean of each group go by the host's memory where that is all that is shared, and so does what is averaged:
    // in the first step and the third, from each master
    let staged = driver.train(&format!("{job} --transport tcp"), &[]);
    let [found, staged] = [&device, &staged].map(|result| number(result, "bytes_copied_to_host"));
    assert_eq!(found + (2 * 2 * 3 + 2 * 2) * WEIGHTS, staged);
}

#[test]
fn what_groups_reduce_on_devices_is_shown_as_what_crosses() {
    let Some(driver) = driver() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(["graph", "--full", "--device", "cuda", "--cuda-driver"]).arg(&driver.library);
    command.args(["--strategy", "allreduce", "--data", "synthetic:16", "--batch", "4"]);
    let shown = command.output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    for said in ["a training step: ", "by reference", "replica1/mean/", "0 B from them"] {
        assert!(text.contains(said), "'{said}' is not in {text}");
    }
    assert!(!text.contains("all-reduced"), "{text}");
}

#[test]
fn what_groups_before_a_store_give_each_other_is_shown_beside_the_store() {
    let Some(driver) = driver() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(["graph", "--full", "--device", "cuda", "--cuda-driver"]).arg(&driver.library);
    command.args(["--strategy", "mpi-sgd", "--workers", "4", "--clients", "2", "--servers", "1"]);
    command.args(["--data", "synthetic:16", "--batch", "4"]);
    let shown = command.output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // the store's table, the edges', and their sum
    for said in ["pushed and pulled", "read at", "go from GPU to GPU"] {
        assert!(text.contains(said), "'{said}' is not in {text}");
    }
}

#[test]
fn how_tensors_leave_a_device_is_said_once_and_why() {
    let Some(driver) = driver() else { return };
    let said = "tensors of GPUs go by way of pinned host memory: memory of a GPU is reached by RDMA NICs alone";
    for strategy in ["ps", "allreduce", "mpi-sgd --clients 1"] {
        let job = format!("--strategy {strategy} --transport tcp {SMALL}");
        let ended = driver.start(&job, &[]).end(LIMIT);
        assert_eq!(ended.stderr.matches(said).count(), 1, "{strategy}: {}", ended.stderr);
    }
}

/// Two hosts, of whose processes each second is on the other, and which share memory: what one of a tensor's readers maps is staged
/// for those of the other host alone.
#[test]
fn what_auto_finds_between_hosts_takes_tensors_from_device_to_device() {
    let Some(driver) = driver() else { return };
    let rsh = Rsh::new(IN_PLACE);
    let between = |job: &str| {
        let mut command = driver.command("cuda", &format!("--json {job}"));
        command.args(rsh.options());
        // no machine has such a NIC
        command.args(["--nic", "nonesuch"]);
        let ended = Job::start_command(command).end(LIMIT);
        for said in
            ["go by way of pinned host memory: ", "GPUs of one host map each other's memory"]
        {
            assert!(ended.stderr.contains(said), "{job}: {}", ended.stderr);
        }
        let result = ended.json();
        assert_eq!(result["transport"], "tcp", "{job}");
        result
    };
    for (strategy, workers) in [
        ("ps --servers 2", 2),
        ("ps --servers 2 --exchange write", 2),
        ("allreduce", 4),
        ("allreduce --exchange write", 4),
        ("mpi-sgd --clients 1 --servers 2", 4),
    ] {
        let job = format!("{SMALL} --workers {workers}");
        let alone = driver.train(&format!("--strategy local {job}"), &[]);
        let job = format!("--strategy {strategy} {job}");
        let (both, far) = (between(&job), driver.train(&format!("{job} --transport tcp"), &[]));
        assert_eq!(hash(&both), hash(&alone), "{job}");
        assert_eq!(hash(&far), hash(&alone), "{job}");
        // of each gradient, or mean, one that is staged elsewhere is on the host of its reader
        let [staged, all] = [&both, &far].map(|result| number(result, "bytes_copied_to_host"));
        let saved = all - staged;
        assert!((3 * WEIGHTS..4 * WEIGHTS).contains(&saved), "{job}: {staged} of {all}");
        let written = number(&both, "bytes_copied_to_peers");
        assert_eq!(written > 3 * WEIGHTS, strategy.contains("write"), "{job}: {written}");
    }
    // rows, which a server reads in the memory of one worker, and the other's come in pieces
    let rows = "--model seq2seq --data reverse:16 --batch 2 --steps 3";
    let alone = driver.train(&format!("--strategy local {rows}"), &[]);
    let both = between(&format!("--strategy ps --servers 2 {rows}"));
    assert_eq!(hash(&both), hash(&alone));
    assert!(number(&both, "bytes_copied_from_peers") > 0, "{both}");
}

/// The launcher asks the GPUs of its own host before it plans; those of another are asked there.
#[test]
fn gpus_of_another_host_that_are_apart_are_named_with_what_mends_it() {
    let Some(driver) = driver() else { return };
    let apart = "export FAKE_CUDA_FAULTS=nopeer FAKE_CUDA_DEVICES=2; exec sh -c \"$2\"";
    let rsh = Rsh::new(apart);
    let job = format!("--strategy ps --workers 4 --servers 0 {SMALL}");
    let start = |way: &str| {
        let mut command = driver.command("cuda", &format!("{job} {way}"));
        command.args(rsh.options());
        Job::start_command(command).end(LIMIT)
    };
    let ended = start("");
    refused(&ended, 2, &["GPUs of other do not reach", "--transport tcp"]);
    assert!(start("--transport tcp").status.success());
}

fn on_processor(job: &str) -> Value {
    Job::start(&format!("train --json --strategy local {job}")).end(LIMIT).json()
}

#[test]
fn a_device_learns_what_the_processor_learns() {
    let Some(driver) = driver() else { return };
    let (device, processor) =
        (driver.train(&format!("--strategy local {LARGE}"), &[]), on_processor(LARGE));
    for key in ["final_loss", "test_loss"] {
        let [device, processor] = [&device, &processor].map(|result| result[key].as_f64().unwrap());
        assert!((device - processor).abs() < 1e-4 * processor, "{key}: {device} and {processor}");
    }
}

#[test]
fn streams_that_are_late_change_no_bit() {
    let Some(driver) = driver() else { return };
    let job = format!("--strategy ps {SMALL}");
    let expected = hash(&driver.train(&job, &[]));
    // batches that come ahead of many steps, late against what computes
    let alone = format!("--strategy local --workers 1 {MODEL} --batch 2 --steps 8");
    let of_alone = driver.train(&alone, &[]);
    let ahead = number(&of_alone, "bytes_copied_ahead");
    assert!(ahead > 0, "not one of seven batches was made while a step computed: {of_alone}");
    for (seed, ways) in [("1", &["", "--transport tcp"][..]), ("2", &["--exchange write"])] {
        let faults = [("FAKE_CUDA_SEED", seed), ("FAKE_CUDA_FAULTS", "delay=3000,garbage")];
        assert_eq!(hash(&driver.train(&alone, &faults)), hash(&of_alone), "seed {seed}");
        for way in ways {
            let found = hash(&driver.train(&format!("{job} {way}"), &faults));
            assert_eq!(found, expected, "seed {seed} {way}");
        }
    }
}

#[test]
fn a_checkpoint_of_a_device_goes_on_to_the_same_bits() {
    let Some(driver) = driver() else { return };
    let learn = format!("{MODEL} --batch 4 --optimizer adamw --lr 1e-3");
    for strategy in ["local", "ps", "allreduce"] {
        let whole = driver.train(&format!("--strategy {strategy} {learn} --steps 2"), &[]);
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let run = run.display();
        let first = format!(
            "--strategy {strategy} {learn} --steps 1 --checkpoint {run} --checkpoint-every 1"
        );
        driver.train(&first, &[]);
        let second = format!("--strategy {strategy} {learn} --steps 2 --resume {run}");
        assert_eq!(hash(&driver.train(&second, &[])), hash(&whole), "{strategy}");
        if strategy == "ps" {
            // and the processor takes it, too
            let there = Job::start(&format!("train --json {second}")).end(LIMIT).json();
            assert!(there["final_loss"].is_number(), "{there}");
        }
    }
}

/// How a job ended that could not train.
pub(crate) fn refused(ended: &Ended, status: i32, said: &[&str]) {
    assert_eq!(ended.status.code(), Some(status), "{}", ended.stderr);
    for word in said {
        assert!(ended.stderr.contains(word), "'{word}' is not in {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn what_is_not_there_is_said_before_anything_starts() {
    let Some(driver) = driver() else { return };
    let nothing = Path::new("/nonexistent/libcuda.so.1");
    let missing = Driver { library: nothing.to_owned(), kernels: driver.kernels.clone() };
    let ended = missing.start(SMALL, &[]).end(LIMIT);
    refused(&ended, 2, &["--device", "/nonexistent/libcuda.so.1", "--device cpu"]);
    let ended = driver.start_on("cuda:3", SMALL, &[]).end(LIMIT);
    refused(&ended, 2, &["no GPU 3", "nvidia-smi"]);
    let ended = driver.start(SMALL, &[("FAKE_CUDA_DEVICES", "0")]).end(LIMIT);
    refused(&ended, 2, &["GPU", "--device cpu"]);
    let ended = driver.start(SMALL, &[("FAKE_CUDA_VERSION", "11040")]).end(LIMIT);
    refused(&ended, 2, &["11.4", "newer driver"]);
    let ended = driver.start_on("tpu", SMALL, &[]).end(LIMIT);
    refused(&ended, 2, &["no device 'tpu'"]);
    // one for which there are no kernels
    let old = [("FAKE_CUDA_COMPUTE", "75")];
    let ended = driver.start(SMALL, &old).end(LIMIT);
    refused(&ended, 2, &["GPU 0 (Fake GPU)", "capability 7.5", "8.0 and newer", "--device cpu"]);
    // whoever leaves it open gets the processor
    for none in [[("FAKE_CUDA_DEVICES", "0")], old] {
        let job = driver.start_on("auto", &format!("--json --strategy local {SMALL}"), &none);
        let result = job.end(LIMIT).json();
        assert!(!result["kernels"].as_str().unwrap().contains("GPU"), "{none:?}: {result}");
    }
    // the oldest driver that is taken loads all kernels
    let job = format!("--strategy local {SMALL}");
    driver.train(&job, &[("FAKE_CUDA_VERSION", "12000")]);
}

/// What a driver holds a thread for: more launches than a stream takes, and what is used for the first time, behind streams that
/// wait for that thread.
#[test]
fn nothing_is_told_behind_a_shut_gate() {
    let Some(driver) = driver() else { return };
    let alone = hash(&driver.train(&format!("--strategy local {SMALL}"), &[]));
    let holds = [("FAKE_CUDA_FAULTS", "queue=16,lazy,garbage")];
    for strategy in ["ps", "allreduce"] {
        let job = format!("--strategy {strategy} --val-every 1 {SMALL}");
        let result = driver.train(&job, &holds);
        assert_eq!(hash(&result), alone, "{strategy}");
        assert_eq!(result["device_steps"], WHOLE, "{strategy}: {result}");
    }
    // what is no graph is told in parts, with as little behind a gate
    let holds = [("FAKE_CUDA_FAULTS", "queue=16,lazy,nograph")];
    let result = driver.train(&format!("--strategy ps {SMALL}"), &holds);
    assert_eq!((hash(&result), number(&result, "graphs_launched")), (alone, 0));
    let told = result["device_steps"].as_str().unwrap();
    assert!(
        told.starts_with("a list of single launches") && told.ends_with("no graph of it"),
        "{told}"
    );
}

#[test]
fn a_device_that_fails_ends_the_job_and_is_named() {
    let Some(driver) = driver() else { return };
    let faults = |fault: &'static str| [("FAKE_CUDA_FAULTS", fault)];
    let job = |strategy: &str| format!("--strategy {strategy} {SMALL}");
    let little = [("FAKE_CUDA_MEMORY", "2097152")];
    let ended = driver.start(&job("ps"), &little).end(LIMIT);
    refused(&ended, 1, &["GPU 0", "free", "batch"]);
    for strategy in ["local", "ps", "allreduce"] {
        let ended = driver.start(&job(strategy), &faults("launch=20")).end(LIMIT);
        refused(&ended, 1, &["GPU 0 is lost", "checkpoint"]);
    }
    for strategy in ["local", "allreduce"] {
        let ended = driver.start(&job(strategy), &faults("lost=400")).end(LIMIT);
        refused(&ended, 1, &["GPU 0"]);
    }
}

/// What other processes cannot map goes by the host's memory, and changes no bit.
#[test]
fn a_device_that_shows_its_memory_to_nobody_is_used_all_the_same() {
    let Some(driver) = driver() else { return };
    let expected = hash(&driver.train(&format!("--strategy local {SMALL}"), &[]));
    // nor does a store's, as its own tests show
    for strategy in ["ps", "allreduce"] {
        let job = format!("--strategy {strategy} {SMALL}");
        let hidden = driver.train(&job, &[("FAKE_CUDA_FAULTS", "noexport")]);
        assert_eq!(hash(&hidden), expected, "{strategy}");
        assert_eq!(number(&hidden, "bytes_copied_from_peers"), 0, "{strategy}");
    }
}

#[test]
fn who_dies_with_its_device_ends_the_others_in_time() {
    let Some(driver) = driver() else { return };
    for (strategy, processes) in [("ps", 4), ("allreduce", 2)] {
        let job = format!("--strategy {strategy} {MODEL} --batch 4");
        let job = driver.start_stepping(&job, &[], processes);
        refused(&job.end_by(0, Signal::KILL), 1, &["worker 0"]);
    }
}
