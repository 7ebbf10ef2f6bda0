//! The best of a job's evaluations: which it was, and when so many came behind it that training ends.

use serde::{Deserialize, Serialize};

use crate::report::Evaluation;

/// The evaluation with the smallest loss so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// The step that it was made after.
    pub step: u64,
    /// The mean loss over the test's samples.
    pub test_loss: f64,
    /// Evaluations behind it, none of which was better.
    pub since: u64,
}

impl BestEvaluation {
    /// The best of those that `best` is the best of, and one more. A loss that is no finite number is never the best.
    pub(crate) fn with(
        best: Option<BestEvaluation>,
        step: u64,
        evaluation: &Evaluation,
    ) -> Option<BestEvaluation> {
        let loss = evaluation.loss().filter(|loss| loss.is_finite());
        match (best, loss) {
            (Some(best), Some(test_loss)) if test_loss < best.test_loss => {
                Some(BestEvaluation { step, test_loss, since: 0 })
            }
            (Some(best), _) => Some(BestEvaluation { since: best.since + 1, ..best }),
            (None, loss) => loss.map(|test_loss| BestEvaluation { step, test_loss, since: 0 }),
        }
    }
}

/// Ends training when the loss of the evaluations has not fallen for some time (`--early-stop`).
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// Evaluations behind the best one.
    pub(crate) most: u64,
    pub(crate) best: Option<BestEvaluation>,
}

impl Patience {
    /// Takes up the evaluation after `step`: true if it is the last.
    pub(crate) fn is_over(&mut self, step: u64, evaluation: &Evaluation) -> bool {
        self.best = BestEvaluation::with(self.best.take(), step, evaluation);
        self.best.as_ref().is_some_and(|best| best.since >= self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(loss: f64) -> Evaluation {
        [("loss".to_string(), loss)].into_iter().collect()
    }

    #[test]
    fn training_ends_when_so_many_evaluations_were_no_better() {
        let mut patience = Patience { most: 2, best: None };
        let losses = [3.0, 2.0, f64::NAN, 1.0, f64::INFINITY, 1.5];
        let ends: Vec<bool> = (1..)
            .zip(losses)
            .map(|(step, loss)| patience.is_over(10 * step, &evaluation(loss)))
            .collect();
        assert_eq!(ends, [false, false, false, false, false, true]);
        let best = patience.best.unwrap();
        assert_eq!((best.step, best.test_loss, best.since), (40, 1.0, 2));
    }
}
