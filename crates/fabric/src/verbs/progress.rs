//! The completion queues: one thread each, asleep in the completion channel until something completes,
//! for the queue pairs that were spread to it. Whoever polls the fabric takes completions too.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use tensorwire_base::Rank;

use super::device::NicEnd;
use super::ibv::{self, AsyncEvent, POLL_MAX, WorkCompletion};
use super::queue_pair::QueuePair;
use super::region;
use super::wire::News;
use crate::common::{Core, Gone, Peer};
use crate::control::{Granted, Link, Requests};
use crate::error::FaultCause;
use crate::flags::Watched;
use crate::listener::timespec;
use crate::pulse;
use crate::region::RegionDescriptor;

/// Completions taken in one turn are at most so many times [`POLL_MAX`].
const ROUNDS_MAX: usize = 16;
/// How often a queue pair that is between two lives is looked after.
const ATTENTION: Duration = Duration::from_millis(10);
/// How often flags in memory are looked at while nobody else does.
const WATCH: Duration = Duration::from_micros(100);

/// The queue pairs to every peer, by rank.
pub(super) type PeerTable = RwLock<HashMap<Rank, Vec<Arc<QueuePair>>>>;

/// A completion queue and whose completions it gets.
#[derive(Debug)]
pub(super) struct Queue {
    completions: Arc<ibv::CompletionQueue>,
    wake: OwnedFd,
    stop: AtomicBool,
    by_number: RwLock<HashMap<u32, Weak<QueuePair>>>,
    /// One at a time, so that the completions of a queue pair are handled in their order.
    polling: Mutex<Vec<WorkCompletion>>,
}

/// Its thread.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// What a poller looks after beside its queue.
#[derive(Clone, Debug)]
pub(super) struct Duties {
    pub(super) core: Arc<Core>,
    pub(super) end: Arc<NicEnd>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) watched: Arc<Watched>,
    /// One poller has the device's events and the flags.
    pub(super) is_first: bool,
}

/// Answers peers who want to access a region of ours or have news, and ends what leads to lost ones.
#[derive(Debug)]
pub(super) struct Owner {
    core: Arc<Core>,
    peers: Arc<PeerTable>,
}

impl Queue {
    fn new(completions: Arc<ibv::CompletionQueue>) -> std::io::Result<Queue> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (stop, by_number) = (AtomicBool::new(false), RwLock::default());
        Ok(Queue { completions, wake, stop, by_number, polling: Mutex::default() })
    }

    pub(super) fn completions(&self) -> &Arc<ibv::CompletionQueue> {
        &self.completions
    }

    /// Sends the completions of that number there.
    pub(super) fn enter(&self, number: u32, queue_pair: Weak<QueuePair>) {
        self.by_number.write().insert(number, queue_pair);
    }

    pub(super) fn leave(&self, number: u32) {
        self.by_number.write().remove(&number);
    }

    /// Has the thread look after its queue pairs.
    pub(super) fn wake(&self) {
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes what has completed, if nobody else is at it; true if there was something.
    pub(super) fn poll(&self) -> bool {
        match self.polling.try_lock() {
            Some(mut found) => self.poll_locked(&mut found),
            None => false,
        }
    }

    fn poll_locked(&self, found: &mut Vec<WorkCompletion>) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS_MAX {
            found.clear();
            // a device that is gone: its event, or the time limit of its queue pairs, says so
            let count = self.completions.poll(found).unwrap_or(0);
            for completion in found.iter() {
                let number = completion.queue_pair;
                let queue_pair = self.by_number.read().get(&number).and_then(Weak::upgrade);
                if let Some(queue_pair) = queue_pair {
                    queue_pair.completed(completion);
                }
            }
            any |= count > 0;
            if count < POLL_MAX {
                break;
            }
        }
        any
    }
}

