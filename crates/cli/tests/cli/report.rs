//! `tensorwire report` by the real binary: a page appears whole or not at all, and a user's mistake is status 2 and one line
//! that says how to mend it.

use std::time::Duration;

use crate::support::{Ended, Job};

const LIMIT: Duration = Duration::from_secs(60);
const LINE: &str = r#"{"bench":"write","transport":"tcp","bytes":4096,"round_trip_us":12.5,"grpc_round_trip_us":50}"#;

/// Runs `report` in a folder with these files.
fn report(files: &[(&str, &str)], arguments: &str) -> (Ended, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = std::process::Command::new("/bin/sh");
    let script = "cd \"$1\" && shift && exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(folder.path());
    command.args([env!("CARGO_BIN_EXE_tensorwire"), "report"]).args(arguments.split_whitespace());
    (Job::start_command(command).end(LIMIT), folder)
}

#[test]
fn lines_of_several_files_become_one_page() {
    let (ended, folder) = report(
        &[("a.jsonl", LINE), ("b.jsonl", "{\"bench\":\"tea\"}\n")],
        "a.jsonl b.jsonl --output p.html",
    );
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stdout.contains("p.html: 1 figures; claims met 1, short 0"), "{}", ended.stdout);
    assert!(ended.stdout.contains("1 of 2 lines left out"), "{}", ended.stdout);
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}

#[test]
fn training_runs_become_curves() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, seed: u32| {
        let path = folder.path().join(name).display().to_string();
        let job = format!(
            "train --strategy local --batch 8 --threads 1 --steps 4 --val-every 2 --seed {seed}"
        );
        assert!(Job::start(&format!("{job} --metrics {path}")).end(LIMIT).status.success());
        path
    };
    let (first, other) = (run("first.jsonl", 1), run("other.jsonl", 2));
    let (ended, folder) = report(&[], &format!("{first} {other} --output p.html"));
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.stdout, "p.html: 2 training runs\n");
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    for text in ["Loss by step", "Samples per second by step", "test accuracy", &first, &other] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn mistakes_leave_no_page() {
    for (text, arguments, says) in [
        ("{\"bench\":\n", "a.jsonl", "a.jsonl:1 is no line of JSON"),
        ("\n\n", "a.jsonl", "there are no lines to report; write some first: tensorwire bench"),
        (LINE, "none.jsonl", "cannot read lines from none.jsonl: No such file"),
        (LINE, "a.jsonl --output none/p.html", "cannot write a page to none/p.html"),
        (LINE, "a.jsonl --output a.jsonl", "the page would replace the lines in a.jsonl"),
        (
            "{\"x\":1}\n",
            "a.jsonl",
            "none of the 1 lines can be shown: it does not say what was measured",
        ),
        ("\u{fffd}\u{0}", "a.jsonl", "a.jsonl:1 is no line of JSON"),
    ] {
        let (ended, folder) = report(&[("a.jsonl", text)], arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(
            ended.stderr.starts_with("error: ") && ended.stderr.contains(says),
            "{}",
            ended.stderr
        );
        assert_eq!(std::fs::read_to_string(folder.path().join("a.jsonl")).unwrap(), text);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{arguments}");
    }
}
