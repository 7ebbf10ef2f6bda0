//! A process that trains alone: what depends on the step goes on where it stopped, too.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorwire_nn::{Batch, Model, Norm, Optimizer, Outputs, Result, Scope};
use tensorwire_train::{
    Budget, CheckpointConfig, Kernels, Prepared, Progress, Strategy, TrainConfig, TrainError,
    Workload, train_local,
};
use tensorwire_zoo::data::{SampleKind, Source};

/// Drops other numbers in each step, and keeps moving averages, which evaluation takes.
#[derive(Debug)]
struct Noisy;

impl Model for Noisy {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = s.flatten("flat", batch.input("input")?)?;
        let y = s.linear("hidden", x, 24)?;
        let y = s.batch_norm("norm", y, Norm { epsilon: 1e-5, scaled: true })?;
        let y = s.dropout("drop", y, 0.5)?;
        let logits = s.linear("output", y, 10)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn prepared(config: TrainConfig) -> Prepared {
    let source: Source = "digits".parse().unwrap();
    let digits = SampleKind::Images { dims: [8, 8, 1], classes: 10 };
    Prepared::new(config, &Workload::new(Noisy, source.open(digits, 1).unwrap())).unwrap()
}

/// A job of so many steps, over the end of an epoch.
fn job(steps: u64) -> TrainConfig {
    TrainConfig {
        strategy: Strategy::Local,
        batch: 64,
        budget: Budget::Steps(steps),
        optimizer: Optimizer::adam(0.003),
        threads: Some(1),
        kernels: Kernels::Cpu,
        ..TrainConfig::default()
    }
}

fn hash(config: TrainConfig) -> String {
    let never = AtomicBool::new(false);
    let report = train_local(&prepared(config), &never, &mut |_| {}, &|_| {}).unwrap();
    report.weights_sha256.unwrap()
}

fn keeping(path: &Path, every: Option<u64>, config: TrainConfig) -> TrainConfig {
    let checkpoint = Some(CheckpointConfig { every, ..CheckpointConfig::new(path) });
    TrainConfig { checkpoint, ..config }
}

#[test]
fn what_is_dropped_and_averaged_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = hash(job(20));
    // an epoch has 11 steps
    let first = hash(keeping(folder.path(), None, job(14)));
    assert_ne!(first, undisturbed);
    let resume = || Some(folder.path().to_path_buf());
    assert_eq!(hash(TrainConfig { resume: resume(), ..job(20) }), undisturbed);
    std::fs::remove_dir_all(folder.path().join("step-00000014")).unwrap();
    let config = keeping(folder.path(), Some(100), TrainConfig { resume: resume(), ..job(20) });
    let resumed = prepared(config.clone());
    assert_eq!((resumed.steps_done(), resumed.steps()), (11, 20));
    assert_eq!(hash(config), undisturbed);
    assert!(folder.path().join("step-00000020/state.json").exists());
}

#[test]
fn who_is_interrupted_leaves_the_last_step() {
    let folder = tempfile::tempdir().unwrap();
    let interrupt = AtomicBool::new(false);
    let config = keeping(folder.path(), Some(100), job(20));
    let mut on_progress =
        |progress: Progress| interrupt.store(progress.step == 8, Ordering::Relaxed);
    let ended = train_local(&prepared(config), &interrupt, &mut on_progress, &|_| {});
    assert!(matches!(ended, Err(TrainError::Interrupted)), "{ended:?}");
    assert!(folder.path().join("step-00000008").exists());
    let resume = Some(folder.path().to_path_buf());
    assert_eq!(hash(TrainConfig { resume, ..job(20) }), hash(job(20)));
}
