//! Every input of the corpus in the tree, and seeded changes of it, through every decoder. A fuzzer found the corpus
//! (`fuzz/`); this keeps what it found found, with any compiler.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tensorwire_decoders::{TARGETS, Target};
use tensorwire_launch::{Assignment, JobStatus};
use tensorwire_testkit::long;
use tensorwire_testkit::random::Random;
use tensorwire_train::TrainConfig;

/// How long changed inputs of a target are tried, and how many at most.
const TRIED_FOR: Duration = Duration::from_millis(120);
const TRIED_MAX: usize = 2000;
/// A changed input grows no further.
const BYTES_MAX: usize = 16 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The inputs of a target, by the names of their files.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(fuzz().join("corpus").join(name)).into_iter().flatten();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    let mut found: Vec<_> = entries.map(read).collect();
    found.sort();
    found
}

fn run(target: Target, bytes: &[u8], which: &dyn std::fmt::Display) {
    let result = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    if let Err(panic) = result {
        eprintln!("{which}: {}", bytes.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

/// A part is cut out, doubled, or replaced by one of another input; bytes become others, and numbers the ends of their range.
fn changed(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below(bytes.len() - at + 1).min(64);
        match random.below(7) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            2 => {
                let from = random.below(other.len() + 1);
                bytes.splice(at..end, other[from..].iter().take(64).copied());
            }
            3 => bytes.insert(at, random.draw() as u8),
            4 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
            5 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            _ => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = random.draw() as u8),
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

#[test]
fn what_was_found_once_and_changes_of_it_keep_the_promises() {
    let (tried_for, tried_max) = match long::is_long() {
        true => (TRIED_FOR * 50, usize::MAX),
        false => (TRIED_FOR, TRIED_MAX),
    };
    for (number, (name, target)) in TARGETS.iter().enumerate() {
        let corpus = corpus(name);
        for (file, bytes) in &corpus {
            run(*target, bytes, &format!("{name}/{file}"));
        }
        let mut random = Random::new(number as u64);
        let begin = Instant::now();
        for seed in 0..tried_max {
            if begin.elapsed() > tried_for {
                break;
            }
            let (_, input) = &corpus[random.below(corpus.len())];
            let (_, other) = &corpus[random.below(corpus.len())];
            run(*target, &changed(input, other, &mut random), &format!("{name}, change {seed}"));
        }
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus_that_is_small() {
    let files = std::fs::read_dir(fuzz().join("fuzz_targets")).unwrap();
    let files = files.map(|file| file.unwrap().path().file_stem().unwrap().to_owned());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, names);
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let mut all = 0;
    for name in &names {
        assert!(manifest.contains(&format!("fuzz_targets/{name}.rs")), "{name} is no program");
        let program = fuzz().join("fuzz_targets").join(format!("{name}.rs"));
        let program = std::fs::read_to_string(program).unwrap();
        assert!(program.contains(&format!("call(\"{name}\", bytes)")), "{name} calls another");
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name} has no corpus");
        let bytes: usize = corpus.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes <= 32 << 10, "the corpus of {name} has {bytes} bytes");
        all += bytes;
    }
    assert!(all <= 500 << 10, "the corpus has {all} bytes");
}

/// Where nothing in a corpus is read, changes of it come no further than the first missing field.
#[test]
fn what_is_whole_is_read() {
    fn read<T: DeserializeOwned>(bytes: &[u8]) {
        if let Err(error) = serde_json::from_slice::<T>(bytes) {
            panic!("{error}: the corpus needs one that is of today's form");
        }
    }
    let whole = |name| std::fs::read(fuzz().join("corpus").join(name).join("whole")).unwrap();
    read::<Assignment>(&whole("launch_assignment"));
    read::<JobStatus>(&whole("launch_status"));
    read::<TrainConfig>(&whole("train_configs"));
    let record: serde_json::Value = serde_json::from_slice(&whole("launch_takeover")).unwrap();
    read::<Assignment>(record["assignment"].to_string().as_bytes());
}
