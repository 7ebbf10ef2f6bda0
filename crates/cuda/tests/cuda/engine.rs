//! Tests on the driver without a GPU and with its libraries: whole operators, as sessions have them computed. The driver reads
//! its environment once, so that each of these runs in a process of its own.

use std::process::Command;

use tensorwire_cuda::Rounding;
use tensorwire_device::LibrarySearch;
use tensorwire_testkit::cuda::{OnlyDriver, TEST_CUDA};
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

/// Names the folder of libraries in a process of its own, or `none`.
const LIBRARIES: &str = "CUDA_TEST_LIBRARIES";
const ROUNDING: &str = "CUDA_TEST_ROUNDING";

/// Lies where the toolkit's headers would.
pub(crate) const HEADER: &str = "cuda_twice.h";

/// True in a process of its own.
pub(crate) fn is_own_process() -> bool {
    std::env::var_os(LIBRARIES).is_some()
}

/// Where this process is to look for libraries.
pub(crate) fn libraries() -> Option<LibrarySearch> {
    let folder = std::env::var_os(LIBRARIES).filter(|folder| folder != "none")?;
    Some(LibrarySearch { folders: vec![folder.into()], ..LibrarySearch::default() })
}

/// What this process is to round to.
pub(crate) fn rounding() -> Rounding {
    match std::env::var(ROUNDING).as_deref() {
        Ok("tf32") => Rounding::Tf32,
        Ok("bf16") => Rounding::Bf16,
        _ => Rounding::Nothing,
    }
}

/// Runs tests of this program, whose names begin so, in a process with that driver: what it said.
pub(crate) fn in_a_process(
    names: &[&str],
    libraries: bool,
    environment: &[(&str, &str)],
) -> Option<String> {
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
    // as a toolkit has them
    let toolkit = tempfile::tempdir().unwrap();
    let [lib, include] = ["lib", "include"].map(|name| toolkit.path().join(name));
    for folder in [&lib, &include] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(include.join(HEADER), "#define TWICE(x) ((x) + (x))\n").unwrap();
    tensorwire_fakecuda::libraries(&lib).unwrap();
    let folder = if libraries { &*lib } else { std::path::Path::new("none") };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(names).args(["--nocapture", "--test-threads=1"]);
    command.env(LIBRARIES, folder).env("FAKE_CUDA_KERNELS", kernels);
    command.envs(tensorwire_fakecuda::library().map(|driver| (TEST_CUDA, driver)));
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{names:?}: {said}");
    assert!(!said.contains("running 0 tests"), "{names:?} are no tests");
    Some(said)
}
