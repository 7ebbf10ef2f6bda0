//! Several GPUs of one process. Each has its own order; what one does behind another's work waits for an event of it, on the
//! GPU. A copy between two is done by the one that it goes to.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tensorwire_base::{Deadline, Space};
use tensorwire_device::{Device, DeviceError, Driver, Event};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceFailure, DeviceKernels, Piece, Shown};
use tensorwire_memory::{DeviceLoan, DeviceWriteLoan, DmaBuf, Keepalive, Slab};

use crate::engine::{CudaError, CudaKernels};
use crate::options::CudaOptions;

/// How often to ask for what is waited for.
const ASK_AGAIN: Duration = Duration::from_micros(50);
/// So often those are forgotten that are over.
const FORGET_EVERY: u64 = 256;

/// GPUs that compute operators, numbered as they were named.
#[derive(Debug)]
pub struct CudaDevices {
    gpus: Vec<Gpu>,
    /// By number of what was started: the copies that it is, by GPU. There until they are over.
    started: HashMap<u64, Vec<(usize, CopyId)>>,
    count: u64,
    /// Some do not reach the memory of others.
    is_by_host: bool,
}

#[derive(Debug)]
struct Gpu {
    kernels: CudaKernels,
    /// How far it was told when somebody last asked.
    told: Event,
}

impl CudaDevices {
    /// Opens GPUs by their numbers in this process.
    ///
    /// # Errors
    /// When there is no driver or no such GPU, or one has no memory left.
    pub fn open(options: &CudaOptions, ordinals: &[usize]) -> Result<CudaDevices, CudaError> {
        let driver = Driver::open(options.driver.as_deref())?;
        let devices = Device::open_together(&driver, ordinals)?;
        let mut is_by_host = false;
        for (from, to) in ordinals.iter().flat_map(|from| ordinals.iter().map(move |to| (from, to)))
        {
            is_by_host |= !driver.can_reach(*from, *to)?;
        }
        let gpus = devices.into_iter().map(|device| {
            let told = device.event()?;
            Ok(Gpu { kernels: CudaKernels::on(device, options)?, told })
        });
        let gpus = gpus.collect::<Result<Vec<Gpu>, DeviceError>>()?;
        Ok(CudaDevices { gpus, started: HashMap::new(), count: 0, is_by_host })
    }

    pub(crate) fn count(&self) -> u32 {
        // fits: GPUs of a process are few
        self.gpus.len() as u32
    }

    /// The first one, which reduces with others.
    pub(crate) fn first(&mut self) -> Option<&mut CudaKernels> {
        self.gpus.first_mut().map(|gpu| &mut gpu.kernels)
    }

    fn gpu(&mut self, device: u32) -> Result<&mut Gpu, DeviceFailure> {
        let count = self.gpus.len();
        // fits: GPUs of a process are few
        let found = self.gpus.get_mut(device as usize);
        found.ok_or_else(|| {
            let none = DeviceError::NoSuchDevice { ordinal: device as usize, count };
            DeviceFailure::Device(Box::new(none))
        })
    }

    /// The GPU that does a copy: whose memory it goes to, or else comes from.
    fn copying(from: Space, to: Space) -> u32 {
        match (from, to) {
            (_, Space::Device(device)) | (Space::Device(device), Space::Host) => device,
            (Space::Host, Space::Host) => 0,
        }
    }

