//! Setting the exchange up: every part tells its peers where its memory is and where it listens, and
//! hears the same of them. In two halves, so that one thread may open many parts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_fabric::{
    ArrivalSlot, Channel, Fabric, Message, Region, RegionDescriptor, RemoteRegion,
};
use tensorwire_graph::{Edge, EdgeId, Plan, Transfer};
use tensorwire_memory::{Arena, Buffer, Place};

use super::announcing::{Announcing, Reached, Reading};
use super::completions::Completions;
use super::giving_up::{Withdrawal, Withdrawals};
use super::introduction::{DeviceMemory, Ear, Introduction};
use super::metadata::SLOT_BYTES;
use super::reach::{Far, OnDevice, maps};
use super::staging;
use super::{Inbound, OneSided, OneSidedOptions, Outbound};
use crate::error::{ConnectEdgesError, SessionError};
use crate::storage::Storage;

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
        let peer = |edge: &Edge| peer_of(edge, part);
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
            let crosses = edges.iter().filter(|edge| edge.space == Space::Device(number));
            let at = (part, number, crosses.collect());
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
            let peer = peer_of(edge, self.part);
            let ears = ears.entry(peer).or_default();
            let offset = match edge.transfer {
                Transfer::Dynamic => self.metadata[&edge.id].place().offset,
                Transfer::Write(_) if is_received && edge.space.is_device() => {
                    match self.far(edge) {
                        Some(Far::ByNic(_)) => target(plan, edge).map_or(0, |place| place.offset),
                        Some(Far::Staged(staging)) => staging.offset(edge.id),
                        // a device that maps it knows where it goes
                        None => 0,
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
            // fits: usize is 64 bits wide
            let piece_bytes = self.options.piece_bytes as u64;
            let maps = self.maps(part);
            let devices = self.on_devices.iter().map(|device| device.shown(maps, piece_bytes));
            let devices = devices.collect();
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

    /// True if the devices of a part and this one map each other's memory.
    fn maps(&self, part: usize) -> bool {
        maps(&self.fabric, &self.options, part)
    }

    /// How the other end of an edge reaches the memory of its device here, if its own does not map that.
    fn far(&self, edge: &Edge) -> Option<&Far> {
        let far = self.on_device(edge.space)?.far.as_ref();
        far.filter(|_| !self.maps(peer_of(edge, self.part)))
    }

    /// How the other end of an edge reaches the memory of its device here, if it crosses in one.
    fn reached(&self, edge: &Edge) -> Option<Reached> {
        self.on_device(edge.space)?;
        Some(match self.far(edge) {
            None => Reached::Mapped,
            Some(Far::ByNic(_)) => Reached::ByNic,
            Some(Far::Staged(_)) => Reached::Staged,
        })
    }

    /// By which an edge's tensor goes, where its other end does not reach the memory of its device.
    fn staged(&self, edge: &Edge) -> Option<Arc<[Buffer]>> {
        match self.far(edge)? {
            Far::Staged(staging) => staging.of(edge.id),
            Far::ByNic(_) => None,
        }
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
            let maps = self.maps(part);
            let mut device_lanes = Vec::new();
            for (number, DeviceMemory { region, piece_bytes }) in (0..).zip(&introduction.devices) {
                let is_written =
                    |edge: &Edge| edge.to == part && edge.space == Space::Device(number) && !maps;
                let is_opened = self.edges.iter().any(is_written);
                device_lanes.push(is_opened.then(|| open(region)).transpose()?);
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
                    let by_fabric = edge.space == Space::Host || !maps;
                    let is_signal = !(by_fabric && matches!(edge.transfer, Transfer::Write(_)));
                    let listened = self.ears.get(&edge.id).zip(self.metadata.get(&edge.id));
                    let dynamic = listened
                        .map(|(ack, slot)| Announcing::new(*ack, slot.clone(), self.reached(edge)));
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
                        let into = self.reached(edge);
                        Reading::new(ArrivalSlot(ear.slot), slot.clone(), into, comes_in_pieces)
                    });
                    let staged = self.staged(edge);
                    let is_by_nic = !maps && staged.is_none() && is_written_on_device(edge);
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
        let devices = on_devices.iter().flat_map(OnDevice::regions).cloned();
        let regions = [lane, slots].into_iter().chain(devices).collect();
        let mut exchange = OneSided::new(
            (fabric, rank),
            options,
            completions,
            regions,
            (outbound, inbound),
            (withdrawal, withdrawals),
        );
        let first = on_devices.first();
        exchange.maps = first.is_some_and(|first| first.mapped.is_some());
        exchange.by_nic = first.is_some_and(|first| matches!(first.far, Some(Far::ByNic(_))));
        let mut ways: Vec<String> = on_devices.iter().filter_map(|d| d.way.clone()).collect();
        ways.dedup();
        exchange.device_way = Some(ways.join("; ")).filter(|way| !way.is_empty());
        let staged = on_devices.into_iter().filter_map(|on_device| match on_device.far {
            Some(Far::Staged(staging)) => Some(staging),
            Some(Far::ByNic(_)) | None => None,
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
            let is_read_there = |edge: &Edge| edge.transfer == Transfer::Reference;
            match self.maps(part) {
                _ if all.is_empty() => continue,
                // the plan was told that this peer is on the same host
                false if all.iter().any(is_read_there) => {
                    return Err(ConnectEdgesError::NotShared { peer });
                }
                false => continue,
                true => {}
            }
            // fits: devices of a process are few
            let Some(shown) = introduction.devices.get(number as usize) else {
                let what = format!("it has no device for '{}'", all[0].name);
                return Err(ConnectEdgesError::Nonsense { peer, what });
            };
            if shown.piece_bytes > 0 {
                let what = format!("it does not map the memory of '{}'", all[0].name);
                return Err(ConnectEdgesError::Nonsense { peer, what });
            }
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

/// The other end of an edge of a part.
pub(super) fn peer_of(edge: &Edge, part: usize) -> usize {
    if edge.from == part { edge.to } else { edge.from }
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
