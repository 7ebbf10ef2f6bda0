//! Jobs that a test makes, and what is told of them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, getpid, kill_process};
use tensorwire_graph::Task;
use tensorwire_nn::{Batch, Outputs, Scope};
use tensorwire_zoo::data::{SampleKind, Source};

use super::*;
use tensorwire_train::StoreConfig;

use crate::strategies::{
    AllReduce, AsyncParameterServers, ElasticAveraging, Local, ParameterServers, Store,
};

/// One layer, on a task of its own.
struct Pinned(Task);

impl Model for Pinned {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> tensorwire_nn::Result<Outputs> {
        let x = s.flatten("flat", batch.input("input")?)?;
        let logits = s.on(self.0, |s| s.linear("output", x, 10))?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn training() -> Training {
    let source: Source = "digits".parse().unwrap();
    let digits = SampleKind::Images { dims: [8, 8, 1], classes: 10 };
    Training::new(Pinned(Task::server(0)), source.open(digits, 1).unwrap())
}

pub(super) fn prepared() -> Prepared {
    let job = training().strategy(Local { replicas: 1 });
    Prepared::new(job.config, &job.workload).unwrap()
}

#[test]
fn the_last_strategy_is_the_one_that_counts() {
    let (workers, servers) = (2, 2);
    let averaging = ElasticAveraging { workers, servers, interval: Some(4), alpha: None };
    let elastic =
        Store { options: StoreConfig { elastic: true, ..Default::default() }, workers, servers };
    let all = AllReduce { workers, deterministic: false };
    for job in [
        training().strategy(averaging).strategy(all),
        training().strategy(AsyncParameterServers { workers, servers }).strategy(all),
        training().strategy(elastic).strategy(ParameterServers { workers, servers }),
    ] {
        job.config.check().unwrap();
    }
}

#[test]
fn the_shell_of_hosts_counts_whenever_it_is_given() {
    let hosts = |training: Training| training.hosts.unwrap().unwrap();
    let first = hosts(training().remote_shell("rsh -x").hosts(["a", "b"]));
    let last = hosts(training().hosts(["a", "b"]).remote_shell("rsh -x"));
    assert_eq!(first, last);
    assert_ne!(first, hosts(training().hosts(["a", "b"])));
}

#[test]
fn a_run_tells_of_its_steps_and_writes_an_event_file() {
    let folder = tempfile::tempdir().unwrap();
    let (told, heard) = std::sync::mpsc::channel();
    let job = training().strategy(Local { replicas: 1 }).batch(8).steps(3).threads(1);
    let job = job.evaluate_every(2).tensorboard(folder.path().join("runs"));
    job.on_step(move |step| told.send(step.evaluation.is_some()).unwrap()).run().unwrap();
    assert_eq!(heard.iter().collect::<Vec<_>>(), [false, true, false]);
    let files = std::fs::read_dir(folder.path().join("runs")).unwrap();
    let [file] = &files.flatten().collect::<Vec<_>>()[..] else { panic!("one file") };
    // what says the version, three steps, and the end
    assert!(file.metadata().unwrap().len() > 200);
    let nowhere = training().strategy(Local { replicas: 1 }).tensorboard("/proc/runs");
    let refused = nowhere.run().unwrap_err().to_string();
    assert!(refused.contains("event files to /proc/runs"), "{refused}");
}

/// Has a test run the part of it that is for a process of its own.
const PART: &str = "TENSORWIRE_TEST_PART";
const STANDING: &str = "step 2 was told";

/// This test in a process of its own, which ends with the test.
struct Alone(Child);

impl Alone {
    /// Starts it; none in that process itself.
    fn start(test: &str) -> Option<Alone> {
        if std::env::var_os(PART).is_some() {
            return None;
        }
        let mut program = Command::new(std::env::current_exe().unwrap());
        let test = format!("training::tests::{test}");
        program.args(["--exact", &test, "--nocapture"]).env(PART, "1");
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Some(Alone(program.spawn().unwrap()))
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stderr.take().unwrap()).lines().map_while(|line| line.ok())
    }

    /// Sends Ctrl-C, and waits until it is taken: two that wait at once are one.
    fn interrupt(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::INT).unwrap();
        let status = format!("/proc/{process}/status");
        let waits = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let mut masks = status.lines().filter_map(|line| {
                line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))
            });
            masks.any(|mask| {
                let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
                mask >> (Signal::INT.as_raw() - 1) & 1 == 1
            })
        };
        while waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // one that has ended is gone
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_told_of_a_step_may_take_longer_than_a_step() {
    // a step of a busy machine is shorter
    let deadline = Duration::from_secs(8);
    let training = training().strategy(Local { replicas: 1 }).steps(2).step_deadline(deadline);
    // a process that stands still for good would be ended, and this test with it
    let done = training.on_step(move |_| std::thread::sleep(deadline * 3 / 2)).run().unwrap();
    assert_eq!(done.steps, 2);
}

