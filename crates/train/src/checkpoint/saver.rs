//! One process's share of checkpoints: its variables are copied between two steps, and a thread of its own writes them while
//! training goes on.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_tensor::DType;

use super::{CheckpointFolder, FileState, ShardPiece, ShardReport, write_shard};
use crate::whole_file;

/// Of this thread alone: 19 is the most that a process may be nice by.
const LEAST_PRIORITY: i32 = 19;
/// Checkpoints of which a file is written while nobody puts them together. Those of a launcher that lives wait for a moment each; where
/// one is missing that is 2 hours and 40 minutes of one every ten.
const WAIT_MAX: usize = 16;
/// Places of variables begin at a multiple of this: a cache line.
const ALIGNMENT: usize = 64;
/// What is copied at a time; by several threads if there are several of them.
const PIECE: usize = 4 << 20;
/// More threads than that copy no faster: memory is what they wait for.
const COPIERS_MAX: usize = 4;

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
    /// Where variables are copied to, in their order, while nothing is being written.
    room: Vec<Buffer>,
    /// Brings it, before the first time.
    made: Option<Receiver<Vec<Buffer>>>,
}

/// A variable as it was between two steps.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) whole: Vec<usize>,
    pub(crate) first_element: usize,
    pub(crate) bytes: Held,
}

/// The bytes of a variable that is to be written.
#[derive(Debug)]
pub(crate) enum Held {
    Apart(Vec<u8>),
    /// In memory that is used again.
    Room(Buffer),
}

#[derive(Debug)]
struct Work {
    step: u64,
    partial: PathBuf,
    shard: String,
    variables: Vec<Captured>,
    /// Not too many of them wait to be put together, as where a launcher was killed and none has come: a disk is not to fill up.
    has_room: bool,
}

#[derive(Debug)]
struct Done {
    report: ShardReport,
    room: Vec<Buffer>,
}

