//! One process's share of training: its variables' first values, its steps, and what is done with the
//! variables in the end. Knows not who else there is.

use std::ops::Range;
use std::time::{Duration, Instant};

use tensorwire_base::{Clock, Deadline};
use tensorwire_graph::{Node, Op, Output, Plan};
use tensorwire_memory::{CopyPurpose, ReadGuard, TensorMut, TensorRef};
use tensorwire_models::data::{Data, Fed, FedValues, counted};
use tensorwire_models::{ModelCopy, Program, Variable};
use tensorwire_runtime::Session;
use tensorwire_tensor::Element;

use super::averaging::Averaging;
use super::listener::Listener;
use super::loader::Loader;
use super::{JobShape, TrainError, batches};
use crate::carried::Carried;
use crate::config::{ConfigError, TrainConfig};
use crate::report::{EpochEnd, Evaluation, Polling, Progress, Traffic, TrainReport};
use crate::trace;
use crate::weights::{self, Weights};

/// Longest that worker 0 waits until the last worker of asynchronous training is done, which may be any
/// number of steps behind. A dead one is noticed in seconds.
pub(super) const LAST_WORKER_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3600);

/// One process's share of the work, whoever else there is.
pub(super) struct Trainer<'a> {
    pub(super) config: &'a TrainConfig,
    pub(super) program: &'a Program,
    pub(super) plan: &'a Plan,
    pub(super) shape: JobShape,
    pub(super) session: &'a mut Session,
    /// The replicas of the graph that this part computes.
    pub(super) replicas: Range<u32>,
    /// The first replica's share of the data is that of this many workers on.
    pub(super) shard: usize,
    /// It evaluates, hashes and saves the variables in the end.
    pub(super) concludes: bool,
    /// Its weights and a centre are drawn to each other now and then.
    pub(super) averaging: Option<Averaging>,
    /// What it exchanged so far.
    pub(super) carried: Carried,
}

/// When training began, and what evaluations took of it: they are none of it.
struct Begun {
    at: Instant,
    evaluating: Duration,
    looked_at: Traffic,
}

impl Begun {
    fn now() -> Begun {
        let (evaluating, looked_at) = (Duration::ZERO, Traffic::default());
        Begun { at: Instant::now(), evaluating, looked_at }
    }
}

impl<'a> Trainer<'a> {
    /// Of the whole data, alone, with nothing to conclude; what else it is, its fields say.
    pub(super) fn new(
        config: &'a TrainConfig,
        program: &'a Program,
        plan: &'a Plan,
        shape: JobShape,
        session: &'a mut Session,
        replicas: Range<u32>,
    ) -> Trainer<'a> {
        Trainer {
            config,
            program,
            plan,
            shape,
            session,
            replicas,
            shard: 0,
            concludes: false,
            averaging: None,
            carried: Carried::default(),
        }
    }
}

