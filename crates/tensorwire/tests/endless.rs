//! Code of the user's that never comes back, in each place where a job calls it: the job ends at its step deadline, and says which
//! process it was and what it did. What is told of a step may take any time. This program starts jobs of itself, and reports in the
//! words of `cargo test`.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorwire::graph::{Backward, CustomOperator, Gradient, Refusal};
use tensorwire::kernels::{Call, CustomKernel, custom};
use tensorwire::launch::MEMBER;
use tensorwire::prelude::*;
use tensorwire::tensor::Fact;
use tensorwire_testkit::program::{arguments, itself, say};

/// Set in the processes of a job: where they turn for ever, and how they train.
const CASE: &str = "TENSORWIRE_ENDLESS";
/// Set beside it: a folder for the checkpoints of an evaluation that never ends.
const CHECKPOINTS: &str = "TENSORWIRE_ENDLESS_CHECKPOINTS";
/// What is said of such a job, too.
const KEPT: &str = "Training::resume goes on from there";
const STEP_DEADLINE: Duration = Duration::from_secs(8);
/// Longest that a job may take from its start on, on a machine that is busy; without a step deadline it would never end.
const LONGEST: Duration = Duration::from_secs(90);
/// A sample of the test has this first.
const OF_TEST: f32 = 7.0;
/// How long a process may be silent, and longer than that what is told of a step.
const DEADLINE: Duration = Duration::from_secs(12);
const TELLING: Duration = Duration::from_secs(20);
/// Samples and kernels before the one that never ends.
const BEFORE: usize = 40;

/// Where, how the job trains, and what its last line names.
const CASES: [(&str, &str, &str); 11] = [
    ("operator", "local", "it computes 'replica"),
    ("operator", "ps", "it computes 'replica"),
    ("operator", "allreduce", "it computes 'replica"),
    ("batch", "local", "its batch was not made within 8 s"),
    ("batch", "allreduce", "its batch was not made within 8 s"),
    ("evaluation", "local", "it evaluates and computes '"),
    ("evaluation", "allreduce", "it evaluates and computes '"),
    ("test", "allreduce", "evaluating: its batch was not made within 8 s"),
    ("begin", "allreduce", "it builds its model and reads its data"),
    (TOLD, "ps", "all 3 steps were told"),
    (TOLD, "allreduce", "all 3 steps were told"),
];

/// Nothing turns for ever; what is told of a step takes long.
const TOLD: &str = "told";

static CALLS: AtomicUsize = AtomicUsize::new(0);
/// This is a process that the launcher started: that one builds the model first, to plan the job.
static IS_MEMBER: AtomicBool = AtomicBool::new(false);

/// Uses a processor, and leaves some of it to others.
fn turns_for_ever() -> ! {
    loop {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_at(place: &str) -> bool {
    std::env::var(CASE).is_ok_and(|case| case.starts_with(place))
}

fn is_late() -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed) >= BEFORE
}

/// (x) → x, once, and again.
#[derive(Debug)]
struct Turns;

impl CustomOperator for Turns {
    fn name(&self) -> &'static str {
        "Turns"
    }

    fn infer(&self, inputs: &[Fact]) -> std::result::Result<Vec<Fact>, Refusal> {
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(
        &self,
        backward: &mut dyn Backward,
    ) -> std::result::Result<Vec<Option<Gradient>>, Refusal> {
        Ok(vec![Some(backward.flowing()[0].ok_or("nothing flows")?.into())])
    }
}

impl CustomKernel for Turns {
    fn run(&self, call: &mut Call<'_>) -> std::result::Result<(), Refusal> {
        if is_at("operator") && is_late() {
            turns_for_ever();
        }
        call.by_elements(|x: f32, []| {
            if is_at("evaluation") && x == OF_TEST {
                turns_for_ever();
            }
            x
        })?;
        Ok(())
    }
}

struct Net;

