//! Elastic averaging on GPUs. The centre lies in the memory of its servers' GPUs, which move it; each worker's GPUs move its
//! weights. Where all of them reach each other, a master's GPU copies the centre from there, and its weights to where the servers'
//! GPUs read them; the others of its client read the centre where the master's GPU has put it. No byte of either goes by the host,
//! which tells others when something is done: once the GPU has passed a mark behind it. Else the centre comes, and weights go, as
//! between hosts' memories, and the GPUs copy from there and to there, but for what a master's NIC moves to its GPU's memory and
//! from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_collectives::{Collectives, GroupError};
use tensorwire_cuda::OpenedGpus;
use tensorwire_fabric::{Fabric, Region, RegionDescriptor};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{DeviceMark, DeviceReach, KvWorker, StoreDevice, StoreError};
use tensorwire_launch::Member;
use tensorwire_memory::{Arena, Buffer, CopyPurpose, Keepalive, Place, Slab};
use tensorwire_runtime::{Session, SessionError};

use super::{Averaging, Weight, places};
use crate::carried::Carried;
use crate::config;
use crate::group::{ClientError, SharedGroup, bind_widest};
use crate::job::TrainError;
use crate::store::{DeviceOfStore, reach_by_nic};

/// The first of a worker's GPUs: the one that meets servers and the others of its client.
const FIRST: u32 = 0;

/// The GPUs that a worker averages its weights on.
pub(in crate::job) struct GpusOfCentre {
    pub(in crate::job) gpus: OpenedGpus,
    /// The same, as its end of the store has them.
    pub(in crate::job) device: Arc<DeviceOfStore>,
    /// How the centre gets there.
    pub(in crate::job) reach: DeviceReach,
    /// The way to the others of its client, if there are some, and who is the first of them.
    pub(in crate::job) client: Option<(Fabric, Rank)>,
}

/// What a worker's GPUs do when it meets the centre.
pub(super) struct OnDevice {
    device: Arc<DeviceOfStore>,
    reach: DeviceReach,
    /// By weight: where the session has it.
    homes: Vec<Buffer>,
    /// By weight, in the first GPU's memory: where the centre is read.
    centres: Vec<Buffer>,
    /// By weight of another GPU: what stands for it in the first one's memory, if that is not what is pushed.
    stands: Vec<Option<Buffer>>,
    /// Behind those of the session: by which the GPU knows what it has made ready for a weight.
    first_node: usize,
    /// By which the others of the client map the centre.
    _shown: Option<Region>,
    /// Of the host's memory by which it comes and weights go, where they do.
    _pinned: Vec<Keepalive>,
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
        Space::Device(number) => number,
        Space::Host => FIRST,
    }
}

/// Memory for the centre: a master's own, which the others of its client map. All of them come here at once.
fn room(
    GpusOfCentre { device, client, .. }: &GpusOfCentre,
    (is_master, bytes): (bool, usize),
    group: Option<&SharedGroup>,
    deadline: Deadline,
) -> Result<(Slab, Option<Region>), TrainError> {
    let own = is_master.then(|| device.alloc(FIRST, bytes)).transpose().map_err(failed)?;
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

/// Memory for the centre that nobody maps, by weight; and for what is pushed, of a master whose NIC reaches both.
fn rooms(
    GpusOfCentre { device, reach, .. }: &GpusOfCentre,
    (member, store): (&Member, Option<&mut KvWorker>),
    (places, bytes): (&[Place], usize),
) -> Result<(Vec<Buffer>, Option<Vec<Buffer>>), TrainError> {
    if let Some(store) = store.filter(|_| *reach == DeviceReach::ByNic) {
        let slab = device.alloc_unseen(2 * bytes).map_err(failed)?;
        if reach_by_nic(member, store, &slab) {
            let pushed =
                places.iter().map(|place| Place { offset: bytes + place.offset, ..*place });
            let both: Vec<Place> = places.iter().copied().chain(pushed).collect();
            let mut centres = cut(&slab, &both)?;
            let pushed = centres.split_off(places.len());
            return Ok((centres, Some(pushed)));
        }
    }
    let slab = device.alloc_unseen(bytes).map_err(failed)?;
    Ok((cut(&slab, places)?, None))
}

/// Pins memory of the host that a GPU copies from and to. What is not pinned is copied all the same.
fn pinned<'a>(device: &DeviceOfStore, buffers: impl Iterator<Item = &'a Buffer>) -> Vec<Keepalive> {
    let on_host = buffers.filter(|buffer| !buffer.space().is_device());
    let slabs: BTreeMap<usize, &Slab> =
        on_host.map(|buffer| (buffer.slab().address(), buffer.slab())).collect();
    slabs.into_values().filter_map(|slab| device.pin(slab).ok()).collect()
}

