//! Learning curves of ways of training (Mamidala et al., Figures 11 to 14): each way trains as `tensorwire train`
//! does, and worker 0 evaluates at the end of each epoch.

use serde::Serialize;
use tensorwire_launch::{JobSpec, JobUpdate, Transport};
use tensorwire_train::{
    ClientConfig, EpochEnd, Prepared, Progress, Quantiles, Strategy, Traffic, TrainConfig,
    launch_train,
};

use crate::by_name::ByName;
use crate::error::BenchError;
use crate::machine::Machine;

/// The paper's six.
pub const PAPER_MODES: [Strategy; 6] = [
    Strategy::DistSgd,
    Strategy::DistAsgd,
    Strategy::DistEsgd,
    Strategy::MpiSgd,
    Strategy::MpiAsgd,
    Strategy::MpiEsgd,
];

/// How far a job is at the end of an epoch; of several runs of it ([`ModePoint::with`]) the median of each figure.
#[derive(Clone, Debug, Serialize)]
pub struct ModePoint {
    pub bench: &'static str,
    pub mode: &'static str,
    pub model: String,
    pub data: String,
    pub transport: Transport,
    pub workers: u32,
    pub clients: u32,
    pub servers: u32,
    /// Samples of a worker in a step.
    pub batch: usize,
    /// Steps between two meetings with the centre, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<u64>,
    pub epoch: u64,
    /// Worker 0's, since training began and of this epoch, without evaluations; and what one of ten runs took at most, and nine of
    /// ten.
    pub seconds: f64,
    pub p10_seconds: f64,
    pub p90_seconds: f64,
    pub epoch_seconds: f64,
    pub p10_epoch_seconds: f64,
    pub p90_epoch_seconds: f64,
    /// How many runs it is of.
    pub repetitions: usize,
    /// The mean over the epoch's steps and all workers.
    pub loss: f64,
    /// Of what worker 0 has then: the weights that the next step begins with, or the centre.
    pub test_loss: f64,
    pub test_accuracy: f64,
    /// By all workers since training began: pushed and pulled, and inside clients
    /// ([`Traffic::client_bytes`]); and both. Each is a median by itself.
    pub store_bytes: u64,
    pub client_bytes: u64,
    pub bytes_exchanged: u64,
    pub machine: Machine,
}

impl ModePoint {
    /// What it and the same epoch of earlier runs of the job say together.
    pub fn with(&self, before: &[Curve]) -> ModePoint {
        let same = before.iter().flat_map(|curve| &curve.points);
        let same = same.filter(|point| point.epoch == self.epoch);
        let runs: Vec<&ModePoint> = same.chain([self]).collect();
        let of = |figure: &dyn Fn(&ModePoint) -> f64| {
            let found = Quantiles::of(runs.iter().map(|run| figure(run)));
            found.expect("it is one of them itself")
        };
        let median = |figure: &dyn Fn(&ModePoint) -> f64| of(figure).median;
        // fits: bytes of a job are below 2^53; between two runs there may be half a byte
        let bytes =
            |figure: fn(&ModePoint) -> u64| median(&|run| figure(run) as f64).round() as u64;
        let (seconds, epoch) = (of(&|run| run.seconds), of(&|run| run.epoch_seconds));
        ModePoint {
            seconds: seconds.median,
            p10_seconds: seconds.p10,
            p90_seconds: seconds.p90,
            epoch_seconds: epoch.median,
            p10_epoch_seconds: epoch.p10,
            p90_epoch_seconds: epoch.p90,
            repetitions: runs.len(),
            loss: median(&|run| run.loss),
            test_loss: median(&|run| run.test_loss),
            test_accuracy: median(&|run| run.test_accuracy),
            store_bytes: bytes(|run| run.store_bytes),
            client_bytes: bytes(|run| run.client_bytes),
            bytes_exchanged: bytes(|run| run.bytes_exchanged),
            ..self.clone()
        }
    }
}

