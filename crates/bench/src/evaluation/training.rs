//! Cases that train: how long steps take, and how the loss falls.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorwire_launch::{JobUpdate, Transport};
use tensorwire_train::{
    DeviceChoice, Exchange, Prepared, Progress, Quantiles, Strategy, TrainConfig, TrainOutcome,
    launch_train, train_local,
};

use super::Runner;
use super::figures::IMAGENET_IMAGES;
use crate::by_name::ByName;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::step::{StepRun, promises_bits};
use crate::versions::Versions;

/// What was measured of a job.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Throughput {
    bench: &'static str,
    model: String,
    data: String,
    exchange: Exchange,
    transport: Transport,
    strategy: &'static str,
    workers: u32,
    servers: u32,
    /// Samples of a worker in a step.
    batch: usize,
    steps: u64,
    repetitions: usize,
    /// The median of the repetitions; the slowest worker's, without the first step. The percentiles are of their steps.
    step_s: f64,
    p10_s: f64,
    p90_s: f64,
    /// Of all workers.
    samples_per_second: f64,
    weights_sha256: String,
    /// Of what it went through that is not ours.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    versions: Versions,
    machine: Machine,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Scaling {
    #[serde(flatten)]
    job: Throughput,
    /// Of one worker's batch in one process that has all cores and exchanges nothing.
    local_step_s: f64,
    local_p10_s: f64,
    local_p90_s: f64,
}

/// How tensors cross between GPUs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Crossing {
    #[serde(flatten)]
    job: Throughput,
    device: String,
    /// `direct`: from memory to memory; `host`: by way of the host's.
    crossing: &'static str,
    /// What computed, as workers say.
    kernels: String,
}

/// An epoch of a way of training, by its steps.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EpochOf {
    #[serde(flatten)]
    job: Throughput,
    mode: &'static str,
    clients: u32,
    /// Steps between two meetings with the centre, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<u64>,
    /// Of an epoch, and the steps that they take.
    images: u64,
    epoch_steps: u64,
    /// So many steps, each as long as those that were measured.
    epoch_s: f64,
}

#[derive(Clone, Debug, Serialize)]
struct LossPoint<'a> {
    bench: &'static str,
    model: &'a str,
    data: &'a str,
    exchange: Exchange,
    transport: Transport,
    strategy: &'static str,
    workers: u32,
    servers: u32,
    batch: usize,
    /// Since all processes know each other.
    seconds: f64,
    step: u64,
    /// The mean over the steps since the point before, and over all workers.
    loss: f64,
    /// Of what it went through that is not ours.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    versions: Versions,
    machine: &'a Machine,
}

impl Throughput {
    pub(super) fn of_kind(self, bench: &'static str) -> Throughput {
        Throughput { bench, ..self }
    }
}

/// What decides the weights that a job ends with: model, data and device; batch, workers and steps.
fn weights_key(of: [&str; 3], numbers: [u64; 3]) -> String {
    format!("{of:?} {numbers:?}")
}

/// The weights that a job of an earlier run ended with, and what decides them; none if the line is of something else.
pub(super) fn weights_of(line: &serde_json::Value) -> Option<(String, String)> {
    let text = |name: &str| line[name].as_str();
    let number = |name: &str| line[name].as_u64();
    let device = DeviceChoice::default().to_string();
    let of = [text("model")?, text("data")?, text("device").unwrap_or(&device)];
    let key = weights_key(of, [number("batch")?, number("workers")?, number("steps")?]);
    Some((key, text("weights_sha256")?.to_string()))
}