impl Averaging {
    /// As [`Averaging::open`], where weights and centre lie on devices.
    pub(in crate::job) fn open_on_device(
        (how, kernels): (config::Averaging, Arc<Kernels>),
        (store, group): (Option<KvWorker>, Option<SharedGroup>),
        (weights, session): (Vec<Weight>, &Session),
        (member, gpus): (&Member, &GpusOfCentre),
        (carried, deadline): (Carried, Deadline),
    ) -> Result<Averaging, TrainError> {
        let homes = weights.iter().map(|weight| session.buffer(weight.node.into()));
        let homes = homes.collect::<Result<Vec<Buffer>, SessionError>>()?;
        let (places, bytes) = places(&weights);
        let device = gpus.device.clone();
        let mut ends = (store, group);
        let (mut averaging, centres, shown, pinned) = match gpus.reach {
            DeviceReach::ByNic | DeviceReach::ByHost => {
                let (centres, pushed) = rooms(gpus, (member, ends.0.as_mut()), (&places, bytes))?;
                let reached = pushed.as_ref().map(|pushed| [&centres[..], &pushed[..]]);
                let shared = (carried, deadline);
                let averaging = Averaging::open(how, kernels, ends, weights, reached, shared)?;
                let by_host = averaging.centres.iter().chain(&averaging.pushed);
                let pinned = pinned(&device, by_host);
                (averaging, centres, None, pinned)
            }
            DeviceReach::Mapped => {
                let mut averaging = Averaging::new(how, kernels, ends, weights, carried);
                let is_master = averaging.store.is_some();
                let group = averaging.group.as_ref();
                let (slab, shown) = room(gpus, (is_master, bytes), group, deadline)?;
                averaging.centres = cut(&slab, &places)?;
                if let Some(store) = &mut averaging.store {
                    averaging.pushed = cut(&store.alloc_on_device(FIRST, bytes)?, &places)?;
                }
                let centres = averaging.centres.clone();
                (averaging, centres, shown, Vec::new())
            }
        };
        let stand = |(index, home): (usize, &Buffer)| {
            // what is pushed may be in the first GPU's memory already
            let is_there = averaging.pushed.get(index).is_some_and(|from| from.space().is_device());
            let is_far = number_of(home) != FIRST && !is_there;
            is_far.then(|| device.zeros(home.bytes())).transpose().map_err(failed)
        };
        let stands = homes.iter().enumerate().map(stand);
        let stands = stands.collect::<Result<Vec<_>, StoreError>>()?;
        averaging.on_device = Some(OnDevice {
            device: device.clone(),
            reach: gpus.reach,
            homes,
            centres,
            stands,
            first_node: session.part().graph.len(),
            _shown: shown,
            _pinned: pinned,
        });
        Ok(averaging)
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
        let Averaging { how, store, weights, pushed, on_device, carried, .. } = self;
        let Some(on_device) = on_device else { return Ok(()) };
        let copies = on_device.start_aside(pushed, carried)?;
        let mut pushes = Vec::new();
        for ((weight, from), copy) in weights.iter().zip(&*pushed).zip(copies) {
            // one is on its way while the next is copied
            on_device.device.wait(copy).map_err(failed)?;
            if let Some(store) = store.as_mut() {
                pushes.push(store.push(&[weight.key], &[vec![from.clone()]], 0)?);
                carried.to_store(from.bytes());
            }
        }
        let op = Op::ApplyAverage { rate: how.alpha };
        for (index, (weight, home)) in weights.iter().zip(&on_device.homes).enumerate() {
            if number_of(home) == FIRST {
                on_device.moves(index, &op, (weight, home))?;
            }
        }
        if let Some(store) = store {
            pushes.into_iter().try_for_each(|push| store.wait(push, deadline))?;
        }
        // what stands for a weight of another GPU is there, and the servers have read it
        if on_device.homes.iter().any(|home| number_of(home) != FIRST) {
            on_device.finish()?;
        }
        for (index, (weight, home)) in weights.iter().zip(&on_device.homes).enumerate() {
            let stand = on_device.stands[index].as_ref().or(pushed.get(index));
            if let Some(stand) = stand.filter(|_| number_of(home) != FIRST) {
                on_device.moves(index, &op, (weight, stand))?;
                on_device.copy(stand, home, carried)?;
            }
        }
        on_device.finish()
    }
}

