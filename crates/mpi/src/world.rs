//! All processes that `mpirun` started together, and what they tell each other before they have anything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mpi::Threading;
use mpi::environment::{Universe, initialize_with_threading, library_version};
use tensorwire_base::Deadline;

use crate::calls::{Communicator, InPlace};
use crate::error::MpiError;

/// MPI_COMM_WORLD, as this process sees it. There is one, for the life of the process.
///
/// Dropped without [`World::close`], as after an error, it leaves MPI as it is: to finalize would be to wait
/// for processes that may never come. `mpirun` then ends the job when this process ends.
#[derive(Debug)]
pub struct World {
    own: Communicator,
    rank: usize,
    size: usize,
    pub(crate) in_place: InPlace,
    library: String,
    /// Open ones.
    pub(crate) groups: Arc<AtomicUsize>,
    universe: Leaked,
}

/// Finalizes MPI when it is taken, and never when it is dropped.
struct Leaked(std::mem::ManuallyDrop<Universe>);

impl World {
    /// Opens MPI. All processes do, and none of them for itself: what MPI waits for in this call has no deadline but
    /// `mpirun`'s.
    ///
    /// # Errors
    /// When it was opened before, or is a library that this one does not know.
    pub fn open(deadline: Deadline) -> Result<World, MpiError> {
        let (universe, provided) =
            initialize_with_threading(Threading::Serialized).ok_or(MpiError::Opened)?;
        let universe = Leaked(std::mem::ManuallyDrop::new(universe));
        if provided < Threading::Serialized {
            return Err(MpiError::OneThread);
        }
        let library = library_version().unwrap_or_default();
        let in_place = InPlace::of(&library)?;
        let own = Communicator::of_world(deadline)?;
        let (rank, size, groups) = (own.rank()?, own.size()?, Arc::default());
        Ok(World { own, rank, size, in_place, library, groups, universe })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// What the library calls itself: the first line of its version.
    pub fn library(&self) -> &str {
        self.library.lines().next().unwrap_or_default().trim_matches('\0')
    }

    /// `root`'s bytes, for everybody: where a launcher is, and its key. The others' own are looked at by nobody.
    ///
    /// # Errors
    /// When the others do not come before the deadline. So everywhere below.
    pub fn broadcast(
        &self,
        root: usize,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, MpiError> {
        let length = self.own.tell(root, &word(bytes.len()))?.finish(deadline)?.into;
        let mut own = if self.rank == root { bytes.to_vec() } else { Vec::new() };
        own.resize(words(&length).next().unwrap_or_default(), 0);
        Ok(self.own.tell(root, &own)?.finish(deadline)?.into)
    }

    /// Everybody's bytes, by rank, each of its own length.
    pub fn all_gather(&self, bytes: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, MpiError> {
        let lengths = self.own.all_gather(&word(bytes.len()))?.finish(deadline)?.into;
        let lengths: Vec<usize> = words(&lengths).collect();
        let longest = lengths.iter().copied().max().unwrap_or_default();
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let all = self.own.all_gather(&padded)?.finish(deadline)?.into;
        let blocks = (0..lengths.len()).map(|rank| &all[rank * longest..(rank + 1) * longest]);
        Ok(blocks.zip(lengths).map(|(block, length)| block[..length].to_vec()).collect())
    }

    /// Waits until everybody has come here.
    pub fn barrier(&self, deadline: Deadline) -> Result<(), MpiError> {
        self.own.barrier()?.finish(deadline)
    }

    /// Leaves in good order, with all others.
    pub fn close(self, deadline: Deadline) -> Result<(), MpiError> {
        let groups = self.groups.load(Ordering::Relaxed);
        if groups > 0 {
            return Err(MpiError::InUse { groups });
        }
        // finalizing waits for the others, and has no deadline
        self.barrier(deadline)?;
        let World { own, universe, .. } = self;
        own.free()?;
        drop(std::mem::ManuallyDrop::into_inner(universe.0));
        Ok(())
    }

    pub(crate) fn communicator(&self) -> &Communicator {
        &self.own
    }
}

/// A length as it is told.
pub(crate) fn word(length: usize) -> [u8; 8] {
    // fits: usize is 64 bits wide
    (length as u64).to_le_bytes()
}

pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    // fits: it was a length
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize)
}

impl std::fmt::Debug for Leaked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Universe").finish_non_exhaustive()
    }
}
