//! Elastic averaging on GPUs. The centre lies in the memory of its servers' GPUs, which move it; each worker's GPUs move its
//! weights. A master's GPU copies the centre from there, and its weights to where the servers' GPUs read them; the others of its
//! client read the centre where the master's GPU has put it. No byte of either goes by the host, which tells others when
//! something is done: once the GPU has passed a mark behind it.

use std::sync::Arc;

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::GroupError;
use tensorwire_cuda::OpenedGpus;
use tensorwire_fabric::{Fabric, Region, RegionDescriptor};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{KvWorker, StoreDevice, StoreError};
use tensorwire_memory::{Arena, Buffer, CopyPurpose, Place, Slab};
use tensorwire_runtime::{Session, SessionError};

use super::{Averaging, Weight, places};
use crate::carried::Carried;
use crate::config;
use crate::group::{ClientError, SharedGroup, bind_widest};
use crate::job::TrainError;
use crate::store::DeviceOfStore;

/// The first of a worker's GPUs: the one that meets servers and the others of its client.
const FIRST: u32 = 0;

/// The GPUs that a worker averages its weights on.
pub(in crate::job) struct GpusOfCentre {
    pub(in crate::job) gpus: OpenedGpus,
    /// The same, as its end of the store has them.
    pub(in crate::job) device: Arc<DeviceOfStore>,
    /// The way to the others of its client, if there are some, and who is the first of them.
    pub(in crate::job) client: Option<(Fabric, Rank)>,
}

/// What a worker's GPUs do when it meets the centre.
pub(super) struct OnDevice {
    device: Arc<DeviceOfStore>,
    /// By weight: where the session has it.
    homes: Vec<Buffer>,
    /// By weight, in the first GPU's memory: what servers read of a master's, and what stands for a weight of another GPU.
    copies: Vec<Option<Buffer>>,
    /// Behind those of the session: by which the GPU knows what it has made ready for a weight.
    first_node: usize,
    /// By which the others of the client map the centre.
    _shown: Option<Region>,
}

fn failed(what: String) -> StoreError {
    StoreError::Device { what }
}

fn unshown(error: impl std::fmt::Display) -> ClientError {
    GroupError::Failed(format!("the first member's GPU does not show its memory: {error}")).into()
}

fn cut(slab: &Slab, places: &[Place]) -> Result<Vec<Buffer>, SessionError> {
    Ok(Arena::new(slab, places)?.into_buffers())
}

fn number_of(buffer: &Buffer) -> u32 {
    match buffer.space() {
        tensorwire_base::Space::Device(number) => number,
        tensorwire_base::Space::Host => FIRST,
    }
}

/// Memory for the centre: a master's own, which the others of its client map. All of them come here at once.
fn room(
    GpusOfCentre { device, client, .. }: &GpusOfCentre,
    (is_master, bytes): (bool, usize),
    group: Option<&SharedGroup>,
    deadline: Deadline,
) -> Result<(Slab, Option<Region>), TrainError> {
    let own = is_master.then(|| device.alloc(bytes)).transpose().map_err(failed)?;
    let Some((group, (fabric, first))) = group.zip(client.as_ref()) else {
        let (slab, _) = own.ok_or(ClientError::Alone)?;
        return Ok((slab, None));
    };
    let own = match own {
        Some((slab, file)) => Some((slab, fabric.offer_file(file).map_err(unshown)?)),
        None => None,
    };
    let mut word = [0; RegionDescriptor::WIRE_BYTES];
    if let Some((_, shown)) = &own {
        word = shown.descriptor().to_bytes();
    }
    let vector = bind_widest(group, word.len(), deadline)?.ok_or(ClientError::Alone)?;
    vector.broadcast(group, &mut [&mut word], deadline)?;
    if let Some((slab, shown)) = own {
        return Ok((slab, Some(shown)));
    }
    let shown = RegionDescriptor::from_bytes(&word).map_err(unshown)?;
    let channel = fabric.channel(*first, 0).map_err(unshown)?;
    let file = channel.take_file(&shown, deadline).map_err(unshown)?;
    Ok((device.import(file, bytes).map_err(failed)?, None))
}

impl Averaging {
    /// As [`Averaging::open`], where weights and centre lie on devices.
    pub(in crate::job) fn open_on_device(
        (how, kernels): (config::Averaging, Arc<Kernels>),
        (mut store, group): (Option<KvWorker>, Option<SharedGroup>),
        (weights, session): (Vec<Weight>, &Session),
        gpus: &GpusOfCentre,
        (carried, deadline): (Carried, Deadline),
    ) -> Result<Averaging, TrainError> {
        let homes = weights.iter().map(|weight| session.buffer(weight.node.into()));
        let homes = homes.collect::<Result<Vec<Buffer>, SessionError>>()?;
        let (places, bytes) = places(&weights);
        let (slab, shown) = room(gpus, (store.is_some(), bytes), group.as_ref(), deadline)?;
        let centres = cut(&slab, &places)?;
        let copies = match &mut store {
            Some(store) => {
                let copies = cut(&store.alloc_on_device(bytes)?, &places)?;
                copies.into_iter().map(Some).collect()
            }
            None => {
                let far = homes.iter().map(|home| (number_of(home) != FIRST).then_some(home));
                let copy = |home: &Buffer| gpus.device.zeros(home.bytes()).map_err(failed);
                let copies = far.map(|home| home.map(copy).transpose());
                copies.collect::<Result<Vec<_>, StoreError>>()?
            }
        };
        let (device, first_node) = (gpus.device.clone(), session.part().graph.len());
        let on_device = OnDevice { device, homes, copies, first_node, _shown: shown };
        Ok(Averaging {
            how,
            kernels,
            store,
            group,
            weights,
            centres,
            vectors: Vec::new(),
            pushed: Vec::new(),
            aside: Vec::new(),
            on_device: Some(on_device),
            carried,
        })
    }

