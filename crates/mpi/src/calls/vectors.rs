//! The calls of MPI on vectors, which are lent to it until it is done.

use std::os::raw::{c_int, c_void};

use mpi::ffi;
use tensorwire_collectives::{ElementType, Plain, ReduceOp};
use tensorwire_memory::WriteLoan;

use super::{Communicator, InPlace, Operation, count};
use crate::error::MpiError;

/// What an operation on a vector needs.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) vector: WriteLoan,
    /// Where the vectors of all members come.
    pub(crate) gathered: Option<WriteLoan>,
    /// By member: how many bytes or elements, and where they begin.
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    /// The same of what comes.
    counts_in: Vec<c_int>,
    starts_in: Vec<c_int>,
}

/// Operations on the first `bytes` of vectors. What every member has is as long, `pieces` are of bytes and lie in the
/// vector, and `in_place` is the library's.
impl Communicator {
    /// vector ← the sum or maximum of all.
    pub(crate) fn all_reduce(
        &self,
        vector: WriteLoan,
        bytes: usize,
        plain: Plain,
        in_place: InPlace,
    ) -> Result<Operation<Lent>, MpiError> {
        let (element, count) = elements(plain, within(&vector, bytes))?;
        // SAFETY: MPI reads and writes `count` elements, which lie in the vector, which is lent to this alone.
        unsafe {
            Operation::begin("MPI_Iallreduce", Lent::new(vector, None), |held, request| {
                let (from, into) = (in_place.0, held.vector.start().cast());
                ffi::MPI_Iallreduce(from, into, count, element, op(plain), self.0, request)
            })
        }
    }

    /// The root's vector ← the sum or maximum of all.
    pub(crate) fn reduce(
        &self,
        vector: WriteLoan,
        bytes: usize,
        plain: Plain,
        root: usize,
        in_place: Option<InPlace>,
    ) -> Result<Operation<Lent>, MpiError> {
        let (element, count) = elements(plain, within(&vector, bytes))?;
        let root = super::count(root)?;
        // SAFETY: as in `all_reduce`; who is not the root, and so not in place, has nothing written.
        unsafe {
            Operation::begin("MPI_Ireduce", Lent::new(vector, None), |held, request| {
                let own: *mut c_void = held.vector.start().cast();
                let (from, into) = match in_place {
                    Some(in_place) => (in_place.0, own),
                    None => (own.cast_const(), std::ptr::null_mut()),
                };
                ffi::MPI_Ireduce(from, into, count, element, op(plain), root, self.0, request)
            })
        }
    }

    /// The beginning of the vector ← this member's piece of the sum or maximum of all.
    pub(crate) fn reduce_scatter(
        &self,
        vector: WriteLoan,
        plain: Plain,
        pieces: &[(usize, usize)],
        in_place: InPlace,
    ) -> Result<Operation<Lent>, MpiError> {
        let (element, _) = elements(plain, pieces.iter().map(|(_, bytes)| bytes).sum())?;
        let mut held = Lent::new(vector, None);
        held.counts = counts(pieces.iter().map(|(_, bytes)| bytes / element_bytes(plain)))?;
        // SAFETY: as in `all_reduce`: the counts of all pieces together are not more than the vector's.
        unsafe {
            Operation::begin("MPI_Ireduce_scatter", held, |held, request| {
                let (from, into, counts) =
                    (in_place.0, held.vector.start().cast(), held.counts.as_ptr());
                let op = op(plain);
                ffi::MPI_Ireduce_scatter(from, into, counts, element, op, self.0, request)
            })
        }
    }

    /// Everybody's piece, each in its place of the vector.
    pub(crate) fn all_gather_pieces(
        &self,
        vector: WriteLoan,
        pieces: &[(usize, usize)],
        in_place: InPlace,
    ) -> Result<Operation<Lent>, MpiError> {
        let mut held = Lent::new(vector, None);
        held.counts = counts(pieces.iter().map(|(_, bytes)| *bytes))?;
        held.starts = counts(pieces.iter().map(|(start, _)| *start))?;
        // SAFETY: MPI reads and writes the pieces, which lie in the vector, which is lent to this alone.
        unsafe {
            Operation::begin("MPI_Iallgatherv", held, |held, request| {
                let (into, bytes) = (held.vector.start().cast(), ffi::RSMPI_UINT8_T);
                let (counts, starts) = (held.counts.as_ptr(), held.starts.as_ptr());
                let from = in_place.0;
                ffi::MPI_Iallgatherv(from, 0, bytes, into, counts, starts, bytes, self.0, request)
            })
        }
    }

