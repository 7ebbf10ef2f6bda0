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

/// True if an input may be fed while a run computes: it is only copied to a device, once, maybe in another shape.
pub(crate) fn may_come_ahead(part: &Part, input: Output) -> bool {
    let is_input = matches!(part.graph.node(input.node).op, Op::Input { .. });
    is_input && part.memory.spot(input).is_some() && copies(part, input) == Some(1)
}

/// How often an output is copied to a device; none if it is used otherwise.
fn copies(part: &Part, output: Output) -> Option<usize> {
    let users = part.graph.nodes().filter(|(_, node)| node.inputs.contains(&output));
    users
        .map(|(id, node)| match node.op {
            Op::CopyTo { .. } if node.space != Space::Host => Some(1),
            ref op if op.is_view() && node.space == Space::Host => copies(part, id.into()),
            _ => None,
        })
        .sum()
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
    /// Allocates memory of the device for an input of so many bytes.
    pub(crate) fn prepare(
        &mut self,
        device: &SharedDevice,
        input: Output,
        bytes: usize,
    ) -> Result<(), AllocError> {
        if self.staged.contains_key(&input) {
            return Ok(());
        }
        let slab = device.lock().alloc(bytes)?;
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

    /// The host may write an input's memory again: what came ahead of it counts no more.
    pub(crate) fn forget(
        &self,
        device: &SharedDevice,
        input: Output,
        deadline: Deadline,
    ) -> Result<(), DeviceFailure> {
        let Some(staged) = self.staged.get(&input) else { return Ok(()) };
        staged.is_filled.store(false, Ordering::Relaxed);
        device.lock().wait_ahead(deadline)
    }

    /// Returns the bytes that came ahead so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
