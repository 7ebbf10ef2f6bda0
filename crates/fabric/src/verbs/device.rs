//! Opening, connecting and closing a verbs fabric.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tensorwire_base::{Deadline, Rank};
use tensorwire_memory::{DmaBuf, Slab};

use super::choice::{NicChoice, choose};
use super::ibv::{self, Context, Path, ProtectionDomain, Remote};
use super::progress::{Duties, Owner, PeerTable, Poller, Queue};
use super::queue_pair::{self, Depth, INLINE_BYTES, NOTES, QueuePair};
use super::region;
use super::survey::{self, LinkLayer, Nic};
use super::wire::{Introduction, NOTE_BYTES};
use super::{PathChoice, VerbsOptions, VerbsUnusable};
use crate::api::ArrivalSlot;
use crate::arrival::ArrivalMode;
use crate::common::{Core, Peer};
use crate::config::{Endpoint, FabricConfig, PeerAddress};
use crate::control::{Attached, Control, Frame, Link, rank_list};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, FaultCause, OpenFabricError, OpenRegionError, PeerFault, PostError,
    RegionError, SendMessageError,
};
use crate::flags::{FlagTable, Watched};
use crate::handshake::Purpose;
use crate::listener::{Listener, Socket};
use crate::mesh::{Connected, Mesh};
use crate::raw_io;
use crate::region::{Region, RegionDescriptor, RegionMemory, RemoteRegion};

/// 4.096 µs · 2^14 = 67 ms, as most of the field has it; six retries make half a second.
const TIMEOUT: u8 = 14;
/// Reads outstanding on one queue pair.
const READS_MAX: u32 = 16;
/// How long a peer's kernel may be silent; where a host may be for longer than 6 s, so much longer.
const SILENCE: Duration = Duration::from_millis(3900);
/// Signals that may be under way to a receiver that has not looked yet.
const WINDOW_MAX: u32 = 1024;

#[derive(Debug)]
pub(crate) struct VerbsDevice {
    core: Arc<Core>,
    listening: SocketAddr,
    end: Arc<NicEnd>,
    mesh: Mesh,
    control: Control,
    pollers: RwLock<Vec<Poller>>,
    pub(super) peers: Arc<PeerTable>,
    watched: Arc<Watched>,
    choices: Mutex<Vec<String>>,
}

/// The NIC as this process uses it.
#[derive(Debug)]
pub(super) struct NicEnd {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) depth: Depth,
    /// Payload that travels in its request, where the device takes any.
    pub(super) inline_bytes: u32,
    nic: Nic,
    choice: NicChoice,
    way: PathChoice,
}

/// A NIC that was chosen, opened, and found to be of use.
struct Taken {
    nic: Nic,
    choice: NicChoice,
    domain: Arc<ProtectionDomain>,
    inline_bytes: u32,
}

impl Taken {
    fn open(options: &VerbsOptions, near: Option<IpAddr>) -> Result<Taken, VerbsUnusable> {
        let mut found = survey::look()?;
        let nics: Vec<Nic> = found.iter().map(|(nic, _)| nic.clone()).collect();
        let choice = choose(&nics, options, near)?;
        let (nic, context) = found.swap_remove(choice.nic);
        let domain = ProtectionDomain::new(&context).map_err(|error| VerbsUnusable {
            reason: format!("{} gives no protection domain ({error})", nic.name),
            mend: "end other users of the NIC, or see dmesg".into(),
        })?;
        let inline_bytes = probe(&domain, &context, &nic, INLINE_BYTES)?;
        Ok(Taken { nic, choice, domain, inline_bytes })
    }
}

impl NicEnd {
    fn open(options: &VerbsOptions, config: &FabricConfig) -> Result<NicEnd, VerbsUnusable> {
        let near = Some(config.endpoint.ip()).filter(|ip| !ip.is_unspecified());
        let Taken { nic, choice, domain, inline_bytes } = Taken::open(options, near)?;
        // fits: check_config allows 2^20 memcpys
        let memcpys = config.queue_depth as u32;
        let requests_max = nic.requests_max.max(64);
        let window = (2 * memcpys).clamp(16, WINDOW_MAX).min(requests_max - NOTES);
        let sends = (2 * memcpys + NOTES).min(requests_max);
        let depth = Depth { sends, window, memcpys };
        Ok(NicEnd { domain, depth, inline_bytes, nic, choice, way: options.path })
    }

    pub(super) fn context(&self) -> &Context {
        self.domain.context()
    }

