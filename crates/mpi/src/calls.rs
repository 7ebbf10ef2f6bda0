//! The calls of MPI that are made here, all of which return at once. One that has begun something gives an
//! [`Operation`], which owns whatever MPI reads and writes until it is over. All `unsafe` of the room is here.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::raw::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mpi::ffi;
use tensorwire_base::Deadline;
use tensorwire_collectives::{ElementType, Plain, ReduceOp};
use tensorwire_memory::WriteLoan;

use crate::error::MpiError;

/// How often a wait asks again at once, giving other threads their turn, before it sleeps in between: MPI wakes nobody.
const ASKED_AT_ONCE: u32 = 20_000;
const NAP: Duration = Duration::from_micros(50);

/// MPI is opened such that its calls come from any thread, and never two at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator of our own, whose errors come back as codes.
pub(crate) struct Communicator(ffi::MPI_Comm);

// SAFETY: a communicator belongs to the process and not to a thread (MPI_THREAD_SERIALIZED), and calls take turns.
unsafe impl Send for Communicator {}
// SAFETY: as for Send: a handle is a value, and every call with it takes its turn.
unsafe impl Sync for Communicator {}

/// Something that MPI has begun, with what it needs for that.
pub(crate) struct Operation<H> {
    call: &'static str,
    request: ffi::MPI_Request,
    /// Given back once it is over. Before, nobody can say when MPI touches it: then it stays for good.
    held: ManuallyDrop<H>,
    is_over: bool,
}

// SAFETY: as for a communicator: MPI may be asked of a request by any thread, in turn.
unsafe impl<H: Send> Send for Operation<H> {}

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

/// Two blocks of bytes: what is sent, and what comes.
#[derive(Debug)]
pub(crate) struct Blocks {
    from: Vec<u8>,
    pub(crate) into: Vec<u8>,
}

/// A new communicator; where it is written must not move.
pub(crate) struct Duplicate(Box<ffi::MPI_Comm>);

// SAFETY: as for a communicator.
unsafe impl Send for Duplicate {}

impl<H> Operation<H> {
    /// # Safety
    /// `begin` gives MPI addresses of memory alone that `held` owns, that stay the same when `held` is moved, and
    /// that nobody else writes while `held` lives, or reads where MPI writes.
    unsafe fn begin(
        call: &'static str,
        held: H,
        begin: impl FnOnce(&mut H, *mut ffi::MPI_Request) -> c_int,
    ) -> Result<Operation<H>, MpiError> {
        let mut held = ManuallyDrop::new(held);
        let code = {
            let _turn = turn();
            // SAFETY: a constant of the library, which is set before anything can be called.
            let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
            match begin(&mut held, &mut request) {
                code if is_success(code) => {
                    return Ok(Operation { call, request, held, is_over: false });
                }
                code => code,
            }
        };
        // what failed to begin is not known to have begun nothing: `held` stays for good
        Err(failed(call, code))
    }

    /// Is it over? Moves whatever MPI has under way.
    pub(crate) fn test(&mut self) -> Result<bool, MpiError> {
        if self.is_over {
            return Ok(true);
        }
        let mut flag: c_int = 0;
        let code = {
            let _turn = turn();
            // SAFETY: the request is this operation's own and not over yet; MPI takes it back when it is.
            unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) }
        };
        if !is_success(code) {
            return Err(failed(self.call, code));
        }
        self.is_over = flag != 0;
        Ok(self.is_over)
    }

    /// What it needed, once it is over.
    pub(crate) fn into_held(mut self) -> Option<H> {
        if !self.is_over {
            return None;
        }
        self.is_over = false;
        // SAFETY: taken once: `drop`, which runs next, takes it from an operation that is over alone.
        Some(unsafe { ManuallyDrop::take(&mut self.held) })
    }

    /// Waits until it is over.
    pub(crate) fn finish(mut self, deadline: Deadline) -> Result<H, MpiError> {
        let call = self.call;
        let mut asked = 0;
        while !self.test()? {
            if deadline.passed() {
                return Err(MpiError::TimedOut { call });
            }
            pause(&mut asked, deadline);
        }
        self.into_held().ok_or(MpiError::TimedOut { call })
    }

    pub(crate) fn call(&self) -> &'static str {
        self.call
    }
}

