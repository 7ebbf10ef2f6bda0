//! The machine, the first questions, and the suites that run on a driver.

use std::path::Path;

use serde_json::{Value, json};

use super::{Bench, Outcome};
use crate::soft_roce::tools;

/// Of the operators' suite, what is run where kernels are slow.
const FEW_OPERATORS: &[&str] = &["closed_form"];

/// Makes an outcome of whatever may go wrong on the way.
pub(super) fn outcome(done: Result<Outcome, String>) -> Outcome {
    done.unwrap_or_else(Outcome::Failed)
}

/// A program that is not there is no failure of the GPU's.
macro_rules! built {
    ($program:expr, $name:literal) => {
        match &$program {
            Some(program) => program.clone(),
            None => return Outcome::NotRun(concat!($name, " is not built").to_owned()),
        }
    };
}
pub(super) use built;

/// What this ran on.
pub(super) fn machine(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    outcome(machine_of(bench, &tensorwire))
}

fn machine_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let mut doctor = bench.command(tensorwire);
    doctor.args(["doctor", "--json"]).args(bench.driver_option());
    // its status judges the machine, also in what is nobody's matter here
    let ended = bench.run(&mut doctor)?;
    let facts: Value = serde_json::from_str(&ended.stdout).map_err(|_| ended.why())?;
    let word = |program: &str, arguments: &[&str]| -> Option<String> {
        let mut command = tools::command(program);
        let ended = bench.run(command.args(arguments).current_dir(crate::root())).ok()?;
        ended.succeeded.then(|| ended.stdout.trim().to_owned())
    };
    let facts = &facts["facts"];
    let cuda = &facts["gpu"]["cuda"];
    let asked = ["--query-gpu=name,driver_version,pstate,power.limit", "--format=csv,noheader"];
    let line = json!({
        "date": word("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        "commit": word("git", &["rev-parse", "--short", "HEAD"]),
        "packed_commit": bench.programs.commit,
        "changed": word("git", &["status", "--porcelain", "--untracked-files=no"]).map(|said| !said.is_empty()),
        "kernel": facts["kernel"],
        "processor": processor(),
        "cores": facts["computer"]["cores"],
        "memory_bytes": facts["computer"]["memory_bytes"],
        "cuda": cuda["version"],
        "nvidia_smi": word("nvidia-smi", &asked),
        "gpus": cuda["gpus"],
        "libraries": cuda["libraries"],
    });
    bench.say(line)?;
    let gpus = cuda["gpus"].as_array().map_or(0, Vec::len);
    let reason = cuda["obstacle"]["reason"].as_str().unwrap_or("its driver shows none");
    Ok(match gpus {
        0 => Outcome::Failed(format!("no GPU can be used: {reason}")),
        _ => Outcome::Passed(format!("{gpus} GPUs; the first is {}", cuda["gpus"][0]["name"])),
    })
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// What is asked of a GPU first.
pub(super) fn questions(bench: &mut Bench<'_, '_>) -> Outcome {
    let gpu = built!(bench.programs.gpu, "the example gpu of crate cuda");
    let answers = lines(bench, &gpu, &["questions".to_owned(), bench.driver_word()]);
    outcome(answers.map(|answers| judged(&answers)))
}

/// Where a job does otherwise, no is an answer as good as yes.
fn judged(answers: &[Value]) -> Outcome {
    let no = answers.iter().filter(|line| line["answer"] == "no");
    let no = no.map(|line| {
        let question = line["question"].as_str().unwrap_or_default();
        let otherwise = line["otherwise"].as_str();
        (otherwise.is_some(), format!("{question} ({})", otherwise.unwrap_or("a job needs it")))
    });
    let (legal, wrong): (Vec<_>, Vec<_>) = no.partition(|(is_legal, _)| *is_legal);
    let said = |no: Vec<(bool, String)>| {
        no.into_iter().map(|(_, said)| said).collect::<Vec<_>>().join("; ")
    };
    match (legal.is_empty(), wrong.is_empty()) {
        (_, false) => Outcome::Failed(format!("no: {}", said(wrong))),
        (false, _) => Outcome::Passed(format!("{} answers; no: {}", answers.len(), said(legal))),
        _ => Outcome::Passed(format!("{} answers", answers.len())),
    }
}

/// Runs a program that says lines of JSON, tells them, and returns them.
pub(super) fn lines(
    bench: &mut Bench<'_, '_>,
    program: &Path,
    arguments: &[String],
) -> Result<Vec<Value>, String> {
    let mut command = bench.command(program);
    let ended = bench.run(command.args(arguments))?;
    let parsed = ended.stdout.lines().map(serde_json::from_str);
    let parsed: Vec<Value> = parsed.filter_map(Result::ok).collect();
    for line in &parsed {
        bench.say(line.clone())?;
    }
    ended.checked()?;
    match parsed.is_empty() {
        true => Err("it said nothing".to_owned()),
        false => Ok(parsed),
    }
}

/// The driver's suite.
pub(super) fn driver(bench: &mut Bench<'_, '_>) -> Outcome {
    let suite = built!(bench.programs.driver_suite, "the suite of crate device");
    let run = suite_of(bench, bench.command(&suite), &suite, "device", &[]);
    outcome(run.map(|run| run.outcome))
}

/// The operators' suite.
pub(super) fn operators(bench: &mut Bench<'_, '_>) -> Outcome {
    let suite = built!(bench.programs.operators_suite, "the suite of crate cuda");
    let filters = if bench.is_stand_in() { FEW_OPERATORS } else { &[] };
    let run = suite_of(bench, bench.command(&suite), &suite, "cuda", filters);
    outcome(run.map(|run| run.outcome))
}

/// A suite that ran.
pub(super) struct SuiteRun {
    pub(super) outcome: Outcome,
    /// None of one that was killed.
    pub(super) code: Option<i32>,
}

/// Runs of a suite what one of the filters names, or all; passes if tests ran and none failed.
pub(super) fn suite_of(
    bench: &mut Bench<'_, '_>,
    mut command: std::process::Command,
    suite: &Path,
    name: &str,
    filters: &[&str],
) -> Result<SuiteRun, String> {
    let folder = crate::root().join("crates").join(name);
    command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
    command.args(filters);
    if !bench.is_stand_in() {
        // tests hold the memory that the GPU has left against what they took
        command.arg("--test-threads=1");
    }
    let ended = bench.run(&mut command)?;
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let Counts { passed, failed } = Counts::of(&said).ok_or_else(|| ended.why())?;
    let skipped = said.lines().filter(|line| line.starts_with("skipped")).count();
    bench.say(json!({
        "suite": name, "filter": filters.join(" "), "passed": passed, "failed": failed, "skips": skipped,
    }))?;
    let suite = suite.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let outcome = match (passed, failed) {
        (_, 1..) => {
            let names = failures(&ended.stdout).join(", ");
            Outcome::Failed(format!("{failed} of {} failed: {names}", passed + failed))
        }
        _ if !ended.succeeded => {
            Outcome::Failed(format!("none of {passed} tests failed, and {suite} {}", ended.why()))
        }
        (0, _) => Outcome::Failed(format!("{suite} ran no test")),
        _ => Outcome::Passed(format!("{passed} tests of {suite}, {skipped} skips")),
    };
    Ok(SuiteRun { outcome, code: ended.code })
}

/// What the test harness counted.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    fn of(said: &str) -> Option<Counts> {
        // a test that runs in a process of its own says the same of itself
        let line = said.lines().rfind(|line| line.starts_with("test result: "))?;
        let number = |word: &str| {
            let before =
                line.split(word).next()?.rsplit([' ', '.', ';']).find(|w| !w.is_empty())?;
            before.parse().ok()
        };
        Some(Counts { passed: number(" passed")?, failed: number(" failed")? })
    }
}

fn failures(stdout: &str) -> Vec<&str> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix("test "));
    lines.filter_map(|line| line.strip_suffix(" ... FAILED")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_with_another_way_is_an_answer() {
        let no = |otherwise: Option<&str>| json!({ "question": "q", "answer": "no", "otherwise": otherwise });
        let yes = json!({ "question": "q", "answer": "yes" });
        assert_eq!(judged(std::slice::from_ref(&yes)), Outcome::Passed("1 answers".to_owned()));
        let legal = [yes.clone(), no(Some("in parts"))];
        assert_eq!(judged(&legal), Outcome::Passed("2 answers; no: q (in parts)".to_owned()));
        let wrong = [yes, no(Some("in parts")), no(None)];
        assert_eq!(judged(&wrong), Outcome::Failed("no: q (a job needs it)".to_owned()));
    }

    #[test]
    fn what_a_harness_counts() {
        let said = "test a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\ntest b::c ... FAILED\n\n\
                    test result: FAILED. 117 passed; 4 failed; 0 ignored; 0 measured\n";
        assert_eq!(Counts::of(said), Some(Counts { passed: 117, failed: 4 }));
        assert_eq!(Counts::of("killed"), None);
        assert_eq!(failures(said), ["b::c"]);
    }
}
