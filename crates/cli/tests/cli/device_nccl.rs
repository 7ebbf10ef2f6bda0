//! Jobs whose GPUs reduce by NCCL. The driver for tests has its functions, too, between processes.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::device::{Driver, LIMIT, MODEL, SMALL, driver, number, refused};
use crate::support::Job;

/// A folder with a library of NCCL's name, and the arguments by which a job finds it.
fn nccl(driver: &Driver) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&driver.library, folder.path().join("libnccl.so.2")).unwrap();
    let arguments = format!("--collectives nccl --cuda-libs {}", folder.path().display());
    (folder, arguments)
}

fn losses_agree(by_nccl: &Value, by_own: &Value) {
    for key in ["final_loss", "test_loss"] {
        let [found, expected] = [by_nccl, by_own].map(|result| result[key].as_f64().unwrap());
        assert!((found - expected).abs() < 1e-4 * expected, "{key}: {found} and {expected}");
    }
}

/// Vectors of the small job's model, weights and biases for each of its layers.
const VECTORS: u64 = 10;

#[test]
fn what_nccl_reduces_is_learned_from_as_what_we_reduce() {
    let Some(driver) = driver() else { return };
    let (_folder, by_nccl) = nccl(&driver);
    let late = [("FAKE_CUDA_SEED", "3"), ("FAKE_CUDA_FAULTS", "delay=2000,garbage")];
    let own = driver.train(&format!("--strategy allreduce {SMALL}"), &[]);
    assert_eq!(number(&own, "nccl_reductions"), 0, "{own}");
    let mut hashes = Vec::new();
    for (way, faults) in [("", &[][..]), ("--transport tcp", &late)] {
        let job = format!("--strategy allreduce {by_nccl} {SMALL} {way}");
        let result = driver.train(&job, faults);
        losses_agree(&result, &own);
        assert_eq!(number(&result, "nccl_reductions"), 2 * 3 * VECTORS, "{way}: {result}");
        // gradients stay on the devices, whatever the transport is
        let [found, of_own] = [&result, &own].map(|result| number(result, "bytes_copied_to_host"));
        assert!(found <= of_own, "{way}: {found} and {of_own}");
        hashes.push(result["weights_sha256"].clone());
    }
    assert_eq!(hashes[0], hashes[1], "late streams change no bit");
}

#[test]
fn four_workers_reduce_by_nccl_and_so_do_groups_with_a_centre() {
    let Some(driver) = driver() else { return };
    let (_folder, by_nccl) = nccl(&driver);
    let job = "--model cifar --data synthetic:16,8x8x1 --batch 2 --steps 3 --workers 4";
    let own = driver.train(&format!("--strategy allreduce {job}"), &[]);
    let found = driver.train(&format!("--strategy allreduce {job} {by_nccl}"), &[]);
    losses_agree(&found, &own);
    assert_eq!(number(&found, "nccl_reductions"), 4 * 3 * VECTORS, "{found}");
    // two communicators; groups come to the centre in any order
    let groups = "--strategy mpi-esgd --clients 2 --servers 1 --interval 2";
    let found = driver.train(&format!("{groups} {job} {by_nccl}"), &[]);
    assert_eq!(number(&found, "nccl_reductions"), 4 * 3 * VECTORS, "{found}");
}

#[test]
fn who_dies_or_hangs_in_a_group_of_nccl_is_named_in_time() {
    let Some(driver) = driver() else { return };
    let (_folder, by_nccl) = nccl(&driver);
    let long = format!("{MODEL} --batch 4 --step-deadline 10");
    for (signal, said) in [(Signal::KILL, "worker 1"), (Signal::STOP, "worker 1")] {
        let job = format!("--strategy allreduce {by_nccl} {long}");
        let job = driver.start_stepping(&job, &[], 2);
        let start = Instant::now();
        let ended = job.end_by(1, signal);
        refused(&ended, 1, &[said]);
        assert!(start.elapsed() < Duration::from_secs(60), "{}", ended.stderr);
    }
}

