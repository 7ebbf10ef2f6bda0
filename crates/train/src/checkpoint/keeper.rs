//! Puts a checkpoint together from what the processes say of their files: once all are written it appears, and old ones go. On
//! a thread of its own, as a disk may take any time. A checkpoint that fails is a warning, and training goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{
    CheckpointConfig, CheckpointFolder, CheckpointState, DataPosition, FileState, ShardReport,
};

/// Whoever starts a job has one. When it is dropped, what is complete is there.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// None while it is being dropped.
    reports: Option<Sender<ShardReport>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread knows.
struct Work {
    config: CheckpointConfig,
    folder: CheckpointFolder,
    /// The files that make a checkpoint.
    shards: BTreeSet<String>,
    /// Of a checkpoint without files.
    job: CheckpointState,
    /// What was said, by step.
    open: BTreeMap<u64, BTreeMap<String, Result<FileState, String>>>,
}

impl Keeper {
    /// One for a job that is `job` at step 0, whose checkpoints have these files. Removes what an earlier job has left half
    /// written.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(
        config: &CheckpointConfig,
        shards: BTreeSet<String>,
        job: CheckpointState,
    ) -> std::io::Result<Keeper> {
        let (reports, inbox) = channel();
        let (config, folder) = (config.clone(), CheckpointFolder::new(&config.path));
        let work = Work { config, folder, shards, job, open: BTreeMap::new() };
        work.folder.remove_partial();
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(|| work.run(inbox))?;
        Ok(Keeper { reports: Some(reports), thread: Some(thread) })
    }

    /// A process said this of its file.
    pub(crate) fn add(&self, report: ShardReport) {
        if let Some(reports) = &self.reports {
            // it ends with this alone
            let _ = reports.send(report);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.reports = None;
        if let Some(thread) = self.thread.take() {
            // it has warned of what went wrong
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(mut self, inbox: Receiver<ShardReport>) {
        for ShardReport { step, shard, written } in inbox {
            if !self.shards.contains(&shard) {
                tracing::warn!("{shard} is none of a checkpoint's files here");
                continue;
            }
            let said = self.open.entry(step).or_default();
            said.insert(shard, written);
            if said.len() == self.shards.len()
                && let Some(said) = self.open.remove(&step)
            {
                self.complete(step, said);
            }
        }
        // a process ended before it had written its own
        self.folder.remove_partial();
    }

    fn complete(&self, step: u64, said: BTreeMap<String, Result<FileState, String>>) {
        let files: Result<BTreeMap<String, FileState>, String> =
            said.into_iter().map(|(shard, written)| Ok((shard, written?))).collect();
        let published = files.and_then(|files| self.publish(step, files));
        if let Err(why) = published {
            tracing::warn!(
                "no checkpoint of step {step}: {why}; training goes on, and the last good one stays"
            );
            // also of the files of others that were written
            let _ = std::fs::remove_dir_all(self.folder.partial(step));
            return;
        }
        if let Err(error) = self.folder.prune(step, self.config.keep) {
            let path = self.folder.path().display();
            tracing::warn!("cannot remove old checkpoints from {path}: {error}");
        }
    }

    fn publish(&self, step: u64, files: BTreeMap<String, FileState>) -> Result<(), String> {
        let per_epoch = self.job.position.steps_per_epoch.max(1);
        let position = DataPosition {
            epoch: step / per_epoch,
            step: step % per_epoch,
            steps_per_epoch: per_epoch,
        };
        let state = CheckpointState { step, position, files, ..self.job.clone() };
        let published = self.folder.publish(&state);
        published.map(drop).map_err(|error| format!("{}: {error}", self.folder.path().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::super::{FoundCheckpoint, write_shard};
    use super::*;

    fn report(folder: &CheckpointFolder, step: u64, shard: &str) -> ShardReport {
        let partial = folder.partial(step);
        std::fs::create_dir_all(&partial).unwrap();
        let written = write_shard(&partial.join(shard), &[]).unwrap();
        ShardReport { step, shard: shard.to_string(), written: Ok(written) }
    }

    #[test]
    fn a_checkpoint_is_there_once_all_have_written_and_else_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { keep: 2, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        std::fs::create_dir_all(folder.partial(2)).unwrap();
        let shards: BTreeSet<String> = ["a", "b"].map(str::to_string).into();
        let keeper = Keeper::start(&config, shards, state()).unwrap();
        assert!(!folder.partial(2).exists(), "an earlier job left it");
        for step in [10, 20, 30] {
            keeper.add(report(&folder, step, "b"));
            keeper.add(report(&folder, step, "a"));
        }
        // one has no room, one is killed
        keeper.add(report(&folder, 40, "a"));
        let written = Err("no space".to_string());
        keeper.add(ShardReport { step: 40, shard: "b".to_string(), written });
        keeper.add(report(&folder, 50, "a"));
        drop(keeper);
        let names = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["step-00000020", "step-00000030"]);
        let found = FoundCheckpoint::at(place.path().join("step-00000030")).unwrap();
        let position = found.verified().unwrap().position;
        assert_eq!((position.epoch, position.step), (2, 8));
    }
}
