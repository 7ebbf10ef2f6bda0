//! The zero-copy exchange (Xue et al. §3.2): each tensor is written by one one-sided write from where
//! the sender's operator put it to where the receiver's next operator reads it. Before the first step
//! every receiver tells its senders where each tensor goes and which arrival slot announces it.

use std::collections::{HashMap, HashSet};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalSlot, Channel, Completion, Direction, Fabric, LocalSlice, Memcpy, PostError, Region,
    RegionDescriptor, RemoteRegion, RemoteSlice, Signal, Ticket,
};
use tensorwire_graph::{Edge, EdgeId, Plan};
use tensorwire_memory::{Buffer, Loan};

use crate::error::{ConnectError, ExchangeError};
use crate::ports::{Exchange, Sending};

/// An [`Exchange`] over a fabric. Part `i` of the plan runs on rank `i`.
#[derive(Debug)]
pub struct OneSided {
    fabric: Fabric,
    region: Region,
    /// By edge that this part sends.
    routes: HashMap<EdgeId, Route>,
    /// By edge that this part receives.
    slots: HashMap<EdgeId, ArrivalSlot>,
    /// Buffers that the fabric is reading.
    loans: HashMap<EdgeId, Option<Loan>>,
    completions: Vec<Completion>,
    ticket: Ticket,
}

/// Where an edge's tensor goes.
#[derive(Debug)]
struct Route {
    name: String,
    channel: Channel,
    region: RemoteRegion,
    target: Target,
}

/// A receiver's word about one edge: 24 bytes on the wire, little-endian, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    edge: EdgeId,
    slot: u32,
    offset: u64,
    bytes: u64,
}

impl OneSided {
    /// Connects the edges of `plan.parts[part]`: tells every sender where its tensors go, and learns
    /// where ours go. All parts must do it. `region` holds the part's registered lane.
    ///
    /// # Errors
    /// When a peer is lost, too slow, or of another mind about the plan.
    pub fn connect(
        fabric: &Fabric,
        plan: &Plan,
        part: usize,
        region: Region,
        queue_pairs: usize,
        deadline: Deadline,
    ) -> Result<OneSided, ConnectError> {
        let ticket = fabric.ticket();
        let mut exchange = OneSided {
            fabric: fabric.clone(),
            region,
            routes: HashMap::new(),
            slots: HashMap::new(),
            loans: HashMap::new(),
            completions: Vec::new(),
            ticket,
        };
        exchange.tell_senders(plan, part, deadline)?;
        exchange.hear_receivers(plan, part, queue_pairs, deadline)?;
        Ok(exchange)
    }

    fn tell_senders(
        &mut self,
        plan: &Plan,
        part: usize,
        deadline: Deadline,
    ) -> Result<(), ConnectError> {
        let mut words: HashMap<usize, Vec<Target>> = HashMap::new();
        for edge in plan.edges.iter().filter(|edge| edge.to == part) {
            let slot = self.fabric.alloc_arrival()?;
            self.slots.insert(edge.id, slot);
            // every Recv lies in the registered lane; a size or offset is below isize::MAX
            let offset = plan.receive_offset(edge).unwrap_or_default() as u64;
            let bytes = edge.spec.bytes() as u64;
            let target = Target { edge: edge.id, slot: slot.0, offset, bytes };
            words.entry(edge.from).or_default().push(target);
        }
        for (sender, targets) in words {
            let peer = rank(sender);
            let body = encode(&self.region.descriptor(), &targets);
            let channel = self.fabric.channel(peer, 0)?;
            channel
                .send_message(&body, deadline)
                .map_err(|source| ConnectError::Tell { peer, source })?;
        }
        Ok(())
    }

    fn hear_receivers(
        &mut self,
        plan: &Plan,
        part: usize,
        queue_pairs: usize,
        deadline: Deadline,
    ) -> Result<(), ConnectError> {
        let ours: HashMap<EdgeId, &Edge> =
            plan.edges.iter().filter(|e| e.from == part).map(|e| (e.id, e)).collect();
        let mut awaited: HashSet<usize> = ours.values().map(|edge| edge.to).collect();
        while !awaited.is_empty() {
            let message = self.fabric.receive_message(deadline)?;
            let peer = message.from;
            let nonsense = |what: String| ConnectError::Nonsense { peer, what };
            let (descriptor, targets) = decode(&message.body).map_err(nonsense)?;
            if !awaited.remove(&peer.index()) {
                return Err(nonsense("it spoke twice, or receives nothing of ours".to_string()));
            }
            let opened = self.fabric.channel(peer, 0)?.open_region(&descriptor, deadline);
            let region = opened.map_err(|source| ConnectError::Open { peer, source })?;
            for target in targets {
                let edge = ours.get(&target.edge).filter(|edge| edge.to == peer.index());
                let edge = edge.ok_or_else(|| {
                    nonsense(format!("edge {} does not go from us to it", target.edge.0))
                })?;
                if target.bytes != edge.spec.bytes() as u64 {
                    let ours = edge.spec.bytes();
                    let what =
                        format!("'{}' has {ours} bytes here, {} there", edge.name, target.bytes);
                    return Err(nonsense(what));
                }
                // edges of a peer are spread over its queue pairs
                let queue_pair = target.edge.index() % queue_pairs.max(1);
                let channel = self.fabric.channel(peer, queue_pair)?;
                let (name, region) = (edge.name.clone(), region.clone());
                self.routes.insert(target.edge, Route { name, channel, region, target });
            }
        }
        match ours.values().find(|edge| !self.routes.contains_key(&edge.id)) {
            None => Ok(()),
            Some(edge) => Err(ConnectError::Nonsense {
                peer: rank(edge.to),
                what: format!("it did not say where '{}' goes", edge.name),
            }),
        }
    }

