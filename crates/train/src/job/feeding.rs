//! Feeding of steps: before a step, or, where a device computes, what the next one is fed while it does. One step ahead.

use tensorwire_graph::Output;
use tensorwire_nn::{HostBatch, Program};
use tensorwire_runtime::Advance;

use super::TrainError;
use super::loader::Loader;
use super::trainer::Trainer;
use super::whereabouts::Phase;

type Made = tensorwire_nn::Result<Vec<HostBatch>>;

/// What was fed before its step.
#[derive(Debug, Default)]
pub(super) struct FedAhead {
    /// Of each step the inputs; none until one was fed, and where they cannot be fed ahead.
    inputs: Option<Vec<Output>>,
    /// The present step's batches are where they belong.
    is_fed: bool,
    /// Taken from the loader, and not fed.
    made: Option<Made>,
}

impl Trainer<'_> {
    /// Feeds a step that was not fed ahead.
    pub(super) fn feed_if_not_ahead(
        &mut self,
        step: u64,
        loader: &mut Loader<Vec<HostBatch>>,
        ahead: &mut FedAhead,
    ) -> Result<(), TrainError> {
        if std::mem::take(&mut ahead.is_fed) {
            return Ok(());
        }
        let made = match ahead.made.take() {
            Some(made) => made,
            None => {
                self.standing.enters(Phase::AwaitsBatch(step));
                let made = loader.next(self.config.step_deadline());
                made.map_err(|source| TrainError::NoBatch { step, source })?
            }
        };
        let made = made.map_err(|source| TrainError::Batch { step, source })?;
        self.feed_step(step, &made)?;
        if step == self.shape.done + 1 {
            let inputs = self.fed_inputs(&made)?;
            ahead.inputs = self.session.prepare_ahead(&inputs).then_some(inputs);
        }
        Ok(())
    }

    /// True if a step may be over while gradients are still reduced, or pushed, and weights changed by them: the next step goes on with that,
    /// and nobody looks at the weights in between. Of the last step that is traced all is to be seen.
    pub(super) fn leaves_tail(&self, step: u64, traced: u64) -> bool {
        let (shape, config) = (self.shape, self.config);
        let is_looked_at = shape.is_evaluated(config, step) || shape.is_kept(config, step);
        step < shape.steps && step != traced && !is_looked_at
    }

    /// Runs a step, and feeds the next one from `next` when there is nothing to do but wait, or all is told to a device.
    pub(super) fn run_feeding(
        &mut self,
        step: u64,
        next: Option<&mut Loader<Vec<HostBatch>>>,
        ahead: &mut FedAhead,
    ) -> Result<(), TrainError> {
        self.run_and_feed(step, next, ahead).map_err(|error| match error {
            TrainError::Run(source) => TrainError::Run(source.in_step(step)),
            error => error,
        })
    }

    fn run_and_feed(
        &mut self,
        step: u64,
        next: Option<&mut Loader<Vec<HostBatch>>>,
        ahead: &mut FedAhead,
    ) -> Result<(), TrainError> {
        let (Some(loader), Some(inputs)) = (next, ahead.inputs.clone()) else {
            return Ok(self.session.run(Program::TRAIN)?);
        };
        let mut may_feed = true;
        self.session.start(Program::TRAIN);
        loop {
            match self.session.advance()? {
                Advance::Progress => {}
                // what this step was fed may still be on its way
                found if may_feed && self.session.may_fill(&inputs)? => {
                    may_feed = false;
                    self.feed_ahead(step + 1, &inputs, loader, ahead)?;
                    if found == Advance::Finished {
                        return Ok(());
                    }
                }
                Advance::Finished => return Ok(()),
                Advance::Blocked => self.session.wait()?,
            }
        }
    }

    /// Feeds a step whose turn is next, if its batches are made.
    fn feed_ahead(
        &mut self,
        step: u64,
        inputs: &[Output],
        loader: &mut Loader<Vec<HostBatch>>,
        ahead: &mut FedAhead,
    ) -> Result<(), TrainError> {
        match loader.ready() {
            Some(Ok(made)) => {
                self.feed_step(step, &made)?;
                inputs.iter().try_for_each(|input| self.session.send_ahead(*input))?;
                ahead.is_fed = true;
            }
            // what is wrong with it is told when it is the step's turn
            made => ahead.made = made,
        }
        Ok(())
    }

    /// The inputs that a step feeds.
    fn fed_inputs(&self, batches: &[HostBatch]) -> Result<Vec<Output>, TrainError> {
        let program = self.program;
        let copies = self.replicas.clone().flat_map(|replica| program.copies(replica as usize));
        let mut inputs = Vec::new();
        for (copy, batch) in copies.zip(batches) {
            let names = batch.tensors().iter().filter_map(|tensor| copy.input(tensor.name()));
            for name in names.chain(copy.step.as_deref().map(str::to_owned)) {
                inputs.push(self.session.node(&name)?.into());
            }
        }
        Ok(inputs)
    }
}
