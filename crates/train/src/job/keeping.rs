//! Who writes what of a job's checkpoints, and after which steps.

use std::time::Duration;

use tensorwire_base::Rank;
use tensorwire_graph::Plan;
use tensorwire_launch::Role;
use tensorwire_memory::CopyPurpose;
use tensorwire_nn::{Program, is_residual};
use tensorwire_runtime::Session;

use super::computing::recipe;
use super::trainer::LAST_WORKER_DEADLINE;
use super::{JobShape, Prepared, TrainError};
use crate::carried::Carried;
use crate::checkpoint::{
    self, Captured, CheckpointError, CheckpointFolder, CheckpointState, Claim, DataPosition,
    Evaluated, Held, Keeper, OwnVariable, ProcessFile, Resumed, Saver, ShardReport,
};
use crate::config::TrainConfig;
use crate::topology::Topology;

impl Prepared {
    /// Makes the folder of checkpoints this job's alone for as long as the claim lives, through all its starts. None without one.
    ///
    /// # Errors
    /// When nothing can be written there, or another job has it and keeps it.
    pub(crate) fn claim(&self) -> Result<Option<Claim>, CheckpointError> {
        let checkpoint = self.config.checkpoint.as_ref();
        checkpoint.map(|checkpoint| CheckpointFolder::new(&checkpoint.path).claim()).transpose()
    }

    /// Returns the file that this job's processes hold where it keeps its checkpoints; those of other jobs hold none, but for what is left
    /// on other hosts of an earlier launcher's that `is_known`, which ends by itself.
    ///
    /// # Errors
    /// When they do.
    pub(crate) fn process_file(
        &self,
        is_known: bool,
        is_taken_over: bool,
    ) -> Result<Option<ProcessFile>, CheckpointError> {
        let Some(checkpoint) = &self.config.checkpoint else { return Ok(None) };
        let folder = CheckpointFolder::new(&checkpoint.path);
        if is_taken_over {
            return Ok(Some(ProcessFile::of(&folder)));
        }
        match ProcessFile::alone(&folder) {
            Err(held) if is_known => {
                tracing::warn!("{held}; this job begins all the same");
                Ok(Some(ProcessFile::of(&folder)))
            }
            file => file.map(Some),
        }
    }

    /// Puts checkpoints together, if there are to be any. What is left of earlier ones is removed, unless this very job has written
    /// it.
    pub(crate) fn keeper(&self, is_taken_over: bool) -> Option<Keeper> {
        let Prepared { config, topology, program, shape, .. } = self;
        let checkpoint = config.checkpoint.as_ref()?;
        let folder = CheckpointFolder::new(&checkpoint.path);
        let slots = checkpoint::kept(program, topology).slots();
        // what a process says again of its files, the launcher of the time has told; an evaluation counts with a checkpoint
        // that is read, which is not always the newest
        let read = self.resumed.as_ref().map_or(shape.done, |resumed| resumed.state.step);
        let told = is_taken_over.then(|| folder.newest()).flatten().unwrap_or(read);
        let job = CheckpointState {
            version: env!("CARGO_PKG_VERSION").to_string(),
            step: read,
            position: DataPosition { epoch: 0, step: 0, steps_per_epoch: shape.steps_per_epoch },
            seed: config.seed,
            model: config.model.clone(),
            data: config.data.clone(),
            strategy: config.strategy,
            workers: config.workers,
            servers: topology.servers,
            batch: config.batch,
            accumulate: config.accumulate,
            devices: config.devices_per_worker,
            test_loss: None,
            best: self.resumed.as_ref().and_then(|resumed| resumed.state.best.clone()),
            ema: config.ema,
            recipe: recipe(config, program),
            slots,
            samples: Some(shape.counts),
            // data without names may be those of training all the same
            class_names: self.data.train.class_names().map(<[String]>::to_vec).or_else(|| {
                self.resumed.as_ref().and_then(|resumed| resumed.state.class_names.clone())
            }),
            files: std::collections::BTreeMap::new(),
        };
        let ranks = (0..topology.world()).map(Rank);
        let shards = ranks.filter_map(|rank| shard(program, &self.plan, topology, rank)).collect();
        let evaluated = Evaluated { every: config.evaluate_every, steps: shape.steps };
        if !is_taken_over {
            folder.remove_partial();
        }
        let started = Keeper::start(checkpoint, shards, job, told, evaluated);
        started.inspect_err(|error| tracing::warn!("no checkpoints: {error}")).ok()
    }
}

