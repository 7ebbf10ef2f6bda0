//! Operators, and a job whose steps are graphs, under NVIDIA's checker: the machine's, or a wheel's in a folder that is thrown away.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::suites::{SuiteRun, built, outcome, suite_of};
use super::{Bench, Outcome};
use crate::soft_roce::tools;

/// What it looks for: wrong addresses, races of a block's threads, barriers that not all of them reach.
const CHECKS: [&str; 3] = ["memcheck", "racecheck", "synccheck"];
/// Of the operators' suite: each operator once, and the tests of kernels that share memory of a block in ways of their own.
const CHECKED: &[&str] = &["closed_form", "agreement_attention::", "agreement_compression::"];
/// Of what it found, so much is told.
const FINDINGS_MAX: usize = 3;
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
    let told = bench.programs.sanitizer.clone();
    if bench.is_stand_in() && told.is_none() {
        return Outcome::NotRun("compute-sanitizer looks into GPUs alone".to_owned());
    }
    let found = match told {
        Some(program) => Ok(Checker { program, libraries: None, _folder: None }),
        None => Checker::find(bench),
    };
    match found {
        Ok(checker) => outcome(checked(bench, &checker, &suite, &tensorwire)),
        Err(why) => Outcome::NotRun(format!(
            "there is no compute-sanitizer, which CUDA's toolkit brings, and no wheel of it: {why}"
        )),
    }
}

fn checked(
    bench: &mut Bench<'_, '_>,
    checker: &Checker,
    suite: &Path,
    tensorwire: &Path,
) -> Result<Outcome, String> {
    let mut said = Vec::new();
    for check in CHECKS {
        let log = Log::new()?;
        let mut command = checker.command(bench, check, &log);
        command.arg(suite);
        match suite_of(bench, command, suite, "cuda", CHECKED) {
            Ok(SuiteRun { code: Some(FOUND), outcome }) => {
                let beside = if let Outcome::Failed(why) = outcome { why } else { String::new() };
                return Ok(Outcome::Failed(log.not_clean(&format!("{check}: the suite"), &beside)));
            }
            Ok(SuiteRun { outcome: Outcome::Passed(tests), .. }) => {
                said.push(format!("{check}: {tests}"));
            }
            Ok(SuiteRun { outcome: Outcome::Failed(why), .. }) | Err(why) => {
                return Ok(Outcome::Failed(format!("{check}: {why}{}", log.behind())));
            }
            Ok(SuiteRun { outcome, .. }) => return Ok(outcome),
        }
    }
    let log = Log::new()?;
    let mut command = checker.command(bench, CHECKS[0], &log);
    command.arg(tensorwire).args(JOB.split_whitespace()).args(bench.driver_option());
    let ended = bench.run(&mut command)?;
    bench.say(json!({ "checked": "a job", "by": CHECKS[0], "ended_with": ended.code }))?;
    Ok(match ended.code {
        Some(0) => Outcome::Passed(format!("{}; a job of 4 steps", said.join("; "))),
        Some(FOUND) => {
            Outcome::Failed(log.not_clean(&format!("{}: a job", CHECKS[0]), &ended.why()))
        }
        _ => Outcome::Failed(format!("a job: {}{}", ended.why(), log.behind())),
    })
}

/// Where the checker writes what it found, a file for each process that it looked into.
struct Log(tempfile::TempDir);

impl Log {
    fn new() -> Result<Log, String> {
        tempfile::tempdir().map(Log).map_err(|error| error.to_string())
    }

    /// What it found, the first of it, and its sums; in one line.
    fn findings(&self) -> String {
        let files = std::fs::read_dir(self.0.path()).into_iter().flatten().filter_map(Result::ok);
        let texts = files.filter_map(|file| std::fs::read(file.path()).ok());
        let texts: Vec<String> =
            texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect();
        findings(&texts.concat())
    }

    /// What `who` did that is not clean. Where nothing was written of it, what the program said instead.
    fn not_clean(&self, who: &str, otherwise: &str) -> String {
        match self.findings() {
            none if none.is_empty() => format!("{who} is not clean: {otherwise}"),
            found => format!("{who} is not clean: {found}"),
        }
    }

    /// Behind another failure.
    fn behind(&self) -> String {
        match self.findings() {
            none if none.is_empty() => none,
            found => format!("; the checker: {found}"),
        }
    }
}

/// Of a checker's log its findings, each with the line behind it, which names the kernel, and the sums that are not of none.
fn findings(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("========= ")).collect();
    let is_sum = |line: &str| line.contains(" SUMMARY: ");
    let (mut found, mut sums) = (Vec::new(), Vec::new());
    for (at, &line) in lines.iter().enumerate() {
        // what is further in belongs to the line before
        if line.starts_with([' ', '\t']) || line.trim().is_empty() || line == "COMPUTE-SANITIZER" {
            continue;
        }
        if is_sum(line) {
            sums.extend((!line.contains(": 0 ")).then(|| line.to_owned()));
            continue;
        }
        let behind = lines.get(at + 1).filter(|next| next.starts_with([' ', '\t']));
        found.push(format!(
            "{line}{}",
            behind.map_or(String::new(), |next| format!(" {}", next.trim()))
        ));
    }
    let more = found.len().saturating_sub(FINDINGS_MAX);
    found.truncate(FINDINGS_MAX);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    found.extend(sums);
    found.join(" | ")
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
    fn command(&self, bench: &Bench<'_, '_>, check: &str, log: &Log) -> Command {
        let mut command = bench.command(&self.program);
        if let Some(libraries) = &self.libraries {
            command.arg("--injection-path").arg(libraries);
        }
        // what the driver is asked and answers no to is an answer
        command.args(["--report-api-errors", "no", "--tool", check]);
        command.arg("--error-exitcode").arg(FOUND.to_string());
        // of each process apart: beside what programs say it would be lost
        command.arg("--log-file").arg(log.0.path().join("%p"));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_their_kernels_and_sums() {
        let clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(findings(clean), "");
        let wrong = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n\
                     =========     at product_f32+0x70\n=========     by thread (0,0,0) in block (0,0,0)\n=========\n\
                     ========= ERROR: Race reported between Read access at norm_f32+0x10\n\
                     ========= ERROR SUMMARY: 2 errors\n";
        assert_eq!(
            findings(&format!("{wrong}{clean}")),
            "Invalid __global__ write of size 4 bytes at product_f32+0x70 | ERROR: Race reported between Read access at \
             norm_f32+0x10 | ERROR SUMMARY: 2 errors"
        );
        let many = "========= ERROR: a\n".repeat(5);
        assert_eq!(findings(&many), "ERROR: a | ERROR: a | ERROR: a | 2 more");
    }
}
