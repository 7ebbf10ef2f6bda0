//! What saved weights are worth, without training: the figures that the job ended with that wrote them.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Ended, Job};

const LIMIT: Duration = Duration::from_secs(120);
const SMALL: &str = "--batch 8 --threads 1";

fn run(arguments: &str) -> Ended {
    let ended = Job::start(arguments).end(LIMIT);
    assert!(ended.status.success(), "{arguments}: {}", ended.stderr);
    ended
}

fn refused(arguments: &str) -> String {
    let ended = Job::start(arguments).end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
    ended.last_line().to_string()
}

/// What an evaluation says is what the job said, to the bit.
fn same(evaluated: &Value, trained: &Value, context: &str) {
    for key in ["model", "data", "weights_sha256", "test_accuracy", "test_loss", "test_perplexity"]
    {
        assert_eq!(evaluated[key], trained[key], "{context}: {key}");
    }
    assert!(evaluated["test_loss"].as_f64().is_some(), "{context}: {evaluated}");
    assert!(evaluated["seconds"].as_f64() > Some(0.0), "{context}: {evaluated}");
}

#[test]
fn weights_and_checkpoints_are_worth_what_their_job_said() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (file, kept) = (place("w.safetensors"), place("kept"));
    let job = format!("train --json {SMALL} --steps 6 --ema 0.5 --seed 7 --save {file}");
    let trained = run(&format!("{job} --checkpoint {kept} --checkpoint-every 3")).json();
    for load in [file.clone(), kept.clone(), format!("{kept}/step-00000006")] {
        for word in ["eval", "evaluate"] {
            let evaluated = run(&format!("{word} --json {SMALL} --load {load}")).json();
            same(&evaluated, &trained, &load);
            assert_eq!(evaluated["samples"], 359, "{load}");
        }
    }
    // another batch: the same samples, also where training has fewer than it
    let ended = run(&format!("eval --json --load {file} --batch 2000"));
    assert_eq!(ended.json()["samples"], 359, "{}", ended.stderr);
    assert_eq!(ended.json()["test_accuracy"], trained["test_accuracy"]);
    let ended = run(&format!("eval --load {file} --batch 359"));
    let accuracy = format!("test accuracy {:.4}", trained["test_accuracy"].as_f64().unwrap());
    assert_eq!(ended.stdout.lines().last(), Some(accuracy.as_str()), "{}", ended.stdout);
    assert!(ended.stdout.contains("359 samples in "), "{}", ended.stdout);
    assert_eq!(ended.files().len(), 0, "nothing is written");
    // a damaged one is passed over, and an earlier step is another model
    let torn = Path::new(&kept).join("step-00000006/shard-server0.safetensors");
    std::fs::write(torn, "torn").unwrap();
    let ended = run(&format!("eval --json {SMALL} --load {kept}"));
    assert!(ended.stderr.contains("it is passed over"), "{}", ended.stderr);
    assert!(ended.json()["weights"].as_str().unwrap().ends_with("step-00000003"));
    assert_ne!(ended.json()["weights_sha256"], trained["weights_sha256"]);
}

#[test]
fn a_checkpoint_knows_its_model_and_its_data_and_a_folder_can_be_trained_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept").display().to_string();
    let job =
        "train --json --model seq2seq --data reverse:64 --strategy local --workers 1 --seed 3";
    let trained = run(&format!("{job} {SMALL} --steps 2 --checkpoint {kept}")).json();
    let evaluated = run(&format!("eval --json {SMALL} --load {kept}")).json();
    same(&evaluated, &trained, "seq2seq");
    assert!(evaluated["test_perplexity"].as_f64().is_some(), "{evaluated}");
    // as from the file that it would be converted to
    let file = folder.path().join("w.safetensors").display().to_string();
    run(&format!("checkpoint convert {kept}/step-00000002 {file}"));
    let from = |load: &str| {
        let ended = run(&format!("{job} {SMALL} --steps 2 --load {load}"));
        ended.json()["weights_sha256"].clone()
    };
    assert_eq!(from(&kept), from(&file));
}

