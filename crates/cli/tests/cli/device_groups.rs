//! Groups of workers before a store in the memory of its servers' GPUs, on the driver for tests.

use rustix::process::Signal;
use serde_json::Value;
use tensorwire_testkit::long;

use crate::device::{Driver, LIMIT, MODEL, SMALL, WEIGHTS, driver, hash, number, refused};
use crate::support::Job;

/// Bytes of first values that come in messages, and of what is said: no gradient and no weights of a step.
const LITTLE: u64 = 100 << 10;

const UNSHARED: &str = "workers and servers share no memory";

const LATE: [(&str, &str); 3] = [
    ("FAKE_CUDA_SEED", "3"),
    ("FAKE_CUDA_FAULTS", "delay=2000,garbage"),
    ("FAKE_CUDA_DEVICES", "4"),
];

/// Trains with a store out of reach: only the first of a group takes from it and gives it by the host's memory, and why is said.
fn staged(driver: &Driver, way: &str, faults: &[(&str, &str)], why: &str) -> Value {
    let ended = driver.start(&format!("--json {way} {SMALL}"), faults).end(LIMIT);
    let said = format!(
        "the store's values lie in the memory of its servers' GPUs, which update them; gradients and weights go by pinned memory of the host: {why}"
    );
    assert_eq!(ended.stderr.matches(&said).count(), 1, "{way}: {}", ended.stderr);
    let result = ended.json();
    // values of less than 16 KiB go in messages, and what is larger where it belongs
    assert!(number(&result, "bytes_copied") < WEIGHTS / 2, "{way}: {result}");
    result
}

/// Trains with all that crosses in the memory of GPUs.
fn on_gpus(driver: &Driver, way: &str, faults: &[(&str, &str)]) -> Value {
    let ended = driver.start(&format!("--json {way} {SMALL}"), faults).end(LIMIT);
    let said = "the store's values lie in the memory of its servers' GPUs, which update them";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{way}: {}", ended.stderr);
    let result = ended.json();
    assert!(number(&result, "bytes_copied") < LITTLE, "{way}: {result}");
    result
}

#[test]
fn groups_before_a_store_on_gpus_have_the_bits_of_one_process_and_nothing_goes_by_the_host() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SMALL}"), &[]);
    // one group, whose mean is that of all
    let one = "--strategy mpi-sgd --workers 2 --clients 1";
    let result = on_gpus(&driver, one, &LATE);
    assert_eq!(hash(&result), hash(&alone));
    let of_alone = number(&alone, "bytes_copied_to_host");
    assert!(number(&result, "bytes_copied_to_host") <= 2 * of_alone, "{result}");
    // where gradients are clipped, servers make the means of groups, and all change weights of their own
    let clipped = format!("--clip-norm 1 {one}");
    let alone = driver.train(&format!("--strategy local --clip-norm 1 {SMALL}"), &[]);
    assert_eq!(hash(&on_gpus(&driver, &clipped, &LATE)), hash(&alone));
    if !long::is_long() {
        return;
    }
    // several groups, each with the mean of its own
    let several = "--strategy mpi-sgd --workers 4 --clients 2 --servers 1";
    let apart = staged(&driver, &format!("--transport tcp {several}"), &[], UNSHARED);
    assert_eq!(hash(&on_gpus(&driver, several, &LATE)), hash(&apart));
}

#[test]
fn groups_before_a_store_on_gpus_that_they_do_not_reach_have_the_bits_of_one_process() {
    let Some(driver) = driver() else { return };
    let alone = driver.train(&format!("--strategy local {SMALL}"), &[]);
    let one = "--strategy mpi-sgd --workers 2 --clients 1";
    let hidden = [("FAKE_CUDA_FAULTS", "noexport")];
    for (way, faults, why) in [
        ("--transport tcp", &LATE[..], UNSHARED),
        ("", &hidden, "GPUs do not reach each other's memory"),
    ] {
        let result = staged(&driver, &format!("{way} {one}"), faults, why);
        assert_eq!(hash(&result), hash(&alone), "{way}");
        // a mean of each of three steps to its server's GPU, and the weights of each version from there, for one worker of two
        let copied = number(&result, "bytes_copied_store_staging");
        assert_eq!(copied, (3 + 4) * WEIGHTS, "{way}: {result}");
    }
    // means alone; what is rounded, in memory that GPUs reach or do not
    let clipped = format!("--clip-norm 1 {one}");
    let alone = driver.train(&format!("--strategy local --clip-norm 1 {SMALL}"), &[]);
    let result = staged(&driver, &format!("--transport tcp {clipped}"), &[], UNSHARED);
    assert_eq!(hash(&result), hash(&alone));
    let rounded = |way: &str| {
        let way = format!("--wire bf16 {way} {one}");
        hash(&staged(&driver, &way, &LATE, "values travel rounded"))
    };
    assert_eq!(rounded(""), rounded("--transport tcp"));
}

/// Two workers of two GPUs each in one group.
#[test]
fn gpus_of_a_worker_are_reduced_before_its_group_is() {
    let Some(driver) = driver() else { return };
    let two = format!("--devices-per-worker 2 {SMALL}");
    let alone = driver.train(&format!("--strategy local {two}"), &LATE[2..]);
    let way = "--strategy mpi-sgd --workers 2 --clients 1 --devices-per-worker 2";
    assert_eq!(hash(&on_gpus(&driver, way, &LATE)), hash(&alone));
    let result = staged(&driver, &format!("--transport tcp {way}"), &LATE, UNSHARED);
    assert_eq!(hash(&result), hash(&alone));
}

/// Each group at its own pace.
#[test]
fn groups_out_of_step_learn_by_a_store_on_gpus() {
    let Some(driver) = driver().filter(|_| long::is_long()) else { return };
    let job = "--strategy mpi-asgd --workers 4 --clients 2 --servers 1 --lr 1e-4";
    let device = on_gpus(&driver, job, &LATE);
    let processor = Job::start(&format!("train --json {job} {SMALL}")).end(LIMIT).json();
    let [found, expected] =
        [&device, &processor].map(|result| result["final_loss"].as_f64().unwrap());
    assert!((found - expected).abs() < 0.05 * expected, "{found} and {expected}");
}

#[test]
fn who_is_lost_of_a_group_before_a_store_on_gpus_is_named() {
    let Some(driver) = driver() else { return };
    let way = "--strategy mpi-sgd --workers 2 --clients 1";
    let job = format!("{way} {MODEL} --batch 4");
    // the first of the group, two servers, and the other
    for (transport, member, name) in
        [("shm", 1, "server 0"), ("shm", 3, "worker 1"), ("tcp", 3, "worker 1")]
    {
        let job = driver.start_stepping(&format!("{job} --transport {transport}"), &[], 4);
        refused(&job.end_by(member, Signal::KILL), 1, &[name]);
    }
}
