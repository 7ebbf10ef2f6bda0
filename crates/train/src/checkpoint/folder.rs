//! The folder of checkpoints: which there are, whether one is whole, and how one appears at once and old ones go. Knows not
//! what is in a tensor.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, FlockOperation, flock};
use rustix::io::Errno;
use tensorwire_base::Deadline;

use super::shard::{ShardIndex, Value, file_state};
use tensorwire_nn::average_of;

use super::average::with_average;
use super::{CheckpointError, CheckpointState};
use crate::origin::WeightsOrigin;
use crate::whole_file::{self, REPLACED};

const STATE: &str = "state.json";
const PREFIX: &str = "step-";
/// The best of all, by another name.
const BEST: &str = "best";
/// How long a claim waits for a job that ends, and how often it looks.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(5);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often a folder is listed of which the job removes what is read.
const LISTS_MAX: usize = 20;
/// What is being written.
const PARTIAL: &str = ".partial";

/// A folder that checkpoints are in.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
    /// The job's last step, where that is known.
    last: Option<u64>,
}

/// That no other job writes checkpoints in a folder. It ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Locked.
    _folder: std::fs::File,
}

/// A checkpoint in a folder. It need not be whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCheckpoint {
    pub path: PathBuf,
    pub step: u64,
}

impl CheckpointFolder {
    /// The folder at `path`, which need not be there.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointFolder {
        CheckpointFolder { path: path.into(), last: None }
    }

    /// The same, of a job that has so many steps.
    pub(crate) fn of_steps(self, steps: u64) -> CheckpointFolder {
        CheckpointFolder { last: Some(steps), ..self }
    }

    /// True if a checkpoint of this step may be written: fewer than `most` of earlier ones have this file and wait to be put together,
    /// or the job ends with it.
    pub(super) fn has_room(&self, step: u64, shard: &str, most: usize) -> bool {
        let waits = |half: &u64| *half < step && self.partial(*half).join(shard).exists();
        self.last == Some(step) || self.half_written().into_iter().filter(waits).count() < most
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder this process's alone to write checkpoints in, for as long as the claim lives. The folder is made if it is
    /// not there. A job that is ending is waited for.
    ///
    /// # Errors
    /// When nothing can be written there, or another job has claimed it.
    pub(crate) fn claim(&self) -> Result<Claim, CheckpointError> {
        let unusable = |source| CheckpointError::Unusable { path: self.path.clone(), source };
        whole_file::make_folders(&self.path).map_err(unusable)?;
        let may_write = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::access(&self.path, may_write).map_err(|error| unusable(error.into()))?;
        let folder = std::fs::File::open(&self.path).map_err(unusable)?;
        let patience = Deadline::after(ENDS_WITHIN);
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if patience.passed() => {
                    return Err(CheckpointError::InUse { path: self.path.clone() });
                }
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOOK_AGAIN),
                claimed => {
                    if let Err(error) = claimed {
                        // a file system that knows no such locks keeps nobody out
                        let path = self.path.display();
                        tracing::debug!(%path, %error, "the folder is not locked");
                    }
                    return Ok(Claim { _folder: folder });
                }
            }
        }
    }

    /// True if a process has claimed it at this moment.
    pub(crate) fn is_claimed(&self) -> bool {
        let Ok(folder) = std::fs::File::open(&self.path) else { return false };
        let shared = flock(&folder, FlockOperation::NonBlockingLockShared);
        shared.is_err_and(|error| error == Errno::WOULDBLOCK)
    }

    /// Returns all that are there, the newest first.
    ///
    /// # Errors
    /// When the folder cannot be read, or is none.
    pub fn found(&self) -> Result<Vec<FoundCheckpoint>, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: self.path.clone(), source };
        if self.path.join(STATE).exists() {
            // it is one itself, perhaps by another name
            let path = std::fs::canonicalize(&self.path).map_err(failed)?;
            return Ok(vec![FoundCheckpoint::at(path)?]);
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            // what took its place may not have come
            let replaced = name
                .strip_suffix(REPLACED)
                .filter(|of| !self.path.join(format!("{PREFIX}{of}")).exists());
            let step = replaced.unwrap_or(name).parse().ok();
            found.extend(step.map(|step| FoundCheckpoint { path: entry.path(), step }));
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.step));
        Ok(found)
    }

    /// Returns the newest whose files are as they were written, and what its job was. Damaged ones are passed over with a warning.
    ///
    /// # Errors
    /// When there is none.
    pub fn newest_whole(&self) -> Result<(FoundCheckpoint, CheckpointState), CheckpointError> {
        let (path, mut damages, mut warned) = (self.path.clone(), Vec::new(), BTreeSet::new());
        let mut all = self.found()?.into_iter();
        let mut lists = 1;
        while let Some(found) = all.next() {
            let error = match found.verified() {
                Ok(state) => return Ok((found, state)),
                Err(error) => error,
            };
            if matches!(error, CheckpointError::Gone { .. }) && lists < LISTS_MAX {
                let listed = self.found()?;
                // its job has written newer ones since, unless it is listed as before
                if !listed.contains(&found) {
                    (all, lists) = (listed.into_iter(), lists + 1);
                    damages.clear();
                    continue;
                }
            }
            let damage = error.to_string();
            if warned.insert(damage.clone()) {
                tracing::warn!("{damage}; it is passed over");
            }
            damages.push(damage);
        }
        match damages.is_empty() {
            true => Err(CheckpointError::Empty { path }),
            false => Err(CheckpointError::AllDamaged { path, damages: damages.join("; ") }),
        }
    }

    /// The step of the newest.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.found().ok()?.first().map(|found| found.step)
    }

    /// Where the files of a checkpoint are written before it is there.
    pub(crate) fn partial(&self, step: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{step:08}{PARTIAL}"))
    }

    /// The steps whose checkpoints are being written, or were left half written.
    fn half_written(&self) -> Vec<u64> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let step = |entry: std::fs::DirEntry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(PARTIAL)?.parse().ok()
        };
        entries.filter_map(step).collect()
    }

    /// Removes a folder that is no checkpoint any more. By a name of its own meanwhile: what is under [`CheckpointFolder::partial`] is
    /// taken for one that is being written.
    fn remove(&self, path: &Path, step: u64) -> io::Result<()> {
        let gone = self.path.join(format!("{PREFIX}{step:08}.gone{PARTIAL}"));
        match std::fs::remove_dir_all(&gone) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::rename(path, &gone)?,
        }
        std::fs::remove_dir_all(&gone)
    }

    /// Removes what a job left half written that ended in the middle.
    pub(crate) fn remove_partial(&self) {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            let by = name.strip_suffix(REPLACED);
            let is_replaced = by.is_some_and(|by| self.path.join(by).exists());
            if is_replaced || name.ends_with(PARTIAL) {
                // what it holds is of no use; that it stays is worth no error
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Has a checkpoint appear whose files are all in [`CheckpointFolder::partial`]: `state` comes to them, and the whole
    /// gets its name, in the place of an older one of the same step.
    ///
    /// # Errors
    /// The first of writing, renaming and having the system keep it.
    pub(crate) fn publish(&self, state: &CheckpointState) -> io::Result<PathBuf> {
        let partial = self.partial(state.step);
        let text = serde_json::to_string_pretty(state)?;
        whole_file::write(&partial.join(STATE), |file| writeln!(file, "{text}"))?;
        let whole = self.path.join(format!("{PREFIX}{:08}", state.step));
        let replaces = whole.exists();
        if replaces {
            whole_file::exchange(&partial, &whole)?;
        } else {
            std::fs::rename(&partial, &whole)?;
        }
        whole_file::sync_folder(&self.path)?;
        if replaces {
            // that the older one stays for now is worth no error
            let _ = self.remove(&partial, state.step);
        }
        Ok(whole)
    }

    /// True if there is a checkpoint of this step.
    pub(crate) fn has(&self, step: u64) -> bool {
        self.path.join(format!("{PREFIX}{step:08}")).exists()
    }

    /// The step and the loss of the one that is marked as the best, if one is.
    pub(crate) fn best(&self) -> Option<(u64, f64)> {
        let path = std::fs::canonicalize(self.path.join(BEST)).ok()?;
        let step = FoundCheckpoint::at(&path).ok()?.step;
        let state: CheckpointState =
            serde_json::from_slice(&std::fs::read(path.join(STATE)).ok()?).ok()?;
        // an earlier version kept that of the best of all alone
        let of_best = state.best.filter(|best| best.step == step).map(|best| best.test_loss);
        Some((step, state.test_loss.or(of_best)?))
    }

    /// Gives the checkpoint of this step, if there is one, the name `best` beside its own.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn mark_best(&self, step: u64) -> io::Result<()> {
        if !self.has(step) {
            return Ok(());
        }
        let name = format!("{PREFIX}{step:08}");
        let staged = self.path.join(format!("{BEST}{PARTIAL}"));
        match std::fs::remove_file(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::os::unix::fs::symlink(&name, &staged)?,
        }
        std::fs::rename(&staged, self.path.join(BEST))?;
        // the one before may be removed now
        whole_file::sync_folder(&self.path)
    }

    /// Removes all but the newest `keep` up to this step, and `best`. Later ones are not of this job: it could not go on from
    /// them.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub(crate) fn prune(&self, step: u64, keep: u64, best: Option<u64>) -> io::Result<()> {
        let found = self.found().map_err(io::Error::other)?;
        // fits: a number of folders
        let old = found.iter().filter(|found| found.step <= step).skip(keep as usize);
        for found in old.filter(|found| Some(found.step) != best) {
            self.remove(&found.path, found.step)?;
        }
        Ok(())
    }
}

