//! Stores whose values lie in the memory of their servers' GPUs, on the driver for tests.

use rustix::process::Signal;

use crate::device::{LIMIT, MODEL, SMALL, WEIGHTS, await_steps, driver, hash, number, refused};
use crate::support::{Job, send};

/// A job that is over soon; in the third step graphs are launched.
const SHORT: &str = "--model mlp --data synthetic:8 --batch 1 --steps 3";

/// Bytes of first values that come in messages, and of what is said: no gradient and no weights of a step.
const LITTLE: u64 = 100 << 10;

const LATE: [(&str, &str); 2] =
    [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];

const THERE: &str = "the store's values lie in the memory of its servers' GPUs, which update them";

/// What is said where gradients and weights go by pinned memory of the host.
fn staged(why: &str) -> String {
    format!("{THERE}; gradients and weights go by pinned memory of the host: {why}")
}

#[test]
fn a_store_on_gpus_that_workers_do_not_reach_has_the_bits_of_one_process() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SMALL}"), &[]);
    let apart = [("FAKE_CUDA_DEVICES", "4")];
    let hidden = [("FAKE_CUDA_FAULTS", "noexport")];
    let (unshared, unreached) = ("workers and servers share no memory", "GPUs do not reach");
    for (way, faults, why) in [
        ("--transport tcp", &apart[..], unshared),
        ("--transport tcp --elastic", &LATE, unshared),
        // what is shown in the host's memory
        ("", &hidden, unreached),
    ] {
        let job = format!("--json --strategy dist-sgd {way} {SMALL}");
        let ended = driver.start(&job, faults).end(LIMIT);
        assert_eq!(ended.stderr.matches(&staged(why)).count(), 1, "{way}: {}", ended.stderr);
        let result = ended.json();
        assert_eq!(hash(&result), hash(&alone), "{way} {faults:?}");
        // each gradient of three steps to its server's GPU, and the weights of each version from there: once for all workers
        let copied = number(&result, "bytes_copied_store_staging");
        assert_eq!(copied, (3 * 2 + 4) * WEIGHTS, "{way}: {result}");
    }
    // a weight that lies on both servers
    let alone = driver.train(&format!("--strategy local {SHORT}"), &[]);
    let found = driver.train(&format!("--strategy dist-sgd --transport tcp {SHORT}"), &LATE);
    assert_eq!(hash(&found), hash(&alone));
    // means alone; and one worker that is out of step with nobody, at a rate that changes
    let one = format!("--workers 1 --optimizer adamw --lr 1e-3 --schedule cosine {SMALL}");
    for (job, strategy) in
        [(format!("--clip-norm 1 {SMALL}"), "dist-sgd"), (one, "dist-asgd --max-delay 1")]
    {
        let alone = driver.train(&format!("--strategy local {job}"), &[]);
        let found = driver.train(&format!("--strategy {strategy} --transport tcp {job}"), &LATE);
        assert_eq!(hash(&found), hash(&alone), "{job}");
        assert!(number(&found, "bytes_copied_store_staging") > 0, "{found}");
    }
}

/// What servers keep in f32 is rounded by their GPUs, as by their hosts, and rows are changed there.
#[test]
fn a_store_on_gpus_takes_rounded_values_and_rows() {
    let Some(driver) = driver() else { return };
    let rounded = format!("--wire bf16 {SMALL}");
    let rows = "--model seq2seq --data reverse:16 --batch 2 --steps 3";
    // a store in the host's memory, where one is built in
    let host = cfg!(feature = "baselines").then(|| format!("dist-sgd --exchange zmq {rounded}"));
    for (job, why, expected) in [
        (rounded.as_str(), "values travel rounded", host),
        (rows, "gradients of embeddings are pushed by rows", Some(format!("local {rows}"))),
    ] {
        let of = |expected| hash(&driver.train(&format!("--strategy {expected}"), &[]));
        let mut expected = expected.map(of);
        for way in ["", "--transport tcp"] {
            let job = format!("--json --strategy dist-sgd {way} {job}");
            let ended = driver.start(&job, &LATE).end(LIMIT);
            assert_eq!(ended.stderr.matches(&staged(why)).count(), 1, "{}", ended.stderr);
            let result = ended.json();
            let found = hash(&result);
            assert_eq!(*expected.get_or_insert(found.clone()), found, "{job}");
            assert!(number(&result, "bytes_copied_store_staging") > 0, "{job}: {result}");
        }
    }
}

/// Workers have kept what they pushed since the last snapshot, which was of memory of a GPU.
#[test]
fn a_server_on_a_gpu_that_dies_is_replaced_and_no_bit_changes() {
    let Some(driver) = driver() else { return };
    let small = format!("{MODEL} --batch 4 --steps 30 --optimizer adamw --lr 1e-3");
    let alone = driver.train(&format!("--strategy local {small}"), &[]);
    for way in ["", "--transport tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let [steps, snapshot] = ["steps.jsonl", "s"].map(|name| folder.path().join(name));
        let job = format!(
            "--json --strategy dist-sgd {way} --snapshot {} --snapshot-every 3 --metrics {} {small}",
            snapshot.display(),
            steps.display()
        );
        let mut job = driver.start(&job, &[]);
        let members = job.members(4);
        await_steps(&steps, 1);
        send(members[2], Signal::KILL);
        let ended = job.end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        let why = staged("workers keep what they push for servers that take over");
        assert!(ended.stderr.contains(&why), "{}", ended.stderr);
        let result = ended.json();
        assert_eq!(number(&result, "servers_replaced"), 1, "{result}");
        assert_eq!(hash(&result), hash(&alone), "{way}");
    }
}

