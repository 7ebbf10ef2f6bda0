//! The one loop: from first values over the steps to the report, whatever the strategy. What a strategy adds is its link.

use std::ops::Range;

use tensorwire_runtime::Session;

use super::keeping::{PartFiles, is_written};
use super::listener::Listener;
use super::trainer::Trainer;
use super::whereabouts::Phase;
use super::{Part, TrainError, peak_bytes};
use crate::carried::Carried;
use crate::checkpoint::{self, CheckpointFolder, OwnVariable, Saver};
use crate::report::TrainReport;

/// A process that makes steps, connected.
pub(super) struct Worker<'a> {
    pub(super) session: Session,
    /// What computes.
    pub(super) kernels: String,
    /// The replicas of the graph that it computes; none at a server.
    pub(super) replicas: Range<u32>,
    /// The first replica's share of the data is that of this many workers on.
    pub(super) shard: usize,
    /// It evaluates, hashes and saves the variables in the end.
    pub(super) concludes: bool,
    pub(super) carried: Carried,
    pub(super) link: Box<dyn Link + 'a>,
}

impl<'a> Worker<'a> {
    /// Returns one that has the whole data and nothing to conclude.
    pub(super) fn new(
        session: Session,
        kernels: String,
        replicas: Range<u32>,
        link: Box<dyn Link + 'a>,
    ) -> Worker<'a> {
        let (shard, concludes, carried) = (0, false, Carried::default());
        Worker { session, kernels, replicas, shard, concludes, carried, link }
    }
}

/// What a strategy does around the steps.
pub(super) trait Link {
    /// Before the first step, when the variables here have their first values.
    fn begin(&mut self, _trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// Before each step, from 1.
    fn before_step(&mut self, _step: u64, _session: &mut Session) -> Result<(), TrainError> {
        Ok(())
    }

    /// True if nobody but the steps themselves uses the weights between two steps, but as [`Trainer`] knows of.
    fn may_begin_early(&self) -> bool {
        false
    }

    /// After a step of which a checkpoint is to be made, at every process: has those write that are no part of
    /// the graph, who say themselves what became of it.
    fn checkpoint(&mut self, _step: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Puts what is to be evaluated between two steps in the place of the weights here, if that is something else; true if it is.
    fn show_evaluated(&mut self, _session: &mut Session) -> Result<bool, TrainError> {
        Ok(false)
    }

    /// Puts the weights back that were there before [`Link::show_evaluated`].
    fn restore(&mut self, _session: &mut Session) -> Result<(), TrainError> {
        Ok(())
    }

    /// After the last step: what was sent is there, and whoever evaluates has what is evaluated.
    fn settle(&mut self, _trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// After the evaluation: true if this process is to evaluate after all, as whoever was to is lost.
    fn takes_over(&mut self, _trainer: &Trainer<'_>) -> Result<bool, TrainError> {
        Ok(false)
    }

    /// Bytes that were written to others so far.
    fn bytes_written(&self) -> u64 {
        0
    }

    /// Leaves with everything done, and adds what it moved to the report.
    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError>;
}

/// Of a process that is alone.
pub(super) struct NoLink;

impl Link for NoLink {
    fn leave(&mut self, _report: &mut TrainReport) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Makes all steps of a process.
pub(super) fn run(
    worker: Worker<'_>,
    part: &Part,
    listener: &mut dyn Listener,
) -> Result<TrainReport, TrainError> {
    let Part {
        config,
        topology,
        program,
        plan,
        shape,
        data,
        resumed,
        shard: file,
        rates,
        standing,
    } = part;
    let Worker { mut session, kernels, replicas, shard, concludes, carried, mut link } = worker;
    standing.has_sessions([&session]);
    let trainer = Trainer::new(config, program, plan, shape, &mut session, replicas);
    let client = topology.averaging.map(|_| topology.client_of(trainer.replicas.start));
    let graph = &trainer.session.part().graph;
    let own = checkpoint::own_variables(graph, program, topology, client);
    let worker = trainer.replicas.start;
    let is_written = |own: &&OwnVariable| is_written(topology, worker, own);
    let written: Vec<OwnVariable> = own.iter().filter(is_written).cloned().collect();
    let sizes = written.iter().map(|own| own.spec.bytes()).collect();
    let saver = config.checkpoint.as_ref().zip(file.as_ref());
    let saver = saver.map(|(to, file)| {
        Saver::start(CheckpointFolder::new(&to.path).of_steps(shape.steps), file, sizes)
    });
    let saver = saver.transpose().map_err(TrainError::Saver)?;
    let (files, resumed) = (PartFiles::new(own, written, saver), resumed.as_ref());
    let (rates, standing) = (rates.clone(), standing.clone());
    let mut trainer =
        Trainer { shard, concludes, carried, files, resumed, rates, standing, ..trainer };
    trainer.initialise()?;
    trainer.standing.enters(Phase::Meets);
    link.begin(&mut trainer)?;
    let mut report = trainer.train(data.as_ref(), listener, &mut *link)?;
    trainer.standing.enters(Phase::Meets);
    link.settle(&mut trainer)?;
    if !report.interrupted {
        trainer.conclude(data.as_ref(), &mut report)?;
        trainer.standing.enters(Phase::Meets);
        if link.takes_over(&trainer)? {
            trainer.concludes = true;
            trainer.conclude(data.as_ref(), &mut report)?;
            trainer.standing.enters(Phase::Meets);
        }
    }
    report.store_bytes = trainer.carried.traffic().store_bytes;
    link.leave(&mut report)?;
    report.kernels = kernels;
    report.peak_bytes = peak_bytes();
    Ok(report)
}
