//! A member's part opened for messages: its memory, what is known of its edges, and a transport that is connected
//! to every member it shares an edge with. What can come has its place before anybody is told where to send.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{Edge, Plan, Transfer};
use tensorwire_launch::{Member, MemberError, Peers, WireOptions};
use tensorwire_memory::Slab;
use tensorwire_runtime::{SessionError, Storage, share_memory};

use super::inbox::{Inbound, Inbox, Placing};
use super::{MessageExchange, Outbound, SharedTransport};
use crate::baseline::Baseline;
use crate::grpc::{GrpcStyle, GrpcTransport};
use crate::ring::RingTransport;
use crate::zmq::{ZmqError, ZmqNode, ZmqTransport};
use crate::{MessageError, MessageSink, MessageTransport, PeerCredentials, PeerIdentity, RpcError};

/// What is left of a part once its sessions run: for its traffic, and to leave.
#[derive(Clone, Debug)]
pub struct MessageEnd {
    transport: SharedTransport,
    inbox: Inbox,
}

impl MessageEnd {
    /// Of tensors that were sent.
    pub fn bytes_sent(&self) -> u64 {
        self.inbox.bytes_sent()
    }

    /// On their way, here, of tensors that were sent and that came.
    pub fn bytes_copied(&self) -> u64 {
        self.transport.lock().bytes_copied() + self.inbox.bytes_copied()
    }

    /// Leaves with everything sent.
    pub fn close(&self, deadline: Deadline) -> Result<(), MessageError> {
        self.transport.lock().close(deadline)
    }
}

/// How a member opens its sessions' message exchanges.
#[derive(Clone, Debug)]
pub struct MessageOptions {
    pub baseline: Baseline,
    /// The fabric below, where messages go over rings.
    pub wire: WireOptions,
    /// Longest that a send may wait for a peer that is alive.
    pub step_deadline: Duration,
    /// Most bytes of tensors whose size is known only when they exist.
    pub dynamic_bytes_max: usize,
    /// The same at every member that made the same plan.
    pub digest: String,
}

/// Why an exchange of messages could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenMessagesError {
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("calling rank {peer}: {source}")]
    Call { peer: Rank, source: RpcError },
    #[error(transparent)]
    Zmq(#[from] ZmqError),
    #[error(transparent)]
    Messages(#[from] MessageError),
    #[error("the thread that moves messages cannot be started: {0}; see ulimit -u")]
    Thread(std::io::Error),
}

impl OpenMessagesError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            OpenMessagesError::Member(error) => error.lost_peer(),
            OpenMessagesError::Call { peer, .. } => Some(*peer),
            OpenMessagesError::Messages(error) => error.peer,
            _ => None,
        }
    }
}

/// Opens the exchanges of `member`, which runs part `part` of the plan once for each of `sessions`: by session, by
/// part, who runs it. All members must.
///
/// # Errors
/// When memory does not suffice, or a peer is lost, late, or has another plan.
pub fn open(
    member: &Member,
    plan: &Plan,
    part: usize,
    sessions: &[Vec<Rank>],
    options: &MessageOptions,
) -> Result<(Vec<(MessageExchange, Storage)>, MessageEnd), OpenMessagesError> {
    let memory = || Slab::anonymous(plan.parts[part].memory.registered_bytes);
    let storage = |_| Storage::new(&plan.parts[part], &memory()?);
    let storages: Result<Vec<Storage>, SessionError> = sessions.iter().map(storage).collect();
    let mut storages = storages?;
    share_memory(&plan.parts[part], storages.iter_mut());
    let (mut inbound, mut edges, mut peers) = (HashMap::new(), Vec::new(), BTreeSet::new());
    for (ranks, storage) in sessions.iter().zip(&storages) {
        let (mut sent, mut announcers) = (HashMap::new(), HashMap::new());
        for edge in plan.edges.iter().filter(|e| e.from == part || e.to == part) {
            let is_sent = edge.from == part;
            let peer = ranks[if is_sent { edge.to } else { edge.from }];
            let (name, transfer) = (edge.name.clone(), edge.transfer);
            peers.insert(peer);
            let place = if is_sent { Placing::Nowhere } else { placing(edge, storage) };
            if !is_sent || transfer == Transfer::Dynamic {
                let known = Inbound::new(peer, name.clone(), place);
                inbound.insert((session(ranks), edge.id), known);
            }
            if is_sent {
                sent.insert(edge.id, Outbound { name, to: peer, transfer });
            } else if transfer == Transfer::Dynamic {
                announcers.insert(edge.id, peer);
            }
        }
        edges.push((session(ranks), sent, announcers));
    }
    let inbox = Inbox::new(inbound, options.dynamic_bytes_max);
    let peers: Vec<Rank> = peers.into_iter().collect();
    let transport =
        open_transport(member, &peers, options, &options.digest, Arc::new(inbox.clone()))?;
    let transport = Arc::new(Mutex::new(transport));
    let baseline = options.baseline;
    let exchange = |(session, outbound, announcers)| MessageExchange {
        transport: transport.clone(),
        inbox: inbox.clone(),
        session,
        baseline,
        outbound,
        announcers,
        flights: HashMap::new(),
        announced: HashMap::new(),
        ended: Vec::new(),
    };
    let exchanges = edges.into_iter().map(exchange).zip(storages).collect();
    Ok((exchanges, MessageEnd { transport, inbox }))
}