impl<H> Drop for Operation<H> {
    fn drop(&mut self) {
        if self.is_over {
            // SAFETY: MPI is done with it, and `into_held` did not take it, or the operation would not say so.
            unsafe { ManuallyDrop::drop(&mut self.held) }
        }
    }
}

/// Between two questions: a moment for others, and a nap where there have been many.
pub(crate) fn pause(asked: &mut u32, deadline: Deadline) {
    *asked = asked.saturating_add(1);
    if *asked < ASKED_AT_ONCE {
        thread::yield_now();
    } else {
        thread::sleep(NAP.min(deadline.remaining()));
    }
}

impl Communicator {
    /// A duplicate of the one of all processes; whoever opened MPI has not called anything yet.
    pub(crate) fn of_world(deadline: Deadline) -> Result<Communicator, MpiError> {
        // SAFETY: a constant of the library, which is open.
        let world = Communicator(unsafe { ffi::RSMPI_COMM_WORLD });
        let own = world.duplicate()?.finish(deadline)?.communicator();
        let code = {
            let _turn = turn();
            // SAFETY: a communicator of our own, and a constant of the library.
            unsafe { ffi::MPI_Comm_set_errhandler(own.0, ffi::RSMPI_ERRORS_RETURN) }
        };
        if is_success(code) { Ok(own) } else { Err(failed("MPI_Comm_set_errhandler", code)) }
    }

    pub(crate) fn rank(&self) -> Result<usize, MpiError> {
        // SAFETY: a live communicator, and a number to write to.
        self.number("MPI_Comm_rank", |comm, number| unsafe { ffi::MPI_Comm_rank(comm, number) })
    }

    pub(crate) fn size(&self) -> Result<usize, MpiError> {
        // SAFETY: a live communicator, and a number to write to.
        self.number("MPI_Comm_size", |comm, number| unsafe { ffi::MPI_Comm_size(comm, number) })
    }

    fn number(
        &self,
        call: &'static str,
        ask: impl FnOnce(ffi::MPI_Comm, *mut c_int) -> c_int,
    ) -> Result<usize, MpiError> {
        let mut number: c_int = 0;
        let code = {
            let _turn = turn();
            ask(self.0, &mut number)
        };
        match usize::try_from(number) {
            Ok(number) if is_success(code) => Ok(number),
            _ => Err(failed(call, code)),
        }
    }

    /// The same processes, whose operations meet none of this one.
    pub(crate) fn duplicate(&self) -> Result<Operation<Duplicate>, MpiError> {
        // SAFETY: a constant of the library.
        let held = Duplicate(Box::new(unsafe { ffi::RSMPI_COMM_NULL }));
        // SAFETY: MPI writes to a box of `held`.
        unsafe {
            Operation::begin("MPI_Comm_idup", held, |held, request| {
                ffi::MPI_Comm_idup(self.0, &mut *held.0, request)
            })
        }
    }

    /// Gives a communicator back, which every process does.
    pub(crate) fn free(mut self) -> Result<(), MpiError> {
        let code = {
            let _turn = turn();
            // SAFETY: a communicator of our own, over which nothing is under way, and which is not used again.
            unsafe { ffi::MPI_Comm_free(&mut self.0) }
        };
        if is_success(code) { Ok(()) } else { Err(failed("MPI_Comm_free", code)) }
    }

    pub(crate) fn barrier(&self) -> Result<Operation<()>, MpiError> {
        // SAFETY: there is no memory.
        unsafe {
            Operation::begin("MPI_Ibarrier", (), |(), request| ffi::MPI_Ibarrier(self.0, request))
        }
    }

