//! The thread that serves all control connections: sleeps in epoll, reads and answers frames, notices
//! the end of a peer. What only a backend can answer it asks through [`Requests`].

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tensorwire_base::{Deadline, Rank};

use super::frame::{Decoder, Frame, Granted, Reply};
use super::link::Link;
use crate::api::Message;
use crate::common::{Core, Gone, Peer};
use crate::doorbell::Wake;
use crate::error::{CloseError, ConnectError, FaultCause, PeerFault};
use crate::listener::timespec;
use crate::mesh::Connection;
use crate::pulse;
use crate::region::RegionDescriptor;

/// The eventfd that wakes the thread; no rank is that high.
const WAKE: u64 = u64::MAX;
/// Bytes read from one peer before the next one has its turn.
const READ_BYTES_MAX: usize = 64 << 10;
/// Messages that nobody receives: beyond either limit we stop reading from peers.
const INBOX_MESSAGES_MAX: usize = 64 << 10;
const INBOX_BYTES_MAX: usize = 64 << 20;
/// How often a paused service looks whether the inbox has room again.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the control connection has to explain why a data connection broke.
const EXPLAIN_WITHIN: Duration = Duration::from_millis(250);

/// What a backend answers to its peers.
pub(crate) trait Requests: Send + Sync + std::fmt::Debug {
    /// Grants the peer access to that region, or says why not.
    fn open(&self, descriptor: RegionDescriptor) -> Result<Granted, String>;

    /// A peer has news of one of its queue pairs. The error is what it did wrong.
    fn queue_pair(&self, _: &Link, _body: &[u8]) -> Result<(), String> {
        Err("news of a queue pair, where there are none".into())
    }

    /// A peer's life here has ended: let go of its connections.
    fn ended(&self, peer: &Peer);
}

/// All control connections of a fabric.
#[derive(Debug)]
pub(crate) struct Control {
    core: Arc<Core>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    stop: AtomicBool,
    links: RwLock<HashMap<Rank, Arc<Link>>>,
    /// Peers of which a data connection broke, and when to give up waiting for the reason.
    suspects: Mutex<Vec<(Rank, Instant, String)>>,
}

/// A handle with which data connections report to the service.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion(Arc<Shared>);

impl Suspicion {
    /// A data connection of the peer broke. The control connection says why, or it died with it.
    pub(crate) fn report(&self, rank: Rank, detail: String) {
        self.0.suspects.lock().push((rank, Instant::now() + EXPLAIN_WITHIN, detail));
        self.0.wake();
    }
}

#[cfg(test)]
#[cfg(loom)]
impl Suspicion {
    /// One that no service hears of.
    pub(crate) fn unheard() -> Suspicion {
        Suspicion(Arc::new(Shared::new().expect("there are descriptors")))
    }
}

impl Control {
    pub(crate) fn start(
        core: Arc<Core>,
        requests: impl Requests + 'static,
    ) -> std::io::Result<Control> {
        let shared = Arc::new(Shared::new()?);
        let server = Server {
            core: core.clone(),
            shared: shared.clone(),
            requests,
            decoders: HashMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("fabric-control".into())
            .spawn(move || server.run())?;
        Ok(Control { core, shared, thread: Some(thread) })
    }

    /// Serves one more connection.
    pub(crate) fn add(
        &self,
        peer: Arc<Peer>,
        connection: Connection,
    ) -> std::io::Result<Arc<Link>> {
        let rank = peer.member.rank;
        let link = Link::new(self.core.clone(), peer, connection, self.shared.epoll.clone());
        let link = Arc::new(link);
        self.shared.links.write().insert(rank, link.clone());
        let data = epoll::EventData::new_u64(rank.0.into());
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.shared.epoll, &link.socket, data, flags)?;
        Ok(link)
    }

    /// The connection to a peer to which there is a channel.
    pub(crate) fn connected(&self, rank: Rank) -> Arc<Link> {
        // channels exist only to peers that are connected, and links are never removed
        self.shared.links.read().get(&rank).cloned().expect("a channel leads to a connected peer")
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.shared.links.read().values().cloned().collect()
    }

    pub(crate) fn suspicion(&self) -> Suspicion {
        Suspicion(self.shared.clone())
    }

    /// Waits until `done` holds for every one of `links`, or its peer is gone. Returns the ranks for
    /// which neither came true before the deadline.
    pub(crate) fn await_all(
        &self,
        links: &[Arc<Link>],
        deadline: Deadline,
        done: impl Fn(&Link) -> bool,
    ) -> Vec<Rank> {
        loop {
            let ticket = self.core.board().ticket();
            let open = |link: &&Arc<Link>| link.peer.gone().is_none() && !done(link);
            let missing: Vec<Rank> = links.iter().filter(open).map(|link| link.rank()).collect();
            if missing.is_empty() || self.core.wait(ticket, deadline) == Wake::TimedOut {
                return missing;
            }
        }
    }