impl Saver {
    /// One that writes files of this name, of variables of these sizes in bytes. Its thread makes room for them first, so that no
    /// step waits for fresh memory.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(
        folder: CheckpointFolder,
        shard: &str,
        sizes: Vec<usize>,
    ) -> std::io::Result<Saver> {
        Saver::spawn(folder, shard, sizes, |done| done)
    }

    /// As [`Saver::start`], for whoever does not look again: its thread tells what became of a file, and keeps no room.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn telling(
        folder: CheckpointFolder,
        shard: &str,
        mut tell: impl FnMut(&ShardReport) + Send + 'static,
    ) -> std::io::Result<Saver> {
        Saver::spawn(folder, shard, Vec::new(), move |done| {
            tell(&done.report);
            done
        })
    }

    fn spawn(
        folder: CheckpointFolder,
        shard: &str,
        sizes: Vec<usize>,
        mut finish: impl FnMut(Done) -> Done + Send + 'static,
    ) -> std::io::Result<Saver> {
        let (work, inbox) = sync_channel::<Work>(1);
        let (say, done) = sync_channel(1);
        let (give, made) = sync_channel(1);
        let write = move || {
            // what computes goes first; a system that refuses has it share
            let _ = rustix::process::setpriority_process(None, LEAST_PRIORITY);
            if give.send(room(&sizes)).is_err() {
                return;
            }
            for work in inbox {
                if say.send(finish(write(work))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write)?;
        let (shard, work, thread) = (shard.to_string(), Some(work), Some(thread));
        let (is_busy, room, made) = (false, Vec::new(), Some(made));
        Ok(Saver { folder, shard, work, done, thread, is_busy, room, made })
    }

    /// Copies of variables, in their order, in memory that is used again where there is room for them.
    pub(crate) fn copy(&mut self, variables: &[&[u8]]) -> Vec<Held> {
        if let Some(made) = self.made.take() {
            self.room = made.recv().unwrap_or_default();
        }
        let fits = |(room, bytes): (&Buffer, &&[u8])| room.bytes() == bytes.len();
        let room = std::mem::take(&mut self.room);
        let has_room = room.len() == variables.len() && room.iter().zip(variables).all(fits);
        let mut guards = Vec::with_capacity(room.len());
        if has_room {
            // nobody else has it
            guards.extend(room.iter().map_while(|room| room.write().ok()));
        }
        if guards.len() < variables.len() {
            return variables.iter().map(|bytes| Held::Apart(bytes.to_vec())).collect();
        }
        let pieces = guards
            .iter_mut()
            .zip(variables)
            .flat_map(|(to, from)| to.chunks_mut(PIECE).zip(from.chunks(PIECE)));
        copy_all(pieces.collect());
        drop(guards);
        room.into_iter().map(Held::Room).collect()
    }

    /// Begins to write a checkpoint. The one before must be done.
    pub(crate) fn write(&mut self, step: u64, variables: Vec<Captured>) {
        let (partial, shard) = (self.folder.partial(step), self.shard.clone());
        let has_room = self.folder.has_room(step, &shard, WAIT_MAX);
        let work = Work { step, partial, shard, variables, has_room };
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
        self.room = done.room;
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

/// Room for variables of these sizes, every page of it touched; none if the system has no memory for it.
fn room(sizes: &[usize]) -> Vec<Buffer> {
    let mut end = 0;
    let place = |bytes: &usize| {
        let place = Place { offset: end, bytes: *bytes };
        end += bytes.next_multiple_of(ALIGNMENT);
        place
    };
    let places: Vec<Place> = sizes.iter().map(place).collect();
    let Ok(slab) = Slab::anonymous(end) else { return Vec::new() };
    let Ok(arena) = Arena::new(&slab, &places) else { return Vec::new() };
    let room = arena.into_buffers();
    room.iter().filter_map(|room| room.write().ok()).for_each(|mut bytes| bytes.fill(0));
    room
}

/// Copies pieces, by several threads if there are several.
fn copy_all(pieces: Vec<(&mut [u8], &[u8])>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bytes: usize = pieces.iter().map(|(to, _)| to.len()).sum();
    let copiers = cores.min(COPIERS_MAX).min(bytes / PIECE).max(1);
    let pieces = Mutex::new(pieces.into_iter());
    let next = || pieces.lock().next();
    let copy = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..copiers {
            // a thread that the system has not leaves its share to the others
            let _ = std::thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

fn write(work: Work) -> Done {
    let Work { step, partial, shard, variables, has_room } = work;
    let path = partial.join(&shard);
    let write_now = || {
        let written =
            whole_file::make_folders(&partial).and_then(|()| write_all(&path, &variables));
        written.map_err(|error| format!("{}: {error}", path.display()))
    };
    let written = match has_room {
        true => write_now(),
        false => Err(format!("{WAIT_MAX} before it wait for a launcher to put them together")),
    };
    let room = variables.into_iter().filter_map(|variable| match variable.bytes {
        Held::Room(room) => Some(room),
        Held::Apart(_) => None,
    });
    Done { report: ShardReport { step, shard, written }, room: room.collect() }
}

fn write_all(path: &Path, variables: &[Captured]) -> std::io::Result<FileState> {
    let mut guards = Vec::with_capacity(variables.len());
    for variable in variables {
        guards.push(match &variable.bytes {
            Held::Apart(_) => None,
            Held::Room(room) => Some(room.read().map_err(std::io::Error::other)?),
        });
    }
    let pieces = variables.iter().zip(&guards).map(|(variable, guard)| ShardPiece {
        name: &variable.name,
        dtype: variable.dtype,
        dims: &variable.dims,
        whole: &variable.whole,
        first_element: variable.first_element,
        bytes: match (&variable.bytes, guard) {
            (Held::Apart(bytes), _) => bytes,
            (Held::Room(_), Some(guard)) => guard,
            (Held::Room(_), None) => &[],
        },
    });
    write_shard(path, &pieces.collect::<Vec<ShardPiece<'_>>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_beside_whoever_asks_and_a_failure_is_told() {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        let mut saver = Saver::start(folder.clone(), "shard", vec![2]).unwrap();
        assert_eq!(saver.wait(), None);
        for step in [3, 4] {
            let bytes = saver.copy(&[&[1, 2]]).remove(0);
            assert!(matches!(bytes, Held::Room(_)), "in the room of the first");
            let (name, dtype, dims) = ("w".to_string(), DType::U8, vec![2]);
            let (whole, first_element) = (vec![2], 0);
            saver.write(step, vec![Captured { name, dtype, dims, whole, first_element, bytes }]);
            let report = saver.wait().unwrap();
            assert_eq!((report.step, report.shard.as_str()), (step, "shard"));
            report.written.unwrap();
            assert!(folder.partial(step).join("shard").exists());
        }
        // nobody puts them together: there are two
        for step in 5..5 + WAIT_MAX as u64 {
            saver.write(step, Vec::new());
            assert_eq!(saver.wait().unwrap().written.is_ok(), step < 3 + WAIT_MAX as u64, "{step}");
        }
        let mut last = Saver::start(folder.clone().of_steps(99), "shard", vec![]).unwrap();
        for (step, is_written) in [(98, false), (99, true)] {
            last.write(step, Vec::new());
            assert_eq!(last.wait().unwrap().written.is_ok(), is_written, "{step}: the job's last");
        }
        std::fs::remove_dir_all(folder.partial(3)).unwrap();
        saver.write(97, Vec::new());
        saver.wait().unwrap().written.unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let tell = move |report: &ShardReport| tell.send(report.clone()).unwrap();
        let mut telling = Saver::telling(folder, "other", tell).unwrap();
        telling.write(4, Vec::new());
        assert_eq!(told.recv().unwrap(), telling.wait().unwrap());
        let no_folder = place.path().join("file");
        std::fs::write(&no_folder, "").unwrap();
        let mut saver = Saver::start(CheckpointFolder::new(&no_folder), "shard", vec![]).unwrap();
        saver.write(5, Vec::new());
        let error = saver.wait().unwrap().written.unwrap_err();
        assert!(error.contains("file/step-00000005.partial/shard: "), "{error}");
    }
}
