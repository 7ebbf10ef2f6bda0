//! `cargo xtask gpu --stand-in`: its quick parts, with the program as it is built here.

use std::path::PathBuf;

use serde_json::Value;
use tensorwire_testkit::long;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;
use xtask::gpu::{GpuDriver, GpuRun, Programs, run};
use xtask::soft_roce::Stop;

fn programs(kernels: PathBuf) -> Programs {
    let library = tensorwire_fakecuda::library().expect("cargo builds it for these tests");
    Programs {
        tensorwire: Some(env!("CARGO_BIN_EXE_tensorwire").into()),
        stand_in: Some((library, kernels)),
        has_baselines: cfg!(feature = "baselines"),
        ..Programs::default()
    }
}

/// Runs parts; returns whether none failed, what was printed, and the lines of JSON.
fn parts(names: &[&str], programs: Programs) -> (bool, String, Vec<Value>) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("lines.jsonl");
    let mut out = Vec::new();
    let wanted = GpuRun {
        parts: &names,
        driver: GpuDriver::StandIn,
        json: Some(&json),
        with_torch: false,
        features: None,
        programs: Some(programs),
    };
    let passed = run(wanted, &Stop::default(), &mut out).unwrap();
    let lines = std::fs::read_to_string(json).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (passed, String::from_utf8(out).unwrap(), lines)
}

#[test]
fn a_run_says_of_each_part_what_became_of_it() {
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let (passed, said, lines) =
        parts(&["sanitizer", "machine", "jobs", "operators"], programs(kernels));
    assert!(passed, "{said}");
    assert!(said.contains("nothing was measured"), "{said}");
    let outcome = |part: &str| {
        let line = lines.iter().find(|line| line["part"] == part && !line["outcome"].is_null());
        line.unwrap_or_else(|| panic!("{part} in {said}"))["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(["machine", "jobs"].map(outcome), ["passed"; 2]);
    // what is not built, and what no stand-in can do
    assert_eq!(["operators", "sanitizer"].map(outcome), ["not run"; 2]);
    assert!(lines.iter().all(|line| line["gpu_run"] == "stand-in"), "{lines:?}");
    let machine = lines.iter().find(|line| line["part"] == "machine").unwrap();
    assert_eq!(machine["gpus"][0]["name"], "Fake GPU");
    let jobs = lines.iter().filter(|line| line["job"].is_string());
    assert_eq!(jobs.count(), 10, "{said}");
}

#[test]
fn a_part_that_fails_stops_no_other_and_fails_the_run() {
    // a driver that cannot compute: it has no kernels
    let broken = programs("/nonexistent/kernels.so".into());
    let (passed, said, lines) = parts(&["jobs", "sanitizer"], broken);
    assert!(!passed, "{said}");
    let failed = lines.iter().find(|line| line["part"] == "jobs").unwrap();
    assert_eq!(failed["outcome"], "failed");
    assert!(failed["said"].as_str().unwrap().contains("/nonexistent/kernels.so"), "{said}");
    assert!(lines.iter().any(|line| line["part"] == "sanitizer"), "{said}");
}

/// What the stand-in computes is what PyTorch does, from the same weights and batches.
#[test]
fn long_losses_are_held_beside_pytorch() {
    // it loads PyTorch three times
    if !long::is_long() {
        return;
    }
    if std::env::var_os("TENSORWIRE_PYTORCH").is_none() {
        return skip(
            Some("TENSORWIRE_PYTORCH"),
            &"TENSORWIRE_PYTORCH names no python with that framework",
        );
    }
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let (passed, said, lines) = parts(&["torch-losses"], programs(kernels));
    assert!(passed, "{said}");
    let compared: Vec<&Value> = lines.iter().filter(|line| line["worst_apart"].is_f64()).collect();
    assert_eq!(compared.len(), 2, "{said}");
    for line in compared {
        // sums in another order: not the same numbers, and near
        assert!(line["worst_apart"].as_f64().is_some_and(|worst| worst < 1e-5), "{line}");
    }
}
