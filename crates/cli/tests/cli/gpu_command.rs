//! `cargo xtask gpu --stand-in`: its quick parts, with the program as it is built here.

use std::path::PathBuf;

use serde_json::Value;
use tensorwire_testkit::long;
use tensorwire_testkit::program;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;
use xtask::gpu::{GpuDriver, GpuPrograms, GpuRun, Programs, run};
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
        programs: GpuPrograms::Built(Box::new(programs)),
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

/// True of lines that say, of a part, what it was that was measured.
fn of_part<'a>(lines: &'a [Value], part: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["part"] == part && line["outcome"].is_null())
}

/// Parts that hold jobs beside each other, as small as they are on the stand-in.
#[test]
fn jobs_are_held_beside_each_other() {
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let (passed, said, lines) =
        parts(&["losses", "collectives", "crossings", "steps"], programs(kernels));
    assert!(passed, "{said}");
    assert!(of_part(&lines, "losses").count() == 2, "{said}");
    for line in of_part(&lines, "losses") {
        assert!(line["apart"].as_f64().is_some_and(|apart| apart < 1e-5), "{line}");
    }
    let by: Vec<&str> =
        of_part(&lines, "collectives").filter_map(|line| line["by"].as_str()).collect();
    assert!(by.contains(&"nccl") && by.len() >= 2, "{said}");
    // each way of the model, and what it moved
    let ways = if cfg!(feature = "baselines") { 4 } else { 3 };
    assert_eq!(of_part(&lines, "crossings").count(), ways, "{said}");
    let to_host = |way: &str| {
        let line = of_part(&lines, "crossings").find(|line| line["way"] == way);
        line.and_then(|line| line["bytes_copied_to_host"].as_u64()).unwrap()
    };
    // gradients of two workers in three steps, beside weights that are hashed once
    assert!(to_host("staged over tcp") > 4 * to_host("read where it lies"), "{said}");
    let steps = of_part(&lines, "steps").next().unwrap();
    assert!(steps["tensorwire_ms"].is_f64() && steps["eager_ms"].is_null(), "{steps}");
}

/// The example that asks a GPU first questions, and measures how it copies.
#[test]
fn first_questions_and_rates_are_judged() {
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let programs = Programs { gpu: Some(program::example("gpu")), ..programs(kernels) };
    let (passed, said, lines) = parts(&["questions", "rates"], programs);
    assert!(passed, "{said}");
    let answers = of_part(&lines, "questions").filter(|line| line["answer"] == "yes");
    assert_eq!(answers.count(), 5, "{said}");
    let graph = of_part(&lines, "questions").find_map(|line| line["launches_of_graph"].as_u64());
    assert_eq!(graph, Some(8_000), "{said}");
    let rates = of_part(&lines, "rates");
    let shares = rates.filter(|line| line["of_copy"].is_f64() || line["of_pinned"].is_f64());
    assert_eq!(shares.count(), 3, "{said}");
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
    let python = std::env::var_os("TENSORWIRE_PYTORCH").map(PathBuf::from);
    let programs = Programs { python, ..programs(kernels) };
    let (passed, said, lines) = parts(&["torch-losses", "steps"], programs);
    assert!(passed, "{said}");
    let steps = of_part(&lines, "steps").next().unwrap();
    assert!(steps["eager_ms"].is_f64(), "{said}");
    let compared: Vec<&Value> = lines.iter().filter(|line| line["worst_apart"].is_f64()).collect();
    assert_eq!(compared.len(), 2, "{said}");
    for line in compared {
        // sums in another order: not the same numbers, and near
        assert!(line["worst_apart"].as_f64().is_some_and(|worst| worst < 1e-5), "{line}");
    }
}