    fn are_over(gpus: &mut [Gpu], copies: &[(usize, CopyId)]) -> Result<bool, DeviceFailure> {
        for (at, copy) in copies {
            if !gpus[*at].kernels.is_over(*copy)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn note(&mut self, copies: Vec<(usize, CopyId)>) -> CopyId {
        self.count += 1;
        if self.count.is_multiple_of(FORGET_EVERY) {
            // not everybody asks whether what he started is over
            let CudaDevices { gpus, started, .. } = self;
            started.retain(|_, copies| !Self::are_over(gpus, copies).unwrap_or(false));
        }
        self.started.insert(self.count, copies);
        CopyId(self.count)
    }
}

impl DeviceKernels for CudaDevices {
    fn description(&self) -> String {
        let each = self.gpus.iter().map(|gpu| gpu.kernels.description());
        let all: Vec<String> = each.collect();
        let between = match self.is_by_host {
            true => {
                "; not all reach each other's memory: the driver copies between them by way of the host"
            }
            false => "",
        };
        format!("{}{between}", all.join("; "))
    }

    fn alloc(&mut self, device: u32, bytes: usize) -> Result<Slab, DeviceFailure> {
        self.gpu(device)?.kernels.alloc(device, bytes)
    }

    fn alloc_shared(&mut self, device: u32, bytes: usize) -> Result<(Slab, Shown), DeviceFailure> {
        self.gpu(device)?.kernels.alloc_shared(device, bytes)
    }

    fn dma_buf(&mut self, memory: &Slab) -> Result<DmaBuf, DeviceFailure> {
        self.gpu(Self::copying(Space::Host, memory.space()))?.kernels.dma_buf(memory)
    }

    fn import(
        &mut self,
        device: u32,
        memory: OwnedFd,
        bytes: usize,
    ) -> Result<Slab, DeviceFailure> {
        self.gpu(device)?.kernels.import(device, memory, bytes)
    }

    fn alloc_on_host(&mut self, bytes: usize) -> Result<Slab, DeviceFailure> {
        self.gpu(0)?.kernels.alloc_on_host(bytes)
    }

    fn pin(&mut self, slab: &Slab) -> Result<Keepalive, DeviceFailure> {
        self.gpu(0)?.kernels.pin(slab)
    }

    fn start(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceFailure> {
        self.gpu(call.device)?.kernels.start(call)
    }

    fn copy_piece(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure> {
        let device = Self::copying(from.0.space(), to.0.space());
        let copy = match from.0.space() {
            Space::Device(source) if source != device => {
                self.follow(device, source)?;
                let peer = self.gpu(source)?.kernels.device().clone();
                self.gpu(device)?.kernels.copy_from(&peer, from, to, bytes)?
            }
            _ => self.gpu(device)?.kernels.copy_piece(from, to, bytes)?,
        };
        Ok(self.note(vec![(device as usize, copy)]))
    }

    fn carry(
        &mut self,
        from: Piece<'_, DeviceLoan>,
        to: Piece<'_, DeviceWriteLoan>,
        bytes: usize,
    ) -> Result<CopyId, DeviceFailure> {
        let device = Self::copying(from.0.space(), to.0.space());
        let copy = self.gpu(device)?.kernels.carry(from, to, bytes)?;
        Ok(self.note(vec![(device as usize, copy)]))
    }

    fn copy_ahead(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        self.gpu(Self::copying(from.space(), to.space()))?.kernels.copy_ahead(from, to)
    }

    fn take(&mut self, from: DeviceLoan, to: DeviceWriteLoan) -> Result<(), DeviceFailure> {
        self.gpu(Self::copying(from.space(), to.space()))?.kernels.take(from, to)
    }

    fn is_ahead_over(&mut self) -> Result<bool, DeviceFailure> {
        let mut over = self.gpus.iter_mut().map(|gpu| gpu.kernels.is_ahead_over());
        over.try_fold(true, |all, over| Ok(all && over?))
    }

    fn forget_ahead(&mut self, to: usize, deadline: Deadline) -> Result<(), DeviceFailure> {
        self.gpus.iter_mut().try_for_each(|gpu| gpu.kernels.forget_ahead(to, deadline))
    }

    fn follow(&mut self, device: u32, other: u32) -> Result<(), DeviceFailure> {
        if device == other {
            return Ok(());
        }
        let Gpu { kernels, told } = self.gpu(other)?;
        kernels.record(told)?;
        // fits: GPUs of a process are few
        let Ok([after, before]) = self.gpus.get_disjoint_mut([device as usize, other as usize])
        else {
            return self.gpu(device).map(|_| ());
        };
        after.kernels.wait_for(&before.told)
    }

    fn mark(&mut self) -> Result<CopyId, DeviceFailure> {
        let marks = self.gpus.iter_mut().enumerate();
        let marks = marks.map(|(at, gpu)| Ok((at, gpu.kernels.mark()?)));
        let marks = marks.collect::<Result<Vec<_>, DeviceFailure>>()?;
        Ok(self.note(marks))
    }

    fn is_over(&mut self, copy: CopyId) -> Result<bool, DeviceFailure> {
        let CudaDevices { gpus, started, .. } = self;
        let Some(copies) = started.get(&copy.0) else { return Ok(true) };
        if Self::are_over(gpus, copies)? {
            started.remove(&copy.0);
            return Ok(true);
        }
        // it may wait for a GPU that failed, and never be over: whoever asks an event of that one is told
        for gpu in gpus {
            let asked = gpu.told.has_passed();
            asked.map_err(|error| DeviceFailure::Device(Box::new(error)))?;
        }
        Ok(false)
    }

    fn wait(&mut self, copy: CopyId, deadline: Deadline) -> Result<(), DeviceFailure> {
        // a GPU that failed is told at once, also where another waits for it
        while !self.is_over(copy)? {
            if deadline.passed() {
                let copies = self.started.remove(&copy.0).unwrap_or_default();
                let late =
                    |(at, copy): &(usize, CopyId)| self.gpus[*at].kernels.wait(*copy, deadline);
                return copies.iter().try_for_each(late);
            }
            std::thread::sleep(ASK_AGAIN);
        }
        Ok(())
    }

    fn prepare_steps(&mut self, _: usize, _: usize) -> Result<(), DeviceFailure> {
        Err(DeviceFailure::Device("the process has several devices".into()))
    }

    fn makes_graphs(&self) -> bool {
        self.gpus.iter().all(|gpu| gpu.kernels.makes_graphs())
    }

    fn graphs_launched(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.kernels.graphs_launched()).sum()
    }

    fn library_calls(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.kernels.library_calls()).sum()
    }

    fn library_refusals(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.kernels.library_refusals()).sum()
    }

    fn reductions(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.kernels.reductions()).sum()
    }

    fn set_rate_factor(&mut self, factor: f64) -> Result<(), DeviceFailure> {
        self.gpus.iter_mut().try_for_each(|gpu| gpu.kernels.set_rate_factor(factor))
    }
}
