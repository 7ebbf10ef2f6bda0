//! Checkpoints of a whole job: a folder a step, with a file of tensors for each process that owns variables, and what the
//! job was. Written beside training, whole or not at all; read by any number of processes. Knows not who trains.

mod average;
mod folder;
mod keeper;
mod kept;
#[cfg(test)]
mod power_loss;
mod processes;
mod recipe;
mod resume;
mod saver;
mod shard;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorwire_launch::Role;
use tensorwire_nn::Data;

use crate::best::BestEvaluation;
use crate::strategy::Strategy;
use crate::weights::WeightsError;

pub(crate) use folder::Claim;
pub use folder::{CheckpointFolder, FoundCheckpoint};
pub(crate) use keeper::{Evaluated, Keeper};
pub(crate) use kept::{Kept, OwnVariable, kept, own_variables, plain_name};
pub(crate) use processes::{ProcessFile, ProcessLock};
pub(crate) use recipe::recipe;
pub use resume::Resumed;
pub(crate) use resume::{Behind, Now, choose, is_fresh};
pub(crate) use saver::{Captured, Held, Saver};
pub(crate) use shard::fuzz_shards;
pub(crate) use shard::{ShardIndex, ShardPiece, write_shard};

/// Where checkpoints go, and when (`--checkpoint`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointConfig {
    /// The folder that each gets a folder of its own in. On several hosts all must reach it.
    pub path: PathBuf,
    /// Steps between two; none: one at the end of each epoch. The last step has one in any case.
    pub every: Option<u64>,
    /// How many stay; the oldest go.
    pub keep: u64,
    /// There is one after each evaluation, too, and the one whose was best stays in any case.
    #[serde(default)]
    pub best: bool,
}

impl CheckpointConfig {
    /// Checkpoints that stay where nothing else is said.
    pub const KEEP: u64 = 3;
    /// In the place of a folder to go on from: the one that checkpoints go to, if it has any.
    pub const AUTO: &str = "auto";

    /// One at the end of each epoch, of which the last 3 stay.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointConfig {
        let (path, keep) = (path.into(), CheckpointConfig::KEEP);
        CheckpointConfig { path, every: None, keep, best: false }
    }

    /// True if there is one after this step of a job of `steps`.
    pub(crate) fn is_due(&self, step: u64, steps_per_epoch: u64, steps: u64) -> bool {
        step == steps || step.is_multiple_of(self.every.unwrap_or(steps_per_epoch).max(1))
    }
}

/// What an earlier version had, which does not say it.
fn one_device() -> u32 {
    1
}

/// What the job of a checkpoint was, and how far it had come: `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Of tensorwire.
    pub version: String,
    /// The steps that were made.
    pub step: u64,
    /// How far they are in the data.
    pub position: DataPosition,
    pub seed: u64,
    pub model: String,
    pub data: String,
    pub strategy: Strategy,
    pub workers: u32,
    pub servers: u32,
    /// Samples per batch.
    pub batch: usize,
    /// Batches of a worker's device in a step.
    pub accumulate: usize,
    /// Devices of a worker.
    #[serde(default = "one_device")]
    pub devices: u32,
    /// How it learned, in words: what an option says, by what it says it of.
    #[serde(default)]
    pub recipe: BTreeMap<String, String>,
    /// Decay of the averages of its weights, if it has any: `NAME/average` beside each parameter.
    #[serde(default)]
    pub ema: Option<f64>,
    /// The best evaluation of the job so far.
    #[serde(default)]
    pub best: Option<BestEvaluation>,
    /// The loss over the test's samples behind this step, if it was evaluated there.
    #[serde(default)]
    pub test_loss: Option<f64>,
    /// The names of what is no weight but the optimizer's state, or a client's own beside the centre, in order.
    pub slots: Vec<String>,
    /// How many samples its data had; none: an earlier version did not say.
    #[serde(default)]
    pub samples: Option<SampleCounts>,
    /// The names of the classes of its data, by their numbers; none: they have numbers alone, or an earlier version did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
    /// By the name of a file beside this one.
    pub files: BTreeMap<String, FileState>,
}

/// How many samples data have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// None: they have no end.
    pub train: Option<u64>,
    /// None: there is no test.
    pub test: Option<u64>,
}

impl SampleCounts {
    pub(crate) fn of(data: &Data) -> SampleCounts {
        // fits: usize is 64 bits wide
        let train = data.train.samples().map(|samples| samples as u64);
        let test = data.test.as_ref().map(|test| test.test_samples() as u64);
        SampleCounts { train, test }
    }
}

