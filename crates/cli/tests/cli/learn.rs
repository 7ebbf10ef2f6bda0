//! How a model learns: optimizers, schedules, decay, clipping, several batches a step, narrower activations; the same bits in
//! every synchronous strategy.

use std::time::Duration;

use crate::support::Job;
use crate::train::weights;
use tensorwire_testkit::long;

const LIMIT: Duration = Duration::from_secs(240);
const JOB: &str = "--batch 8 --steps 4 --threads 1";

fn hash(arguments: &str) -> String {
    let ended = Job::start(&format!("train --json --workers 2 {JOB} {arguments}")).end(LIMIT);
    ended.json()["weights_sha256"].as_str().unwrap().to_string()
}

#[test]
fn a_recipe_gives_the_same_bits_in_every_synchronous_strategy() {
    let clipped = "--optimizer adamw --lr 0.002 --weight-decay 0.1 --schedule cosine:0.1 --warmup 2 \
                   --clip-norm 0.5 --accumulate 2";
    let scaled = "--optimizer lamb --lr 0.01 --schedule step:2,0.5 --accumulate 3";
    let narrow = "--optimizer nesterov --schedule linear --weight-decay 0.01 --precision bf16 --ema 0.75 --val-every 3";
    let mut seen = Vec::new();
    for recipe in [clipped, scaled, narrow] {
        let local = hash(&format!("--strategy local {recipe}"));
        for way in [
            "--split-above 1KiB",
            "--colocate --split-above 1KiB --transport tcp",
            "--placement round-robin --transport tcp",
            "--strategy allreduce --deterministic",
            "--strategy mpi-sgd --servers 0 --deterministic",
            "--strategy dist-sgd",
            "--strategy dist-sgd --transport tcp",
        ] {
            assert_eq!(hash(&format!("{way} {recipe}")), local, "{way} {recipe}");
        }
        seen.push(local);
    }
    // and every part of a recipe matters
    let parts = [
        "--optimizer adamw --lr 0.002 --weight-decay 0.1 --schedule cosine:0.1 --warmup 2 --clip-norm 0.5",
        "--optimizer adamw --lr 0.002 --weight-decay 0.1 --schedule cosine:0.1 --warmup 2 --accumulate 2",
        "--optimizer adamw --lr 0.002 --weight-decay 0.1 --schedule cosine:0.1 --clip-norm 0.5 --accumulate 2",
        "--optimizer adamw --lr 0.002 --weight-decay 0.1 --warmup 2 --clip-norm 0.5 --accumulate 2",
        "--optimizer adamw --lr 0.002 --schedule cosine:0.1 --warmup 2 --clip-norm 0.5 --accumulate 2",
        "--optimizer nesterov --schedule linear --weight-decay 0.01 --precision bf16",
        "--optimizer rmsprop --lr 0.001",
    ];
    for part in parts {
        let one = hash(&format!("--strategy local {part}"));
        assert!(!seen.contains(&one), "{part}");
        seen.push(one);
    }
}

/// The share of one in three is rounded, so that the order of products shows.
#[test]
fn what_three_workers_clip_has_the_same_bits_wherever_it_is() {
    let recipe = "--optimizer adamw --lr 0.002 --clip-norm 0.5 --ema 0.9 --val-every 2";
    let hash = |way: &str| {
        let ended =
            Job::start(&format!("train --json --workers 3 {JOB} {way} {recipe}")).end(LIMIT);
        ended.json()["weights_sha256"].clone()
    };
    let local = hash("--strategy local");
    for way in ["--servers 3", "--strategy allreduce --deterministic", "--strategy dist-sgd"] {
        assert_eq!(hash(way), local, "{way}");
    }
}

/// There the store makes means alone, and workers change the weights.
#[test]
fn a_norm_that_nothing_reaches_changes_no_bit_in_groups() {
    let hash = |clip: &str| {
        let job = "--strategy mpi-sgd --workers 4 --clients 2 --deterministic";
        Job::start(&format!("train --json {JOB} {job} {clip}")).end(LIMIT).json()["weights_sha256"]
            .clone()
    };
    assert_eq!(hash("--clip-norm 1e9"), hash(""));
}

/// a ← decay·a + (1 − decay)·w, from the first weights on: what is saved of two steps follows from what is of one.
#[test]
fn averages_are_saved_in_the_place_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |name: &str, arguments: &str| -> Vec<f32> {
        let path = folder.path().join(name);
        let job = "train --json --strategy local --workers 1 --threads 1 --batch 8";
        Job::start(&format!("{job} {arguments} --save {}", path.display())).end(LIMIT).json();
        weights(&path)
    };
    let one = saved("one", "--steps 1 --ema 0.75");
    let two = saved("two", "--steps 2 --ema 0.75");
    let now = saved("now", "--steps 2");
    let far =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let wanted: Vec<f32> = one.iter().zip(&now).map(|(a, w)| 0.75 * a + 0.25 * w).collect();
    assert!(far(&two, &wanted) < 1e-6, "{}", far(&two, &wanted));
    assert!(far(&two, &now) > 1e-4, "they are averages");
}

#[test]
fn what_is_named_does_not_decay() {
    let adam = "--strategy local --optimizer adamw --lr 0.002";
    let none = hash(&format!("{adam} --weight-decay 0"));
    let all = hash(&format!("{adam} --weight-decay 0.5"));
    assert_ne!(none, all);
    for way in ["--strategy local", "--strategy dist-sgd"] {
        let one = "--optimizer adamw --lr 0.002 --weight-decay 0.5 --no-decay";
        assert_eq!(hash(&format!("{way} {one} *")), none, "{way}");
        let some = hash(&format!("{way} {one} hidden2/weight"));
        assert!(some != none && some != all, "{way}");
    }
}

