//! One process's share of training: its variables' first values, its steps, and what is done with the
//! variables in the end. Knows not who else there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorwire_base::Clock;
use tensorwire_graph::{Op, Output, Plan};
use tensorwire_memory::{ReadGuard, TensorMut, TensorRef};
use tensorwire_models::data::{Batches, Dataset};
use tensorwire_models::{Program, Variable, initialise};
use tensorwire_runtime::Session;

use super::listener::Listener;
use super::{JobShape, TrainError, batches};
use crate::config::{ConfigError, TrainConfig};
use crate::report::{Polling, Progress, TrainReport};
use crate::trace;
use crate::weights::{self, Weights};

/// Longest that worker 0 waits until the last worker of asynchronous training is done, which may be any
/// number of steps behind. A dead one is noticed in seconds.
const LAST_WORKER_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3600);

/// One process's share of the work, whoever else there is.
pub(super) struct Trainer<'a> {
    pub(super) config: &'a TrainConfig,
    pub(super) program: &'a Program,
    pub(super) plan: &'a Plan,
    pub(super) shape: JobShape,
    pub(super) session: &'a mut Session,
    /// The replicas of the graph that this part computes.
    pub(super) replicas: std::ops::Range<u32>,
    /// The first replica's share of the data is that of this many workers on.
    pub(super) shard: usize,
    /// It evaluates, hashes and saves the variables in the end.
    pub(super) concludes: bool,
}