impl fmt::Display for SampleCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.train {
            Some(train) => write!(f, "{train} samples")?,
            None => write!(f, "samples without an end")?,
        }
        self.test.map_or(Ok(()), |test| write!(f, " and {test} of a test"))
    }
}

/// A place in the order of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// Epochs that are over.
    pub epoch: u64,
    /// Steps that were made of the next, and all that it has.
    pub step: u64,
    pub steps_per_epoch: u64,
}

/// A file as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    pub bytes: u64,
    pub sha256: String,
}

/// What a process says once it has written its file of a checkpoint, or could not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    pub step: u64,
    /// The file's name.
    pub shard: String,
    pub written: Result<FileState, String>,
}

/// Why training cannot go on from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot read {path}: {source}; give the folder that --checkpoint was given")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} cannot be read: {source}; does its disk answer?")]
    Unread { path: PathBuf, source: io::Error },
    #[error("there is no checkpoint in {path}; give the folder that --checkpoint was given")]
    Empty { path: PathBuf },
    #[error("no checkpoint in {path} is whole: {damages}; name another folder, or remove these")]
    AllDamaged { path: PathBuf, damages: String },
    #[error(
        "{path} went while it was read: its job removes old ones (--keep); name its folder again, or have it keep more"
    )]
    Gone { path: PathBuf },
    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} is of another job than this: {differences}; resume with the model, type, optimizer and --ema that wrote it, or \
         if it is the same model take its weights alone: --load {path} without --resume"
    )]
    OtherJob { path: PathBuf, differences: String },
    #[error(
        "{path} has {step} steps, and training ends at step {steps}; give more --steps or --epochs"
    )]
    Done { path: PathBuf, step: u64, steps: u64 },
    #[error("{path} is no folder, and --checkpoint takes one; name another")]
    NoFolder { path: PathBuf },
    #[error(
        "{path} holds checkpoints of an earlier job; give --resume {path} to go on from them, or another folder"
    )]
    Taken { path: PathBuf },
    #[error(
        "another job keeps its checkpoints in {path} at this moment (tensorwire status); wait for its end, or name another folder"
    )]
    InUse { path: PathBuf },
    #[error(
        "processes of a job that keeps its checkpoints in {path} still run, or wait for another launcher: go on with them by the same \
         command on the host and with the XDG_RUNTIME_DIR it had first, or wait until they have ended (--launcher-patience)"
    )]
    HasProcesses { path: PathBuf },
    #[error(
        "no checkpoint can be written in {path}: {source}; name another folder by --checkpoint"
    )]
    Unusable { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl CheckpointError {
    /// True if a file could not be read.
    pub(crate) fn is_unread(&self) -> bool {
        match self {
            CheckpointError::Read { .. } | CheckpointError::Unread { .. } => true,
            CheckpointError::Weights(error) => matches!(error, WeightsError::Read { .. }),
            _ => false,
        }
    }
}

/// The name of the file that a process writes.
pub(crate) fn shard_file(role: Role) -> String {
    let (kind, number) = match role {
        Role::Worker(worker) => ("worker", worker),
        Role::Server(server) => ("server", server),
    };
    format!("shard-{kind}{number}.safetensors")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a job that has made no step.
    pub(crate) fn state() -> CheckpointState {
        CheckpointState {
            version: "1".to_string(),
            step: 0,
            position: DataPosition { epoch: 0, step: 0, steps_per_epoch: 11 },
            seed: 1,
            model: "mlp".to_string(),
            data: "digits".to_string(),
            strategy: Strategy::Ps,
            workers: 2,
            servers: 2,
            batch: 8,
            accumulate: 1,
            devices: 1,
            recipe: BTreeMap::new(),
            ema: None,
            best: None,
            test_loss: None,
            slots: vec!["w/velocity".to_string()],
            samples: Some(SampleCounts { train: Some(90), test: None }),
            class_names: None,
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn a_checkpoint_is_due_after_so_many_steps_or_an_epoch_and_in_the_end() {
        let every = |every| CheckpointConfig { every, ..CheckpointConfig::new("c") };
        let due = |config: &CheckpointConfig| -> Vec<u64> {
            (1..=10).filter(|step| config.is_due(*step, 3, 10)).collect()
        };
        assert_eq!(due(&every(Some(4))), [4, 8, 10]);
        assert_eq!(due(&every(None)), [3, 6, 9, 10]);
    }
}
