//! Training with real processes: the same bits on every transport, partition and repetition; near to
//! the same arithmetic in another order; files whole; nothing copied.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Ended, Job};

const LIMIT: Duration = Duration::from_secs(240);
/// Of 359 digits that are kept for the test, fed once in the end, in batches of 8 whose last is filled up.
const TEST_SAMPLES: u64 = 360;
/// What learns the digits in few steps, at any pace.
const LEARNS: &str = "--epochs 2 --batch 16 --optimizer adam --lr 0.001";

fn train(arguments: &str) -> Ended {
    Job::start(&format!("train --json {arguments}")).end(LIMIT)
}

fn hash(arguments: &str) -> String {
    train(arguments).json()["weights_sha256"].as_str().unwrap().to_string()
}

#[test]
fn the_same_bits_on_every_transport_and_repetition_and_as_the_local_fold() {
    // the last two need credits: a layer's weights and its predecessor's gradient on two servers
    for (workers, servers, batch) in [(1, 1, 16), (2, 2, 32), (3, 3, 8), (2, 6, 8)] {
        let job = format!("--workers {workers} --batch {batch} --steps 4");
        let local = hash(&format!("--strategy local {job}"));
        let job = format!("{job} --servers {servers}");
        for transport in ["shm", "tcp"] {
            for exchange in ["zero-copy", "write", "copy"] {
                let ps = hash(&format!("{job} --transport {transport} --exchange {exchange}"));
                assert_eq!(ps, local, "{job} over {transport}, {exchange}");
            }
        }
        let again = hash(&job);
        assert_eq!(again, local, "{job}, repeated");
    }
    let other = hash("--workers 2 --batch 32 --steps 4 --seed 2");
    assert_ne!(other, hash("--workers 2 --batch 32 --steps 4"), "the seed matters");
}

#[test]
fn rows_on_several_servers_give_the_same_bits_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let job = "--workers 2 --batch 16 --steps 4";
    for kind in ["--optimizer momentum", "--optimizer adam --lr 0.001", "--dtype bf16"] {
        let local = hash(&format!("--strategy local {job} {kind}"));
        for (servers, way) in
            [(2, "shm"), (3, "shm"), (3, "tcp"), (2, "tcp --exchange copy"), (0, "shm"), (0, "tcp")]
        {
            let way = format!("--servers {servers} --split-above 1KiB --transport {way}");
            assert_eq!(hash(&format!("{job} {kind} {way}")), local, "{kind}, {way}");
        }
        let turns = hash(&format!("{job} {kind} --placement round-robin"));
        assert_eq!(turns, local, "{kind}, one variable after another");
    }
    // rows on more servers than there are variables: what may be split is
    let local = hash(&format!("--strategy local {job}"));
    assert_eq!(hash(&format!("{job} --servers 7 --split-above 0")), local, "seven servers");
    // in which order what waits for the same way goes changes when it comes, and nothing else
    for strategy in ["ps", "dist-sgd"] {
        let ready = format!("{job} --strategy {strategy} --send-order ready --transport tcp");
        assert_eq!(hash(&ready), local, "{ready}");
    }
    // what is saved is whole, and what is loaded is cut again
    let split = "--split-above 1KiB --servers 3";
    let first = train(&format!("{job} {split} --save {}", path("split"))).json();
    train(&format!("{job} --strategy local --save {}", path("whole"))).json();
    let [split_file, whole_file] = ["split", "whole"].map(|name| tensors(Path::new(&path(name))));
    assert_eq!(split_file, whole_file);
    assert_eq!(first["bytes_copied"], 0, "rows are received where the whole has them");
    let on = |options: &str| hash(&format!("{job} {options} --load {}", path("split")));
    assert_eq!(on(split), on("--strategy local"));
    // a worker copies its own rows to where it reads the whole, and half as much crosses
    let colocated = train(&format!("{job} --colocate --split-above 1KiB")).json();
    assert_eq!(
        (&colocated["servers"], &colocated["weights_sha256"]),
        (&0.into(), &first["weights_sha256"])
    );
    let ways = [&colocated, &first].map(|json| json["bytes_written"].as_u64().unwrap());
    assert!(ways[0] * 10 < ways[1] * 6, "{ways:?}");
    let learned = train(&format!("--async --split-above 1KiB {LEARNS}")).json();
    assert!(learned["test_accuracy"].as_f64().unwrap() >= 0.9, "{learned}");
}

/// W workers of batch b against one replica of batch W·b: the same sums in another order. One step
/// changes a weight by rate × a mean of up to 64 terms; the two orders differ by a few units in the
/// last place of that mean (2^-24 × ~64, relative), and ten steps of momentum 0.9 and the network's
/// own feedback amplify it by about a hundred. Weights are below 0.5, so 1e-4 absolute is some 50
/// times what rounding explains and a thousandth of what ten steps move a weight.
const REORDERING_TOLERANCE: f32 = 1e-4;

