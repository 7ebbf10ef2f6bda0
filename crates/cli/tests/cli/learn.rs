//! How a model learns: optimizers, schedules, decay, clipping, several batches a step, narrower activations; the same bits in
//! every synchronous strategy.

use std::time::Duration;

use crate::support::Job;
use crate::train::weights;

const LIMIT: Duration = Duration::from_secs(240);
const JOB: &str = "--workers 2 --batch 8 --steps 4 --threads 1";

fn hash(arguments: &str) -> String {
    let ended = Job::start(&format!("train --json {JOB} {arguments}")).end(LIMIT);
    ended.json()["weights_sha256"].as_str().unwrap().to_string()
}

#[test]
fn a_recipe_gives_the_same_bits_in_every_synchronous_strategy() {
    let clipped = "--optimizer adamw --lr 0.002 --weight-decay 0.1 --schedule cosine:0.1 --warmup 2 \
                   --clip-norm 0.5 --accumulate 2";
    let scaled = "--optimizer lamb --lr 0.01 --schedule step:2,0.5 --accumulate 3";
    let narrow = "--optimizer nesterov --schedule linear --weight-decay 0.01 --precision bf16";
    let mut seen = Vec::new();
    for (recipe, in_a_store) in [(clipped, false), (scaled, true), (narrow, true)] {
        let local = hash(&format!("--strategy local {recipe}"));
        for way in [
            "--split-above 1KiB",
            "--placement round-robin --transport tcp",
            "--strategy allreduce --deterministic",
            "--strategy mpi-sgd --servers 0 --deterministic",
        ] {
            assert_eq!(hash(&format!("{way} {recipe}")), local, "{way} {recipe}");
        }
        if in_a_store {
            for way in ["--strategy dist-sgd", "--strategy dist-sgd --transport tcp"] {
                assert_eq!(hash(&format!("{way} {recipe}")), local, "{way} {recipe}");
            }
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
        "--optimizer nesterov --schedule linear --weight-decay 0.01",
        "--optimizer rmsprop --lr 0.001",
    ];
    for part in parts {
        let one = hash(&format!("--strategy local {part}"));
        assert!(!seen.contains(&one), "{part}");
        seen.push(one);
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
        ("--clip-norm 1 --strategy dist-sgd", "with --strategy dist-sgd leave it out"),
        ("--accumulate 0", "--accumulate must be at least 1"),
        ("--weight-decay=-1", "--weight-decay must be 0 or a positive number, not -1"),
        ("--schedule cosin", "'cosin' is no schedule"),
        ("--schedule step:0,0.5", "EVERY is at least 1"),
        ("--optimizer adam --momentum 0.5", "--momentum changes nothing here"),
    ] {
        let ended = Job::start(&format!("train {JOB} {given}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{given}");
        assert!(ended.stderr.contains(said), "{given}: {}", ended.stderr);
    }
}
