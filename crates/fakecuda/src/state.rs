//! The fake machine of this process: its GPUs, and everything that was made on them, by handles that are nothing to
//! follow.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tensorwire_device::sys::*;

use crate::capture::{Exec, Recording};
use crate::config::Config;
use crate::event::Event;
use crate::kernels::{Image, Kernel, Kernels};
use crate::nccl::Member;
use crate::nvrtc::Program;
use crate::space::{Allocation, Bytes, Space};
use crate::stream::Stream;

/// What a function of the driver returns, as Rust has it.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// The machine.
pub(crate) struct Fake {
    pub(crate) config: Config,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) space: RwLock<Space>,
    /// Kernels read it while they run; who unmaps memory waits for them.
    pub(crate) running: RwLock<()>,
    /// Pinned ranges of the host: bytes by address. Copies hold it, so that none goes meanwhile.
    pub(crate) pinned: RwLock<BTreeMap<usize, Pinned>>,
    pub(crate) kernels: Option<Kernels>,
    /// What NICs have written and GPUs do not see yet: by whose memory it is, the address, and the bytes.
    unseen: Mutex<Vec<Unseen>>,
    /// The seed of streams that are made from now on, and how many were.
    pub(crate) seeds: Mutex<(u64, u64)>,
    pub(crate) counts: Counts,
    /// What was used once, by GPU.
    used: Mutex<HashSet<(usize, String)>>,
    pub(crate) allocations: Handles<Allocation>,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) recordings: Handles<Recording>,
    pub(crate) execs: Handles<Exec>,
    pub(crate) images: Handles<Image>,
    pub(crate) functions: Handles<Kernel>,
    pub(crate) members: Handles<Member>,
    pub(crate) programs: Handles<Program>,
    /// That run what NVRTC has compiled, by number, from 1 on.
    pub(crate) libraries: Mutex<Vec<Arc<Kernels>>>,
}

/// A NIC's write: the GPU whose memory that is, the address, the bytes.
type Unseen = (Option<usize>, u64, Vec<u8>);

/// How often something was done, for faults that come at a time.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) launches: AtomicU64,
    pub(crate) waits: AtomicU64,
    /// Of cuBLASLt's.
    pub(crate) products: AtomicU64,
    /// Of cuDNN's.
    pub(crate) convolutions: AtomicU64,
    /// That NVRTC compiled, and launches of their kernels.
    pub(crate) programs: AtomicU64,
    pub(crate) program_launches: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    /// Bytes of its memory that are given away.
    pub(crate) used: Arc<AtomicU64>,
    pub(crate) context: Arc<Context>,
}

/// The primary context of a GPU.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ordinal: usize,
    retained: AtomicUsize,
    /// What went wrong, and is said to every call from then on.
    sticky: AtomicU32,
}

/// A pinned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) bytes: usize,
    /// This library allocated it.
    pub(crate) is_own: bool,
}

/// Where bytes lie that a stream works on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    OfGpu(Bytes),
    OfHost(*mut u8),
}

