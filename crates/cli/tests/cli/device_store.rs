//! Stores whose values lie in the memory of their servers' GPUs, on the driver for tests.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::device::{LIMIT, driver, hash, number, refused};
use crate::support::{Job, send};

/// A job that is over soon; in the third step graphs are launched.
const SHORT: &str = "--model mlp --data synthetic:8 --batch 1 --steps 3";

/// Bytes of first values that come in messages, and of what is said: no gradient and no weights of a step.
const LITTLE: u64 = 100 << 10;

const LATE: [(&str, &str); 2] =
    [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];

#[test]
fn a_store_on_gpus_has_the_bits_of_one_process_and_nothing_goes_by_the_host() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SHORT}"), &[]);
    let apart = [("FAKE_CUDA_DEVICES", "4")];
    // read where servers have them; or copied, the largest from both servers
    for (way, faults) in [("", &apart[..]), ("", &LATE), ("--elastic", &LATE)] {
        let job = format!("--json --strategy dist-sgd {way} {SHORT}");
        let ended = driver.start(&job, faults).end(LIMIT);
        let said = "the store's values lie in the memory of its servers' GPUs, which update them";
        assert_eq!(ended.stderr.matches(said).count(), 1, "{way}: {}", ended.stderr);
        let result = ended.json();
        assert_eq!(hash(&result), hash(&alone), "{way} {faults:?}");
        assert!(number(&result, "bytes_copied") < LITTLE, "{way}: {result}");
        // what is shown and evaluated: as in one process, at each of two workers
        let of_alone = number(&alone, "bytes_copied_to_host");
        assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{way}: {result}");
    }
    // where gradients are clipped, servers make their means alone
    let clipped = format!("--clip-norm 1 {SHORT}");
    let alone = driver.train(&format!("--strategy local {clipped}"), &[]);
    let found = driver.train(&format!("--strategy dist-sgd {clipped}"), &LATE);
    assert_eq!(hash(&found), hash(&alone));
    assert!(number(&found, "bytes_copied") < LITTLE, "{found}");
    // one worker that is out of step with nobody, at a rate that changes
    let one = format!("--workers 1 --optimizer adamw --lr 1e-3 --schedule cosine {SHORT}");
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
    let learn =
        "--strategy dist-sgd --model mlp --data synthetic:8 --batch 1 --optimizer adamw --lr 1e-3";
    let whole = driver.train(&format!("{learn} --steps 2"), &[]);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.display();
    driver.train(&format!("{learn} --steps 1 --checkpoint {run} --checkpoint-every 1"), &[]);
    // a store on the host takes it, too
    for way in ["", "--transport tcp"] {
        let second = driver.train(&format!("{learn} --steps 2 --resume {run} {way}"), &[]);
        assert_eq!(hash(&second), hash(&whole), "{way}");
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
    let long =
        "--strategy dist-sgd --model mlp --data synthetic:8 --batch 1 --steps 100000 --deadline 5";
    let mut job = driver.start(long, &[]);
    let members = job.members(4);
    std::thread::sleep(Duration::from_secs(1));
    send(members[2], Signal::KILL);
    refused(&job.end(Duration::from_secs(60)), 1, &["server 0"]);
}

#[test]
fn an_elastic_job_on_gpus_goes_on_without_a_worker() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let steps = folder.path().join("steps.jsonl");
    let small = "--model mlp --data synthetic:8 --batch 1 --steps 8";
    let job = format!("--strategy dist-sgd --elastic {small} --metrics {}", steps.display());
    let mut job = driver.start(&format!("--json {job}"), &[]);
    let members = job.members(4);
    let begun = Instant::now();
    while std::fs::read(&steps).map_or(0, |lines| lines.len()) == 0 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    send(members[1], Signal::KILL);
    let ended = job.end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("worker 1 was lost: "), "{}", ended.stderr);
    let result = ended.json();
    assert_eq!(number(&result, "workers_finished"), 1, "{result}");
    assert!(result["final_loss"].as_f64().is_some_and(f64::is_finite), "{result}");
}