    /// Everybody's `bytes`, as many from each, one behind the other.
    pub(crate) fn all_gather(&self, bytes: &[u8]) -> Result<Operation<Blocks>, MpiError> {
        let into = vec![0; bytes.len() * self.size()?];
        let (count, _) = (count(bytes.len())?, count(into.len())?);
        let held = Blocks { from: bytes.to_vec(), into };
        // SAFETY: MPI reads and writes the two blocks of `held`, which are of these sizes.
        unsafe {
            Operation::begin("MPI_Iallgather", held, |held, request| {
                let (from, into) = (start(&mut held.from).cast_const(), start(&mut held.into));
                let bytes = ffi::RSMPI_UINT8_T;
                ffi::MPI_Iallgather(from, count, bytes, into, count, bytes, self.0, request)
            })
        }
    }

    /// `root`'s bytes for everybody, who have as many.
    pub(crate) fn tell(&self, root: usize, bytes: &[u8]) -> Result<Operation<Blocks>, MpiError> {
        let (count, root) = (count(bytes.len())?, count(root)?);
        let held = Blocks { from: Vec::new(), into: bytes.to_vec() };
        // SAFETY: MPI reads or writes a block of `held`, which is of this size.
        unsafe {
            Operation::begin("MPI_Ibcast", held, |held, request| {
                let into = start(&mut held.into);
                ffi::MPI_Ibcast(into, count, ffi::RSMPI_UINT8_T, root, self.0, request)
            })
        }
    }
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
        let root = self::count(root)?;
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
        let root_number = self::count(root)?;
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

impl Duplicate {
    pub(crate) fn communicator(self) -> Communicator {
        Communicator(*self.0)
    }
}

/// What MPI is told instead of an address: "where the result goes". A macro, with a value for each library.
#[derive(Clone, Copy)]
pub(crate) struct InPlace(*const c_void);

// SAFETY: it points nowhere: a value that a library compares with.
unsafe impl Send for InPlace {}
// SAFETY: as for Send.
unsafe impl Sync for InPlace {}

impl InPlace {
    /// That of the library which calls itself so.
    pub(crate) fn of(library: &str) -> Result<InPlace, MpiError> {
        let value = match library {
            _ if library.contains("Open MPI") => 1,
            _ if ["MPICH", "Intel(R) MPI", "MVAPICH"].iter().any(|name| library.contains(name)) => {
                usize::MAX
            }
            _ => return Err(MpiError::UnknownLibrary { library: library.to_string() }),
        };
        Ok(InPlace(std::ptr::without_provenance(value)))
    }
}

/// Of nothing, no address: that of an empty vector may be what means "in place".
fn start(bytes: &mut [u8]) -> *mut c_void {
    if bytes.is_empty() { std::ptr::null_mut() } else { bytes.as_mut_ptr().cast() }
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

fn count(bytes: usize) -> Result<c_int, MpiError> {
    c_int::try_from(bytes).map_err(|_| MpiError::TooLarge { bytes })
}

fn counts(of: impl Iterator<Item = usize>) -> Result<Vec<c_int>, MpiError> {
    of.map(count).collect()
}

fn is_success(code: c_int) -> bool {
    i64::from(code) == i64::from(ffi::MPI_SUCCESS)
}

fn failed(call: &'static str, code: c_int) -> MpiError {
    let mut text = [0u8; 1024];
    let mut length: c_int = 0;
    let told = {
        let _turn = turn();
        // SAFETY: more room than any library's MPI_MAX_ERROR_STRING asks for.
        unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) }
    };
    let text = usize::try_from(length).ok().and_then(|length| text.get(..length));
    let text = text.filter(|_| is_success(told)).map(String::from_utf8_lossy);
    MpiError::Failed { call, why: text.map_or(format!("error {code}"), |text| text.to_string()) }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").finish_non_exhaustive()
    }
}

impl<H> fmt::Debug for Operation<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("call", &self.call).finish_non_exhaustive()
    }
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace").finish_non_exhaustive()
    }
}
