//! A group before a store: what its members' devices reduce, and what its first member gives the others, crosses over edges of the
//! plan, beside those to the store, which another exchange serves.
//!
//! The plan's proofs of reuse take its server for one task that does all in order, which a store is not. Nothing hangs on that
//! here: whatever orders two members by way of the server passes their first member, who does all in that order itself.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_fabric::Fabric;
use tensorwire_graph::{Edge, EdgeId, Job, Plan, Transfer};
use tensorwire_kernels::{SharedDevice, Shown};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_nn::Program;
use tensorwire_runtime::{
    AllocError, AnnouncedWay, DeviceWay, Events, ExchangeError, OnPeer, OneSided, OneSidedOptions,
    Opening, Ports, Sending, Storage, TensorExchange,
};
use tensorwire_tensor::TensorSpec;

use super::exchange::TURN;
use crate::open_part::{PartError, queue_pairs};
use crate::store::StoreExchange;

/// True if an edge is between two workers.
pub(crate) fn is_of_group(plan: &Plan, edge: &Edge) -> bool {
    let is_worker = |part: usize| plan.parts[part].task.job == Job::Worker;
    is_worker(edge.from) && is_worker(edge.to)
}

/// Bytes of the tensors that a part of a plan gives to other workers in a training step.
pub(crate) fn sent_in_group(plan: &Plan, part: usize) -> u64 {
    let nodes = &plan.runs[Program::TRAIN.0].nodes[part];
    let edges = plan.edges.iter().filter(|edge| edge.from == part && is_of_group(plan, edge));
    let sent = edges.filter(|edge| nodes.binary_search(&edge.send).is_ok());
    // fits: sizes in memory
    sent.filter_map(Edge::bytes).sum::<usize>() as u64
}

/// True if a part gives other workers something from the host's memory, or gets it there.
pub(crate) fn crosses_on_host(plan: &Plan, part: usize) -> bool {
    let here = |edge: &&Edge| edge.from == part || edge.to == part;
    let mut here = plan.edges.iter().filter(here).filter(|edge| is_of_group(plan, edge));
    here.any(|edge| edge.space == Space::Host && edge.transfer != Transfer::Signal)
}

/// The members' edges to each other, to be opened: whose they are, and where.
pub(crate) struct GroupEdges {
    pub(crate) fabric: Fabric,
    /// By part of the plan: who runs it.
    pub(crate) ranks: Vec<Rank>,
    pub(crate) device: SharedDevice,
    /// By device: what the part has there lies here, if others know of that.
    pub(crate) memory: Vec<(Slab, Arc<OwnedFd>)>,
    /// What the part has in registered memory lies here, where none of it goes to other members.
    pub(crate) registered: Option<Slab>,
    /// Devices of the members map each other's memory, should they share one.
    pub(crate) maps_devices: bool,
    pub(crate) dynamic_bytes_max: usize,
}

impl GroupEdges {
    /// Allocates the memory of a part, and opens its edges to the other members, who do so too.
    pub(crate) fn open(
        self,
        plan: &Plan,
        part: usize,
        deadline: Deadline,
    ) -> Result<(OneSided, Storage), PartError> {
        let GroupEdges { fabric, ranks, device, memory, registered, .. } = self;
        let (maps_devices, dynamic_bytes_max) = (self.maps_devices, self.dynamic_bytes_max);
        let is_server = |part: &usize| plan.parts[*part].task.job != Job::Worker;
        let options = OneSidedOptions {
            ranks,
            device: Some(device),
            memory,
            registered,
            maps_devices,
            elsewhere: (0..plan.parts.len()).filter(is_server).collect(),
            ..OneSidedOptions::new(plan, queue_pairs(&fabric.endpoint()), dynamic_bytes_max)
        };
        let opening = Opening::new(&fabric, plan, part, options, deadline)?;
        Ok(opening.complete(deadline)?)
    }
}

/// A member's edges to the others, while it trains.
pub(crate) struct OpenEdges {
    pub(crate) fabric: Fabric,
    /// Bytes of tensors that it gives them in a step.
    pub(crate) sent: u64,
}

impl OpenEdges {
    /// Bytes that were written to the others by the host so far.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.fabric.stats().bytes_written
    }

    /// Says goodbye to the others.
    pub(crate) fn close(&self, deadline: Deadline) -> Result<(), PartError> {
        Ok(self.fabric.close(deadline)?)
    }
}

/// The exchange of a member: the edges to its group, and beside them those that another serves.
pub(crate) struct BesideGroup<E> {
    group: OneSided,
    of_group: HashSet<EdgeId>,
    other: E,
}

