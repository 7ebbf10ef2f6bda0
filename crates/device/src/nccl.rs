//! NCCL, loaded when it is wanted: communicators whose members are processes with a GPU each. What a stream is told of them goes
//! on by itself; every wait here polls, and ends at its deadline. A communicator that failed is aborted, so that the GPU comes
//! free of a peer that never answers, and does nothing any more. Knows no ranks of a job and not how an identifier travels.

#![allow(non_upper_case_globals, reason = "numbers have the library's names")]

pub mod sys;

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Clock, Deadline, LOADS_NOTHING};
use tensorwire_memory::DeviceWriteLoan;

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::libraries::{CudaLibrary, LibrarySearch};
use crate::stream::Stream;
use crate::wait::wait;
use sys::*;

/// The least version: communicators that do not block, as far as they are used.
const VERSION_MIN: NcclVersion = NcclVersion { major: 2, minor: 18, patch: 0 };
/// So long a communicator may take to leave in good order.
const LEAVE: Duration = Duration::from_secs(5);

/// The loaded library. It stays loaded: it has threads of its own.
pub struct Nccl {
    functions: NcclFunctions,
    version: NcclVersion,
    looked_for: String,
    _handle: ManuallyDrop<libloading::Library>,
}

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// By which the members of one communicator find each other: one of them makes it, and gives it to the others. Who has it can
/// become a member.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId(pub [u8; NCCL_UNIQUE_ID_BYTES]);

/// Elements of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclElement {
    F32,
    F64,
    BF16,
    /// To be broadcast, not to be reduced.
    Byte,
}

/// What becomes of what all members have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclReduction {
    Sum,
    Mean,
}

/// Why NCCL did not do what it was told to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    #[error(
        "NCCL cannot be loaded: {looked_for} ({reason}); install it (pip install nvidia-nccl-cu12), or name its folder (--cuda-libs)"
    )]
    Missing { looked_for: String, reason: String },
    #[error("{looked_for} has no function {function}: it is no NCCL, or an old one")]
    Function { looked_for: String, function: &'static str },
    #[error("{looked_for} is NCCL {found}; {needed} or newer is needed")]
    TooOld { looked_for: String, found: NcclVersion, needed: NcclVersion },
    #[error("{call} fails: {text} ({code}){}; {}", detail(.last), mend(*.code))]
    Call { call: &'static str, code: u32, text: String, last: String },
    #[error(
        "{what} by NCCL did not end within {waited_ms} ms: a member is late or gone; see what the others say"
    )]
    TimedOut { what: &'static str, waited_ms: u64 },
    #[error("the communicator failed before")]
    Aborted,
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl NcclError {
    /// True if this machine has no NCCL.
    pub fn is_absence(&self) -> bool {
        matches!(self, NcclError::Missing { .. })
    }

    /// True if another member failed, or does not come.
    pub fn is_of_others(&self) -> bool {
        matches!(self, NcclError::TimedOut { .. } | NcclError::Call { code: ncclRemoteError, .. })
    }
}

impl NcclElement {
    /// Returns the bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            NcclElement::F64 => 8,
            NcclElement::F32 => 4,
            NcclElement::BF16 => 2,
            NcclElement::Byte => 1,
        }
    }

    fn number(self) -> ncclDataType_t {
        match self {
            NcclElement::F32 => ncclFloat32,
            NcclElement::F64 => ncclFloat64,
            NcclElement::BF16 => ncclBfloat16,
            NcclElement::Byte => ncclUint8,
        }
    }
}

impl NcclId {
    /// As text, for who gives it to the others.
    pub fn word(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`NcclId::word`] has written; none, if it is something else.
    pub fn of_word(word: &str) -> Option<NcclId> {
        let digits: Option<Vec<u8>> =
            word.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
        let (pairs, odd) = digits.as_deref()?.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        bytes.try_into().ok().filter(|_| odd.is_empty()).map(NcclId)
    }
}

impl NcclReduction {
    fn number(self) -> ncclRedOp_t {
        match self {
            NcclReduction::Sum => ncclSum,
            NcclReduction::Mean => ncclAvg,
        }
    }
}