#[test]
fn a_loss_that_explodes_is_told_and_so_is_what_a_second_ctrl_c_loses() {
    let name = "a_loss_that_explodes_is_told_and_so_is_what_a_second_ctrl_c_loses";
    let Some(mut alone) = Alone::start(name) else {
        let job = training().strategy(Local { replicas: 1 }).optimizer(Optimizer::sgd(1e5));
        let job = job.batch(8).steps(9).threads(1).on_step(|done| {
            if done.step == 2 {
                program::say(STANDING);
                std::thread::sleep(Duration::from_secs(120));
            }
        });
        panic!("{:?}", job.run().map(drop));
    };
    let mut said = alone.lines();
    let before: Vec<String> = said.by_ref().take_while(|line| line != STANDING).collect();
    let warned: Vec<&String> = before.iter().filter(|line| line.starts_with("warning: ")).collect();
    let [warning] = warned[..] else { panic!("{before:?}") };
    let losses = warning.strip_prefix("warning: step 2: the loss is ");
    let losses = losses
        .and_then(|it| it.strip_suffix("; if it does not fall again, lower the optimizer's rate"));
    let losses = losses.and_then(|it| it.split_once(", the first one was "));
    let is_loss = |text: &str| text.parse::<f32>().is_ok();
    assert!(losses.is_some_and(|(now, first)| is_loss(now) && is_loss(first)), "{warning}");
    alone.interrupt();
    assert!(alone.0.try_wait().unwrap().is_none(), "the first waits for the step");
    alone.interrupt();
    let last: Vec<String> = said.collect();
    let lost = "2 steps are lost, which Training::checkpoint would have kept";
    assert_eq!(last, [format!("error: interrupted, and ended at once; {lost}")]);
    assert_eq!(alone.0.wait().unwrap().code(), Some(130));
}

/// A job, which is told to end in a step, or is not; returns whether that interrupted it.
fn is_interrupted(in_step: Option<u64>) -> bool {
    // the thread that hears of it is another one: steps go on until it has
    let steps = if in_step.is_some() { 1_000_000 } else { 4 };
    let job = training().strategy(Local { replicas: 1 }).batch(8).steps(steps).threads(1);
    let ran = job.on_step(move |done| {
        if Some(done.step) == in_step {
            kill_process(getpid(), Signal::INT).unwrap();
        }
    });
    match ran.run() {
        Ok(summary) => {
            assert_eq!(summary.steps, steps);
            false
        }
        Err(error) => {
            assert!(error.to_string().contains("interrupted"), "{error}");
            true
        }
    }
}

#[test]
fn each_job_counts_its_own_signals_and_between_two_one_ends_the_program() {
    let name = "each_job_counts_its_own_signals_and_between_two_one_ends_the_program";
    let Some(mut alone) = Alone::start(name) else {
        let each = [Some(2), None, Some(1), None].map(is_interrupted);
        assert_eq!(each, [true, false, true, false]);
        program::say(STANDING);
        std::thread::sleep(Duration::from_secs(120));
        panic!("a signal without a job is nobody's");
    };
    let mut said = alone.lines();
    assert!(said.any(|line| line == STANDING), "the jobs run");
    alone.interrupt();
    let last: Vec<String> = said.collect();
    assert!(last.is_empty(), "{last:?}");
    assert_eq!(alone.0.wait().unwrap().code(), Some(130));
}

/// Two samples a step, of which the third is no number.
struct Torn;

impl tensorwire_nn::Dataset for Torn {
    fn describe(&self) -> tensorwire_nn::Description {
        let described = tensorwire_nn::Description::new();
        described.input("input", tensorwire_nn::DType::F32, &[2]).labels("labels", 10)
    }

    fn len(&self) -> usize {
        4
    }

    fn get(
        &self,
        index: usize,
        sample: &mut tensorwire_nn::Sample<'_>,
    ) -> tensorwire_nn::Result<()> {
        let x = if index == 2 { f32::NAN } else { 1.0 };
        sample.set("input", &[0.5, x])?;
        sample.set_label("labels", 1)
    }
}

#[test]
fn data_that_hold_no_number_are_to_blame_and_not_training() {
    let job = Training::new(Pinned(Task::server(0)), Torn).strategy(Local { replicas: 2 });
    let error = job.batch(1).steps(2).threads(1).run().unwrap_err().to_string();
    assert!(error.contains(": data 'Torn', sample 2: 'input' holds NaN; leave"), "{error}");
}

#[test]
fn a_line_comes_every_so_many_steps_with_each_epoch_and_evaluation() {
    let done = |step| FinishedStep {
        step,
        time: 0.0,
        workers: 1,
        epoch: 1,
        loss: 0.0,
        rate: 0.0,
        samples_per_second: 0.0,
        polling: Default::default(),
        evaluation: (step == 5).then(Default::default),
    };
    let shown =
        |every| (1..=14).filter(|step| is_shown(&done(*step), every, 6, 14)).collect::<Vec<u64>>();
    assert_eq!(shown(4), [4, 5, 6, 8, 12, 14]);
    assert_eq!(shown(0), [5, 6, 12, 14], "epochs alone");
}

#[test]
fn a_pin_is_refused_where_no_process_has_a_part_for_it() {
    let (workers, servers) = (2, 2);
    let prepared = |job: Training| Prepared::new(job.config, &job.workload).map(drop);
    let all = AllReduce { workers, deterministic: false };
    for job in [
        training().strategy(Store { workers, servers, ..Store::default() }),
        training().strategy(AsyncParameterServers { workers, servers }),
        training().strategy(all),
    ] {
        let refused = prepared(job).unwrap_err().to_string();
        assert!(refused.contains("is pinned to server 0 (Scope::on)"), "{refused}");
    }
    prepared(training().strategy(ParameterServers { workers, servers })).unwrap();
    prepared(training().strategy(Local { replicas: 2 })).unwrap();
    let placed = training().strategy(all).placement(Placement::RoundRobin);
    let refused = placed.config.check().unwrap_err().to_string();
    assert!(refused.contains("--placement changes nothing here"), "{refused}");
}

#[test]
fn a_duration_that_is_longer_than_any_job_is_not_cut() {
    let config = training().launcher_patience(Duration::MAX).config;
    assert_eq!(config.launcher_patience_ms, Some(u64::MAX));
}
