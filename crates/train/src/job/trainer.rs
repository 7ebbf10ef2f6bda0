//! One process's share of training: its variables' first values, its steps, and what is done with the
//! variables in the end. Knows not who else there is.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorwire_base::{Clock, Deadline};
use tensorwire_fabric::pulse;
use tensorwire_graph::{Node, Op, Piece, Plan};
use tensorwire_launch::StepWord;
use tensorwire_memory::{CopyPurpose, TensorMut, TensorRef};
use tensorwire_nn::{Data, HostBatch, ModelCopy, Program};
use tensorwire_runtime::Session;
use tensorwire_tensor::Element;

use super::feeding::FedAhead;
use super::keeping::PartFiles;
use super::listener::Listener;
use super::loader::Loader;
use super::pace::{Pace, Warm};
use super::whereabouts::{Phase, ProcessStanding};
use super::worker::Link;
use super::{JobShape, TrainError, batches};
use crate::best::Patience;
use crate::carried::Carried;
use crate::checkpoint::{Resumed, plain_name};
use crate::config::{ConfigError, TrainConfig};
use crate::figures::Gauge;
use crate::rates::Rates;
use crate::report::{EpochEnd, Polling, Progress, Traffic, TrainReport};
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
    pub(super) shape: &'a JobShape,
    pub(super) session: &'a mut Session,
    /// The replicas of the graph that this part computes.
    pub(super) replicas: Range<u32>,
    /// The first replica's share of the data is that of this many workers on.
    pub(super) shard: usize,
    /// It evaluates, hashes and saves the variables in the end.
    pub(super) concludes: bool,
    /// What it exchanged so far.
    pub(super) carried: Carried,
    pub(super) rates: Rates,
    /// The variables here that checkpoints have.
    pub(super) files: PartFiles,
    /// The checkpoint that training goes on from.
    pub(super) resumed: Option<&'a Resumed>,
    /// Where this process stands.
    pub(super) standing: Arc<ProcessStanding>,
}

/// How far training came.
struct Ended {
    /// The last step.
    steps: u64,
    interrupted: bool,
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
        shape: &'a JobShape,
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
            carried: Carried::default(),
            rates: Rates::default(),
            files: PartFiles::default(),
            resumed: None,
            standing: ProcessStanding::new(config),
        }
    }
}

