//! The real doctor on this machine, whatever it has, and with this machine by another name as its peer: a script
//! in the place of ssh runs there what it is told to.

use std::process::Command;
use std::time::Duration;

use crate::support::{Ended, Job};
use serde_json::Value;
use tensorwire_testkit::skip::skip_part;

const LIMIT: Duration = Duration::from_secs(120);

/// The command takes the script's place, so that its process is the launcher's child.
const IN_PLACE: &str = "exec sh -c \"$2\"";
/// What a login says that is refused.
const REFUSED: &str = "echo 'Permission denied (publickey).' >&2; exit 255";

/// Examines the host `other`, which `body` stands for, and this machine.
fn with_peer(body: &str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("rsh.sh");
    std::fs::write(&script, body).unwrap();
    let rsh = format!("sh {}", script.display());
    let peer = ["doctor", "--peer", "other", "--listen", "127.0.0.1:0", "--rsh", &rsh];
    Job::start_with(peer.into_iter().chain(arguments.iter().copied())).end(LIMIT)
}

fn findings(found: &Value) -> Vec<(&str, &str)> {
    let findings = found["findings"].as_array().unwrap();
    let text = |finding: &'_ Value, field: &str| finding[field].as_str().unwrap().to_string();
    for finding in findings {
        // each says why it matters, and all but what is in order what to type
        assert!(!text(finding, "what").is_empty() && !text(finding, "why").is_empty(), "{finding}");
        assert_eq!(finding["mend"].is_null(), finding["severity"] == "ok", "{finding}");
    }
    findings.iter().map(|f| (f["severity"].as_str().unwrap(), f["id"].as_str().unwrap())).collect()
}