#[test]
fn two_workers_agree_with_one_replica_of_twice_the_batch_to_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, arguments: &str| -> Vec<f32> {
        let path = folder.path().join(name);
        train(&format!("--steps 10 --save {} {arguments}", path.display())).json();
        weights(&path)
    };
    let two = save("two", "--workers 2 --batch 32");
    let one = save("one", "--strategy local --workers 1 --batch 64");
    let start = save("start", "--strategy local --workers 1 --batch 64 --lr 1e-30");
    let distance =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(distance(&two, &one) <= REORDERING_TOLERANCE, "{}", distance(&two, &one));
    assert!(distance(&start, &one) > 100.0 * REORDERING_TOLERANCE, "training moves the weights");
}

#[test]
fn the_digits_are_learned() {
    let result = train("").json();
    let accuracy = result["test_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.955, "{result}");
    for (field, value) in [("steps", 220), ("workers", 2), ("servers", 2), ("batch", 64)] {
        assert_eq!(result[field], value, "{field}");
    }
    assert_eq!((&result["strategy"], &result["transport"]), (&"ps".into(), &"shm".into()));
    assert_eq!((&result["exchange"], &result["bytes_copied"]), (&"zero-copy".into(), &0.into()));
    assert!(result["final_loss"].as_f64().unwrap() < 0.05, "{result}");
    assert!(result["samples_per_second"].as_f64().unwrap() > 0.0);
    // each worker's gradients, and each server's weights, are where the other may read them
    let weights = 4.0 * f64::from(64 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10);
    assert!(result["registered_bytes"].as_f64().unwrap() >= 3.0 * weights, "{result}");
}

#[test]
fn the_runtime_copies_nothing_and_the_baseline_copies_each_tensor_once() {
    for transport in ["shm", "tcp"] {
        let run = |exchange: &str| {
            train(&format!("--steps 3 --transport {transport} --exchange {exchange}")).json()
        };
        assert_eq!(run("zero-copy")["bytes_copied"], 0);
        let copied = run("copy");
        // 4,349,962 parameters of 4 bytes; three steps to and from two workers, and one fetch
        let sent: u64 = 4_349_962 * 4 * (3 * 4 + 1);
        assert_eq!(copied["bytes_copied"], sent);
        assert_eq!(copied["bytes_copied_staging"], sent);
        assert_eq!(copied["bytes_written"], sent);
    }
}

/// What is copied beside the exchange: each number of a sample and each label into its input, once; weights out of a
/// file, by whom they are at home with.
#[test]
fn what_is_fed_and_loaded_is_counted_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let path = path.display();
    // 64 numbers and a label, of 4 bytes each
    let fed = |samples: u64| samples * 65 * 4;
    let saved = train(&format!("--batch 8 --steps 3 --save {path}")).json();
    assert_eq!(saved["bytes_copied_feeding"], fed(2 * 3 * 8 + TEST_SAMPLES));
    assert_eq!((&saved["bytes_copied"], &saved["bytes_copied_checkpoint"]), (&0.into(), &0.into()));
    for strategy in ["local", "ps", "dist-sgd"] {
        let job = format!("--strategy {strategy} --batch 8 --steps 2 --load {path}");
        let loaded = train(&job).json();
        assert_eq!(loaded["bytes_copied_feeding"], fed(2 * 2 * 8 + TEST_SAMPLES), "{strategy}");
        assert_eq!(loaded["bytes_copied_checkpoint"], 4_349_962 * 4, "{strategy}");
        let other = ["messages", "rows", "averaging", "broadcast", "reduction"];
        for other in other.map(|purpose| format!("bytes_copied_{purpose}")) {
            assert_eq!(loaded[&other], 0, "{strategy}: {other}");
        }
    }
}

/// Each worker at its own pace: what comes out depends on who was first, but it learns; and one worker
/// alone is never early or late.
#[test]
fn asynchronous_workers_learn_and_one_alone_has_the_bits_of_synchronous_training() {
    for transport in ["shm", "tcp"] {
        let result = train(&format!("--async --workers 3 {LEARNS} --transport {transport}")).json();
        assert_eq!((&result["async"], &result["steps"]), (&true.into(), &58.into()));
        assert_eq!(result["bytes_copied"], 0);
        assert!(result["test_accuracy"].as_f64().unwrap() > 0.9, "{result}");
        let alone = format!("--workers 1 --servers 3 --batch 8 --steps 9 --transport {transport}");
        assert_eq!(hash(&format!("--async {alone}")), hash(&alone));
    }
}

