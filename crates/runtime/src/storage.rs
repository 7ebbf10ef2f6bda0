//! The tensors of a part: those whose size the plan knew, in buffers cut from its lanes; those that
//! a peer keeps; and those that exist only while a run needs them.

use std::collections::HashMap;

use tensorwire_graph::{Lane, NodeId, Output, Part, Spot};
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_tensor::TensorSpec;

use crate::error::SessionError;

/// Every tensor of a part that there is.
#[derive(Debug)]
pub struct Storage {
    tensors: HashMap<Output, Tensor>,
    staging: HashMap<NodeId, Tensor>,
    /// What the lanes of the host were cut from.
    on_host: [Slab; 2],
    /// Devices whose lane has its place.
    on_devices: Vec<u32>,
}

/// A tensor's place and what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) spec: TensorSpec,
    pub(crate) buffer: Buffer,
    pub(crate) lane: Lane,
}

impl Storage {
    /// Cuts `registered`, which has at least the plan's `registered_bytes`, and fresh private memory.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(part: &Part, registered: &Slab) -> Result<Storage, SessionError> {
        let private = Slab::anonymous(part.memory.private_bytes)?;
        let on_host = [registered.clone(), private.clone()];
        let mut storage = Storage {
            tensors: HashMap::new(),
            staging: HashMap::new(),
            on_host,
            on_devices: Vec::new(),
        };
        storage.cut(part, Lane::Registered, registered)?;
        storage.cut(part, Lane::Private, &private)?;
        Ok(storage)
    }

    /// Gives what the part has on a device its place in memory of the caller's, which has at least as many bytes.
    ///
    /// # Errors
    /// When the memory has another use already.
    pub fn place_on_device(
        &mut self,
        part: &Part,
        device: u32,
        memory: &Slab,
    ) -> Result<(), SessionError> {
        self.cut(part, Lane::Device(device), memory)
    }

    /// Cuts the part's tensors of a lane out of memory for it.
    pub(crate) fn cut(&mut self, part: &Part, lane: Lane, slab: &Slab) -> Result<(), SessionError> {
        self.on_devices.extend(match lane {
            Lane::Device(device) => Some(device),
            Lane::Registered | Lane::Private => None,
        });
        let (mut places, mut owners) = (Vec::new(), Vec::new());
        let mut add = |owner: Owner, spot: Option<&Spot>| {
            if let Some(spot) = spot.filter(|spot| spot.lane == lane) {
                places.push(Place { offset: spot.offset, bytes: spot.spec.bytes() });
                owners.push((owner, spot.clone()));
            }
        };
        for (id, node) in part.graph.nodes() {
            for index in 0..node.facts.len() as u32 {
                let output = Output { node: id, index };
                add(Owner::Tensor(output), part.memory.spot(output));
            }
            add(Owner::Staging(id), part.memory.staging(id));
        }
        let buffers = Arena::new(slab, &places)?.into_buffers();
        for ((owner, spot), buffer) in owners.into_iter().zip(buffers) {
            let tensor = Tensor { spec: spot.spec, buffer, lane };
            match owner {
                Owner::Tensor(output) => self.tensors.insert(output, tensor),
                Owner::Staging(send) => self.staging.insert(send, tensor),
            };
        }
        Ok(())
    }

    /// Memory of the host that a device copies from and to.
    pub(crate) fn on_host(&self) -> impl Iterator<Item = &Slab> {
        self.on_host.iter().filter(|slab| slab.bytes() > 0)
    }

    /// True if what the plan has on this device was given its place.
    pub(crate) fn is_on_device(&self, device: u32) -> bool {
        self.on_devices.contains(&device)
    }

    /// The bytes of a tensor of known size, for whoever exchanges it.
    pub fn buffer(&self, output: Output) -> Option<Buffer> {
        self.tensor(output).map(|tensor| tensor.buffer.clone())
    }

    pub(crate) fn tensor(&self, output: Output) -> Option<&Tensor> {
        self.tensors.get(&output)
    }

    pub(crate) fn staging(&self, send: NodeId) -> Option<&Tensor> {
        self.staging.get(&send)
    }

    pub(crate) fn set(&mut self, output: Output, tensor: Tensor) {
        self.tensors.insert(output, tensor);
    }

    pub(crate) fn remove(&mut self, output: Output) {
        self.tensors.remove(&output);
    }

    /// Makes a received tensor the sender's own, read where it lies.
    pub fn refer(&mut self, recv: NodeId, spec: TensorSpec, buffer: Buffer) {
        // what is a peer's is nothing to send from
        self.set(recv.into(), Tensor { spec, buffer, lane: Lane::Private });
    }
}

enum Owner {
    Tensor(Output),
    Staging(NodeId),
}
