//! Setting the exchange up: every part tells its peers where its memory is and where it listens, and
//! hears the same of them. In two halves, so that one thread may open many parts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_fabric::{
    ArrivalSlot, Channel, Fabric, Message, Region, RegionDescriptor, RegionError, RemoteRegion,
};
use tensorwire_graph::{Edge, EdgeId, Lane, Plan, Transfer};
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_memory::{Arena, Buffer, Place};

use super::announcing::{Announcing, Reached, Reading};
use super::completions::Completions;
use super::giving_up::{Withdrawal, Withdrawals};
use super::introduction::{DeviceMemory, Ear, Introduction};
use super::metadata::SLOT_BYTES;
use super::staging::{self, Staging};
use super::{Inbound, OneSided, OneSidedOptions, Outbound};
use crate::error::{ConnectEdgesError, SessionError};
use crate::storage::Storage;

/// The memory of a part's device, as peers may have it.
#[derive(Debug)]
struct OnDevice {
    device: SharedDevice,
    reach: Reach,
    bytes: u64,
    /// How tensors leave it for other hosts, and why so.
    way: Option<String>,
}

/// How peers reach the memory of a part's device.
#[derive(Debug)]
enum Reach {
    /// Devices of one host map each other's, which have its file by this.
    Mapped(Region),
    /// The fabric's NIC reads and writes it.
    ByNic(Region),
    /// They do not: tensors go by way of the host's memory.
    Staged(Staging),
}

/// A part that has introduced itself and listens to its peers.
#[derive(Debug)]
pub struct Opening {
    fabric: Fabric,
    options: OneSidedOptions,
    edges: Vec<Edge>,
    part: usize,
    storage: Storage,
    lane: Region,
    slots: Region,
    /// By which peers get the memory of the devices, by their numbers, where tensors cross there.
    on_devices: Vec<OnDevice>,
    /// The metadata of each dynamic edge: the receiver's slot, or the sender's copy of it.
    metadata: HashMap<EdgeId, Buffer>,
    ears: HashMap<EdgeId, ArrivalSlot>,
    /// Where it hears that a peer gave up a step.
    withdrawal: ArrivalSlot,
    /// For each tensor that is read where its sender keeps it: where that is in the sender's lane.
    origins: HashMap<EdgeId, Place>,
    /// For each tensor that the device writes into the receiver's memory: where that is there.
    targets: HashMap<EdgeId, Place>,
    /// Parts that have not introduced themselves yet.
    awaited: HashSet<usize>,
    heard: HashMap<usize, Introduction>,
}

impl Opening {
    /// Allocates the memory of `plan.parts[part]` and tells the peers where it is. All parts must do it.
    ///
    /// # Errors
    /// When there is not enough memory, or a peer is lost.
    pub fn new(
        fabric: &Fabric,
        plan: &Plan,
        part: usize,
        options: OneSidedOptions,
        deadline: Deadline,
    ) -> Result<Opening, ConnectEdgesError> {
        let own = match options.registered {
            Some(_) => 0,
            None => plan.parts[part].memory.registered_bytes,
        };
        // fits: the plan checked the sum against the address space
        let lane = fabric.alloc_region(own as u64)?;
        let registered = options.registered.clone().unwrap_or_else(|| lane.slab());
        let mut storage = Storage::new(&plan.parts[part], &registered)?;
        let peer = |edge: &Edge| if edge.from == part { edge.to } else { edge.from };
        let is_here = |edge: &&Edge| {
            (edge.from == part || edge.to == part) && !options.elsewhere.contains(&peer(edge))
        };
        let edges: Vec<Edge> = plan.edges.iter().filter(is_here).cloned().collect();
        let dynamic = edges.iter().filter(|edge| edge.transfer == Transfer::Dynamic);
        let dynamic: Vec<EdgeId> = dynamic.map(|edge| edge.id).collect();
        // fits: slots are counted by edges, which fit u32
        let slots = fabric.alloc_region((dynamic.len() * SLOT_BYTES) as u64)?;
        let places =
            (0..dynamic.len()).map(|i| Place { offset: i * SLOT_BYTES, bytes: SLOT_BYTES });
        let buffers = Arena::new(&slots.slab(), &places.collect::<Vec<_>>())?.into_buffers();
        let origins = edges.iter().filter(|e| e.to == part && e.transfer == Transfer::Reference);
        let origins = origins.map(|edge| {
            let place = origin(plan, edge).expect("the plan refers to what it gave a place only");
            (edge.id, place)
        });
        let targets = edges.iter().filter(|edge| edge.from == part && is_written_on_device(edge));
        let targets = targets.map(|edge| {
            let place = target(plan, edge).expect("the plan has a place for what is written");
            (edge.id, place)
        });
        let mut on_devices = Vec::new();
        let crosses = edges.iter().filter_map(|edge| number_of(edge.space)).max();
        // fits: devices of a process are few
        let given = options.memory.len() as u32;
        for number in 0..crosses.map_or(0, |last| last + 1).max(given) {
            let device = options.device.clone().ok_or(SessionError::NoDevice { part })?;
            let at = (part, number);
            on_devices.push(OnDevice::new(fabric, device, plan, at, &options, &mut storage)?);
        }
        let mut opening = Opening {
            fabric: fabric.clone(),
            options,
            part,
            storage,
            lane,
            slots,
            on_devices,
            metadata: dynamic.into_iter().zip(buffers).collect(),
            ears: HashMap::new(),
            withdrawal: fabric.alloc_arrival()?,
            origins: origins.collect(),
            targets: targets.collect(),
            awaited: edges.iter().map(peer).collect(),
            heard: HashMap::new(),
            edges,
        };
        opening.introduce(plan, deadline)?;
        Ok(opening)
    }