/// As for workers in `train.rs`: the same sums in another order.
#[test]
fn several_batches_a_step_are_one_large_batch_to_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |name: &str, batches: &str| -> Vec<f32> {
        let path = folder.path().join(name);
        let job = "train --json --strategy local --workers 1 --threads 1 --steps 10";
        Job::start(&format!("{job} {batches} --save {}", path.display())).end(LIMIT).json();
        weights(&path)
    };
    let (four, one) = (saved("four", "--batch 8 --accumulate 4"), saved("one", "--batch 32"));
    let far = four.iter().zip(&one).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(far > 0.0 && far <= 1e-4, "{far}");
}

#[test]
fn what_makes_no_sense_is_said_in_one_line() {
    for (given, said) in [
        ("--clip-norm 0", "--clip-norm must be a positive number, not 0"),
        ("--clip-norm 1 --strategy dist-asgd", "take dist-sgd or mpi-sgd"),
        ("--ema 1", "--ema must be from 0 to below 1, not 1"),
        ("--ema 0.9 --strategy dist-esgd", "workers have weights of their own"),
        ("--no-decay hidden9/*", "--no-decay 'hidden9/*' is the name of no parameter of 'mlp'"),
        ("--accumulate 0", "--accumulate must be at least 1"),
        ("--weight-decay=-1", "--weight-decay must be 0 or a positive number, not -1"),
        ("--schedule cosin", "'cosin' is no schedule"),
        ("--schedule step:0,0.5", "EVERY is at least 1"),
        ("--optimizer adam --momentum 0.5", "--momentum changes nothing here"),
    ] {
        let ended = Job::start(&format!("train --workers 2 {JOB} {given}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{given}");
        assert!(ended.stderr.contains(said), "{given}: {}", ended.stderr);
    }
}

/// Half of the bytes; the same bits over every way, and the accuracy of tensors that cross as they are.
#[test]
fn tensors_that_cross_as_bf16_are_half_as_many_bytes_and_learn_as_well() {
    let train = |way: &str| {
        let job = "--model mlp --batch 16 --steps 60 --threads 1";
        Job::start(&format!("train --json --workers 2 {job} {way}")).end(LIMIT).json()
    };
    let (bytes, accuracy) = (
        |json: &serde_json::Value| json["bytes_written"].as_f64().unwrap(),
        |json: &serde_json::Value| json["test_accuracy"].as_f64().unwrap(),
    );
    for (strategy, ways) in [
        ("ps", &["--transport tcp", "--split-above 1KiB", "", "--exchange write --servers 1"][..]),
        ("allreduce", &["--transport tcp", ""]),
        ("dist-sgd", &["--transport tcp", "", "--servers 1", "--transport tcp --servers 3"]),
    ] {
        let ways = &ways[..long::of(2, ways.len())];
        let plain = train(&format!("--strategy {strategy} --transport tcp"));
        let narrow: Vec<serde_json::Value> = ways
            .iter()
            .map(|way| train(&format!("--strategy {strategy} --wire bf16 {way}")))
            .collect();
        for (way, json) in ways.iter().zip(&narrow) {
            assert_eq!(json["weights_sha256"], narrow[0]["weights_sha256"], "{strategy} {way}");
        }
        assert_ne!(plain["weights_sha256"], narrow[0]["weights_sha256"]);
        let share = bytes(&narrow[0]) / bytes(&plain);
        assert!((0.5..0.51).contains(&share), "{strategy}: {share} of the bytes");
        let (is, was) = (accuracy(&narrow[0]), accuracy(&plain));
        assert!((is - was).abs() < 0.02, "{strategy}: {is}, and {was} as f32");
    }
}

/// The servers' own weights are whole, whatever workers compute with.
#[test]
fn what_is_saved_of_servers_is_not_rounded() {
    for way in
        ["", "--split-above 1KiB", "--strategy dist-sgd", "--strategy dist-sgd --transport tcp"]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let save = format!("--save {} --wire bf16 {way}", path.display());
        let ended = Job::start(&format!("train {JOB} {save}")).end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        let values = weights(&path);
        let whole = values.iter().filter(|value| value.to_bits() & 0xffff != 0).count();
        assert!(2 * whole > values.len(), "{way}: only {whole} are more than bf16");
    }
}

/// What is kept of a store is what its values are rounded from: a job that goes on has the bits of one that was never interrupted.
#[test]
fn a_store_whose_values_cross_as_bf16_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    let job = "train --json --strategy dist-sgd --wire bf16 --workers 2 --batch 16 --optimizer adam --lr 0.001";
    let run = |more: &str| Job::start(&format!("{job} {more}")).end(LIMIT).json();
    let whole = run("--steps 12");
    let keeps = format!("--checkpoint {} --checkpoint-every 6", checkpoint.display());
    run(&format!("--steps 6 {keeps}"));
    let resumed = run(&format!("--steps 12 --resume {} {keeps}", checkpoint.display()));
    assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
}

#[test]
fn weights_that_are_averaged_are_not_rounded_and_it_says_so() {
    let ended = Job::start("train --steps 1 --strategy dist-esgd --wire bf16").end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.last_line().contains("--wire changes nothing here"), "{}", ended.stderr);
}
