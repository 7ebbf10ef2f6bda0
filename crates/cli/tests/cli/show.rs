//! What the program shows without training: the graph, the models, its help.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Job;

fn shown(arguments: &str) -> String {
    let ended = Job::start(arguments).end(Duration::from_secs(60));
    assert!(ended.status.success(), "{arguments}: {}", ended.stderr);
    ended.stdout
}

#[test]
fn the_graph_shows_what_each_server_keeps() {
    let shares = |options: &str| {
        let text = shown(&format!("graph --full --model vgg16 --servers 2 {options}"));
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let is_share = |row: &Vec<&str>| matches!(row[..], ["server", .., "%"]);
        let share = |row: Vec<&str>| row[row.len() - 2].parse::<f64>().unwrap();
        let shares: Vec<f64> = rows.filter(is_share).map(share).collect();
        assert_eq!(shares.len(), 2, "{text}");
        (shares[0], text)
    };
    let (balanced, text) = shares("");
    assert!((47.5..=52.5).contains(&balanced), "{text}");
    // its first dense layer alone is three quarters of the whole
    assert!(text.contains("rows of a tensor of several servers"), "{text}");
    let (in_turns, text) = shares("--placement round-robin");
    assert!(!(25.0..=75.0).contains(&in_turns), "{text}");
}

/// Where each process has a host of its own, no server's link carries more than a twentieth above the mean; in turns, it does.
#[test]
fn servers_links_carry_alike() {
    let busiest = |options: &str| {
        let json =
            shown(&format!("graph --json --model vgg16 --servers 4 --transport tcp {options}"));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let links = json["links"].as_array().unwrap();
        assert_eq!(links.len(), 4, "{options}");
        let bytes = |link: &serde_json::Value, way: &str| link[way].as_u64().unwrap() as f64;
        let both: Vec<f64> =
            links.iter().map(|l| bytes(l, "bytes_sent") + bytes(l, "bytes_received")).collect();
        let sum: f64 = both.iter().sum();
        // each of two workers gets all 134,301,514 parameters (of 10 classes), and sends as much
        assert_eq!(sum, 4.0 * 4.0 * 134_301_514.0, "{options}");
        4.0 * both.iter().copied().fold(0.0, f64::max) / sum
    };
    for options in ["--strategy ps", "--strategy dist-sgd"] {
        assert!(busiest(options) <= 1.05, "{options}: {}", busiest(options));
    }
    assert!(busiest("--placement round-robin") > 2.0);
    let full = shown("graph --full --model mlp --servers 3 --transport tcp");
    assert!(full.contains("a step on the link of") && full.contains("over the mean"), "{full}");
}

#[test]
fn the_graph_lists_what_crosses_how_large_it_is_and_where_it_lives() {
    // (exchange, edges, of which by reference, by a write, of nothing but an order)
    let cases = [
        // a bias of 40 bytes goes to each of 2 workers, and its gradient back; each worker says when it
        // has read two layers' weights
        ("--exchange zero-copy", 28, 20, 4, 4),
        ("--exchange write", 24, 0, 24, 0),
        ("--transport tcp", 24, 0, 24, 0),
        ("--exchange copy", 24, 0, 24, 0),
    ];
    for (options, count, by_reference, written, signals) in cases {
        let text = shown(&format!(
            "graph --full --workers 2 --servers 2 --placement round-robin {options}"
        ));
        let edges: Vec<&str> = text.lines().filter(|line| line.contains(" → ")).skip(1).collect();
        assert_eq!(edges.len(), count, "{options}:\n{text}");
        let of = |what: &str| edges.iter().filter(|edge| edge.contains(what)).count();
        assert_eq!((of("  by reference  "), of("the sender's+")), (by_reference, by_reference));
        assert_eq!((of("one write  "), of("  registered+")), (written, written), "{text}");
        assert_eq!((of("  signal  "), of("  no bytes")), (signals, signals), "{text}");
        assert_eq!(of("  proved"), by_reference + written, "{text}");
        let copied = if options == "--exchange copy" { 24 } else { 0 };
        assert_eq!(of("a copy, one write"), copied, "{text}");
        let weight = edges.iter().find(|edge| edge.trim_start().starts_with("hidden2/weight"));
        for part in ["server 0 → worker 0", "f32[2048×2048]", "16777216"] {
            assert!(weight.unwrap().contains(part), "{weight:?}");
        }
        let step = match by_reference {
            0 => "a training step: 24 sends; 66.4 MiB written, 0 B by reference",
            _ => "a training step: 28 sends; 160 B written, 66.4 MiB by reference",
        };
        assert!(text.contains(step), "{text}");
        for reason in [
            ("zero-copy", "size known, memory shared"),
            ("tcp", "size known, memory not shared"),
            ("write", "size known, told to write"),
        ] {
            assert!(!options.ends_with(reason.0) || text.contains(reason.1), "{text}");
        }
        assert!(text.contains(" peak ") && text.contains(" sum"), "{text}");
    }
    // on six servers a layer's weights and the gradient before it are apart: credits
    let apart =
        shown("graph --full --workers 1 --servers 6 --placement round-robin --exchange write");
    assert!(apart.contains("credit after"), "{apart}");
    if cfg!(feature = "baselines") {
        let by_message = shown("graph --full --exchange grpc-rdma");
        assert!(by_message.contains("a message, grpc-rdma"), "{by_message}");
        assert!(by_message.contains(" in messages,"), "{by_message}");
    }
    let of_one = shown("graph --full --async --workers 3");
    assert!(of_one.starts_with("note: with --async each of 3 workers has a plan"), "{of_one}");
    assert!(of_one.contains("once for each of 3 workers"), "{of_one}");
    assert!(shown("graph --full --strategy local").contains("nothing crosses"));
}

#[test]
fn the_drawing_has_every_node_once_and_every_crossing() {
    let dot = shown("graph --full --workers 1 --servers 1 --exchange write --dot");
    assert!(dot.starts_with("digraph plan {") && dot.trim_end().ends_with('}'), "{dot}");
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    assert_eq!(dot.matches("subgraph cluster_").count(), 2);
    assert_eq!(dot.matches("style=bold").count(), 12);
    assert_eq!(dot.matches("\\nSend, one write").count(), 12);
    assert_eq!(dot.matches("\\nRecv, one write").count(), 12);
}

#[test]
fn the_models_are_listed_to_the_byte() {
    let text = shown("models");
    let mlp = text.lines().find(|line| line.trim_start().starts_with("mlp")).unwrap();
    let fields: Vec<&str> = mlp.split_whitespace().collect();
    // 784·2048 + 2048 + 2048² + 2048 + 2048·10 + 10 numbers of 4 bytes
    assert_eq!(fields[fields.len() - 3..], ["6", "5824522", "22.22"], "{mlp}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tensorwire"))
        .args(["graph", "--full", "--dot", "--workers", "40", "--batch", "4"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn a_job_goes_on_when_nobody_reads_what_it_says() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tensorwire"))
        .args(["train", "--steps", "30", "--batch", "8", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("\"steps\":30"));
}

#[test]
fn help_teaches() {
    for (arguments, says) in [
        ("--help", ["train", "graph"]),
        ("train --help", ["Examples:", "Exit status:"]),
        ("bench transfer --help", ["reduce_max", "--sizes"]),
        ("doctor --help", ["--peer node1", "Findings:"]),
    ] {
        let text = shown(arguments);
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
        assert!(!text.contains("member"), "members are no command for people: {text}");
    }
}
