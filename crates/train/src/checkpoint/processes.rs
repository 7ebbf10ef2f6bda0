//! Keeps a job out of a folder of checkpoints where processes of another still run whose launcher was killed, and wait for another
//! (`--launcher-patience`): each of them holds a file there.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tensorwire_base::Deadline;

use super::CheckpointError;
use super::folder::{CheckpointFolder, ENDS_WITHIN, LOOK_AGAIN};

/// What the processes hold.
const FILE: &str = ".processes";

/// That a process which may outlive its launcher works in a folder. It ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    /// Locked, for any number of processes.
    _file: File,
}

impl ProcessLock {
    /// None where the folder is not there, or its file system knows no locks: nobody is kept out then.
    pub(crate) fn hold(folder: &CheckpointFolder) -> Option<ProcessLock> {
        let path = folder.path().join(FILE);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(ProcessLock { _file: file })
    }
}

/// The file of a job that was launched; it goes with its launcher, unless processes hold it.
#[derive(Debug)]
pub(crate) struct ProcessFile {
    path: PathBuf,
}

impl ProcessFile {
    /// The one in a folder whose processes this launcher knows, and has taken over or ended.
    pub(crate) fn of(folder: &CheckpointFolder) -> ProcessFile {
        ProcessFile { path: folder.path().join(FILE) }
    }

    /// The one in a folder in which no process works. Those that are ending are waited for.
    ///
    /// # Errors
    /// When there are some.
    pub(crate) fn alone(folder: &CheckpointFolder) -> Result<ProcessFile, CheckpointError> {
        let file = ProcessFile::of(folder);
        let patience = Deadline::after(ENDS_WITHIN);
        while is_held(&file.path) {
            if patience.passed() {
                return Err(CheckpointError::HasProcesses { path: folder.path().to_path_buf() });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(file)
    }
}

impl Drop for ProcessFile {
    fn drop(&mut self) {
        if !is_held(&self.path) {
            // there may be none
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_held(path: &Path) -> bool {
    let Ok(file) = File::options().read(true).write(true).open(path) else { return false };
    let alone = flock(&file, FlockOperation::NonBlockingLockExclusive);
    alone.is_err_and(|error| error == Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_begins_where_processes_work_and_the_file_goes_with_the_last() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        drop(ProcessFile::alone(&folder).unwrap());
        let held = [ProcessLock::hold(&folder).unwrap(), ProcessLock::hold(&folder).unwrap()];
        let refused = ProcessFile::alone(&folder).unwrap_err();
        assert!(matches!(refused, CheckpointError::HasProcesses { .. }), "{refused}");
        let file = place.path().join(FILE);
        assert!(file.exists(), "it is theirs");
        let of_launcher = ProcessFile::of(&folder);
        drop(held);
        drop(of_launcher);
        assert!(!file.exists());
        let nowhere = CheckpointFolder::new(place.path().join("none"));
        assert!(ProcessLock::hold(&nowhere).is_none());
        drop(ProcessFile::alone(&nowhere).unwrap());
    }
}
