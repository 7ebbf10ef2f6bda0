//! NCCL without a GPU: as much of it as `tensorwire_device::nccl` calls, between real processes, over a file in shared memory by
//! which the members of a communicator meet. Strict about the state of a communicator, and about what it is given; a call is
//! always in progress until it was asked about, and its stream is told then: what is told meanwhile comes before. Loaded from the same file as the driver.
//!
//! | variable | |
//! |---|---|
//! | `FAKE_NCCL_VERSION` | as `ncclGetVersion` says it (23203) |

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use tensorwire_device::nccl::sys::*;

use crate::api::{pointer, same};
use crate::state::{Context, Fake, Outcome, say};
use crate::stream::{Op, Stream};
use crate::work::with_place;

const VERSION: c_int = 23_203;
const MEMBERS_MAX: usize = 16;
/// Bytes of a member's slot, a multiple of every element.
const SLOT: usize = 64 << 10;
/// Where the slots begin in the file.
const SLOTS_AT: usize = 4096;
const FILE_BYTES: usize = SLOTS_AT + MEMBERS_MAX * SLOT;
/// So often a call is in progress when it is asked about.
const ASKED: u32 = 2;

/// Words of the file.
const JOINED: usize = 0;
const FAILED: usize = 1;
const ARRIVED: usize = 2;
const TAKEN: usize = 16;

thread_local! {
    static GROUPS: Cell<u32> = const { Cell::new(0) };
    /// Something was told in the present group.
    static GROUPED: Cell<bool> = const { Cell::new(false) };
}

/// The file, mapped.
#[derive(Debug)]
struct Area(NonNull<u8>);

// SAFETY: words are used atomically; a slot is its member's until all have arrived, and read by all until they have again.
unsafe impl Send for Area {}
// SAFETY: as for Send.
unsafe impl Sync for Area {}

impl Area {
    fn open(path: &PathBuf, flags: OFlags) -> rustix::io::Result<Area> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let room = std::ptr::null_mut();
        // SAFETY: a fresh address.
        let mapped =
            unsafe { rustix::mm::mmap(room, FILE_BYTES, access, MapFlags::SHARED, &file, 0) }?;
        Ok(Area(NonNull::new(mapped.cast()).unwrap_or(NonNull::dangling())))
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: an aligned word before the slots, which all use atomically, as long as this is mapped.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast::<u32>().add(index)) }
    }

    fn slot(&self, member: usize) -> *mut u8 {
        // SAFETY: a member is one of those there is room for.
        unsafe { self.0.as_ptr().add(SLOTS_AT + member * SLOT) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and nobody has an address of it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast::<c_void>(), FILE_BYTES) };
    }
}

/// A member of a communicator.
#[derive(Debug)]
pub(crate) struct Member {
    context: Arc<Context>,
    path: PathBuf,
    area: Area,
    rank: usize,
    size: usize,
    /// Times that it has waited for the others.
    rounds: AtomicU32,
    is_aborted: AtomicBool,
    is_finalized: AtomicBool,
    /// Questions that are left until what was told is no more in progress.
    busy: AtomicU32,
    /// What the streams are told then.
    pending: Mutex<Vec<(Arc<Stream>, Vector, What)>>,
}

/// Elements, by their number.
#[derive(Clone, Copy, Debug)]
struct Vector {
    address: u64,
    count: usize,
    element: ncclDataType_t,
}

/// What a stream is told.
#[derive(Debug)]
pub(crate) struct Collective {
    member: Arc<Member>,
    vector: Vector,
    what: What,
}

impl Collective {
    /// Address and bytes of what it writes.
    pub(crate) fn writes(&self) -> (u64, usize) {
        let bytes = self.vector.element_bytes().unwrap_or_default();
        (self.vector.address, self.vector.count * bytes)
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Reduce { is_mean: bool },
    Broadcast { root: usize },
}

type Answer<T = ()> = Result<T, ncclResult_t>;

impl Vector {
    fn element_bytes(&self) -> Answer<usize> {
        match self.element {
            ncclUint8 => Ok(1),
            ncclBfloat16 => Ok(2),
            ncclFloat32 => Ok(4),
            ncclFloat64 => Ok(8),
            _ => Err(ncclInvalidArgument),
        }
    }
}

impl Member {
    fn all_joined(&self) -> bool {
        self.area.word(JOINED).load(Ordering::Acquire) as usize == self.size
    }