/// A whole curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// One an epoch, in order.
    pub points: Vec<ModePoint>,
    /// Of what is evaluated in the end; of several runs, in the last.
    pub weights_sha256: String,
}

impl Curve {
    /// What it and earlier runs of the job say together.
    pub fn with(self, before: &[Curve]) -> Curve {
        let points = self.points.iter().map(|point| point.with(before)).collect();
        Curve { points, ..self }
    }

    /// The best accuracy of all epochs.
    pub fn best(&self) -> f64 {
        self.points.iter().map(|point| point.test_accuracy).fold(0.0, f64::max)
    }

    /// The end of the first epoch with at least this accuracy.
    pub fn reached(&self, accuracy: f64) -> Option<&ModePoint> {
        self.points.iter().find(|point| point.test_accuracy >= accuracy)
    }
}

/// A job in another way, with those of its options that are of that way.
pub fn in_mode(config: &TrainConfig, mode: Strategy) -> TrainConfig {
    let ClientConfig { clients, interval, alpha, .. } = config.clients;
    let has_clients = mode.has_groups() && mode != Strategy::AllReduce;
    let averages = mode.is_averaging();
    let clients = ClientConfig {
        clients: clients.filter(|_| has_clients),
        interval: interval.filter(|_| averages),
        alpha: alpha.filter(|_| averages),
        ..ClientConfig::default()
    };
    TrainConfig { strategy: mode, clients, evaluate_each_epoch: true, ..config.clone() }
}

/// Trains, and tells of each epoch that all workers are done with. `job` says how to start members.
///
/// # Errors
/// When training fails, an epoch is missing, or the weights in the end do something else than at the end of the
/// last epoch where nothing came between.
pub fn curve(
    config: &TrainConfig,
    job: &JobSpec,
    on_point: &mut dyn FnMut(&ModePoint),
) -> Result<Curve, BenchError> {
    let config = TrainConfig { evaluate_each_epoch: true, ..config.clone() };
    let prepared = Prepared::new(config, &ByName)?;
    let config = &prepared.config;
    let mut epochs = Epochs::new(config.workers, prepared.steps_per_epoch());
    let mut points: Vec<ModePoint> = Vec::new();
    let outcome = launch_train(&prepared, &ByName, job, &mut |update| {
        let JobUpdate::Progress { rank, value, .. } = update else { return };
        let Some(worker) = prepared.worker(rank) else { return };
        // fits: workers are few
        epochs.add(worker as usize, &value);
        while let Some(done) = epochs.take() {
            let point = point(config, points.last(), &done);
            on_point(&point);
            points.push(point);
        }
    })?;
    let all = prepared.steps() / prepared.steps_per_epoch();
    // fits: epochs are in memory
    if (points.len() as u64) < all {
        return Err(BenchError::NoEpoch { epoch: points.len() as u64 + 1 });
    }
    let found = outcome.weights_sha256().map(str::to_string);
    let weights_sha256 = found.ok_or(BenchError::NoWeights { kind: config.strategy.name() })?;
    if let (Some(last), Some(in_the_end), false) =
        (points.last(), outcome.test_accuracy(), prepared.topology.is_asynchronous())
        && last.test_accuracy != in_the_end
    {
        return Err(BenchError::AccuracyDiffers { last: last.test_accuracy, in_the_end });
    }
    Ok(Curve { points, weights_sha256 })
}

fn point(config: &TrainConfig, before: Option<&ModePoint>, done: &Done) -> ModePoint {
    let Traffic { store_bytes, client_bytes } = done.traffic;
    let (seconds, epoch) =
        (done.seconds, done.seconds - before.map_or(0.0, |before| before.seconds));
    ModePoint {
        bench: "modes",
        mode: config.strategy.name(),
        model: config.model.clone(),
        data: config.data.clone(),
        transport: config.settled_transport().unwrap_or(config.transport),
        workers: config.workers,
        clients: config.topology().groups,
        servers: config.topology().servers,
        batch: config.batch,
        interval: config.topology().averaging.map(|averaging| averaging.interval),
        epoch: done.epoch,
        seconds,
        p10_seconds: seconds,
        p90_seconds: seconds,
        epoch_seconds: epoch,
        p10_epoch_seconds: epoch,
        p90_epoch_seconds: epoch,
        repetitions: 1,
        loss: done.loss,
        // of a model that measures neither, not a number
        test_loss: done.evaluation.loss().unwrap_or(f64::NAN),
        test_accuracy: done.evaluation.accuracy().unwrap_or(f64::NAN),
        store_bytes,
        client_bytes,
        bytes_exchanged: store_bytes.saturating_add(client_bytes),
        machine: Machine::here(),
    }
}

