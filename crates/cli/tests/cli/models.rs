//! The models as a user has them: their sizes, that they learn, that they train over servers with the same
//! bits on every transport, and what is said where data or weights do not fit.

use std::time::Duration;

use crate::support::{Ended, Job};
use tensorwire_testkit::long;

const LIMIT: Duration = Duration::from_secs(400);

fn train(arguments: &str) -> Ended {
    Job::start(&format!("train --json {arguments}")).end(LIMIT)
}

fn number(result: &serde_json::Value, field: &str) -> f64 {
    result[field].as_f64().unwrap_or_else(|| panic!("{field} in {result}"))
}

/// Xue et al., table 2.
#[test]
fn the_papers_sizes_are_printed_to_the_digit() {
    let text = Job::start("models").end(LIMIT).stdout;
    for row in [
        ["alexnet", "16", "176.42"],
        ["inception-v3", "196", "92.90"],
        ["vgg16", "32", "512.32"],
        ["lstm", "14", "35.93"],
        ["gru", "11", "27.92"],
        ["fcn5", "10", "204.47"],
    ] {
        let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let lines = text.lines().map(words);
        let line = lines.into_iter().find(|words| words.first().is_some_and(|w| w == row[0]));
        let line = line.unwrap_or_else(|| panic!("no {} in {text}", row[0]));
        assert!(row.iter().all(|cell| line.iter().any(|word| word == cell)), "{row:?}: {line:?}");
    }
}

/// The same bits over shared memory and TCP, and where kernels do not depend on the number of threads, as
/// one process's.
#[test]
fn models_train_over_servers_with_the_same_bits() {
    for (model, options) in [
        ("cifar", "--batch 8 --steps 4"),
        ("seq2seq", "--data reverse:200 --batch 8 --steps 5 --optimizer adam --lr 0.002"),
        ("seq2seq", "--data grammar:200 --batch 4 --steps 3 --optimizer adagrad --lr 0.05"),
        ("sentence-embedding", "--batch 8 --steps 4"),
        ("gru", "--data synthetic:8 --batch 1 --steps 2"),
        ("alexnet", "--data synthetic:4 --batch 1 --steps 1 --lr 0.0001"),
        ("resnet50", "--data synthetic:4 --batch 1 --steps 1 --lr 0.0001"),
        ("mlp", "--batch 16 --steps 3 --dtype bf16"),
        ("mlp", "--batch 16 --steps 3 --dtype f64 --optimizer adam --lr 0.001"),
    ] {
        let job = format!("--model {model} {options} --kernels cpu");
        let local = train(&format!("--strategy local {job}")).json();
        for transport in ["shm", "tcp"] {
            let ps = train(&format!("{job} --transport {transport}")).json();
            assert_eq!(ps["weights_sha256"], local["weights_sha256"], "{job} over {transport}");
        }
        assert!(number(&local, "final_loss").is_finite(), "{job}");
    }
}

/// What a sentence becomes has no size before it is there: its size is told, and it is read.
#[test]
fn what_a_sentence_becomes_crosses_by_the_dynamic_path() {
    let text = Job::start("graph --full --model seq2seq").end(LIMIT).stdout;
    let rows =
        text.lines().filter(|line| line.contains("source_embedded") || line.contains("d_source"));
    let dynamic = text.lines().filter(|line| line.contains("dynamic: read")).count();
    assert!(dynamic >= 4, "{} rows\n{text}", rows.count());
}

#[test]
fn the_digits_are_learned_by_convolutions() {
    let job =
        "--model cifar --strategy local --workers 1 --threads 1 --batch 32 --lr 0.02 --epochs 12";
    let result = train(job).json();
    assert!(number(&result, "test_accuracy") >= 0.97, "{result}");
}

#[test]
fn sentences_are_turned_around_and_translated() {
    // a language takes four times as long as a turn, until it is known: otherwise it is seen to begin
    let turned = ("reverse --batch 16 --lr 0.005 --schedule linear --steps 400", 1.5);
    let begun = ("grammar --batch 16 --lr 0.003 --steps 120", 30.0);
    let known = ("grammar --batch 32 --lr 0.003 --epochs 2", 1.5);
    for (data, perplexity) in [turned, long::of(begun, known)] {
        let job = "--model seq2seq --strategy local --workers 1 --threads 1 --optimizer adam";
        let result = train(&format!("{job} --data {data}")).json();
        // one of 8000 words by chance
        assert!(number(&result, "test_perplexity") < perplexity, "{result}");
    }
}

/// Pairs of sentences of classes that training never saw are found among each other.
#[test]
fn sentences_of_unseen_classes_are_told_apart() {
    let job = "--model sentence-embedding --strategy local --workers 1 --threads 1 --data synthetic:8000 --batch 16 \
               --optimizer adam --lr 0.006 --epochs 3";
    let result = train(job).json();
    // one of 16 by chance
    assert!(number(&result, "test_accuracy") >= 0.7, "{result}");
}

#[test]
fn what_does_not_fit_is_said_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("mlp.safetensors");
    let save =
        format!("--strategy local --workers 1 --steps 1 --batch 4 --save {}", weights.display());
    train(&save).json();
    let load = format!("--model fcn5 --load {}", weights.display());
    let torn = folder.path().join("cifar");
    std::fs::create_dir(&torn).unwrap();
    std::fs::write(torn.join("data_batch_1.bin"), [0; 100]).unwrap();
    let cifar = format!("--model cifar --data cifar10:{}", torn.display());
    for (arguments, says) in [
        ("--model alexnet --data digits", "224×224×3"),
        ("--model seq2seq --data digits", "reverse"),
        ("--model resnet --data digits", "resnet50"),
        ("--data text:a", "text:"),
        (&cifar, "data_batch_1.bin"),
        (&load, "'hidden3/weight' is missing"),
        ("--model sentence-embedding --batch 500", "500"),
    ] {
        let ended = train(arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{arguments}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments}: {}", ended.stdout);
    }
}

#[test]
fn what_is_fed_is_written_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batches.safetensors");
    let command = format!("batches --model cifar --batch 4 --steps 2 --save {}", path.display());
    let ended = Job::start(&command).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    // a header, and two steps of 4 images of 8×8 and 4 labels
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes > 2 * 4 * (64 + 1) * 4, "{bytes}");
}
