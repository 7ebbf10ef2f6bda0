//! The rate of each step, as a factor of the optimizer's: what the configuration's schedule says, or a function of the
//! program's own. All processes that update variables ask for it.

use std::fmt;
use std::sync::Arc;

use tensorwire_nn::Schedule;

/// A program's own schedule: what the optimizer's rate is multiplied by in a step, which counts from 1.
pub type RateFunction = Arc<dyn Fn(u64) -> f64 + Send + Sync>;

/// The factors of a job.
#[derive(Clone, Default)]
pub struct Rates {
    schedule: Schedule,
    /// Steps of the job.
    steps: u64,
    /// Steps that were made before the first that is asked for.
    done: u64,
    own: Option<RateFunction>,
}

impl Rates {
    /// Those of a job of so many steps: `own` if there is one, else the schedule's.
    pub fn new(schedule: Schedule, steps: u64, own: Option<RateFunction>) -> Rates {
        Rates { schedule, steps, done: 0, own }
    }

    /// Those of whoever counts its steps from the first that is made behind `done`.
    pub(crate) fn behind(&self, done: u64) -> Rates {
        Rates { done, ..self.clone() }
    }

    /// The factor of a step, from 1.
    pub fn factor(&self, step: u64) -> f64 {
        let step = self.done + step;
        match &self.own {
            Some(own) => own(step),
            None => self.schedule.factor(step, self.steps),
        }
    }

    /// True if all steps have the optimizer's own rate.
    pub fn is_constant(&self) -> bool {
        self.own.is_none() && self.schedule.is_constant()
    }
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.own {
            Some(_) => f.write_str("Rates(a function)"),
            None => write!(f, "Rates({} over {} steps)", self.schedule, self.steps),
        }
    }
}