    /// The same for connecting, where a peer that is gone is an error.
    pub(crate) fn await_connected(
        &self,
        links: &[Arc<Link>],
        deadline: Deadline,
        done: impl Fn(&Link) -> bool,
    ) -> Result<(), ConnectError> {
        let missing = self.await_all(links, deadline, done);
        if !missing.is_empty() {
            return Err(ConnectError::TimedOut { missing: rank_list(&missing) });
        }
        // the loss of another peer, at any time before, says nothing of these
        let lost = |link: &Arc<Link>| match link.peer.gone() {
            Some(Gone::Lost(cause)) => Some(PeerFault { rank: link.rank(), cause: cause.clone() }),
            _ => None,
        };
        let first = self.core.fault().filter(|fault| links.iter().any(|l| l.rank() == fault.rank));
        match first.cloned().or_else(|| links.iter().find_map(lost)) {
            Some(fault) => Err(ConnectError::Lost(fault)),
            None => Ok(()),
        }
    }
}

impl Control {
    /// The last step of connecting: tells every peer that we are ready, and waits until all are.
    pub(crate) fn ready(
        &self,
        links: &[Arc<Link>],
        deadline: Deadline,
    ) -> Result<(), ConnectError> {
        for link in links {
            link.send(Frame::Ready);
        }
        self.await_connected(links, deadline, |link| link.ready.load(Ordering::Acquire))
    }

    /// Tells every peer that our end of the connections is no fault, and waits until all know.
    pub(crate) fn goodbye(&self, deadline: Deadline) -> Result<(), CloseError> {
        let mut links = self.links();
        links.retain(|link| link.peer.gone().is_none());
        for link in &links {
            link.send(Frame::Goodbye);
        }
        let acked = |link: &Link| link.goodbye_acked.load(Ordering::Acquire);
        let missing = self.await_all(&links, deadline, acked);
        for link in self.links() {
            self.core.peer_gone(&link.peer, Gone::Closed);
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(CloseError::Unconfirmed { missing: rank_list(&missing) }),
        }
    }
}

