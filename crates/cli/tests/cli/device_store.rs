//! Stores whose values lie in the memory of their servers' GPUs, on the driver for tests.

use std::time::Duration;

use rustix::process::Signal;

use crate::device::{LIMIT, SMALL, driver, hash, number, refused};
use crate::support::{Job, send};

/// Bytes of first values that come in messages, and of what is said: no gradient and no weights of a step.
const LITTLE: u64 = 100 << 10;

const ON_DEVICES: &str =
    "the store's values lie in the memory of its servers' GPUs, which update them";

#[test]
fn a_store_on_gpus_has_the_bits_of_one_process_and_nothing_goes_by_the_host() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SMALL}"), &[]);
    let late = [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=3000,garbage")];
    let gpus = [("FAKE_CUDA_DEVICES", "4")];
    // read where servers have them; or copied, the largest from both servers
    for (way, faults) in [("", &[][..]), ("", &late), ("--elastic", &gpus), ("--elastic", &late)] {
        let result = driver.train(&format!("--strategy dist-sgd {way} {SMALL}"), faults);
        assert_eq!(hash(&result), hash(&alone), "{way} {faults:?}");
        assert!(number(&result, "bytes_copied") < LITTLE, "{way}: {result}");
        // what is shown and evaluated: as in one process, at each of two workers
        let of_alone = number(&alone, "bytes_copied_to_host");
        assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{way}: {result}");
    }
    // one worker that is out of step with nobody, at a rate that changes
    let one = format!("--workers 1 --optimizer adamw --lr 1e-3 --schedule cosine {SMALL}");
    let alone = driver.train(&format!("--strategy local {one}"), &[]);
    let found = driver.train(&format!("--strategy dist-asgd {one}"), &late);
    assert_eq!(hash(&found), hash(&alone));
}

#[test]
fn where_the_values_of_a_store_lie_is_said_once_and_why() {
    let Some(driver) = driver() else { return };
    let job = "--strategy dist-sgd --model mlp --data synthetic:16 --batch 4 --steps 1";
    for (way, said) in [
        ("", ON_DEVICES),
        ("--transport tcp", "lie in the host's memory: workers and servers share no memory"),
        ("--clip-norm 1", "lie in the host's memory: means of gradients that are clipped"),
        ("--wire bf16", "lie in the host's memory: values travel rounded"),
    ] {
        let ended = driver.start(&format!("{job} {way}"), &[]).end(LIMIT);
        assert!(ended.status.success(), "{way}: {}", ended.stderr);
        assert_eq!(ended.stderr.matches(said).count(), 1, "{way}: {}", ended.stderr);
    }
}

/// Each at its own pace: servers update with each gradient that comes, and the weights are read while others push.
#[test]
fn workers_out_of_step_learn_by_a_store_on_gpus() {
    let Some(driver) = driver() else { return };
    let job =
        "--strategy dist-asgd --max-delay 1 --model mlp --data synthetic:16 --batch 4 --steps 6";
    let late = [("FAKE_CUDA_SEED", "5"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];
    let device = driver.train(job, &late);
    let processor = Job::start(&format!("train --json {job}")).end(LIMIT).json();
    let [found, expected] =
        [&device, &processor].map(|result| result["final_loss"].as_f64().unwrap());
    // gradients come in any order
    assert!((found - expected).abs() < 0.2 * expected, "{found} and {expected}");
    assert!(number(&device, "bytes_copied") < LITTLE, "{device}");
}

#[test]
fn a_checkpoint_of_a_store_on_gpus_goes_on_to_the_same_bits() {
    let Some(driver) = driver() else { return };
    let learn = "--strategy dist-sgd --data synthetic:16 --batch 4 --optimizer adamw --lr 1e-3";
    let whole = driver.train(&format!("{learn} --steps 4"), &[]);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.display();
    driver.train(&format!("{learn} --steps 2 --checkpoint {run} --checkpoint-every 2"), &[]);
    let second = format!("{learn} --steps 4 --resume {run}");
    assert_eq!(hash(&driver.train(&second, &[])), hash(&whole));
    // and a store on the host takes it, too
    assert_eq!(hash(&driver.train(&format!("{second} --transport tcp"), &[])), hash(&whole));
}

#[test]
fn a_gpu_that_fails_or_a_member_that_dies_ends_the_job_and_is_named() {
    let Some(driver) = driver() else { return };
    let job = format!("--strategy dist-sgd {SMALL}");
    for (fault, value, said) in [
        ("FAKE_CUDA_MEMORY", "8388608", "free"),
        ("FAKE_CUDA_FAULTS", "launch=20", "is lost"),
        ("FAKE_CUDA_FAULTS", "noexport", "GPU 0"),
    ] {
        refused(&driver.start(&job, &[(fault, value)]).end(LIMIT), 1, &["GPU 0", said]);
    }
    let long = "--strategy dist-sgd --data synthetic:16 --batch 4 --steps 100000 --deadline 5";
    for (rank, role) in [(1, "worker 1"), (2, "server 0")] {
        let mut job = driver.start(long, &[]);
        let members = job.members(4);
        std::thread::sleep(Duration::from_secs(2));
        send(members[rank], Signal::KILL);
        refused(&job.end(Duration::from_secs(60)), 1, &[role]);
    }
}

#[test]
fn an_elastic_job_on_gpus_goes_on_without_a_worker() {
    let Some(driver) = driver() else { return };
    let job = "--strategy dist-sgd --elastic --model mlp --data synthetic:16 --batch 4 --steps 40";
    let mut job = driver.start(&format!("--json {job}"), &[]);
    let members = job.members(4);
    std::thread::sleep(Duration::from_secs(2));
    send(members[1], Signal::KILL);
    let ended = job.end(LIMIT);
    if ended.stderr.contains("before the first step") {
        // it never stood: what does not begin does not go on with less
        return refused(&ended, 1, &["worker 1"]);
    }
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("worker 1 was lost: "), "{}", ended.stderr);
    let result = ended.json();
    assert_eq!(number(&result, "workers_finished"), 1, "{result}");
    assert!(result["final_loss"].as_f64().is_some_and(f64::is_finite), "{result}");
}
