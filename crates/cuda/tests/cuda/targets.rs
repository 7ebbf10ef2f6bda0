//! What the suites run on: the kernels in two orders of blocks, a GPU by its driver, and the reference of crate `kernels`.

use std::sync::Arc;

use tensorwire_cuda::Rounding;
use tensorwire_graph::Op;
use tensorwire_kernels::check::{Computes, Mismatch, Net, Tensor};
use tensorwire_kernels::{KernelChoice, KernelError, Kernels};
use tensorwire_memory::{TensorMut, TensorRef};

use crate::gpu::{Gpu, gpus, is_alone};
use crate::shim::{Device, shim};

/// Sums over a dimension are added in an order that suits a device.
pub(crate) const ADDS_IN_ORDER: bool = false;

/// A device, a GPU by its driver, or the reference.
#[derive(Debug)]
pub(crate) enum Target {
    Device(Device),
    Gpu(Gpu),
    Reference(Kernels),
}

impl Target {
    fn computes(&self) -> &dyn Computes {
        match self {
            Target::Device(device) => device,
            Target::Gpu(gpu) => gpu,
            Target::Reference(kernels) => kernels,
        }
    }

    pub(crate) fn description(&self) -> String {
        self.computes().description()
    }

    /// Has a device compute `op`, where optimizers multiply their rates by a factor.
    pub(crate) fn run_at(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        rate_factor: f64,
    ) -> Result<(), KernelError> {
        match self {
            Target::Device(device) => device.run(op, inputs, outputs, false, rate_factor),
            Target::Gpu(gpu) => gpu.run(op, inputs, outputs, false, rate_factor),
            Target::Reference(kernels) => kernels.run(&op.at_rate(rate_factor), inputs, outputs),
        }
    }
}

impl Computes for Target {
    fn description(&self) -> String {
        Target::description(self)
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.computes().compute(op, inputs, outputs)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.computes().compute_in_place(op, rest, outputs)
    }

    fn kin(&self, op: &Op) -> Option<String> {
        self.computes().kin(op)
    }
}

pub(crate) fn devices() -> Vec<Device> {
    let rounding = Rounding::Nothing;
    let device =
        |(order, is_aligned)| shim().map(|shim| Device { shim, order, is_aligned, rounding });
    [(0, true), (0x9e37_79b9_7f4a_7c15, false)].into_iter().filter_map(device).collect()
}

/// What is held against the reference: nothing where there is neither a GPU nor a compiler.
pub(crate) fn cpus() -> Vec<Target> {
    let on_gpus = gpus().into_iter().map(Target::Gpu);
    match is_alone() {
        true => on_gpus.collect(),
        false => devices().into_iter().map(Target::Device).chain(on_gpus).collect(),
    }
}

/// As [`cpus`]: the reference passes its own tests.
pub(crate) fn all() -> Vec<Target> {
    cpus()
}

pub(crate) fn reference() -> Target {
    Target::Reference(Kernels::open(KernelChoice::Reference, 1).unwrap())
}

/// A net that a device computes.
pub(crate) fn net() -> Net {
    match cpus().pop() {
        Some(device) => Net::on(Arc::new(device)),
        None => Net::new(),
    }
}

/// Holds an operator's gradients against central differences, both computed by a device.
pub(crate) fn gradient(op: &Op, inputs: &[Tensor]) -> Result<(), Mismatch> {
    net().gradient(op, inputs)
}
