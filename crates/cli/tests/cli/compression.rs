//! `--wire int8` and `--wire top-k`: less of a gradient crosses, what that leaves is sent later, and nothing depends on how it crossed.

use std::time::Duration;

use serde_json::Value;
use tensorwire_testkit::long;

use crate::device::{SMALL, driver, hash};
use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(240);

/// Of 279 thousand parameters, nearly all in tensors that are large enough.
const SMALL_JOB: &str = "--model cifar --data synthetic:64,8x8x1 --batch 4";

fn train(arguments: &str) -> Value {
    let job = "train --json --workers 2 --threads 1";
    Job::start(&format!("{job} {arguments}")).end(LIMIT).json()
}

/// Of f32 both ways 8 bytes an element; here 2 for its weight, or for the mean of its gradients, and for its gradient one with a
/// 64th of a scale, or 8 for every 100th.
#[test]
fn less_of_gradients_crosses_with_the_same_bits_over_every_way() {
    for (strategy, first, ways) in [
        ("ps", "--servers 1", &["", "--servers 3 --split-above 1KiB"][..]),
        ("allreduce", "", &[""]),
        (
            "dist-sgd",
            "--servers 1",
            &[
                "",
                "--servers 3",
                #[cfg(feature = "baselines")]
                "--exchange zmq",
            ],
        ),
    ] {
        let job = format!("--strategy {strategy} {SMALL_JOB}");
        let after = |wire: &str, steps: u32| {
            train(&format!("{job} --wire {wire} --transport tcp {first} --steps {steps}"))
        };
        // what a step adds, whatever is said before the first; small values go to a store in messages
        let counts = if strategy == "dist-sgd" { "store_bytes" } else { "bytes_written" };
        let per_step = |few: &Value, more: &Value| {
            let bytes = |json: &Value| json[counts].as_f64().unwrap();
            bytes(more) - bytes(few)
        };
        let whole = per_step(&after("f32", 2), &after("f32", 4));
        for (wire, share) in
            [("int8", (1.0 + 1.0 / 64.0 + 2.0) / 8.0), ("top-k", (0.08 + 2.0) / 8.0)]
        {
            let expected = after(wire, 4);
            let found = per_step(&after(wire, 2), &expected) / whole;
            assert!((share..share + 0.02).contains(&found), "{strategy} {wire}: {found}");
            for way in ways {
                let json = train(&format!("{job} --wire {wire} --steps 4 {way}"));
                assert_eq!(json["weights_sha256"], expected["weights_sha256"], "{strategy} {way}");
            }
        }
    }
}

#[test]
fn long_less_of_gradients_learns_as_well() {
    if !long::is_long() {
        return;
    }
    for strategy in ["ps", "allreduce", "dist-sgd"] {
        let accuracy = |wire: &str| {
            let job = "--model mlp --batch 16 --epochs 5";
            let json = train(&format!("--strategy {strategy} --wire {wire} {job}"));
            json["test_accuracy"].as_f64().unwrap()
        };
        let whole = accuracy("f32");
        for wire in ["int8", "top-k"] {
            let less = accuracy(wire);
            assert!(less > whole - 0.02, "{strategy} {wire}: {less}, and {whole} as f32");
        }
    }
}

/// What a worker has not sent yet is kept: a job that goes on has the bits of one that was never interrupted.
#[test]
fn what_was_left_of_gradients_is_there_after_a_checkpoint() {
    for (wire, strategy) in [
        ("int8", "ps"),
        ("top-k:0.02", "ps --colocate"),
        ("top-k:0.02", "allreduce"),
        ("int8", "dist-sgd"),
        ("top-k:0.02", "dist-sgd --clip-norm 1"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("checkpoint");
        let job = format!("--strategy {strategy} --wire {wire} {SMALL_JOB}");
        let run = |more: &str| train(&format!("{job} {more}"));
        let whole = run("--steps 6");
        let keeps = format!("--checkpoint {} --checkpoint-every 3", checkpoint.display());
        run(&format!("--steps 3 {keeps}"));
        let resumed = run(&format!("--steps 6 --resume {} {keeps}", checkpoint.display()));
        assert_eq!(resumed["weights_sha256"], whole["weights_sha256"], "{wire} {strategy}");
        // another number of workers goes on without it
        let on = format!("--steps 7 --resume {}", checkpoint.display());
        let other = Job::start(&format!("train --workers 3 --threads 1 {job} {on}")).end(LIMIT);
        assert!(other.status.success(), "{}", other.stderr);
        assert!(other.stderr.contains("had not sent yet"), "{}", other.stderr);
    }
}

#[test]
fn a_plan_shows_what_crosses_and_what_cannot_is_refused_with_what_can() {
    // bytes and scales; indices and values of every 100th of 2048×2048
    for (wire, shown) in [
        ("int8", ["compressed ", "u8[2048×2048]", "compressed:1 ", "f32[16384]"]),
        ("top-k", ["compressed ", "i32[41943]", "compressed:1 ", "f32[41943]"]),
    ] {
        let plan = Job::start(&format!("graph --full --model mlp --wire {wire}")).end(LIMIT).stdout;
        for name in shown {
            assert!(plan.contains(name), "{wire}: {name}");
        }
    }
    for (given, said) in [
        ("--strategy mpi-sgd --wire top-k", "take --strategy ps, allreduce or dist-sgd"),
        ("--strategy dist-sgd --wire top-k:0.5", "a smaller share, fewer servers"),
        ("--strategy allreduce --algorithm ring --wire int8", "--algorithm changes nothing here"),
        ("--strategy local --wire int8", "--wire changes nothing here"),
        ("--wire f16", "take --wire bf16"),
        ("--wire top-k:2", "a share above 0 and up to 1"),
        ("--wire int4", "'int4' is no type that crosses"),
    ] {
        let ended = Job::start(&format!("train --workers 2 --steps 1 {given}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{given}");
        assert!(ended.stderr.contains(said), "{given}: {}", ended.stderr);
    }
}

/// GPUs make less of gradients as processors do: in any order of what they do the same bits, and those of tensors that cross by the
/// host's memory.
#[test]
fn gpus_have_the_same_bits_however_less_of_gradients_crosses() {
    let Some(driver) = driver() else { return };
    let late = [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];
    for (strategy, wire) in [("ps", "int8"), ("allreduce", "int8"), ("allreduce", "top-k:0.05")] {
        let of = |way: &str, faults| {
            let job = format!("--strategy {strategy} --workers 2 --wire {wire} {SMALL} {way}");
            hash(&driver.train(&job, faults))
        };
        let expected = of("", &[][..]);
        for (way, faults) in [("", &late[..]), ("--transport tcp", &[])] {
            assert_eq!(of(way, faults), expected, "{strategy} {wire} {way}");
        }
    }
}
