//! What there is of a job that ends before its time. Who tells of it gives the words for what a user can do.

use crate::checkpoint::{CheckpointConfig, CheckpointFolder};
use crate::job::Prepared;

/// What a job keeps on the way.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The folder of its checkpoints.
    folder: Option<CheckpointFolder>,
    keeps_any: bool,
    /// Steps that an earlier job made.
    begun: u64,
}

/// What is there, or lost, when a job ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Its newest checkpoint is of this step.
    Checkpoint(u64),
    NoCheckpointYet,
    /// So many steps.
    Lost(u64),
    /// There is nothing to lose.
    Nothing,
}

impl Kept {
    pub fn new(prepared: &Prepared) -> Kept {
        let checkpoint = prepared.config.checkpoint.as_ref();
        Kept {
            folder: checkpoint.map(|CheckpointConfig { path, .. }| CheckpointFolder::new(path)),
            keeps_any: checkpoint.is_some() || prepared.config.store.snapshot.is_some(),
            begun: prepared.steps_done(),
        }
    }

    pub fn folder(&self) -> Option<&CheckpointFolder> {
        self.folder.as_ref()
    }

    /// Looks for what there is behind the last step that all have finished.
    pub fn left(&self, finished: u64) -> Left {
        let newest = self.folder.as_ref().map(|folder| folder.found().unwrap_or_default());
        match newest.as_deref() {
            Some([newest, ..]) => Left::Checkpoint(newest.step),
            Some([]) => Left::NoCheckpointYet,
            None if self.keeps_any || finished <= self.begun => Left::Nothing,
            None => Left::Lost(finished - self.begun),
        }
    }
}

impl Left {
    /// Says it: `resume` is what goes on from a checkpoint, and `checkpoint` what would have kept the steps. None if there is
    /// nothing to say.
    pub fn told(self, resume: &str, checkpoint: &str) -> Option<String> {
        match self {
            Left::Checkpoint(step) => Some(format!(
                "the newest checkpoint is of step {step}: {resume} goes on from there"
            )),
            Left::NoCheckpointYet => Some("there is no checkpoint yet".to_string()),
            Left::Lost(1) => Some(format!("1 step is lost, which {checkpoint} would have kept")),
            Left::Lost(steps) => {
                Some(format!("{steps} steps are lost, which {checkpoint} would have kept"))
            }
            Left::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_kept_is_named_and_else_what_is_lost() {
        let empty = tempfile::tempdir().unwrap();
        let told = |folder: Option<&Path>, keeps_any, begun, finished| {
            let kept = Kept { folder: folder.map(CheckpointFolder::new), keeps_any, begun };
            kept.left(finished).told("--resume", "--checkpoint")
        };
        let lost = |begun, finished| told(None, false, begun, finished);
        assert_eq!(lost(0, 0), None);
        assert_eq!(lost(0, 1).unwrap(), "1 step is lost, which --checkpoint would have kept");
        assert_eq!(lost(7, 9).unwrap(), "2 steps are lost, which --checkpoint would have kept");
        // by snapshots of the store
        assert_eq!(told(None, true, 0, 9), None);
        assert_eq!(told(Some(empty.path()), true, 0, 9).unwrap(), "there is no checkpoint yet");
        std::fs::create_dir(empty.path().join("step-00000008")).unwrap();
        let kept = "the newest checkpoint is of step 8: --resume goes on from there";
        assert_eq!(told(Some(empty.path()), true, 0, 9).unwrap(), kept);
    }
}