impl Nccl {
    /// Loads the library of that path, or of a name for which the dynamic linker looks: what
    /// [`LibrarySearch::find`](crate::LibrarySearch::find) returns.
    ///
    /// # Errors
    /// When there is none, or it is too old.
    pub fn open(library: &Path) -> Result<Arc<Nccl>, NcclError> {
        let looked_for = library.display().to_string();
        let missing = |reason| NcclError::Missing { looked_for: looked_for.clone(), reason };
        if let Some(program) = LOADS_NOTHING {
            return Err(missing(program.why.to_string()));
        }
        // SAFETY: a library's initialisers run: that NCCL's may is what a caller asks for who opens it.
        let handle = unsafe { libloading::Library::new(library) };
        let handle = handle.map_err(|error| missing(error.to_string()))?;
        let handle = ManuallyDrop::new(handle);
        // SAFETY: what the caller names is NCCL; it is never unloaded.
        let functions = unsafe { NcclFunctions::of(&handle) };
        let functions = functions.map_err(|function| {
            let looked_for = looked_for.clone();
            NcclError::Function { looked_for, function }
        })?;
        let mut number: c_int = 0;
        // SAFETY: there is room for the number.
        let status = unsafe { (functions.ncclGetVersion)(&mut number) };
        let found = NcclVersion::of(u32::try_from(number).unwrap_or(0));
        let nccl = Nccl { functions, version: found, looked_for, _handle: handle };
        nccl.check("ncclGetVersion", status, std::ptr::null_mut())?;
        if found < VERSION_MIN {
            let looked_for = nccl.looked_for;
            return Err(NcclError::TooOld { looked_for, found, needed: VERSION_MIN });
        }
        Ok(Arc::new(nccl))
    }

    /// Loads the first library that can be loaded of those that a search finds.
    ///
    /// # Errors
    /// When there is none, or it is too old.
    pub fn find(search: &LibrarySearch) -> Result<Arc<Nccl>, NcclError> {
        match search.find(CudaLibrary::Nccl) {
            Some(found) => Nccl::open(&found.path),
            None => Err(NcclError::Missing {
                looked_for: search.looked_for(CudaLibrary::Nccl),
                reason: "it is nowhere there".to_owned(),
            }),
        }
    }

    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// Returns what was loaded: a path, or the name that the dynamic linker looked for.
    pub fn looked_for(&self) -> &str {
        &self.looked_for
    }