#[test]
fn weights_are_saved_whole_and_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let path = path.display();
    let first = hash(&format!("--steps 4 --save {path}"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // a step that moves nothing ends with what was loaded, on any number of servers
    for servers in [1, 2, 5] {
        let loaded = hash(&format!("--steps 1 --lr 1e-45 --load {path} --servers {servers}"));
        assert_eq!(loaded, first);
    }
    let local = hash(&format!("--steps 1 --lr 1e-45 --load {path} --strategy local"));
    assert_eq!(local, first);
}

#[test]
fn metrics_are_one_line_a_step_and_a_summary() {
    for strategy in ["local", "ps"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        let arguments = format!("--strategy {strategy} --steps 25 --metrics {}", path.display());
        let result = train(&arguments).json();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 26);
        for (index, line) in lines[..25].iter().enumerate() {
            assert_eq!(line["step"], index + 1);
            assert_eq!(line["epoch"], index / 11 + 1);
            assert!(line["loss"].as_f64().unwrap().is_finite());
        }
        assert_eq!(lines[25]["summary"], result);
    }
}

#[test]
fn metrics_say_of_each_step_how_the_workers_waited_and_it_adds_up() {
    for strategy in ["local", "ps"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        let arguments = format!("--strategy {strategy} --steps 9 --metrics {}", path.display());
        let result = train(&arguments).json();
        let text = std::fs::read_to_string(&path).unwrap();
        let steps: Vec<serde_json::Value> =
            text.lines().take(9).map(|line| serde_json::from_str(line).unwrap()).collect();
        // times are counted in nanoseconds
        let number = |line: &serde_json::Value, field: &str| {
            let scale = if field.ends_with("_us") { 1e3 } else { 1.0 };
            (line[field].as_f64().unwrap() * scale).round() as u64
        };
        for field in ["polls", "poll_misses", "waits", "poll_us", "wait_us"] {
            let sum: u64 = steps.iter().map(|step| number(step, field)).sum();
            assert_eq!(sum, number(&result, field), "{strategy}: {field}");
            assert!(strategy == "ps" || sum == 0, "nothing crosses: {field}");
        }
        for step in &steps {
            // each of two workers receives six variables
            let found = number(step, "polls") - number(step, "poll_misses");
            assert!(strategy == "local" || found >= 12, "{step}");
        }
    }
}

#[test]
fn mnists_own_files_train() {
    let folder = tempfile::tempdir().unwrap();
    write_idx(folder.path(), "train", 96);
    write_idx(folder.path(), "t10k", 24);
    let data = format!("--data mnist:{} --batch 8 --steps 6", folder.path().display());
    let ps = train(&data).json();
    assert_eq!(
        ps["weights_sha256"],
        train(&format!("{data} --strategy local")).json()["weights_sha256"]
    );
}

/// `count` images of 28×28, each a bright column at its label.
fn write_idx(folder: &Path, split: &str, count: u32) {
    let mut images = [0x0803u32, count, 28, 28].map(u32::to_be_bytes).concat();
    let mut labels = [0x0801u32, count].map(u32::to_be_bytes).concat();
    for sample in 0..count {
        let label = sample % 10;
        labels.push(label as u8);
        images.extend((0..28 * 28).map(|pixel| if pixel % 28 == label * 2 { 255 } else { 0 }));
    }
    std::fs::write(folder.join(format!("{split}-images-idx3-ubyte")), images).unwrap();
    std::fs::write(folder.join(format!("{split}-labels-idx1-ubyte")), labels).unwrap();
}

/// All of a safetensors file but what it says of where it comes from: the tensors, and their bytes.
fn tensors(path: &Path) -> (Value, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, bytes) = bytes[8..].split_at(header);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    assert!(header.as_object_mut().unwrap().remove("__metadata__").is_some(), "{header}");
    (header, bytes.to_vec())
}

/// All numbers of a safetensors file: an 8-byte header length, the header, the numbers.
pub(crate) fn weights(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let numbers = bytes[8 + header..].chunks_exact(4);
    numbers.map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect()
}

#[test]
fn steps_go_to_standard_output_and_a_loss_that_explodes_is_told() {
    let job = "train --strategy local --batch 8 --threads 1 --steps 3";
    let ended = Job::start(&format!("{job} --metrics - --lr 1000")).end(LIMIT);
    let lines: Vec<serde_json::Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["step"], 1, "{}", ended.stdout);
    assert!(ended.files().is_empty(), "{:?}", ended.files());
    assert_eq!(ended.stderr.matches("warning: step ").count(), 1, "{}", ended.stderr);
    let warning = ended.stderr.lines().find(|line| line.starts_with("warning: step ")).unwrap();
    let told = warning.strip_prefix("warning: step ");
    let told = told.and_then(|it| it.strip_suffix("; if it does not fall again, lower --lr"));
    let told = told.and_then(|it| it.split_once(": the loss is "));
    let (step, losses) = told.unwrap_or_else(|| panic!("{warning}"));
    let (now, first) = losses.split_once(", the first one was ").unwrap();
    let numbers = [step, now, first].map(|number| number.parse::<f32>().is_ok());
    assert_eq!(numbers, [true; 3], "{warning}");
    let ended = Job::start(&format!("{job} --metrics -")).end(LIMIT);
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    assert!(!ended.stderr.contains("warning: "), "{}", ended.stderr);
}