/// The name of the file that a member writes of each checkpoint, if it does.
pub(super) fn shard(
    program: &Program,
    plan: &Plan,
    topology: &Topology,
    rank: Rank,
) -> Option<String> {
    let role = topology.role(rank);
    let is_owner = match (topology.has_store(), role) {
        // each client has weights of its own beside the centre, and all of its workers the same
        (true, Role::Worker(worker)) if topology.averaging.is_some() => worker < topology.groups,
        (true, Role::Server(_)) => !topology.reduces_in_store,
        // of averages of weights the first one's count
        (_, Role::Worker(worker)) if worker > 0 && topology.plans_one_worker() => false,
        (_, Role::Worker(worker)) => {
            // of who took over from a server of a store there is none
            plan.parts.get(topology.part(rank)).is_some_and(|part| {
                let own = checkpoint::own_variables(&part.graph, program, topology, None);
                own.iter().any(|own| is_written(topology, worker, own))
            })
        }
        _ => {
            let part = &plan.parts[topology.part(rank)].graph;
            !checkpoint::own_variables(part, program, topology, None).is_empty()
        }
    };
    is_owner.then(|| checkpoint::shard_file(role))
}

/// True if a worker writes a variable of its own: where each has all, the first one's are everybody's, but for what nobody else has.
pub(super) fn is_written(topology: &Topology, worker: u32, own: &OwnVariable) -> bool {
    // clients that meet at a centre in a store have each their own
    let has_clients = topology.has_store() && topology.averaging.is_some();
    !topology.is_replicated() || has_clients || worker == 0 || own.is_residual()
}

impl JobShape {
    /// True if there is an evaluation after a step.
    pub(super) fn is_evaluated(&self, config: &TrainConfig, step: u64) -> bool {
        let ends_epoch = config.evaluate_each_epoch && step.is_multiple_of(self.steps_per_epoch);
        // after the last step there is one anyway
        let every = config.evaluate_every.filter(|_| step < self.steps);
        ends_epoch || every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// True if there is a checkpoint after a step.
    pub(super) fn is_kept(&self, config: &TrainConfig, step: u64) -> bool {
        config.checkpoint.as_ref().is_some_and(|to| {
            let is_due = to.is_due(step, self.steps_per_epoch, self.steps);
            is_due || to.best && self.is_evaluated(config, step)
        })
    }

    /// True if a job that ends behind `last`, before its end, has yet to keep it.
    pub(super) fn is_kept_early(&self, config: &TrainConfig, last: u64) -> bool {
        config.checkpoint.is_some() && last > self.done && !self.is_kept(config, last)
    }

    /// How long a step may wait for peers that are alive. The first behind an evaluation may wait for somebody who evaluates alone; the
    /// first behind a checkpoint twice as long as others, for a disk, or, where each trains at its own pace, for somebody who is any
    /// number of steps behind.
    pub(super) fn step_patience(&self, config: &TrainConfig, step: u64) -> Duration {
        let before = step - 1;
        let is_behind = before > self.done;
        let is_kept = is_behind && self.is_kept(config, before);
        let is_evaluated = is_behind && self.is_evaluated(config, before);
        match (is_evaluated, is_kept) {
            (true, _) => LAST_WORKER_DEADLINE,
            (false, true) if config.topology().is_asynchronous() => LAST_WORKER_DEADLINE,
            (false, true) => config.disk_deadline(),
            (false, false) => config.step_deadline(),
        }
    }

    /// How long whoever has made all steps waits for the others: they may still make theirs, evaluate, or write the last checkpoint.
    pub(super) fn patience_behind_the_last(&self, config: &TrainConfig, last: u64) -> Duration {
        let of_disk = config.checkpoint.as_ref().map(|_| config.disk_deadline());
        match config.topology().is_asynchronous() {
            true => LAST_WORKER_DEADLINE,
            false => self.step_patience(config, last + 1).max(of_disk.unwrap_or_default()),
        }
    }
}

/// The variables of a process's part of the graph: out of a checkpoint, and into others.
#[derive(Debug, Default)]
pub(super) struct PartFiles {
    own: Vec<OwnVariable>,
    /// Those of them that are written here.
    written: Vec<OwnVariable>,
    /// None where another writes the same, or nobody.
    saver: Option<Saver>,
}

impl PartFiles {
    /// Those that a process has, and those that it writes.
    pub(super) fn new(
        own: Vec<OwnVariable>,
        written: Vec<OwnVariable>,
        saver: Option<Saver>,
    ) -> PartFiles {
        PartFiles { own, written, saver }
    }

