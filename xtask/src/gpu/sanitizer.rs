//! Operators, and whole jobs, under NVIDIA's checker: the machine's, or a wheel's in a folder that is thrown away.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::jobs::ONE_GPU;
use super::suites::{SuiteRun, built, outcome, suite_of};
use super::{Bench, Outcome};
use crate::soft_roce::tools;

/// What it looks for: wrong addresses, races of a block's threads, barriers that not all of them reach.
const CHECKS: [&str; 3] = ["memcheck", "racecheck", "synccheck"];
/// Of the operators' suite, by all checks: each operator once (`storage::every_operator_is_lowered` sees to it, and names those of
/// `agreement_compression`), all of what is launched otherwise where operands are large, and operators of users.
const CHECKED: &[&str] = &[
    "storage::",
    "agreement_compression::",
    "agreement_attention::",
    "closed_form::",
    "closed_form_families::",
    "images_closed_form::",
    "::large_operands",
    "large::",
    "ranks::",
    "custom::on_a_gpu",
];
/// By the first check alone, for they launch some 30,000 kernels: operands of random shapes, and such as name what is not there.
const CHECKED_FOR_MEMORY: &[&str] = &[
    "agreement::",
    "agreement_elements::",
    "agreement_families::",
    "images::",
    "optimizers::",
    "faults::",
];
/// Central differences launch the same kernels thousands of times.
const SKIPPED: [&str; 3] =
    ["gradients_of_attention", "gradients_of_norms", "images::gradients_are_central_differences"];
/// Of what it found, so much is told.
const FINDINGS_MAX: usize = 3;
/// What it ends with where it found something. Programs of ours end with other numbers.
const FOUND: i32 = 99;

/// Where the machine has none. It checks what runs on any driver that this program runs on.
const PACKAGE: &str = "nvidia-cuda-sanitizer-api-cu12==12.9.79";
const OF_PACKAGE: &str = "nvidia/cuda_sanitizer_api";

/// By the first check: steps that are graphs, and two processes one of which reads, or writes, the other's memory.
const JOBS: [(&str, &str); 3] = [
    ("a job of one process", "--strategy local --workers 1"),
    ("a job whose tensors are read where they lie", "--strategy ps --workers 1 --servers 1"),
    ("a job whose tensors are written", "--strategy ps --workers 1 --servers 1 --exchange write"),
];
const SIZE: &str = "--model cifar --data synthetic:16 --batch 4 --steps 4";

/// The checker's program, and where it finds its libraries if not beside itself.
struct Checker {
    program: PathBuf,
    libraries: Option<PathBuf>,
    _folder: Option<tempfile::TempDir>,
}

/// The operators' suite, and jobs.
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
    let every = CHECKS.map(|check| (check, CHECKED));
    for (check, filters) in every.into_iter().chain([(CHECKS[0], CHECKED_FOR_MEMORY)]) {
        let log = Log::new()?;
        let mut command = checker.command(bench, check, &log);
        command.arg(suite);
        for name in SKIPPED {
            command.args(["--skip", name]);
        }
        match suite_of(bench, command, suite, "cuda", filters) {
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
    for (name, job) in JOBS {
        let log = Log::new()?;
        let mut command = checker.command(bench, CHECKS[0], &log);
        command.arg(tensorwire).args(["train", "--device", ONE_GPU]).args(bench.driver_option());
        command.args(job.split_whitespace()).args(SIZE.split_whitespace());
        let ended = bench.run(&mut command)?;
        bench.say(json!({ "checked": name, "by": CHECKS[0], "ended_with": ended.code }))?;
        match ended.code {
            // what is found in a member need not be its launcher's status
            Some(0) if !log.has_errors() => said.push(format!("{}: {name}", CHECKS[0])),
            Some(0 | FOUND) => {
                let who = format!("{}: {name}", CHECKS[0]);
                return Ok(Outcome::Failed(log.not_clean(&who, &ended.why())));
            }
            _ => return Ok(Outcome::Failed(format!("{name}: {}{}", ended.why(), log.behind()))),
        }
    }
    Ok(Outcome::Passed(said.join("; ")))
}

/// Where the checker writes what it found, in all processes that it looked into.
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

    /// True if a sum is not of none; a checker remarks other things, too.
    fn has_errors(&self) -> bool {
        self.findings().contains(" SUMMARY: ")
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
        // of a job: workers and servers, not the launcher alone
        command.args(["--target-processes", "all"]);
        command.arg("--error-exitcode").arg(FOUND.to_string());
        // beside what programs say it would be lost
        command.arg("--log-file").arg(log.0.path().join("%p"));
        command
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Files of the suite that no filter names, and why.
    const UNCHECKED: [(&str, &[&str]); 4] = [
        ("no tests", &["common", "engine", "gpu", "shim", "targets"]),
        ("no GPU", &["meeting", "modules"]),
        ("on the stand-in alone", &["example", "libraries", "rounding", "steps"]),
        ("central differences", &["gradient_table", "gradient_table_elements"]),
    ];

    #[test]
    fn every_file_of_the_suite_is_checked_or_left_out_for_a_reason() {
        let main = crate::root().join("crates/cuda/tests/cuda/main.rs");
        let main = fs::read_to_string(main).unwrap();
        let files: Vec<&str> =
            main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
        let left_out: Vec<&str> = UNCHECKED.iter().flat_map(|(_, files)| *files).copied().collect();
        let filters = [CHECKED, CHECKED_FOR_MEMORY].concat();
        let of = |file: &str| format!("{file}::");
        for file in &files {
            let is_checked = filters.iter().any(|filter| filter.starts_with(&of(file)));
            assert!(
                is_checked != left_out.contains(file),
                "{file}: checked, or left out, not both"
            );
        }
        let stale = left_out.iter().find(|file| !files.contains(file));
        assert_eq!(stale, None, "there is no such file");
        for filter in filters.iter().filter(|filter| !filter.starts_with("::")) {
            assert!(
                files.iter().any(|file| filter.starts_with(&of(file))),
                "{filter} names no file"
            );
        }
    }

    #[test]
    fn what_is_skipped_is_there() {
        let suites = ["agreement_attention", "images"].map(|name| {
            let file = format!("crates/kernels/tests/kernels/{name}.rs");
            fs::read_to_string(crate::root().join(file)).unwrap()
        });
        for name in SKIPPED {
            let function = format!("fn {}", name.rsplit("::").next().unwrap());
            assert!(suites.iter().any(|suite| suite.contains(&function)), "{name}");
        }
    }

    /// By the suite's own words, which its test `every_operator_is_lowered` keeps.
    #[test]
    fn each_operator_is_checked_by_all_checks() {
        let examples = crate::root().join("crates/cuda/tests/cuda/storage.rs");
        let examples = fs::read_to_string(examples).unwrap();
        assert!(
            examples.contains("fn every_operator_is_lowered()"),
            "it is what `storage::` stands for"
        );
        let others =
            examples.split("// of f32 alone: `").nth(1).expect("storage.rs names the others");
        let elsewhere = format!("{}::", others.split('`').next().unwrap());
        for filter in ["storage::", &elsewhere] {
            assert!(CHECKED.contains(&filter), "{filter}");
        }
    }

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
