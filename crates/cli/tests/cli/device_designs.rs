//! The designs by which several GPUs a worker reduce where servers have the weights, on the driver for tests: the same bits, and
//! what is copied and written is what the table of docs/gpu.md says.

use rustix::process::Signal;
use serde_json::Value;

use crate::device::{
    Driver, LIMIT, MODEL, SMALL, WEIGHTS, await_steps, driver, hash, number, refused,
};
use crate::support::send;

const FOUR: (&str, &str) = ("FAKE_CUDA_DEVICES", "4");

const LATE: [(&str, &str); 2] =
    [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];

/// Bytes of first values that come in messages, and of what is said: no gradient and no weights of a step.
const LITTLE: u64 = 100 << 10;

/// Three steps of two workers.
const STEPS: u64 = 3 * 2;

/// Two workers of two GPUs.
fn two_of_two(driver: &Driver, way: &str, faults: &[(&str, &str)]) -> Value {
    let faults = [&[FOUR], faults].concat();
    driver.train(&format!("--strategy {way} --devices-per-worker 2 {SMALL}"), &faults)
}

/// By `multi-ring` and by `reg`, on these streams; both have these bits.
fn by_both(driver: &Driver, way: &str, faults: &[(&str, &str)], expected: &str) -> [Value; 2] {
    ["", "--design reg"].map(|design| {
        let result = two_of_two(driver, &format!("{way} {design}"), faults);
        assert_eq!(hash(&result), expected, "{way} {design}");
        result
    })
}

/// The share of the second GPU that the first takes once more to evaluate: whole vectors, of about a half of all bytes.
fn is_half(bytes: u64) -> bool {
    bytes.abs_diff(WEIGHTS / 2) <= WEIGHTS / 8
}

#[test]
fn each_gpu_deals_with_servers_for_its_share() {
    let Some(driver) = driver() else { return };
    let expected = hash(&two_of_two(&driver, "local", &[]));
    // to servers a gradient, and from there a weight: what one GPU a worker sends
    let crosses = STEPS * 2 * WEIGHTS;
    for way in ["ps", "ps --exchange write", "ps --transport tcp"] {
        let way = &format!("{way} --servers 1");
        let [ring, reg] = by_both(&driver, way, &[], &expected);
        // a gradient goes to the other GPU, or a share of both, and weights back
        let [of_ring, of_reg] =
            [&ring, &reg].map(|result| number(result, "bytes_copied_between_devices"));
        assert_eq!(of_reg, STEPS * 2 * WEIGHTS, "{way}");
        assert!(is_half(of_ring - of_reg), "{way}: {of_ring} and {of_reg}");
        for result in [&ring, &reg] {
            let of = |key| number(result, key);
            let (written, to_peers) = (of("bytes_written"), of("bytes_copied_to_peers"));
            // once more for the evaluation
            match (way.contains("tcp"), way.contains("write")) {
                (true, _) => assert_eq!(written, crosses + WEIGHTS, "{way}"),
                // GPUs write all of it
                (_, true) => assert_eq!((written, to_peers), (0, crosses + WEIGHTS), "{way}"),
                // weights come once to a worker, whose GPUs give them on; gradients are read, but for those of less than a page
                _ => {
                    let small = to_peers.checked_sub(STEPS * WEIGHTS + WEIGHTS);
                    assert!(small.is_some_and(|small| small < WEIGHTS / 8), "{way}: {to_peers}");
                    assert_eq!(written, 0, "{way}");
                }
            }
        }
    }
}

#[test]
fn each_gpu_deals_with_a_store_for_its_share() {
    let Some(driver) = driver() else { return };
    let expected = hash(&two_of_two(&driver, "local", &[]));
    // once by each worker, or by the first of a group; and for the evaluation
    let (each, first) = (STEPS + 1, STEPS / 2 + 1);
    // weights come to a GPU and go from there to the other, or to both from the host's memory
    for (way, pulled) in [
        ("dist-sgd", Some(each)),
        ("dist-sgd --transport tcp", None),
        ("mpi-sgd --clients 1", Some(first)),
    ] {
        let [ring, reg] = by_both(&driver, way, &LATE, &expected);
        let [of_ring, of_reg] =
            [&ring, &reg].map(|result| number(result, "bytes_copied_between_devices"));
        match pulled {
            None => assert_eq!([of_ring, of_reg], [STEPS * WEIGHTS; 2], "{way}"),
            Some(pulled) => {
                assert_eq!(of_reg, STEPS * 2 * WEIGHTS, "{way}");
                assert!(is_half(of_ring - of_reg), "{way}: {of_ring} and {of_reg}");
                // by a GPU, which the other has them from
                assert_eq!(number(&ring, "bytes_written"), pulled * WEIGHTS, "{way}");
                assert!(number(&ring, "bytes_copied") < LITTLE, "{way}: {ring}");
            }
        }
        for key in [
            "bytes_written",
            "bytes_copied_to_host",
            "bytes_copied_to_peers",
            "bytes_copied_store_staging",
        ] {
            assert_eq!(number(&ring, key), number(&reg, key), "{way}: {key}");
        }
    }
}

#[test]
fn who_is_lost_with_its_gpus_before_a_store_ends_the_others_or_not() {
    let Some(driver) = driver() else { return };
    let job = format!("--strategy dist-sgd --servers 1 --devices-per-worker 2 {MODEL} --batch 4");
    let ending = driver.start_stepping(&job, &[FOUR], 3);
    refused(&ending.end_by(1, Signal::KILL), 1, &["worker 1"]);
    let folder = tempfile::tempdir().unwrap();
    let steps = folder.path().join("steps.jsonl");
    let elastic =
        format!("--json --elastic --steps 200 --deadline 5 --metrics {} {job}", steps.display());
    let mut elastic = driver.start(&elastic, &[FOUR]);
    let members = elastic.members(3);
    await_steps(&steps, 1);
    send(members[1], Signal::KILL);
    let ended = elastic.end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("worker 1 was lost: "), "{}", ended.stderr);
    let result = ended.json();
    assert_eq!(number(&result, "workers_finished"), 1, "{result}");
    assert!(result["final_loss"].as_f64().is_some_and(f64::is_finite), "{result}");
}
