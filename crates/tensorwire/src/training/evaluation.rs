//! A job that trains nothing: what saved weights are worth.

use tensorwire_train::EvaluationSummary;

use super::Training;
use crate::error::Result;
use crate::program;

impl Training {
    /// Evaluates the weights of [`Training::load`] with the test's samples, in this process alone, and trains nothing.
    ///
    /// As [`Training::run`], it ends the process where that stands still for good.
    ///
    /// # Errors
    /// When there is nothing to load or to test with, or the weights are of another model.
    pub fn evaluate(self) -> Result<EvaluationSummary> {
        Ok(EvaluationSummary::evaluate(self.config, &self.workload, &program::say_or_end)?)
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_nn::{Batch, Model, Outputs, Scope};
    use tensorwire_zoo::data::{SampleKind, Source};

    use super::*;
    use crate::strategies::Local;

    struct OneLayer;

    impl Model for OneLayer {
        fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> tensorwire_nn::Result<Outputs> {
            let x = s.flatten("flat", batch.input("input")?)?;
            let logits = s.linear("output", x, batch.classes()?)?;
            Ok(Outputs::classification(logits, batch.labels()?))
        }
    }

    fn training() -> Training {
        let source: Source = "digits".parse().unwrap();
        let digits = SampleKind::Images { dims: [8, 8, 1], classes: 10 };
        let training = Training::new(OneLayer, source.open(digits, 1).unwrap());
        training.strategy(Local { replicas: 2 }).batch(8).threads(1)
    }

    #[test]
    fn saved_weights_are_worth_what_their_job_said_and_need_something_to_load() {
        let folder = tempfile::tempdir().unwrap();
        let (file, kept) = (folder.path().join("w.safetensors"), folder.path().join("kept"));
        let trained = training().steps(4).save(&file).checkpoint(&kept, 2).run().unwrap();
        for load in [file, kept] {
            let found = training().load(load).evaluate().unwrap();
            assert_eq!((found.test_loss, found.samples), (trained.test_loss, 359));
            assert_eq!(found.test_accuracy, trained.test_accuracy);
            assert_eq!(found.weights_sha256, trained.weights_sha256);
        }
        let refused = training().evaluate().unwrap_err().to_string();
        assert!(refused.starts_with("there are no weights to evaluate; give --load"), "{refused}");
    }
}