impl Trainer<'_> {
    /// Gives the variables that live here their first values: from a file or from the seed.
    pub(super) fn initialise(&self) -> Result<(), TrainError> {
        let is_kept = |node: &Node| self.program.weights().any(|v| v.name == node.name);
        let keeps_any = self.session.part().graph.nodes().any(|(_, node)| is_kept(node));
        let load = self.config.load.as_deref().filter(|_| keeps_any);
        let file = load.map(|path| Weights::open(path, self.program.weights())).transpose()?;
        let graph = &self.session.part().graph;
        for (id, node) in graph.nodes() {
            let Op::Variable { init, .. } = node.op else {
                continue;
            };
            let (spec, mut bytes) = self.session.write(id.into())?;
            match &file {
                Some(file) if is_kept(node) => {
                    bytes.copy_from_slice(file.tensor(&node.name)?);
                    self.carried.copied(CopyPurpose::Checkpoint, bytes.len());
                }
                _ => {
                    let bad = |source| TrainError::Tensor { name: node.name.clone(), source };
                    let tensor = TensorMut::new(spec, &mut bytes).map_err(bad)?;
                    weights::first_values(&node.name, init, self.config.seed, tensor)
                        .map_err(bad)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn train(
        &mut self,
        data: Option<&Data>,
        listener: &mut dyn Listener,
    ) -> Result<TrainReport, TrainError> {
        let loader = data.map(|data| self.loader(data)).transpose()?;
        if self.config.leave_out_kernels && !self.replicas.is_empty() {
            self.session.leave_out_kernels();
        }
        let mut begun = Begun::now();
        let mut warm = begun.at;
        let mut final_loss = None;
        let mut polling = Polling::default();
        let steps = self.shape.steps;
        let traced = self.config.trace.as_ref().map_or(0, |trace| trace.steps.min(steps));
        for step in 1..=steps {
            listener.begin_step(step)?;
            if let Some(averaging) = &mut self.averaging {
                averaging.before(step, self.session)?;
            }
            let start_ns = Clock::now_ns();
            if let Some(loader) = &loader {
                self.feed_step(step, &loader.next(step)?)?;
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
                let epoch = self.end_of_epoch(step, data, &mut begun)?;
                listener.progress(Progress { step, loss, polling: now - polling, epoch })?;
            }
            polling = Polling::from(self.session.counters());
        }
        let train_seconds = begun.at.elapsed().as_secs_f64();
        let warm_seconds = warm.elapsed().as_secs_f64();
        let report = TrainReport { final_loss, train_seconds, warm_seconds, ..Default::default() };
        Ok(TrainReport { polling, ..report })
    }

    /// What there is to say if an epoch ends with `step`, and anybody asked for it.
    fn end_of_epoch(
        &mut self,
        step: u64,
        data: Option<&Data>,
        begun: &mut Begun,
    ) -> Result<Option<EpochEnd>, TrainError> {
        if !self.config.evaluate_each_epoch || !step.is_multiple_of(self.shape.steps_per_epoch) {
            return Ok(None);
        }
        let (now, carried) = (Instant::now(), self.carried.traffic());
        let seconds = (now - begun.at).saturating_sub(begun.evaluating).as_secs_f64();
        let traffic = carried - begun.looked_at;
        let evaluation = match data.filter(|_| self.concludes) {
            Some(data) => Some(self.look(data)?),
            None => None,
        };
        begun.evaluating += now.elapsed();
        begun.looked_at = begun.looked_at + (self.carried.traffic() - carried);
        Ok(Some(EpochEnd { seconds, traffic, evaluation }))
    }

    /// Evaluates between two steps. Whoever may overwrite what is evaluated waits for this process's next step, or
    /// is asked by it: servers that are a part of the graph would not, so there it cannot be done.
    fn look(&mut self, data: &Data) -> Result<Evaluation, TrainError> {
        let deadline = Deadline::after(super::STEP_DEADLINE);
        let own = match &mut self.averaging {
            Some(averaging) => Some(averaging.look_at_centre(self.session, deadline)?),
            None => None,
        };
        self.session.run(Program::FETCH)?;
        let evaluation = self.evaluate(data)?;
        if let (Some(averaging), Some(own)) = (&self.averaging, own) {
            averaging.restore(self.session, &own)?;
        }
        Ok(evaluation)
    }

    fn loader(&self, data: &Data) -> Result<Loader, TrainError> {
        let batches = batches(data, self.config).map_err(ConfigError::from)?;
        let Range { start, end } = self.replicas;
        let workers = start as usize + self.shard..end as usize + self.shard;
        Loader::start(batches, workers, self.shape.steps)
    }

    /// Copies a batch for each replica here into its input tensors.
    fn feed_step(&mut self, step: u64, batches: &[Vec<Fed>]) -> Result<(), TrainError> {
        for (replica, batch) in self.replicas.clone().zip(batches) {
            let copy = &self.program.replicas[replica as usize];
            self.feed(copy, batch)?;
            if let Some(name) = &copy.step {
                // fits: steps are far below 2^63
                self.fill(name, &[], &[step as i64])?;
            }
        }
        Ok(())
    }

    fn feed(&mut self, copy: &ModelCopy, batch: &[Fed]) -> Result<(), TrainError> {
        for Fed { name, dims, values } in batch {
            let name = copy.input(name);
            match values {
                FedValues::F32(values) => self.fill(&name, dims, values)?,
                FedValues::I32(values) => self.fill(&name, dims, values)?,
            }
        }
        Ok(())
    }

    fn fill<T: Element>(
        &mut self,
        name: &str,
        dims: &[usize],
        values: &[T],
    ) -> Result<(), TrainError> {
        let node = self.session.node(name)?;
        let (spec, mut bytes) = self.session.feed(node.into(), dims)?;
        let bad = |source| TrainError::Tensor { name: name.to_string(), source };
        let mut tensor = TensorMut::new(spec, &mut bytes).map_err(bad)?;
        // as many as the dimensions say, which the session has checked
        tensor.elements::<T>().map_err(bad)?.copy_from_slice(values);
        self.carried.copied(CopyPurpose::Feeding, size_of_val(values));
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

    fn scalar<T: Element>(&self, name: &str) -> Result<T, TrainError> {
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
        data: Option<&Data>,
        report: &mut TrainReport,
    ) -> Result<(), TrainError> {
        if self.config.at_own_pace() {
            self.session.set_step_deadline(LAST_WORKER_DEADLINE);
        }
        // without lanes the variables come to worker 0 of all, with lanes to each lane's own
        if self.concludes || !self.config.is_of_one() {
            self.session.run(Program::FETCH)?;
        }
        if let Some(data) = data.filter(|_| self.concludes) {
            let Evaluation { accuracy, loss } = self.evaluate(data)?;
            (report.test_accuracy, report.test_loss) = (Some(accuracy), Some(loss));
            let weights = self.weights()?;
            let pairs = || weights.iter().map(|(variable, bytes)| (*variable, &**bytes));
            report.weights_sha256 = Some(weights::sha256(pairs()));
            if let Some(path) = &self.config.save {
                weights::save(path, pairs())?;
            }
        }
        self.report_copies(report);
        Ok(())
    }

    /// What was copied here so far, in the place of what the report says of it.
    pub(super) fn report_copies(&self, report: &mut TrainReport) {
        report.copies = *self.session.copies();
        report.add_copies(&self.carried.copies());
    }

    /// The share of the test's labels that are found, and the mean loss over them.
    fn evaluate(&mut self, data: &Data) -> Result<Evaluation, TrainError> {
        let batch = self.config.batch;
        let (mut correct, mut loss, mut labels) = (0, 0.0, 0);
        let program = self.program;
        for index in 0..data.test_batches(batch) {
            let fed = data.test_batch(index, batch);
            self.feed(&program.evaluation, &fed)?;
            self.session.run(Program::EVALUATE)?;
            let here = counted(&fed);
            correct += self.scalar::<i64>(&program.correct)?;
            // fits: counts of labels, exact in f64
            loss += f64::from(self.scalar::<f32>(&program.evaluation.loss)?) * here as f64;
            labels += here;
        }
        // fits: as above
        let labels = labels as f64;
        Ok(Evaluation { accuracy: correct as f64 / labels, loss: loss / labels })
    }

    /// The variables as they are here: their own, or what the last fetch brought.
    fn weights(&self) -> Result<Vec<(&Variable, ReadGuard<'_>)>, TrainError> {
        let mut weights = Vec::new();
        // whoever concludes is the plan's first part
        let part = 0;
        for variable in self.program.weights() {
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
