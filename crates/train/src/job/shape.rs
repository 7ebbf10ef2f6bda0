//! What the data decide about a job, and whether a member has the same.

use serde::{Deserialize, Serialize};
use tensorwire_nn::{Data, Description};

use crate::checkpoint::SampleCounts;
use crate::classes;
use crate::config::ConfigError;

/// What the data decide about the graph; members that need no data get it from the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobShape {
    pub(super) samples: Description,
    pub(super) counts: SampleCounts,
    pub(super) steps: u64,
    /// Those of them that were made before the checkpoint that the job goes on from.
    #[serde(default)]
    pub(super) done: u64,
    pub(super) steps_per_epoch: u64,
    /// How often the model is evaluated, batch by batch, when all of the test is.
    pub(super) test_batches: u64,
    /// Of the names of the classes.
    #[serde(default)]
    pub(super) classes_sha256: Option<String>,
}

impl JobShape {
    /// Fails if these are other data than those that the job was planned for: members would each take other samples.
    pub(super) fn check(&self, data: &Data) -> Result<(), ConfigError> {
        let (samples, counts) = (data.train.describe(), SampleCounts::of(data));
        if classes::sha256(data) != self.classes_sha256 {
            return Err(ConfigError::ClassesChanged);
        }
        let (known, found) = match (samples == self.samples, counts == self.counts) {
            (true, true) => return Ok(()),
            (true, false) => (self.counts.to_string(), counts.to_string()),
            (false, _) => (self.samples.to_string(), samples.to_string()),
        };
        Err(ConfigError::DataChanged { known, found })
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_nn::{Dataset, Result, Sample};

    use super::*;

    /// So many samples of so many numbers.
    struct Numbers(usize, usize);

    impl Dataset for Numbers {
        fn describe(&self) -> Description {
            Description::new().input("input", tensorwire_nn::DType::I64, &[self.1])
        }

        fn len(&self) -> usize {
            self.0
        }

        fn get(&self, _: usize, _: &mut Sample<'_>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_member_that_finds_more_samples_or_others_does_not_train_on_them() {
        let data =
            |train, test, numbers| Data::from((Numbers(train, numbers), Numbers(test, numbers)));
        let known = data(90, 9, 2);
        let shape = JobShape {
            samples: known.train.describe(),
            counts: SampleCounts::of(&known),
            steps: 1,
            done: 0,
            steps_per_epoch: 1,
            test_batches: 1,
            classes_sha256: None,
        };
        assert!(shape.check(&data(90, 9, 2)).is_ok());
        let said = |found: &Data| shape.check(found).unwrap_err().to_string();
        let text = said(&data(91, 9, 2));
        assert!(text.contains("91 samples and 9 of a test here, 90 samples and 9 of a"), "{text}");
        assert!(said(&data(90, 8, 2)).contains("8 of a test here"));
        let other = data(90, 9, 3);
        assert!(said(&other).contains(&other.train.describe().to_string()));
        let named = JobShape { classes_sha256: Some("0".to_string()), ..shape.clone() };
        let error = named.check(&known).unwrap_err();
        assert!(matches!(error, ConfigError::ClassesChanged), "{error}");
    }
}