impl Runner<'_> {
    pub(super) fn throughput(&mut self, config: &TrainConfig) -> Result<Throughput, BenchError> {
        Ok(self.measured(config, |runner, done, took| runner.again(done, took))?.0)
    }

    /// Measures steps for as long as `again` says, at least once, and says what computed.
    fn measured(
        &mut self,
        config: &TrainConfig,
        again: fn(&Runner<'_>, usize, Duration) -> bool,
    ) -> Result<(Throughput, String), BenchError> {
        let prepared = Prepared::new(config.clone(), &ByName)?;
        let (mut runs, mut sha256, mut kernels) = (Vec::new(), None, String::new());
        let mut transport = config.transport;
        let begun = Instant::now();
        while runs.is_empty() || again(self, runs.len(), begun.elapsed()) {
            let outcome = launch_train(&prepared, &ByName, self.job, &mut |_| {})?;
            transport = outcome.transport;
            runs.push(StepRun::of(&outcome));
            sha256 = Some(self.same_bits(&prepared, &outcome)?);
            let of_workers = outcome.reports.values().map(|report| report.kernels.clone());
            kernels =
                of_workers.reduce(|a, b| if a.len() < b.len() { b } else { a }).unwrap_or_default();
        }
        let none = || BenchError::Zero { what: "repetitions" };
        let step_ms = StepRun::quantiles(&runs).ok_or_else(none)?;
        let step_s = step_ms.median * 1e-3;
        // fits: batches are in memory
        let samples = config.batch as f64 * f64::from(config.workers);
        let job = Throughput {
            bench: "throughput",
            model: config.model.clone(),
            data: config.data.clone(),
            exchange: config.exchange,
            transport,
            strategy: config.strategy.name(),
            workers: config.workers,
            servers: config.topology().servers,
            batch: config.batch,
            steps: prepared.steps(),
            repetitions: runs.len(),
            step_s,
            p10_s: step_ms.p10 * 1e-3,
            p90_s: step_ms.p90 * 1e-3,
            samples_per_second: samples / step_s,
            weights_sha256: sha256.ok_or_else(none)?,
            versions: Versions::of(config.exchange),
            machine: Machine::here(),
        };
        Ok((job, kernels))
    }

    pub(super) fn scaling(&mut self, config: &TrainConfig) -> Result<Scaling, BenchError> {
        let local = self.local_ms(config)?;
        let job = self.throughput(config)?.of_kind("scaling");
        let [local_step_s, local_p10_s, local_p90_s] =
            [local.median, local.p10, local.p90].map(|ms| ms * 1e-3);
        Ok(Scaling { job, local_step_s, local_p10_s, local_p90_s })
    }

    pub(super) fn crossing(&mut self, config: &TrainConfig) -> Result<Crossing, BenchError> {
        let (job, kernels) = self.measured(config, |runner, done, _| done < runner.repetitions)?;
        let crossing = if config.by_way_of_host { "host" } else { "direct" };
        let device = config.device.to_string();
        Ok(Crossing { job: job.of_kind("gpudirect"), device, crossing, kernels })
    }

    pub(super) fn epoch(&mut self, config: &TrainConfig) -> Result<EpochOf, BenchError> {
        let job =
            self.measured(config, |runner, done, _| done < runner.repetitions)?.0.of_kind("epoch");
        // fits: a batch is small
        let epoch_steps = IMAGENET_IMAGES.div_ceil(u64::from(config.workers) * config.batch as u64);
        let topology = config.topology();
        Ok(EpochOf {
            mode: config.strategy.name(),
            clients: topology.groups,
            interval: topology.averaging.map(|averaging| averaging.interval),
            images: IMAGENET_IMAGES,
            epoch_steps,
            // fits: far below 2^53
            epoch_s: job.step_s * epoch_steps as f64,
            job,
        })
    }

    /// A step of one worker alone; measured once for each model and batch.
    pub(super) fn local_ms(&mut self, config: &TrainConfig) -> Result<Quantiles, BenchError> {
        let TrainConfig { model, data, batch, threads, .. } = config;
        let key = format!("{model} {data} {batch} {threads:?}");
        if let Some(ms) = self.local_ms.get(&key) {
            return Ok(*ms);
        }
        let alone = TrainConfig {
            strategy: Strategy::Local,
            workers: 1,
            transport: Transport::Auto,
            exchange: Exchange::ZeroCopy,
            ..config.clone()
        };
        let prepared = Prepared::new(alone, &ByName)?;
        let (mut runs, begun) = (Vec::new(), Instant::now());
        while self.again(runs.len(), begun.elapsed()) {
            self.alone.store(true, Ordering::SeqCst);
            let report = train_local(&prepared, &self.job.interrupt, &mut |_| {}, &|_| {});
            self.alone.store(false, Ordering::SeqCst);
            runs.push(StepRun::of(&TrainOutcome::alone(report?)));
        }
        let step_ms = StepRun::quantiles(&runs);
        let step_ms = step_ms.ok_or(BenchError::Zero { what: "repetitions" })?;
        self.local_ms.insert(key, step_ms);
        Ok(step_ms)
    }

    /// The same job ends with the same weights however its bytes travel. Returns their hash.
    fn same_bits(
        &mut self,
        prepared: &Prepared,
        outcome: &TrainOutcome,
    ) -> Result<String, BenchError> {
        let kind = prepared.config.strategy.name();
        let found = outcome.weights_sha256().ok_or(BenchError::NoWeights { kind })?;
        if !promises_bits(prepared) {
            return Ok(found.to_string());
        }
        let TrainConfig { model, data, batch, workers, device, .. } = &prepared.config;
        let key = weights_key(
            [model, data, &device.to_string()],
            [*batch as u64, u64::from(*workers), prepared.steps()],
        );
        match self.weights.get(&key) {
            Some(first) if first != found => {
                let (local, ps) = (first.clone(), found.to_string());
                Err(BenchError::WeightsDiffer { local, ps })
            }
            Some(_) => Ok(found.to_string()),
            None => {
                self.weights.insert(key, found.to_string());
                Ok(found.to_string())
            }
        }
    }

    pub(super) fn convergence(
        &mut self,
        config: &TrainConfig,
        every: u64,
        on_line: &mut dyn FnMut(serde_json::Value),
    ) -> Result<(), BenchError> {
        let prepared = Prepared::new(config.clone(), &ByName)?;
        let machine = Machine::here();
        let mut begun = Instant::now();
        let mut losses = Losses::default();
        let outcome = launch_train(&prepared, &ByName, self.job, &mut |update| match update {
            JobUpdate::Introduced => begun = Instant::now(),
            JobUpdate::Progress { value: Progress { step, loss, .. }, .. } => {
                let Some(loss) = losses.add(step, loss, config.workers, every) else { return };
                let point = LossPoint {
                    bench: "convergence",
                    model: &config.model,
                    data: &config.data,
                    exchange: config.exchange,
                    transport: config.settled_transport().unwrap_or(config.transport),
                    strategy: config.strategy.name(),
                    workers: config.workers,
                    servers: config.topology().servers,
                    batch: config.batch,
                    seconds: begun.elapsed().as_secs_f64(),
                    step,
                    loss,
                    versions: Versions::of(config.exchange),
                    machine: &machine,
                };
                // a point is numbers and names
                on_line(serde_json::to_value(point).unwrap_or_default());
            }
            _ => {}
        })?;
        self.same_bits(&prepared, &outcome)?;
        Ok(())
    }
}

