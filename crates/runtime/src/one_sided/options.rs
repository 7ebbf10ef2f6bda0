//! What the ends of a plan's edges are told, the same in all processes but for what is said to be here.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorwire_base::Rank;
use tensorwire_graph::Plan;
use tensorwire_kernels::SharedDevice;
use tensorwire_memory::Slab;

use super::staging;

/// What an exchange is told.
#[derive(Clone, Debug)]
pub struct OneSidedOptions {
    /// By part: who runs it.
    pub ranks: Vec<Rank>,
    /// Edges of a peer are spread over as many.
    pub queue_pairs: usize,
    /// Largest tensor that is taken on a dynamic edge, in bytes.
    pub dynamic_bytes_max: usize,
    /// Who computes what the part has on a device, and shows its memory to peers where tensors cross there.
    pub device: Option<SharedDevice>,
    /// Devices of one host map each other's memory; else their tensors go by way of pinned memory, though processes share memory.
    pub maps_devices: bool,
    /// By device: memory for what the part has there, and its file, where others know of it, too; without it, it is allocated.
    pub memory: Vec<(Slab, Arc<OwnedFd>)>,
    /// Memory of another exchange's for all that the part has in registered memory, none of which crosses here; else it is allocated.
    pub registered: Option<Slab>,
    /// Parts whose edges another exchange serves.
    pub elsewhere: Vec<usize>,
    /// Where peers do not reach a device's memory, its tensors go in pieces of so many bytes; the same everywhere.
    pub piece_bytes: usize,
}

impl OneSidedOptions {
    /// Part `i` runs on rank `i`.
    pub fn new(plan: &Plan, queue_pairs: usize, dynamic_bytes_max: usize) -> OneSidedOptions {
        // fits: a job has far fewer than 2^32 processes
        let ranks = (0..plan.parts.len() as u32).map(Rank).collect();
        let piece_bytes = staging::PIECE_BYTES;
        OneSidedOptions {
            ranks,
            queue_pairs,
            dynamic_bytes_max,
            device: None,
            maps_devices: true,
            memory: Vec::new(),
            registered: None,
            elsewhere: Vec::new(),
            piece_bytes,
        }
    }
}