impl FoundCheckpoint {
    /// One whose folder is known.
    ///
    /// # Errors
    /// When the folder's name is none of a checkpoint.
    pub fn at(path: impl Into<PathBuf>) -> Result<FoundCheckpoint, CheckpointError> {
        let path: PathBuf = path.into();
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| name.strip_prefix(PREFIX)?.parse().ok()) {
            Some(step) => Ok(FoundCheckpoint { path, step }),
            None => {
                let reason = "a checkpoint's folder is called step-00000200".to_string();
                Err(CheckpointError::Damaged { path, reason })
            }
        }
    }

    /// Returns what its job was, once every file was read and is as it was written.
    ///
    /// # Errors
    /// What is missing or has changed, and when its job has removed it.
    pub fn verified(&self) -> Result<CheckpointState, CheckpointError> {
        self.read().map_err(|error| self.or_gone(error))
    }

    /// The error of reading it, or that it is not there any more.
    fn or_gone(&self, error: CheckpointError) -> CheckpointError {
        // a disk that does not answer says nothing of it
        match std::fs::symlink_metadata(&self.path) {
            Err(found) if found.kind() == io::ErrorKind::NotFound => {
                CheckpointError::Gone { path: self.path.clone() }
            }
            _ => error,
        }
    }

    fn damaged(&self, reason: String) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), reason }
    }

    fn failed(&self, name: &str, source: io::Error) -> CheckpointError {
        match is_missing(&source) {
            true => self.damaged(format!("{name}: {source}")),
            false => CheckpointError::Unread { path: self.path.join(name), source },
        }
    }

    /// What its job was, whatever became of its other files.
    pub(crate) fn state(&self) -> Result<CheckpointState, CheckpointError> {
        let text = std::fs::read(self.path.join(STATE));
        let text = text.map_err(|error| self.failed(STATE, error))?;
        let state: CheckpointState = serde_json::from_slice(&text)
            .map_err(|error| self.damaged(format!("{STATE} makes no sense: {error}")))?;
        match state.step == self.step {
            true => Ok(state),
            false => Err(self.damaged(format!("{STATE} is of step {}", state.step))),
        }
    }

    fn read(&self) -> Result<CheckpointState, CheckpointError> {
        let state = self.state()?;
        for (name, written) in &state.files {
            // nothing beside the folder is read
            let is_name = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
            if !is_name {
                return Err(self.damaged(format!("'{name}' is no name of a file")));
            }
            let found = file_state(&self.path.join(name));
            let found = found.map_err(|error| self.failed(name, error))?;
            if found != *written {
                let (found, wanted) = (found.bytes, written.bytes);
                let what = match found == wanted {
                    true => "its SHA-256 is another".to_string(),
                    false => format!("it has {found} bytes of {wanted}"),
                };
                return Err(self.damaged(format!("{name} is not as it was written: {what}")));
            }
        }
        Ok(state)
    }

    /// The tensors of one that was verified.
    pub(crate) fn index(&self, state: &CheckpointState) -> Result<ShardIndex, CheckpointError> {
        ShardIndex::open(&self.path, state.files.keys())
    }

    /// Writes all weights that it holds to one file, as `--save` does: everything but the optimizer's state, and averages in the
    /// place of the weights that they are of.
    ///
    /// # Errors
    /// When it is not whole, or the file cannot be written.
    pub fn convert(&self, to: &Path) -> Result<CheckpointState, CheckpointError> {
        let (state, image) = self.weights()?;
        crate::weights::save_image(to, &image, &WeightsOrigin::from(&state))?;
        Ok(state)
    }

    /// Returns what its job was, and the bytes of a file of its weights.
    ///
    /// # Errors
    /// When it is not whole.
    pub(crate) fn weights(&self) -> Result<(CheckpointState, Vec<u8>), CheckpointError> {
        let state = self.verified()?;
        self.image(state).map_err(|error| self.or_gone(error))
    }

    fn image(&self, state: CheckpointState) -> Result<(CheckpointState, Vec<u8>), CheckpointError> {
        let index = self.index(&state)?;
        let mut weights: Vec<(&str, &Value, Vec<u8>)> = Vec::new();
        for (name, value) in index.values().filter(|(name, _)| !state.is_slot(name)) {
            // fits: checked to be in files that are there
            let mut bytes = vec![0; value.bytes() as usize];
            index.read(name, 0, &mut bytes)?;
            let average = average_of(name);
            if let Some((decay, average)) =
                state.ema.zip(index.values().find(|(other, _)| **other == average))
            {
                let (name, of) = average;
                // fits: as above
                let mut kept = vec![0; of.bytes() as usize];
                index.read(name, 0, &mut kept)?;
                with_average((value.dtype, &mut bytes), (of.dtype, &kept), decay);
            }
            weights.push((name, value, bytes));
        }
        let tensors =
            weights.iter().map(|(name, value, bytes)| (*name, value.dtype, &*value.dims, &**bytes));
        let image = crate::weights::image(&self.path, tensors)?;
        Ok((state, image))
    }
}

