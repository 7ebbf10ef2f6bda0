//! A member's part opened for messages: its memory, what is known of its edges, and a carrier that is connected
//! to every member it shares an edge with. What can come has its place before anybody is told where to send.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{Edge, Plan, Transfer};
use tensorwire_memory::Slab;
use tensorwire_rpc::grpc::{GrpcCarrier, GrpcStyle};
use tensorwire_rpc::ring::RingCarrier;
use tensorwire_rpc::zmq::{ZmqCarrier, ZmqError, ZmqNode};
use tensorwire_rpc::{Carrier, CarrierError, Desk, PeerIdentity, PeerToken};
use tensorwire_runtime::{SessionError, Storage, share_memory};

use super::desk::{Inbound, MessageDesk, Placing};
use super::{MessageExchange, Outbound, SharedCarrier};
use crate::config::Exchange;
use crate::member::{Member, MemberError, Peers, WireOptions};
use crate::open_part::{Lanes, PartError, PartOptions, digest};

/// What is left of a part once its sessions run: for its traffic, and to leave.
#[derive(Clone, Debug)]
pub(crate) struct MessageEnd {
    carrier: SharedCarrier,
    desk: MessageDesk,
}

impl MessageEnd {
    /// Of tensors that were sent.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.desk.bytes_sent()
    }

    /// On their way, here, of tensors that were sent and that came.
    pub(crate) fn bytes_copied(&self) -> u64 {
        self.carrier.lock().bytes_copied() + self.desk.bytes_copied()
    }

    /// Leaves with everything sent.
    pub(crate) fn close(&self, deadline: Deadline) -> Result<(), CarrierError> {
        self.carrier.lock().close(deadline)
    }
}

impl Member {
    /// Opens this member's lanes for messages. All members must.
    pub(crate) fn open_messages(
        &self,
        plan: &Plan,
        lanes: &Lanes,
        options: &PartOptions,
    ) -> Result<(Vec<(MessageExchange, Storage)>, MessageEnd), PartError> {
        let memory = || Slab::anonymous(plan.parts[lanes.part].memory.registered_bytes);
        let storage = |_| Storage::new(&plan.parts[lanes.part], &memory()?);
        let storages: Result<Vec<Storage>, SessionError> =
            lanes.ranks.iter().map(storage).collect();
        let mut storages = storages?;
        share_memory(&plan.parts[lanes.part], storages.iter_mut());
        let (mut inbound, mut edges, mut peers) = (HashMap::new(), Vec::new(), BTreeSet::new());
        for (ranks, storage) in lanes.ranks.iter().zip(&storages) {
            let (mut sent, mut announcers) = (HashMap::new(), HashMap::new());
            for edge in plan.edges.iter().filter(|e| e.from == lanes.part || e.to == lanes.part) {
                let is_sent = edge.from == lanes.part;
                let peer = ranks[if is_sent { edge.to } else { edge.from }];
                let (name, transfer) = (edge.name.clone(), edge.transfer);
                peers.insert(peer);
                let place = if is_sent { Placing::Nowhere } else { placing(edge, storage) };
                if !is_sent || transfer == Transfer::Dynamic {
                    let known = Inbound::new(peer, name.clone(), place);
                    inbound.insert((lane(ranks), edge.id), known);
                }
                if is_sent {
                    sent.insert(edge.id, Outbound { name, to: peer, transfer });
                } else if transfer == Transfer::Dynamic {
                    announcers.insert(edge.id, peer);
                }
            }
            edges.push((lane(ranks), sent, announcers));
        }
        let desk = MessageDesk::new(inbound, options.dynamic_bytes_max);
        let peers: Vec<Rank> = peers.into_iter().collect();
        let carrier = self.open_carrier(&peers, options, &digest(plan), Arc::new(desk.clone()))?;
        let carrier = Arc::new(Mutex::new(carrier));
        let limit = options.exchange.limit();
        let exchange = |(lane, outbound, announcers)| MessageExchange {
            carrier: carrier.clone(),
            desk: desk.clone(),
            lane,
            limit,
            outbound,
            announcers,
            flights: HashMap::new(),
            announced: HashMap::new(),
            over: Vec::new(),
        };
        let exchanges = edges.into_iter().map(exchange).zip(storages).collect();
        Ok((exchanges, MessageEnd { carrier, desk }))
    }

