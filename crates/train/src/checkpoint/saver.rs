//! One process's share of checkpoints: its variables are copied between two steps, and a thread of its own writes them while
//! training goes on.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tensorwire_tensor::DType;

use super::{CheckpointFolder, ShardPiece, ShardReport, write_shard};

/// Of this thread alone: 19 is the most that a process may be nice by.
const LEAST_PRIORITY: i32 = 19;

/// Writes a process's files, one after the other. When it is dropped, the one under way is written first.
#[derive(Debug)]
pub(crate) struct Saver {
    folder: CheckpointFolder,
    shard: String,
    /// None while it is being dropped.
    work: Option<SyncSender<Work>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// A file is being written.
    is_busy: bool,
    /// Buffers of the last one, to be filled again.
    spare: Vec<Vec<u8>>,
}

/// A variable as it was between two steps.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) whole: Vec<usize>,
    pub(crate) first_element: usize,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
struct Work {
    step: u64,
    partial: PathBuf,
    shard: String,
    variables: Vec<Captured>,
}

#[derive(Debug)]
struct Done {
    report: ShardReport,
    buffers: Vec<Vec<u8>>,
}

impl Saver {
    /// One that writes files of this name.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(folder: CheckpointFolder, shard: &str) -> std::io::Result<Saver> {
        Saver::spawn(folder, shard, |done| done)
    }

    /// As [`Saver::start`], for whoever does not look again: its thread tells what became of a file, and keeps no buffers.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn telling(
        folder: CheckpointFolder,
        shard: &str,
        mut tell: impl FnMut(&ShardReport) + Send + 'static,
    ) -> std::io::Result<Saver> {
        Saver::spawn(folder, shard, move |done| {
            tell(&done.report);
            Done { buffers: Vec::new(), ..done }
        })
    }

    fn spawn(
        folder: CheckpointFolder,
        shard: &str,
        mut finish: impl FnMut(Done) -> Done + Send + 'static,
    ) -> std::io::Result<Saver> {
        let (work, inbox) = sync_channel::<Work>(1);
        let (say, done) = sync_channel(1);
        let write = move || {
            // what computes goes first; a system that refuses has it share
            let _ = rustix::process::setpriority_process(None, LEAST_PRIORITY);
            for work in inbox {
                if say.send(finish(write(work))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write)?;
        let (shard, work, thread) = (shard.to_string(), Some(work), Some(thread));
        Ok(Saver { folder, shard, work, done, thread, is_busy: false, spare: Vec::new() })
    }

    /// A copy of `bytes`, in memory that is used again.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Begins to write a checkpoint. The one before must be done.
    pub(crate) fn write(&mut self, step: u64, variables: Vec<Captured>) {
        let (partial, shard) = (self.folder.partial(step), self.shard.clone());
        let work = Work { step, partial, shard, variables };
        self.is_busy = self.work.as_ref().is_some_and(|thread| thread.send(work).is_ok());
    }

    /// What became of the file that is being written, if that is known already.
    pub(crate) fn finished(&mut self) -> Option<ShardReport> {
        let done = self.done.try_recv().ok()?;
        Some(self.take(done))
    }

    /// The same, once it is known; none if nothing is being written.
    pub(crate) fn wait(&mut self) -> Option<ShardReport> {
        if !self.is_busy {
            return None;
        }
        let done = self.done.recv().ok()?;
        Some(self.take(done))
    }

    fn take(&mut self, done: Done) -> ShardReport {
        self.is_busy = false;
        self.spare = done.buffers;
        // the first variable takes the last buffer, which was the first
        self.spare.reverse();
        done.report
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // it has said what there was to say
            let _ = thread.join();
        }
    }
}

fn write(work: Work) -> Done {
    let Work { step, partial, shard, variables } = work;
    let pieces = variables.iter().map(|variable| ShardPiece {
        name: &variable.name,
        dtype: variable.dtype,
        dims: &variable.dims,
        whole: &variable.whole,
        first_element: variable.first_element,
        bytes: &variable.bytes,
    });
    let pieces: Vec<ShardPiece<'_>> = pieces.collect();
    let path = partial.join(&shard);
    let written = std::fs::create_dir_all(&partial).and_then(|()| write_shard(&path, &pieces));
    let written = written.map_err(|error| format!("{}: {error}", path.display()));
    let buffers = variables.into_iter().map(|variable| variable.bytes).collect();
    Done { report: ShardReport { step, shard, written }, buffers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_beside_whoever_asks_and_a_failure_is_told() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        let mut saver = Saver::start(folder.clone(), "shard").unwrap();
        assert_eq!(saver.wait(), None);
        for step in [3, 4] {
            let bytes = saver.copy(&[1, 2]);
            let (name, dtype, dims) = ("w".to_string(), DType::U8, vec![2]);
            let (whole, first_element) = (vec![2], 0);
            saver.write(step, vec![Captured { name, dtype, dims, whole, first_element, bytes }]);
            let report = saver.wait().unwrap();
            assert_eq!((report.step, report.shard.as_str()), (step, "shard"));
            report.written.unwrap();
            assert!(folder.partial(step).join("shard").exists());
        }
        let (tell, told) = std::sync::mpsc::channel();
        let tell = move |report: &ShardReport| tell.send(report.clone()).unwrap();
        let mut telling = Saver::telling(folder, "other", tell).unwrap();
        telling.write(4, Vec::new());
        assert_eq!(told.recv().unwrap(), telling.wait().unwrap());
        let no_folder = place.path().join("file");
        std::fs::write(&no_folder, "").unwrap();
        let mut saver = Saver::start(CheckpointFolder::new(&no_folder), "shard").unwrap();
        saver.write(5, Vec::new());
        let error = saver.wait().unwrap().written.unwrap_err();
        assert!(error.contains("file/step-00000005.partial/shard: "), "{error}");
    }
}
