//! Operators, and a job whose steps are graphs, under NVIDIA's checker: the machine's, or a wheel's in a folder that is thrown away.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::suites::{FEW_OPERATORS, built, outcome, suite_of};
use super::{Bench, Outcome};
use crate::soft_roce::tools;

/// What it looks for: wrong addresses, races of a block's threads, barriers that not all of them reach.
const CHECKS: [&str; 3] = ["memcheck", "racecheck", "synccheck"];
/// What it ends with where it found something. Programs of ours end with other numbers.
const FOUND: i32 = 99;

/// Where the machine has none. It checks what runs on any driver that this program runs on.
const PACKAGE: &str = "nvidia-cuda-sanitizer-api-cu12==12.9.79";
const OF_PACKAGE: &str = "nvidia/cuda_sanitizer_api";

/// Its later steps are graphs.
const JOB: &str = "train --strategy local --workers 1 --model cifar --data synthetic:16 --batch 4 --steps 4 --device cuda";

/// The checker's program, and where it finds its libraries if not beside itself.
struct Checker {
    program: PathBuf,
    libraries: Option<PathBuf>,
    _folder: Option<tempfile::TempDir>,
}

/// The operators' suite, and a job.
pub(super) fn sanitizer(bench: &mut Bench<'_, '_>) -> Outcome {
    let suite = built!(bench.programs.operators_suite, "the suite of crate cuda");
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    if bench.is_stand_in() {
        return Outcome::NotRun("compute-sanitizer looks into GPUs alone".to_owned());
    }
    let checker = match Checker::find(bench) {
        Ok(checker) => checker,
        Err(why) => {
            return Outcome::NotRun(format!(
                "there is no compute-sanitizer, which CUDA's toolkit brings, and no wheel of it: {why}"
            ));
        }
    };
    outcome(checked(bench, &checker, &suite, &tensorwire))
}

fn checked(
    bench: &mut Bench<'_, '_>,
    checker: &Checker,
    suite: &Path,
    tensorwire: &Path,
) -> Result<Outcome, String> {
    let mut said = Vec::new();
    for check in CHECKS {
        let mut command = checker.command(bench, check);
        command.arg(suite);
        match suite_of(bench, command, suite, "cuda", FEW_OPERATORS) {
            Ok(Outcome::Passed(tests)) => said.push(format!("{check}: {tests}")),
            Ok(Outcome::Failed(why)) | Err(why) => {
                return Ok(Outcome::Failed(format!("{check}: {why}")));
            }
            Ok(not_run) => return Ok(not_run),
        }
    }
    let mut command = checker.command(bench, CHECKS[0]);
    command.arg(tensorwire).args(JOB.split_whitespace()).args(bench.driver_option());
    let ended = bench.run(&mut command)?;
    bench.say(json!({ "checked": "a job", "by": CHECKS[0], "ended_with": ended.code }))?;
    Ok(match ended.code {
        Some(0) => Outcome::Passed(format!("{}; a job of 4 steps", said.join("; "))),
        Some(FOUND) => Outcome::Failed(format!("a job is not clean: {}", ended.why())),
        _ => Outcome::Failed(format!("a job: {}", ended.why())),
    })
}

impl Checker {
    fn find(bench: &mut Bench<'_, '_>) -> Result<Checker, String> {
        let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
        let folders = home.into_iter().chain([PathBuf::from("/usr/local/cuda")]);
        let mut files = folders.map(|folder| folder.join("bin/compute-sanitizer"));
        let found = tools::find("compute-sanitizer").or_else(|| files.find(|file| file.is_file()));
        match found {
            Some(program) => Ok(Checker { program, libraries: None, _folder: None }),
            None => Checker::of_wheel(bench),
        }
    }

    fn of_wheel(bench: &mut Bench<'_, '_>) -> Result<Checker, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut pip = tools::command("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        bench.run(pip.arg(folder.path()).arg(PACKAGE))?.checked()?;
        let package = folder.path().join(OF_PACKAGE);
        let program = package.join("bin/compute-sanitizer");
        // in the wheel it is a file like any other
        std::fs::set_permissions(&program, Permissions::from_mode(0o755))
            .map_err(|error| format!("{PACKAGE}, {}: {error}", program.display()))?;
        Ok(Checker { program, libraries: Some(package.join("lib")), _folder: Some(folder) })
    }

    /// It, for a program that comes behind it.
    fn command(&self, bench: &Bench<'_, '_>, check: &str) -> Command {
        let mut command = bench.command(&self.program);
        if let Some(libraries) = &self.libraries {
            command.arg("--injection-path").arg(libraries);
        }
        // what the driver is asked and answers no to is an answer
        command.args(["--report-api-errors", "no", "--tool", check]);
        command.arg("--error-exitcode").arg(FOUND.to_string());
        command
    }
}
