//! The example programs do what they say, as programs of their own.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tensorwire_testkit::program;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

/// What an example prints, which must end well.
fn said(command: Command) -> String {
    all_said(command).0
}

/// The same, and what it says to standard error.
fn all_said(mut command: Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let [said, beside] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{said}{beside}");
    (said, beside)
}

fn example(name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program::example(name));
    command.args(arguments);
    said(command)
}

/// The number or word behind `what`.
fn after<'a>(said: &'a str, what: &str) -> &'a str {
    let line = said.lines().find_map(|line| line.strip_prefix(what));
    line.unwrap_or_else(|| panic!("no '{what}' in:\n{said}")).trim()
}

#[test]
fn the_store_does_what_it_shows() {
    let said = example("kvstore", &[]);
    let lines = [
        // 4·(4 + 1008 + 800), 4·992: what is split is cut at whole cache lines
        "worker 0: server 0 has 7248 bytes: 2 values, shards of 1",
        "worker 0: server 1 has 3968 bytes: 0 values, shards of 1",
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

#[test]
fn a_model_of_ones_own_has_the_same_bits_by_every_strategy_and_transport() {
    let first = example("train", &["local"]);
    let weights = after(&first, "weights ");
    assert_eq!(weights.len(), 64, "{first}");
    assert!(after(&first, "test accuracy ").parse::<f64>().unwrap() > 0.9, "{first}");
    for arguments in [
        &["ps"][..],
        &["ps", "tcp"],
        &["dist-sgd"],
        &["dist-sgd", "tcp"],
        &["allreduce"],
        &["allreduce", "tcp"],
    ] {
        let other = example("train", arguments);
        assert_eq!(after(&other, "weights "), weights, "{arguments:?}");
    }
}

/// What starts a process on another host may take its environment along, as ssh does not.
#[test]
fn on_two_hosts_whose_shell_keeps_the_environment_it_has_the_same_bits() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/link.sh");
    let link = |command: &[&std::ffi::OsStr]| {
        let mut link = Command::new("bash");
        link.args([script, "--plain", "--"]).args(command);
        link
    };
    let tried = link(&["true".as_ref()]).output().unwrap();
    if tried.status.code() == Some(1) {
        return skip(None, &String::from_utf8_lossy(&tried.stderr));
    }
    let one = example("train", &["ps"]);
    let program = program::example("train");
    let (two, beside) = all_said(link(&[program.as_os_str(), "ps".as_ref()]));
    assert_eq!(after(&two, "weights "), after(&one, "weights "));
    // one of them is where the program was started
    let hosts: Vec<&str> = after(&beside, "hosts: ").split("; ").collect();
    assert_eq!(hosts.len(), 2, "{beside}");
    assert!(hosts[0].ends_with(": worker 0, server 0"), "{beside}");
    assert!(hosts[1].ends_with(": worker 1, server 1"), "{beside}");
    let transport = |line: &&str| {
        line.starts_with("warning: tcp instead of verbs: ") || line.starts_with("transport verbs: ")
    };
    assert_eq!(beside.lines().filter(transport).count(), 1, "{beside}");
}

#[test]
fn under_mpirun_the_processes_that_it_started_are_the_jobs() {
    let found = std::env::var_os("PATH").map(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|file| file.is_file())
    });
    let Some(mpirun) = found.flatten() else {
        return skip(Some("TENSORWIRE_LAUNCHERS"), &"there is no mpirun on the PATH");
    };
    let mut command = Command::new::<PathBuf>(mpirun);
    // more processes than cores, and by whoever runs the tests
    command.args(["-np", "4", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    command.arg(program::example("train")).arg("ps");
    let under_mpirun = said(command);
    let alone = example("train", &["local"]);
    assert_eq!(after(&under_mpirun, "weights "), after(&alone, "weights "));
}

#[test]
fn an_operator_of_ones_own_is_checked_and_learns() {
    let said = example("custom_op", &[]);
    assert!(after(&said, "test accuracy ").parse::<f64>().unwrap() > 0.9, "{said}");
}

#[test]
fn an_operator_that_brings_cuda_trains_on_gpus_as_on_the_host() {
    let on_host = example("cuda_op", &[]);
    // a driver without a GPU, whose compiler takes the same CUDA C
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let libraries = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(libraries.path()).unwrap();
    let mut command = Command::new(program::example("cuda_op"));
    command.arg("cuda").arg(tensorwire_fakecuda::library().unwrap()).arg(libraries.path());
    command.env("FAKE_CUDA_KERNELS", kernels).env("FAKE_CUDA_DEVICES", "2");
    let on_gpus = said(command);
    assert!(on_gpus.contains("checked on a GPU"), "{on_gpus}");
    let [found, expected] =
        [&on_gpus, &on_host].map(|said| after(said, "loss ").parse::<f64>().unwrap());
    // as of all models: sums are added in another order
    assert!((found - expected).abs() < 1e-3, "{found} and {expected}");
    // on the host the operator would be brought 16·32 numbers forward and twice as many backward, in 20 steps of 2 workers
    let of_operator = 20 * 2 * 3 * 16 * 32 * 4;
    let copied: u64 = after(&on_gpus, "copied to the host ").parse().unwrap();
    assert!(copied < of_operator / 2, "{copied}");
}

#[test]
fn a_model_cut_over_two_processes_has_the_bits_of_one_process() {
    let (cut, alone) = (example("model_parallel", &[]), example("model_parallel", &["local"]));
    assert!(after(&cut, "test accuracy ").parse::<f64>().unwrap() > 0.9, "{cut}");
    assert_eq!(cut, alone);
}

#[test]
fn a_session_by_hand_learns() {
    let said = example("training_loop", &[]);
    let loss = |step: &str| after(&said, step).parse::<f64>().unwrap();
    assert!(loss("step 200: loss ") < loss("step 50: loss "), "{said}");
}

#[test]
fn every_rank_reduces_two_ways() {
    let said = example("allreduce", &[]);
    for rank in 0..4 {
        assert!(after(&said, &format!("rank {rank}: direct ")).contains("ring"), "{said}");
    }
}