#[test]
fn what_cannot_be_evaluated_says_why_and_epochs_of_none_say_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let file = place("w.safetensors");
    run(&format!("train --strategy local --workers 1 {SMALL} --steps 1 --save {file}"));
    std::fs::write(folder.path().join("t.csv"), "1,2,yes\n3,4,no\n").unwrap();
    let table = format!("--data csv:{} --batch 1", place("t.csv"));
    let other = place("t.safetensors");
    run(&format!("train --strategy local --workers 1 --steps 1 {table} --save {other}"));
    for (arguments, says) in [
        (format!("--load {}", place("none")), "give a file that --save wrote, or a folder of"),
        (format!("--load {}", folder.path().display()), "there is no checkpoint in "),
        (format!("--load {file} --model cifar"), "holds other weights than the model: "),
        (format!("--load {file} --model mpl"), "did you mean 'mlp'?"),
        (format!("--load {file} --dtype bf16"), "give --dtype f32"),
        (format!("--load {other} {table}"), "has no samples to test with; give data that have"),
        (format!("--load {file} {table}"), "'output/bias' is F32[10], not f32[2]"),
    ] {
        let said = refused(&format!("eval {arguments}"));
        assert!(said.contains(says), "{arguments}: {said}");
    }
    std::fs::rename(place("t.csv"), place("moved.csv")).unwrap();
    let said = refused(&format!("eval --load {other}"));
    assert!(said.contains("these are what the weights were trained on: say where they"), "{said}");
    // the last number of the file is one of its last tensor
    let mut image = std::fs::read(&file).unwrap();
    let at = image.len() - 4;
    image[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, image).unwrap();
    let said = refused(&format!("eval --load {file}"));
    assert!(said.contains("' holds NaN, as after training that diverged"), "{said}");
    for option in ["--epochs 0", "--steps 0"] {
        let said = refused(&format!("train --load {file} {option}"));
        assert!(said.contains("`tensorwire eval --load FILE` evaluates weights"), "{said}");
    }
    let ended = Job::start("eval").end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--load <PATH>"), "{}", ended.stderr);
}

/// Words are numbered by the table that they are in, and folders by those beside them: weights know what they were trained on.
#[test]
fn data_with_other_classes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let table = |name: &str, words: &[&str]| {
        let rows = (0..60).map(|row| format!("{row},{},{}\n", row % 7, words[row % words.len()]));
        std::fs::write(folder.path().join(name), rows.collect::<String>()).unwrap();
    };
    table("train.csv", &["cat", "dog"]);
    table("same.csv", &["dog", "cat"]);
    table("other.csv", &["dog", "eel"]);
    table("fewer.csv", &["dog"]);
    table("numbers.csv", &["0", "1"]);
    table("more.csv", &["cat", "dog", "eel"]);
    let (file, kept, converted) =
        (place("w.safetensors"), place("kept"), place("converted.safetensors"));
    let alone = "--strategy local --workers 1 --batch 4";
    let data = |name: &str| format!("--data csv:{}", place(name));
    let trained = data("train.csv");
    run(&format!("train {alone} {trained} --steps 2 --save {file} --checkpoint {kept}"));
    run(&format!("checkpoint convert {kept} {converted}"));
    for load in [&file, &kept, &converted] {
        let evaluated = |name: &str| format!("eval --load {load} --batch 4 {}", data(name));
        run(&evaluated("same.csv"));
        // its own data, with the rows of its own test
        let own = run(&format!("eval --load {load} --batch 4 --json")).json();
        assert_eq!(own["data"], format!("csv:{}", place("train.csv")));
        for (name, says) in [
            (
                "other.csv",
                "it knows no 'eel', which is there, and 'cat' is not; give data with the",
            ),
            ("fewer.csv", "it knows 'cat', which is not there; give data with the same classes"),
            ("more.csv", "it knows no 'eel', which is there; give data with the same classes"),
        ] {
            let said = refused(&evaluated(name));
            let other = format!("on other classes than those of csv:{}: {says}", place(name));
            assert!(said.contains(&other), "{load}: {said}");
        }
        run(&format!("eval --load {load} --batch 4 {trained},{}", place("fewer.csv")));
    }
    let goes_on = format!("train {alone} --steps 4 --resume {kept}");
    for name in ["other.csv", "more.csv"] {
        let said = refused(&format!("{goes_on} {}", data(name)));
        assert!(
            said.contains("which is there") && said.contains("give the data of its training"),
            "{said}"
        );
        // the last layer has its size
        assert_eq!(said.contains("--load in the place of --resume"), name == "other.csv", "{said}");
    }
    run(&format!("{goes_on} {}", data("same.csv")));
    // weights may begin to learn something else
    let ended = run(&format!("train {alone} --steps 1 --load {file} {}", data("other.csv")));
    let says = "their classes were others: it knows no 'eel'";
    assert!(ended.stderr.contains(says) || ended.stdout.contains(says), "{}", ended.stderr);
    // and say of which classes they are then
    run(&format!(
        "train {alone} --steps 4 --resume {kept} --checkpoint {} {}",
        place("more"),
        data("numbers.csv")
    ));
    let said = refused(&format!("eval --load {} --batch 4 {}", place("more"), data("other.csv")));
    assert!(said.contains("was trained on other classes"), "{said}");
}