impl<E: TensorExchange> BesideGroup<E> {
    pub(crate) fn new(plan: &Plan, group: OneSided, other: E) -> BesideGroup<E> {
        let of_group = plan.edges.iter().filter(|edge| is_of_group(plan, edge));
        let of_group = of_group.map(|edge| edge.id).collect();
        BesideGroup { group, of_group, other }
    }

    fn of(&self, edge: EdgeId) -> &dyn TensorExchange {
        if self.of_group.contains(&edge) { &self.group } else { &self.other }
    }

    fn of_mut(&mut self, edge: EdgeId) -> &mut dyn TensorExchange {
        if self.of_group.contains(&edge) { &mut self.group } else { &mut self.other }
    }
}

impl BesideGroup<StoreExchange> {
    /// The ports of a group's first member, who deals with the store.
    pub(crate) fn ports(self) -> Ports {
        let events = BothEvents { group: self.group.events(), store: self.other.events() };
        Ports::new(events).with_exchange(self)
    }
}

impl<E: TensorExchange + 'static> BesideGroup<E> {
    /// The ports of another member, of whose other edges nothing ever comes.
    pub(crate) fn ports_of_group(self) -> Ports {
        Ports::new(self.group.events()).with_exchange(self)
    }
}

/// What happens in the group, and at the store.
struct BothEvents<G, S> {
    group: G,
    store: S,
}

impl<G: Events, S: Events> Events for BothEvents<G, S> {
    fn observe(&mut self) {
        self.group.observe();
        self.store.observe();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        // each has a fabric of its own
        self.group.wait(deadline.min(Deadline::after(Duration::ZERO)))?;
        self.store.wait(deadline.min(Deadline::after(TURN)))
    }
}

impl<E: TensorExchange> TensorExchange for BesideGroup<E> {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).send(edge, epoch, tensor)
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).announce(edge, epoch, spec, tensor)
    }

    fn announce_in_pieces(&mut self, edge: EdgeId, spec: &TensorSpec, pieces: Arc<[Buffer]>) {
        self.of_mut(edge).announce_in_pieces(edge, spec, pieces);
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        self.of_mut(edge).arrived(edge, epoch)
    }

    fn asked_ns(&self, edge: EdgeId) -> Option<u64> {
        self.of(edge).asked_ns(edge)
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        self.of_mut(edge).announced(edge, epoch)
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).fetch(edge, epoch, into, deadline)
    }

    fn way_of_announced(&self, edge: EdgeId) -> AnnouncedWay {
        self.of(edge).way_of_announced(edge)
    }

    fn fetch_piece(
        &mut self,
        edge: EdgeId,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).fetch_piece(edge, into, deadline)
    }

    fn pieces_fetched(&self, edge: EdgeId) -> usize {
        self.of(edge).pieces_fetched(edge)
    }

    fn on_peer(
        &mut self,
        edge: EdgeId,
        deadline: Deadline,
    ) -> Result<Option<OnPeer>, ExchangeError> {
        self.of_mut(edge).on_peer(edge, deadline)
    }

    fn acknowledge(&mut self, edge: EdgeId, epoch: u64) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).acknowledge(edge, epoch)
    }

    fn way_from_device(&self, edge: EdgeId) -> DeviceWay {
        self.of(edge).way_from_device(edge)
    }

    fn send_piece(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        index: usize,
    ) -> Result<Sending, ExchangeError> {
        self.of_mut(edge).send_piece(edge, epoch, index)
    }

    fn way_to_device(&self, edge: EdgeId) -> Option<Arc<[Buffer]>> {
        self.of(edge).way_to_device(edge)
    }

    fn pieces_arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<usize, ExchangeError> {
        self.of_mut(edge).pieces_arrived(edge, epoch)
    }

    fn why_in_parts(&self, edge: EdgeId) -> Option<&'static str> {
        self.of(edge).why_in_parts(edge)
    }

    fn is_written_by_nic(&self, edge: EdgeId) -> bool {
        self.of(edge).is_written_by_nic(edge)
    }

    fn released(&mut self, edge: EdgeId) {
        self.of_mut(edge).released(edge);
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        self.group.finished(finished)?;
        self.other.finished(finished)
    }

    fn check_peers(&self) -> Result<(), ExchangeError> {
        self.group.check_peers()?;
        self.other.check_peers()
    }

    fn give_up(&mut self, deadline: Deadline) {
        self.group.give_up(deadline);
        self.other.give_up(deadline);
    }

    /// Gradients of such a group are of known size: nothing is allocated for what crosses.
    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        self.group.alloc(bytes)
    }

    fn show(&mut self, memory: &Slab, file: Shown) -> Result<(), AllocError> {
        self.group.show(memory, file)
    }

    fn free(&mut self, slab: &Slab) {
        self.group.free(slab);
    }
}
