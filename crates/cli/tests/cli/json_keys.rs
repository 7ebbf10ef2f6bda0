//! What is printed as JSON has its schema in docs/command-line.md: every key of a command's objects is in the section that it refers
//! to, and what that section names is there, but for what other jobs have.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(120);
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");

/// What a section has in backquotes.
fn documented(heading: &str) -> BTreeSet<String> {
    let docs = std::fs::read_to_string(DOCS).unwrap();
    let (_, section) = docs.split_once(&format!("### {heading}\n")).unwrap();
    let section = section.split("\n#").next().unwrap();
    section.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// Holds the keys of objects against a section. `elsewhere` are words of it that are no keys of these: values, and keys of other jobs.
pub(crate) fn agree<'a>(
    heading: &str,
    objects: impl IntoIterator<Item = &'a Value>,
    nested: &[&str],
    elsewhere: &[&str],
) {
    let known = documented(heading);
    let mut keys = BTreeSet::new();
    for object in objects {
        keys.extend(object.as_object().unwrap().keys().map(String::as_str));
        for array in nested.iter().filter_map(|key| object[key].as_array()) {
            keys.extend(
                array.iter().flat_map(|one| one.as_object().unwrap().keys().map(String::as_str)),
            );
        }
    }
    // a purpose each
    let stands = |key: &str| match key.strip_prefix("bytes_copied_") {
        Some(_) if known.contains("bytes_copied_PURPOSE") => "bytes_copied_PURPOSE".to_string(),
        _ => key.to_string(),
    };
    let unknown: Vec<&&str> = keys.iter().filter(|key| !known.contains(&stands(key))).collect();
    assert!(unknown.is_empty(), "{heading} of {DOCS} does not say what these are: {unknown:?}");
    let is_key = |word: &&String| word.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
    let absent = known.iter().filter(is_key).map(String::as_str);
    let absent: Vec<&str> =
        absent.filter(|key| !keys.contains(key) && !elsewhere.contains(key)).collect();
    assert!(absent.is_empty(), "{heading} of {DOCS} names what is not there: {absent:?}");
}

fn run(arguments: &str) -> String {
    let ended = Job::start(arguments).end(LIMIT);
    assert!(ended.status.success(), "{arguments}: {}", ended.stderr);
    ended.stdout
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_job_and_its_evaluation_print_what_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (metrics, weights) = (place("m.jsonl"), place("w.safetensors"));
    let job = format!(
        "train --json --batch 8 --threads 1 --steps 4 --val-every 2 --metrics {metrics} --save {weights}"
    );
    let said = run(&job);
    let summary = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    // values, purposes, what is of a key, and what jobs on GPUs and some models have
    let elsewhere = [
        "allreduce",
        "none",
        "feeding",
        "store",
        "checkpoint",
        "count",
        "median",
        "device_steps",
        "metrics",
    ];
    agree("Summary of train", [&summary], &[], &elsewhere);
    let metrics = lines(&std::fs::read_to_string(metrics).unwrap());
    let (steps, last) = metrics.split_at(metrics.len() - 1);
    agree("Steps of train", steps, &[], &[]);
    agree("Summary of train", [&last[0]["summary"]], &[], &elsewhere);
    let evaluated = run(&format!("eval --json --batch 8 --threads 1 --load {weights}"));
    agree("Evaluation of eval", &lines(&evaluated), &[], &["metrics"]);
    let kept = place("kept");
    run(&format!("train --batch 8 --threads 1 --steps 2 --checkpoint {kept} --checkpoint-every 2"));
    let taken = place("taken.safetensors");
    let said = run(&format!("checkpoint convert {kept}/step-00000002 {taken} --json"));
    agree("Converted checkpoint", &lines(&said), &[], &[]);
    assert!(Path::new(&taken).exists());
}

#[test]
fn what_is_looked_up_prints_what_is_documented() {
    agree("Models", &lines(&run("models --json")), &[], &[]);
    // its status is of what it found
    let doctor = Job::start("doctor --json").end(LIMIT);
    let severities = ["ok", "note", "warning", "error"];
    agree("Doctor", [&doctor.json()], &["findings"], &severities);
    agree("Detected launcher", &lines(&run("launch --detect --json")), &[], &["srun"]);
}