    /// Makes the identifier of a communicator that is to be. Whoever makes it becomes a member, too.
    ///
    /// # Errors
    /// When there is no network interface that NCCL takes.
    pub fn make_id(&self) -> Result<NcclId, NcclError> {
        let mut id = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
        // SAFETY: there is room for the identifier.
        let status = unsafe { (self.functions.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", status, std::ptr::null_mut())?;
        Ok(NcclId(id.internal.map(|byte| byte.cast_unsigned())))
    }

    /// An error unless it went well, or goes on. `communicator`: one that lives, or null.
    fn check(
        &self,
        call: &'static str,
        code: ncclResult_t,
        communicator: ncclComm_t,
    ) -> Result<(), NcclError> {
        if code == ncclSuccess || code == ncclInProgress {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a constant string.
        let text = text_of(unsafe { (self.functions.ncclGetErrorString)(code) });
        // SAFETY: takes null, too, and returns a string of the library's that it keeps.
        let last = text_of(unsafe { (self.functions.ncclGetLastError)(communicator) });
        Err(NcclError::Call { call, code, text, last })
    }
}

/// A member of a communicator: this process, with one GPU.
#[derive(Debug)]
pub struct NcclCommunicator {
    nccl: Arc<Nccl>,
    device: Arc<Device>,
    /// None once it was aborted.
    handle: Option<Handle<ncclComm>>,
    rank: usize,
    size: usize,
}

impl NcclCommunicator {
    /// Becomes member `rank` of `size`, once the others do.
    ///
    /// # Errors
    /// When the others do not come before the deadline, or NCCL finds no way between their GPUs.
    pub fn join(
        nccl: &Arc<Nccl>,
        device: &Arc<Device>,
        id: &NcclId,
        (rank, size): (usize, usize),
        deadline: Deadline,
    ) -> Result<NcclCommunicator, NcclError> {
        let start_ns = Clock::now_ns();
        let number = |count: usize| c_int::try_from(count).unwrap_or(c_int::MAX);
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
        };
        let mut comm = std::ptr::null_mut();
        let unique = ncclUniqueId { internal: id.0.map(u8::cast_signed) };
        let status = device.in_context(|| {
            // SAFETY: there is room for the pointer; the configuration has as many bytes as it says.
            unsafe {
                (nccl.functions.ncclCommInitRankConfig)(
                    &mut comm,
                    number(size),
                    unique,
                    number(rank),
                    &mut config,
                )
            }
        })?;
        let handle = (!comm.is_null()).then_some(Handle(comm));
        let (nccl, device) = (nccl.clone(), device.clone());
        let mut joined = NcclCommunicator { nccl, device, handle, rank, size };
        let checked = joined.nccl.check("ncclCommInitRankConfig", status, comm);
        let joining = "joining a communicator";
        checked.map_err(|error| joined.failed(error))?;
        joined.until(joining, start_ns, deadline, NcclCommunicator::is_settled)?;
        Ok(joined)
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Tells `stream` to put the reduction of what all members have in the place of the vector. Until the stream has passed
    /// here, nobody else uses it. All members do so, with as many bytes, in the same order.
    ///
    /// # Errors
    /// When NCCL refuses, or a member is lost; nothing works any more then.
    ///
    /// # Panics
    /// If the vector is memory of the host.
    pub fn all_reduce(
        &mut self,
        stream: &Stream,
        vector: &DeviceWriteLoan,
        (element, reduction): (NcclElement, NcclReduction),
        deadline: Deadline,
    ) -> Result<(), NcclError> {
        let by = reduction.number();
        self.start("ncclAllReduce", (vector, element), deadline, |functions, at, count, comm| {
            let stream = stream.handle().cast();
            // SAFETY: the vector has so many elements at that address of the GPU's, lent for writing, and its memory is given back
            // only when the stream is idle; stream and communicator live.
            unsafe { (functions.ncclAllReduce)(at, at, count, element.number(), by, comm, stream) }
        })
    }

    /// Tells `stream` as [`NcclCommunicator::all_reduce`] does, of several vectors at once, and does not wait: until
    /// [`NcclCommunicator::has_told`] returns true the stream may not have been told, and is told nothing else.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn start_all_reduces(
        &mut self,
        stream: &Stream,
        vectors: &[(DeviceWriteLoan, NcclElement)],
        reduction: NcclReduction,
    ) -> Result<(), NcclError> {
        // before a group is begun, which has to be ended
        assert!(vectors.iter().all(|(vector, _)| vector.space().is_device()));
        let comm = self.handle()?;
        let by = reduction.number();
        let functions = &self.nccl.functions;
        let all = self.device.in_context(|| {
            // SAFETY: it changes a word of this thread's.
            let mut worst = unsafe { (functions.ncclGroupStart)() };
            for (vector, element) in vectors {
                let at = std::ptr::without_provenance_mut(vector.address());
                let (count, element) = (vector.bytes() / element.bytes(), element.number());
                let stream = stream.handle().cast();
                // SAFETY: as for `all_reduce`.
                let told =
                    unsafe { (functions.ncclAllReduce)(at, at, count, element, by, comm, stream) };
                worst = first_failure(worst, told);
            }
            // SAFETY: as for its start; a group that was begun is ended, whatever became of it.
            first_failure(worst, unsafe { (functions.ncclGroupEnd)() })
        })?;
        let checked = self.nccl.check("ncclAllReduce", all, comm);
        checked.map_err(|error| self.failed(error))
    }

    /// True if the stream was told all that was started here. Asked again, whether a member was lost.
    ///
    /// # Errors
    /// When one is, or NCCL failed; nothing works any more then.
    pub fn has_told(&mut self) -> Result<bool, NcclError> {
        self.is_settled().map_err(|error| self.failed(error))
    }

    /// Tells `stream` to put what member `root` has in the place of the vector. As [`NcclCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there, and if there is no such member.
    pub fn broadcast(
        &mut self,
        stream: &Stream,
        vector: &DeviceWriteLoan,
        (element, root): (NcclElement, usize),
        deadline: Deadline,
    ) -> Result<(), NcclError> {
        assert!(root < self.size, "member {root} of {}", self.size);
        // fits: a member's number came through one of C's
        let root = root as c_int;
        self.start("ncclBroadcast", (vector, element), deadline, |functions, at, count, comm| {
            let stream = stream.handle().cast();
            // SAFETY: as for `all_reduce`.
            unsafe {
                (functions.ncclBroadcast)(at, at, count, element.number(), root, comm, stream)
            }
        })
    }

    /// Waits until `stream` has done what it was told.
    ///
    /// # Errors
    /// When a member is lost, or the deadline comes first; nothing works any more then.
    pub fn synchronize(&mut self, stream: &Stream, deadline: Deadline) -> Result<(), NcclError> {
        self.until("an operation", Clock::now_ns(), deadline, |here| {
            Ok(here.is_settled()? && stream.query()?)
        })
    }

    /// Ends what is under way, here and, as far as NCCL tells them, at the others.
    pub fn abort(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // what is under way ends early; there is nothing to do about another result
        let _ = self.device.in_context(|| {
            // SAFETY: the communicator lives until here, and nobody has it any more.
            unsafe { (self.nccl.functions.ncclCommAbort)(handle.0) }
        });
    }

    fn start(
        &mut self,
        call: &'static str,
        (vector, element): (&DeviceWriteLoan, NcclElement),
        deadline: Deadline,
        work: impl FnOnce(&NcclFunctions, *mut std::ffi::c_void, usize, ncclComm_t) -> ncclResult_t,
    ) -> Result<(), NcclError> {
        assert!(vector.space().is_device());
        let start_ns = Clock::now_ns();
        let comm = self.handle()?;
        let at = std::ptr::without_provenance_mut(vector.address());
        let count = vector.bytes() / element.bytes();
        let status = self.device.in_context(|| work(&self.nccl.functions, at, count, comm))?;
        let checked = self.nccl.check(call, status, comm);
        checked.map_err(|error| self.failed(error))?;
        // what is started later comes behind
        self.until("starting an operation", start_ns, deadline, NcclCommunicator::is_settled)
    }

    fn handle(&self) -> Result<ncclComm_t, NcclError> {
        self.handle.as_ref().map(|handle| handle.0).ok_or(NcclError::Aborted)
    }

    /// True if nothing that it was told is still being prepared.
    fn is_settled(&self) -> Result<bool, NcclError> {
        let comm = self.handle()?;
        let mut state = ncclSuccess;
        // SAFETY: there is room for the number, and the communicator lives.
        let status = unsafe { (self.nccl.functions.ncclCommGetAsyncError)(comm, &mut state) };
        self.nccl.check("ncclCommGetAsyncError", status, comm)?;
        self.nccl.check("a member of NCCL", state, comm)?;
        Ok(state == ncclSuccess)
    }

    fn until(
        &mut self,
        what: &'static str,
        start_ns: u64,
        deadline: Deadline,
        mut is_done: impl FnMut(&NcclCommunicator) -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        match wait(deadline, || is_done(self)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let waited_ms = Clock::now_ns().saturating_sub(start_ns) / 1_000_000;
                Err(self.failed(NcclError::TimedOut { what, waited_ms }))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&mut self, error: NcclError) -> NcclError {
        self.abort();
        error
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        let Some(comm) = self.handle.as_ref().map(|handle| handle.0) else { return };
        let left = self.device.in_context(|| {
            // SAFETY: the communicator lives.
            unsafe { (self.nccl.functions.ncclCommFinalize)(comm) }
        });
        let left = left.is_ok_and(|status| status == ncclSuccess || status == ncclInProgress);
        let is_over =
            left && matches!(wait(Deadline::after(LEAVE), || self.is_settled()), Ok(true));
        if !is_over {
            return self.abort();
        }
        self.handle = None;
        let _ = self.device.in_context(|| {
            // SAFETY: it has done all, and nobody has it any more.
            unsafe { (self.nccl.functions.ncclCommDestroy)(comm) }
        });
    }
}

impl NcclVersion {
    /// The version that `ncclGetVersion` has as a number; since 2.9 the major one is 10000 times in it.
    fn of(number: u32) -> NcclVersion {
        let major = if number < 10_000 { 1000 } else { 10_000 };
        NcclVersion { major: number / major, minor: number % major / 100, patch: number % 100 }
    }
}

fn first_failure(first: ncclResult_t, second: ncclResult_t) -> ncclResult_t {
    if first == ncclSuccess || first == ncclInProgress { second } else { first }
}

fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns strings that end with 0 and stay.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

fn detail(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(": {last}") }
}

fn mend(code: u32) -> &'static str {
    match code {
        ncclUnhandledCudaError => {
            "see nvidia-smi and dmesg | grep -i xid; NCCL_DEBUG=WARN says more"
        }
        ncclSystemError => {
            "see the network and /dev/shm (a container needs --shm-size); NCCL_DEBUG=WARN says more"
        }
        ncclInvalidArgument | ncclInvalidUsage => {
            "two processes on one GPU need NCCL 2.30 or newer: give each a GPU; NCCL_DEBUG=WARN says more"
        }
        ncclRemoteError => "another member failed or is gone: see what that one says",
        _ => "NCCL_DEBUG=WARN says more",
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.version, self.looked_for)
    }
}

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // who reads it in a log could become a member
        f.write_str("NcclId")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_what_its_word_says() {
        let id = NcclId(std::array::from_fn(|at| at as u8 ^ 0xa5));
        let word = id.word();
        assert_eq!(NcclId::of_word(&word), Some(id));
        let longer = format!("{word}0");
        for wrong in ["", "a5", &word[2..], &longer, &word.replace('a', "g")] {
            assert!(NcclId::of_word(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn versions_are_read_as_they_were_before_2_9_and_since() {
        let text = |number| NcclVersion::of(number).to_string();
        assert_eq!([text(2708), text(21805), text(23203)], ["2.7.8", "2.18.5", "2.32.3"]);
        assert!(NcclVersion::of(2708) < VERSION_MIN && NcclVersion::of(21800) >= VERSION_MIN);
    }
}