    /// Brings the centre to the first member of the client, for the others to read there if it is to be `broadcast`. Who fetches
    /// it for itself does so between two steps: the gradients of the last one came from the others behind their last reading.
    pub(super) fn fetch_on_device(
        &mut self,
        deadline: Deadline,
        broadcast: bool,
    ) -> Result<(), TrainError> {
        let Averaging { store, group, weights, centres, carried, .. } = self;
        let meet = || match group.as_ref().filter(|_| broadcast) {
            Some(group) => group.lock().barrier(deadline).map_err(ClientError::from),
            None => Ok(()),
        };
        // nobody reads the last one any more
        meet()?;
        let mut pulls = Vec::new();
        for (weight, centre) in weights.iter().zip(&*centres) {
            match store {
                Some(store) => {
                    pulls.push(store.pull(&[weight.key], &[vec![centre.clone()]], 0)?);
                    carried.to_store(centre.bytes());
                }
                None => carried.broadcast(centre.bytes()),
            }
        }
        if let Some(store) = store {
            pulls.into_iter().try_for_each(|pull| store.wait(pull, deadline))?;
        }
        // it is there
        Ok(meet()?)
    }

    /// Moves the weights here towards the centre that was fetched, and has the servers move theirs towards a master's.
    pub(super) fn move_on_device(&mut self, deadline: Deadline) -> Result<(), TrainError> {
        let Averaging { how, store, weights, centres, on_device, carried, .. } = self;
        let Some(on_device) = on_device else { return Ok(()) };
        on_device.set_aside(carried)?;
        let mut pushes = Vec::new();
        for (weight, copy) in weights.iter().zip(&on_device.copies) {
            if let (Some(store), Some(copy)) = (store.as_mut(), copy) {
                pushes.push(store.push(&[weight.key], &[vec![copy.clone()]], 0)?);
                carried.to_store(copy.bytes());
            }
        }
        let op = Op::ApplyAverage { rate: how.alpha };
        let each = || weights.iter().zip(&*centres).enumerate();
        for (index, (weight, centre)) in each() {
            let home = &on_device.homes[index];
            if number_of(home) == FIRST {
                on_device.moves(index, &op, (weight, home), centre)?;
            }
        }
        if let Some(store) = store {
            pushes.into_iter().try_for_each(|push| store.wait(push, deadline))?;
        }
        // the servers have read what stands for a weight of another GPU
        for (index, (weight, centre)) in each() {
            let home = &on_device.homes[index];
            if let Some(copy) =
                on_device.copies[index].as_ref().filter(|_| number_of(home) != FIRST)
            {
                on_device.moves(index, &op, (weight, copy), centre)?;
                on_device.copy(copy, home, carried)?;
            }
        }
        on_device.finish()
    }
}

impl OnDevice {
    /// Starts to move a weight towards the centre, on the first GPU.
    fn moves(
        &self,
        index: usize,
        op: &Op,
        (weight, here): (&Weight, &Buffer),
        centre: &Buffer,
    ) -> Result<(), StoreError> {
        // fits: nodes are counted so
        let node = NodeId((self.first_node + index) as u32);
        let named = (node, weight.name.as_str(), FIRST);
        let operands = (&[(&weight.spec, centre)][..], &[(&weight.spec, here)][..]);
        self.device.start(named, op, operands, false).map_err(failed)
    }

    /// Starts to copy a weight, or the centre of one.
    fn copy(&self, from: &Buffer, to: &Buffer, carried: &Carried) -> Result<(), StoreError> {
        self.device.copy(from, to, 0, from.bytes()).map_err(failed)?;
        let purpose = match number_of(from) == number_of(to) {
            true => CopyPurpose::Averaging,
            false => CopyPurpose::BetweenDevices,
        };
        carried.copied(purpose, from.bytes());
        Ok(())
    }

    /// Waits until the GPUs have done all that they were told.
    fn finish(&self) -> Result<(), TrainError> {
        Ok(self.device.finish().map_err(failed)?)
    }

    /// Makes the weights here what the centre is that was fetched.
    pub(super) fn adopt(&self, centres: &[Buffer], carried: &Carried) -> Result<(), TrainError> {
        let mut both = centres.iter().zip(&self.homes);
        both.try_for_each(|(centre, home)| self.copy(centre, home, carried))?;
        self.finish()
    }

    /// Copies the weights to where servers read them, or what stands for them is moved.
    pub(super) fn set_aside(&self, carried: &Carried) -> Result<(), TrainError> {
        let mut both = self.homes.iter().zip(&self.copies);
        both.try_for_each(|(home, copy)| {
            copy.as_ref().map_or(Ok(()), |copy| self.copy(home, copy, carried))
        })?;
        self.finish()
    }

    /// Makes the weights here what they were when they were set aside.
    pub(super) fn put_back(&self, carried: &Carried) -> Result<(), TrainError> {
        let mut both = self.homes.iter().zip(&self.copies);
        both.try_for_each(|(home, copy)| {
            copy.as_ref().map_or(Ok(()), |copy| self.copy(copy, home, carried))
        })?;
        self.finish()
    }
}
