//! Beside PyTorch: from one file of weights and the same batches both compute the same losses. docs/weights.md says what
//! PyTorch needs for it. Skipped where there is no PyTorch, unless TENSORWIRE_PYTORCH names the python that has it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use tensorwire_testkit::skip::skip;

/// What PyTorch computes is the same to the rounding of f32.
const TOLERANCE: &str = "1e-4";

/// The python that has PyTorch; none: the test is skipped.
fn python() -> Option<OsString> {
    const VARIABLE: &str = "TENSORWIRE_PYTORCH";
    let python = std::env::var_os(VARIABLE);
    if python.is_none() {
        skip(Some(VARIABLE), &"TENSORWIRE_PYTORCH names no python with PyTorch");
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
fn computes_the_losses_that_we_do() {
    let Some(python) = python() else { return };
    let models = ["--models", "mlp,cifar,gru,gpt-mini", "--steps", "3", "--threads", "1"];
    let arguments = [&models[..], &["--tolerance", TOLERANCE]].concat();
    let (ended, said) = peer(&python, "pytorch_loss.py", &arguments);
    assert!(ended.status.success(), "{said}");
    for model in ["mlp", "cifar", "gru", "gpt-mini"] {
        assert!(said.contains(model), "{said}");
    }
}

#[test]
fn learns_the_digits_beside_us_and_both_curves_are_drawn() {
    const EPOCHS: usize = 2;
    /// 1,438 samples by two workers with 64 each.
    const STEPS: usize = 11;
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let arguments =
        ["--strategies", "ps", "--wire", "f32", "--epochs", "2", "--seeds", "1", "--out", out];
    let (ended, said) = peer(&python, "pytorch_converge.py", &arguments);
    // 1: the accuracies differ, as they may after two epochs
    assert!(matches!(ended.status.code(), Some(0 | 1)) && !said.contains("Traceback"), "{said}");
    let files =
        ["pytorch-ddp-1.jsonl", "tensorwire-ps-1.jsonl"].map(|file| folder.path().join(file));
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let lines =
            text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        let steps = lines.iter().filter(|line| line["step"].is_u64()).count();
        assert_eq!(steps, EPOCHS * STEPS, "{}", file.display());
        // ours is in the summary, which comes last
        let of = |line: &serde_json::Value| {
            line["test_accuracy"].as_f64().or(line["summary"]["test_accuracy"].as_f64())
        };
        let accuracy = lines.iter().rev().find_map(of).unwrap();
        assert!(accuracy > 0.6, "{}: {accuracy}", file.display());
    }
    let page = folder.path().join("page.html");
    let mut report = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    report.arg("report").args(&files).arg("--output").arg(&page);
    assert!(report.status().unwrap().success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("pytorch-ddp-1") && page.contains("tensorwire-ps-1"), "{page}");
}
