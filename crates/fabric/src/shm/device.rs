//! Opening, connecting and closing a shared-memory fabric.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tensorwire_base::{Deadline, Rank};

use super::copier::Copiers;
use super::progress::Owner;
use super::queue_pair::QueuePairs;
use super::region::{self, MapBoardError};
use crate::api::{Posted, Signal};
use crate::common::{self, Core, Peer};
use crate::config::{Endpoint, FabricConfig, PeerAddress};
use crate::control::{Attached, Control, Frame, Link};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, FaultCause, OpenFabricError, OpenRegionError, PostError, RegionError,
    SendMessageError,
};
use crate::handshake::{self, Purpose};
use crate::listener::{Listener, Socket};
use crate::mesh::Mesh;
use crate::region::{Marks, Region, RegionDescriptor, RemoteRegion};

#[derive(Debug)]
pub(crate) struct ShmDevice {
    core: Arc<Core>,
    name: String,
    /// The board's memory, for peers to map.
    board: OwnedFd,
    mesh: Mesh,
    control: Control,
    peers: RwLock<HashMap<Rank, Arc<QueuePairs>>>,
    marks: Marks,
    // last: dropping it waits for the copies of all queue pairs
    copiers: Arc<Copiers>,
}

pub(crate) fn open(config: FabricConfig) -> Result<(Arc<Core>, Arc<dyn Device>), OpenFabricError> {
    common::check_no_mode(&config, "shm")?;
    let (core, board) = Core::shared(config)?;
    let device = ShmDevice::open(core.clone(), board)?;
    Ok((core, Arc::new(device)))
}

/// Without blocking: a full backlog is an error to try again.
fn dial(endpoint: &Endpoint, _: Deadline) -> Option<std::io::Result<Socket>> {
    let Endpoint::Shm(name) = endpoint else {
        return None;
    };
    let connect = || -> std::io::Result<Socket> {
        let at = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::STREAM;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::connect(&socket, &at)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(Socket::Unix(stream))
    };
    Some(connect())
}

impl ShmDevice {
    /// `board`: the memory of the core's board.
    pub(crate) fn open(core: Arc<Core>, board: OwnedFd) -> Result<ShmDevice, OpenFabricError> {
        let system =
            |doing| move |source: std::io::Error| OpenFabricError::System { doing, source };
        let name = format!("tensorwire-{:016x}", handshake::random_u64());
        let listener = SocketAddr::from_abstract_name(&name)
            .and_then(|at| UnixListener::bind_addr(&at))
            .map_err(|source| {
                let at = format!("abstract socket {name}");
                OpenFabricError::Listen { at, source }
            })?;
        let control = Control::start(core.clone(), Owner::new(core.clone()))
            .map_err(system("start the control thread"))?;
        let mesh = Mesh::new(core.clone(), Listener::Unix(listener), "shm", dial);
        let copiers = Copiers::start(core.config().completion_queues)
            .map_err(system("start the copier threads"))?;
        let (peers, marks, copiers) = (RwLock::default(), Marks::default(), Arc::new(copiers));
        Ok(ShmDevice { core, name, board, mesh, control, peers, marks, copiers })
    }

    /// The name of its abstract socket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Adds the connections, tells each peer of our board, and maps theirs.
    fn attach(&self, links: &[Arc<Link>], deadline: Deadline) -> Result<(), ConnectError> {
        let system = |doing| move |source: std::io::Error| ConnectError::System { doing, source };
        // fits: usize is 64 bits wide
        let slots = self.core.board().slots() as u64;
        for link in links {
            let board = self.board.try_clone().map_err(system("share the arrival table"))?;
            let introduction = Vec::new();
            link.send(Frame::Attach(Attached { slots, board: Some(board), introduction }));
        }
        self.control.await_connected(links, deadline, |link| link.attach.lock().is_some())?;
        for link in links {
            let attached = link.attach.lock().take();
            let shared = attached.and_then(|attached| Some((attached.board?, attached.slots)));
            let none = MapBoardError::Peer("it shared no arrival table".to_string());
            let board = shared.ok_or(none);
            let board = board.and_then(|(fd, slots)| region::map_board(fd.as_fd(), slots));
            let board = board.map_err(|error| match error {
                MapBoardError::Peer(detail) => ConnectError::Lost(crate::error::PeerFault {
                    rank: link.rank(),
                    cause: FaultCause::Protocol { detail },
                }),
                MapBoardError::Here(source) => system("map a peer's arrival table")(source),
            })?;
            let (core, copiers) = (self.core.clone(), self.copiers.clone());
            let pairs = QueuePairs::new(core, link.peer.clone(), board, copiers);
            self.peers.write().insert(link.rank(), Arc::new(pairs));
            self.core.enter_peer(&link.peer);
        }
        Ok(())
    }

    fn pairs(&self, peer: Rank) -> Arc<QueuePairs> {
        // channels exist only to peers that are connected, and peers are never removed
        self.peers.read().get(&peer).cloned().expect("a channel leads to a connected peer")
    }
}

impl Device for ShmDevice {
    fn endpoint(&self) -> Endpoint {
        Endpoint::Shm(self.name.clone())
    }

    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let connected = self.mesh.connect(peers, &[Purpose::Control], deadline, go_on)?;
        let mut links = Vec::with_capacity(connected.len());
        for mut peer in connected {
            let entry = Peer::new(&peer.address);
            let control = peer.connections.remove(0);
            let link = self
                .control
                .add(entry, control)
                .map_err(|source| ConnectError::System { doing: "serve a connection", source })?;
            links.push(link);
        }
        self.attach(&links, deadline)?;
        self.control.ready(&links, deadline)
    }

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        region::alloc(&self.core, bytes)
    }

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        region::adopt(&self.core, file, bytes)
    }

    fn offer_file(&self, file: OwnedFd) -> Result<Region, RegionError> {
        region::offer(&self.core, file)
    }

    fn take_file(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<OwnedFd, OpenRegionError> {
        let grant = self.control.connected(peer).request_region(descriptor, deadline)?;
        let reason = "the peer sent no descriptor".to_string();
        grant.fd.ok_or(OpenRegionError::Map { peer, reason })
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        let link = self.control.connected(peer);
        let grant = link.request_region(descriptor, deadline)?;
        region::open(peer, descriptor, grant.fd, &self.marks)
    }

    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError> {
        self.pairs(peer).post(queue_pair, work)
    }

    fn post_now(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<Posted, PostError> {
        self.pairs(peer).post_now(queue_pair, work)
    }

    fn raise(&self, peer: Rank, signal: Signal) -> bool {
        self.pairs(peer).raise(signal)
    }

    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        self.core.wait(ticket, deadline)
    }

    fn send_message(
        &self,
        peer: Rank,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError> {
        self.control.connected(peer).send_message(body, deadline)
    }

    fn shares_memory(&self, _: Rank) -> bool {
        true
    }

    fn close(&self, deadline: Deadline) -> Result<(), CloseError> {
        self.mesh.stop();
        let pairs: Vec<_> = self.peers.read().values().cloned().collect();
        for pairs in pairs {
            // what is not copied by then is named by the goodbye, which then has no time either
            pairs.drain(deadline);
        }
        self.control.goodbye(deadline)
    }
}
