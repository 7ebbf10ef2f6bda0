//! Getting connected: the lower rank of a pair accepts, the higher one dials, each connection passes
//! the handshake. Does not know what the connections will carry.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_base::{Deadline, Incarnation, Rank};

use crate::common::Core;
use crate::config::{Endpoint, PeerAddress};
use crate::error::ConnectError;
use crate::handshake::{self, Caller, HandshakeError, HandshakeRefusal, Purpose};
use crate::listener::{Acceptor, HANDSHAKE_WITHIN, Listener, Socket};
use crate::lobby::{self, Stranger, StrangerLog, Unproven};
use crate::seal::Seals;

/// How long to wait before dialling again a peer that does not listen yet.
const DIAL_AGAIN: Duration = Duration::from_millis(5);
/// How often whoever waits for peers is asked to go on.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(100);

/// A backend's way to dial an endpoint; None if it is not one of its own.
pub(crate) type Dial = fn(&Endpoint, Deadline) -> Option<std::io::Result<Socket>>;

/// The listening side and the dialling side of one fabric.
#[derive(Debug)]
pub(crate) struct Mesh {
    core: Arc<Core>,
    /// None once the fabric is closed.
    listener: Mutex<Option<Arc<Listener>>>,
    backend: &'static str,
    dial: Dial,
    rendezvous: Arc<Rendezvous>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// Who is expected, and who has come.
#[derive(Debug, Default)]
struct Rendezvous {
    encrypts: bool,
    liveness: Duration,
    state: Mutex<RendezvousState>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct RendezvousState {
    expected: HashMap<Rank, Expected>,
    connections: HashMap<(Rank, Purpose), Connection>,
}

#[derive(Debug)]
struct Expected {
    incarnation: Incarnation,
    purposes: HashSet<Purpose>,
}

/// The connections to one peer, in the order of the purposes that were asked for.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) address: PeerAddress,
    pub(crate) connections: Vec<Connection>,
}

/// A socket whose other end has proven itself, and what seals the frames on it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) seals: Seals,
}

impl Mesh {
    pub(crate) fn new(
        core: Arc<Core>,
        listener: Listener,
        backend: &'static str,
        dial: Dial,
    ) -> Mesh {
        let (encrypts, liveness) = (core.config().encrypt, core.config().liveness);
        let rendezvous = Arc::new(Rendezvous { encrypts, liveness, ..Rendezvous::default() });
        let acceptor = Mutex::default();
        let listener = Mutex::new(Some(Arc::new(listener)));
        Mesh { core, listener, backend, dial, rendezvous, acceptor }
    }

