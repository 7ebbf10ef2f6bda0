//! A loss that grows without bound and is a number all the same: it is told once, before training diverges for good.

use std::fmt;

use crate::steps::FinishedStep;

/// How many times the first loss is too much.
const TOO_MUCH: f32 = 1e4;
/// A first loss below it counts as this: from there a spike is no growth.
const FIRST_MIN: f32 = 1e-3;

/// Looks at the loss of each step.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossGrowth {
    first: Option<f32>,
    is_told: bool,
}

/// A loss that grew too much. Who tells of it knows what the user can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrownLoss {
    pub step: u64,
    pub loss: f32,
    pub first: f32,
}

impl LossGrowth {
    /// Takes in a step; what there is to say of it, once a job.
    pub fn step(&mut self, done: &FinishedStep) -> Option<GrownLoss> {
        let FinishedStep { step, loss, .. } = *done;
        let first = *self.first.get_or_insert(loss);
        let is_too_much = loss > TOO_MUCH * first.abs().max(FIRST_MIN);
        if self.is_told || !is_too_much {
            return None;
        }
        self.is_told = true;
        Some(GrownLoss { step, loss, first })
    }
}

impl fmt::Display for GrownLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GrownLoss { step, loss, first } = self;
        write!(f, "step {step}: the loss is {loss:.3e}, the first one was {first:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::PollingFigures;

    #[test]
    fn a_loss_that_explodes_is_told_once() {
        let said = |losses: &[f32]| -> Vec<String> {
            let mut growth = LossGrowth::default();
            let told = (1..).zip(losses).filter_map(|(step, &loss)| {
                let polling = PollingFigures::default();
                let (epoch, rate, samples_per_second, evaluation) = (1, 0.1, 1.0, None);
                growth.step(&FinishedStep {
                    step,
                    time: 0.0,
                    workers: 1,
                    epoch,
                    loss,
                    rate,
                    samples_per_second,
                    polling,
                    evaluation,
                })
            });
            told.map(|grown| grown.to_string()).collect()
        };
        let told = said(&[2.3, 40.0, 2.2e4, 2.4e4, 1e30]);
        assert_eq!(told, ["step 4: the loss is 2.400e4, the first one was 2.300e0"]);
        // as of a job that goes on from weights that fit
        assert!(said(&[1e-7, 1e-2, 5.0]).is_empty());
        assert!(said(&[0.0, 1.0]).is_empty());
    }
}
