//! `bench/link.sh`: hosts that are network namespaces of this machine, each with a link of a given rate. What needs namespaces is
//! skipped where the script says that there are none.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorwire_testkit::skip::skip;

use crate::support::{Job, children, send};

const LIMIT: Duration = Duration::from_secs(120);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/link.sh");
const PROGRAM: &str = env!("CARGO_BIN_EXE_tensorwire");

fn link(arguments: &[&str]) -> Job {
    let mut command = Command::new("bash");
    command.arg(SCRIPT).args(arguments);
    Job::start_command(command)
}

/// Why there can be no such hosts here, as the script says it.
fn obstacle() -> Option<String> {
    let tried = link(&["--plain", "--", "true"]).end(LIMIT);
    match tried.status.code() {
        Some(0) => None,
        Some(1) if tried.stderr.contains("link.sh: ") => Some(tried.stderr),
        other => panic!("{other:?}: {}", tried.stderr),
    }
}

#[test]
fn what_cannot_be_right_is_said_first() {
    for (arguments, said) in [
        (&[][..], "no command"),
        (&["true"][..], "the command comes behind --"),
        (&["--rate"][..], "--rate needs a value"),
        (&["--rate", "fast", "--", "true"][..], "--rate must be as 1gbit"),
        (&["--delay", "2", "--", "true"][..], "--delay must be as 500us"),
        (&["--hosts", "1", "--", "true"][..], "--hosts must be from 2 to 16"),
        (&["--slots", "0", "--", "true"][..], "--slots must be from 1 to 99"),
    ] {
        let ended = link(arguments).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("link.sh: ") && ended.stderr.contains(said), "{said}");
    }
}

#[test]
fn hosts_have_addresses_a_rate_and_a_shell_and_nothing_is_left() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let look = "tc qdisc show dev eth0; echo $LINK_HOSTS; echo \"${LINK_RSH#sh }\"
        $LINK_RSH 10.77.0.3 'tc qdisc show dev eth0; ip -o -4 addr show eth0'
        $LINK_RSH 10.77.0.4 true; exit 7";
    let arguments = ["--rate", "200mbit", "--hosts", "3", "--plain", "--", "sh", "-c", look];
    let ended = link(&arguments).end(LIMIT);
    assert_eq!(ended.status.code(), Some(7), "the command's: {}", ended.stderr);
    let said = &ended.stdout;
    assert_eq!(said.matches("rate 200Mbit").count(), 2, "both ends have it: {said}");
    assert!(said.contains("10.77.0.1,10.77.0.2,10.77.0.3\n"), "{said}");
    assert!(said.contains("inet 10.77.0.3/24"), "the shell is on that host: {said}");
    assert!(ended.stderr.contains("no host 10.77.0.4"), "{}", ended.stderr);
    let shell = said.lines().find(|line| line.ends_with("/rsh")).expect("where the shell was");
    assert!(!std::path::Path::new(shell).exists(), "{shell} is left");
}

/// As long as is said each way, where the kernel can; else that is said, and no link without it is taken for one.
#[test]
fn a_link_may_take_longer() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let look = "$LINK_RSH 10.77.0.2 'tc qdisc show dev eth0'; tc qdisc show dev eth0";
    let ended = link(&["--delay", "20ms", "--plain", "--", "sh", "-c", look]).end(LIMIT);
    match ended.status.code() {
        Some(0) => assert_eq!(ended.stdout.matches("delay 20ms").count(), 2, "{}", ended.stdout),
        code => {
            assert_eq!(code, Some(1), "{}", ended.stderr);
            assert!(ended.stderr.contains("this kernel holds up no packet"), "{}", ended.stderr);
            assert!(ended.stdout.is_empty(), "the command was started: {}", ended.stdout);
        }
    }
}