    /// Gives all variables that live here, slots too, the values of a checkpoint.
    pub(super) fn restore(&self, resumed: &Resumed, session: &Session) -> Result<(), TrainError> {
        if self.own.is_empty() {
            return Ok(());
        }
        let index = resumed.index()?;
        for OwnVariable { output, spec, name, first_element, .. } in &self.own {
            let (_, mut bytes) = session.write(*output)?;
            if !index.value(name).is_some_and(|value| value.is(spec)) && is_residual(name) {
                // of another number of workers, or of a job that sent all
                bytes.fill(0);
                continue;
            }
            index.read(name, first_element * spec.dtype.bytes(), &mut bytes)?;
        }
        Ok(())
    }

    /// Copies what a checkpoint of `step` has of this process, to be written while training goes on. Returns what became of
    /// the one before, where that was not known.
    pub(super) fn capture(
        &mut self,
        step: u64,
        session: &Session,
        carried: &Carried,
    ) -> Result<Option<ShardReport>, TrainError> {
        let Some(saver) = &mut self.saver else { return Ok(None) };
        // one at a time, so that all processes write the same ones
        let before = saver.wait();
        let mut guards = Vec::with_capacity(self.written.len());
        for variable in &self.written {
            guards.push(session.read(variable.output)?.1);
        }
        let all: Vec<&[u8]> = guards.iter().map(|guard| &**guard).collect();
        carried.copied(CopyPurpose::Checkpoint, all.iter().map(|bytes| bytes.len()).sum());
        let copies = saver.copy(&all);
        let captured = |(own, bytes): (&OwnVariable, Held)| Captured {
            name: own.name.clone(),
            dtype: own.spec.dtype,
            dims: own.spec.dims().to_vec(),
            whole: own.dims.clone(),
            first_element: own.first_element,
            bytes,
        };
        saver.write(step, self.written.iter().zip(copies).map(captured).collect());
        Ok(before)
    }

    /// What became of the file that is being written, if that is known already.
    pub(super) fn finished(&mut self) -> Option<ShardReport> {
        self.saver.as_mut().and_then(Saver::finished)
    }

    /// The same, once it is known; none if nothing is being written.
    pub(super) fn wait(&mut self) -> Option<ShardReport> {
        self.saver.as_mut().and_then(Saver::wait)
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_nn::Description;

    use super::*;
    use crate::checkpoint::{CheckpointConfig, SampleCounts};
    use crate::config::tests::config;

    #[test]
    fn a_step_behind_an_evaluation_or_a_checkpoint_waits_for_who_is_busy_with_it() {
        let counts = SampleCounts { train: Some(90), test: Some(9) };
        let (samples, steps_per_epoch) = (Description::new(), 100);
        let (steps, done, test_batches, classes_sha256) = (40, 10, 1, None);
        let shape = JobShape {
            samples,
            counts,
            steps,
            done,
            steps_per_epoch,
            test_batches,
            classes_sha256,
        };
        let long = |config: &TrainConfig| -> Vec<u64> {
            let is_long = |step: &u64| shape.step_patience(config, *step) > config.step_deadline();
            (11..=40).filter(is_long).collect()
        };
        assert_eq!(long(&config()), [0; 0]);
        let evaluated = TrainConfig { evaluate_every: Some(10), ..config() };
        // nobody has evaluated before the first step of those that are left
        assert_eq!(long(&evaluated), [21, 31]);
        let every = |every| CheckpointConfig { every: Some(every), ..CheckpointConfig::new("c") };
        let kept = TrainConfig { checkpoint: Some(every(12)), ..evaluated };
        assert_eq!(long(&kept), [13, 21, 25, 31, 37]);
        let patience = [13, 21].map(|step| shape.step_patience(&kept, step));
        assert_eq!(patience, [kept.disk_deadline(), LAST_WORKER_DEADLINE], "a disk has a bound");
        let behind = |config: &TrainConfig| shape.patience_behind_the_last(config, 40);
        assert_eq!(behind(&config()), config().step_deadline());
        // the last one, too
        assert_eq!(behind(&kept), kept.disk_deadline());
    }
}
