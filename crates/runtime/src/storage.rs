//! The buffers of a part, cut from its two lanes as the memory plan says.

use std::collections::HashMap;

use tensorwire_graph::{Lane, NodeId, Output, Part, Spot};
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_tensor::TensorSpec;

use crate::error::SessionError;

/// Every tensor of a part, in its planned place.
#[derive(Debug)]
pub struct Storage {
    tensors: HashMap<Output, Tensor>,
    staging: HashMap<NodeId, Buffer>,
}

/// A tensor's place and what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) spec: TensorSpec,
    pub(crate) buffer: Buffer,
}

impl Storage {
    /// Cuts `registered`, which has at least the plan's `registered_bytes`, and fresh private memory.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(part: &Part, registered: &Slab) -> Result<Storage, SessionError> {
        let private = Slab::anonymous(part.memory.private_bytes)?;
        let mut lanes = [Cutter::new(registered.clone()), Cutter::new(private)];
        for (id, node) in part.graph.nodes() {
            for index in 0..node.facts.len() as u32 {
                let output = Output { node: id, index };
                if let Some(spot) = part.memory.spot(output) {
                    lanes[lane(spot)].add(Owner::Tensor(output), spot);
                }
            }
            if let Some(spot) = part.memory.staging(id) {
                lanes[lane(spot)].add(Owner::Staging(id), spot);
            }
        }
        let mut storage = Storage { tensors: HashMap::new(), staging: HashMap::new() };
        for cutter in lanes {
            let buffers = Arena::new(&cutter.slab, &cutter.places)?.into_buffers();
            for ((owner, spec), buffer) in cutter.owners.into_iter().zip(buffers) {
                match owner {
                    Owner::Tensor(output) => {
                        storage.tensors.insert(output, Tensor { spec, buffer });
                    }
                    Owner::Staging(send) => {
                        storage.staging.insert(send, buffer);
                    }
                }
            }
        }
        Ok(storage)
    }

    pub(crate) fn tensor(&self, output: Output) -> Option<&Tensor> {
        self.tensors.get(&output)
    }

    pub(crate) fn staging(&self, send: NodeId) -> Option<&Buffer> {
        self.staging.get(&send)
    }
}

enum Owner {
    Tensor(Output),
    Staging(NodeId),
}

struct Cutter {
    slab: Slab,
    places: Vec<Place>,
    owners: Vec<(Owner, TensorSpec)>,
}

impl Cutter {
    fn new(slab: Slab) -> Cutter {
        Cutter { slab, places: Vec::new(), owners: Vec::new() }
    }

    fn add(&mut self, owner: Owner, spot: &Spot) {
        self.places.push(Place { offset: spot.offset, bytes: spot.spec.bytes() });
        self.owners.push((owner, spot.spec.clone()));
    }
}

fn lane(spot: &Spot) -> usize {
    match spot.lane {
        Lane::Registered => 0,
        Lane::Private => 1,
    }
}
