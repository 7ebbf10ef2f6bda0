//! What the suites run on: this crate's back ends. Another crate that runs the same suites has a file of this name.

use tensorwire_graph::Op;
use tensorwire_kernels::check::{self, Mismatch, Net, Tensor};
use tensorwire_kernels::{KernelChoice, Kernels, SimdLevel};
use tensorwire_testkit::skip::skip_part;

pub(crate) use tensorwire_kernels::Kernels as Target;

/// True if sums over a dimension or a window are added in its order.
pub(crate) const ADDS_IN_ORDER: bool = true;

/// A net whose gradients are checked.
pub(crate) fn net() -> Net {
    Net::new()
}

/// As [`check::gradient`].
pub(crate) fn gradient(op: &Op, inputs: &[Tensor]) -> Result<(), Mismatch> {
    check::gradient(op, inputs)
}

pub(crate) fn reference() -> Kernels {
    Kernels::open(KernelChoice::Reference, 1).unwrap()
}

/// The cpu back end at every level that this machine has, on one thread and on several.
pub(crate) fn cpus() -> Vec<Kernels> {
    let mut cpus = Vec::new();
    for level in [SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512] {
        if level > SimdLevel::detect() {
            skip_part(&format!("this machine has no {}", level.name()));
            continue;
        }
        for threads in [1, 2, 3] {
            cpus.push(Kernels::open_at_level(level, threads));
        }
    }
    cpus
}

/// All back ends.
pub(crate) fn all() -> Vec<Kernels> {
    let mut all = cpus();
    all.push(reference());
    all
}