/// True if a file is not there, or is none: another time it will not be either.
fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | InvalidData | UnexpectedEof)
}

impl CheckpointState {
    /// True if this is state of the optimizer.
    pub fn is_slot(&self, name: &str) -> bool {
        self.slots.binary_search_by(|slot| slot.as_str().cmp(name)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::super::{ShardPiece, write_shard};
    use super::*;
    use tensorwire_tensor::DType;

    /// A checkpoint with one file of one number.
    fn publish(folder: &CheckpointFolder, step: u64) -> PathBuf {
        let partial = folder.partial(step);
        std::fs::create_dir_all(&partial).unwrap();
        let piece = |name, bytes| ShardPiece {
            name,
            dtype: DType::U8,
            dims: &[1],
            whole: &[1],
            first_element: 0,
            bytes,
        };
        let value = [step as u8];
        let pieces = [piece("w", &value), piece("w/velocity", &[0])];
        let written = write_shard(&partial.join("shard"), &pieces).unwrap();
        let files = [("shard".to_string(), written)].into();
        folder.publish(&CheckpointState { step, files, ..state() }).unwrap()
    }

    #[test]
    fn a_folder_is_one_jobs_at_a_time_and_must_be_one_that_can_be_written() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path().join("new").join("one"));
        assert!(!folder.is_claimed());
        let claim = folder.claim().unwrap();
        assert!(folder.path().is_dir() && folder.is_claimed());
        let second = folder.claim().unwrap_err();
        assert!(matches!(second, CheckpointError::InUse { .. }), "{second}");
        drop(claim);
        assert!(!folder.is_claimed());
        drop(folder.claim().unwrap());
        // one of which a part is a file
        std::fs::write(place.path().join("file"), "x").unwrap();
        let none = CheckpointFolder::new(place.path().join("file/c")).claim().unwrap_err();
        assert!(matches!(none, CheckpointError::Unusable { .. }), "{none}");
    }

