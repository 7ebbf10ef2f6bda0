//! `tensorwire simulate` as a user sees it: tables, lines of JSON, networks from files, mistakes.

use std::time::Duration;

use crate::support::Job;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

fn shown(arguments: &str) -> String {
    let ended = Job::start(arguments).end(PATIENCE);
    assert!(ended.status.success(), "{arguments}: {}", ended.stderr);
    ended.stdout
}

fn refused(arguments: &str) -> String {
    let ended = Job::start(arguments).end(PATIENCE);
    assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
    ended.stderr
}

#[test]
fn every_strategy_is_simulated_up_to_4096_workers() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("lines.jsonl");
    let text = shown(&format!(
        "simulate --model mlp --strategy ps,dist-sgd,allreduce,mpi-sgd --workers 2,64,4096 --compute-ms 20 \
         --algorithm halving-doubling --servers 2 --json {}",
        json.display()
    ));
    assert!(text.contains("bottleneck") && text.contains("4096"), "{text}");
    assert!(text.contains("ps zero-copy, 64 workers: compute "), "{text}");
    let lines = std::fs::read_to_string(&json).unwrap();
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 12);
    for line in &lines {
        assert_eq!((&line["bench"], &line["cluster"]), (&"simulate".into(), &"rdma-100g".into()));
        let number = |name: &str| line[name].as_f64().unwrap();
        assert!(number("step_s") > 0.0 && number("compute_s") > 0.0, "{line}");
        assert!((number("efficiency") - number("compute_s") / number("step_s")).abs() < 1e-9);
        assert!(line["measured_step_s"].is_null() && line["bottleneck"].is_string(), "{line}");
        let parts = line["way_s"].as_object().unwrap().values();
        let way_s: f64 = parts.map(|seconds| seconds.as_f64().unwrap()).sum();
        assert!((way_s / number("step_s") - 1.0).abs() < 1e-6, "{line}");
        assert!(line["cores_s"]["compute"].as_f64().unwrap() > 0.0, "{line}");
    }
    let step = |strategy: &str, workers: u32| {
        let is = |l: &&Value| l["strategy"] == strategy && l["workers"] == workers;
        lines.iter().find(is).unwrap()["step_s"].as_f64().unwrap()
    };
    assert!(step("ps", 4096) > 10.0 * step("ps", 64), "two servers for all");
    assert!(step("allreduce", 4096) < 2.0 * step("allreduce", 64));
}

#[test]
fn the_papers_speed_up_is_shown_beside_ours() {
    let text = shown("simulate --model lstm --preset paper-xue --workers 8 --servers 8");
    assert!(text.contains("paper") && text.contains(" 5.0 "), "{text}");
}

#[test]
fn an_efficiency_above_1_is_explained() {
    let says = "servers make each once for all workers";
    let shown = |workers| {
        shown(&format!("simulate --compute-ms 3 --preset loopback --workers {workers} --servers 6"))
    };
    let text = shown(8);
    assert!(text.contains(" 1.1") && text.contains(says), "{text}");
    let text = shown(1);
    assert!(!text.contains(says), "{text}");
}

/// What the papers' servers, whose variables are given out in turns, lose to those that hold as many bytes each.
#[test]
fn balanced_servers_are_shown_beside_those_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("lines.jsonl");
    let text = shown(&format!(
        "simulate --model vgg16 --preset paper-xue --strategy ps,allreduce --placement balanced,round-robin --workers 8 \
         --json {}",
        json.display()
    ));
    assert!(text.contains("placement") && text.contains("balanced"), "{text}");
    let lines = std::fs::read_to_string(&json).unwrap();
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let placements: Vec<_> = lines.iter().map(|line| line["placement"].as_str()).collect();
    assert_eq!(placements, [Some("balanced"), Some("round-robin"), None]);
    let step = |at: usize| lines[at]["step_s"].as_f64().unwrap();
    assert!(1.2 * step(0) < step(1), "{text}");
    // theirs is what they measured
    assert!(lines[0]["paper_speedup"].is_null() && lines[1]["paper_speedup"] == 4.3, "{text}");
    let refused = refused("simulate --strategy allreduce --placement balanced");
    assert!(refused.contains("--placement is for --strategy ps"), "{refused}");
}

