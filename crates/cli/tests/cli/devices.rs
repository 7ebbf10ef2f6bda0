//! Workers of several GPUs each, on the driver for tests. What a worker's GPUs do together is what as many workers would do,
//! and what crosses between processes is what one GPU's worker sends.

use rustix::process::Signal;
use serde_json::Value;
use tensorwire_testkit::long;

use crate::device::{Driver, LIMIT, MODEL, SMALL, WEIGHTS, driver, hash, number, refused};
use crate::support::Job;

/// First values that are written though the processes share memory: 5·5·64 weights and 64 biases of the first layer, in bytes, which
/// are what is left for a last round, too small for its receiver to fetch.
const FEW: u64 = (5 * 5 * 64 + 64) * 4;

/// So many GPUs.
fn gpus(count: &'static str) -> [(&'static str, &'static str); 1] {
    [("FAKE_CUDA_DEVICES", count)]
}

fn loss(result: &Value) -> f64 {
    result["final_loss"].as_f64().unwrap_or_else(|| panic!("final_loss in {result}"))
}

/// Two workers of two GPUs by this strategy.
fn two_of_two(driver: &Driver, way: &str) -> Value {
    driver.train(&format!("{way} --devices-per-worker 2 {SMALL}"), &gpus("4"))
}

#[test]
fn a_worker_of_two_gpus_learns_what_two_workers_learn() {
    let Some(driver) = driver() else { return };
    // a mean of two is the same bits wherever it is made; what is dropped is what two workers drop
    let sequences = "--model gpt-mini --data synthetic:4 --sequence 16";
    for model in [&format!("{MODEL} --batch 4"), &format!("{sequences} --batch 1")] {
        let job = format!("--strategy ps --steps 2 {model}");
        let two = driver.train(&format!("{job} --workers 2"), &gpus("2"));
        for strategy in ["local", "ps"] {
            let job = format!("--strategy {strategy} --steps 2 {model} --workers 1");
            let one = driver.train(&format!("{job} --devices-per-worker 2"), &gpus("2"));
            assert_eq!(hash(&one), hash(&two), "{strategy}, {model}");
            // a worker says the mean of its losses as f32, and a job that of its workers as f64
            assert_eq!(loss(&one) as f32, loss(&two) as f32, "{strategy}, {model}");
            assert!(number(&one, "bytes_copied_between_devices") > 0, "{one}");
        }
    }
}

#[test]
fn gpus_of_two_workers_learn_the_same_by_every_way_to_cross() {
    let Some(driver) = driver() else { return };
    let alone = two_of_two(&driver, "--strategy local");
    let kernels = alone["kernels"].as_str().unwrap();
    assert!(kernels.contains("cuda: GPU 0") && kernels.contains("cuda: GPU 1"), "{kernels}");
    // two replicas of one process, and as many copies of the variables: each GPU but the first copies them, and gives gradients
    assert_eq!(number(&alone, "bytes_copied_between_devices"), 3 * 3 * WEIGHTS);
    for (way, is_written) in [
        ("--strategy ps", false),
        ("--strategy ps --exchange write", true),
        ("--strategy ps --transport tcp", true),
        ("--strategy ps --colocate --split-above 1KiB", false),
        ("--strategy allreduce", true),
        ("--strategy dist-sgd", false),
        ("--strategy mpi-sgd --clients 1", false),
        ("--strategy mpi-sgd --clients 1 --transport tcp", true),
        ("--strategy mpi-sgd --clients 1 --servers 0", false),
    ] {
        let result = two_of_two(&driver, way);
        assert_eq!(hash(&result), hash(&alone), "{way}");
        if is_written {
            // what crosses is what crosses of one GPU a worker
            let of_one = driver.train(&format!("{way} {SMALL}"), &gpus("4"));
            assert_eq!(number(&result, "bytes_written"), number(&of_one, "bytes_written"), "{way}");
        }
        let between = number(&result, "bytes_copied_between_devices");
        assert!(between >= 2 * 3 * WEIGHTS, "{way}: {between}");
    }
    // four workers add in another order
    let four = driver.train(&format!("--strategy ps --workers 4 {SMALL}"), &gpus("4"));
    let (four, two) = (loss(&four), loss(&alone));
    assert!((four - two).abs() < 1e-5 * four, "{four} and {two}");
}

