//! The example program does what it says.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use tensorwire_testkit::program;

#[test]
fn the_store_of_the_example_does_what_it_shows() {
    let mut example = Command::new(program::example("kvstore"));
    let output = example.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let lines = [
        // 4·(4 + 1008 + 800), 4·992: what is split is cut at whole cache lines
        "worker 0: server 0 has 7248 bytes: 2 values, parts of 1",
        "worker 0: server 1 has 3968 bytes: 0 values, parts of 1",
        // 1 − 0.5·(1 + 2)/2
        "worker 0: pushed 1 everywhere, pulled [0.25, 0.25, 0.25, 0.25]",
        "worker 1: pushed 2 everywhere, pulled [0.25, 0.25, 0.25, 0.25]",
        // 1 − 0.5·(1 + 1)/2, 1 − 0.5·(0 + 1)/2, untouched
        "worker 0: pushed rows [3], rows 3, 4 and 5 start with [0.5, 0.75, 1.0]",
        "worker 1: pushed rows [3, 4], rows 3, 4 and 5 start with [0.5, 0.75, 1.0]",
        "worker 0: server 0 counted 30",
        "all have left",
    ];
    for line in lines {
        assert!(said.lines().any(|found| found == line), "no '{line}' in:\n{said}");
    }
}
