//! Whom a process tells how its training goes: a member tells its launcher, a process that trains alone
//! tells its caller.

use std::sync::atomic::{AtomicBool, Ordering};

use super::TrainError;
use crate::checkpoint::{Keeper, ShardReport};
use crate::figures::ProcessFigures;
use crate::report::Progress;
use crate::run::MemberRecord;
use crate::trace::{Collector, TraceEvent};
use tensorwire_base::Deadline;
use tensorwire_launch::{Member, StepWord};

/// Whom a process tells how its training goes.
pub(super) trait Listener {
    /// Before each step: whether it begins. Waits until that is known.
    fn enter_step(&mut self, step: u64, deadline: Deadline) -> Result<StepWord, TrainError>;
    /// All wait behind this step until one says what comes there; before the first.
    fn wait_behind(&mut self, step: u64);
    /// All go on behind a step that they wait behind, up to `until`.
    fn go_on(&mut self, until: u64) -> Result<(), TrainError>;
    /// The job is done behind this step, which all wait behind.
    fn end_behind(&mut self, step: u64) -> Result<(), TrainError>;
    fn progress(&mut self, progress: Progress) -> Result<(), TrainError>;
    fn figures(&mut self, figures: ProcessFigures) -> Result<(), TrainError>;
    fn trace(&mut self, events: &[TraceEvent]) -> Result<(), TrainError>;
    /// A file of a checkpoint was written, or could not be.
    fn written(&mut self, shard: ShardReport) -> Result<(), TrainError>;
}

impl Listener for &Member {
    fn enter_step(&mut self, step: u64, deadline: Deadline) -> Result<StepWord, TrainError> {
        Ok(Member::enter_step(self, step, deadline)?)
    }

    fn wait_behind(&mut self, step: u64) {
        Member::wait_behind(self, step);
    }

    fn go_on(&mut self, until: u64) -> Result<(), TrainError> {
        Ok(Member::go_on(self, until)?)
    }

    fn end_behind(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(Member::end_behind(self, step)?)
    }

    fn progress(&mut self, progress: Progress) -> Result<(), TrainError> {
        if let Some(evaluation) = progress.evaluation().cloned() {
            let evaluated = MemberRecord::Evaluated { step: progress.step, evaluation };
            self.recorder().record_lasting(&[evaluated])?;
        }
        Ok(Member::progress(self, progress)?)
    }

    fn figures(&mut self, figures: ProcessFigures) -> Result<(), TrainError> {
        Ok(Member::figures(self, figures)?)
    }

    fn trace(&mut self, events: &[TraceEvent]) -> Result<(), TrainError> {
        let records: Vec<MemberRecord> = events.iter().copied().map(MemberRecord::Trace).collect();
        Ok(self.record(&records)?)
    }

    fn written(&mut self, shard: ShardReport) -> Result<(), TrainError> {
        Ok(self.recorder().record_lasting(&[MemberRecord::Shard(shard)])?)
    }
}

/// The caller of [`super::alone::train_local`].
pub(super) struct Caller<'a> {
    pub(super) interrupt: &'a AtomicBool,
    pub(super) on_progress: &'a mut dyn FnMut(Progress),
    pub(super) trace: Option<Collector<'a>>,
    pub(super) keeper: Option<Keeper>,
    /// The step behind which training is done.
    pub(super) last: Option<u64>,
}

impl Listener for Caller<'_> {
    fn enter_step(&mut self, step: u64, _: Deadline) -> Result<StepWord, TrainError> {
        Ok(match self.interrupt.load(Ordering::Relaxed) {
            true => StepWord::Interrupted,
            false if self.last.is_some_and(|last| step > last) => StepWord::Done,
            false => StepWord::Begins,
        })
    }

    // it is alone

    fn wait_behind(&mut self, _: u64) {}

    fn go_on(&mut self, _: u64) -> Result<(), TrainError> {
        Ok(())
    }

    fn end_behind(&mut self, step: u64) -> Result<(), TrainError> {
        self.last = Some(step);
        Ok(())
    }

    fn progress(&mut self, progress: Progress) -> Result<(), TrainError> {
        if let Some((keeper, evaluation)) = self.keeper.as_ref().zip(progress.evaluation()) {
            keeper.evaluated(progress.step, evaluation.clone());
        }
        (self.on_progress)(progress);
        Ok(())
    }

    // nobody asks how a process stands that is alone
    fn figures(&mut self, _: ProcessFigures) -> Result<(), TrainError> {
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
