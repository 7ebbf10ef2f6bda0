//! What is chosen of GPUs, apart from which.

use std::path::PathBuf;

use tensorwire_device::LibrarySearch;

use crate::Rounding;
use crate::engine::RemoteWrites;

/// The driver of an H200 (CUDA 13.0) takes 1,020 single launches behind a shut gate, and fewer than 2,000 of a graph, and then holds
/// the thread that tells it; `cargo xtask gpu questions` fails where a driver takes less than twice this of a graph.
const LAUNCHES_BEHIND_GATE_MAX: usize = 400;

/// By what GPUs compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// The driver's library; none: the one that the dynamic linker finds.
    pub driver: Option<PathBuf>,
    /// Where to look for CUDA's libraries; none: kernels of this crate compute all.
    pub libraries: Option<LibrarySearch>,
    /// Of what products and convolutions multiply.
    pub rounding: Rounding,
    /// Whether a NIC's writes are flushed.
    pub remote_writes: RemoteWrites,
    /// How many launches of a step a stream is told at most behind a gate that is shut, but for those of one operator.
    pub launches_behind_gate_max: usize,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions {
            driver: None,
            libraries: None,
            rounding: Rounding::default(),
            remote_writes: RemoteWrites::default(),
            launches_behind_gate_max: LAUNCHES_BEHIND_GATE_MAX,
        }
    }
}