    #[test]
    fn what_its_job_removes_meanwhile_is_gone_and_not_damaged() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        publish(&folder, 5);
        let listed = folder.found().unwrap();
        publish(&folder, 6);
        folder.prune(6, 1, None).unwrap();
        let gone = [listed[0].verified().unwrap_err(), listed[0].weights().unwrap_err()];
        for error in gone {
            assert!(matches!(error, CheckpointError::Gone { .. }), "{error}");
        }
        // by name it would be found again
        assert_eq!(folder.newest_whole().unwrap().0.step, 6);
        let alone = CheckpointFolder::new(place.path().join("step-00000005"));
        assert!(matches!(alone.newest_whole(), Err(CheckpointError::Read { .. })));
    }

    #[test]
    fn what_a_job_left_half_written_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        let whole = publish(&folder, 5);
        std::fs::create_dir_all(folder.partial(6)).unwrap();
        std::fs::write(place.path().join("notes"), "of the user's").unwrap();
        folder.remove_partial();
        assert!(whole.exists() && place.path().join("notes").exists());
        assert!(!folder.partial(6).exists());
    }

    /// As on a file system that cannot exchange two folders.
    #[test]
    fn one_of_two_of_a_step_is_found_wherever_the_new_one_stopped_coming() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        let whole = publish(&folder, 5);
        let replaced = place.path().join("step-00000005.replaced");
        std::fs::rename(&whole, &replaced).unwrap();
        let kept = FoundCheckpoint { path: replaced.clone(), step: 5 };
        assert_eq!(folder.newest_whole().unwrap().0, kept);
        folder.remove_partial();
        assert!(replaced.exists(), "it is the only one");
        let whole = publish(&folder, 5);
        assert_eq!(folder.found().unwrap(), [FoundCheckpoint { path: whole.clone(), step: 5 }]);
        folder.remove_partial();
        assert!(!replaced.exists() && whole.exists());
        let newer = place.path().join("newer");
        std::fs::create_dir(&newer).unwrap();
        assert_eq!(whole_file::replace(&newer, &whole).unwrap(), replaced);
        assert!(replaced.join(STATE).exists() && !newer.exists() && whole.exists());
    }

    #[test]
    fn the_newest_stay_and_what_is_half_written_is_none() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        for step in [5, 10, 15, 20] {
            publish(&folder, step);
        }
        std::fs::create_dir_all(folder.partial(25)).unwrap();
        let steps = || folder.found().unwrap().iter().map(|f| f.step).collect::<Vec<_>>();
        assert_eq!(steps(), [20, 15, 10, 5]);
        // 20 is of a job that came further
        folder.prune(15, 2, None).unwrap();
        assert_eq!(steps(), [20, 15, 10]);
        folder.remove_partial();
        assert!(!folder.partial(25).exists());
        publish(&folder, 20);
        assert_eq!(steps(), [20, 15, 10], "in the place of the older one");
    }

    #[test]
    fn a_file_that_changed_is_named_and_the_weights_alone_are_converted() {
        let place = tempfile::tempdir().unwrap();
        let path = publish(&CheckpointFolder::new(place.path()), 7);
        let found = FoundCheckpoint::at(&path).unwrap();
        let to = place.path().join("weights");
        assert_eq!(found.convert(&to).unwrap().step, 7);
        let image = std::fs::read(&to).unwrap();
        let file = safetensors::SafeTensors::deserialize(&image).unwrap();
        assert_eq!((file.len(), file.tensor("w").unwrap().data()), (1, [7].as_slice()));
        let shard = path.join("shard");
        let whole = std::fs::read(&shard).unwrap();
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        for (bytes, what) in [(&other[..], "SHA-256"), (&whole[1..], "bytes of")] {
            std::fs::write(&shard, bytes).unwrap();
            let error = found.verified().unwrap_err().to_string();
            assert!(error.contains("shard is not as it was written"), "{error}");
            assert!(error.contains(what), "{error}");
        }
        std::fs::remove_file(path.join(STATE)).unwrap();
        assert!(found.verified().is_err());
        assert!(FoundCheckpoint::at(place.path()).is_err());
    }
}