    /// One connection per purpose with every peer.
    pub(crate) fn connect(
        &self,
        peers: &[PeerAddress],
        purposes: &[Purpose],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Connected>, ConnectError> {
        // one connect at a time; strangers are answered from now on until the fabric ends
        let mut acceptor = self.acceptor.lock();
        let listener = self.listener.lock().clone().ok_or(ConnectError::Closed)?;
        let me = self.core.me().rank;
        let callers = peers.iter().filter(|peer| peer.rank > me);
        self.rendezvous.expect(callers.clone(), purposes);
        if acceptor.is_none() {
            let system = |source| ConnectError::System { doing: "start accepting", source };
            *acceptor = Some(self.start_accepting(listener).map_err(system)?);
        }
        let mut connected = Vec::with_capacity(peers.len());
        for peer in peers.iter().filter(|peer| peer.rank < me) {
            let connections: Result<Vec<Connection>, ConnectError> =
                purposes.iter().map(|purpose| self.dial(peer, *purpose, deadline, go_on)).collect();
            connected.push(Connected { address: peer.clone(), connections: connections? });
        }
        for peer in callers {
            let connections = self.rendezvous.await_caller(peer, purposes, deadline, go_on)?;
            connected.push(Connected { address: peer.clone(), connections });
        }
        Ok(connected)
    }

    /// Stops listening.
    pub(crate) fn stop(&self) {
        *self.acceptor.lock() = None;
        *self.listener.lock() = None;
    }

    fn start_accepting(&self, listener: Arc<Listener>) -> std::io::Result<Acceptor> {
        let (core, rendezvous) = (self.core.clone(), self.rendezvous.clone());
        let (job_id, me) = (core.config().job.job_id, core.me());
        let log = Arc::new(Mutex::new(StrangerLog::default()));
        let refused = {
            let (core, log) = (core.clone(), log.clone());
            move |from: &str, why: &dyn std::fmt::Display| {
                core.counters().add(|c| &c.connections_refused, 1);
                let line = log.lock().line(|| why.to_string());
                line.inspect(
                    |why| tracing::warn!(me = %me.rank, %from, "connection refused: {why}"),
                );
            }
        };
        let turned_away = refused.clone();
        let greet = move |caller: lobby::Caller<Socket>, unproven: Unproven| {
            let lobby::Caller { stream: mut socket, from, hello } = caller;
            let (job, deadline) = (&core.config().job, Deadline::after(HANDSHAKE_WITHIN));
            let mut admitted = None;
            let admit = |caller: &Caller| {
                // one that was hung up on does not hear our yes, and comes again
                unproven.proven();
                rendezvous.admit(caller)?;
                admitted = Some(*caller);
                Ok(())
            };
            let accepted = handshake::accept(&mut socket, &hello, job, me, admit, deadline);
            match accepted {
                Ok((caller, seals)) => rendezvous.enter(caller, socket, seals),
                Err(error) => {
                    // it hung up between our yes and hearing it: it may come again
                    admitted.into_iter().for_each(|caller| rendezvous.give_back(&caller));
                    match error {
                        // one of the job, who calls before it is expected, and again
                        HandshakeError::Rejected(HandshakeRefusal::UnexpectedRank) => {
                            core.counters().add(|c| &c.connections_refused, 1);
                            tracing::debug!(me = %me.rank, %from, %error, "connection refused");
                        }
                        _ => refused(&from, &error),
                    }
                }
            }
        };
        let stranger = move |stranger: Stranger| turned_away(&stranger.from, &stranger.why);
        Acceptor::start(listener, (job_id, me), greet, stranger)
    }

    fn dial(
        &self,
        peer: &PeerAddress,
        purpose: Purpose,
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Connection, ConnectError> {
        let (rank, endpoint) = (peer.rank, peer.endpoint.to_string());
        let mut looked = Instant::now();
        let mut socket = loop {
            let dialled = (self.dial)(&peer.endpoint, deadline).ok_or_else(|| {
                let (backend, endpoint) = (self.backend, endpoint.clone());
                ConnectError::WrongBackend { rank, endpoint, backend }
            })?;
            match dialled {
                Ok(socket) => break socket,
                Err(source) if !may_come_up(&source) || deadline.passed() => {
                    return Err(ConnectError::Unreachable { rank, endpoint, source });
                }
                Err(_) if looked.elapsed() >= LOOK_UP => {
                    if !go_on() {
                        return Err(ConnectError::GivenUp { missing: format!("rank {rank}") });
                    }
                    looked = Instant::now();
                }
                Err(_) => std::thread::sleep(DIAL_AGAIN.min(deadline.remaining())),
            }
        };
        let config = self.core.config();
        let target = Some(peer.member());
        let (_, seals) =
            handshake::dial(&mut socket, &config.job, config.me, target, purpose, deadline)
                .map_err(|source| ConnectError::Handshake { rank, endpoint, source })?;
        let system = |source| ConnectError::System { doing: "set up a connection", source };
        let socket = socket.into_nonblocking(config.liveness).map_err(system)?;
        Ok(Connection { socket, seals })
    }
}

impl Rendezvous {
    fn expect<'a>(&self, peers: impl Iterator<Item = &'a PeerAddress>, purposes: &[Purpose]) {
        let mut state = self.state.lock();
        for peer in peers {
            let purposes = purposes.iter().copied().collect();
            let expected = Expected { incarnation: peer.incarnation, purposes };
            state.expected.insert(peer.rank, expected);
        }
    }

    /// The last word on a caller that has proven itself; reserves its place.
    fn admit(&self, caller: &Caller) -> Result<(), HandshakeRefusal> {
        let mut state = self.state.lock();
        let rank = caller.member.rank;
        let expected = state.expected.get_mut(&rank).ok_or(HandshakeRefusal::UnexpectedRank)?;
        if expected.incarnation != caller.member.incarnation {
            return Err(HandshakeRefusal::StaleIncarnation);
        }
        let is_served = match caller.purpose {
            Purpose::QueuePair(_) => !self.encrypts,
            Purpose::Encrypted(_) => self.encrypts,
            Purpose::Control | Purpose::Rendezvous => true,
        };
        // a place that was taken is not there any more
        match is_served && expected.purposes.remove(&caller.purpose) {
            true => Ok(()),
            false if is_served => Err(HandshakeRefusal::Duplicate),
            false => Err(HandshakeRefusal::Purpose),
        }
    }

    fn give_back(&self, caller: &Caller) {
        if let Some(expected) = self.state.lock().expected.get_mut(&caller.member.rank) {
            expected.purposes.insert(caller.purpose);
        }
    }

    fn enter(&self, caller: Caller, socket: Socket, seals: Seals) {
        match socket.into_nonblocking(self.liveness) {
            Ok(socket) => {
                let place = (caller.member.rank, caller.purpose);
                self.state.lock().connections.insert(place, Connection { socket, seals });
                self.came.notify_all();
            }
            Err(error) => tracing::warn!(%error, "cannot set up a peer's connection"),
        }
    }

    fn await_caller(
        &self,
        peer: &PeerAddress,
        purposes: &[Purpose],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Connection>, ConnectError> {
        let mut state = self.state.lock();
        let place = |purpose: &Purpose| (peer.rank, *purpose);
        while !purposes.iter().all(|purpose| state.connections.contains_key(&place(purpose))) {
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                return Err(ConnectError::TimedOut { missing: format!("rank {}", peer.rank) });
            }
            if self.came.wait_for(&mut state, remaining.min(LOOK_UP)).timed_out() {
                // whoever comes in the meantime is not kept waiting
                let goes_on = MutexGuard::unlocked(&mut state, go_on);
                if !goes_on {
                    return Err(ConnectError::GivenUp { missing: format!("rank {}", peer.rank) });
                }
            }
        }
        let take = |purpose| state.connections.remove(&place(purpose));
        Ok(purposes.iter().filter_map(take).collect())
    }
}

/// True for a peer that may listen in a moment.
fn may_come_up(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionRefused | Interrupted | WouldBlock)
}