/// Losses since the last point. Workers are in step: none is more than one step ahead.
#[derive(Debug, Default)]
struct Losses {
    sum: f64,
    count: u32,
    /// How many workers are done with the point's last step.
    done: u32,
}

impl Losses {
    /// The mean, when all workers have said the last of `every` steps.
    fn add(&mut self, step: u64, loss: f32, workers: u32, every: u64) -> Option<f64> {
        self.sum += f64::from(loss);
        self.count += 1;
        if !step.is_multiple_of(every) {
            return None;
        }
        self.done += 1;
        if self.done < workers {
            return None;
        }
        let mean = self.sum / f64::from(self.count);
        *self = Losses::default();
        Some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_mean_of_its_steps_and_workers() {
        let mut losses = Losses::default();
        assert_eq!(losses.add(1, 4.0, 2, 2), None);
        assert_eq!(losses.add(1, 2.0, 2, 2), None);
        assert_eq!(losses.add(2, 1.0, 2, 2), None);
        assert_eq!(losses.add(2, 1.0, 2, 2), Some(2.0));
        // the next one begins anew
        assert_eq!(losses.add(3, 1.0, 2, 2), None);
        assert_eq!(losses.add(3, 1.0, 2, 2), None);
        assert_eq!(losses.add(4, 0.0, 2, 2), None);
        assert_eq!(losses.add(4, 0.0, 2, 2), Some(0.5));
    }
}
