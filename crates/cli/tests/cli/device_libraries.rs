//! Who computes products and convolutions on a GPU: libraries that are found, or own kernels; and what they round to.

use serde_json::Value;
use tensorwire_testkit::skip::skip;

use crate::device::{LIMIT, SMALL, driver, hash, number, refused};
use crate::support::Job;

/// A library that computes products is called within graphs, too, and every way to cross gives its bits.
#[test]
fn products_are_left_to_a_library_that_is_found() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    let libraries = format!("--cuda-libs {}", folder.path().display());
    let job = format!("--strategy local {SMALL}");
    let train = |options: &str| driver.train(&format!("{job} {options}"), &[]);
    let found = train(&libraries);
    let kernels = found["kernels"].as_str().unwrap();
    let by = "products by cuBLASLt 13.1.0, convolutions by cuDNN 9.4.0;";
    assert!(kernels.contains(by), "{kernels}");
    // three layers in three steps, forward and back, but for the gradient of what is fed, and their evaluation
    assert!(number(&found, "library_calls") >= 3 * 8, "{found}");
    assert!(number(&found, "graphs_launched") > 0, "{found}");
    assert_eq!(hash(&train(&libraries)), hash(&found));
    let crossed = driver.train(&format!("--strategy ps {SMALL} {libraries}"), &[]);
    assert_eq!(hash(&crossed), hash(&found));
    let own = train("");
    let kernels = own["kernels"].as_str().unwrap();
    let by = "products and convolutions by own kernels (no library is to be used)";
    assert!(kernels.contains(by), "{kernels}");
    assert_eq!(number(&own, "library_calls"), 0);
    let loss = |result: &Value| result["final_loss"].as_f64().unwrap();
    assert!((loss(&found) - loss(&own)).abs() < 1e-4 * loss(&own), "{found} and {own}");
    // what is rounded is the same whoever computes, as far as sums in another order are
    for math in ["tf32", "bf16"] {
        let [library, own] = [&*libraries, ""].map(|by| train(&format!("{by} --math {math}")));
        assert_ne!(loss(&library), loss(&found), "{math}");
        assert!((loss(&library) - loss(&own)).abs() < 1e-3 * loss(&own), "{library} and {own}");
        let said = if math == "tf32" { "rounded to TF32" } else { "rounded to bf16" };
        assert!(library["kernels"].as_str().unwrap().contains(said), "{library}");
    }
    let failing = driver.start(&format!("{job} {libraries}"), &[("FAKE_CUDA_FAULTS", "product=5")]);
    let ended = failing.end(LIMIT);
    refused(&ended, 1, &["cuBLASLt", "CUBLAS_STATUS_EXECUTION_FAILED", "--cuda-libs none"]);
}

/// Own kernels compute in its place, and what would bring it is said.
#[test]
fn a_library_that_is_missing_is_said_with_what_brings_it() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcublasLt.so.13");
    std::os::unix::fs::symlink(&driver.library, file).unwrap();
    let job = format!("--json --strategy local --cuda-libs {} {SMALL}", folder.path().display());
    let mut command = driver.command("cuda", &job);
    // no python3, whose packages may have one
    command.env("PATH", "");
    let result = Job::start_command(command).end(LIMIT).json();
    let kernels = result["kernels"].as_str().unwrap();
    if kernels.contains("convolutions by cuDNN") {
        return skip(None, &"the dynamic linker finds a cuDNN of this machine's");
    }
    let said = "products by cuBLASLt 13.1.0, convolutions by own kernels (no cuDNN was found (libcudnn.so.9: ";
    assert!(kernels.contains(said), "{kernels}");
    assert!(kernels.contains("python3 -m pip install nvidia-cudnn-cu12 brings one"), "{kernels}");
}

#[test]
fn a_folder_without_libraries_is_refused_by_its_name() {
    let Some(driver) = driver() else { return };
    let [empty, full] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    tensorwire_fakecuda::libraries(full.path()).unwrap();
    let folders = format!("{},{}", full.path().display(), empty.path().display());
    let ended = driver.start(&format!("--cuda-libs {folders} {SMALL}"), &[]).end(LIMIT);
    refused(&ended, 2, &["--cuda-libs", empty.path().to_str().unwrap(), "libcublasLt.so"]);
}

#[test]
fn a_rounding_of_nothing_is_refused() {
    let Some(driver) = driver() else { return };
    let ended = Job::start(&format!("train --math tf32 --strategy local {SMALL}")).end(LIMIT);
    refused(&ended, 2, &["--math tf32", "the processor computes", "--device cuda"]);
    let none = [("FAKE_CUDA_DEVICES", "0")];
    let ended = driver.start_on("auto", &format!("--math bf16 {SMALL}"), &none).end(LIMIT);
    refused(&ended, 2, &["--math bf16", "the processor computes"]);
    let ended = driver.start(&format!("--math bf16 --dtype f64 {SMALL}"), &[]).end(LIMIT);
    refused(&ended, 2, &["--math bf16", "--dtype f64"]);
}
