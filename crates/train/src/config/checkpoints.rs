//! Whether what a job is told of checkpoints makes sense.

use super::{ConfigError, TrainConfig};
use crate::checkpoint::CheckpointConfig;
use crate::strategy::Strategy;

impl TrainConfig {
    /// Checks whether there can be checkpoints, where some are asked for.
    pub(super) fn check_checkpoints(&self) -> Result<(), ConfigError> {
        if let Some(CheckpointConfig { every, keep, .. }) = &self.checkpoint {
            let counts = [("--checkpoint-every", every.unwrap_or(1)), ("--keep", *keep)];
            if let Some((option, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
                return Err(ConfigError::Zero { option });
            }
        }
        let keeps_best = self.checkpoint.as_ref().is_some_and(|config| config.best);
        if keeps_best && self.evaluate_every.is_none() {
            let (option, with) = ("--keep-best", "--val-every STEPS");
            return Err(ConfigError::Lacks { option, with });
        }
        if self.resumes_own() && self.checkpoint.is_none() {
            return Err(ConfigError::AutoWithoutCheckpoint);
        }
        // the first time it begins with the weights of a file
        if self.load.is_some() && self.resume.is_some() && !self.resumes_own() {
            return Err(ConfigError::LoadAndResume);
        }
        if self.restarts > 0 && self.strategy == Strategy::Local {
            return Err(ConfigError::RestartOfOneProcess);
        }
        if self.launcher_patience_ms.is_some() {
            let option = "--launcher-patience";
            if self.strategy == Strategy::Local {
                let used_by = "jobs of several processes, which --strategy local has not";
                return Err(ConfigError::Unused { option, used_by });
            }
            if self.checkpoint.is_none() {
                return Err(ConfigError::Lacks { option, with: "--checkpoint DIR" });
            }
        }
        self.check_sizes()?;
        let options =
            [("--checkpoint", self.checkpoint.is_some()), ("--resume", self.resume.is_some())];
        let Some((option, _)) = options.into_iter().find(|(_, given)| *given) else {
            return Ok(());
        };
        match self.store.snapshot {
            Some(_) => Err(ConfigError::CheckpointBesideSnapshot { option }),
            None => Ok(()),
        }
    }

    /// Checks how the number of workers may change.
    fn check_sizes(&self) -> Result<(), ConfigError> {
        let Some(fewest) = self.fewest_workers else { return Ok(()) };
        let (option, with) = ("--workers MIN..MAX", "--checkpoint DIR");
        if self.strategy == Strategy::Local {
            let used_by = "jobs of several processes, which --strategy local has not";
            return Err(ConfigError::Unused { option, used_by });
        }
        if !(1..=self.workers).contains(&fewest) {
            let range = "at least 1 and at most MAX";
            let option = "MIN of --workers MIN..MAX";
            return Err(ConfigError::OutOfRange { option, range, found: fewest.into() });
        }
        if self.checkpoint.is_none() {
            return Err(ConfigError::Lacks { option, with });
        }
        if fewest < self.workers && self.sizes().len() < 2 {
            return Err(ConfigError::NoSizes { fewest, most: self.workers });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{StoreConfig, tests::config};
    use super::*;

    #[test]
    fn every_strategy_has_checkpoints_and_a_snapshot_has_none() {
        let resume = Some(std::path::PathBuf::from("c"));
        for strategy in Strategy::ALL {
            let checkpoint = Some(CheckpointConfig::new("c"));
            let with = TrainConfig { strategy, checkpoint, resume: resume.clone(), ..config() };
            with.check().unwrap();
        }
        let store = StoreConfig { snapshot: resume.clone(), ..StoreConfig::default() };
        let strategy = Strategy::DistSgd;
        let found = TrainConfig { strategy, store, resume: resume.clone(), ..config() };
        let found = found.check().unwrap_err().to_string();
        assert!(found.starts_with("--resume goes without --snapshot: "), "{found}");
        let both = TrainConfig { load: resume.clone(), resume, ..config() };
        assert!(matches!(both.check(), Err(ConfigError::LoadAndResume)));
        let resume = Some(std::path::PathBuf::from(CheckpointConfig::AUTO));
        let auto = TrainConfig { resume, ..config() };
        assert!(matches!(auto.check(), Err(ConfigError::AutoWithoutCheckpoint)));
        let checkpoint = Some(CheckpointConfig::new("c"));
        TrainConfig { checkpoint, load: Some("w".into()), ..auto }.check().unwrap();
        let alone = TrainConfig { strategy: Strategy::Local, restarts: 1, ..config() };
        assert!(matches!(alone.check(), Err(ConfigError::RestartOfOneProcess)));
        let none = CheckpointConfig { keep: 0, ..CheckpointConfig::new("c") };
        let none = TrainConfig { checkpoint: Some(none), ..config() };
        assert_eq!(none.check().unwrap_err().to_string(), "--keep must be at least 1");
    }
}