    fn introduce(&mut self, plan: &Plan, deadline: Deadline) -> Result<(), ConnectEdgesError> {
        let mut ears: HashMap<usize, Vec<Ear>> = HashMap::new();
        for edge in &self.edges {
            let is_received = edge.to == self.part;
            let peer = if is_received { edge.from } else { edge.to };
            let ears = ears.entry(peer).or_default();
            let offset = match edge.transfer {
                Transfer::Dynamic => self.metadata[&edge.id].place().offset,
                Transfer::Write(_) if is_received && edge.space.is_device() => {
                    match self.on_device(edge.space).map(|on_device| &on_device.reach) {
                        Some(Reach::ByNic(_)) => target(plan, edge).map_or(0, |place| place.offset),
                        Some(Reach::Staged(staging)) => staging.offset(edge.id),
                        // a device that maps it knows where it goes
                        Some(Reach::Mapped(_)) | None => 0,
                    }
                }
                Transfer::Write(_) if is_received => plan.receive_offset(edge).unwrap_or_default(),
                _ if is_received => 0,
                _ => continue,
            };
            let slot = self.fabric.alloc_arrival()?;
            self.ears.insert(edge.id, slot);
            // fits: sizes and offsets are below isize::MAX
            let (offset, bytes) = (offset as u64, edge.bytes().unwrap_or_default() as u64);
            ears.push(Ear { edge: edge.id, slot: slot.0, offset, bytes });
        }
        for (part, ears) in ears {
            let peer = self.options.ranks[part];
            let (lane, slots) = (self.lane.descriptor(), self.slots.descriptor());
            let shown = |on_device: &OnDevice| {
                let is_staged = on_device.staging().is_some();
                // fits: usize is 64 bits wide
                let piece_bytes = if is_staged { self.options.piece_bytes as u64 } else { 0 };
                DeviceMemory { region: on_device.descriptor(), piece_bytes }
            };
            let devices = self.on_devices.iter().map(shown).collect();
            let withdrawal = self.withdrawal.0;
            let body = Introduction { lane, slots, withdrawal, devices, ears }.encode();
            let sent = self.fabric.channel(peer, 0)?.send_message(&body, deadline);
            sent.map_err(|source| ConnectEdgesError::Tell { peer, source })?;
        }
        Ok(())
    }

