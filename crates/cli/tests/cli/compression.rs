//! `--wire int8` and `--wire top-k`: less of a gradient crosses, what that leaves is sent later, and nothing depends on how it crossed.

use std::time::Duration;

use serde_json::Value;

use crate::device::{SMALL, driver, hash};
use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(240);

fn train(arguments: &str) -> Value {
    let job = "--model mlp --batch 16 --threads 1";
    Job::start(&format!("train --json --workers 2 {job} {arguments}")).end(LIMIT).json()
}

/// Of f32 both ways 8 bytes an element; here 2 for its weight, or for the mean of its gradients, and for its gradient one with a
/// 64th of a scale, or 8 for every 100th.
#[test]
fn less_of_gradients_crosses_with_the_same_bits_over_every_way_and_learns_as_well() {
    let bytes = |json: &Value| json["bytes_written"].as_f64().unwrap();
    let accuracy = |json: &Value| json["test_accuracy"].as_f64().unwrap();
    for (strategy, ways) in [
        ("ps", &["--transport tcp", "", "--servers 3 --split-above 1KiB", "--exchange write"][..]),
        ("allreduce", &["--transport tcp", ""]),
    ] {
        let steps = "--steps 60";
        let plain = train(&format!("--strategy {strategy} --transport tcp {steps}"));
        for (wire, share) in
            [("int8", (1.0 + 1.0 / 64.0 + 2.0) / 8.0), ("top-k", (0.08 + 2.0) / 8.0)]
        {
            let of =
                |way: &&str| train(&format!("--strategy {strategy} --wire {wire} {way} {steps}"));
            let all: Vec<Value> = ways.iter().map(of).collect();
            for (way, json) in ways.iter().zip(&all) {
                assert_eq!(json["weights_sha256"], all[0]["weights_sha256"], "{strategy} {way}");
            }
            let found = bytes(&all[0]) / bytes(&plain);
            assert!((share..share + 0.01).contains(&found), "{strategy} {wire}: {found}");
            let (is, was) = (accuracy(&all[0]), accuracy(&plain));
            let near = if wire == "int8" { 0.02 } else { 0.1 };
            assert!(is > was - near, "{strategy} {wire}: {is}, and {was} as f32");
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
        ("int8", "allreduce --transport tcp"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("checkpoint");
        let run = |more: &str| train(&format!("--strategy {strategy} --wire {wire} {more}"));
        let whole = run("--steps 8");
        let keeps = format!("--checkpoint {} --checkpoint-every 4", checkpoint.display());
        run(&format!("--steps 4 {keeps}"));
        let resumed = run(&format!("--steps 8 --resume {} {keeps}", checkpoint.display()));
        assert_eq!(resumed["weights_sha256"], whole["weights_sha256"], "{wire} {strategy}");
        // another number of workers goes on without it
        let other = Job::start(&format!(
            "train --json --workers 3 --model mlp --batch 16 --threads 1 --strategy {strategy} --wire {wire} --steps 8 \
             --resume {}",
            checkpoint.display()
        ))
        .end(LIMIT);
        assert!(other.status.success(), "{}", other.stderr);
        assert!(other.stderr.contains("had not sent yet"), "{}", other.stderr);
    }
}

#[test]
fn a_plan_shows_what_crosses_and_what_cannot_is_refused_with_what_can() {
    for (wire, shown) in
        [("int8", ["Quantize", "Dequantize"]), ("top-k", ["TopK", "ScatterElements"])]
    {
        let plan = Job::start(&format!("graph --full --model mlp --wire {wire}")).end(LIMIT).stdout;
        for name in shown {
            assert!(plan.contains(name), "{wire}: {name}");
        }
    }
    for (given, said) in [
        ("--strategy dist-sgd --wire int8", "take --strategy ps or allreduce, or --wire bf16"),
        ("--strategy mpi-sgd --wire top-k", "take --strategy ps or allreduce, or --wire bf16"),
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