impl Model for Net {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        if is_at("begin") && IS_MEMBER.load(Ordering::Relaxed) {
            turns_for_ever();
        }
        let y = s.op("turns", custom(Turns), &[batch.input("input")?])?;
        let logits = s.linear("output", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

struct Numbers {
    is_test: bool,
}

impl Dataset for Numbers {
    fn describe(&self) -> Description {
        Description::new().input("input", DType::F32, &[4]).labels("labels", 2)
    }

    fn len(&self) -> usize {
        64
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> nn::Result<()> {
        if is_at("batch") && is_late() || is_at("test") && self.is_test {
            turns_for_ever();
        }
        let first = if self.is_test { OF_TEST } else { index as f32 / 64.0 };
        sample.set("input", &[first, 0.5, -0.5, 1.0])?;
        sample.set_label("labels", (index % 2) as i32)
    }
}

/// A process of a job.
fn train() -> tensorwire::Result<()> {
    let is_member = std::env::var_os(MEMBER).is_some();
    tensorwire::init()?;
    let data = |is_test| Numbers { is_test };
    let training = Training::new(Net, (data(false), data(true)));
    let training = training.kernels(Kernels::Cpu).threads(1).batch(4).steps(1_000_000);
    let training = training.evaluate_every(4).step_deadline(STEP_DEADLINE);
    let case = std::env::var(CASE).unwrap_or_default();
    let training = match case.split(' ').nth(1) {
        Some("local") => training.strategy(Local { replicas: 1 }),
        Some("ps") => training.strategy(ParameterServers { workers: 2, servers: 1 }),
        _ => training.strategy(AllReduce { workers: 2, deterministic: true }),
    };
    let training = match std::env::var_os(CHECKPOINTS) {
        Some(folder) if is_at("evaluation") => training.checkpoint(folder, 1),
        _ => training,
    };
    IS_MEMBER.store(is_member, Ordering::Relaxed);
    if !is_at(TOLD) {
        return training.run().map(drop);
    }
    let training =
        training.steps(3).configure(|config| config.deadline_ms = DEADLINE.as_millis() as u64);
    let told = Arc::new(AtomicUsize::new(0));
    let counts = told.clone();
    let tell = move |_: &FinishedStep| {
        if counts.fetch_add(1, Ordering::Relaxed) == 0 {
            std::thread::sleep(TELLING);
        }
    };
    let summary = training.on_step(tell).run()?;
    say(&format!("all {} steps were told", told.load(Ordering::Relaxed)));
    assert_eq!(summary.steps, 3);
    Ok(())
}

/// What a job printed, and how it ended; an error if it has not within [`LONGEST`].
fn output(case: &str) -> Result<Output, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut job = Command::new(itself());
    job.env(CASE, case).env(CHECKPOINTS, folder.path().join("checkpoints"));
    job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut job = job.spawn().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    while job.try_wait().is_ok_and(|status| status.is_none()) {
        if begin.elapsed() > LONGEST {
            let _ = job.kill();
            return Err(format!("it has not ended after {} s", LONGEST.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    job.wait_with_output().map_err(|error| error.to_string())
}

fn check(place: &str, strategy: &str, named: &str) -> Result<(), String> {
    let ended = output(&format!("{place} {strategy}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    if place == TOLD {
        return match ended.status.success() && said.contains(named) {
            true => Ok(()),
            false => Err(format!("{:?}, and it does not say {named:?}:\n{said}", ended.status)),
        };
    }
    if (place, strategy) == ("evaluation", "allreduce") && !said.contains(KEPT) {
        return Err(format!("it does not say which checkpoint there is:\n{said}"));
    }
    let last = said.lines().rev().find(|line| line.contains("rror: ")).unwrap_or_default();
    let is_first = strategy == "local" || last.contains("first to fail: worker ");
    match ended.status.code() == Some(1) && is_first && last.contains(named) {
        true => Ok(()),
        false => Err(format!("{:?}, and it does not say {named:?}:\n{said}", ended.status)),
    }
}

fn main() -> ExitCode {
    if std::env::var_os(CASE).is_some() {
        return match train() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        };
    }
    let asked = arguments();
    let filters: Vec<&String> = asked.iter().filter(|asked| !asked.starts_with('-')).collect();
    let is_asked = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(&***f));
    let cases = CASES.map(|(place, strategy, named)| {
        let name = match place {
            TOLD => format!(
                "endless::what_is_told_of_a_step_of_{strategy}_may_take_longer_than_a_silence"
            ),
            _ => format!("endless::{place}_of_{strategy}_ends_at_the_step_deadline_and_is_named"),
        };
        (name, place, strategy, named)
    });
    let cases: Vec<_> = cases.into_iter().filter(|(name, ..)| is_asked(name)).collect();
    if asked.iter().any(|asked| asked == "--list") {
        return ExitCode::SUCCESS;
    }
    say(&format!("\nrunning {} tests", cases.len()));
    let mut failed = 0;
    // most of the time is spent waiting for the deadline
    for some in cases.chunks(3) {
        std::thread::scope(|scope| {
            let run = |(name, place, strategy, named): &(String, &str, &str, &str)| {
                (name.clone(), check(place, strategy, named))
            };
            let running: Vec<_> = some.iter().map(|case| scope.spawn(move || run(case))).collect();
            for (name, ended) in running.into_iter().map(|running| running.join().unwrap()) {
                failed += usize::from(ended.is_err());
                match ended {
                    Ok(()) => say(&format!("test {name} ... ok")),
                    Err(why) => say(&format!("test {name} ... FAILED\n{why}")),
                }
            }
        });
    }
    let passed = cases.len() - failed;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    say(&format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n"
    ));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
