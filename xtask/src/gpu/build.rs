//! What the parts run: programs that cargo builds, a Python with PyTorch.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cargo_metadata::{Artifact, Message, TargetKind};

use super::GpuError;
use crate::soft_roce::tools;
use crate::soft_roce::{SoftRoceError, Stop};

const BUILD_MAX: Duration = Duration::from_secs(3600);
const ASK: Duration = Duration::from_secs(120);
/// PyTorch is some gigabytes.
const INSTALL_MAX: Duration = Duration::from_secs(1800);

/// Programs by what they are.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub tensorwire: Option<PathBuf>,
    /// Tests of crate `device`, and of crate `cuda`.
    pub driver_suite: Option<PathBuf>,
    pub operators_suite: Option<PathBuf>,
    /// `crates/cuda/examples/gpu.rs`.
    pub gpu: Option<PathBuf>,
    /// The driver without a GPU, and the kernels that it runs.
    pub stand_in: Option<(PathBuf, PathBuf)>,
    /// A Python with PyTorch; looked for where the programs are built.
    pub python: Option<PathBuf>,
    /// compute-sanitizer, or what stands in its place; none: this machine's, or a wheel's, where there is a GPU.
    pub sanitizer: Option<PathBuf>,
    /// It has what it is measured beside: gRPC.
    pub has_baselines: bool,
    /// What they were built from, where that was not here.
    pub commit: Option<String>,
}

/// Builds them: suites as `cargo test` does, and the program with optimization, but for the stand-in.
pub(super) fn build(
    features: Option<&str>,
    is_stand_in: bool,
    stop: &Stop,
) -> Result<Programs, GpuError> {
    // ZeroMQ is built from its source
    let has_compiler = tools::find("c++").is_some();
    let baselines = if has_compiler { "tensorwire-cli/baselines" } else { "" };
    let features = features.unwrap_or(baselines);
    let mut programs =
        Programs { has_baselines: features.contains("baselines"), ..Programs::default() };
    let tests = ["test", "--workspace", "--no-run", "--test", "device", "--test", "cuda"];
    let examples = ["build", "--workspace", "--example", "gpu", "--example", "cuda_shim"];
    // for a test of its crate cargo builds the program
    let cli: &[&str] = if is_stand_in { &["--test", "cli"] } else { &[] };
    let mut shim = None;
    let mut built = artifacts(&[&tests[..], cli].concat(), features, stop)?;
    built.extend(artifacts(&examples, features, stop)?);
    for artifact in built {
        let target = &artifact.target;
        let file = artifact.executable.clone().map(PathBuf::from);
        match target.name.as_str() {
            "device" if target.is_test() => programs.driver_suite = file,
            "cuda" if target.is_test() => programs.operators_suite = file,
            "gpu" => programs.gpu = file,
            "cuda_shim" => shim = file,
            "tensorwire" if target.is_bin() && !artifact.profile.test && is_stand_in => {
                programs.tensorwire = file;
            }
            "tensorwire_fakecuda" if target.kind.contains(&TargetKind::CDyLib) => {
                let is_library =
                    |file: &&cargo_metadata::camino::Utf8PathBuf| file.extension() == Some("so");
                let library = artifact.filenames.iter().find(is_library);
                let library = library.map(|file| PathBuf::from(file.clone()));
                programs.stand_in = library.map(|library| (library, PathBuf::new()));
            }
            _ => {}
        }
    }
    if is_stand_in {
        let program = shim.ok_or_else(|| SoftRoceError::NotBuilt("cuda_shim".to_owned()))?;
        let said = tools::output(&mut Command::new(program), &[], ASK * 5, stop)?;
        let kernels = PathBuf::from(String::from_utf8_lossy(&said).trim());
        if let Some(stand_in) = &mut programs.stand_in {
            stand_in.1 = kernels;
        }
    } else {
        programs.stand_in = None;
        let all = ["build", "--release", "--package", "tensorwire-cli"];
        let release = artifacts(&all, features, stop)?.into_iter();
        let program = release.filter(|artifact| artifact.target.name == "tensorwire");
        programs.tensorwire = program.filter_map(|a| a.executable).map(PathBuf::from).next_back();
    }
    Ok(programs)
}

fn artifacts(
    arguments: &[&str],
    features: &str,
    stop: &Stop,
) -> Result<Vec<Artifact>, SoftRoceError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = tools::command(&cargo);
    command.current_dir(crate::root()).stderr(Stdio::inherit()).args(arguments);
    command.arg("--message-format=json-render-diagnostics");
    if !features.is_empty() {
        command.args(["--features", features]);
    }
    let said = tools::output(&mut command, &[], BUILD_MAX, stop)?;
    let messages = Message::parse_stream(said.as_slice()).filter_map(Result::ok);
    Ok(messages
        .filter_map(|message| match message {
            Message::CompilerArtifact(artifact) => Some(artifact),
            _ => None,
        })
        .collect())
}

/// A Python that has PyTorch: the one that tests are told of, that of the project's set-up, or the machine's own.
pub(super) fn python(with_torch: bool, stop: &Stop) -> Option<PathBuf> {
    let found = || {
        let told = std::env::var_os("TENSORWIRE_PYTORCH").map(PathBuf::from);
        let mut all = told.into_iter().chain(own_python()).chain(tools::find("python3"));
        all.find(|python| has_torch(python, stop))
    };
    let python = found();
    if python.is_some() || !with_torch {
        return python;
    }
    let mut command = Command::new(crate::root().join("scripts/setup.sh"));
    command.arg("--pytorch").stderr(Stdio::inherit());
    tools::output(&mut command, &[], INSTALL_MAX, stop).ok()?;
    found()
}

fn own_python() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(cache.join("tensorwire/pytorch/bin/python")).filter(|python| python.is_file())
}

fn has_torch(python: &Path, stop: &Stop) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import torch"]).stderr(Stdio::null());
    tools::output(&mut command, &[], ASK, stop).is_ok()
}
