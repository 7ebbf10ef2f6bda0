//! Where a job begins: at its first values, behind a checkpoint that it is given, or behind its own when it is started again.

use std::collections::BTreeMap;
use std::path::Path;

use tensorwire_nn::Program;

use super::computing::recipe;
use super::{JobShape, Prepared};
use crate::checkpoint::{
    self, Behind, CheckpointConfig, CheckpointError, CheckpointFolder, Now, Resumed,
};
use crate::config::TrainConfig;

/// The checkpoint that a job goes on from, if it is to.
pub(super) fn resumed(
    config: &TrainConfig,
    program: &Program,
    shape: &JobShape,
) -> Result<Option<Resumed>, CheckpointError> {
    let own = config.checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_path());
    let is_auto = config.resumes_own();
    if let Some(path) = own {
        let is_same = |other: &Path| {
            path == other || std::fs::canonicalize(path).ok() == std::fs::canonicalize(other).ok()
        };
        if path.exists() && !path.is_dir() {
            return Err(CheckpointError::NoFolder { path: path.to_path_buf() });
        }
        let is_given = is_auto || config.resume.as_deref().is_some_and(is_same);
        // the newest stay, and would be those of the earlier job; what cannot be read, its writer will say
        if !is_given && !checkpoint::is_fresh(path).unwrap_or(true) {
            let is_claimed = CheckpointFolder::new(path).is_claimed();
            let path = path.to_path_buf();
            return Err(match is_claimed {
                true => CheckpointError::InUse { path },
                false => CheckpointError::Taken { path },
            });
        }
    }
    if is_auto {
        let Some(path) = own else { return Ok(None) };
        let newest = newest_before_the_end(path, config, program, shape)?;
        // none is a beginning of this job, which may be done and is made once more: of a longer one it is no part
        return match CheckpointFolder::new(path).newest() {
            Some(step) if newest.is_none() && step > shape.steps => {
                let (path, steps) = (path.to_path_buf(), shape.steps);
                Err(match CheckpointFolder::new(&path).is_claimed() {
                    true => CheckpointError::InUse { path },
                    false => CheckpointError::Done { path, step, steps },
                })
            }
            _ => Ok(newest),
        };
    }
    let Some(folder) = config.resume.as_deref() else { return Ok(None) };
    let kept = checkpoint::kept(program, &config.topology());
    let recipe = recipe(config, program);
    let now = shape.now(config, &recipe);
    let resumed = checkpoint::choose(folder, &kept, &now, Behind::Any)?;
    let (step, steps) = (resumed.state.step, shape.steps);
    if step >= steps {
        return Err(CheckpointError::Done { path: resumed.path, step, steps });
    }
    Ok(Some(resumed))
}

/// The newest of a job's own checkpoints that has steps left: the last ones are made once more where only the evaluation
/// behind them is missing.
fn newest_before_the_end(
    path: &Path,
    config: &TrainConfig,
    program: &Program,
    shape: &JobShape,
) -> Result<Option<Resumed>, CheckpointError> {
    if checkpoint::is_fresh(path)? {
        return Ok(None);
    }
    let (kept, behind) =
        (checkpoint::kept(program, &config.topology()), Behind::Before(shape.steps));
    let recipe = recipe(config, program);
    match checkpoint::choose(path, &kept, &shape.now(config, &recipe), behind) {
        Err(CheckpointError::Empty { .. }) => Ok(None),
        chosen => chosen.map(Some),
    }
}

impl JobShape {
    fn now<'a>(&self, config: &'a TrainConfig, recipe: &'a BTreeMap<String, String>) -> Now<'a> {
        Now { config, recipe, steps_per_epoch: self.steps_per_epoch, counts: self.counts }
    }
}

impl TrainConfig {
    /// True if the job goes on from what it has written itself, if that is anything.
    pub(crate) fn resumes_own(&self) -> bool {
        self.resume.as_deref().is_some_and(|path| path == Path::new(CheckpointConfig::AUTO))
    }
}

impl Prepared {
    /// The same job once more: from the newest checkpoint that it has written and has steps left, or from where it began.
    ///
    /// # Errors
    /// When the folder cannot be read, or none of those that are there is whole.
    pub(crate) fn again(&self) -> Result<Prepared, CheckpointError> {
        let Prepared { config, program, shape, .. } = self;
        // it is of the first steps
        let mut again =
            Prepared { config: TrainConfig { trace: None, ..config.clone() }, ..self.clone() };
        let Some(checkpoint) = &config.checkpoint else { return Ok(again) };
        // the job has made the folder: where that is not there, its disk is not
        CheckpointFolder::new(&checkpoint.path).found()?;
        let resumed = newest_before_the_end(&checkpoint.path, config, program, shape)?;
        if let Some(resumed) = resumed {
            again.shape.done = resumed.state.step;
            again.resumed = Some(resumed);
        }
        Ok(again)
    }
}