    /// Hears the peers of all `openings` of this process out, and connects.
    ///
    /// # Errors
    /// When a peer is lost, too slow, or of another mind about the plan.
    pub fn complete_all(
        mut openings: Vec<Opening>,
        deadline: Deadline,
    ) -> Result<Vec<(OneSided, Storage)>, ConnectEdgesError> {
        while let Some(waiting) = openings.iter().find(|opening| !opening.awaited.is_empty()) {
            let message = waiting.fabric.receive_message(deadline)?;
            let peer = message.from;
            // each rank has an inbox of its own, and one thread may open several ranks
            let takes = |o: &Opening| o.rank() == waiting.rank() && o.awaits(peer).is_some();
            let Some(index) = openings.iter().position(takes) else {
                let what = "it spoke twice, or shares no edge with us".to_string();
                return Err(ConnectEdgesError::Nonsense { peer, what });
            };
            openings[index].hear(&message)?;
        }
        // the openings of one rank are sessions over one fabric
        let mut sessions: HashMap<Rank, Vec<Completions>> = HashMap::new();
        for rank in openings.iter().map(Opening::rank) {
            let count = openings.iter().filter(|other| other.rank() == rank).count();
            sessions.entry(rank).or_insert_with(|| Completions::of_sessions(count).collect());
        }
        let connected = openings.into_iter().map(|opening| {
            let sessions = sessions.get_mut(&opening.rank()).and_then(Vec::pop);
            opening.connect(sessions.expect("as many as openings"), deadline)
        });
        connected.collect()
    }

    /// The device whose memory that is, where tensors cross there.
    fn on_device(&self, space: Space) -> Option<&OnDevice> {
        // fits: devices of a process are few
        self.on_devices.get(number_of(space)? as usize)
    }

    /// By which an edge's tensor goes, where peers do not reach the memory of its device.
    fn staged(&self, edge: &Edge) -> Option<Arc<[Buffer]>> {
        self.on_device(edge.space)?.staging()?.of(edge.id)
    }

    fn rank(&self) -> Rank {
        self.options.ranks[self.part]
    }

    /// As [`Opening::complete_all`], for one.
    ///
    /// # Errors
    /// As there.
    pub fn complete(self, deadline: Deadline) -> Result<(OneSided, Storage), ConnectEdgesError> {
        let mut all = Opening::complete_all(vec![self], deadline)?;
        Ok(all.remove(0))
    }

    fn awaits(&self, peer: Rank) -> Option<usize> {
        self.awaited.iter().copied().find(|part| self.options.ranks[*part] == peer)
    }

    fn hear(&mut self, message: &Message) -> Result<(), ConnectEdgesError> {
        let peer = message.from;
        let nonsense = |what: String| ConnectEdgesError::Nonsense { peer, what };
        let introduction = Introduction::decode(&message.body).map_err(nonsense)?;
        if let Some(part) = self.awaits(peer) {
            self.awaited.remove(&part);
            self.heard.insert(part, introduction);
        }
        Ok(())
    }