/// `rank 1, 4`, for an error's text.
pub(crate) fn rank_list(ranks: &[Rank]) -> String {
    let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("rank {}", ranks.join(", "))
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new() -> std::io::Result<Shared> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (stop, links, suspects) = (AtomicBool::new(false), RwLock::default(), Mutex::default());
        Ok(Shared { epoll, wake, stop, links, suspects })
    }

    fn wake(&self) {
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// What the thread owns.
struct Server<R> {
    core: Arc<Core>,
    shared: Arc<Shared>,
    requests: R,
    decoders: HashMap<Rank, Decoder>,
}

impl<R: Requests> Server<R> {
    fn run(mut self) {
        let _watched = pulse::watch_service("fabric-control");
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        while !self.shared.stop.load(Ordering::Acquire) {
            pulse::beat();
            events.clear();
            let timeout = self.timeout().map_or(pulse::BEAT, |next| next.min(pulse::BEAT));
            let spare = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(&self.shared.epoll, spare, Some(&timespec(timeout)));
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
                    }
                    rank => self.serve(rank, event.flags),
                }
            }
            self.judge_suspects();
            self.resume_paused();
        }
    }

    /// Bounded work for one connection.
    fn serve(&mut self, rank: u64, flags: epoll::EventFlags) {
        let found = u32::try_from(rank)
            .ok()
            .and_then(|rank| self.shared.links.read().get(&Rank(rank)).cloned());
        let Some(link) = found else { return };
        if flags.contains(epoll::EventFlags::OUT) {
            link.flush();
        }
        let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP;
        if flags.intersects(epoll::EventFlags::IN | ended) {
            self.read(&link);
        }
    }

    fn read(&mut self, link: &Link) {
        let mut buffer = [0; READ_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let received = rustix::net::recvmsg(&link.socket, &mut slices, &mut ancillary, flags);
        match received {
            Ok(received) if received.bytes > 0 => {
                let fds = ancillary.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                });
                if let Some(opener) = link.opener.lock().take() {
                    // a rank is connected once in its life, and a new life of it begins anew
                    self.decoders.insert(link.rank(), Decoder::new(opener));
                }
                if let Some(decoder) = self.decoders.get_mut(&link.rank()) {
                    decoder.push(&buffer[..received.bytes], fds.flatten());
                    self.decode(link);
                }
            }
            Ok(_) => self.hung_up(link, "its connection closed"),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => self.hung_up(link, &error.to_string()),
        }
    }

    fn decode(&mut self, link: &Link) {
        while let Some(decoder) = self.decoders.get_mut(&link.rank()) {
            match decoder.next() {
                Ok(Some(frame)) => self.handle(link, frame),
                Ok(None) => break,
                Err(error) => return self.protocol_error(link, &error.to_string()),
            }
        }
        let (messages, bytes) = self.core.inbox().waiting();
        if messages > INBOX_MESSAGES_MAX || bytes > INBOX_BYTES_MAX {
            link.pause(true);
        }
    }

    fn handle(&mut self, link: &Link, frame: Frame) {
        match frame {
            Frame::Attach(attached) => {
                *link.attach.lock() = Some(attached);
                self.core.board().ring();
            }
            Frame::Ready => {
                link.ready.store(true, Ordering::Release);
                self.core.board().ring();
            }
            Frame::Message { body } => self.core.deliver(Message { from: link.rank(), body }),
            Frame::OpenRegion { request, descriptor } => {
                let answer = match self.requests.open(descriptor) {
                    Ok(grant) => Frame::RegionOpened { request, grant },
                    Err(reason) => {
                        tracing::warn!(me = %self.core.me().rank, peer = %link.rank(), %reason,
                            "refused to open a region");
                        Frame::RegionRefused { request, reason }
                    }
                };
                if !link.send(answer) {
                    self.protocol_error(link, "it asks for regions and does not read the answers");
                }
            }
            Frame::RegionOpened { request, grant } => {
                link.answered(request, Reply::Opened(grant));
            }
            Frame::RegionRefused { request, reason } => {
                link.answered(request, Reply::Refused(reason));
            }
            Frame::Goodbye => {
                link.send(Frame::GoodbyeAck);
                self.core.peer_gone(&link.peer, Gone::Departed);
                self.requests.ended(&link.peer);
            }
            Frame::GoodbyeAck => {
                link.goodbye_acked.store(true, Ordering::Release);
                // from now on the peer may hang up at any moment, and it is no fault
                self.core.peer_gone(&link.peer, Gone::Closed);
            }
            Frame::QueuePair { body } => {
                if let Err(wrong) = self.requests.queue_pair(link, &body) {
                    self.protocol_error(link, &wrong);
                }
            }
            Frame::HandshakeRefusal { reason } => {
                self.lose(link, FaultCause::Refused { detail: reason });
            }
        }
    }

    fn hung_up(&mut self, link: &Link, detail: &str) {
        self.lose(link, FaultCause::Died { detail: detail.into() });
        self.let_go(link);
    }

    fn protocol_error(&mut self, link: &Link, detail: &str) {
        link.send(Frame::HandshakeRefusal { reason: detail.into() });
        self.lose(link, FaultCause::Protocol { detail: detail.into() });
        self.let_go(link);
    }

    fn lose(&self, link: &Link, cause: FaultCause) {
        self.core.peer_gone(&link.peer, Gone::Lost(cause));
        self.requests.ended(&link.peer);
    }

    /// Stops reading; the socket itself closes with its last holder.
    fn let_go(&mut self, link: &Link) {
        let _ = epoll::delete(&self.shared.epoll, &link.socket);
        link.shutdown();
        self.decoders.remove(&link.rank());
    }

    /// Declares dead whose data connection broke without an explanation in time.
    fn judge_suspects(&mut self) {
        let now = Instant::now();
        let mut suspects = std::mem::take(&mut *self.shared.suspects.lock());
        suspects.retain(|(rank, by, detail)| {
            let Some(link) = self.shared.links.read().get(rank).cloned() else {
                return false;
            };
            if link.peer.gone().is_none() && now >= *by {
                self.lose(&link, FaultCause::Died { detail: detail.clone() });
            }
            link.peer.gone().is_none()
        });
        self.shared.suspects.lock().extend(suspects);
    }

    fn resume_paused(&self) {
        let (messages, bytes) = self.core.inbox().waiting();
        if messages > INBOX_MESSAGES_MAX / 2 || bytes > INBOX_BYTES_MAX / 2 {
            return;
        }
        for link in self.shared.links.read().values() {
            if link.paused.load(Ordering::Relaxed) {
                link.pause(false);
            }
        }
    }

    /// How long to sleep: forever, unless something is pending that no descriptor announces.
    fn timeout(&self) -> Option<Duration> {
        let paused = |link: &Arc<Link>| link.paused.load(Ordering::Relaxed);
        let pause = self.shared.links.read().values().any(paused).then_some(PAUSE);
        let suspects = self.shared.suspects.lock();
        let next = suspects.iter().map(|(_, by, _)| by.saturating_duration_since(Instant::now()));
        pause.into_iter().chain(next).min()
    }
}