/// Puts together what workers say of an epoch, who need not be in the same one.
struct Epochs {
    workers: usize,
    steps_per_epoch: u64,
    /// From the first that was not taken on, which is this one.
    open: std::collections::VecDeque<Open>,
    first: u64,
}

#[derive(Clone, Default)]
struct Open {
    loss: f64,
    losses: u32,
    /// By worker.
    ends: Vec<Option<EpochEnd>>,
}

/// An epoch that all are done with.
#[derive(Debug, PartialEq)]
struct Done {
    epoch: u64,
    seconds: f64,
    loss: f64,
    traffic: Traffic,
    evaluation: tensorwire_train::Evaluation,
}

impl Epochs {
    fn new(workers: u32, steps_per_epoch: u64) -> Epochs {
        // fits: workers are few
        let (workers, open) = (workers as usize, std::collections::VecDeque::new());
        Epochs { workers, steps_per_epoch: steps_per_epoch.max(1), open, first: 1 }
    }

    fn add(&mut self, worker: usize, progress: &Progress) {
        let epoch = progress.step.div_ceil(self.steps_per_epoch);
        let Some(ahead) = epoch.checked_sub(self.first) else { return };
        // fits: a job's epochs are in memory
        let ahead = ahead as usize;
        while self.open.len() <= ahead {
            self.open.push_back(Open { ends: vec![None; self.workers], ..Open::default() });
        }
        let open = &mut self.open[ahead];
        open.loss += f64::from(progress.loss);
        open.losses += 1;
        if let Some(end) = open.ends.get_mut(worker).filter(|end| end.is_none()) {
            *end = progress.epoch.clone();
        }
    }