#[test]
fn a_job_over_a_link_ends_with_the_bits_of_one_host() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let job = ["train", "--json", "--steps", "3", "--batch", "16", "--threads", "1"];
    let one = Job::start_with(job).end(LIMIT).json();
    let two = link(&[&["--", PROGRAM][..], &job, &["--servers", "2"]].concat()).end(LIMIT);
    assert!(two.stderr.contains("10.77.0.2: worker 1, server 1"), "{}", two.stderr);
    let two = two.json();
    assert_eq!(
        (&two["transport"], &two["weights_sha256"]),
        (&"tcp".into(), &one["weights_sha256"])
    );
    // all that crosses went over the link
    assert!(two["bytes_written"].as_u64().unwrap() > one["bytes_written"].as_u64().unwrap());
    let json = tempfile::NamedTempFile::new().unwrap();
    let path = json.path().to_str().unwrap();
    let bench = ["--rate", "10gbit", "--", PROGRAM, "bench", "write", "--quick", "--sizes", "4KiB"];
    let ended = link(&[&bench[..], &["--json", path]].concat()).end(LIMIT);
    assert!(ended.status.success() && ended.stdout.contains("tcp"), "{}", ended.stderr);
    let line = std::fs::read_to_string(path).unwrap();
    let line: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert_eq!((&line["link"], &line["hosts"]), (&"10gbit".into(), &2.into()), "{line}");
}

/// What a group measures when it is made is kept, and not measured again.
#[test]
fn a_group_measures_its_link_once() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.txt");
    let file = table.to_str().unwrap();
    let train = || {
        let job = ["train", "--strategy", "allreduce", "--steps", "2", "--batch", "16"];
        let options = ["--threads", "1", "--json", "--measure-link", file];
        let link_of = ["--rate", "200mbit", "--", PROGRAM];
        link(&[&link_of[..], &job, &options].concat()).end(LIMIT)
    };
    let first = train();
    let said = format!(" GB/s, measured and kept in {file}");
    assert_eq!(first.stderr.matches(&said).count(), 1, "{}", first.stderr);
    let kept = std::fs::read_to_string(&table).unwrap();
    let line: serde_json::Value = serde_json::from_str(kept.trim_end()).unwrap();
    assert_eq!((&line["transport"], &line["several_hosts"]), (&"tcp".into(), &true.into()));
    // no faster than the link, whose bucket may be full at first
    assert!(line["link"]["wire_ps_per_byte"].as_u64().unwrap() > 10_000, "{kept}");
    let second = train();
    assert!(!second.stderr.contains("measured and kept"), "{}", second.stderr);
    assert_eq!(std::fs::read_to_string(&table).unwrap(), kept);
    assert_eq!(first.json()["weights_sha256"], second.json()["weights_sha256"]);
}

#[test]
fn a_signal_ends_the_command_and_the_hosts() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let job = link(&["--", PROGRAM, "train", "--steps", "100000000", "--batch", "8"]);
    let begun = Instant::now();
    // until the command has started a member
    while !children(job.launcher()).iter().any(|child| !children(*child).is_empty()) {
        assert!(begun.elapsed() < LIMIT, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(job.launcher(), Signal::TERM);
    let ended = job.end(LIMIT);
    assert!(!ended.status.success(), "{}", ended.stderr);
}

/// As a terminal's Ctrl-C, which goes to the script and to all that it has started: once, so that the job ends behind a step.
#[test]
fn a_terminals_ctrl_c_comes_once() {
    if let Some(why) = obstacle() {
        return skip(None, &why);
    }
    let job = "train --steps 100000 --batch 8 --metrics m.jsonl --checkpoint kept --checkpoint-every 1000000";
    let command: Vec<&str> = ["--", PROGRAM].into_iter().chain(job.split_whitespace()).collect();
    let job = link(&command);
    let (metrics, begun) = (job.folder().join("m.jsonl"), Instant::now());
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(begun.elapsed() < LIMIT, "no step");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.signal_group(Signal::INT);
    let ended = job.end(LIMIT);
    let says = "error: interrupted; the newest checkpoint is of step ";
    assert!(ended.last_line().starts_with(says), "{}", ended.stderr);
}