    fn check_peers(&self) -> Result<(), ExchangeError> {
        match self.fabric.fault() {
            None => Ok(()),
            Some(fault) => Err(fault.into()),
        }
    }
}

impl Exchange for OneSided {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        let route = &self.routes[&edge];
        let name = || route.name.clone();
        let loan = tensor.map(Buffer::lend).transpose();
        let loan = loan.map_err(|source| ExchangeError::Lent { edge: name(), source })?;
        let place = tensor.map(Buffer::place);
        let posted = route.channel.memcpy(Memcpy {
            // fits: an offset into memory of this process
            local: LocalSlice {
                region: &self.region,
                offset: place.map_or(0, |place| place.offset as u64),
            },
            remote: RemoteSlice { region: &route.region, offset: route.target.offset },
            bytes: place.map_or(0, |place| place.bytes as u64),
            direction: Direction::Write,
            signal: Some(Signal { slot: ArrivalSlot(route.target.slot), epoch }),
            token: u64::from(edge.0),
        });
        match posted {
            Ok(()) => {
                self.loans.insert(edge, loan);
                Ok(Sending::Started)
            }
            Err(PostError::Full { .. }) => Ok(Sending::Full),
            Err(source) => {
                // the first fault says more than what it made of our post
                self.check_peers()?;
                Err(ExchangeError::Post { edge: name(), peer: route.channel.peer(), source })
            }
        }
    }

    fn sent(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        self.fabric.poll(&mut self.completions);
        for completion in self.completions.drain(..) {
            // fits: tokens are the u32 ids that `send` gave
            let edge = EdgeId(completion.token as u32);
            self.loans.remove(&edge);
            if let Err(source) = completion.result {
                if let Some(fault) = self.fabric.fault() {
                    return Err(fault.into());
                }
                let name = self.routes.get(&edge).map(|route| route.name.clone());
                let (edge, peer) = (name.unwrap_or_default(), completion.peer);
                return Err(ExchangeError::Send { edge, peer, source });
            }
            finished.push(edge);
        }
        Ok(())
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> bool {
        self.slots.get(&edge).is_some_and(|slot| self.fabric.arrived(*slot) >= epoch)
    }

    fn observe(&mut self) {
        self.ticket = self.fabric.ticket();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        self.check_peers()?;
        self.fabric.wait(self.ticket, deadline);
        self.check_peers()
    }
}

fn rank(part: usize) -> Rank {
    // fits: a job has far fewer than 2^32 processes
    Rank(part as u32)
}

const TARGET_BYTES: usize = 24;

fn encode(descriptor: &RegionDescriptor, targets: &[Target]) -> Vec<u8> {
    let mut body = descriptor.to_bytes().to_vec();
    for target in targets {
        body.extend_from_slice(&target.edge.0.to_le_bytes());
        body.extend_from_slice(&target.slot.to_le_bytes());
        body.extend_from_slice(&target.offset.to_le_bytes());
        body.extend_from_slice(&target.bytes.to_le_bytes());
    }
    body
}

fn decode(body: &[u8]) -> Result<(RegionDescriptor, Vec<Target>), String> {
    let length = RegionDescriptor::WIRE_BYTES;
    let (head, rest) = body
        .split_at_checked(length)
        .ok_or_else(|| format!("{} bytes are too few for a region descriptor", body.len()))?;
    let descriptor = RegionDescriptor::from_bytes(head).map_err(|error| error.to_string())?;
    if rest.len() % TARGET_BYTES != 0 {
        return Err(format!("{} bytes are no whole number of targets", rest.len()));
    }
    let u32_at = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let u64_at = |bytes: &[u8]| u64::from(u32_at(bytes)) | u64::from(u32_at(&bytes[4..])) << 32;
    let targets = rest.chunks_exact(TARGET_BYTES).map(|word| Target {
        edge: EdgeId(u32_at(word)),
        slot: u32_at(&word[4..]),
        offset: u64_at(&word[8..]),
        bytes: u64_at(&word[16..]),
    });
    Ok((descriptor, targets.collect()))
}