    /// The root has everybody's piece, each in its place of the vector.
    pub(crate) fn gather_pieces(
        &self,
        vector: WriteLoan,
        pieces: &[(usize, usize)],
        root: usize,
        me: usize,
        in_place: InPlace,
    ) -> Result<Operation<Lent>, MpiError> {
        let mut held = Lent::new(vector, None);
        held.counts = counts(pieces.iter().map(|(_, bytes)| *bytes))?;
        held.starts = counts(pieces.iter().map(|(start, _)| *start))?;
        let (count, first) = (count(pieces[me].1)?, pieces[me].0);
        let root_number = super::count(root)?;
        // SAFETY: as in `all_gather_pieces`; who is not the root sends its piece, and has nothing written.
        unsafe {
            Operation::begin("MPI_Igatherv", held, |held, request| {
                let (own, bytes) = (held.vector.start(), ffi::RSMPI_UINT8_T);
                let (counts, starts) = (held.counts.as_ptr(), held.starts.as_ptr());
                let (from, into) = match root == me {
                    true => (in_place.0, own.cast()),
                    false => (own.add(first).cast_const().cast(), std::ptr::null_mut()),
                };
                ffi::MPI_Igatherv(
                    from,
                    count,
                    bytes,
                    into,
                    counts,
                    starts,
                    bytes,
                    root_number,
                    self.0,
                    request,
                )
            })
        }
    }

    /// Everybody's piece ← the same of the root's vector.
    pub(crate) fn scatter_pieces(
        &self,
        vector: WriteLoan,
        pieces: &[(usize, usize)],
        root: usize,
        me: usize,
        in_place: InPlace,
    ) -> Result<Operation<Lent>, MpiError> {
        let mut held = Lent::new(vector, None);
        held.counts = counts(pieces.iter().map(|(_, bytes)| *bytes))?;
        held.starts = counts(pieces.iter().map(|(start, _)| *start))?;
        let (count, first) = (count(pieces[me].1)?, pieces[me].0);
        let root_number = super::count(root)?;
        // SAFETY: as in `gather_pieces`, the other way: who is not the root has its piece written.
        unsafe {
            Operation::begin("MPI_Iscatterv", held, |held, request| {
                let (own, bytes) = (held.vector.start(), ffi::RSMPI_UINT8_T);
                let (counts, starts) = (held.counts.as_ptr(), held.starts.as_ptr());
                // MPI wants to write through what says "in place", and does not
                let (from, into) = match root == me {
                    true => (own.cast_const().cast(), in_place.0.cast_mut()),
                    false => (std::ptr::null(), own.add(first).cast()),
                };
                ffi::MPI_Iscatterv(
                    from,
                    counts,
                    starts,
                    bytes,
                    into,
                    count,
                    bytes,
                    root_number,
                    self.0,
                    request,
                )
            })
        }
    }

    /// Part j of the first half of the vector's first `bytes` to member j: the second half ← what came, by member.
    pub(crate) fn all_to_all(
        &self,
        vector: WriteLoan,
        bytes: usize,
        members: usize,
    ) -> Result<Operation<Lent>, MpiError> {
        let half = within(&vector, bytes) / 2;
        let count = count(half / members)?;
        assert!(bytes == 2 * members * (half / members), "{bytes} bytes for {members} members");
        // SAFETY: MPI reads the first half and writes the second, just checked, of a vector that is lent to this alone.
        unsafe {
            Operation::begin("MPI_Ialltoall", Lent::new(vector, None), |held, request| {
                let (from, bytes) = (held.vector.start(), ffi::RSMPI_UINT8_T);
                let (from, into) = (from.cast_const().cast(), from.add(half).cast());
                ffi::MPI_Ialltoall(from, count, bytes, into, count, bytes, self.0, request)
            })
        }
    }