    fn open_carrier(
        &self,
        peers: &[Rank],
        options: &PartOptions,
        digest: &str,
        desk: Arc<dyn Desk>,
    ) -> Result<Box<dyn Carrier>, PartError> {
        Ok(match options.exchange {
            Exchange::GrpcTcp => {
                Box::new(self.open_grpc(GrpcStyle::Codec, peers, options, digest, desk)?)
            }
            Exchange::GrpcTcpTuned => {
                Box::new(self.open_grpc(GrpcStyle::Bare, peers, options, digest, desk)?)
            }
            Exchange::Zmq => {
                let node: Result<ZmqNode, PartError> = self.open_zmq(peers, digest);
                Box::new(ZmqCarrier::new(node?, desk))
            }
            _ => {
                // a ring keeps its order on one
                let wire = WireOptions {
                    queue_pairs: 1,
                    peers: Peers::These(peers.to_vec()),
                    ..options.wire()
                };
                let fabric = self.connect(&wire, digest)?;
                let deadline = Deadline::after(self.setup_patience());
                let carrier = RingCarrier::open(fabric, peers, desk, deadline)?;
                let tender = carrier.tender();
                // it ends with the carrier
                let thread = std::thread::Builder::new().name("rings".to_string());
                thread.spawn(move || tender.tend()).map_err(PartError::Thread)?;
                Box::new(carrier)
            }
        })
    }

    fn open_grpc(
        &self,
        style: GrpcStyle,
        peers: &[Rank],
        options: &PartOptions,
        digest: &str,
        desk: Arc<dyn Desk>,
    ) -> Result<GrpcCarrier, PartError> {
        let at = SocketAddr::new(self.address(), 0);
        let (identity, patience) = (self.peer_identity(), options.step_deadline);
        let mut carrier = GrpcCarrier::bind(identity, at, style, patience, desk)?;
        let endpoints = self.introduce(vec![carrier.address().to_string()], digest)?;
        let deadline = Deadline::after(self.setup_patience());
        for rank in peers {
            let endpoint = first_of(&endpoints, *rank);
            let at = endpoint.parse().map_err(|_| MemberError::BadEndpoint { endpoint })?;
            let connected = carrier.connect(*rank, at, deadline);
            connected.map_err(|source| PartError::Call { peer: *rank, source })?;
        }
        Ok(carrier)
    }

    /// A node of ZeroMQ, connected to `peers`, who each name this member.
    pub(crate) fn open_zmq<E>(&self, peers: &[Rank], digest: &str) -> Result<ZmqNode, E>
    where
        E: From<ZmqError> + From<MemberError>,
    {
        let at = match self.address() {
            IpAddr::V4(address) => format!("tcp://{address}:*"),
            IpAddr::V6(address) => format!("tcp://[{address}]:*"),
        };
        let mut node = ZmqNode::bind(self.peer_identity(), &at)?;
        let endpoints = self.introduce(vec![node.endpoint().to_string()], digest)?;
        for rank in peers {
            node.connect(*rank, self.life(*rank).incarnation, &first_of(&endpoints, *rank))?;
        }
        Ok(node)
    }

    /// Who this member is to peers that it meets in clear text: a token made from the job's secret, which it
    /// does not tell.
    fn peer_identity(&self) -> PeerIdentity {
        let secret = self.credentials().secret.0;
        let digest = Sha256::new().chain_update(b"tensorwire in messages").chain_update(secret);
        let (rank, token) = (self.rank(), PeerToken(digest.finalize().into()));
        PeerIdentity { rank, life: self.life(rank).incarnation, token }
    }
}

/// The only endpoint of a member; none is no endpoint, which is said where it is used.
fn first_of(endpoints: &[Option<Vec<String>>], rank: Rank) -> String {
    let told = endpoints.get(rank.index()).and_then(Option::as_ref);
    told.and_then(|endpoints| endpoints.first()).cloned().unwrap_or_default()
}

/// Lanes meet in the servers; each has a worker of its own, which is its first.
fn lane(ranks: &[Rank]) -> u32 {
    ranks.first().map_or(0, |rank| rank.0)
}

fn placing(edge: &Edge, storage: &Storage) -> Placing {
    match (edge.transfer, storage.buffer(edge.recv.into())) {
        (Transfer::Dynamic, _) => Placing::Unknown(edge.fact.clone()),
        (Transfer::Write(_), Some(buffer)) => Placing::Buffer(buffer),
        _ => Placing::Nowhere,
    }
}