    fn connect(
        mut self,
        completions: Completions,
        deadline: Deadline,
    ) -> Result<(OneSided, Storage), ConnectEdgesError> {
        let mut outbound = HashMap::new();
        let mut inbound = HashMap::new();
        let mut withdrawals = Withdrawals::new();
        for (part, introduction) in std::mem::take(&mut self.heard) {
            let peer = self.options.ranks[part];
            let nonsense = |what: String| ConnectEdgesError::Nonsense { peer, what };
            let channel = self.fabric.channel(peer, 0)?;
            withdrawals.push((channel.clone(), ArrivalSlot(introduction.withdrawal)));
            let open = |descriptor| {
                let opened = channel.open_region(descriptor, deadline);
                opened.map_err(|source| ConnectEdgesError::Open { peer, source })
            };
            let (lane, slots) = (open(&introduction.lane)?, open(&introduction.slots)?);
            self.refer(part, &lane)?;
            let by_nic = self.on_devices.iter().any(|on_device| !on_device.is_mapped());
            let mut device_lanes = Vec::new();
            for DeviceMemory { region, piece_bytes } in &introduction.devices {
                device_lanes.push(by_nic.then(|| open(region)).transpose()?);
                if ![0, self.options.piece_bytes as u64].contains(piece_bytes) {
                    return Err(nonsense(format!("pieces of {piece_bytes} bytes")));
                }
            }
            let mut on_device = self.reach_device(part, &channel, &introduction, deadline)?;
            let ears: HashMap<EdgeId, &Ear> =
                introduction.ears.iter().map(|ear| (ear.edge, ear)).collect();
            for edge in self.edges.iter().filter(|e| e.from == part || e.to == part) {
                let ear = ears.get(&edge.id).copied();
                if ear.is_some_and(|ear| ear.bytes != edge.bytes().unwrap_or_default() as u64) {
                    let what = format!("'{}' has another size there", edge.name);
                    return Err(nonsense(what));
                }
                let is_sent = edge.from == self.part;
                if ear.is_none() && (is_sent || edge.transfer == Transfer::Dynamic) {
                    let what = format!("it did not say where it listens for '{}'", edge.name);
                    return Err(nonsense(what));
                }
                // edges of a peer are spread over its queue pairs
                let queue_pair = edge.id.index() % self.options.queue_pairs.max(1);
                let channel = self.fabric.channel(peer, queue_pair)?;
                let name = edge.name.clone();
                if is_sent {
                    let is_dynamic = edge.transfer == Transfer::Dynamic;
                    let number = number_of(edge.space).map(|number| number as usize);
                    let device_lane = number.and_then(|number| device_lanes.get(number)?.clone());
                    let there = number.and_then(|number| introduction.devices.get(number));
                    if number.is_some() && there.is_none() {
                        return Err(nonsense(format!("it has no device for '{}'", edge.name)));
                    }
                    let region = match device_lane {
                        _ if is_dynamic => slots.clone(),
                        Some(device_lane) => device_lane,
                        None => lane.clone(),
                    };
                    let ear = *ear.expect("checked above");
                    let by_fabric = edge.space == Space::Host || by_nic;
                    let is_signal = !(by_fabric && matches!(edge.transfer, Transfer::Write(_)));
                    let listened = self.ears.get(&edge.id).zip(self.metadata.get(&edge.id));
                    let dynamic = listened.map(|(ack, slot)| {
                        let from = self.on_device(edge.space).map(OnDevice::reached);
                        Announcing::new(*ack, slot.clone(), from)
                    });
                    let on_device = on_device.remove(&edge.id);
                    let is_staged_there = there.is_some_and(|there| there.piece_bytes > 0);
                    let on_its_device = is_written_on_device(edge) && is_staged_there;
                    let pieces = match on_its_device {
                        true => staging::pieces(
                            edge.bytes().unwrap_or_default(),
                            self.options.piece_bytes,
                        ),
                        false => 1,
                    };
                    let staged = self.staged(edge);
                    let route = Outbound {
                        name,
                        channel,
                        region,
                        ear,
                        is_signal,
                        on_device,
                        staged,
                        // fits: usize is 64 bits wide
                        pieces: pieces as u64,
                        dynamic,
                    };
                    outbound.insert(edge.id, route);
                } else {
                    let slot = self.ears[&edge.id];
                    let fact = edge.fact.clone();
                    let number = number_of(edge.space).map(|number| number as usize);
                    let there = number.and_then(|number| introduction.devices.get(number));
                    let comes_in_pieces = there.is_some_and(|there| there.piece_bytes > 0);
                    let listened = ear.zip(self.metadata.get(&edge.id));
                    let dynamic = listened.map(|(ear, slot)| {
                        let into = self.on_device(edge.space).map(OnDevice::reached);
                        Reading::new(ArrivalSlot(ear.slot), slot.clone(), into, comes_in_pieces)
                    });
                    let staged = self.staged(edge);
                    let is_by_nic = by_nic && staged.is_none() && is_written_on_device(edge);
                    let region = lane.clone();
                    let ear =
                        Inbound { name, channel, region, slot, fact, dynamic, staged, is_by_nic };
                    inbound.insert(edge.id, ear);
                }
            }
        }
        let rank = self.rank();
        let withdrawal = Withdrawal::new(&self.fabric, self.withdrawal);
        let Opening { fabric, options, storage, lane, slots, on_devices, .. } = self;
        let devices = on_devices.iter().map(|on_device| on_device.region().clone());
        let regions = [lane, slots].into_iter().chain(devices).collect();
        let mut exchange = OneSided::new(
            (fabric, rank),
            options,
            completions,
            regions,
            (outbound, inbound),
            (withdrawal, withdrawals),
        );
        exchange.reached = on_devices.first().map(OnDevice::reached);
        let mut ways: Vec<String> = on_devices.iter().filter_map(|d| d.way.clone()).collect();
        ways.dedup();
        exchange.device_way = Some(ways.join("; ")).filter(|way| !way.is_empty());
        let staged = on_devices.into_iter().filter_map(|on_device| match on_device.reach {
            Reach::Staged(staging) => Some(staging),
            Reach::Mapped(_) | Reach::ByNic(_) => None,
        });
        exchange.staging = staged.collect();
        Ok((exchange, storage))
    }

