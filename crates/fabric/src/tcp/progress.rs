//! The completion queues: threads that sleep in epoll and move what the posters could not, each for
//! the queue pairs that were spread to it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::RwLock;
use rustix::event::{EventfdFlags, epoll};
use tensorwire_base::Rank;

use super::queue_pair::{Broken, QueuePair};
use crate::common::{Core, Gone, Peer};
use crate::control::{Frame, Granted, Link, Requests};
use crate::error::FaultCause;
use crate::listener::timespec;
use crate::pulse;
use crate::region::RegionDescriptor;

/// The eventfd that stops the thread; no queue pair has that id.
const STOP: u64 = u64::MAX;

/// The pool of threads.
#[derive(Debug)]
pub(super) struct Pollers {
    pollers: Vec<Poller>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    stop: AtomicBool,
    queue_pairs: RwLock<HashMap<u64, Arc<QueuePair>>>,
}

/// The queue pairs to every peer, by rank.
pub(super) type PeerTable = RwLock<HashMap<Rank, Vec<Arc<QueuePair>>>>;

/// Answers peers who want to access a region of ours, and hangs up on those that are lost.
#[derive(Debug)]
pub(super) struct Owner {
    core: Arc<Core>,
    peers: Arc<PeerTable>,
}

impl Pollers {
    pub(super) fn start(core: &Arc<Core>) -> std::io::Result<Pollers> {
        let start = |index| Poller::start(core.clone(), index);
        let pollers: std::io::Result<Vec<Poller>> =
            (0..core.config().completion_queues).map(start).collect();
        Ok(Pollers { pollers: pollers?, next: AtomicUsize::new(0) })
    }

    /// Gives a connection to the next thread in turn.
    pub(super) fn add(
        &self,
        make: impl FnOnce(Arc<OwnedFd>, u64) -> QueuePair,
    ) -> std::io::Result<Arc<QueuePair>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let poller = &self.pollers[id % self.pollers.len()].shared;
        // fits: usize is 64 bits wide
        let queue_pair = Arc::new(make(poller.epoll.clone(), id as u64));
        poller.queue_pairs.write().insert(queue_pair.id, queue_pair.clone());
        let data = epoll::EventData::new_u64(queue_pair.id);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&poller.epoll, &queue_pair.socket, data, flags)?;
        Ok(queue_pair)
    }
}

#[cfg(test)]
impl Pollers {
    /// How many queue pairs each thread has.
    pub(super) fn loads(&self) -> Vec<usize> {
        self.pollers.iter().map(|poller| poller.shared.queue_pairs.read().len()).collect()
    }
}

impl Poller {
    fn start(core: Arc<Core>, index: usize) -> std::io::Result<Poller> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let (stop, queue_pairs) = (AtomicBool::new(false), RwLock::default());
        let shared = Arc::new(Shared { epoll, wake, stop, queue_pairs });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name(format!("fabric-cq-{index}"))
            .spawn(move || own.run(&core))?;
        Ok(Poller { shared, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, core: &Core) {
        let _watched = pulse::watch_service(std::thread::current().name().unwrap_or_default());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            pulse::beat();
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(&self.epoll, spare, Some(&timespec(pulse::BEAT)));
            for event in &events {
                let id = event.data.u64();
                let found = self.queue_pairs.read().get(&id).cloned();
                if let Some(queue_pair) = found {
                    self.serve(core, &queue_pair, event.flags);
                }
            }
        }
    }

    fn serve(&self, core: &Core, queue_pair: &QueuePair, flags: epoll::EventFlags) {
        let receiving = epoll::EventFlags::IN
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::HUP
            | epoll::EventFlags::ERR;
        let mut result = Ok(());
        if flags.intersects(receiving) {
            result = queue_pair.receive_turn();
        }
        if result.is_ok() && flags.contains(epoll::EventFlags::OUT) {
            result = queue_pair.send_turn();
        }
        if let Err(broken) = result {
            let _ = epoll::delete(&self.epoll, &queue_pair.socket);
            self.queue_pairs.write().remove(&queue_pair.id);
            give_up(core, queue_pair, broken);
        }
    }
}

/// Ends a queue pair, and its peer with it unless the peer is leaving in good order.
pub(super) fn give_up(core: &Core, queue_pair: &QueuePair, broken: Broken) {
    let link = &queue_pair.link;
    match broken {
        Broken::Refused(reason) => refuse(core, link, reason),
        Broken::HungUp if queue_pair.said_goodbye.load(Ordering::Acquire) => {}
        // the control connection knows better: a refusal, a goodbye, or its own end
        Broken::HungUp => queue_pair.suspect("a data connection closed".into()),
        Broken::Io(error) => queue_pair.suspect(format!("a data connection failed: {error}")),
    }
    queue_pair.fail();
}

/// The peer broke the rules: it is told why, and hung up on.
fn refuse(core: &Core, link: &Link, reason: String) {
    let detail = format!("it sent a bad request: {reason}");
    link.send(Frame::HandshakeRefusal { reason });
    core.peer_gone(&link.peer, Gone::Lost(FaultCause::Protocol { detail }));
    link.shutdown();
}

impl Owner {
    pub(super) fn new(core: Arc<Core>, peers: Arc<PeerTable>) -> Owner {
        Owner { core, peers }
    }
}

impl Requests for Owner {
    fn open(&self, descriptor: RegionDescriptor) -> Result<Granted, String> {
        self.core.regions().check_descriptor(descriptor).map(|_| Granted::default())
    }

    fn ended(&self, peer: &Peer) {
        if !matches!(peer.gone(), Some(Gone::Lost(_))) {
            // a peer that said goodbye closes its sockets itself
            return;
        }
        for queue_pair in self.peers.read().get(&peer.member.rank).into_iter().flatten() {
            // its poller sees the end and fails what is in flight
            let _ = rustix::net::shutdown(&queue_pair.socket, rustix::net::Shutdown::Both);
        }
    }
}