#[test]
fn what_is_compared_and_listed_prints_what_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (before, after, page) = (place("a.jsonl"), place("b.jsonl"), place("p.html"));
    let line = |bytes: u32, median: u32| {
        format!(
            "{{\"bench\":\"write\",\"transport\":\"shm\",\"bytes\":{bytes},\"round_trip_us\":{median}}}\n"
        )
    };
    std::fs::write(&before, line(4, 2) + &line(8, 2)).unwrap();
    std::fs::write(&after, line(4, 4)).unwrap();
    let compared =
        run(&format!("report {before} {after} --compare --json --output {page} --tolerance 200"));
    let checked = run(&format!("bench check {before} {after} --json --tolerance 200"));
    assert_eq!(compared, checked);
    let compared = lines(&compared);
    agree("Comparison", &compared, &[], &["null"]);
    // of a measure, a unit, and verdicts
    let elsewhere = ["median", "min", "max", "s", "regressed", "improved", "unclear", "same"];
    let rows = compared[0]["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{compared:?}");
    agree("Rows of a comparison", rows, &[], &elsewhere);
    let listed = lines(&run("bench evaluation --list --quick --json"));
    assert!(listed.len() > 10, "{listed:?}");
    agree("Figures", &listed, &[], &[]);
}

fn status(folder: &Path) -> Option<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    let said = command.args(["status", "--json"]).env("XDG_RUNTIME_DIR", folder).output().unwrap();
    serde_json::from_slice(&said.stdout).ok()
}

#[test]
fn a_running_job_prints_what_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args("train --steps 100000000 --batch 8 --threads 1 --workers 1..2".split_whitespace());
    command.args(["--strategy", "allreduce", "--checkpoint"]).arg(folder.path().join("kept"));
    command.env("XDG_RUNTIME_DIR", folder.path());
    let job = Job::start_command(command);
    let until = Instant::now() + LIMIT;
    let answer = loop {
        // figures come after half a second of steps
        match status(folder.path()).filter(|answer| answer["members"][0]["figures"].is_object()) {
            Some(answer) => break answer,
            None => assert!(Instant::now() < until, "no figures"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let phases = ["starting", "meeting", "running", "done", "lost"];
    agree("Jobs", [&answer], &["members"], &phases);
    let ask = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        let name = answer["job"].as_str().unwrap();
        command.arg(words[0]).arg(name).args(&words[1..]).args(["--timeout", "50", "--json"]);
        let said = command.env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        serde_json::from_slice::<Value>(&said.stdout).unwrap()
    };
    agree("Answer of scale", [&ask(&["scale", "1"])], &[], &["null"]);
    agree("Answer of stop", [&ask(&["stop"])], &[], &["false"]);
    job.end(LIMIT);
}

/// The words that the row of a kind of measurement has, and those that all of them have.
fn of_measurement(bench: &str) -> BTreeSet<String> {
    let docs = std::fs::read_to_string(DOCS).unwrap();
    let (_, section) = docs.split_once("### Measurements\n").unwrap();
    let (common, _) = section.split_once("\n|").unwrap();
    let row = section.lines().find(|line| line.starts_with(&format!("| `{bench}`"))).unwrap();
    let words = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_string).collect()
    };
    words(common).into_iter().chain(words(row)).collect()
}

#[test]
fn what_is_measured_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("l.jsonl").display().to_string();
    for bench in [
        "bench transfer --transport shm --exchange write --kind static --sizes 4KiB --quick",
        "bench write --transport shm --sizes 4KiB --quick",
        "bench step --model mlp --steps 2 --iterations 1 --threads 1 --batch 4",
        "bench allreduce --transport shm --ranks 2 --sizes 4KiB --quick",
        "bench kvstore --transport shm --workers 1 --sizes 4KiB --quick",
        "bench modes --modes dist-sgd --epochs 1 --workers 2",
        "simulate --model fcn5 --preset paper-xue --workers 2",
    ] {
        run(&format!("{bench} --json {file}"));
    }
    let lines = lines(&std::fs::read_to_string(&file).unwrap());
    let mut kinds = BTreeSet::new();
    for line in &lines {
        let bench = line["bench"].as_str().unwrap();
        let known = of_measurement(bench);
        // a purpose, or a side, each
        let is_known = |key: &str| {
            let bare =
                ["p10_", "p90_", "grpc_"].iter().fold(key, |key, it| key.trim_start_matches(it));
            let side = ["_worker", "_server"].iter().fold(key, |key, it| key.trim_end_matches(it));
            let purpose =
                key.starts_with("bytes_copied_") && known.contains("bytes_copied_PURPOSE");
            purpose || [key, bare, side].iter().any(|key| known.contains(*key))
        };
        let keys = line.as_object().unwrap().keys();
        let unknown: Vec<&String> = keys.filter(|key| !is_known(key)).collect();
        assert!(unknown.is_empty(), "{DOCS} does not say what these of {bench} are: {unknown:?}");
        kinds.insert(bench);
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    run(&format!("report {file} --format claims-json --output {file}.claims"));
    let claims = self::lines(&std::fs::read_to_string(format!("{file}.claims")).unwrap());
    let verdicts = ["met", "short", "unclear", "why"];
    agree("Claims", &claims, &[], &verdicts);
}
