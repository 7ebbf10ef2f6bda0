//! Whom a process tells how its training goes: a member tells its launcher, a process that trains alone
//! tells its caller.

use std::sync::atomic::{AtomicBool, Ordering};

use super::TrainError;
use crate::checkpoint::{Keeper, ShardReport};
use crate::report::Progress;
use crate::run::MemberRecord;
use crate::trace::{Collector, TraceEvent};
use tensorwire_launch::Member;

/// Whom a process tells how its training goes.
pub(super) trait Listener {
    /// Before each step.
    fn begin_step(&mut self, step: u64) -> Result<(), TrainError>;
    fn progress(&mut self, progress: Progress) -> Result<(), TrainError>;
    fn trace(&mut self, events: &[TraceEvent]) -> Result<(), TrainError>;
    /// A file of a checkpoint was written, or could not be.
    fn written(&mut self, shard: ShardReport) -> Result<(), TrainError>;
}

impl Listener for &Member {
    fn begin_step(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(Member::begin_step(self, step)?)
    }

    fn progress(&mut self, progress: Progress) -> Result<(), TrainError> {
        Ok(Member::progress(self, progress)?)
    }

    fn trace(&mut self, events: &[TraceEvent]) -> Result<(), TrainError> {
        let records: Vec<MemberRecord> = events.iter().copied().map(MemberRecord::Trace).collect();
        Ok(self.record(&records)?)
    }

    fn written(&mut self, shard: ShardReport) -> Result<(), TrainError> {
        Ok(self.record(&[MemberRecord::Shard(shard)])?)
    }
}

/// The caller of [`super::train_local`].
pub(super) struct Caller<'a> {
    pub(super) interrupt: &'a AtomicBool,
    pub(super) on_progress: &'a mut dyn FnMut(Progress),
    pub(super) trace: Option<Collector<'a>>,
    pub(super) keeper: Option<Keeper>,
}

impl Listener for Caller<'_> {
    fn begin_step(&mut self, _: u64) -> Result<(), TrainError> {
        let interrupted = self.interrupt.load(Ordering::Relaxed);
        if interrupted { Err(TrainError::Interrupted) } else { Ok(()) }
    }

    fn progress(&mut self, progress: Progress) -> Result<(), TrainError> {
        (self.on_progress)(progress);
        Ok(())
    }

    fn trace(&mut self, events: &[TraceEvent]) -> Result<(), TrainError> {
        if let Some(trace) = &mut self.trace {
            trace.add(0, events);
        }
        Ok(())
    }
    fn written(&mut self, shard: ShardReport) -> Result<(), TrainError> {
        if let Some(keeper) = &self.keeper {
            keeper.add(shard);
        }
        Ok(())
    }
}