    pub(super) fn port_number(&self) -> u8 {
        self.nic.ports[self.choice.port].number
    }

    pub(super) fn partition(&self) -> u16 {
        self.way.partition
    }

    pub(super) fn description(&self) -> &str {
        &self.choice.reason
    }

    fn gid(&self) -> &survey::Gid {
        &self.nic.ports[self.choice.port].gids[self.choice.gid]
    }

    pub(super) fn gid_address(&self) -> IpAddr {
        self.gid().address
    }

    /// What both ends can: the smaller of each.
    fn path(&self, theirs: &Introduction) -> Path {
        let port = &self.nic.ports[self.choice.port];
        let mine = [self.nic.reads_max, self.nic.read_targets_max];
        let both = [theirs.reads_max, theirs.read_targets_max].map(u32::from);
        let reads = mine.into_iter().chain(both).fold(READS_MAX, u32::min).max(1);
        Path {
            port: port.number,
            gid_index: self.gid().index as u8, // fits: the survey leaves larger ones out
            by_lid: port.link == LinkLayer::InfiniBand && theirs.by_lid,
            mtu: port.mtu.min(theirs.mtu),
            reads_max: reads as u8, // fits: at most READS_MAX
            timeout: TIMEOUT,
            choice: self.way,
        }
    }
}

fn raise_memlock(limit: u64) -> String {
    let mend = crate::limits::memlock_mend();
    format!("this process may lock {limit} bytes in memory; raise it ({mend})")
}

/// How many bytes of payload the device takes inside a request: messages and flags need a few.
fn probe(
    domain: &Arc<ProtectionDomain>,
    context: &Arc<Context>,
    nic: &Nic,
    inline_bytes: u32,
) -> Result<u32, VerbsUnusable> {
    // some refuse more than they take, and do not grant less
    let fewest = NOTE_BYTES as u32; // fits: some bytes
    let made = ibv::CompletionQueue::new(context, 16, 0).and_then(|queue| {
        let make = |bytes| domain.create_queue_pair(&queue, 4, 4, bytes);
        make(inline_bytes).or_else(|_| make(fewest))
    });
    let made = made.map_err(|error| VerbsUnusable {
        reason: format!("{} makes no queue pair ({error})", nic.name),
        mend: match region::memlock_limit() {
            Some(limit) => raise_memlock(limit),
            None => "see dmesg; does the NIC support reliable connected queue pairs?".into(),
        },
    })?;
    let granted = made.inline_bytes_max().min(inline_bytes);
    match granted as usize >= NOTE_BYTES {
        true => Ok(granted),
        false => Err(VerbsUnusable {
            reason: format!("{} takes {granted} bytes inside a request", nic.name),
            mend: format!("use a NIC that takes {NOTE_BYTES}"),
        }),
    }
}

pub(crate) fn open(
    options: &VerbsOptions,
    config: FabricConfig,
) -> Result<(Arc<Core>, Arc<dyn Device>), OpenFabricError> {
    let core = Core::private(config)?;
    let device = VerbsDevice::open(options, core.clone())?;
    Ok((core, Arc::new(device)))
}

/// See [`crate::verbs_usable`].
pub(super) fn usable(
    options: &VerbsOptions,
    near: Option<IpAddr>,
) -> Result<String, VerbsUnusable> {
    Ok(Taken::open(options, near)?.choice.reason)
}

fn dial(endpoint: &Endpoint, deadline: Deadline) -> Option<std::io::Result<Socket>> {
    let Endpoint::Verbs(address) = endpoint.far() else {
        return None;
    };
    // zero would be an error of its own
    let timeout = deadline.remaining().max(Duration::from_millis(1));
    Some(TcpStream::connect_timeout(address, timeout).map(Socket::Tcp))
}

/// A host that dies says nothing on any wire. Little goes over a control connection, and its kernel
/// answers even for a process that is stopped, so silence may be short here.
fn notice_silence(socket: &OwnedFd, liveness: Duration) -> std::io::Result<()> {
    use rustix::net::sockopt;
    let silence = SILENCE.max(liveness * 13 / 20);
    // whole seconds; the kernel looks at the limit only when it probes
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, silence.as_millis() as u32)?; // fits: at most an hour
    Ok(raw_io::retry_linearly(socket)?)
}

