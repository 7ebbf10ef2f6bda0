//! The program that asks a GPU its first questions (`examples/gpu.rs`), on the driver that stands in its place.

use std::process::{Command, Output};

use serde_json::Value;
use tensorwire_testkit::cuda::OnlyDriver;
use tensorwire_testkit::program;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

const BYTES: &str = "4194304";

/// Runs it where these faults are; none where this machine cannot build kernels, and says so.
fn ended(what: &str, faults: &str) -> Option<Output> {
    if OnlyDriver::named().is_some_and(|only| !only.is_stand_in()) {
        skip(None, &"it is about the driver without a GPU");
        return None;
    }
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => {
            skip(None, &reason);
            return None;
        }
    };
    let mut command = Command::new(program::example("gpu"));
    command.arg(what).arg(tensorwire_fakecuda::library().unwrap()).arg(BYTES);
    command.env("FAKE_CUDA_KERNELS", kernels).env("FAKE_CUDA_FAULTS", faults);
    Some(command.output().unwrap())
}

/// The lines of JSON that it says, where it ends well.
fn lines(what: &str, faults: &str) -> Option<Vec<Value>> {
    let output = ended(what, faults)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Some(said.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The questions that were answered so, and what is done otherwise.
fn answered<'a>(lines: &'a [Value], answer: &str) -> Vec<(&'a str, Option<&'a str>)> {
    let lines = lines.iter().filter(|line| line["answer"] == answer);
    lines.map(|line| (line["question"].as_str().unwrap(), line["otherwise"].as_str())).collect()
}

#[test]
fn questions_are_answered_by_yes_or_with_what_is_done_otherwise() {
    let Some(lines) = lines("questions", "") else { return };
    assert_eq!(answered(&lines, "yes").len(), 5, "{lines:?}");
    assert_eq!(answered(&lines, "no"), [], "{lines:?}");
    let said = |key: &str| lines.iter().filter(|line| !line[key].is_null()).count();
    assert_eq!((said("uuid"), said("launches"), said("library")), (1, 1, 4), "{lines:?}");
    let graph = |lines: &[Value]| lines.iter().find_map(|line| line["launches_of_graph"].as_u64());
    assert_eq!(graph(&lines), Some(8_000), "{lines:?}");
    let Some(lines) = self::lines("questions", "noexport,nodmabuf") else { return };
    let no = [
        ("a second process maps a descriptor", Some("tensors go by the host's memory")),
        (
            "a dma-buf is made of memory",
            Some("NICs reach it by nvidia-peermem, or by the host's memory"),
        ),
    ];
    assert_eq!(answered(&lines, "no"), no, "{lines:?}");
    // a stream that takes little holds who tells it more than that behind a shut gate, and a graph is one thing
    let Some(lines) = self::lines("questions", "queue=64") else { return };
    let launches = lines.iter().find(|line| !line["launches"].is_null()).unwrap();
    assert!(launches["launches"].as_u64().unwrap() <= 64, "{launches}");
    assert_eq!((answered(&lines, "no"), graph(&lines)), (vec![], Some(8_000)), "{lines:?}");
    // and where its launches count, a step's graphs may be too large
    let Some(lines) = self::lines("questions", "queue=600,counted") else { return };
    let no = [("a graph of a step is taken behind a shut gate", None::<&str>)];
    assert_eq!((answered(&lines, "no"), graph(&lines)), (no.to_vec(), Some(500)), "{lines:?}");
}

#[test]
fn rates_are_told_beside_what_they_are_shares_of() {
    let Some(lines) = lines("rates", "") else { return };
    let found = |key: &str| lines.iter().filter_map(|line| line[key].as_f64()).collect::<Vec<_>>();
    assert_eq!(found("bytes_per_second").len(), 6, "{lines:?}");
    assert_eq!([found("of_copy").len(), found("of_pinned").len()], [1, 2], "{lines:?}");
    assert!(lines.iter().any(|line| line["rate"] == "a graph"), "{lines:?}");
    // where no second process maps the memory it says so, and does not end well
    let Some(output) = ended("rates", "noexport") else { return };
    assert!(!output.status.success() && !output.stderr.is_empty(), "{output:?}");
}
