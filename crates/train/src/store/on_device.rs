//! A member's device as its end of the store sees it: what crosses, what is computed between, and copies that the caller waits
//! for by pinned memory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Space};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceFailure, DeviceOperand, SharedDevice};
use tensorwire_kvstore::{DeviceMark, StoreDevice};
use tensorwire_memory::{
    Arena, Buffer, DeviceLoan, DeviceWriteLoan, DmaBuf, Keepalive, PeerMapped, Place, Slab,
};
use tensorwire_tensor::TensorSpec;

/// A device that has values of a store in its memory, or several of a worker.
#[derive(Debug)]
pub(crate) struct DeviceOfStore {
    pub(super) device: SharedDevice,
    /// How many map what peers show.
    count: u32,
    /// By the address of a peer's memory where the first maps it: the same as the others do, each for what it copies itself.
    of_others: Mutex<HashMap<usize, Vec<PeerMapped>>>,
    /// Longest that a copy may take that somebody waits for.
    patience: Duration,
    /// Buffers that copies go to now, by address: parts of one may come at the same time.
    targets: Mutex<HashMap<usize, Weak<DeviceWriteLoan>>>,
    /// What optimizers multiply their rate by.
    factor: Mutex<f64>,
}

/// A tensor in a device's memory.
pub(crate) type Tensor<'a> = (&'a TensorSpec, &'a Buffer);

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl DeviceOfStore {
    pub(crate) fn new(device: SharedDevice, count: u32, patience: Duration) -> DeviceOfStore {
        let (targets, of_others) = Default::default();
        DeviceOfStore { device, count, of_others, patience, targets, factor: Mutex::new(1.0) }
    }

    /// A peer's buffer as the device maps it that copies it to a buffer of its own.
    fn near(&self, from: &Buffer, to: &Buffer) -> Buffer {
        let Space::Device(number @ 1..) = to.space() else { return from.clone() };
        let of_others = self.of_others.lock();
        let mapped = of_others.get(&from.slab().address());
        // fits: devices of a process are few
        let mapped = mapped.and_then(|all| all.get(number as usize - 1));
        mapped.and_then(|mapped| mapped.buffer(from.place())).unwrap_or_else(|| from.clone())
    }

    /// Memory that nobody else sees.
    pub(super) fn room(&self, bytes: usize) -> Result<Buffer, String> {
        cut(&self.alloc_unseen(bytes)?)
    }

    /// The same, of zeros.
    pub(crate) fn zeros(&self, bytes: usize) -> Result<Buffer, String> {
        let buffer = self.room(bytes)?;
        self.write(&vec![0; bytes], &buffer)?;
        Ok(buffer)
    }

    /// Has optimizers that are started from now on multiply their rate by this.
    pub(super) fn set_rate_factor(&self, factor: f64) -> Result<(), DeviceFailure> {
        let mut last = self.factor.lock();
        if *last != factor {
            self.device.lock().set_rate_factor(factor)?;
            *last = factor;
        }
        Ok(())
    }

    /// Starts an operator on one of the devices, by the number under which what is made ready for it is used again. `of` is what
    /// a failure names.
    pub(crate) fn start(
        &self,
        (node, of, device): (NodeId, &str, u32),
        op: &Op,
        (inputs, outputs): (&[Tensor<'_>], &[Tensor<'_>]),
        in_place: bool,
    ) -> Result<(), String> {
        // what is lent is nobody else's until the operator is started; then the device's order stands for it
        let reads: Result<Vec<DeviceLoan>, _> =
            inputs.iter().map(|(_, buffer)| buffer.lend_to_device()).collect();
        let reads = reads.map_err(text)?;
        let writes: Result<Vec<DeviceWriteLoan>, _> =
            outputs.iter().map(|(_, buffer)| buffer.lend_to_device_for_writing()).collect();
        let writes = writes.map_err(text)?;
        let inputs = inputs.iter().zip(&reads);
        let inputs: Vec<DeviceOperand<'_>> = inputs
            .map(|((spec, _), loan)| DeviceOperand { spec, address: loan.address() })
            .collect();
        let outputs = outputs.iter().zip(&writes);
        let outputs: Vec<DeviceOperand<'_>> = outputs
            .map(|((spec, _), loan)| DeviceOperand { spec, address: loan.address() })
            .collect();
        let call = DeviceCall { node, device, op, inputs: &inputs, outputs: &outputs, in_place };
        let started = self.device.lock().start(call);
        started.map_err(|failure| match failure {
            DeviceFailure::Kernel { source, .. } => format!("{of}: {source}"),
            DeviceFailure::Device(source) => source.to_string(),
        })
    }

    /// Waits until all that the devices were told is done.
    pub(crate) fn finish(&self) -> Result<(), String> {
        self.wait(self.mark()?)
    }

    fn target(&self, to: &Buffer) -> Result<Arc<DeviceWriteLoan>, String> {
        let mut targets = self.targets.lock();
        if let Some(target) = targets.get(&to.address()).and_then(Weak::upgrade) {
            return Ok(target);
        }
        let target = Arc::new(to.lend_to_device_for_writing().map_err(text)?);
        targets.retain(|_, target| target.strong_count() > 0);
        targets.insert(to.address(), Arc::downgrade(&target));
        Ok(target)
    }

    /// Waits until what a mark is behind, or a copy, is over.
    pub(crate) fn wait(&self, mark: DeviceMark) -> Result<(), String> {
        let deadline = Deadline::after(self.patience);
        self.device.lock().wait(CopyId(mark.0), deadline).map_err(text)
    }

    /// Memory of the host that the device copies from and to.
    fn pinned(&self, bytes: usize) -> Result<Buffer, String> {
        cut(&self.device.lock().alloc_on_host(bytes).map_err(text)?)
    }
}