#[test]
fn each_design_gives_the_same_bits_and_moves_what_its_formula_says() {
    let Some(driver) = driver() else { return };
    let expected = hash(&two_of_two(&driver, "--strategy local"));
    for way in ["allreduce", "allreduce --transport tcp"] {
        let of = |design| two_of_two(&driver, &format!("--strategy {way} --design {design}"));
        let (ring, reg) = (of("multi-ring"), of("reg"));
        for result in [&ring, &reg] {
            assert_eq!(hash(result), expected, "{way}");
        }
        // in each of three steps each of two workers: a gradient goes to the other GPU or a share of both, and weights back
        let copied = 3 * 2 * 2 * WEIGHTS;
        assert_eq!(number(&reg, "bytes_copied_between_devices"), copied, "{way}");
        // the first worker's first GPU evaluates, and takes the share of the other once more, which is of whole vectors
        let fetched = number(&ring, "bytes_copied_between_devices") - copied;
        assert!(fetched.abs_diff(WEIGHTS / 2) <= WEIGHTS / 8, "{way}: {fetched}");
        for written in [&ring, &reg].map(|result| number(result, "bytes_written")) {
            // from GPU to GPU nothing is written by the host but few of the first values; else all of them, and then of each vector
            // a half is given, and the mean of a half
            let expected = if way.contains("tcp") { WEIGHTS + 3 * 2 * WEIGHTS } else { FEW };
            assert_eq!(written, expected, "{way}");
        }
    }
}

#[test]
fn strategies_that_are_out_of_step_run_on_several_gpus() {
    let Some(driver) = driver() else { return };
    for way in
        ["ps --async", "dist-asgd", "dist-esgd", "mpi-asgd --clients 2", "mpi-esgd --clients 1"]
    {
        let result = two_of_two(&driver, &format!("--strategy {way}"));
        assert!(loss(&result).is_finite(), "{way}: {result}");
        assert!(number(&result, "bytes_copied_between_devices") > 0, "{way}: {result}");
    }
}

#[test]
fn gpus_that_are_late_or_out_of_reach_change_no_bit() {
    let Some(driver) = driver() else { return };
    let expected = hash(&two_of_two(&driver, "--strategy local"));
    for seed in &["1", "2"][..long::of(1, 2)] {
        for way in [
            "ps",
            "ps --exchange write",
            "ps --transport tcp",
            "allreduce",
            "allreduce --exchange write",
            "allreduce --design reg",
        ] {
            let faults = [
                ("FAKE_CUDA_DEVICES", "4"),
                ("FAKE_CUDA_SEED", seed),
                ("FAKE_CUDA_FAULTS", "delay=3000,garbage"),
            ];
            let job = format!("--strategy {way} --devices-per-worker 2 {SMALL}");
            assert_eq!(hash(&driver.train(&job, &faults)), expected, "seed {seed}, {way}");
        }
    }
    let apart = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAULTS", "nopeer,delay=1000")];
    let job = format!("--strategy local --devices-per-worker 2 {SMALL}");
    let result = driver.train(&job, &apart);
    assert_eq!(hash(&result), expected);
    assert!(result["kernels"].as_str().unwrap().contains("by way of the host"), "{result}");
    // nor do those of different processes: their tensors go by pinned memory, written once each
    let apart = [("FAKE_CUDA_DEVICES", "4"), ("FAKE_CUDA_FAULTS", "nopeer,delay=1000")];
    for way in ["ps", "allreduce", "allreduce --design reg"] {
        let job = format!("--strategy {way} --devices-per-worker 2 {SMALL}");
        let ended = driver.start(&format!("--json {job}"), &apart).end(LIMIT);
        let said = ended.stderr.contains("by way of pinned host memory: not all GPUs");
        assert!(said, "{way}: {}", ended.stderr);
        let result = ended.json();
        assert_eq!(hash(&result), expected, "{way}");
        if way.starts_with("allreduce") {
            // in each step a half of each vector, and the mean of a half, by each of two workers
            assert_eq!(number(&result, "bytes_written"), FEW + 3 * 2 * WEIGHTS, "{way}");
        }
    }
}

