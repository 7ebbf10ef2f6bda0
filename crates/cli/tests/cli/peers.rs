//! Beside other frameworks: from one file of weights and the same batches PyTorch computes the losses that we do, and in as
//! many steps each learns what we learn. docs/weights.md says what PyTorch needs for it. Skipped where a framework is not
//! there, unless its variable (TENSORWIRE_PYTORCH, …) names the python that has it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use tensorwire_testkit::{long, skip::skip};

/// What PyTorch computes is the same to the rounding of f32.
const TOLERANCE: &str = "1e-4";

/// The python that has a framework, which a variable names; none: the test is skipped.
fn python(variable: &str) -> Option<OsString> {
    let python = std::env::var_os(variable);
    if python.is_none() {
        skip(Some(variable), &format_args!("{variable} names no python with that framework"));
    }
    python
}

/// Runs a script of `bench/peers` beside this program. Returns how it ended, and all that it said.
fn peer(python: &OsString, script: &str, arguments: &[&str]) -> (Output, String) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peers");
    let mut command = Command::new(python);
    command.arg(Path::new(folder).join(script)).args(arguments);
    let ended = command.args(["--tensorwire", env!("CARGO_BIN_EXE_tensorwire")]).output().unwrap();
    let said = [&ended.stdout, &ended.stderr].map(|said| String::from_utf8_lossy(said));
    let said = said.concat();
    (ended, said)
}

#[test]
fn pytorch_computes_the_losses_that_we_do() {
    let Some(python) = python("TENSORWIRE_PYTORCH") else { return };
    let names = ["mlp", "cifar", "gru", "gpt-mini", "seq2seq", "sentence-embedding"];
    let models = ["--models", &names.join(","), "--steps", "3", "--threads", "1"];
    let arguments = [&models[..], &["--tolerance", TOLERANCE]].concat();
    let (ended, said) = peer(&python, "pytorch_loss.py", &arguments);
    assert!(ended.status.success(), "{said}");
    for model in names {
        assert!(said.contains(model), "{said}");
    }
}

#[test]
fn pytorch_learns_beside_us_and_both_curves_are_drawn() {
    learns_beside_us("pytorch", "TENSORWIRE_PYTORCH", "pytorch-ddp-1");
}

#[test]
fn tensorflow_learns_beside_us_and_both_curves_are_drawn() {
    learns_beside_us("tensorflow", "TENSORWIRE_TENSORFLOW", "tensorflow-grpc-1");
}

#[test]
fn mxnet_learns_beside_us_and_both_curves_are_drawn() {
    learns_beside_us("mxnet", "TENSORWIRE_MXNET", "mxnet-dist-sync-1");
}

/// `name` is the framework's in converge.py, `run` what that calls its run.
fn learns_beside_us(name: &str, variable: &str, run: &str) {
    /// Two epochs of the digits.
    const STEPS: usize = 22;
    let Some(python) = python(variable) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (out, of) = (folder.path().to_str().unwrap(), format!("--{name}"));
    // the text takes a minute
    let tasks = long::of(&["digits"][..], &["digits", "text"]);
    let (steps, all) = (STEPS.to_string(), tasks.join(","));
    let arguments = ["--tasks", &all, "--peers", name, &of, python.to_str().unwrap()];
    let one =
        ["--strategies", "ps", "--wire", "f32", "--seeds", "1", "--steps", &steps, "--out", out];
    let (ended, said) = peer(&python, "converge.py", &[&arguments[..], &one].concat());
    // 1: what they learned differs, as it may after so few steps
    assert!(matches!(ended.status.code(), Some(0 | 1)) && !said.contains("Traceback"), "{said}");
    for task in tasks {
        let files = [run, "tensorwire-ps-1"].map(|name| format!("{out}/{task}/{name}.jsonl"));
        for file in &files {
            let text = std::fs::read_to_string(file).unwrap_or_else(|_| panic!("{said}"));
            let lines =
                text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            let lines: Vec<serde_json::Value> = lines.collect();
            let steps = lines.iter().filter(|line| line["step"].is_u64()).count();
            assert_eq!(steps, STEPS, "{file}");
            // ours is in the summary, which comes last
            let of = |line: &serde_json::Value| {
                line["test_loss"].as_f64().or(line["summary"]["test_loss"].as_f64())
            };
            let loss = lines.iter().rev().find_map(of).unwrap();
            // chance is ln 10 and ln 62
            let learned = if *task == "digits" { 1.5 } else { 3.5 };
            assert!(loss < learned, "{file}: {loss}");
        }
        let page = folder.path().join("page.html");
        let mut report = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        report.arg("report").args(&files).arg("--output").arg(&page);
        assert!(report.status().unwrap().success());
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(run) && page.contains("tensorwire-ps-1"), "{page}");
    }
}