    /// Makes the tensors of a peer that are read where they lie tensors of this part.
    fn refer(&mut self, part: usize, lane: &RemoteRegion) -> Result<(), ConnectEdgesError> {
        let on_host = |edge: &&Edge| edge.from == part && edge.space == Space::Host;
        let edges = self.edges.iter().filter(on_host);
        let here: Vec<(&Edge, Place)> =
            edges.filter_map(|e| Some((e, *self.origins.get(&e.id)?))).collect();
        if here.is_empty() {
            return Ok(());
        }
        let peer = self.options.ranks[part];
        let shared = lane.slab().ok_or(ConnectEdgesError::NotShared { peer })?;
        let places: Vec<Place> = here.iter().map(|(_, place)| *place).collect();
        let buffers = Arena::new(&shared, &places)?.into_buffers();
        for ((edge, _), buffer) in here.into_iter().zip(buffers) {
            // the plan refers to tensors of known size only
            if let Some(Ok(spec)) = edge.fact.spec() {
                self.storage.refer(edge.recv, spec, buffer);
            }
        }
        Ok(())
    }
}

impl Opening {
    /// Maps the memory of a peer's devices, where tensors cross between them and ours: makes those that are read there tensors
    /// of this part, and returns where those go that are written there.
    fn reach_device(
        &mut self,
        part: usize,
        channel: &Channel,
        introduction: &Introduction,
        deadline: Deadline,
    ) -> Result<HashMap<EdgeId, Buffer>, ConnectEdgesError> {
        let peer = self.options.ranks[part];
        let mut targets = HashMap::new();
        for (number, on_device) in (0..).zip(&self.on_devices) {
            let crosses = |edge: &&Edge| {
                edge.space == Space::Device(number) && (edge.from == part || edge.to == part)
            };
            let all: Vec<Edge> = self.edges.iter().filter(crosses).cloned().collect();
            if all.is_empty() || !on_device.is_mapped() {
                continue;
            }
            // fits: devices of a process are few
            let Some(shown) = introduction.devices.get(number as usize) else {
                let what = format!("it has no device for '{}'", all[0].name);
                return Err(ConnectEdgesError::Nonsense { peer, what });
            };
            let RegionDescriptor { key, bytes } = shown.region;
            let taken = channel.take_file(&RegionDescriptor { key, bytes: 0 }, deadline);
            let file = taken.map_err(|source| ConnectEdgesError::Open { peer, source })?;
            // fits: usize is 64 bits wide, and the driver holds it against the file
            let memory = on_device.device.lock().import(number, file, bytes as usize);
            let memory = memory.map_err(|source| ConnectEdgesError::Device { peer, source })?;
            let place = |edge: &Edge| {
                self.origins.get(&edge.id).or_else(|| self.targets.get(&edge.id)).copied()
            };
            let here: Vec<(Edge, Place)> =
                all.into_iter().filter_map(|edge| Some((edge.clone(), place(&edge)?))).collect();
            let places: Vec<Place> = here.iter().map(|(_, place)| *place).collect();
            let buffers = Arena::new(&memory, &places)?.into_buffers();
            for ((edge, _), buffer) in here.into_iter().zip(buffers) {
                match edge.fact.spec() {
                    Some(Ok(spec)) if edge.from == part => {
                        self.storage.refer(edge.recv, spec, buffer);
                    }
                    _ => drop(targets.insert(edge.id, buffer)),
                }
            }
        }
        Ok(targets)
    }
}

