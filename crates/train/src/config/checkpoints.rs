//! Whether what a job is told of checkpoints makes sense.

use super::{ConfigError, TrainConfig};
use crate::checkpoint::CheckpointConfig;

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
            let (option, with) = ("--keep-best", "--val-every");
            return Err(ConfigError::Lacks { option, with });
        }
        if self.load.is_some() && self.resume.is_some() {
            return Err(ConfigError::LoadAndResume);
        }
        let options =
            [("--checkpoint", self.checkpoint.is_some()), ("--resume", self.resume.is_some())];
        let Some((option, _)) = options.into_iter().find(|(_, given)| *given) else {
            return Ok(());
        };
        let topology = self.topology();
        let found = if self.asynchronous {
            "--async".to_string()
        } else if topology.is_asynchronous() || topology.averaging.is_some() {
            self.strategy.name().to_string()
        } else if self.store.elastic {
            "--elastic".to_string()
        } else if self.store.snapshot.is_some() {
            "--snapshot".to_string()
        } else {
            return Ok(());
        };
        Err(ConfigError::CheckpointOutOfStep { option, found })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;
    use crate::strategy::Strategy;

    #[test]
    fn only_what_trains_in_step_has_checkpoints() {
        let with = |strategy| TrainConfig {
            strategy,
            checkpoint: Some(CheckpointConfig::new("c")),
            ..config()
        };
        for strategy in [Strategy::Local, Strategy::Ps, Strategy::AllReduce, Strategy::DistSgd] {
            with(strategy).check().unwrap();
        }
        for strategy in [Strategy::DistAsgd, Strategy::DistEsgd, Strategy::MpiEsgd] {
            let found = with(strategy).check().unwrap_err().to_string();
            assert!(found.contains(&format!("{} has no such moment", strategy.name())), "{found}");
        }
        let resume = Some("c".into());
        let found = TrainConfig { asynchronous: true, resume: resume.clone(), ..config() };
        let found = found.check().unwrap_err().to_string();
        assert!(found.starts_with("--resume is for training in step"), "{found}");
        let both = TrainConfig { load: resume.clone(), resume, ..config() };
        assert!(matches!(both.check(), Err(ConfigError::LoadAndResume)));
        let none = CheckpointConfig { keep: 0, ..CheckpointConfig::new("c") };
        let none = TrainConfig { checkpoint: Some(none), ..config() };
        assert_eq!(none.check().unwrap_err().to_string(), "--keep must be at least 1");
    }
}
