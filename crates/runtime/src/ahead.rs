//! What is fed to a device before its step: memory of the device for each input, into which the next step's values come while
//! the present one computes. From there the device copies them within itself. Knows no batches.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorwire_base::{Deadline, Space};
use tensorwire_graph::{Op, Output, Part};
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_memory::{Arena, Buffer, Place};

use crate::error::AllocError;
use crate::mirrors::MirrorError;

/// The inputs of a part that came ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    staged: HashMap<Output, Staged>,
    bytes: u64,
}

#[derive(Debug)]
struct Staged {
    buffer: Buffer,
    /// It has the values of the next run that uses them.
    is_filled: AtomicBool,
}

/// The device to which an input may come while a run computes: it is only copied to that one, once, maybe in another shape.
pub(crate) fn comes_ahead_to(part: &Part, input: Output) -> Option<u32> {
    let is_input = matches!(part.graph.node(input.node).op, Op::Input { .. });
    let has_place = part.memory.spot(input).is_some();
    match copies(part, input).filter(|_| is_input && has_place)?[..] {
        [device] => Some(device),
        _ => None,
    }
}

/// The devices that an output is copied to; none if it is used otherwise.
fn copies(part: &Part, output: Output) -> Option<Vec<u32>> {
    let users = part.graph.nodes().filter(|(_, node)| node.inputs.contains(&output));
    let of_user = users.map(|(id, node)| match (&node.op, node.space) {
        (Op::CopyTo { .. }, Space::Device(device)) => Some(vec![device]),
        (op, Space::Host) if op.is_view() => copies(part, id.into()),
        _ => None,
    });
    Some(of_user.collect::<Option<Vec<_>>>()?.concat())
}

/// What an output is another shape of.
pub(crate) fn viewed(part: &Part, output: Output) -> Output {
    let node = part.graph.node(output.node);
    match node.inputs.first().filter(|_| node.op.is_view()) {
        Some(input) => viewed(part, *input),
        None => output,
    }
}

impl Ahead {
    /// Allocates memory of the device of that number for an input of so many bytes.
    pub(crate) fn prepare(
        &mut self,
        devices: &SharedDevice,
        (input, device): (Output, u32),
        bytes: usize,
    ) -> Result<(), AllocError> {
        if self.staged.contains_key(&input) {
            return Ok(());
        }
        let slab = devices.lock().alloc(device, bytes)?;
        let buffer = Arena::new(&slab, &[Place { offset: 0, bytes }])?.into_buffers().remove(0);
        self.staged.insert(input, Staged { buffer, is_filled: AtomicBool::new(false) });
        Ok(())
    }

    /// Starts to bring what `host` holds to the device, where there is memory for it.
    pub(crate) fn send(
        &mut self,
        device: &SharedDevice,
        input: Output,
        host: &Buffer,
    ) -> Result<(), MirrorError> {
        let Some(staged) = self.staged.get(&input) else { return Ok(()) };
        let (from, to) = (host.lend_to_device()?, staged.buffer.lend_to_device_for_writing()?);
        device.lock().copy_ahead(from, to)?;
        staged.is_filled.store(true, Ordering::Relaxed);
        // fits: a length is at most isize::MAX
        self.bytes += host.bytes() as u64;
        Ok(())
    }

    /// Returns where an input's values are on the device, if they came ahead, once.
    pub(crate) fn take(&self, input: Output) -> Option<&Buffer> {
        let staged = self.staged.get(&input)?;
        staged.is_filled.swap(false, Ordering::Relaxed).then_some(&staged.buffer)
    }

    /// What was taken is there to be taken again.
    pub(crate) fn put_back(&self, input: Output) {
        if let Some(staged) = self.staged.get(&input) {
            staged.is_filled.store(true, Ordering::Relaxed);
        }
    }

    /// True if an input's values do not wait on the device, nor are on their way there.
    pub(crate) fn is_free(
        &self,
        device: &SharedDevice,
        input: Output,
    ) -> Result<bool, DeviceFailure> {
        let is_filled = |staged: &Staged| staged.is_filled.load(Ordering::Relaxed);
        match self.staged.get(&input).is_some_and(is_filled) {
            true => Ok(false),
            false => device.lock().is_ahead_over(),
        }
    }

    /// The host may write an input's memory again: what came ahead of it counts no more.
    pub(crate) fn forget(
        &self,
        device: &SharedDevice,
        input: Output,
        deadline: Deadline,
    ) -> Result<(), DeviceFailure> {
        let Some(staged) = self.staged.get(&input) else { return Ok(()) };
        staged.is_filled.store(false, Ordering::Relaxed);
        device.lock().forget_ahead(staged.buffer.address(), deadline)
    }

    /// Returns the bytes that came ahead so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