/// Nothing is updated twice, and half of what crosses to servers of others does not.
#[test]
fn workers_that_are_the_servers_send_what_they_do_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("lines.jsonl");
    shown(&format!(
        "simulate --model fcn5 --workers 2 --servers 0 --compute-ms 0.01 --json {}",
        json.display()
    ));
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let bytes = 4.0 * 52.8e6;
    let wire_s = bytes / 12.5e9;
    assert_eq!(line["servers"], 0);
    let step_s = line["step_s"].as_f64().unwrap();
    assert!((1.0..1.5).contains(&(step_s / wire_s)), "{line}");
}

#[test]
fn a_network_that_was_measured_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("here.toml");
    let written = shown(&format!("simulate --calibrate {}", path.display()));
    assert!(written.contains("by_reference = true") && written.contains("[machine]"), "{written}");
    let simulate = format!("simulate --compute-ms 20 --workers 2 --network {}", path.display());
    assert!(shown(&simulate).contains("mlp on here"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("copy_gbs = ", "copy_gbs = -")).unwrap();
    assert!(refused(&simulate).contains("machine.copy_gbs must be from 1e-6 to 1e6 GB/s, not -"));
    std::fs::write(&path, "name = 3").unwrap();
    assert!(refused(&simulate).contains("--calibrate"));
    std::fs::remove_file(&path).unwrap();
    assert!(refused(&simulate).contains("--calibrate"));
}

#[test]
fn a_step_is_simulated_beside_one_that_is_measured() {
    let text = shown(
        "simulate --model mlp --batch 64 --preset loopback --workers 2 --servers 2 --validate",
    );
    let row = text.lines().find(|line| line.trim_start().starts_with("ps ")).unwrap();
    assert!(text.contains("measured") && row.contains(" %"), "{text}");
    // one worker alone is measured, whatever its group is told
    for group in ["mpi-sgd --clients 2", "allreduce --algorithm ring"] {
        let text = shown(&format!("simulate --preset loopback --workers 4 --strategy {group}"));
        assert!(text.contains("mlp on loopback"), "{text}");
    }
}

#[test]
fn mistakes_are_said_in_a_line() {
    for (arguments, says) in [
        ("simulate --model nothing --compute-ms 1", "known models"),
        ("simulate --model seq2seq --compute-ms 1", "known only when it exists"),
        ("simulate --model mlp --preset paper-xue", "--compute-ms"),
        ("simulate --compute-ms 0", "--compute-ms must be from 1e-9 to 1e9 ms, not 0.0"),
        ("simulate --compute-ms 1e308", "--compute-ms must be from 1e-9 to 1e9 ms"),
        ("simulate --compute-ms 1 --servers 4096", "--servers"),
        ("simulate --compute-ms 1 --validate", "--calibrate"),
        ("simulate --compute-ms 1 --servers 0 --strategy dist-sgd", "--servers must be at least 1"),
        ("simulate --compute-ms 1 --strategy mpi-sgd --workers 8 --clients 3", "divide"),
        ("simulate --compute-ms 1 --strategy mpi-sgd --workers 2 --clients 4", "--clients"),
        ("simulate --compute-ms 1 --strategy allreduce --algorithm shared", "--algorithm shared"),
        ("simulate --strategy allreduce --exchange copy", "--exchange copy is no way of a group"),
        ("simulate --strategy allreduce --exchange grpc-rdma", "(--strategy allreduce)"),
        ("simulate --strategy ps,mpi-sgd --exchange zero-copy,grpc-tcp", "(--strategy mpi-sgd)"),
        ("simulate --strategy ps,allreduce --clients 2", "--clients is for --strategy mpi-sgd"),
        ("simulate --strategy ps,dist-sgd --algorithm ring", "--algorithm is for --strategy allr"),
        ("simulate --strategy allreduce --servers 2", "--servers is for --strategy ps"),
        ("simulate --preset loopback --validate --exchange copy", "--validate measures --exchange"),
    ] {
        let said = refused(arguments);
        assert!(said.contains(says), "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