/// All of a slab.
fn cut(slab: &Slab) -> Result<Buffer, String> {
    let places = [Place { offset: 0, bytes: slab.bytes() }];
    let buffers = Arena::new(slab, &places).map_err(text)?.into_buffers();
    buffers.into_iter().next().ok_or_else(|| "an arena of no place".to_string())
}

impl StoreDevice for DeviceOfStore {
    fn alloc(&self, number: u32, bytes: usize) -> Result<(Slab, OwnedFd), String> {
        let (slab, shown) = self.device.lock().alloc_shared(number, bytes).map_err(text)?;
        Ok((slab, shown.map_err(text)?))
    }

    fn alloc_unseen(&self, bytes: usize) -> Result<Slab, String> {
        self.device.lock().alloc(0, bytes).map_err(text)
    }

    fn pin(&self, memory: &Slab) -> Result<Keepalive, String> {
        self.device.lock().pin(memory).map_err(text)
    }

    fn dma_buf(&self, memory: &Slab) -> Result<DmaBuf, String> {
        self.device.lock().dma_buf(memory).map_err(text)
    }

    fn import(&self, memory: OwnedFd, bytes: usize) -> Result<Slab, String> {
        let mut others = Vec::new();
        for number in 1..self.count {
            let memory = memory.try_clone().map_err(text)?;
            let slab = self.device.lock().import(number, memory, bytes).map_err(text)?;
            others.push(PeerMapped::new(&slab).map_err(text)?);
        }
        let slab = self.device.lock().import(0, memory, bytes).map_err(text)?;
        if !others.is_empty() {
            self.of_others.lock().insert(slab.address(), others);
        }
        Ok(slab)
    }

    fn copy(
        &self,
        from: &Buffer,
        to: &Buffer,
        at: usize,
        bytes: usize,
    ) -> Result<DeviceMark, String> {
        let source = Arc::new(self.near(from, to).lend_to_device().map_err(text)?);
        let target = self.target(to)?;
        let copy = self.device.lock().copy_piece((&source, 0), (&target, at), bytes);
        Ok(DeviceMark(copy.map_err(text)?.0))
    }

    fn carry(&self, (from, at): (&Buffer, usize), to: &Buffer, bytes: usize) -> Result<(), String> {
        let source = Arc::new(from.lend_to_device().map_err(text)?);
        let target = self.target(to)?;
        let carried = self.device.lock().carry((&source, at), (&target, 0), bytes);
        carried.map(|_| ()).map_err(text)
    }

    fn mark(&self) -> Result<DeviceMark, String> {
        Ok(DeviceMark(self.device.lock().mark().map_err(text)?.0))
    }

    fn is_over(&self, mark: DeviceMark) -> Result<bool, String> {
        self.device.lock().is_over(CopyId(mark.0)).map_err(text)
    }

    fn read(&self, from: &Buffer) -> Result<Vec<u8>, String> {
        let pinned = self.pinned(from.bytes())?;
        self.wait(self.copy(from, &pinned, 0, from.bytes())?)?;
        Ok(pinned.read().map_err(text)?.to_vec())
    }

    fn write(&self, bytes: &[u8], to: &Buffer) -> Result<(), String> {
        let pinned = self.pinned(bytes.len())?;
        pinned.write().map_err(text)?.copy_from_slice(bytes);
        self.wait(self.copy(&pinned, to, 0, bytes.len())?)
    }
}