impl Trainer<'_> {
    /// Gives the variables that live here their first values: from a file or from the seed.
    pub(super) fn initialise(&self) -> Result<(), TrainError> {
        let load = self.config.load.as_deref();
        let file = load.map(|path| Weights::open(path, &self.program.variables)).transpose()?;
        let graph = &self.session.part().graph;
        for (id, node) in graph.nodes() {
            let Op::Variable { init, .. } = node.op else {
                continue;
            };
            let (spec, mut bytes) = self.session.write(id.into())?;
            let learned = self.program.variables.iter().any(|v| v.name == node.name);
            match &file {
                Some(file) if learned => bytes.copy_from_slice(&file.tensor(&node.name)?),
                _ => {
                    let bad = |source| TrainError::Tensor { name: node.name.clone(), source };
                    let mut tensor = TensorMut::new(spec, &mut bytes).map_err(bad)?;
                    let values = tensor.elements::<f32>().map_err(bad)?;
                    initialise(&node.name, init, self.config.seed, values);
                }
            }
        }
        Ok(())
    }

    pub(super) fn train(
        &mut self,
        dataset: Option<&Arc<Dataset>>,
        listener: &mut dyn Listener,
    ) -> Result<TrainReport, TrainError> {
        let mut batches = dataset
            .map(|data| batches(data, self.config))
            .transpose()
            .map_err(ConfigError::from)?;
        let start = Instant::now();
        let mut warm = start;
        let mut final_loss = None;
        let mut polling = Polling::default();
        let steps = self.shape.steps;
        let traced = self.config.trace.as_ref().map_or(0, |trace| trace.steps.min(steps));
        for step in 1..=steps {
            listener.begin_step(step)?;
            let start_ns = Clock::now_ns();
            if let Some(batches) = &mut batches {
                self.feed(batches, step - 1)?;
            }
            let ran = self.session.run(Program::TRAIN);
            if step <= traced {
                let events = trace::take_step(self.session, step, start_ns);
                let told = listener.trace(&events);
                // why a step failed matters more than that its trace got lost
                ran.map_err(TrainError::from).and(told)?;
            } else {
                ran?;
            }
            if step == traced {
                self.session.stop_timeline();
            }
            if step == 1 {
                warm = Instant::now();
            }
            let now = Polling::from(self.session.counters());
            if let Some(loss) = self.loss()? {
                if !loss.is_finite() {
                    return Err(TrainError::Diverged { step, loss });
                }
                final_loss = Some(f64::from(loss));
                listener.progress(Progress { step, loss, polling: now - polling })?;
            }
            polling = now;
        }
        let train_seconds = start.elapsed().as_secs_f64();
        let warm_seconds = warm.elapsed().as_secs_f64();
        let report = TrainReport { final_loss, train_seconds, warm_seconds, ..Default::default() };
        Ok(TrainReport { polling, ..report })
    }

    /// Writes the step's samples straight into the input tensors.
    fn feed(&self, batches: &mut Batches, step: u64) -> Result<(), TrainError> {
        for replica in self.replicas.clone() {
            self.fill_inputs(replica, |x, labels| {
                batches.fill(step, replica as usize + self.shard, x, labels);
            })?;
        }
        Ok(())
    }

    fn fill_inputs(
        &self,
        replica: u32,
        fill: impl FnOnce(&mut [f32], &mut [i32]),
    ) -> Result<(), TrainError> {
        let names = &self.program.replicas[replica as usize];
        let bad = |name: &str| {
            let name = name.to_string();
            move |source| TrainError::Tensor { name, source }
        };
        let (spec, mut bytes) = self.session.write(self.session.node(&names.input)?.into())?;
        let mut input = TensorMut::new(spec, &mut bytes).map_err(bad(&names.input))?;
        let (spec, mut bytes) = self.session.write(self.session.node(&names.labels)?.into())?;
        let mut labels = TensorMut::new(spec, &mut bytes).map_err(bad(&names.labels))?;
        fill(
            input.elements().map_err(bad(&names.input))?,
            labels.elements().map_err(bad(&names.labels))?,
        );
        Ok(())
    }

    /// Mean loss of the replicas here, folded in rank order; none where there are none.
    fn loss(&self) -> Result<Option<f32>, TrainError> {
        let mut sum = 0.0;
        for replica in self.replicas.clone() {
            let name = &self.program.replicas[replica as usize].loss;
            sum += self.scalar::<f32>(name)?;
        }
        let count = self.replicas.len();
        // fits: replicas are few, exact in f32
        Ok((count > 0).then(|| sum / count as f32))
    }

    fn scalar<T: tensorwire_tensor::Element>(&self, name: &str) -> Result<T, TrainError> {
        let (spec, bytes) = self.session.read(self.session.node(name)?.into())?;
        let bad = |source| TrainError::Tensor { name: name.to_string(), source };
        let tensor = TensorRef::new(spec, &bytes).map_err(bad)?;
        let values = tensor.elements::<T>().map_err(bad)?;
        // a scalar has one element
        Ok(values[0])
    }

    /// Brings the variables to worker 0, which evaluates, hashes and saves them.
    pub(super) fn conclude(
        &mut self,
        dataset: Option<&Arc<Dataset>>,
        report: &mut TrainReport,
    ) -> Result<(), TrainError> {
        if self.config.asynchronous {
            self.session.set_step_deadline(LAST_WORKER_DEADLINE);
        }
        // without lanes the variables come to worker 0 of all, with lanes to each lane's own
        if self.concludes || !self.config.asynchronous {
            self.session.run(Program::FETCH)?;
        }
        if let Some(dataset) = dataset.filter(|_| self.concludes) {
            report.test_accuracy = Some(self.evaluate(dataset)?);
            let weights = self.weights()?;
            let pairs = || weights.iter().map(|(variable, bytes)| (*variable, &**bytes));
            report.weights_sha256 = Some(weights::sha256(pairs()));
            if let Some(path) = &self.config.save {
                weights::save(path, pairs())?;
            }
        }
        report.bytes_copied = self.session.copies().bytes();
        Ok(())
    }

    /// The share of the test set that is classified right.
    fn evaluate(&mut self, dataset: &Dataset) -> Result<f64, TrainError> {
        let batch = self.config.batch;
        let mut correct = 0;
        for index in 0..dataset.test_batches(batch) {
            self.fill_inputs(0, |x, labels| dataset.fill_test(index, batch, x, labels))?;
            self.session.run(Program::EVALUATE)?;
            correct += self.scalar::<i64>(&self.program.replicas[0].correct)?;
        }
        // fits: counts of samples, exact in f64
        Ok(correct as f64 / dataset.test.samples() as f64)
    }

    /// The variables as they are here: their own, or what the last fetch brought.
    fn weights(&self) -> Result<Vec<(&Variable, ReadGuard<'_>)>, TrainError> {
        let mut weights = Vec::new();
        // whoever concludes is the plan's first part
        let part = 0;
        for variable in &self.program.variables {
            let fetched =
                self.plan.edges.iter().find(|edge| edge.to == part && edge.name == variable.name);
            let output: Output = match fetched {
                Some(edge) => edge.recv.into(),
                None => self.session.node(&variable.name)?.into(),
            };
            weights.push((variable, self.session.read(output)?.1));
        }
        Ok(weights)
    }
}