impl VerbsDevice {
    pub(crate) fn open(
        options: &VerbsOptions,
        core: Arc<Core>,
    ) -> Result<VerbsDevice, OpenFabricError> {
        let config = core.config();
        let end = Arc::new(NicEnd::open(options, config)?);
        let system =
            |doing| move |source: std::io::Error| OpenFabricError::System { doing, source };
        let listen = |source| OpenFabricError::Listen { at: config.endpoint.to_string(), source };
        let listener = TcpListener::bind(config.endpoint).map_err(listen)?;
        let listening = listener.local_addr().map_err(listen)?;
        tracing::info!(me = %core.me().rank, "RDMA: {}", end.description());
        let peers = Arc::new(PeerTable::new(HashMap::new()));
        let control = Control::start(core.clone(), Owner::new(core.clone(), peers.clone()))
            .map_err(system("start the control thread"))?;
        let mesh = Mesh::new(core.clone(), Listener::Tcp(listener), "verbs", dial);
        let choices = Mutex::new(vec![end.description().to_string()]);
        let (pollers, watched) = (RwLock::default(), Arc::default());
        Ok(VerbsDevice { core, listening, end, mesh, control, pollers, peers, watched, choices })
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.end.domain
    }

    pub(super) fn nic(&self) -> &Nic {
        &self.end.nic
    }

    fn mode(&self) -> ArrivalMode {
        self.core.config().arrival.unwrap_or_default()
    }

    /// True if the bytes of regions may land in any order.
    pub(super) fn relaxes(&self) -> bool {
        self.mode() != ArrivalMode::FlagTail
    }

    /// Completion queues for so many more peers, with room for all their requests.
    fn start_pollers(&self, peers: usize) -> Result<Vec<Arc<Queue>>, ConnectError> {
        let system = |doing| move |source: std::io::Error| ConnectError::System { doing, source };
        let config = self.core.config();
        let (queues, depth) = (config.completion_queues, self.end.depth);
        let pairs = (peers * config.queue_pairs_per_peer).div_ceil(queues);
        let entries = (depth.sends + depth.receives()) as usize * pairs.max(1);
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        if entries > self.nic().completions_max {
            let source = std::io::Error::other(format!(
                "{entries} entries a completion queue, the NIC has {}: lower queue_depth, or raise completion_queues",
                self.nic().completions_max
            ));
            return Err(ConnectError::System { doing: "make completion queues", source });
        }
        let mut started = Vec::with_capacity(queues);
        let mut pollers = self.pollers.write();
        for index in 0..queues {
            let completions =
                ibv::CompletionQueue::new(self.domain().context(), entries, pollers.len())
                    .map_err(system("make a completion queue"))?;
            let duties = Duties {
                core: self.core.clone(),
                end: self.end.clone(),
                peers: self.peers.clone(),
                watched: self.watched.clone(),
                is_first: pollers.is_empty(),
            };
            let poller = Poller::start(completions, duties, index);
            let poller = poller.map_err(system("start a completion queue"))?;
            started.push(poller.queue.clone());
            pollers.push(poller);
        }
        Ok(started)
    }

    /// Makes the queue pairs to each peer, tells of them, and connects them to the peer's.
    fn attach(
        &self,
        connected: Vec<Connected>,
        deadline: Deadline,
    ) -> Result<Vec<Arc<Link>>, ConnectError> {
        if connected.is_empty() {
            return Ok(Vec::new());
        }
        let queues = self.start_pollers(connected.len())?;
        let mut links = Vec::with_capacity(connected.len());
        let mut next = 0;
        for mut peer in connected {
            let rank = peer.address.rank;
            let system = |source| ConnectError::System { doing: "serve a connection", source };
            let control = peer.connections.remove(0);
            notice_silence(&control.socket, self.core.config().liveness).map_err(system)?;
            let link = self.control.add(Peer::new(&peer.address), control).map_err(system)?;
            let failed = |error: std::io::Error| ConnectError::QueuePairs {
                rank,
                reason: self.explain(&error),
            };
            let mut pairs = Vec::new();
            // fits: at most 1024, by check_config
            for index in 0..self.core.config().queue_pairs_per_peer as u32 {
                let queue = &queues[next % queues.len()];
                next += 1;
                let (core, end) = (&self.core, &self.end);
                let flags = self.flag_table(rank, index)?;
                let made = QueuePair::new(core, &link, end, queue, index, flags);
                pairs.push(made.map_err(failed)?);
            }
            let introduction = self.introduce(&pairs).encode();
            self.peers.write().insert(rank, pairs);
            // fits: usize is 64 bits wide
            let slots = self.core.board().slots() as u64;
            link.send(Frame::Attach(Attached { slots, board: None, introduction }));
            links.push(link);
        }
        self.control.await_connected(&links, deadline, |link| link.attach.lock().is_some())?;
        for link in &links {
            self.connect_pairs(link)?;
        }
        Ok(links)
    }