#[test]
fn a_checkpoint_of_several_gpus_goes_on_to_the_same_bits() {
    let Some(driver) = driver() else { return };
    for strategy in ["ps", "allreduce"] {
        let learn = format!(
            "--strategy {strategy} --devices-per-worker 2 {MODEL} --batch 4 --optimizer adamw --lr 1e-3"
        );
        checkpointed(&driver, &learn);
    }
}

fn checkpointed(driver: &Driver, learn: &str) {
    let whole = driver.train(&format!("{learn} --steps 4"), &gpus("4"));
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.display();
    let first = format!("{learn} --steps 2 --checkpoint {run} --checkpoint-every 2");
    driver.train(&first, &gpus("4"));
    let second = driver.train(&format!("{learn} --steps 4 --resume {run}"), &gpus("4"));
    assert_eq!(hash(&second), hash(&whole));
}

#[test]
fn gpus_that_are_not_there_are_counted_before_anything_starts() {
    let Some(driver) = driver() else { return };
    let job = format!("--devices-per-worker 2 {SMALL}");
    let ended = driver.start(&job, &gpus("3")).end(LIMIT);
    refused(&ended, 2, &["--devices-per-worker 2 takes 4 GPUs for 2 workers", "has 3"]);
    let ended = Job::start(&format!("train {job}")).end(LIMIT);
    refused(&ended, 2, &["--devices-per-worker 2", "--device cuda"]);
    let ended = driver.start_on("auto", &job, &gpus("0")).end(LIMIT);
    refused(&ended, 2, &["--devices-per-worker 2", "--device auto found none", "doctor"]);
    let ended = driver.start(&format!("--devices-per-worker 0 {SMALL}"), &gpus("2")).end(LIMIT);
    refused(&ended, 2, &["--devices-per-worker must be at least 1"]);
    let one = "--devices-per-worker 2 --strategy local";
    let ended = driver.start_on("cuda:1", &format!("{one} {SMALL}"), &gpus("2")).end(LIMIT);
    refused(&ended, 2, &["takes 3 GPUs for 1 worker", "has 2"]);
    // the workers' GPUs are counted from the one that is named
    let ended = driver.start_on("cuda:1", &job, &gpus("4")).end(LIMIT);
    refused(&ended, 2, &["takes 5 GPUs for 2 workers", "has 4"]);
    let ended = driver.start_on("cuda:1", &job, &gpus("5")).end(LIMIT);
    assert!(ended.stderr.contains("2 GPUs a worker, a batch on each: "), "{}", ended.stderr);
}

#[test]
fn a_gpu_that_fails_beside_others_ends_the_job_and_is_named() {
    let Some(driver) = driver() else { return };
    let job = format!("--strategy local --devices-per-worker 2 {SMALL}");
    for (fault, said) in [("launch=20", "is lost"), ("lost=700", "GPU")] {
        let faults = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAULTS", fault)];
        refused(&driver.start(&job, &faults).end(LIMIT), 1, &[said]);
    }
    let little = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_MEMORY", "2097152")];
    refused(&driver.start(&job, &little).end(LIMIT), 1, &["GPU 0", "free", "batch"]);
}

#[test]
fn who_dies_with_its_gpus_ends_the_others_in_time() {
    let Some(driver) = driver() else { return };
    for strategy in ["ps --servers 1", "allreduce", "allreduce --design reg"] {
        let job = format!("--strategy {strategy} --devices-per-worker 2 {MODEL} --batch 4");
        let members = if strategy.starts_with("allreduce") { 2 } else { 3 };
        let job = driver.start_stepping(&job, &gpus("4"), members);
        refused(&job.end_by(1, Signal::KILL), 1, &["worker 1"]);
    }
}

#[test]
fn a_plan_shows_the_gpus_of_its_workers() {
    let Some(driver) = driver() else { return };
    let shown = |what: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(["graph", "--device", "cuda", "--devices-per-worker", "2", "--cuda-driver"]);
        command.arg(&driver.library).args(what.split_whitespace()).envs(gpus("4"));
        Job::start_command(command).end(LIMIT).stdout
    };
    let full = shown("--full");
    assert!(
        full.contains("devices'") && full.contains("between the devices of the workers"),
        "{full}"
    );
    let drawing = shown("");
    assert!(drawing.contains("2 GPUs") && drawing.contains("a share on each"), "{drawing}");
    let drawing = shown("--design reg");
    assert!(drawing.contains("the first before anything crosses"), "{drawing}");
}