#[test]
fn what_nccl_cannot_do_is_said_before_anything_starts() {
    let Some(driver) = driver() else { return };
    let (_folder, by_nccl) = nccl(&driver);
    let ended = |arguments: &str, faults: &[(&str, &str)]| {
        driver.start(&format!("{arguments} {SMALL}"), faults).end(LIMIT)
    };
    let old = [("FAKE_NCCL_VERSION", "21703")];
    refused(
        &ended(&format!("--strategy allreduce {by_nccl}"), &old),
        2,
        &["NCCL 2.17.3", "2.18.0 or newer"],
    );
    // this machine may have one
    if !has_nccl() {
        // a folder of other libraries
        let others = tempfile::tempdir().unwrap();
        tensorwire_fakecuda::libraries(others.path()).unwrap();
        let others = others.path().display().to_string();
        let nowhere = format!("--strategy allreduce --collectives nccl --cuda-libs {others}");
        let said = ["libnccl.so.2", &others, "pip install", "--collectives own"];
        refused(&ended(&nowhere, &[]), 2, &said);
    }
    for (arguments, said) in [
        ("--strategy allreduce --collectives nccl --cuda-libs none", "--cuda-libs none"),
        (&format!("--strategy ps {by_nccl}"), "allreduce"),
        (&format!("--strategy mpi-sgd --servers 1 {by_nccl}"), "--servers 0"),
        (&format!("--strategy allreduce --deterministic {by_nccl}"), "--deterministic"),
        (&format!("--strategy allreduce --algorithm ring {by_nccl}"), "--algorithm"),
    ] {
        refused(&ended(arguments, &[]), 2, &[said]);
    }
    let on_host = Job::start("train --strategy allreduce --collectives nccl").end(LIMIT);
    refused(&on_host, 2, &["--collectives nccl changes nothing here: it is for --device cuda"]);
}

/// Where the program looks besides.
fn has_nccl() -> bool {
    let linker = ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"];
    let at = |folder: &&str| Path::new(folder).join("libnccl.so.2").exists();
    let python = std::process::Command::new("python3")
        .args(["-c", "import nvidia.nccl"])
        .stderr(std::process::Stdio::null())
        .status();
    linker.iter().any(at) || python.is_ok_and(|status| status.success())
}

/// Sums that are compared whole, of vectors that one process makes and that all make by rows.
#[test]
fn vectors_of_devices_are_measured_by_the_graph_and_by_nccl() {
    let Some(driver) = driver() else { return };
    let (folder, _) = nccl(&driver);
    let bench = |libraries: &Path, arguments: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(["bench", "allreduce", "--device", "cuda", "--quick", "--iterations", "2"]);
        command.arg("--cuda-libs").arg(libraries).arg("--json").arg(file.path());
        command.args(arguments.split_whitespace());
        command.env("FAKE_CUDA_KERNELS", &driver.kernels);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
        let lines = std::fs::read_to_string(file.path()).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        (said, lines.collect::<Vec<Value>>())
    };
    let library = driver.library.display();
    let sizes = format!("--cuda-driver {library} --ranks 2,3 --sizes 4KiB,5MiB");
    let (said, lines) = bench(folder.path(), &sizes);
    let found: Vec<_> = lines.iter().map(|line| (&line["system"], &line["bytes"])).collect();
    let expected =
        [("tensorwire", 4096), ("nccl", 4096), ("tensorwire", 5 << 20), ("nccl", 5 << 20)]
            .map(|(system, bytes)| (Value::from(system), Value::from(bytes)));
    assert_eq!(found, expected.each_ref().map(|(system, bytes)| (system, bytes)), "{said}");
    // of the warm-up, too
    assert!(lines.iter().all(|line| line["verified"] == true && number(line, "ranks") == 2));
    assert!(said.contains("3 processes: not measured: the number of processes"), "{said}");
    let nothing = "--cuda-driver /nonexistent/libcuda.so.1 --ranks 2 --sizes 4KiB";
    let (said, lines) = bench(Path::new("none"), nothing);
    assert_eq!((lines.len(), said.matches("not measured").count()), (0, 2), "{said}");
    let without = format!("--cuda-driver {library} --ranks 2 --sizes 4KiB");
    let (said, lines) = bench(Path::new("none"), &without);
    assert!(lines.len() == 1 && said.contains("nccl, 2 processes: not measured"), "{said}");
}