    /// Where a peer's flags go that it writes through one queue pair; nowhere unless this process uses
    /// flags itself, as a job does or does not.
    fn flag_table(&self, peer: Rank, queue_pair: u32) -> Result<Remote, ConnectError> {
        if self.mode() == ArrivalMode::WriteImm {
            return Ok(Remote::default());
        }
        let bytes = FlagTable::bytes(self.core.board().slots());
        let table = region::alloc_strict(self, bytes);
        let table = table.map_err(|source| ConnectError::Flags { rank: peer, source })?;
        // fits: at most 1024
        self.watched.enter_table(peer, queue_pair as usize, table.memory().clone());
        // the thread that looks at flags may have gone to sleep without any
        self.pollers.read().iter().take(1).for_each(|first| first.queue.wake());
        Ok(region::remote(table.memory()).unwrap_or_default())
    }

    fn introduce(&self, pairs: &[Arc<QueuePair>]) -> Introduction {
        let port = &self.nic().ports[self.end.choice.port];
        let cap = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        Introduction {
            gid: self.end.gid().raw,
            lid: port.lid,
            by_lid: port.link == LinkLayer::InfiniBand,
            mtu: port.mtu,
            reads_max: cap(self.nic().reads_max),
            read_targets_max: cap(self.nic().read_targets_max),
            arrival: self.mode(),
            window: self.end.depth.window,
            queue_pairs: pairs.iter().map(|pair| pair.introduction()).collect(),
        }
    }

    fn connect_pairs(&self, link: &Arc<Link>) -> Result<(), ConnectError> {
        let rank = link.rank();
        let broken = |detail: String| {
            let cause = FaultCause::Protocol { detail };
            ConnectError::Lost(PeerFault { rank, cause })
        };
        let attached = link.attach.lock().take().unwrap_or_default();
        let theirs = Introduction::decode(&attached.introduction);
        let theirs = theirs.map_err(|error| broken(error.to_string()))?;
        let pairs = self.peers.read().get(&rank).cloned().unwrap_or_default();
        if theirs.queue_pairs.len() != pairs.len() {
            let (here, there) = (pairs.len(), theirs.queue_pairs.len());
            return Err(broken(format!("it has {there} queue pairs for our {here}")));
        }
        let path = self.end.path(&theirs);
        for pair in &pairs {
            pair.connect(&theirs, attached.slots, path).map_err(|error| {
                let (mine, peer) = (self.end.gid_address(), ibv::address_of(theirs.gid));
                let explained = self.explain(&error);
                let reason = format!(
                    "from GID {mine} to {peer}: {explained}; is the GID right on both ends (--gid)?"
                );
                ConnectError::QueuePairs { rank, reason }
            })?;
        }
        self.check_arrival(link, &theirs, &pairs)?;
        let choice = format!(
            "rank {rank}: {} queue pairs to {}, MTU {} (the smaller of {} and {}), {} reads at a time; signals by {}",
            pairs.len(),
            ibv::address_of(theirs.gid),
            path.mtu,
            self.nic().ports[self.end.choice.port].mtu,
            theirs.mtu,
            path.reads_max,
            self.mode()
        );
        tracing::info!(me = %self.core.me().rank, "{choice}");
        self.choices.lock().push(choice);
        self.core.enter_peer(&link.peer);
        Ok(())
    }

    /// Refuses a peer whose signals this device cannot keep.
    fn check_arrival(
        &self,
        link: &Link,
        theirs: &Introduction,
        pairs: &[Arc<QueuePair>],
    ) -> Result<(), ConnectError> {
        let (rank, mode) = (link.rank(), theirs.arrival);
        let in_order = || pairs.iter().all(|pair| pair.writes_land_in_order());
        let reason = match mode {
            ArrivalMode::FlagSeparate | ArrivalMode::FlagTail
                if self.mode() == ArrivalMode::WriteImm =>
            {
                "this process has no memory for flags; open all fabrics of a job with one mode"
            }
            ArrivalMode::FlagTail if self.relaxes() => {
                "its flag would lie in memory that is relaxed-ordered; open both fabrics with it"
            }
            ArrivalMode::FlagTail if !self.core.config().trust_tail && !in_order() => {
                "the device does not promise that the bytes of a write land in order (ibv_query_qp_data_in_order); use write-imm"
            }
            _ => return Ok(()),
        };
        link.send(Frame::HandshakeRefusal { reason: format!("signals by {mode}: {reason}") });
        Err(ConnectError::ArrivalRefused { rank, mode, reason: reason.into() })
    }

