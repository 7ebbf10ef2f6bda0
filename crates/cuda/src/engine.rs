//! Operators and copies on one GPU: what [`lower`](crate::lower) says of an operator is made ready once and told to a
//! stream in each step. All that is started is done in that order, so that memory needs no other guard on the GPU.

mod ahead;
mod flights;
mod group;
mod libraries;
mod peers;
mod prepared;
mod programs;
mod segments;
mod steps;
mod telling;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_device::{
    Device, DeviceError, DeviceMemory, Driver, Function, Module, Stream, Word,
};
use tensorwire_graph::NodeId;
use tensorwire_kernels::{
    CopyId, DeviceCall, DeviceFailure, DeviceKernels, KernelError, Piece, Shown,
};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan, DmaBuf, Keepalive, Slab};

use crate::error::LowerError;
use crate::gpus::COMPUTE_MIN;
use crate::kernels::modules;
use crate::options::CudaOptions;
use crate::{DeviceFault, Rounding};
use ahead::Ahead;
use flights::{Flights, Loans, Slots};
use group::Membership;
use libraries::Libraries;
use prepared::{PrepareError, Prepared};
use programs::{Programs, of_program};
use segments::{Call, Segments, Tell};
pub use steps::RemoteWrites;
use steps::Steps;
use telling::tell;

/// Why a GPU cannot compute.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error(transparent)]
    Driver(#[from] tensorwire_device::OpenError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "GPU {ordinal} ({name}) is of compute capability {}.{}, and kernels are made for {}.{} and newer; name another one \
         (--device cuda:N, CUDA_VISIBLE_DEVICES), or use --device cpu",
        .compute.0, .compute.1, COMPUTE_MIN.0, COMPUTE_MIN.1
    )]
    TooOld { ordinal: usize, name: String, compute: (u32, u32) },
}

/// Bytes of the words that kernels are pointed to: the factor of the rate, then the fault.
const WORDS_BYTES: usize = FAULT_OFFSET + size_of::<DeviceFault>();
const FAULT_OFFSET: usize = 8;

/// A GPU that computes operators.
#[derive(Debug)]
pub struct CudaKernels {
    /// In a group of devices that reduce among themselves. Gone first: the stream comes free of it.
    membership: Option<Membership>,
    /// Dropped before what the stream may still use: it opens the gates.
    steps: Steps,
    device: Arc<Device>,
    stream: Stream,
    rounding: Rounding,
    remote_writes: RemoteWrites,
    launches_behind_gate_max: usize,
    libraries: Libraries,
    /// How many products and convolutions were left to libraries.
    library_calls: u64,
    /// How many operators a library did not take that has others of their kind.
    library_refusals: u64,
    /// Modules by name, and kernels of them, as far as they were asked for.
    loaded: HashMap<&'static str, Module>,
    functions: HashMap<&'static str, Function>,
    programs: Programs,
    prepared: HashMap<NodeId, Prepared>,
    segments: Segments,
    /// Scratch of whichever operator is computed.
    workspace: Option<DeviceMemory>,
    /// Workspaces that became too small, for what was started before. Given back when the stream has nothing to do.
    outgrown: Vec<DeviceMemory>,
    words: DeviceMemory,
    /// In pinned memory: at whose kernels the GPU is ([`KernelArgument::Progress`](crate::KernelArgument::Progress)).
    progress: Word,
    /// In pinned memory: factors on their way to the words, and faults that came from there.
    factors: Slots,
    flights: Flights,
    ahead: Ahead,
    /// Some operator reads values that may be wrong.
    has_checks: bool,
    /// What went wrong first. Nothing is computed after it.
    failure: Option<Failed>,
}

/// What went wrong, to be told as often as somebody asks.
#[derive(Clone, Debug)]
enum Failed {
    Kernel(Option<NodeId>, KernelError),
    Device(DeviceError),
}

impl From<Failed> for DeviceFailure {
    fn from(failed: Failed) -> DeviceFailure {
        match failed {
            Failed::Kernel(node, source) => {
                DeviceFailure::Kernel { node, source: Box::new(source) }
            }
            Failed::Device(error) => DeviceFailure::Device(Box::new(error)),
        }
    }
}