/// A trial of a transport that went well.
fn assert_passed(trial: &Value) {
    assert!(trial["failure"].is_null(), "{trial}");
    let writes = trial["writes"].as_array().unwrap();
    for outward in [true, false] {
        let bytes = writes.iter().filter(|write| write["outward"] == outward);
        let bytes: Vec<u64> = bytes.map(|write| write["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [8, 4 << 10, 64 << 10, 1 << 20]);
    }
    assert!(writes.iter().all(|write| write["error"].is_null()), "{trial}");
    assert!(trial["round_trip_us"].as_f64().unwrap() > 0.0);
    assert!(trial["bytes_per_second"].as_f64().unwrap() > 0.0);
}

/// Whether this machine can do RDMA; then there is less to mend.
fn has_rdma(found: &Value) -> bool {
    found["facts"]["rdma"]["obstacle"].is_null()
}

#[test]
fn one_object_with_the_facts_the_trials_and_the_findings() {
    let ended = Job::start("doctor --json").end(LIMIT);
    let found = ended.json();
    assert_eq!(ended.stdout.lines().count(), 1, "one object: {}", ended.stdout);
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    let facts = &found["facts"];
    for field in
        ["version", "host", "kernel", "computer", "shared_memory", "locking", "rdma", "gpu", "auto"]
    {
        assert!(!facts[field].is_null(), "{field}: {facts}");
    }
    assert!(facts["computer"]["cores"].as_u64().unwrap() > 0);
    assert!(facts["computer"]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(facts["locking"]["memlock"].is_object());
    assert_eq!(facts["auto"]["one_host"], "shm");
    assert!(found["peer"].is_null());
    let trials = found["trials"].as_array().unwrap();
    trials.iter().for_each(assert_passed);
    let names: Vec<&str> =
        trials.iter().map(|trial| trial["transport"].as_str().unwrap()).collect();
    let findings = findings(&found);
    assert!(findings.contains(&("ok", "shm")) && findings.contains(&("ok", "tcp")), "{findings:?}");
    if has_rdma(&found) {
        assert_eq!(names, ["shm", "tcp", "verbs"]);
        assert_eq!(facts["auto"]["several_hosts"], "verbs");
        return;
    }
    assert_eq!(names, ["shm", "tcp"]);
    assert_eq!(facts["auto"]["several_hosts"], "tcp");
    let rdma = findings.iter().find(|(_, id)| id.starts_with("rdma-"));
    assert!(rdma.is_some(), "{findings:?}");
}

#[test]
fn a_page_for_people_that_ends_with_what_to_type() {
    let ended = Job::start("doctor").end(LIMIT);
    assert_eq!(ended.status.code(), Some(0), "no RDMA is no error: {}", ended.stderr);
    let page = &ended.stdout;
    let at =
        |section: &str| page.find(&format!("\n{section}\n")).unwrap_or_else(|| panic!("{page}"));
    let sections = ["machine", "RDMA", "transports", "findings"].map(at);
    assert!(sections.is_sorted(), "{page}");
    assert!(page.contains("every byte right"), "{page}");
    assert!(page.contains("locked memory") && page.contains("libibverbs"), "{page}");
    if page.contains("auto, several    verbs") {
        skip_part(&"this machine has RDMA, and nothing is missing");
        return;
    }
    let mends = ["apt-get install rdma-core", "rdma link add rxe0 type rxe netdev"];
    // or there is a NIC that is not in order
    let named = mends.iter().any(|mend| page.contains(mend)) || page.contains("\n  warning");
    assert!(named && page.contains("→ "), "{page}");
}

#[test]
fn a_peer_is_compared_and_the_way_to_it_tried() {
    let found = with_peer(IN_PLACE, &["--json"]).json();
    let peer = &found["peer"];
    assert_eq!((&peer["host"], &peer["facts"]["host"]), (&"other".into(), &found["facts"]["host"]));
    assert_eq!(peer["facts"]["version"], found["facts"]["version"]);
    assert_eq!(peer["differences"], Value::Array(vec![]), "it is this machine");
    let trials = peer["trials"].as_array().unwrap();
    assert_eq!(trials.len(), if has_rdma(&found) { 2 } else { 1 });
    assert_eq!(trials[0]["transport"], "tcp");
    trials.iter().for_each(assert_passed);
    let page = with_peer(IN_PLACE, &[]);
    assert_eq!(page.status.code(), Some(0), "{}", page.stderr);
    assert!(page.stdout.contains("\nthis machine and other\n"), "{}", page.stdout);
    assert!(page.stdout.contains("interface MTU"), "{}", page.stdout);
}

#[test]
fn a_peer_that_cannot_be_reached_is_a_finding_with_its_reason() {
    let ended = with_peer(REFUSED, &["--json"]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(
        ended.last_line().starts_with("error: one thing above does not work"),
        "{}",
        ended.stderr
    );
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(found["verdict"], "error");
    assert!(found["peer"]["facts"].is_null());
    let findings = findings(&found);
    assert!(findings.contains(&("error", "tcp-fails")), "{findings:?}");
    let failure = found["peer"]["trials"][0]["failure"].as_str().unwrap();
    assert!(failure.contains("other true` work?"), "{failure}");
}

#[test]
fn rdma_that_is_asked_for_must_be_there() {
    let ended = Job::start("doctor --json --nic nonesuch").end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let of_rdma = findings(&found).into_iter().find(|(_, id)| id.starts_with("rdma-"));
    assert_eq!(of_rdma.map(|(severity, _)| severity), Some("error"));
}

#[test]
fn arguments_that_make_no_sense() {
    for (arguments, says) in [
        ("--peer a,b", "--peer: 'a,b' is no host; write one NAME"),
        ("--peer @hosts", "--peer: '@hosts' is no host"),
        ("--peer a;b", "--peer: 'a;b' is no host"),
        ("--peer no-such-host.invalid", "--peer: the name no-such-host.invalid does not resolve"),
        ("--peer no-such-host.invalid", "give --listen ADDRESS:0"),
        ("--gid first", "give the index of an entry, or its address"),
        ("--rsh ssh", "--peer <HOST>"),
        ("--peer", "--help"),
    ] {
        let ended = Job::start(&format!("doctor {arguments}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{arguments}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments}: {}", ended.stdout);
        // what is wrong with the name itself is said before anything is tried
        let tried = ended.stderr.contains("trying its transports");
        assert!(!tried || arguments.contains("invalid"), "{arguments}: {}", ended.stderr);
    }
}

/// The doctor with a driver that needs no GPU, on a machine that the environment describes.
fn with_driver(arguments: &str, machine: &[(&str, &str)]) -> Ended {
    let driver = tensorwire_fakecuda::library().expect("cargo builds it for these tests");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(["doctor", "--cuda-driver"]).arg(driver).args(arguments.split_whitespace());
    command.envs(machine.iter().copied());
    Job::start_command(command).end(LIMIT)
}

#[test]
fn gpus_are_described_with_what_they_lack() {
    let machine = [
        ("FAKE_CUDA_DEVICES", "2"),
        ("FAKE_CUDA_COMPUTE", "75"),
        ("FAKE_CUDA_FAULTS", "nopeer,noexport"),
    ];
    let ended = with_driver("--json", &machine);
    // a job on GPUs of this driver would end before it starts
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let last = ended.stdout.lines().last().unwrap();
    let found: serde_json::Value = serde_json::from_str(last).unwrap();
    let cuda = &found["facts"]["gpu"]["cuda"];
    assert_eq!((&cuda["version"], &cuda["asked"]), (&"12.4".into(), &true.into()));
    let gpus = cuda["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    assert_eq!((&gpus[1]["ordinal"], &gpus[1]["name"]), (&1.into(), &"Fake GPU".into()));
    assert_eq!((&gpus[1]["export"], &gpus[1]["dmabuf"]), (&false.into(), &true.into()));
    assert_eq!(cuda["libraries"].as_array().unwrap().len(), 4);
    let findings = findings(&found);
    for expected in [("error", "gpu-too-old"), ("note", "gpu-no-export"), ("note", "gpu-peers")] {
        assert!(findings.contains(&expected), "{findings:?}");
    }
}

/// The driver's library is cuBLASLt and cuDNN, too, under other names.
#[test]
fn a_library_is_shown_with_its_version_or_why_it_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    let arguments = format!("--cuda-libs {}", folder.path().display());
    let page = with_driver(&arguments, &[]).stdout;
    let file = folder.path().join("libcublasLt.so.13");
    let line = format!("cuBLASLt         13.1.0, {} (a named folder)", file.display());
    assert!(page.contains(&line), "{page}");
    let file = folder.path().join("libcudnn.so.9");
    let line = format!("cuDNN            9.4.0, {} (a named folder)", file.display());
    assert!(page.contains(&line), "{page}");
    let old = with_driver(&arguments, &[("FAKE_CUDA_CUDNN", "8904")]).stdout;
    assert!(old.contains("is of version 8.9.4; 9 can be used"), "{old}");
    let old = with_driver(&arguments, &[("FAKE_CUDA_CUBLAS", "110000")]).stdout;
    assert!(old.contains("is of version 11.0.0; 12 or 13 can be used"), "{old}");
    assert!(old.contains("(a named folder, cannot be used)"), "{old}");
}

#[test]
fn a_driver_that_was_named_must_be_there() {
    let page = with_driver("", &[]).stdout;
    assert!(page.contains("\nGPUs\n  driver           of CUDA 12.4"), "{page}");
    assert!(page.contains("GPU 0            Fake GPU, compute capability 8.0, 4 GiB"), "{page}");
    let ended = with_driver("", &[("FAKE_CUDA_DEVICES", "0")]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stdout.contains("CUDA_ERROR_NO_DEVICE"), "{}", ended.stdout);
    assert!(ended.stdout.contains("→ no GPU can be seen"), "{}", ended.stdout);
}
