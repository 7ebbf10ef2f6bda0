//! `tensorwire graph` as a drawing: of every shipped model, on one screen, with nothing left out of its sums.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tensorwire_testkit::long;

use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(120);

fn shown(arguments: &str) -> String {
    // read while it is written: tables of a large model are longer than a pipe
    let ended = Command::new(env!("CARGO_BIN_EXE_tensorwire"))
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(ended.status.success(), "{arguments}: {}", text(ended.stderr));
    text(ended.stdout)
}

fn edges(arguments: &str) -> Vec<Value> {
    let object: Value = serde_json::from_str(&shown(&format!("{arguments} --json"))).unwrap();
    object["edges"].as_array().unwrap().clone()
}

/// Bytes as people read them.
fn human(bytes: u64) -> String {
    tensorwire_base::human_bytes(bytes)
}

/// The words of a text, one blank apart: lines end where a screen does.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the drawing and the tables say of a step, made of the tensors that `--json` lists.
fn sum(strategy: &str, edges: &[Value]) -> String {
    let of = |key: &str, value: &str| -> u64 {
        let edges = edges.iter().filter(|edge| edge[key] == value);
        edges.filter_map(|edge| edge["bytes"].as_u64()).sum()
    };
    match strategy {
        "ps" => {
            let dynamic = edges.iter().filter(|edge| edge["transfer"] == "dynamic").count();
            let (written, referred) = (of("transfer", "one write"), of("transfer", "by reference"));
            let (written, referred) = (human(written), human(referred));
            let sends = edges.len();
            format!(
                "a training step: {sends} sends; {written} written, {referred} by reference, {dynamic} tensors of"
            )
        }
        "allreduce" => {
            format!("of 2 workers {} are all-reduced", human(of("what", "all-reduce")))
        }
        _ => {
            let [pulled, pushed] = ["weights", "gradient"].map(|what| human(of("what", what) / 2));
            format!("each of 2 workers pulls {pulled} and pushes {pushed}")
        }
    }
}

#[test]
fn every_model_fits_a_screen_and_has_the_bytes_of_its_tables() {
    let models = shown("models");
    let names: Vec<&str> =
        models.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 15, "{models}");
    for model in names {
        // what strategies send of the same layers, each model shows as the small ones do
        let few = if model.ends_with("-mini") || model == "mlp" { 3 } else { 1 };
        for strategy in &["ps", "allreduce", "dist-sgd"][..long::of(few, 3)] {
            let job = format!("graph --model {model} --strategy {strategy} --batch 2");
            let text = shown(&job);
            let columns = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(text.lines().count() <= 40 && columns <= 80, "{job}\n{text}");
            let said = sum(strategy, &edges(&job));
            assert!(words(&text).contains(&said), "{job}: no '{said}'\n{text}");
            assert!(words(&shown(&format!("{job} --full"))).contains(&said), "{job}: no '{said}'");
            assert!(text.matches('┌').count() == 2 && text.contains('►'), "{job}\n{text}");
        }
    }
}

#[test]
fn a_small_model_has_a_box_a_layer_with_bytes_and_how_they_cross() {
    let text = shown("graph --workers 2 --servers 2 --placement round-robin");
    let rows = [
        "│ hidden2          │◄─ weights 16.0 MiB by reference",
        "── gradient 16.0 MiB by reference",
        "worker 0 at the left; the same for worker 1",
    ];
    assert!(rows.iter().all(|row| text.contains(row)), "{text}");
    assert!(text.contains("of what crosses 4 are signals"), "{text}");
    let written = shown("graph --transport tcp");
    assert!(written.contains("one write") && !written.contains("MiB by reference"), "{written}");
    let folded = shown("graph --model bert-mini");
    assert!(folded.contains("×4"), "layers that are the same stand once: {folded}");
    let alone = shown("graph --strategy local");
    assert!(alone.contains("nothing crosses") && alone.contains("hidden1"), "{alone}");
    assert!(!alone.contains('►'), "{alone}");
}

#[test]
fn a_filter_leaves_what_is_named_and_describes_it() {
    let job = "graph --workers 1 --servers 1 --filter hidden2/weight";
    let text = shown(job);
    assert!(text.contains("hidden2") && !text.contains("hidden1"), "{text}");
    for part in ["f32[2048×2048], server 0 → worker 0", "crosses by reference", "the sender's+"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(edges(job).iter().all(|edge| edge["layer"] == "hidden2"));
    let full = shown(&format!("{job} --full"));
    assert!(full.contains("hidden2/weight") && !full.contains("hidden1/weight"), "{full}");
    let stars = edges("graph --filter h*1/weight");
    assert!(!stars.is_empty() && stars.iter().all(|edge| edge["layer"] == "hidden1"));
    let none = Job::start("graph --filter nosuch").end(LIMIT);
    assert_eq!(none.status.code(), Some(2));
    assert!(none.last_line().contains("has 'nosuch' in its name"), "{}", none.stderr);
}

#[test]
fn the_drawing_as_svg_stands_alone_light_and_dark() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.svg");
    assert_eq!(shown(&format!("graph --servers 1 --svg {}", file.display())), "");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"), "{svg}");
    for part in ["hidden1", "server 0", "by reference", "a training step"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    // what is opened is closed, and nothing comes from elsewhere
    assert_eq!(svg.matches("<text ").count(), svg.matches("</text>").count());
    assert!(!svg.contains("href") && !svg.contains("url("), "{svg}");
    let nowhere = Job::start("graph --svg /nowhere/graph.svg").end(LIMIT);
    assert_eq!(nowhere.status.code(), Some(2), "{}", nowhere.stderr);
}

#[test]
fn the_folded_drawing_is_there_for_graphviz_too() {
    let dot = shown("graph --model inception-v3 --dot");
    assert!(dot.starts_with("digraph picture {"), "{dot}");
    assert!(dot.lines().count() < 80, "{dot}");
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    let nodes = dot.lines().filter(|line| line.contains("[label=") && !line.contains("->"));
    assert!(nodes.count() >= 10, "{dot}");
}