impl From<DeviceError> for Failed {
    fn from(error: DeviceError) -> Failed {
        Failed::Device(error)
    }
}

impl CudaKernels {
    /// Opens a GPU by its number in this process, from 0 on. What it is to compute is loaded when it is first asked for.
    ///
    /// # Errors
    /// When there is no driver or no such GPU, or it has no memory left.
    pub fn open(options: &CudaOptions, ordinal: usize) -> Result<CudaKernels, CudaError> {
        let driver = Driver::open(options.driver.as_deref())?;
        Ok(CudaKernels::on(Device::open(&driver, ordinal)?, options)?)
    }

    /// As [`CudaKernels::open`], of a GPU that was opened.
    pub(crate) fn on(
        device: Arc<Device>,
        options: &CudaOptions,
    ) -> Result<CudaKernels, DeviceError> {
        let stream = device.stream()?;
        // fits: a few words
        let words = device.alloc(WORDS_BYTES as u64)?;
        // SAFETY: nobody else has the memory, and the GPU writes the whole word at once.
        let progress = unsafe { Word::in_slab(&device.pinned(size_of::<u64>())?, 0) };
        progress.store(0);
        let mut kernels = CudaKernels {
            membership: None,
            factors: Slots::new(&device)?,
            flights: Flights::new(&device)?,
            stream,
            rounding: options.rounding,
            remote_writes: options.remote_writes,
            launches_behind_gate_max: options.launches_behind_gate_max.max(1),
            libraries: Libraries::open(&device, options.libraries.as_ref()),
            library_calls: 0,
            library_refusals: 0,
            loaded: HashMap::new(),
            functions: HashMap::new(),
            programs: Programs::new(options.libraries.as_ref()),
            prepared: HashMap::new(),
            segments: Segments::default(),
            steps: Steps::default(),
            workspace: None,
            outgrown: Vec::new(),
            words,
            progress,
            ahead: Ahead::new(&device)?,
            has_checks: false,
            failure: None,
            device,
        };
        kernels.clear_fault()?;
        kernels.factors.send(&1f64.to_ne_bytes(), &kernels.stream, &kernels.words)?;
        Ok(kernels)
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn clear_fault(&self) -> Result<(), DeviceError> {
        let fault = self.words.address() + FAULT_OFFSET as u64;
        // SAFETY: the words are this value's, written by its stream alone, and live as long as it does.
        unsafe { self.stream.set_at(fault, size_of::<DeviceFault>(), 0) }
    }

    fn write_factor(&mut self, factor: f64) -> Result<(), Failed> {
        self.flush()?;
        Ok(self.factors.send(&factor.to_ne_bytes(), &self.stream, &self.words)?)
    }

    /// Fails with what went wrong before.
    fn check(&self) -> Result<(), Failed> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Remembers what went wrong.
    fn kept<T>(&mut self, done: Result<T, Failed>) -> Result<T, DeviceFailure> {
        done.map_err(|failed| {
            let failed = self.blamed(failed);
            self.failure.get_or_insert_with(|| failed.clone());
            failed.into()
        })
    }

    /// A GPU that is lost in a user's kernel was lost by it.
    fn blamed(&self, failed: Failed) -> Failed {
        let Failed::Device(error) = &failed else { return failed };
        let who =
            self.progress.load().filter(|_| error.is_lost()).and_then(|who| who.checked_sub(1));
        let node = who.map(NodeId);
        let op = node.and_then(|node| self.prepared.get(&node)?.name_of_program());
        op.map_or(failed.clone(), |op| {
            of_program(node, op, format!("a kernel of it failed: {error}"))
        })
    }

    /// The kernels of a user's program that a node launches.
    fn load_program(
        &mut self,
        call: &DeviceCall<'_>,
        prepared: &Prepared,
    ) -> Result<Vec<Function>, Failed> {
        let (op, programs, device) = (call.op.name(), &mut self.programs, &self.device);
        let functions = prepared.programs().map(|launch| programs.function(device, op, launch));
        let functions = functions.collect::<Result<_, String>>();
        functions.map_err(|why| of_program(Some(call.node), op, why))
    }

    fn started(&mut self, call: &DeviceCall<'_>) -> Result<(), Failed> {
        self.check()?;
        if self.segments.has(call.node) {
            self.flush()?;
        }
        let fits = self.prepared.get(&call.node).is_some_and(|prepared| prepared.is_for(call));
        if !fits {
            let mut prepared = Prepared::new(call, self.rounding, &self.libraries).map_err(
                |error| match error {
                    PrepareError::Lower(error) => self.refused(call, error),
                    PrepareError::Device(error) => Failed::Device(error),
                },
            )?;
            for launch in prepared.launches() {
                self.load(launch.kernel, launch.shared_bytes)?;
            }
            let functions = self.load_program(call, &prepared)?;
            prepared.set_functions(functions);
            self.has_checks |= prepared.has_checks();
            self.make_room(prepared.workspace_bytes())?;
            self.prepared.insert(call.node, prepared);
        }
        let workspace = self.workspace.as_ref().map_or(0, DeviceMemory::address);
        let words = self.words.address();
        let Some(prepared) = self.prepared.get_mut(&call.node) else { return Ok(()) };
        let progress = self.progress.address();
        let words = [words, words + FAULT_OFFSET as u64, progress];
        let version = prepared.give(call, workspace, words);
        // fits: few
        self.library_calls += prepared.library_calls() as u64;
        self.library_refusals += u64::from(prepared.is_refused());
        let version = version.map_err(|missing| {
            let why = missing.to_string();
            Failed::Kernel(Some(call.node), KernelError::Refused { op: call.op.name(), why })
        })?;
        self.add_to_step(Call::Operator(call.node, version));
        Ok(())
    }

    /// Tells the stream what was started.
    fn flush(&mut self) -> Result<(), Failed> {
        // what is told comes behind all of the step
        debug_assert!(!self.steps.has_rest(), "a part of the step is not told");
        self.told(Segments::flush)
    }

    /// Tells the stream what was started, in one of the ways of segments.
    fn told<T>(
        &mut self,
        way: impl FnOnce(&mut Segments, &Stream, Tell<'_>) -> Result<T, DeviceError>,
    ) -> Result<T, Failed> {
        let CudaKernels { segments, prepared, functions, stream, steps, .. } = self;
        // whose launches a driver refused
        let mut refused = None;
        let told = way(segments, stream, &mut |stream: &Stream, calls: &[Call]| {
            for call in calls {
                let Call::Operator(node, _) = call else {
                    steps.tell(stream, *call)?;
                    continue;
                };
                let Some(prepared) = prepared.get(node) else { continue };
                let name = prepared.name_of_program();
                refused = name.map(|op| (*node, op));
                tell(stream, functions, prepared)?;
                refused = None;
            }
            Ok(())
        });
        told.map_err(|error| match refused.filter(|_| !error.is_lost()) {
            Some((node, op)) => of_program(Some(node), op, error.to_string()),
            None => error.into(),
        })
    }

    fn refused(&self, call: &DeviceCall<'_>, error: LowerError) -> Failed {
        let source = match error {
            LowerError::Kernel(source) => source,
            other => KernelError::Refused { op: call.op.name(), why: other.to_string() },
        };
        Failed::Kernel(Some(call.node), source)
    }

    /// Loads a kernel, if that was not done yet, with the module that it is in, and allows it the shared memory.
    fn load(&mut self, kernel: &'static str, shared_bytes: u32) -> Result<(), DeviceError> {
        let needs_room = shared_bytes > self.device.facts().shared_bytes_max;
        if let Some(function) = self.functions.get(kernel) {
            return if needs_room { function.allow_shared(shared_bytes) } else { Ok(()) };
        }
        let missing = || DeviceError::NoSuchKernel {
            device: self.device.ordinal(),
            kernel: kernel.to_owned(),
        };
        let module = modules().iter().find(|module| module.kernels().any(|name| name == kernel));
        let module = module.ok_or_else(missing)?;
        let loaded = match self.loaded.get(module.name) {
            Some(loaded) => loaded.clone(),
            None => {
                let loaded = Module::load(&self.device, module.ptx().as_bytes())?;
                self.loaded.insert(module.name, loaded.clone());
                loaded
            }
        };
        let function = loaded.function(kernel)?;
        if needs_room {
            function.allow_shared(shared_bytes)?;
        }
        self.functions.insert(kernel, function);
        Ok(())
    }

    /// Sees to it that the workspace has so many bytes. The old one is kept, as a stream that still uses it may wait for this thread.
    fn make_room(&mut self, bytes: usize) -> Result<(), Failed> {
        // fits: a size of this machine
        let bytes = bytes as u64;
        if self.workspace.as_ref().map_or(0, DeviceMemory::bytes) < bytes {
            let mut larger = self.device.alloc(bytes);
            // the stream lets go of what was outgrown: no gate is shut outside of a step
            if larger.is_err() && !self.outgrown.is_empty() && !self.steps.is_open() {
                self.flush()?;
                self.outgrown.clear();
                larger = self.device.alloc(bytes);
            }
            self.outgrown.extend(self.workspace.replace(larger?));
        }
        Ok(())
    }

    fn copied(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        (bytes, loans): (usize, Loans),
    ) -> Result<CopyId, Failed> {
        self.check()?;
        self.flush()?;
        // what comes to the host brings news of what was computed before
        let fault = self.has_checks.then(|| self.words.slab());
        let fault = (fault.as_ref(), FAULT_OFFSET);
        Ok(self.flights.start(&self.stream, (from, to), (bytes, loans), fault)?)
    }

    fn marked(&mut self) -> Result<CopyId, Failed> {
        self.check()?;
        self.flush()?;
        let fault = self.has_checks.then(|| self.words.slab());
        Ok(self.flights.mark(&self.stream, fault.as_ref(), FAULT_OFFSET)?)
    }

    /// Takes note of the copies that are over, and of what was found wrong before them.
    fn land(&mut self) -> Result<(), Failed> {
        self.check()?;
        self.steps.land();
        if let Some(fault) = self.flights.land()? {
            return Err(self.explain(&fault));
        }
        if !self.outgrown.is_empty() && !self.segments.are_pending() && self.stream.query()? {
            self.outgrown.clear();
        }
        Ok(())
    }

    fn explain(&self, fault: &DeviceFault) -> Failed {
        let node = fault.tag().map(NodeId);
        let known = node.and_then(|node| self.prepared.get(&node)?.explain(fault));
        let unknown = || KernelError::Refused {
            op: "an operator",
            why: format!("its kernel found {} at {}", fault.value, fault.place),
        };
        Failed::Kernel(node, known.unwrap_or_else(unknown))
    }
}

impl DeviceKernels for CudaKernels {
    fn description(&self) -> String {
        let facts = self.device.facts();
        let (major, minor) = facts.compute;
        let (ordinal, name) = (facts.ordinal, &facts.name);
        let version = self.device.driver().version();
        let by = self.libraries.describe(self.rounding);
        format!("cuda: GPU {ordinal}, {name} ({major}.{minor}), driver of CUDA {version}, {by}")
    }

    fn alloc(&mut self, _: u32, bytes: usize) -> Result<Slab, DeviceFailure> {
        // fits: a size of this machine
        let memory = self.device.alloc(bytes as u64).map_err(Failed::from)?;
        Ok(memory.slab())
    }

    fn alloc_shared(&mut self, _: u32, bytes: usize) -> Result<(Slab, Shown), DeviceFailure> {
        // fits: a size of this machine
        let memory = self.device.alloc(bytes as u64).map_err(Failed::from)?;
        let file = memory.export().map_err(|error| Failed::from(error).into());
        Ok((memory.slab(), file))
    }

    fn dma_buf(&mut self, memory: &Slab) -> Result<DmaBuf, DeviceFailure> {
        Ok(self.device.dma_buf(memory).map_err(Failed::from)?)
    }

    fn import(&mut self, _: u32, memory: OwnedFd, bytes: usize) -> Result<Slab, DeviceFailure> {
        // fits: as above
        Ok(self.device.import(memory, bytes as u64).map_err(Failed::from)?.slab())
    }

    fn alloc_on_host(&mut self, bytes: usize) -> Result<Slab, DeviceFailure> {
        Ok(self.device.pinned(bytes).map_err(Failed::from)?)
    }

    fn pin(&mut self, slab: &Slab) -> Result<Keepalive, DeviceFailure> {
        Ok(Arc::new(self.device.register(slab).map_err(Failed::from)?))
    }

    fn start(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceFailure> {
        let done = self.started(&call);
        self.kept(done)
    }

    fn copy_piece(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure> {
        let loans = Loans::both(from.0, to.0);
        let done = self.copied(from, to, (bytes, loans));
        self.kept(done)
    }

    fn carry(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure> {
        let loans = Loans::on_host(from.0, to.0);
        let done = self.copied(from, to, (bytes, loans));
        self.kept(done)
    }

    fn follow(&mut self, _: u32, _: u32) -> Result<(), DeviceFailure> {
        // there is one stream
        Ok(())
    }

    fn copy_ahead(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        let done = self.copied_ahead(from, to);
        self.kept(done)
    }

    fn take(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        let done = self.taken(from, to);
        self.kept(done)
    }

    fn is_ahead_over(&mut self) -> Result<bool, DeviceFailure> {
        self.steps.land();
        let done = self.ahead.is_over().map_err(Failed::from);
        Ok(self.kept(done)? && !self.steps.keeps_back())
    }

    fn forget_ahead(&mut self, to: usize, deadline: Deadline) -> Result<(), DeviceFailure> {
        self.steps.forget_kept_back(to);
        let done = self.ahead.wait(deadline).map_err(Failed::from);
        self.kept(done)
    }

    fn mark(&mut self) -> Result<CopyId, DeviceFailure> {
        let done = self.marked();
        self.kept(done)
    }

    fn is_over(&mut self, copy: CopyId) -> Result<bool, DeviceFailure> {
        let done = self.land();
        self.kept(done)?;
        Ok(self.flights.is_over(copy))
    }

    fn wait(&mut self, copy: CopyId, deadline: Deadline) -> Result<(), DeviceFailure> {
        let done = self.flights.wait(copy, deadline).map_err(Failed::from);
        self.kept(done)?;
        let done = self.land();
        self.kept(done)
    }

    fn prepare_steps(&mut self, gates: usize, signals: usize) -> Result<(), DeviceFailure> {
        self.steps_prepared(gates, signals)
    }

    fn release_steps(&mut self) {
        self.steps.release();
    }

    fn sees_remote_writes(&self) -> bool {
        self.are_remote_writes_seen()
    }

    fn begin_step(&mut self) -> Result<(), DeviceFailure> {
        let done = self.step_begun();
        self.kept(done)
    }

    fn copy_in_step(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        self.step_copied(from, to);
        Ok(())
    }

    fn wait_at_gate(&mut self, gate: usize) -> Result<(), DeviceFailure> {
        self.add_to_step(Call::Wait(gate));
        Ok(())
    }

    fn give_signal(&mut self, signal: usize) -> Result<(), DeviceFailure> {
        self.add_to_step(Call::Signal(signal));
        Ok(())
    }

    fn end_step(&mut self) -> Result<Option<CopyId>, DeviceFailure> {
        let done = self.step_ended();
        self.kept(done)
    }

    fn open_gate(&mut self, gate: usize, is_remote: bool) -> Result<(), DeviceFailure> {
        let done = self.gate_opened(gate, is_remote);
        self.kept(done)
    }

    fn takes_signal(&mut self, signal: usize) -> bool {
        self.signal_taken(signal)
    }

    fn discard_step(&mut self) {
        self.step_discarded();
    }

    fn makes_graphs(&self) -> bool {
        self.segments.are_captured()
    }

    fn graphs_launched(&self) -> u64 {
        self.segments.launched()
    }

    fn library_calls(&self) -> u64 {
        self.library_calls
    }

    fn library_refusals(&self) -> u64 {
        self.library_refusals
    }

    fn reductions(&self) -> u64 {
        self.membership.as_ref().map_or(0, Membership::reductions)
    }

    fn set_rate_factor(&mut self, factor: f64) -> Result<(), DeviceFailure> {
        let done = self.check().and_then(|()| self.write_factor(factor));
        self.kept(done)
    }
}