fn open_transport(
    member: &Member,
    peers: &[Rank],
    options: &MessageOptions,
    digest: &str,
    inbox: Arc<dyn MessageSink>,
) -> Result<Box<dyn MessageTransport>, OpenMessagesError> {
    Ok(match options.baseline {
        Baseline::GrpcTcp => {
            Box::new(open_grpc(member, GrpcStyle::Codec, peers, options, digest, inbox)?)
        }
        Baseline::GrpcTcpTuned => {
            Box::new(open_grpc(member, GrpcStyle::Bare, peers, options, digest, inbox)?)
        }
        Baseline::Zmq => {
            let node: Result<ZmqNode, OpenMessagesError> = open_zmq(member, peers, digest);
            Box::new(ZmqTransport::new(node?, inbox))
        }
        Baseline::GrpcRdma => {
            // a ring keeps its order on one
            let wire = WireOptions {
                queue_pairs: 1,
                peers: Peers::These(peers.to_vec()),
                ..options.wire.clone()
            };
            let fabric = member.connect(&wire, digest)?;
            let deadline = Deadline::after(member.setup_patience());
            let transport = RingTransport::open(fabric, peers, inbox, deadline)?;
            let tender = transport.tender();
            // it ends with the transport
            let thread = std::thread::Builder::new().name("rings".to_string());
            thread.spawn(move || tender.tend()).map_err(OpenMessagesError::Thread)?;
            Box::new(transport)
        }
    })
}

fn open_grpc(
    member: &Member,
    style: GrpcStyle,
    peers: &[Rank],
    options: &MessageOptions,
    digest: &str,
    inbox: Arc<dyn MessageSink>,
) -> Result<GrpcTransport, OpenMessagesError> {
    let at = SocketAddr::new(member.address(), 0);
    let (credentials, patience) = (credentials(member), options.step_deadline);
    let mut transport = GrpcTransport::bind(credentials, at, style, patience, inbox)?;
    let (me, address) = (transport.identity(), transport.address().to_string());
    let introduced = introduce(member, me, address, peers, digest)?;
    transport.expect(&introduced.iter().map(|(peer, _)| *peer).collect::<Vec<_>>());
    let deadline = Deadline::after(member.setup_patience());
    for (PeerIdentity { rank, .. }, endpoint) in introduced {
        let at = endpoint.parse().map_err(|_| MemberError::BadEndpoint { rank, endpoint })?;
        let connected = transport.connect(rank, at, deadline);
        connected.map_err(|source| OpenMessagesError::Call { peer: rank, source })?;
    }
    Ok(transport)
}

/// Returns a node of ZeroMQ that is connected to `peers`, who each name this member.
///
/// # Errors
/// When a socket cannot be bound, or a peer is lost.
pub fn open_zmq<E>(member: &Member, peers: &[Rank], digest: &str) -> Result<ZmqNode, E>
where
    E: From<ZmqError> + From<MemberError>,
{
    let at = match member.address() {
        IpAddr::V4(address) => format!("tcp://{address}:*"),
        IpAddr::V6(address) => format!("tcp://[{address}]:*"),
    };
    let mut node = ZmqNode::bind(credentials(member), &at)?;
    let (me, endpoint) = (node.identity(), node.endpoint().to_string());
    for (peer, endpoint) in introduce(member, me, endpoint, peers, digest)? {
        node.connect(peer, &endpoint)?;
    }
    Ok(node)
}

fn credentials(member: &Member) -> PeerCredentials {
    let (rank, secret) = (member.rank(), member.credentials().secret.clone());
    PeerCredentials { rank, life: member.life(rank).incarnation, secret }
}

/// Says by the launcher where this end is and which nonce it drew, and hears it of `peers`. What crosses there is sealed.
fn introduce(
    member: &Member,
    me: PeerIdentity,
    endpoint: String,
    peers: &[Rank],
    digest: &str,
) -> Result<Vec<(PeerIdentity, String)>, MemberError> {
    let told = member.introduce(vec![endpoint, me.nonce.to_string()], digest)?;
    let introduced = |rank: &Rank| {
        let rank = *rank;
        // none is no endpoint, which is said where it is used
        let told = told.get(rank.index()).and_then(Option::as_deref).unwrap_or_default();
        let [endpoint, nonce] = [0, 1].map(|at| told.get(at).cloned().unwrap_or_default());
        match nonce.parse() {
            Ok(nonce) => {
                let life = member.life(rank).incarnation;
                Ok((PeerIdentity { rank, life, nonce }, endpoint))
            }
            Err(_) => Err(MemberError::BadEndpoint { rank, endpoint: told.join(", ") }),
        }
    };
    peers.iter().map(introduced).collect()
}

/// Lanes meet in the servers; each has a worker of its own, which is its first.
fn session(ranks: &[Rank]) -> u32 {
    ranks.first().map_or(0, |rank| rank.0)
}

fn placing(edge: &Edge, storage: &Storage) -> Placing {
    match (edge.transfer, storage.buffer(edge.recv.into())) {
        (Transfer::Dynamic, _) => Placing::Unknown(edge.fact.clone()),
        (Transfer::Write(_), Some(buffer)) => Placing::Buffer(buffer),
        _ => Placing::Nowhere,
    }
}
