//! Elastic averaging whose centre lies in the memory of its servers' GPUs, on the driver for tests.

use rustix::process::Signal;
use serde_json::Value;
use tensorwire_testkit::long;

use crate::device::{Driver, LIMIT, MODEL, SMALL, WEIGHTS, driver, hash, number, refused};
use crate::support::Job;

/// Bytes of first values that come in messages, and of what is said: no weights of a step.
const LITTLE: u64 = 100 << 10;

/// A GPU for each worker and server of a job, or each GPU of a worker, all of them late.
const LATE: [(&str, &str); 3] = [
    ("FAKE_CUDA_SEED", "3"),
    ("FAKE_CUDA_FAULTS", "delay=2000,garbage"),
    ("FAKE_CUDA_DEVICES", "5"),
];

/// One worker, which nobody is out of step with, and one group of two.
const ONE: &str = "--strategy dist-esgd --workers 1 --alpha 0.3";
const GROUP: &str = "--strategy mpi-esgd --workers 2 --clients 1 --alpha 0.3";

/// Trains with the centre on GPUs, which is said.
fn on_gpus(driver: &Driver, way: &str, faults: &[(&str, &str)]) -> Value {
    let ended = driver.start(&format!("--json {way}"), faults).end(LIMIT);
    let said = "the centre lies in the memory of its servers' GPUs, which move it";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{way}: {}", ended.stderr);
    let result = ended.json();
    assert!(number(&result, "bytes_copied") < LITTLE, "{way}: {result}");
    result
}

/// The same where the workers do not reach it: it comes, and weights go, by the host's memory, and why is said.
fn staged(driver: &Driver, way: &str, faults: &[(&str, &str)]) -> Value {
    let job = format!("--json --transport tcp {way}");
    let ended = driver.start(&job, faults).end(LIMIT);
    let said = "the centre lies in the memory of its servers' GPUs, which move it; it and weights go by pinned memory of the host: workers and servers share no memory";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{way}: {}", ended.stderr);
    ended.json()
}

#[test]
fn a_centre_on_gpus_has_the_bits_of_one_on_the_host_and_no_weight_goes_by_the_host() {
    let Some(driver) = driver() else { return };
    for (way, workers) in [(ONE, 1), (GROUP, 2)] {
        let every = format!("{way} --interval 1 {SMALL}");
        let result = on_gpus(&driver, &every, &LATE);
        let apart = staged(&driver, &every, &LATE);
        assert_eq!(hash(&result), hash(&apart), "{way}");
        // two meetings fewer: the master's GPU copies what it pushes, and nothing crosses to the host or from it
        let first = on_gpus(&driver, &format!("{way} --interval 100 {SMALL}"), &[]);
        assert_ne!(hash(&first), hash(&result), "{way}");
        let more = |key| number(&result, key) - number(&first, key);
        assert_eq!(more("bytes_copied_averaging"), 2 * WEIGHTS, "{way}");
        assert_eq!((more("bytes_copied_to_host"), more("bytes_copied_to_device")), (0, 0), "{way}");
        // out of reach the master's GPU copies what it pushes to the host, each worker's the centre from there
        let first = staged(&driver, &format!("{way} --interval 100 {SMALL}"), &[]);
        let more = |key| number(&apart, key) - number(&first, key);
        assert_eq!(more("bytes_copied_to_host"), 2 * WEIGHTS, "{way}");
        assert_eq!(more("bytes_copied_to_device"), 2 * workers * WEIGHTS, "{way}");
        // a server's, what is pushed and what is pulled
        assert_eq!(more("bytes_copied_store_staging"), 2 * 2 * WEIGHTS, "{way}");
    }
    // GPUs of one host that do not reach each other's memory
    let every = format!("{GROUP} --interval 1 {SMALL}");
    let hidden = driver.train(&every, &[("FAKE_CUDA_FAULTS", "noexport")]);
    assert_eq!(hash(&hidden), hash(&on_gpus(&driver, &every, &[])));
    // a store in the host's memory, where one is built in
    #[cfg(feature = "baselines")]
    {
        let every = format!("{ONE} --interval 1 {SMALL}");
        let by_host = driver.train(&format!("--exchange zmq {every}"), &[]);
        assert_eq!(hash(&by_host), hash(&on_gpus(&driver, &every, &[])));
    }
}

/// Evaluated between two steps the centre is in the weights' place, and then they are back.
#[test]
fn a_centre_on_gpus_is_evaluated_and_gone_on_from_like_one_on_the_host() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.display();
    let way = format!("{ONE} --interval 2 {MODEL} --batch 4 --steps");
    let looked = format!("--val-every 1 --checkpoint {run} --checkpoint-every 3 {way}");
    let expected = hash(&on_gpus(&driver, &format!("{way} 3"), &[]));
    assert_eq!(hash(&on_gpus(&driver, &format!("{looked} 3"), &LATE)), expected);
    assert_eq!(hash(&staged(&driver, &format!("--val-every 1 {way} 3"), &LATE)), expected);
    let expected = hash(&staged(&driver, &format!("{way} 5"), &[]));
    let resumed = on_gpus(&driver, &format!("--resume {run} {way} 5"), &[]);
    assert_eq!(hash(&resumed), expected);
}

#[test]
fn weights_of_all_gpus_of_a_worker_meet_the_centre() {
    let Some(driver) = driver() else { return };
    for (way, design) in [(ONE, "reg"), (GROUP, "multi-ring")] {
        let way = format!("{way} --interval 1 --devices-per-worker 2 {SMALL}");
        let expected = hash(&staged(&driver, &way, &LATE[2..]));
        let result = on_gpus(&driver, &format!("--design {design} {way}"), &LATE);
        assert_eq!(hash(&result), expected, "{way} {design}");
    }
}

/// Each at its own pace: the centre moves whenever one comes.
#[test]
fn workers_and_groups_out_of_step_learn_by_a_centre_on_gpus() {
    let Some(driver) = driver() else { return };
    let ways = ["dist-esgd", "mpi-esgd --workers 4 --clients 2 --servers 1"];
    for way in &ways[..long::of(1, 2)] {
        let job = format!("--strategy {way} --interval 1 --lr 1e-4 {SMALL}");
        let device = on_gpus(&driver, &job, &LATE);
        let processor = Job::start(&format!("train --json {job}")).end(LIMIT).json();
        let [found, expected] =
            [&device, &processor].map(|result| result["final_loss"].as_f64().unwrap());
        assert!((found - expected).abs() < 0.05 * expected, "{way}: {found} and {expected}");
    }
}

#[test]
fn who_is_lost_while_a_centre_on_gpus_moves_is_named() {
    let Some(driver) = driver() else { return };
    let lost = [("FAKE_CUDA_FAULTS", "launch=400")];
    let job = format!("{ONE} --interval 1 {MODEL} --batch 4 --steps 1000 --deadline 5");
    refused(&driver.start(&job, &lost).end(LIMIT), 1, &["GPU 0", "is lost"]);
    let job = format!("{GROUP} --interval 1 {MODEL} --batch 4");
    // the master, two servers, and the other of its group
    for (member, name) in [(1, "server 0"), (3, "worker 1"), (0, "worker 0")] {
        let ended = driver.start_stepping(&job, &[], 4).end_by(member, Signal::KILL);
        refused(&ended, 1, &[name]);
    }
}