impl OnDevice {
    /// Allocates the memory of a part's device, and gives its tensors their places in it.
    fn new(
        fabric: &Fabric,
        device: SharedDevice,
        plan: &Plan,
        (part, number): (usize, u32),
        options: &OneSidedOptions,
        storage: &mut Storage,
    ) -> Result<OnDevice, ConnectEdgesError> {
        let here = &plan.parts[part];
        // fits: devices of a process are few
        let bytes = here.memory.device_bytes.get(number as usize).copied().unwrap_or_default();
        let failed = |source| SessionError::Device { name: here.task.to_string(), source };
        let (memory, file) = match options.memory.get(number as usize) {
            Some((memory, file)) => {
                let copied = file.try_clone();
                (memory.clone(), copied.map_err(|error| DeviceFailure::Device(Box::new(error))))
            }
            None => device.lock().alloc_shared(number, bytes).map_err(failed)?,
        };
        storage.cut(here, Lane::Device(number), &memory)?;
        let mut way = None;
        let staged = || Staging::new(fabric, &device, plan, (part, number), options.piece_bytes);
        let reach = if fabric.has_files() && options.maps_devices {
            Reach::Mapped(fabric.offer_file(file.map_err(failed)?)?)
        } else if fabric.has_files() {
            let why = "not all GPUs of this job reach each other's memory (`nvidia-smi topo -p2p r` shows which do)";
            way = Some(format!("tensors of GPUs go by way of pinned host memory: {why}"));
            Reach::Staged(staged()?)
        } else {
            let shown = device.lock().dma_buf(&memory).map_err(|error| error.to_string());
            match fabric.adopt_device(&memory, shown) {
                Ok((region, how)) => {
                    way = Some(format!("GPUDirect RDMA: the NIC reaches the GPU's memory {how}"));
                    Reach::ByNic(region)
                }
                Err(
                    why @ (RegionError::NoNic
                    | RegionError::NearPeers
                    | RegionError::Unreached { .. }),
                ) => {
                    way = Some(format!("tensors of GPUs go by way of pinned host memory: {why}"));
                    Reach::Staged(staged()?)
                }
                Err(error) => return Err(error.into()),
            }
        };
        // fits: usize is 64 bits wide
        Ok(OnDevice { device, reach, bytes: bytes as u64, way })
    }

    fn is_mapped(&self) -> bool {
        matches!(self.reach, Reach::Mapped(_))
    }

    fn reached(&self) -> Reached {
        match self.reach {
            Reach::Mapped(_) => Reached::Mapped,
            Reach::ByNic(_) => Reached::ByNic,
            Reach::Staged(_) => Reached::Staged,
        }
    }

    /// By which its tensors go, where peers do not reach its memory.
    fn staging(&self) -> Option<&Staging> {
        match &self.reach {
            Reach::Staged(staging) => Some(staging),
            Reach::Mapped(_) | Reach::ByNic(_) => None,
        }
    }

    fn region(&self) -> &Region {
        match &self.reach {
            Reach::Mapped(region) | Reach::ByNic(region) => region,
            Reach::Staged(staging) => &staging.region,
        }
    }

    fn descriptor(&self) -> RegionDescriptor {
        match self.is_mapped() {
            true => RegionDescriptor { key: self.region().descriptor().key, bytes: self.bytes },
            false => self.region().descriptor(),
        }
    }
}

fn number_of(space: Space) -> Option<u32> {
    match space {
        Space::Device(number) => Some(number),
        Space::Host => None,
    }
}

pub(super) fn is_written_on_device(edge: &Edge) -> bool {
    edge.space.is_device() && matches!(edge.transfer, Transfer::Write(_))
}

/// Where an edge's tensor goes in the memory of its receiver's device.
fn target(plan: &Plan, edge: &Edge) -> Option<Place> {
    let spot = plan.parts[edge.to].memory.spot(edge.recv.into())?;
    Some(Place { offset: spot.offset, bytes: spot.spec.bytes() })
}

/// Where an edge's tensor lies in its sender's registered lane, or its device's memory.
fn origin(plan: &Plan, edge: &Edge) -> Option<Place> {
    let sender = &plan.parts[edge.from];
    let sent = sender.graph.node(edge.send).inputs.first()?;
    let spot = sender.memory.spot(*sent)?;
    Some(Place { offset: spot.offset, bytes: spot.spec.bytes() })
}