impl Poller {
    pub(super) fn start(
        completions: Arc<ibv::CompletionQueue>,
        duties: Duties,
        index: usize,
    ) -> std::io::Result<Poller> {
        let queue = Arc::new(Queue::new(completions)?);
        let own = queue.clone();
        let thread = std::thread::Builder::new()
            .name(format!("fabric-cq-{index}"))
            .spawn(move || run(&own, &duties))?;
        Ok(Poller { queue, thread: Some(thread) })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.queue.stop.store(true, Ordering::Release);
        self.queue.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(queue: &Queue, duties: &Duties) {
    let _watched = pulse::watch_service(std::thread::current().name().unwrap_or_default());
    while !queue.stop.load(Ordering::Acquire) {
        pulse::beat();
        spin(queue, duties);
        // armed first, polled once more after it: what completes in between is not missed
        let armed = queue.completions.arm().is_ok();
        let found = queue.poll_locked(&mut queue.polling.lock());
        let watches = duties.is_first && duties.watched.is_used();
        if watches {
            duties.watched.look_at_all(duties.core.board());
        }
        let timeout = match (found, watches) {
            // a queue that is busy must not keep its failed queue pairs waiting, nor the device
            (true, _) => Duration::ZERO,
            (false, true) => WATCH,
            (false, false) if !armed || !duties.troubled(queue).is_empty() => ATTENTION,
            (false, false) => pulse::BEAT,
        };
        sleep(queue, duties, timeout);
        let now = Instant::now();
        duties.troubled(queue).iter().for_each(|pair| pair.turn(now));
    }
}

/// Polls as long as a wait spins, for as long as there is something, and not for ever.
fn spin(queue: &Queue, duties: &Duties) {
    let started = Instant::now();
    let mut until = started + duties.core.config().spin;
    while Instant::now() < until && !queue.stop.load(Ordering::Acquire) {
        if queue.poll() {
            until = (Instant::now() + duties.core.config().spin).min(started + ATTENTION);
        }
        std::hint::spin_loop();
    }
}

fn sleep(queue: &Queue, duties: &Duties, timeout: Duration) {
    let mut polled = [
        PollFd::from_borrowed_fd(queue.wake.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(queue.completions.fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(duties.end.context().events_fd(), PollFlags::IN),
    ];
    let watched = if duties.is_first { &mut polled[..] } else { &mut polled[..2] };
    let _ = rustix::event::poll(watched, Some(&timespec(timeout)));
    let happened = polled.map(|polled| !polled.revents().is_empty());
    if happened[0] {
        let _ = rustix::io::read(&queue.wake, &mut [0; 8]);
    }
    if happened[1] {
        queue.completions.take_events();
    }
    if duties.is_first && happened[2] {
        duties.device_event();
    }
}

impl Duties {
    /// The queue pairs of this queue that time moves on.
    fn troubled(&self, queue: &Queue) -> Vec<Arc<QueuePair>> {
        let peers = self.peers.read();
        let pairs = peers.values().flatten().filter(|pair| std::ptr::eq(&*pair.queue, queue));
        pairs.filter(|pair| pair.needs_attention()).cloned().collect()
    }

    fn device_event(&self) {
        let me = self.core.me().rank;
        let nic = self.end.description();
        match self.end.context().next_event() {
            Some(AsyncEvent::DeviceFatal) => self.device_lost("it was removed, or stopped working"),
            Some(AsyncEvent::PortDown) => {
                tracing::warn!(%me, nic, "the RDMA port is down; is its cable out?");
            }
            Some(AsyncEvent::PortUp) => tracing::info!(%me, nic, "the RDMA port is up"),
            Some(AsyncEvent::Other(event)) => tracing::debug!(%me, nic, event, "device event"),
            // the descriptor of a device that is gone is readable and has no event
            None if self.end.context().port(self.end.port_number()).is_err() => {
                self.device_lost("it is gone");
            }
            None => {}
        }
    }

    /// Without a NIC nobody can be reached.
    fn device_lost(&self, how: &str) {
        let detail = format!("{}: {how}", self.end.description());
        for pair in self.peers.read().values().flatten() {
            let cause = FaultCause::Device { detail: detail.clone() };
            self.core.peer_gone(&pair.link.peer, Gone::Lost(cause));
            pair.link.shutdown();
            pair.close();
        }
        // nothing more will be told: do not ask all the time
        std::thread::sleep(ATTENTION);
    }
}

impl Owner {
    pub(super) fn new(core: Arc<Core>, peers: Arc<PeerTable>) -> Owner {
        Owner { core, peers }
    }
}

impl Requests for Owner {
    fn open(&self, descriptor: RegionDescriptor) -> Result<Granted, String> {
        region::grant(&*self.core.regions().check_descriptor(descriptor)?)
    }

    fn queue_pair(&self, link: &Link, body: &[u8]) -> Result<(), String> {
        let news = News::decode(body).map_err(|error| error.to_string())?;
        let peers = self.peers.read();
        let pair = peers.get(&link.rank()).and_then(|pairs| pairs.get(news.queue_pair as usize));
        pair.ok_or("news of a queue pair that does not exist")?.news(&news)
    }

    fn ended(&self, peer: &Peer) {
        let lost = matches!(peer.gone(), Some(Gone::Lost(_)));
        for pair in self.peers.read().get(&peer.member.rank).into_iter().flatten() {
            match lost {
                true => pair.close(),
                // what the NIC has, it ends; what still waits would wait for ever
                false => pair.strand(),
            }
        }
    }
}