    /// The next epoch, if all are done with it.
    fn take(&mut self) -> Option<Done> {
        let Open { loss, losses, ends } = self.open.front()?;
        let ends: Vec<EpochEnd> = ends.iter().cloned().collect::<Option<_>>()?;
        let EpochEnd { seconds, evaluation, .. } = ends.first()?.clone();
        let traffic = ends.iter().fold(Traffic::default(), |sum, end| sum + end.traffic);
        let loss = loss / f64::from(*losses);
        let done = Done { epoch: self.first, seconds, loss, traffic, evaluation: evaluation? };
        self.open.pop_front();
        self.first += 1;
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_train::{Evaluation, Polling};

    fn said(step: u64, loss: f32, end: Option<(f64, u64, Option<Evaluation>)>) -> Progress {
        let epoch = end.map(|(seconds, store_bytes, evaluation)| {
            let traffic = Traffic { store_bytes, client_bytes: 1 };
            EpochEnd { seconds, traffic, evaluation }
        });
        Progress { step, loss, polling: Polling::default(), epoch }
    }

    #[test]
    fn an_epoch_is_over_when_all_workers_are_done_with_it_whoever_was_ahead() {
        let mut epochs = Epochs::new(2, 2);
        let evaluation: Evaluation = [("accuracy", 0.5), ("loss", 2.0)]
            .map(|(name, value)| (name.to_string(), value))
            .into_iter()
            .collect();
        // worker 1 is an epoch ahead
        for (step, end) in [(1, None), (2, Some(10)), (3, None), (4, Some(20))] {
            epochs.add(1, &said(step, 1.0, end.map(|bytes| (9.0, bytes, None))));
            assert_eq!(epochs.take(), None);
        }
        epochs.add(0, &said(1, 3.0, None));
        assert_eq!(epochs.take(), None);
        epochs.add(0, &said(2, 5.0, Some((1.5, 7, Some(evaluation.clone())))));
        let traffic = Traffic { store_bytes: 17, client_bytes: 2 };
        let done =
            Done { epoch: 1, seconds: 1.5, loss: 2.5, traffic, evaluation: evaluation.clone() };
        assert_eq!(epochs.take(), Some(done));
        assert_eq!(epochs.take(), None);
        epochs.add(0, &said(3, 1.0, None));
        epochs.add(0, &said(4, 1.0, Some((2.5, 8, Some(evaluation)))));
        assert_eq!(epochs.take().map(|done| (done.epoch, done.loss)), Some((2, 1.0)));
        // a step that was said before
        epochs.add(0, &said(1, 1.0, None));
        assert_eq!(epochs.take(), None);
    }

    #[test]
    fn several_runs_are_their_medians_epoch_by_epoch() {
        let evaluation = |accuracy: f64| [("accuracy".to_string(), accuracy)].into_iter().collect();
        let config = TrainConfig { strategy: Strategy::DistAsgd, ..TrainConfig::default() };
        let run = |[first, second]: [f64; 2], accuracy: f64, store_bytes: u64| {
            let mut points: Vec<ModePoint> = Vec::new();
            for (epoch, seconds) in [(1, first), (2, first + second)] {
                let traffic = Traffic { store_bytes: store_bytes * epoch, client_bytes: 4 };
                let evaluation = evaluation(accuracy);
                let done = Done { epoch, seconds, loss: accuracy, traffic, evaluation };
                points.push(point(&config, points.last(), &done));
            }
            Curve { points, weights_sha256: accuracy.to_string() }
        };
        let runs = [run([1.0, 8.0], 0.5, 10), run([3.0, 2.0], 0.25, 12), run([9.0, 4.0], 0.75, 30)];
        let [first, second, third] = runs;
        let alone = third.clone().with(&[]);
        let of = |point: &ModePoint| {
            let ModePoint { seconds, epoch_seconds, .. } = *point;
            [
                [point.p10_seconds, seconds, point.p90_seconds],
                [point.p10_epoch_seconds, epoch_seconds, point.p90_epoch_seconds],
            ]
        };
        assert_eq!(alone.points.iter().map(|of| of.repetitions).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(of(&alone.points[1]), [[13.0; 3], [4.0; 3]]);
        let all = third.with(&[first, second]);
        assert_eq!((all.points.len(), all.weights_sha256.as_str()), (2, "0.75"));
        assert_eq!(of(&all.points[0]), [[1.0, 3.0, 9.0]; 2]);
        // the median of an epoch is none of what ran up to it
        assert_eq!(of(&all.points[1]), [[5.0, 9.0, 13.0], [2.0, 4.0, 8.0]]);
        let last = &all.points[1];
        assert_eq!((last.epoch, last.repetitions), (2, 3));
        assert_eq!((last.test_accuracy, last.loss), (0.5, 0.5));
        assert_eq!((last.store_bytes, last.client_bytes, last.bytes_exchanged), (24, 4, 28));
        assert_eq!(all.reached(0.75).map(|point| point.epoch), None, "in one run of three");
    }

    #[test]
    fn each_mode_has_its_own_options_alone() {
        let clients = ClientConfig {
            clients: Some(2),
            interval: Some(8),
            alpha: Some(0.2),
            ..ClientConfig::default()
        };
        let base = TrainConfig { workers: 4, clients, ..TrainConfig::default() };
        for mode in PAPER_MODES {
            let config = in_mode(&base, mode);
            config.check().unwrap();
            let wanted = if mode.has_groups() { 2 } else { 4 };
            assert_eq!(config.topology().groups, wanted, "{}", mode.name());
            assert_eq!(config.topology().averaging.is_some(), mode.is_averaging());
            assert!(config.topology().averaging.is_none_or(|averaging| averaging.interval == 8));
        }
    }
}