    fn explain(&self, error: &std::io::Error) -> String {
        match (error.raw_os_error(), region::memlock_limit()) {
            (Some(libc::ENOMEM), Some(limit)) => format!("{error}; {}", raise_memlock(limit)),
            _ => error.to_string(),
        }
    }

    /// Waits until every peer has confirmed all that was posted. Returns the ranks that have not.
    fn flush(&self, deadline: Deadline) -> Vec<Rank> {
        let pairs: Vec<Arc<QueuePair>> = self.peers.read().values().flatten().cloned().collect();
        let open: Vec<&Arc<QueuePair>> = pairs.iter().filter(|pair| pair.send_goodbye()).collect();
        let pending = |pair: &&&Arc<QueuePair>| {
            pair.link.peer.gone().is_none()
                && !pair.goodbye_acked.load(Ordering::Acquire)
                && !pair.is_closed()
        };
        self.core.await_all(deadline, || {
            self.progress();
            open.iter().filter(pending).map(|pair| pair.link.rank()).collect()
        })
    }
}

impl Device for VerbsDevice {
    fn endpoint(&self) -> Endpoint {
        Endpoint::Verbs(self.listening)
    }

    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let connected = self.mesh.connect(peers, &[Purpose::Control], deadline, go_on)?;
        let links = self.attach(connected, deadline)?;
        // nobody writes before everybody can receive
        self.control.ready(&links, deadline)?;
        for pair in self.peers.read().values().flatten() {
            pair.start();
        }
        Ok(())
    }

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        region::alloc(self, bytes)
    }

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        region::adopt(self, file, bytes)
    }

    fn adopt_device(
        &self,
        memory: &Slab,
        shown: Result<DmaBuf, String>,
    ) -> Result<(Region, String), RegionError> {
        region::check_on_devices(self.mode())?;
        region::adopt_device(self, memory, shown)
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        let grant = self.control.connected(peer).request_region(descriptor, deadline)?;
        region::open(peer, descriptor, &grant)
    }

    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError> {
        let found = self.peers.read().get(&peer).map(|pairs| pairs[queue_pair].clone());
        // channels exist only to peers that are connected, and peers are never removed
        found.expect("a channel leads to a connected peer").post(work)
    }

    fn watch_tail(&self, slot: ArrivalSlot, region: &Arc<RegionMemory>, end: u64) -> ArrivalSlot {
        if self.mode() != ArrivalMode::FlagTail {
            return slot;
        }
        self.watched.enter_tail(slot.index(), region, end);
        queue_pair::tail_slot(slot)
    }

    fn progress(&self) {
        for poller in self.pollers.read().iter() {
            poller.queue.poll();
        }
        self.watched.look_at_all(self.core.board());
    }

    fn look(&self, slot: ArrivalSlot) {
        if self.watched.is_used() {
            self.watched.look(self.core.board(), slot.index());
        }
    }

    /// Polls for as long as a wait spins; then the completion queues' threads ring.
    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        let until = Instant::now() + self.core.config().spin;
        loop {
            self.progress();
            if self.core.board().ticket() != ticket || Instant::now() >= until {
                return self.core.wait(ticket, deadline);
            }
            std::hint::spin_loop();
        }
    }

    fn send_message(
        &self,
        peer: Rank,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError> {
        self.control.connected(peer).send_message(body, deadline)
    }

    fn choices(&self) -> Vec<String> {
        self.choices.lock().clone()
    }

    fn close(&self, deadline: Deadline) -> Result<(), CloseError> {
        self.mesh.stop();
        let unflushed = self.flush(deadline);
        let goodbye = self.control.goodbye(deadline);
        match unflushed.is_empty() {
            true => goodbye,
            false => Err(CloseError::Unconfirmed { missing: rank_list(&unflushed) }),
        }
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        // the threads first: nobody completes anything any more; then the NIC lets go of all memory
        self.pollers.write().clear();
        for pair in self.peers.read().values().flatten() {
            pair.abandon();
        }
        self.peers.write().clear();
    }
}
