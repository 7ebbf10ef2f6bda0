//! Opening, connecting and closing a TCP fabric.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};

use super::progress::{Owner, PeerTable, Pollers};
use super::queue_pair::QueuePair;
use super::region;
use crate::api::Posted;
use crate::common::{self, Core, Peer};
use crate::config::{Endpoint, FabricConfig, PeerAddress};
use crate::control::{Attached, Control, Frame, Link, rank_list};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, OpenFabricError, OpenRegionError, PostError, RegionError,
    SendMessageError,
};
use crate::handshake::Purpose;
use crate::listener::{Listener, Socket};
use crate::mesh::{Connected, Connection, Mesh};
use crate::region::{Access, Region, RegionDescriptor, RemoteRegion};

#[derive(Debug)]
pub(crate) struct TcpDevice {
    pub(super) core: Arc<Core>,
    listening: SocketAddr,
    mesh: Mesh,
    pub(super) pollers: Pollers,
    control: Control,
    pub(super) peers: Arc<PeerTable>,
}

pub(crate) fn open(config: FabricConfig) -> Result<(Arc<Core>, Arc<dyn Device>), OpenFabricError> {
    let core = Core::private(config)?;
    let device = TcpDevice::open(core.clone())?;
    Ok((core, Arc::new(device)))
}

fn dial(endpoint: &Endpoint, deadline: Deadline) -> Option<std::io::Result<Socket>> {
    let Endpoint::Tcp(address) = endpoint.far() else {
        return None;
    };
    // zero would be an error of its own
    let timeout = deadline.remaining().max(Duration::from_millis(1));
    Some(TcpStream::connect_timeout(address, timeout).map(Socket::Tcp))
}

impl TcpDevice {
    pub(crate) fn open(core: Arc<Core>) -> Result<TcpDevice, OpenFabricError> {
        let config = core.config();
        common::check_no_mode(config, "tcp")?;
        let system =
            |doing| move |source: std::io::Error| OpenFabricError::System { doing, source };
        let listen = |source| OpenFabricError::Listen { at: config.endpoint.to_string(), source };
        let listener = TcpListener::bind(config.endpoint).map_err(listen)?;
        let listening = listener.local_addr().map_err(listen)?;
        let peers = Arc::new(PeerTable::new(HashMap::new()));
        let control = Control::start(core.clone(), Owner::new(core.clone(), peers.clone()))
            .map_err(system("start the control thread"))?;
        let pollers = Pollers::start(&core).map_err(system("start the completion queues"))?;
        let mesh = Mesh::new(core.clone(), Listener::Tcp(listener), "tcp", dial);
        Ok(TcpDevice { core, listening, mesh, pollers, control, peers })
    }

    /// Gives the connections to their threads and exchanges the sizes of the arrival tables.
    fn attach(
        &self,
        mut connected: Vec<Connected>,
        deadline: Deadline,
    ) -> Result<Vec<Arc<Link>>, ConnectError> {
        let system = |source| ConnectError::System { doing: "serve a connection", source };
        let mut links = Vec::with_capacity(connected.len());
        for peer in &mut connected {
            let control = peer.connections.remove(0);
            let link = self.control.add(Peer::new(&peer.address), control).map_err(system)?;
            // fits: usize is 64 bits wide
            let slots = self.core.board().slots() as u64;
            link.send(Frame::Attach(Attached { slots, ..Attached::default() }));
            links.push(link);
        }
        self.control.await_connected(&links, deadline, |link| link.attach.lock().is_some())?;
        for (peer, link) in connected.into_iter().zip(&links) {
            let slots = link.attach.lock().take().map_or(0, |attached| attached.slots);
            let queue_pairs: std::io::Result<Vec<Arc<QueuePair>>> = peer
                .connections
                .into_iter()
                .map(|connection| self.add_queue_pair(link, connection, slots))
                .collect();
            self.peers.write().insert(link.rank(), queue_pairs.map_err(system)?);
            self.core.enter_peer(&link.peer);
        }
        Ok(links)
    }

    fn add_queue_pair(
        &self,
        link: &Arc<Link>,
        connection: Connection,
        slots: u64,
    ) -> std::io::Result<Arc<QueuePair>> {
        let suspicion = self.control.suspicion();
        self.pollers.add(|epoll, id| {
            let (core, link) = (self.core.clone(), link.clone());
            QueuePair::new(core, link, connection, (epoll, id), slots, suspicion)
        })
    }

    fn queue_pair(&self, peer: Rank, queue_pair: usize) -> Arc<QueuePair> {
        let found = self.peers.read().get(&peer).map(|pairs| pairs[queue_pair].clone());
        // channels exist only to peers that are connected, and peers are never removed
        found.expect("a channel leads to a connected peer")
    }

    /// Waits until every peer has taken all that was posted. Returns the ranks that have not.
    fn flush(&self, deadline: Deadline) -> Vec<Rank> {
        let queue_pairs: Vec<Arc<QueuePair>> =
            self.peers.read().values().flatten().cloned().collect();
        let open: Vec<&Arc<QueuePair>> =
            queue_pairs.iter().filter(|queue_pair| queue_pair.send_goodbye()).collect();
        let pending = |queue_pair: &&&Arc<QueuePair>| {
            queue_pair.link.peer.gone().is_none()
                && !queue_pair.goodbye_acked.load(Ordering::Acquire)
                && !queue_pair.is_closed()
        };
        let missing = || open.iter().filter(pending).map(|pair| pair.link.rank()).collect();
        self.core.await_all(deadline, missing)
    }
}

impl Device for TcpDevice {
    fn endpoint(&self) -> Endpoint {
        Endpoint::Tcp(self.listening)
    }

    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        // fits: at most 1024 queue pairs, by `check_config`
        let count = self.core.config().queue_pairs_per_peer as u32;
        let of_queue_pair = match self.core.config().encrypt {
            true => Purpose::Encrypted,
            false => Purpose::QueuePair,
        };
        let purposes: Vec<Purpose> =
            std::iter::once(Purpose::Control).chain((0..count).map(of_queue_pair)).collect();
        let connected = self.mesh.connect(peers, &purposes, deadline, go_on)?;
        let links = self.attach(connected, deadline)?;
        self.control.ready(&links, deadline)
    }

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        region::alloc(&self.core, bytes)
    }

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        region::adopt(&self.core, file, bytes)
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        self.control.connected(peer).request_region(descriptor, deadline)?;
        Ok(RemoteRegion::new(peer, descriptor, Access::Asked))
    }

    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError> {
        self.queue_pair(peer, queue_pair).post(work, false)
    }

    fn post_now(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<Posted, PostError> {
        self.queue_pair(peer, queue_pair).post(work, true).map(|()| Posted::Queued)
    }

    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        self.pollers.wait(ticket, deadline)
    }

    fn send_message(
        &self,
        peer: Rank,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError> {
        self.control.connected(peer).send_message(body, deadline)
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
