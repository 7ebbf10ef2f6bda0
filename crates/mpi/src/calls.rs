//! The calls of MPI that are made here, all of which return at once. One that has begun something gives an
//! [`Operation`], which owns whatever MPI reads and writes until it is over. All `unsafe` of the room is here, and in
//! `calls/vectors.rs`, which has the operations on vectors.

mod vectors;

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::raw::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mpi::ffi;
use tensorwire_base::Deadline;

use crate::error::MpiError;
pub(crate) use vectors::Lent;

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

/// Two blocks of bytes: what is sent, and what comes.
#[derive(Debug)]
pub(crate) struct Blocks {
    from: Vec<u8>,
    pub(crate) into: Vec<u8>,
}

/// A new communicator, of which MPI has the address until it is made. Owned by a pointer: a box that is moved claims what is
/// in it for itself alone.
pub(crate) struct Duplicate(NonNull<ffi::MPI_Comm>);

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
        let held = Duplicate::new(unsafe { ffi::RSMPI_COMM_NULL });
        // SAFETY: MPI writes where `held` points, wherever that is moved.
        unsafe {
            Operation::begin("MPI_Comm_idup", held, |held, request| {
                ffi::MPI_Comm_idup(self.0, held.0.as_ptr(), request)
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

impl Duplicate {
    fn new(none: ffi::MPI_Comm) -> Duplicate {
        Duplicate(NonNull::from(Box::leak(Box::new(none))))
    }

    pub(crate) fn communicator(self) -> Communicator {
        // SAFETY: it came from a box, which `drop` alone takes back; MPI gave it up when its operation was over.
        Communicator(unsafe { self.0.read() })
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        // SAFETY: as it was leaked by `new`, once; an operation that is not over keeps what it holds for good.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
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

fn count(bytes: usize) -> Result<c_int, MpiError> {
    c_int::try_from(bytes).map_err(|_| MpiError::TooLarge { bytes })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri stops here where a box is moved whose address another writes by.
    #[test]
    fn what_is_written_behind_a_duplicate_that_was_moved_is_read_from_it() {
        // SAFETY: a number or a pointer, whichever library; all zeros are one of either.
        let none: ffi::MPI_Comm = unsafe { std::mem::zeroed() };
        let held = Duplicate::new(none);
        let written = held.0.as_ptr();
        let moved = Box::new(held);
        // SAFETY: it is alive, and nobody else uses what it points to; any bits are a number or a pointer.
        unsafe { written.write_bytes(1, 1) };
        // SAFETY: as above.
        assert_ne!(unsafe { moved.0.read() }, none);
    }
}