impl Trainer<'_> {
    /// Gives the variables that live here their first values: from a checkpoint, from a file or from the seed.
    pub(super) fn initialise(&self) -> Result<(), TrainError> {
        if let Some(resumed) = self.resumed.filter(|resumed| !resumed.centre_alone) {
            return self.files.restore(resumed, self.session);
        }
        let sharing = self.config.topology().sharing();
        // a piece has some of the rows of the variable that it is of
        let whole = |node: &Node| match &node.piece {
            Some(Piece { of, first_row }) => (plain_name(of, sharing).to_string(), *first_row),
            None => {
                let name = plain_name(&node.name, sharing);
                (self.program.begins_as(name).to_string(), 0)
            }
        };
        let is_kept = |node: &Node| self.program.weights().any(|v| v.name == whole(node).0);
        let keeps_any = self.session.part().graph.nodes().any(|(_, node)| is_kept(node));
        let load = self.config.load.as_deref().filter(|_| keeps_any);
        let file = load.map(|path| Weights::open(path, self.program.weights())).transpose()?;
        let graph = &self.session.part().graph;
        for (id, node) in graph.nodes() {
            let Op::Variable { init, .. } = node.op else {
                continue;
            };
            let (spec, mut bytes) = self.session.write(id.into())?;
            let (name, first_row) = whole(node);
            match &file {
                Some(file) if is_kept(node) => {
                    // as many as the file was checked to have
                    let start = bytes.len() / spec.dims().first().map_or(1, |rows| *rows.max(&1))
                        * first_row;
                    let end = start + bytes.len();
                    bytes.copy_from_slice(&file.tensor(&name)?[start..end]);
                    self.carried.copied(CopyPurpose::Checkpoint, bytes.len());
                }
                _ => {
                    let bad = |source| TrainError::Tensor { name: node.name.clone(), source };
                    let tensor = TensorMut::new(spec, &mut bytes).map_err(bad)?;
                    let row: usize = spec.dims().iter().skip(1).product();
                    let first = first_row * row;
                    weights::first_values(&name, init, self.config.seed, first, tensor)
                        .map_err(bad)?;
                }
            }
        }
        Ok(())
    }

    /// Writes this process's part of a checkpoint after `step`, if there is to be one, and says what became of the one before.
    fn checkpoint(
        &mut self,
        step: u64,
        listener: &mut dyn Listener,
        link: &mut dyn Link,
    ) -> Result<(), TrainError> {
        if let Some(report) = self.files.finished() {
            listener.written(report)?;
        }
        match self.shape.is_kept(self.config, step) {
            true => self.keep(step, listener, link),
            false => Ok(()),
        }
    }

    /// The job ends behind this step, at all processes: it is kept, if it is not yet.
    fn keep_last(
        &mut self,
        last: u64,
        listener: &mut dyn Listener,
        link: &mut dyn Link,
    ) -> Result<(), TrainError> {
        match self.shape.is_kept_early(self.config, last) {
            true => self.keep(last, listener, link),
            false => Ok(()),
        }
    }

    fn keep(
        &mut self,
        step: u64,
        listener: &mut dyn Listener,
        link: &mut dyn Link,
    ) -> Result<(), TrainError> {
        self.standing.enters(Phase::Meets);
        link.checkpoint(step)?;
        self.standing.enters(Phase::Keeps(step));
        match self.files.capture(step, self.session, &self.carried)? {
            Some(before) => listener.written(before),
            None => Ok(()),
        }
    }

    /// Waits until the last checkpoint is written.
    fn finish_checkpoints(&mut self, listener: &mut dyn Listener) -> Result<(), TrainError> {
        match self.files.wait() {
            Some(report) => listener.written(report),
            None => Ok(()),
        }
    }

    pub(super) fn train(
        &mut self,
        data: Option<&Data>,
        listener: &mut dyn Listener,
        link: &mut dyn Link,
    ) -> Result<TrainReport, TrainError> {
        let has_steps = self.shape.done < self.shape.steps;
        let mut loader = data.filter(|_| has_steps).map(|data| self.loader(data)).transpose()?;
        let mut ahead = FedAhead::default();
        // whatever may wait without a word says so; the loader's threads, which are waited for behind this, may
        let _awake = pulse::awake();
        if self.config.leave_out_kernels && !self.replicas.is_empty() {
            self.session.leave_out_kernels();
        }
        let mut begun = Begun::now();
        let mut pace = Pace::default();
        let mut final_loss = None;
        let mut polling = Polling::default();
        let mut gauge = Gauge::new(begun.at, polling, 0);
        let samples = self.samples_per_step();
        let JobShape { steps, done, .. } = *self.shape;
        let traced = self.config.trace.as_ref().map_or(0, |trace| steps.min(done + trace.steps));
        let mut ended = Ended { steps, interrupted: false };
        let mut patience = self.patience();
        if patience.is_some() {
            listener.wait_behind(self.next_evaluated(done));
        }
        let begins_early = link.may_begin_early() && self.session.find_tail(Program::TRAIN);
        for step in done + 1..=steps {
            let patience_of_step = self.shape.step_patience(self.config, step);
            self.standing.enters(Phase::Enters(step));
            let word = listener.enter_step(step, Deadline::after(patience_of_step))?;
            if word != StepWord::Begins {
                ended = Ended { steps: step - 1, interrupted: word == StepWord::Interrupted };
                self.standing.enters(Phase::Runs);
                self.session.settle().map_err(|source| source.in_step(ended.steps))?;
                pulse::rest(|| self.keep_last(ended.steps, listener, link))?;
                break;
            }
            self.session.set_step_deadline(patience_of_step);
            self.standing.enters(Phase::Meets);
            pulse::rest(|| link.before_step(step, self.session))?;
            let start_ns = Clock::now_ns();
            if let Some(loader) = &mut loader {
                self.feed_if_not_ahead(step, loader, &mut ahead)?;
            }
            self.session.set_rate_factor(self.rates.factor(step));
            self.standing.enters(Phase::Runs);
            let leaves_tail = begins_early && self.leaves_tail(step, traced);
            self.session.leave_tail(Program::TRAIN, leaves_tail);
            // an evaluation feeds the same inputs
            let is_evaluated = self.shape.is_evaluated(self.config, step);
            let next = loader.as_mut().filter(|_| step < steps && !is_evaluated);
            let ran = self.run_feeding(step, next, &mut ahead);
            if step <= traced {
                let events = trace::take_step(self.session, step, start_ns);
                let told = self.standing.tells(|| listener.trace(&events));
                // why a step failed matters more than that its trace got lost
                ran.and(told)?;
            } else {
                ran?;
            }
            if step == traced {
                self.session.stop_timeline();
            }
            pace.step(Instant::now(), step, leaves_tail);
            let now = Polling::from(self.session.counters());
            if let Some(loss) = self.loss()? {
                if !loss.is_finite() {
                    return Err(pulse::rest(|| self.why_not_finite(step, loss, data)));
                }
                final_loss = Some(f64::from(loss));
                let epoch = pulse::rest(|| self.end_of_epoch(step, data, &mut begun, link))?;
                let evaluation = epoch.as_ref().and_then(|epoch| epoch.evaluation.clone());
                let progress = Progress { step, loss, polling: now - polling, epoch };
                self.standing.tells(|| listener.progress(progress))?;
                if let Some((patience, evaluation)) = patience.as_mut().zip(evaluation) {
                    pulse::rest(|| match patience.is_over(step, &evaluation) {
                        true => listener.end_behind(step),
                        false => listener.go_on(self.next_evaluated(step)),
                    })?;
                }
            } else if self.shape.is_evaluated(self.config, step) {
                pulse::rest(|| self.help_to_look())?;
            }
            polling = Polling::from(self.session.counters());
            if let Some(figures) =
                gauge.step(Instant::now(), samples, polling, || link.bytes_written())
            {
                pulse::rest(|| listener.figures(figures))?;
            }
            pulse::rest(|| self.checkpoint(step, listener, link))?;
        }
        self.standing.enters(Phase::Ends);
        let train_seconds = begun.at.elapsed().as_secs_f64();
        let Warm { seconds, steps, pieces } = pace.warm();
        pulse::rest(|| self.finish_checkpoints(listener))?;
        let pace = TrainReport {
            train_seconds,
            warm_seconds: seconds,
            warm_steps: steps,
            warm_pieces: pieces,
            ..Default::default()
        };
        let early_kernels = self.session.counters().early_kernels;
        let Ended { steps, interrupted } = ended;
        Ok(TrainReport { final_loss, polling, steps, interrupted, early_kernels, ..pace })
    }

    /// Samples that this process trains on in a step.
    fn samples_per_step(&self) -> u64 {
        // fits: batches are in memory
        let each = (self.config.batch * self.config.accumulate) as u64;
        each * self.replicas.len() as u64 * u64::from(self.program.devices)
    }

    /// What ends the job early if the evaluations say so; of those that it goes on from, too.
    fn patience(&self) -> Option<Patience> {
        let most = self.config.early_stop?;
        Some(Patience { most, best: self.resumed.and_then(|resumed| resumed.state.best.clone()) })
    }

    /// The next step behind `step` that all wait behind, since there is an evaluation.
    fn next_evaluated(&self, step: u64) -> u64 {
        let steps = self.shape.steps;
        let every = self.config.evaluate_every.unwrap_or(steps).max(1);
        ((step / every + 1).saturating_mul(every)).min(steps)
    }

    /// What there is to say if there is an evaluation after `step`.
    fn end_of_epoch(
        &mut self,
        step: u64,
        data: Option<&Data>,
        begun: &mut Begun,
        link: &mut dyn Link,
    ) -> Result<Option<EpochEnd>, TrainError> {
        if !self.shape.is_evaluated(self.config, step) {
            return Ok(None);
        }
        let (now, carried) = (Instant::now(), self.carried.traffic());
        let seconds = (now - begun.at).saturating_sub(begun.evaluating).as_secs_f64();
        let traffic = carried - begun.looked_at;
        let evaluation = match data.filter(|_| self.concludes) {
            Some(data) => Some(self.look(data, link)?),
            None => {
                self.help_to_look()?;
                None
            }
        };
        begun.evaluating += now.elapsed();
        begun.looked_at = begun.looked_at + (self.carried.traffic() - carried);
        Ok(Some(EpochEnd { seconds, traffic, evaluation }))
    }

    /// What is to blame for a loss that is no number: the batches of the step, which are made once more, or training.
    fn why_not_finite(&self, step: u64, loss: f32, data: Option<&Data>) -> TrainError {
        let each = self.program.accumulate as u64;
        let shares = self.shares();
        let made = data.and_then(|data| batches(data, self.config).ok());
        let found = made.and_then(|mut batches| {
            let of_step = (step - 1) * each..step * each;
            let all = shares.flat_map(|share| of_step.clone().map(move |at| (at, share)));
            // what cannot be made once more has nothing to say
            all.filter_map(|(at, share)| batches.not_finite(at, share).ok()?).next()
        });
        match found {
            Some(source) => TrainError::Batch { step, source },
            None => TrainError::Diverged { step, loss },
        }
    }

    fn loader(&self, data: &Data) -> Result<Loader<Vec<HostBatch>>, TrainError> {
        let batches = batches(data, self.config).map_err(ConfigError::from)?;
        let shares = self.shares();
        let each = self.program.accumulate as u64;
        let steps = self.shape.done..self.shape.steps;
        Loader::start(&batches, &shares, steps, each, self.threads())
    }

    /// The shares of the data that the replicas here take: one for each of their devices.
    fn shares(&self) -> Range<usize> {
        // fits: devices are few
        let each = self.program.devices as usize;
        let Range { start, end } = self.replicas;
        (start as usize + self.shard) * each..(end as usize + self.shard) * each
    }

    /// Threads of this process.
    pub(super) fn threads(&self) -> usize {
        // fits: workers are processes
        super::threads(self.config, self.replicas.start + self.shard as u32)
    }

    /// Copies a batch for each replica here into its input tensors.
    pub(super) fn feed_step(&mut self, step: u64, batches: &[HostBatch]) -> Result<(), TrainError> {
        let program = self.program;
        let copies = self.replicas.clone().flat_map(|replica| program.copies(replica as usize));
        for (copy, batch) in copies.zip(batches) {
            self.feed(copy, batch)?;
            if let Some(name) = &copy.step {
                // fits: steps are far below 2^63
                self.fill(name, &[], &[step as i64])?;
            }
        }
        Ok(())
    }

    pub(super) fn feed(&mut self, copy: &ModelCopy, batch: &HostBatch) -> Result<(), TrainError> {
        for tensor in batch.tensors() {
            // what the model does not read is not fed
            let Some(name) = copy.input(tensor.name()) else { continue };
            let node = self.session.node(&name)?;
            let (_, mut bytes) = self.session.feed(node.into(), tensor.spec().dims())?;
            // as many as the dimensions say, which the session has checked, of the type that the graph was built for
            bytes.copy_from_slice(tensor.bytes());
            self.carried.copied(CopyPurpose::Feeding, tensor.bytes().len());
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

    /// Mean loss of the replicas here and their devices, folded in their order; none where there are none.
    fn loss(&self) -> Result<Option<f32>, TrainError> {
        let mut sum = 0.0;
        let copies = |replica| self.program.copies(replica as usize);
        for copy in self.replicas.clone().flat_map(copies) {
            sum += self.scalar::<f32>(&copy.loss)?;
        }
        // fits: devices are few
        let each = self.program.accumulate * self.program.devices as usize;
        let count = self.replicas.len() * each;
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

    /// What was copied here so far, in the place of what the report says of it.
    pub(super) fn report_copies(&self, report: &mut TrainReport) {
        report.copies = self.session.copies();
        report.graphs_launched = self.session.graphs_launched();
        report.device_steps = self.session.how_told(Program::TRAIN);
        report.library_calls = self.session.library_calls();
        report.library_refusals = self.session.library_refusals();
        report.nccl_reductions = self.session.reductions();
        report.bytes_copied_ahead = self.session.bytes_copied_ahead();
        report.add_copies(&self.carried.copies());
    }
}
