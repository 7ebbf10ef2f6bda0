//! A GPU for the checks of `tensorwire_kernels::check`: one operator at a time, with tensors of the host.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::check::Computes;
use tensorwire_kernels::{DeviceCall, DeviceFailure, DeviceKernels, DeviceOperand, KernelError};
use tensorwire_memory::{Arena, Buffer, Place, Slab, TensorMut, TensorRef};
use tensorwire_tensor::TensorSpec;

use crate::engine::{CudaError, CudaKernels};
use crate::options::CudaOptions;

/// Where tensors begin.
const ALIGNMENT: usize = 256;
/// So long one operator may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A GPU that checks run on, as a job has it compute.
pub struct CheckedGpu {
    options: CudaOptions,
    ordinal: usize,
    description: String,
    /// None behind a failure, after which nothing is computed.
    open: Mutex<Option<CudaKernels>>,
}

impl fmt::Debug for CheckedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

impl CheckedGpu {
    /// Opens a GPU by its number in this process, from 0 on.
    ///
    /// # Errors
    /// When there is no driver or no such GPU.
    pub fn open(options: CudaOptions, ordinal: usize) -> Result<CheckedGpu, CudaError> {
        let kernels = CudaKernels::open(&options, ordinal)?;
        let (description, open) = (kernels.description(), Mutex::new(Some(kernels)));
        Ok(CheckedGpu { options, ordinal, description, open })
    }

    fn run(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
    ) -> Result<(), KernelError> {
        let refused = |why: String| KernelError::Refused { op: op.name(), why };
        let mut open = self.locked();
        if open.is_none() {
            let again = CudaKernels::open(&self.options, self.ordinal);
            *open = Some(again.map_err(|error| refused(error.to_string()))?);
        }
        let Some(kernels) = open.as_mut() else { return Ok(()) };
        let done = computed(kernels, op, inputs, outputs, in_place);
        done.map_err(|failure| {
            *open = None;
            match failure {
                DeviceFailure::Kernel { source, .. } => *source,
                failure @ DeviceFailure::Device(_) => refused(failure.to_string()),
            }
        })
    }

    fn locked(&self) -> MutexGuard<'_, Option<CudaKernels>> {
        // whoever panicked has left what he computed with
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Computes for CheckedGpu {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, inputs, outputs, false)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, rest, outputs, true)
    }

    fn kin(&self, _: &Op) -> Option<String> {
        Some("GPUs".to_owned())
    }
}

/// All of a slab.
fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    Arena::new(slab, &[place]).expect("the slab is new").into_buffers().remove(0)
}

/// Has a GPU compute an operator: the operands lie one behind the other, there and in the host's memory.
fn computed(
    kernels: &mut CudaKernels,
    op: &Op,
    inputs: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
    in_place: bool,
) -> Result<(), DeviceFailure> {
    let given: Vec<TensorSpec> = inputs.iter().map(|x| x.spec().clone()).collect();
    let made: Vec<TensorSpec> = outputs.iter().map(|x| x.spec().clone()).collect();
    let mut bytes = 0;
    let mut placed = |specs: &[TensorSpec]| -> Vec<usize> {
        let starts = specs.iter().map(|spec| {
            let start = bytes;
            bytes = (start + spec.bytes()).next_multiple_of(ALIGNMENT);
            start
        });
        starts.collect()
    };
    let (read, written) = (placed(&given), placed(&made));
    let bytes = bytes.max(ALIGNMENT);
    let host = whole(&kernels.alloc_on_host(bytes)?);
    let there = whole(&kernels.alloc(0, bytes)?);
    {
        let mut room = host.write().expect("nobody else has it");
        room.fill(0xff);
        for (x, start) in inputs.iter().zip(&read) {
            room[*start..][..x.bytes().len()].copy_from_slice(x.bytes());
        }
        let kept = if in_place { 1 } else { op.mutated_inputs() };
        for (output, start) in outputs.iter_mut().zip(&written).take(kept) {
            let from = output.bytes();
            room[*start..][..from.len()].copy_from_slice(from);
        }
    }
    let lent = "nobody else has it";
    let (from, to) = (host.lend_to_device(), there.lend_to_device_for_writing());
    let copy = kernels.copy(from.expect(lent), to.expect(lent))?;
    kernels.wait(copy, Deadline::after(PATIENCE))?;
    let operands = |specs, starts: &[usize]| -> Vec<DeviceOperand<'_>> {
        let operand =
            |(spec, start): (_, &usize)| DeviceOperand { spec, address: there.address() + start };
        <[TensorSpec]>::iter(specs).zip(starts).map(operand).collect()
    };
    kernels.start(DeviceCall {
        node: NodeId(0),
        device: 0,
        op,
        inputs: &operands(&given, &read),
        outputs: &operands(&made, &written),
        in_place,
    })?;
    let (from, to) = (there.lend_to_device(), host.lend_to_device_for_writing());
    let copy = kernels.copy(from.expect(lent), to.expect(lent))?;
    kernels.wait(copy, Deadline::after(PATIENCE))?;
    let found = host.read().expect("nobody else has it");
    for (output, start) in outputs.iter_mut().zip(&written) {
        let bytes = output.bytes();
        bytes.copy_from_slice(&found[*start..][..bytes.len()]);
    }
    Ok(())
}