    /// Waits until all have come here as often; false if one failed.
    fn meet(&self, stream: &Stream) -> bool {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let arrived = self.area.word(ARRIVED);
        arrived.fetch_add(1, Ordering::AcqRel);
        let wanted = round.wrapping_mul(self.size as u32);
        let mut asked = 0u32;
        while wanted.wrapping_sub(arrived.load(Ordering::Acquire)).cast_signed() > 0 {
            let is_failed = self.area.word(FAILED).load(Ordering::Relaxed) > 0;
            if is_failed || self.is_aborted.load(Ordering::Relaxed) || !stream.is_wanted() {
                return false;
            }
            asked = asked.saturating_add(1);
            match asked {
                ..50 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        true
    }

    fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
        self.area.word(FAILED).store(1, Ordering::Relaxed);
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Collective {
    pub(crate) fn run(&self, fake: &Fake, stream: &Stream) -> Outcome {
        let Collective { member, vector, what } = self;
        let Ok(width) = vector.element_bytes() else { return Ok(()) };
        let total = vector.count * width;
        let own = member.area.slot(member.rank);
        for start in (0..total).step_by(SLOT) {
            let bytes = SLOT.min(total - start);
            let at = vector.address + start as u64;
            with_place(fake, stream, at, bytes, |first| {
                // SAFETY: the place has so many bytes, and the slot is this member's until all have arrived.
                unsafe { std::ptr::copy(first, own, bytes) }
            })?;
            // whoever is ended early leaves anything
            if !member.meet(stream) {
                return Ok(());
            }
            with_place(fake, stream, at, bytes, |first| match what {
                What::Broadcast { root } => {
                    // SAFETY: as above; the root's slot is nobody's to write before all have arrived again.
                    unsafe { std::ptr::copy(member.area.slot(*root), first, bytes) }
                }
                What::Reduce { is_mean } => fold(member, vector.element, bytes, *is_mean, first),
            })?;
            if !member.meet(stream) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// What all slots come to, in the order of members.
fn fold(member: &Member, element: ncclDataType_t, bytes: usize, is_mean: bool, into: *mut u8) {
    // members are few
    let by = if is_mean { 1.0 / member.size as f64 } else { 1.0 };
    let slots: Vec<*mut u8> = (0..member.size).map(|rank| member.area.slot(rank)).collect();
    // SAFETY: all slots, and the place, have so many bytes of these elements, which nobody writes meanwhile.
    unsafe {
        match element {
            ncclFloat32 => (0..bytes / 4).for_each(|at| {
                let sum: f32 = slots.iter().map(|s| s.cast::<f32>().add(at).read()).sum();
                into.cast::<f32>().add(at).write_unaligned(sum * by as f32);
            }),
            ncclFloat64 => (0..bytes / 8).for_each(|at| {
                let sum: f64 = slots.iter().map(|s| s.cast::<f64>().add(at).read()).sum();
                into.cast::<f64>().add(at).write_unaligned(sum * by);
            }),
            _ => (0..bytes / 2).for_each(|at| {
                let wide =
                    |s: &*mut u8| f32::from_bits(u32::from(s.cast::<u16>().add(at).read()) << 16);
                let bits = (slots.iter().map(wide).sum::<f32>() * by as f32).to_bits();
                // to the nearest, of two to the even one
                let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                into.cast::<u16>().add(at).write_unaligned(rounded as u16);
            }),
        }
    }
}

/// Makes a number of an answer.
fn answer(work: impl FnOnce() -> Answer<ncclResult_t>) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code) | Err(code)) => code,
        Err(_) => {
            say("its NCCL has a fault of its own");
            ncclInternalError
        }
    }
}

fn cuda<T>(outcome: Outcome<T>) -> Answer<T> {
    outcome.map_err(|_| ncclUnhandledCudaError)
}

fn path_of(id: &ncclUniqueId) -> Answer<PathBuf> {
    let bytes = id.internal.map(|byte| byte.cast_unsigned());
    if &bytes[..4] != b"fake" {
        return Err(ncclInvalidArgument);
    }
    let name: String = bytes[4..20].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(PathBuf::from(format!("/dev/shm/fake-nccl-{name}")))
}

/// A member that lives, whose context is current.
fn of(comm: ncclComm_t) -> Answer<(&'static Fake, Arc<Member>)> {
    let fake = cuda(Fake::get())?;
    let member = fake.members.get(comm.addr()).map_err(|_| ncclInvalidArgument)?;
    Ok((fake, member))
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    answer(|| {
        let told = std::env::var("FAKE_NCCL_VERSION").ok().and_then(|text| text.parse().ok());
        if version.is_null() {
            return Err(ncclInvalidArgument);
        }
        // SAFETY: room is the caller's duty.
        unsafe { version.write(told.unwrap_or(VERSION)) };
        Ok(ncclSuccess)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: ncclResult_t) -> *const c_char {
    let text: &CStr = match code {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled cuda error",
        ncclInvalidArgument => c"invalid argument",
        ncclInvalidUsage => c"invalid usage",
        ncclRemoteError => c"remote process exited or there was a network error",
        ncclInProgress => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: ncclComm_t) -> *const c_char {
    c"".as_ptr()
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    answer(|| {
        let mut bytes = [0u8; NCCL_UNIQUE_ID_BYTES];
        bytes[..4].copy_from_slice(b"fake");
        let drawn =
            rustix::rand::getrandom(&mut bytes[4..20], rustix::rand::GetRandomFlags::empty());
        drawn.map_err(|_| ncclSystemError)?;
        let made = ncclUniqueId { internal: bytes.map(u8::cast_signed) };
        Area::open(&path_of(&made)?, OFlags::CREATE | OFlags::EXCL).map_err(|_| ncclSystemError)?;
        if id.is_null() {
            return Err(ncclInvalidArgument);
        }
        // SAFETY: room is the caller's duty.
        unsafe { id.write(made) };
        Ok(ncclSuccess)
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    answer(|| {
        let fake = cuda(Fake::get())?;
        let context = cuda(fake.current())?.clone();
        let (size, rank) =
            (usize::try_from(size).unwrap_or(0), usize::try_from(rank).unwrap_or(size as usize));
        if comm.is_null() || config.is_null() || rank >= size || size > MEMBERS_MAX {
            return Err(ncclInvalidArgument);
        }
        // SAFETY: the caller's duty.
        let ncclConfig_t { size: bytes, magic, version, blocking } = unsafe { config.read() };
        let is_whole = bytes >= size_of::<ncclConfig_t>() && magic == NCCL_API_MAGIC;
        if !is_whole || version < CONFIG_VERSION || blocking != 0 {
            say("a communicator here has a whole configuration, and does not block");
            return Err(ncclInvalidArgument);
        }
        let path = path_of(&id)?;
        let area = Area::open(&path, OFlags::empty()).map_err(|_| ncclSystemError)?;
        if area.word(TAKEN + rank).swap(1, Ordering::AcqRel) > 0 {
            return Err(ncclInvalidUsage);
        }
        let joined = area.word(JOINED).fetch_add(1, Ordering::AcqRel) as usize + 1;
        if joined == size {
            // all have it open
            let _ = std::fs::remove_file(&path);
        }
        let member = Member {
            context,
            path,
            area,
            rank,
            size,
            rounds: AtomicU32::new(0),
            is_aborted: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
            busy: AtomicU32::new(ASKED),
            pending: Mutex::default(),
        };
        // SAFETY: room is the caller's duty.
        unsafe { comm.write(pointer(fake.members.add(Arc::new(member)))) };
        Ok(ncclInProgress)
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    state: *mut ncclResult_t,
) -> ncclResult_t {
    answer(|| {
        let (_, member) = of(comm)?;
        let busy = |busy: u32| busy.checked_sub(1);
        let is_busy = member.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, busy).is_ok();
        if !is_busy && member.all_joined() {
            for (stream, vector, what) in std::mem::take(&mut *member.pending.lock()) {
                let collective = Collective { member: member.clone(), vector, what };
                cuda(stream.tell(Op::Collective(Arc::new(collective))))?;
            }
        }
        let found = match member.area.word(FAILED).load(Ordering::Relaxed) {
            0 if !member.all_joined() || is_busy => ncclInProgress,
            0 => ncclSuccess,
            _ => ncclRemoteError,
        };
        if state.is_null() {
            return Err(ncclInvalidArgument);
        }
        // SAFETY: room is the caller's duty.
        unsafe { state.write(found) };
        Ok(ncclSuccess)
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        let (_, member) = of(comm)?;
        member.busy.store(ASKED, Ordering::Relaxed);
        match member.is_finalized.swap(true, Ordering::Relaxed) {
            true => Err(ncclInvalidUsage),
            false => Ok(ncclInProgress),
        }
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        let (fake, member) = of(comm)?;
        if !member.is_finalized.load(Ordering::Relaxed) {
            say("a communicator that does not block is destroyed before it is finalized");
            return Err(ncclInvalidUsage);
        }
        cuda(fake.members.remove(comm.addr()))?;
        Ok(ncclSuccess)
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        let (fake, member) = of(comm)?;
        member.abort();
        cuda(fake.members.remove(comm.addr()))?;
        Ok(ncclSuccess)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> ncclResult_t {
    if GROUPS.get() == 0 {
        GROUPED.set(false);
    }
    GROUPS.set(GROUPS.get() + 1);
    ncclSuccess
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> ncclResult_t {
    match GROUPS.get().checked_sub(1) {
        Some(left) => {
            GROUPS.set(left);
            if left == 0 && GROUPED.get() { ncclInProgress } else { ncclSuccess }
        }
        None => ncclInvalidUsage,
    }
}

/// Tells a stream, if all is as NCCL wants it.
fn tell(
    comm: ncclComm_t,
    stream: cudaStream_t,
    (from, to): (*const c_void, *mut c_void),
    vector: Vector,
    what: What,
) -> ncclResult_t {
    answer(|| {
        let (fake, member) = of(comm)?;
        let current = cuda(fake.current())?;
        let stream = cuda(fake.streams.get(stream.addr()))?;
        cuda(same(&member.context, current))?;
        cuda(same(&stream.context, current))?;
        let bytes = vector.element_bytes()?.checked_mul(vector.count).ok_or(ncclInvalidArgument)?;
        if from.addr() != to.addr() {
            say("collectives here are in place");
            return Err(ncclInvalidArgument);
        }
        let is_there = {
            let pinned = fake.pinned.read();
            fake.place(vector.address, bytes, stream.context.ordinal, &pinned).is_some()
        };
        if !is_there && bytes > 0 {
            return Err(ncclInvalidArgument);
        }
        // of a group all calls come at once
        let is_first = GROUPS.get() == 0 || !GROUPED.replace(true);
        let is_busy = member.busy.swap(ASKED, Ordering::Relaxed) > 0 && is_first;
        if is_busy || !member.all_joined() || member.is_finalized.load(Ordering::Relaxed) {
            say("a communicator was told something before it was asked whether it is ready");
            return Err(ncclInvalidUsage);
        }
        member.pending.lock().push((stream, vector, what));
        Ok(ncclInProgress)
    })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    by: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let is_mean = by == ncclAvg;
    if !is_mean && by != ncclSum || element == ncclUint8 {
        return ncclInvalidArgument;
    }
    let vector = Vector { address: to.addr() as u64, count, element };
    tell(comm, stream, (from, to), vector, What::Reduce { is_mean })
}

/// # Safety
/// As of NCCL's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let Ok(root) = usize::try_from(root) else { return ncclInvalidArgument };
    if of(comm).is_ok_and(|(_, member)| root >= member.size) {
        return ncclInvalidArgument;
    }
    let vector = Vector { address: to.addr() as u64, count, element };
    tell(comm, stream, (from, to), vector, What::Broadcast { root })
}