#[test]
fn a_store_on_gpus_has_the_bits_of_one_process_and_nothing_goes_by_the_host() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SHORT}"), &[]);
    let apart = [("FAKE_CUDA_DEVICES", "4")];
    // read where servers have them; or copied, the largest from both servers
    for (way, faults) in [("", &apart[..]), ("", &LATE), ("--elastic", &LATE)] {
        let job = format!("--json --strategy dist-sgd {way} {SHORT}");
        let ended = driver.start(&job, faults).end(LIMIT);
        assert_eq!(ended.stderr.matches(THERE).count(), 1, "{way}: {}", ended.stderr);
        assert!(!ended.stderr.contains("pinned memory of the host"), "{way}: {}", ended.stderr);
        let result = ended.json();
        assert_eq!(hash(&result), hash(&alone), "{way} {faults:?}");
        assert!(number(&result, "bytes_copied") < LITTLE, "{way}: {result}");
        // what is shown and evaluated: as in one process, at each of two workers
        let of_alone = number(&alone, "bytes_copied_to_host");
        assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{way}: {result}");
    }
    // where gradients are clipped, servers make their means alone
    let clipped = format!("--clip-norm 1 {SMALL}");
    let alone = driver.train(&format!("--strategy local {clipped}"), &[]);
    let found = driver.train(&format!("--strategy dist-sgd {clipped}"), &LATE);
    assert_eq!(hash(&found), hash(&alone));
    assert!(number(&found, "bytes_copied") < LITTLE, "{found}");
    // one worker that is out of step with nobody, at a rate that changes
    let one = format!("--workers 1 --optimizer adamw --lr 1e-3 --schedule cosine {SMALL}");
    let alone = driver.train(&format!("--strategy local {one}"), &[]);
    let found = driver.train(&format!("--strategy dist-asgd {one}"), &LATE);
    assert_eq!(hash(&found), hash(&alone));
}

/// Each at its own pace: servers update with each gradient that comes, and weights are read while others push.
#[test]
fn workers_out_of_step_learn_by_a_store_on_gpus() {
    let Some(driver) = driver() else { return };
    // slow enough for gradients to come in any order
    let job = format!("--strategy dist-asgd --max-delay 1 --lr 1e-4 {SHORT}");
    let device = driver.train(&job, &LATE);
    let processor = Job::start(&format!("train --json {job}")).end(LIMIT).json();
    let [found, expected] =
        [&device, &processor].map(|result| result["final_loss"].as_f64().unwrap());
    assert!((found - expected).abs() < 0.05 * expected, "{found} and {expected}");
    assert!(number(&device, "bytes_copied") < LITTLE, "{device}");
}

#[test]
fn a_checkpoint_of_a_store_on_gpus_goes_on_to_the_same_bits() {
    let Some(driver) = driver() else { return };
    let learn = format!("--strategy dist-sgd {MODEL} --batch 4 --optimizer adamw --lr 1e-3");
    let whole = driver.train(&format!("{learn} --steps 2"), &[]);
    let folder = tempfile::tempdir().unwrap();
    // one that workers do not reach takes it, too
    let ways = ["", "--transport tcp"];
    for (by, ways) in [("", &ways[..]), ("--transport tcp", &ways[1..])] {
        let run = folder.path().join(ways.len().to_string());
        let run = run.display();
        let first = format!("{learn} --steps 1 --checkpoint {run} --checkpoint-every 1 {by}");
        driver.train(&first, &[]);
        for way in ways {
            let second = driver.train(&format!("{learn} --steps 2 --resume {run} {way}"), &[]);
            assert_eq!(hash(&second), hash(&whole), "{by} {way}");
        }
    }
}

#[test]
fn a_gpu_that_fails_or_a_server_that_dies_ends_the_job_and_is_named() {
    let Some(driver) = driver() else { return };
    let job = format!("--strategy dist-sgd {SHORT}");
    for (fault, value, said) in
        [("FAKE_CUDA_MEMORY", "8388608", "free"), ("FAKE_CUDA_FAULTS", "launch=20", "is lost")]
    {
        refused(&driver.start(&job, &[(fault, value)]).end(LIMIT), 1, &["GPU 0", said]);
    }
    let long = format!("--strategy dist-sgd {MODEL} --batch 4");
    for (way, member, named) in [
        ("", 2, "server 0"),
        ("--transport tcp", 3, "server 1"),
        ("--transport tcp", 1, "worker 1"),
    ] {
        let job = driver.start_stepping(&format!("{long} {way}"), &[], 4);
        refused(&job.end_by(member, Signal::KILL), 1, &[named]);
    }
}

#[test]
fn an_elastic_job_on_gpus_goes_on_without_a_worker() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let small = "--model mlp --data synthetic:8 --batch 1 --steps 30";
    for way in ["shm", "tcp"] {
        let steps = folder.path().join(way);
        let job = format!("--strategy dist-sgd --elastic --transport {way} {small}");
        let job = format!("--json {job} --metrics {}", steps.display());
        let mut job = driver.start(&job, &[]);
        let members = job.members(4);
        await_steps(&steps, 1);
        send(members[1], Signal::KILL);
        let ended = job.end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.stderr.contains("worker 1 was lost: "), "{}", ended.stderr);
        let result = ended.json();
        assert_eq!(number(&result, "workers_finished"), 1, "{result}");
        assert!(result["final_loss"].as_f64().is_some_and(f64::is_finite), "{result}");
    }
}
