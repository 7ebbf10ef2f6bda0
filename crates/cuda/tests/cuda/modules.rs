//! The PTX: that of the sources, with the kernels that are launched, and taken by an assembler where one is.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use tensorwire_cuda::{kernel_names, modules};
use tensorwire_testkit::skip::skip;

use crate::shim::shim;

fn crate_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// As `cargo xtask ptx` computes it.
fn hash_of_sources() -> String {
    let folder = crate_folder().join("kernels");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut hasher = Sha256::new();
    for name in names {
        hasher.update(&name);
        hasher.update(std::fs::read(folder.join(&name)).unwrap());
    }
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn ptx_is_that_of_the_sources() {
    let hash = hash_of_sources();
    for module in modules() {
        let ptx = module.ptx();
        let found = ptx.lines().find_map(|line| line.strip_prefix("// sources "));
        assert_eq!(found, Some(&hash[..]), "{} is stale: run cargo xtask ptx", module.name);
        assert!(ptx.contains(".target sm_80"), "{}", module.name);
    }
}

#[test]
fn kernels_are_those_of_the_ptx_and_of_the_shim() {
    let names: BTreeSet<&str> = kernel_names().collect();
    assert_eq!(names.len(), kernel_names().count(), "a kernel is in two modules");
    for module in modules() {
        let ptx = module.ptx();
        let entries = ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
        let entries: BTreeSet<&str> = entries.map(|name| name.trim_end_matches('(')).collect();
        assert_eq!(entries, module.kernels().collect(), "{}", module.name);
    }
    let Some(shim) = shim() else { return };
    let compiled = shim.kernels();
    assert_eq!(compiled.iter().map(String::as_str).collect::<BTreeSet<&str>>(), names);
}

/// NVIDIA's assembler where it is installed; `cargo xtask ptx --check` brings one.
#[test]
fn ptx_assembles() {
    let Ok(version) = Command::new("ptxas").arg("--version").output() else {
        return skip(None, &"no ptxas is installed; cargo xtask ptx --check brings one");
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().unwrap();
    for module in modules() {
        let file = folder.path().join(module.name);
        std::fs::write(&file, module.ptx()).unwrap();
        for machine in ["sm_80", "sm_90"] {
            let mut command = Command::new("ptxas");
            command.arg(format!("-arch={machine}")).arg(&file).args(["-o", "/dev/null"]);
            let done = command.output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{} for {machine}: {said}", module.name);
        }
    }
}