impl OnDevice {
    /// True if the centre comes to where it is read, and to the others of the client.
    pub(super) fn is_mapped(&self) -> bool {
        self.reach == DeviceReach::Mapped
    }

    /// Starts to copy a weight's centre from where it came to, if a NIC did not write it where it is read.
    pub(super) fn bring(
        &self,
        index: usize,
        centre: &Buffer,
        carried: &Carried,
    ) -> Result<(), StoreError> {
        match centre.space() {
            Space::Host => self.copy(centre, &self.centres[index], carried).map(|_| ()),
            Space::Device(_) => Ok(()),
        }
    }

    /// Starts to move a weight towards the centre, on the first GPU.
    fn moves(
        &self,
        index: usize,
        op: &Op,
        (weight, here): (&Weight, &Buffer),
    ) -> Result<(), StoreError> {
        // fits: nodes are counted so
        let node = NodeId((self.first_node + index) as u32);
        let named = (node, weight.name.as_str(), FIRST);
        let inputs = [(&weight.spec, &self.centres[index])];
        let operands = (&inputs[..], &[(&weight.spec, here)][..]);
        self.device.start(named, op, operands, false).map_err(failed)
    }

    /// Starts to copy a weight, or the centre of one.
    fn copy(
        &self,
        from: &Buffer,
        to: &Buffer,
        carried: &Carried,
    ) -> Result<DeviceMark, StoreError> {
        let copy = self.device.copy(from, to, 0, from.bytes()).map_err(failed)?;
        let purpose = match (from.space(), to.space()) {
            (Space::Device(from), Space::Device(to)) if from != to => CopyPurpose::BetweenDevices,
            (Space::Device(_), Space::Host) => CopyPurpose::ToHost,
            (Space::Host, Space::Device(_)) => CopyPurpose::ToDevice,
            _ => CopyPurpose::Averaging,
        };
        carried.copied(purpose, from.bytes());
        Ok(copy)
    }

    /// Waits until the GPUs have done all that they were told.
    pub(super) fn finish(&self) -> Result<(), TrainError> {
        Ok(self.device.finish().map_err(failed)?)
    }

    /// Makes the weights here what the centre is that was fetched.
    pub(super) fn adopt(&self, carried: &Carried) -> Result<(), TrainError> {
        for (centre, home) in self.centres.iter().zip(&self.homes) {
            self.copy(centre, home, carried)?;
        }
        self.finish()
    }

    /// Copies a master's weights to where they are pushed from, and those of other GPUs to what stands for them.
    pub(super) fn set_aside(&self, pushed: &[Buffer], carried: &Carried) -> Result<(), TrainError> {
        self.start_aside(pushed, carried)?;
        self.finish()
    }

    /// Starts to do so; returns, by weight, the copy to where it is pushed from.
    fn start_aside(
        &self,
        pushed: &[Buffer],
        carried: &Carried,
    ) -> Result<Vec<DeviceMark>, StoreError> {
        let stands = self.homes.iter().zip(&self.stands);
        for (home, stand) in stands.filter_map(|(home, stand)| Some((home, stand.as_ref()?))) {
            self.copy(home, stand, carried)?;
        }
        let both = self.homes.iter().zip(pushed);
        both.map(|(home, pushed)| self.copy(home, pushed, carried)).collect()
    }

    /// Makes a master's weights what they were when they were set aside.
    pub(super) fn put_back(&self, pushed: &[Buffer], carried: &Carried) -> Result<(), TrainError> {
        for (home, pushed) in self.homes.iter().zip(pushed) {
            self.copy(pushed, home, carried)?;
        }
        self.finish()
    }
}
