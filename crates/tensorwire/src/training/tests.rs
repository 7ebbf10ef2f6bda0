//! Jobs that a test makes, and what is told of them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
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

/// Has the test below run a job that two steps explode, and that stands still then.
const STANDS: &str = "TENSORWIRE_TEST_STANDS";
const STANDING: &str = "step 2 was told";

#[test]
fn a_loss_that_explodes_is_told_and_so_is_what_a_second_ctrl_c_loses() {
    if std::env::var_os(STANDS).is_some() {
        let job = training().strategy(Local { replicas: 1 }).optimizer(Optimizer::sgd(1e5));
        let job = job.batch(8).steps(9).threads(1).on_step(|done| {
            if done.step == 2 {
                program::say(STANDING);
                std::thread::sleep(Duration::from_secs(120));
            }
        });
        panic!("{:?}", job.run().map(drop));
    }
    let name = "training::tests::a_loss_that_explodes_is_told_and_so_is_what_a_second_ctrl_c_loses";
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name, "--nocapture"]).env(STANDS, "1");
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut job = program.spawn().unwrap();
    let mut said = BufReader::new(job.stderr.take().unwrap()).lines().map_while(|line| line.ok());
    let before: Vec<String> = said.by_ref().take_while(|line| line != STANDING).collect();
    let warned = before.iter().filter(|line| line.starts_with("warning: step 2: the loss is "));
    assert_eq!(warned.count(), 1, "{before:?}");
    let process = Pid::from_child(&job);
    kill_process(process, Signal::INT).unwrap();
    // two that come at once may be one
    std::thread::sleep(Duration::from_millis(500));
    assert!(job.try_wait().unwrap().is_none(), "the first waits for the step");
    kill_process(process, Signal::INT).unwrap();
    let last: Vec<String> = said.collect();
    let lost = "2 steps are lost, which Training::checkpoint would have kept";
    assert_eq!(last, [format!("error: interrupted, and ended at once; {lost}")]);
    assert_eq!(job.wait().unwrap().code(), Some(130));
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