    pub(crate) fn broadcast(
        &self,
        vector: WriteLoan,
        bytes: usize,
        root: usize,
    ) -> Result<Operation<Lent>, MpiError> {
        let (count, root) = (count(within(&vector, bytes))?, count(root)?);
        // SAFETY: MPI reads or writes bytes of the vector, which is lent to this alone.
        unsafe {
            Operation::begin("MPI_Ibcast", Lent::new(vector, None), |held, request| {
                let into = held.vector.start().cast();
                ffi::MPI_Ibcast(into, count, ffi::RSMPI_UINT8_T, root, self.0, request)
            })
        }
    }

    /// Sends each member its piece of the vector: gathered ← what each has of this member's, of so many bytes, one
    /// behind the other.
    pub(crate) fn exchange(
        &self,
        vector: WriteLoan,
        gathered: WriteLoan,
        pieces: &[(usize, usize)],
        bytes_in: usize,
    ) -> Result<Operation<Lent>, MpiError> {
        let size = pieces.len();
        let all = gathered.len();
        let mut held = Lent::new(vector, Some(gathered));
        held.counts = counts(pieces.iter().map(|(_, bytes)| *bytes))?;
        held.starts = counts(pieces.iter().map(|(start, _)| *start))?;
        held.counts_in = counts(std::iter::repeat_n(bytes_in, size))?;
        held.starts_in = counts((0..size).map(|member| member * bytes_in))?;
        assert!(size * bytes_in <= all, "{size} times {bytes_in} bytes in {all}");
        // SAFETY: MPI reads pieces of the vector, and writes into what is gathered, just checked; both are lent to
        // this alone, and the counts lie in vectors of `held`, whose contents stay where they are.
        unsafe {
            Operation::begin("MPI_Ialltoallv", held, |held, request| {
                let Lent { vector, gathered, counts, starts, counts_in, starts_in } = held;
                let into = gathered.as_mut().map_or(std::ptr::null_mut(), WriteLoan::start);
                let (from, bytes) = (vector.start().cast_const().cast(), ffi::RSMPI_UINT8_T);
                let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
                let (counts_in, starts_in) = (counts_in.as_ptr(), starts_in.as_ptr());
                let into = into.cast();
                ffi::MPI_Ialltoallv(
                    from, counts, starts, bytes, into, counts_in, starts_in, bytes, self.0, request,
                )
            })
        }
    }
}

impl Lent {
    fn new(vector: WriteLoan, gathered: Option<WriteLoan>) -> Lent {
        let none = Vec::new;
        let (counts, starts, counts_in, starts_in) = (none(), none(), none(), none());
        Lent { vector, gathered, counts, starts, counts_in, starts_in }
    }
}

fn element_bytes(plain: Plain) -> usize {
    match plain.element {
        ElementType::F32 => size_of::<f32>(),
        ElementType::F64 => size_of::<f64>(),
    }
}

/// So many bytes, which a vector has.
fn within(vector: &WriteLoan, bytes: usize) -> usize {
    assert!(bytes <= vector.len(), "{bytes} bytes of a vector of {}", vector.len());
    bytes
}

/// MPI's type, and how many of it are so many bytes.
fn elements(plain: Plain, bytes: usize) -> Result<(ffi::MPI_Datatype, c_int), MpiError> {
    let count = count(bytes / element_bytes(plain))?;
    // SAFETY: constants of the library.
    let element = unsafe {
        match plain.element {
            ElementType::F32 => ffi::RSMPI_FLOAT,
            ElementType::F64 => ffi::RSMPI_DOUBLE,
        }
    };
    Ok((element, count))
}

fn op(plain: Plain) -> ffi::MPI_Op {
    // SAFETY: constants of the library.
    unsafe {
        match plain.op {
            ReduceOp::Sum | ReduceOp::Mean => ffi::RSMPI_SUM,
            ReduceOp::Max => ffi::RSMPI_MAX,
        }
    }
}

fn counts(of: impl Iterator<Item = usize>) -> Result<Vec<c_int>, MpiError> {
    of.map(count).collect()
}