thread_local! {
    /// The thread's context: 1 and its GPU's ordinal, or 0.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

static FAKE: OnceLock<Outcome<Fake>> = OnceLock::new();

impl Fake {
    /// Reads the environment and makes the machine, once.
    pub(crate) fn start() -> Outcome<&'static Fake> {
        let made = FAKE.get_or_init(|| {
            let config = Config::read(|name| std::env::var(name).ok());
            let config = config.map_err(|why| {
                say(&why);
                CUDA_ERROR_OPERATING_SYSTEM
            })?;
            if config.devices == 0 {
                return Err(CUDA_ERROR_NO_DEVICE);
            }
            Fake::new(config)
        });
        made.as_ref().map_err(|status| *status)
    }

    /// The machine, which must have been started.
    pub(crate) fn get() -> Outcome<&'static Fake> {
        FAKE.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?.as_ref().map_err(|status| *status)
    }

    fn new(config: Config) -> Outcome<Fake> {
        let kernels = config.kernels.as_deref().map(Kernels::load).transpose();
        let kernels = kernels.map_err(|why| {
            say(&why);
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        let gpus = (0..config.devices).map(|ordinal| {
            let (retained, sticky) = (AtomicUsize::new(0), AtomicU32::new(CUDA_SUCCESS));
            let context = Arc::new(Context { ordinal, retained, sticky });
            Gpu { used: Arc::default(), context }
        });
        let space = Space::new(config.guard).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Fake {
            gpus: gpus.collect(),
            space: RwLock::new(space),
            running: RwLock::default(),
            pinned: RwLock::default(),
            kernels,
            unseen: Mutex::default(),
            seeds: Mutex::new((config.seed, 0)),
            counts: Counts::default(),
            used: Mutex::default(),
            allocations: Handles::new(1),
            streams: Handles::new(2),
            events: Handles::new(3),
            recordings: Handles::new(4),
            execs: Handles::new(5),
            images: Handles::new(6),
            functions: Handles::new(7),
            members: Handles::new(8),
            programs: Handles::new(9),
            libraries: Mutex::default(),
            config,
        })
    }

    /// A machine with one GPU and nothing wrong.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Fake {
        Fake::new(Config::read(|_| None).unwrap()).ok().unwrap()
    }

    /// The GPU of that number of the driver's.
    pub(crate) fn gpu(&self, device: CUdevice) -> Outcome<&Gpu> {
        let found = usize::try_from(device).ok().and_then(|ordinal| self.gpus.get(ordinal));
        found.ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The context that is current in this thread, in which nothing went wrong yet.
    pub(crate) fn current(&self) -> Outcome<&Arc<Context>> {
        let at = CURRENT.get().checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let context = &self.gpus.get(at).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.context;
        if context.retained.load(Ordering::Relaxed) == 0 {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        let calls = self.counts.calls.fetch_add(1, Ordering::Relaxed);
        let lost = self.config.faults.lost;
        if lost > 0 && calls >= lost {
            self.gpus.iter().for_each(|gpu| gpu.context.fail(CUDA_ERROR_UNKNOWN));
        }
        context.check()?;
        Ok(context)
    }

    /// Before something is made that a driver may make only when the GPU has nothing to do.
    pub(crate) fn before_making(&self, context: &Context, what: &str) -> Outcome {
        if !self.config.faults.lazy {
            return Ok(());
        }
        let streams = self.streams.all();
        let mut own = streams.iter().filter(|stream| stream.context.ordinal == context.ordinal);
        if own.all(|stream| stream.comes_to_rest()) {
            return Ok(());
        }
        say(&format!("{what} waits for streams of GPU {} that wait", context.ordinal));
        context.fail(CUDA_ERROR_LAUNCH_TIMEOUT);
        Err(CUDA_ERROR_LAUNCH_TIMEOUT)
    }

    /// As [`Fake::before_making`], if it is the first use of something.
    pub(crate) fn before_using(&self, context: &Context, what: String) -> Outcome {
        let is_first =
            self.config.faults.lazy && self.used.lock().insert((context.ordinal, what.clone()));
        if is_first { self.before_making(context, &what) } else { Ok(()) }
    }

    /// Bytes that a GPU reaches at an address of its own or of pinned memory of the host. They stay for as long as
    /// `pinned` is held.
    pub(crate) fn place(
        &self,
        address: u64,
        bytes: usize,
        device: usize,
        pinned: &BTreeMap<usize, Pinned>,
    ) -> Option<Place> {
        let space = self.space.read();
        if space.contains(address) {
            return space.bytes(address, bytes, device).map(Place::OfGpu);
        }
        let at = usize::try_from(address).ok()?;
        is_pinned(pinned, at, bytes).then_some(Place::OfHost(at as *mut u8))
    }
}

/// What NICs do.
impl Fake {
    /// Writes bytes, or keeps them to be seen later; none where nothing is mapped.
    pub(crate) fn write_remotely(&self, address: u64, bytes: &[u8]) -> Option<()> {
        // first: what is unmapped meanwhile is either settled or not there
        let unseen = self.config.faults.stale.then(|| self.unseen.lock());
        let (found, device) = self.space.read().remote(address, bytes.len())?;
        if let Some(mut unseen) = unseen {
            unseen.push((device, address, bytes.to_vec()));
            return Some(());
        }
        // SAFETY: so many bytes are mapped, and `found` keeps them; no Rust reference is made of them.
        unsafe { found.first.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Some(())
    }

    /// Reads bytes behind all that NICs have written.
    pub(crate) fn read_remotely(&self, address: u64, into: &mut [u8]) -> Option<()> {
        // first: what is shown meanwhile is either here or there
        let unseen = self.unseen.lock();
        let (found, _) = self.space.read().remote(address, into.len())?;
        // SAFETY: as for writing.
        unsafe { found.first.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
        // fits: usize is 64 bits wide
        let end = address + into.len() as u64;
        for (_, start, bytes) in unseen.iter() {
            let (from, to) = ((*start).max(address), (start + bytes.len() as u64).min(end));
            if from < to {
                let [there, here] = [address, *start].map(|first| (from - first) as usize);
                let length = (to - from) as usize;
                into[there..there + length].copy_from_slice(&bytes[here..here + length]);
            }
        }
        Some(())
    }

    /// From now on a GPU sees what NICs have written to its memory.
    pub(crate) fn show_remote_writes(&self, device: usize) {
        self.show(&mut self.unseen.lock(), |(of, ..)| *of == Some(device));
    }

    /// Unmaps a range; what NICs have written there is seen first: the next one at its addresses has nothing to do with that.
    pub(crate) fn unmap(&self, address: u64, bytes: usize) -> bool {
        let mut unseen = self.unseen.lock();
        // fits: usize is 64 bits wide; the range may be none at all
        let end = address.saturating_add(bytes as u64);
        self.show(&mut unseen, |(_, at, _)| (address..end).contains(at));
        self.space.write().unmap(address, bytes)
    }

    fn show(&self, unseen: &mut Vec<Unseen>, of: impl Fn(&Unseen) -> bool) {
        for (_, address, bytes) in unseen.extract_if(.., |one| of(one)) {
            let Some((found, _)) = self.space.read().remote(address, bytes.len()) else { continue };
            let from = NonNull::from(&bytes[..]).cast();
            // SAFETY: as for writing.
            unsafe { found.first.copy_from_nonoverlapping(from, bytes.len()) };
        }
    }
}

/// True if all of the range is pinned.
pub(crate) fn is_pinned(pinned: &BTreeMap<usize, Pinned>, at: usize, bytes: usize) -> bool {
    let found = pinned.range(..=at).next_back();
    found.is_some_and(|(start, found)| {
        (at - start).checked_add(bytes).is_some_and(|end| end <= found.bytes)
    })
}

impl Place {
    pub(crate) fn first(&self) -> *mut u8 {
        match self {
            Place::OfGpu(bytes) => bytes.first.as_ptr(),
            Place::OfHost(first) => *first,
        }
    }
}

impl Context {
    /// Its handle.
    pub(crate) fn handle(&self) -> CUcontext {
        std::ptr::without_provenance_mut(0xc0_0000 + 16 * (self.ordinal + 1))
    }

    /// The ordinal that a handle is of, counted from 1; 0 for none.
    pub(crate) fn number_of(handle: CUcontext) -> usize {
        handle.addr().saturating_sub(0xc0_0000) / 16
    }

    pub(crate) fn retain(&self) {
        self.retained.fetch_add(1, Ordering::Relaxed);
    }

    /// False if nobody holds it.
    pub(crate) fn release(&self) -> bool {
        self.retained
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    }

    /// Nothing works in it from now on. What failed first is said.
    pub(crate) fn fail(&self, status: CUresult) {
        let (order, free) = (Ordering::Relaxed, CUDA_SUCCESS);
        let _ = self.sticky.compare_exchange(free, status, order, order);
    }

    pub(crate) fn check(&self) -> Outcome {
        match self.sticky.load(Ordering::Relaxed) {
            CUDA_SUCCESS => Ok(()),
            status => Err(status),
        }
    }
}

/// The thread's context, as a handle.
pub(crate) fn current_handle(fake: &Fake) -> CUcontext {
    let at = CURRENT.get().checked_sub(1);
    let context = at.and_then(|at| fake.gpus.get(at)).map(|gpu| gpu.context.handle());
    context.unwrap_or(std::ptr::null_mut())
}

pub(crate) fn set_current(number: usize) {
    CURRENT.set(number);
}

/// What was made, by handles that are never used again.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    kind: usize,
    next: AtomicUsize,
    made: Mutex<HashMap<usize, Arc<T>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new(kind: usize) -> Handles<T> {
        Handles { kind, next: AtomicUsize::new(1), made: Mutex::default() }
    }

    /// Keeps it, and returns its handle.
    pub(crate) fn add(&self, made: Arc<T>) -> usize {
        // a handle of another kind is none of these
        let handle = self.next.fetch_add(1, Ordering::Relaxed) * 256 + self.kind * 16;
        self.made.lock().insert(handle, made);
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        self.made.lock().get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        self.made.lock().remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.made.lock().values().cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.made.lock().len()
    }
}

/// Says what a number cannot.
pub(crate) fn say(what: &str) {
    use std::io::Write;
    // nobody reads it: it is lost
    let _ = writeln!(std::io::stderr(), "fake CUDA driver: {what}");
}
