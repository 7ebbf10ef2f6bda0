//! A job whose number of workers, and whose hosts, may change between two steps: it ends behind a step, which is kept, and is
//! launched with others. A step takes as many samples as ever: where there are fewer workers, each makes several batches for it.

mod shared;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use tensorwire_launch::{JobControl, Resize};
use tensorwire_nn::{Data, Model};

use crate::checkpoint::CheckpointConfig;
use crate::config::{ConfigError, TrainConfig};
use crate::job::{Prepared, Supply};
use crate::rates::RateFunction;
use crate::run::JobFailure;
use shared::{Place, Shared, go};

impl TrainConfig {
    /// Returns the numbers of workers that the job may have, the largest first: parts of [`TrainConfig::workers`], so that a
    /// step takes as many samples, and not fewer than [`TrainConfig::fewest_workers`].
    pub(crate) fn sizes(&self) -> Vec<u32> {
        let fewest = self.fewest_workers.unwrap_or(self.workers).max(1);
        let sizes = (fewest..=self.workers).rev().filter(|size| self.workers.is_multiple_of(*size));
        sizes.filter(|size| self.of_size(*size, self.place()).check().is_ok()).collect()
    }

    /// The same job of so many workers there, that goes on from its own checkpoints.
    fn of_size(&self, workers: u32, place: Place) -> TrainConfig {
        // fits: workers are few
        let accumulate = self.accumulate * (self.workers / workers) as usize;
        let (fewest_workers, trace) = (None, None);
        let resume = Some(CheckpointConfig::AUTO.into());
        let Place { hosts, listen } = place;
        let changed = TrainConfig { workers, accumulate, hosts, listen, ..self.clone() };
        TrainConfig { fewest_workers, trace, resume, ..changed }
    }

    /// The same job with the workers that it has as `other`, and there, if it is one that may have gone on so.
    pub(crate) fn resized_as(&self, other: &TrainConfig) -> Option<TrainConfig> {
        let was_resized = self.fewest_workers.is_some() && other.fewest_workers.is_none();
        let may_be = was_resized && self.sizes().contains(&other.workers);
        may_be.then(|| self.of_size(other.workers, other.place()))
    }

    fn place(&self) -> Place {
        Place { hosts: self.hosts.clone(), listen: self.listen }
    }
}

/// A job whose number of workers may change, over all that it is launched as.
#[derive(Debug)]
pub(crate) struct Resizing<'a> {
    /// Of all workers.
    whole: &'a Prepared,
    shared: Arc<Shared>,
}

impl<'a> Resizing<'a> {
    /// Of a job that was prepared with all its workers; none if their number is fixed.
    pub(crate) fn of(whole: &'a Prepared) -> Option<Resizing<'a>> {
        whole.config.fewest_workers?;
        Some(Resizing { whole, shared: Arc::new(Shared::of(whole.config.clone())) })
    }

    /// What the launcher asks, and is asked.
    pub(crate) fn control(&self) -> Arc<dyn JobControl> {
        self.shared.clone()
    }

    /// Has the job pause for what an earlier launcher of it was asked for, if there is room.
    pub(crate) fn goes_on_with(&self, wanted: &Resize) {
        self.shared.goes_on_with(wanted);
    }

    /// Returns why the job has ended behind a step, if it is to go on in another way.
    pub(crate) fn paused(&self) -> Option<String> {
        self.shared.paused()
    }

    /// Notes that a step was made as the job was launched.
    pub(crate) fn made_a_step(&self) {
        self.shared.made_a_step();
    }

    /// Has the job go back to what it was, if no step was made as it was to go on; returns why.
    pub(crate) fn goes_back(&self, error: &dyn Display) -> Option<String> {
        let why = self.shared.goes_back(error)?;
        self.shared.watch();
        Some(why)
    }

    /// Notes that a host does not answer any more; returns why the job goes on without it. None if it can only go on with it.
    pub(crate) fn lost_host(&self, host: &str, failure: &JobFailure) -> Option<String> {
        let left = self.shared.lost(host)?;
        self.shared.watch();
        Some(format!("{failure}; {host} does not answer, and {} on without it", go(left)))
    }

    /// Takes the next smaller number of workers for a time, or as many, where none of them failed; returns why the job goes on. None
    /// if there is no smaller one.
    pub(crate) fn without(&self, failure: &JobFailure) -> Option<String> {
        if failure.first().is_none() {
            return Some(format!("{failure}; the job goes on"));
        }
        let left = self.shared.shrink(Instant::now())?;
        self.shared.watch();
        Some(format!("{failure}; {} on", go(left)))
    }

    /// The job as it goes on, and why it does so. If it cannot as it is to, then as it was.
    ///
    /// # Errors
    /// When it cannot.
    pub(crate) fn resized(
        &self,
        why: String,
        supply: &dyn Supply,
    ) -> Result<(String, Prepared), ConfigError> {
        match self.prepared(supply) {
            Err(error) => match self.goes_back(&error) {
                Some(why) => Ok((why, self.prepared(supply)?)),
                None => Err(error),
            },
            Ok(prepared) => Ok((why, prepared)),
        }
    }

    /// Notes that the job runs so, as an earlier launcher left it.
    pub(crate) fn runs_as(&self, config: &TrainConfig) {
        if self.shared.runs_as(config) {
            self.shared.watch();
        }
    }

    /// Who was left did not come: the job begins with all its workers.
    pub(crate) fn begins_whole(&self) {
        self.shared.runs_as(&self.whole.config);
    }

    fn prepared(&self, supply: &dyn Supply) -> Result<Prepared, ConfigError> {
        let (size, place) = self.shared.launched();
        self.prepared_as(self.whole.config.of_size(size, place), supply)
    }

    /// The job as it is with a configuration of its own.
    ///
    /// # Errors
    /// When it cannot be so here.
    pub(crate) fn prepared_as(
        &self,
        config: TrainConfig,
        supply: &dyn Supply,
    ) -> Result<Prepared, ConfigError> {
        let supply = Same { supply, data: &self.whole.data };
        let prepared = Prepared::new(config.clone(), &supply)?;
        match (&prepared.resumed, &self.whole.config.resume) {
            // nothing is kept yet: it begins where it began
            (None, Some(given)) if !self.whole.config.resumes_own() => {
                Prepared::new(TrainConfig { resume: Some(given.clone()), ..config }, &supply)
            }
            _ => Ok(prepared),
        }
    }
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        self.shared.is_over();
    }
}

/// What was there before, of data that need not be read once more.
struct Same<'a> {
    supply: &'a dyn Supply,
    data: &'a Data,
}

impl Supply for Same<'_> {
    fn model(&self, config: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError> {
        self.supply.model(config)
    }

    fn data(&self, _: &TrainConfig) -> Result<Data, ConfigError> {
        Ok(self.data.clone())
    }

    fn rates(&self) -> Option<RateFunction> {
        self.supply.rates()
    }
}
