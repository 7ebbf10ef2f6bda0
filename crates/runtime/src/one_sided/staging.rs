//! The host's memory by which tensors of a device go where the fabric does not reach that device's memory. A tensor goes in
//! pieces, so that the device copies one while another is on its way.

use std::collections::HashMap;
use std::sync::Arc;

use tensorwire_fabric::{Fabric, Region};
use tensorwire_graph::{Edge, EdgeId, Output, Plan};
use tensorwire_kernels::SharedDevice;
use tensorwire_memory::{ALIGNMENT, Arena, Buffer, Keepalive, Place};

use super::opening::is_written_on_device;
use crate::error::ConnectEdgesError;

/// Of a piece: the time that a device or a wire takes for so much hides what starting it costs.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Of one device of a part, for the tensors that it sends and receives.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) region: Region,
    /// The device copies from and to it while others work; none where the system locks no more memory.
    _pinned: Option<Keepalive>,
    pieces: HashMap<EdgeId, Arc<[Buffer]>>,
}

/// How many pieces a tensor has.
pub(super) fn pieces(bytes: usize, piece_bytes: usize) -> usize {
    bytes.div_ceil(piece_bytes).max(1)
}

impl Staging {
    /// For these edges of a part, which cross in the memory of one device. What several peers are sent lies there once.
    pub(super) fn new(
        fabric: &Fabric,
        device: &SharedDevice,
        plan: &Plan,
        (part, edges): (usize, &[&Edge]),
        piece_bytes: usize,
    ) -> Result<Staging, ConnectEdgesError> {
        let mut room = 0;
        let mut places: Vec<Place> = Vec::new();
        let mut ranges = HashMap::new();
        let mut sent: HashMap<Output, EdgeId> = HashMap::new();
        for edge in edges.iter().filter(|edge| is_written_on_device(edge)) {
            let source = plan.parts[edge.from].graph.node(edge.send).inputs.first().copied();
            if edge.from == part {
                let first = source.map(|source| *sent.entry(source).or_insert(edge.id));
                if let Some(range) = first.and_then(|first| ranges.get(&first)).cloned() {
                    ranges.insert(edge.id, range);
                    continue;
                }
            }
            let first = places.len();
            places.extend(places_of(edge, room, piece_bytes));
            room += edge.bytes().unwrap_or_default().next_multiple_of(ALIGNMENT);
            ranges.insert(edge.id, first..places.len());
        }
        // fits: usize is 64 bits wide
        let region = fabric.alloc_region(room as u64)?;
        let pinned = device.lock().pin(&region.slab()).ok();
        let buffers = Arena::new(&region.slab(), &places)?.into_buffers();
        let of_range = |(edge, range): (EdgeId, std::ops::Range<usize>)| {
            (edge, buffers[range].iter().cloned().collect())
        };
        let pieces = ranges.into_iter().map(of_range).collect();
        Ok(Staging { region, _pinned: pinned, pieces })
    }

    /// Where an edge's tensor goes by.
    pub(super) fn of(&self, edge: EdgeId) -> Option<Arc<[Buffer]>> {
        self.pieces.get(&edge).cloned()
    }

    /// Where that begins.
    pub(super) fn offset(&self, edge: EdgeId) -> usize {
        self.pieces
            .get(&edge)
            .and_then(|pieces| pieces.first())
            .map_or(0, |piece| piece.place().offset)
    }
}

/// The places of an edge's pieces, one behind the other from `start` on.
fn places_of(edge: &Edge, start: usize, piece_bytes: usize) -> impl Iterator<Item = Place> {
    let bytes = edge.bytes().unwrap_or_default();
    (0..pieces(bytes, piece_bytes)).map(move |piece| {
        let offset = piece * piece_bytes;
        Place { offset: start + offset, bytes: (bytes - offset).min(piece_bytes) }
    })
}
