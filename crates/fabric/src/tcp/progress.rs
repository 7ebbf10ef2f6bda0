//! Who moves what the posters did not: the threads of the completion queues, which sleep in one epoll, and whoever waits for
//! something to happen, as long as it waits.
//!
//! **Whoever waits receives itself.** Handing what has come from a thread that received it to one that waits for it costs another
//! waking of a thread, which takes longer than a small payload. So a thread that has nothing to do looks into the same epoll, and
//! sleeps there (one at a time; others sleep at the doorbell). What it does not receive rings the doorbell, and [`Elsewhere`] has
//! that end its sleep. The threads of the completion queues keep away meanwhile: waking them takes time as well. They look
//! after [`AWAY`], and ever less often, whether somebody still waits, and receive and send whenever nobody does, or much is to be
//! received: what a poster left that computes lies for [`AWAY`] and [`AWAY_MAX`] at most.
//!
//! A queue pair is watched for changes (`EPOLLET`): nothing is said to epoll for each that is served. Of two threads that find one
//! at a time, the first serves both.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use rustix::event::{EventfdFlags, epoll};
use tensorwire_base::{Clock, Deadline, Rank};

use super::queue_pair::{Broken, QueuePair};
use crate::board::Elsewhere;
use crate::common::{Core, Gone, Peer};
use crate::control::{Frame, Granted, Link, Requests};
use crate::doorbell::{Ticket, Wake};
use crate::error::FaultCause;
use crate::listener::timespec;
use crate::pulse;
use crate::region::RegionDescriptor;

/// The eventfd that stops the threads; no queue pair has that id.
const STOP: u64 = u64::MAX;
/// The eventfd that ends the sleep of whoever waits.
const ROUSE: u64 = u64::MAX - 1;
/// The threads keep away from those that wait for so long, and twice as long each time they find them still waiting.
const AWAY: Duration = Duration::from_micros(200);
/// This long at most.
const AWAY_MAX: Duration = Duration::from_micros(1600);
/// A turn that receives so many bytes is work for several threads.
const MUCH: usize = 1 << 20;
/// There is more to come for so long, also where many processes share a core.
const MUCH_FOR: Duration = Duration::from_millis(2);
/// Events that one look takes.
const EVENTS: usize = 64;

/// The threads, and what they share with whoever waits.
#[derive(Debug)]
pub(super) struct Pollers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    stop: AtomicBool,
    queue_pairs: RwLock<HashMap<u64, Arc<QueuePair>>>,
    /// Held by who waits in epoll; none where other processes ring the doorbell, which end no such sleep.
    leader: Option<Mutex<()>>,
    /// Somebody waits in epoll.
    is_led: AtomicBool,
    /// How often somebody began to.
    leads: AtomicU64,
    /// When the last such wait ended, and when much was received, on [`Clock`].
    led_ns: AtomicU64,
    much_ns: AtomicU64,
    /// Held by one thread that keeps away, and looks now and then; the others sleep until it has ended.
    lookout: Mutex<()>,
    ended: Condvar,
    /// True if whoever looks sleeps, too.
    sleeps: Mutex<bool>,
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
        let shared = Arc::new(Shared::new(core.clone())?);
        let mut pollers = Pollers { shared, threads: Vec::new(), next: AtomicUsize::new(0) };
        for index in 0..core.config().completion_queues {
            let shared = pollers.shared.clone();
            let thread = std::thread::Builder::new().name(format!("fabric-cq-{index}"));
            pollers.threads.push(thread.spawn(move || shared.run())?);
        }
        Ok(pollers)
    }

    /// Has a connection served.
    pub(super) fn add(
        &self,
        make: impl FnOnce(Arc<OwnedFd>, u64) -> QueuePair,
    ) -> std::io::Result<Arc<QueuePair>> {
        // fits: usize is 64 bits wide
        let id = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let shared = &self.shared;
        let queue_pair = Arc::new(make(shared.epoll.clone(), id));
        shared.queue_pairs.write().insert(id, queue_pair.clone());
        let data = epoll::EventData::new_u64(id);
        epoll::add(&shared.epoll, &queue_pair.socket, data, QueuePair::events(false))?;
        Ok(queue_pair)
    }

    /// Has the threads keep away, as somebody does that waits, until that is dropped.
    #[cfg(test)]
    pub(super) fn lead(&self) -> impl Drop {
        let elsewhere = self.shared.core.board().elsewhere();
        Leads::begin(&self.shared, elsewhere.expect("of no other process"))
    }

    /// Waits until the doorbell rings, and receives meanwhile.
    pub(super) fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        let core = &self.shared.core;
        // they have woken, and would take turns with whoever waits
        let leader = self.shared.leader.as_ref().filter(|_| !self.shared.receives_much());
        let leader = leader.and_then(Mutex::try_lock);
        match (leader, core.board().elsewhere()) {
            (Some(_leads), Some(elsewhere)) => self.shared.lead(elsewhere, ticket, deadline),
            _ => core.wait(ticket, deadline),
        }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.end_sleep();
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(core: Arc<Core>) -> std::io::Result<Shared> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let eventfd = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags)
        };
        let wake = eventfd()?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut leader = None;
        if core.config().host.is_none() {
            let rouse = eventfd()?;
            // each write is an event, and nobody reads
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &rouse, epoll::EventData::new_u64(ROUSE), flags)?;
            core.board().sleeps_elsewhere(Elsewhere::new(rouse));
            leader = Some(Mutex::new(()));
        }
        let (stop, queue_pairs) = (AtomicBool::new(false), RwLock::default());
        Ok(Shared {
            core,
            epoll,
            wake,
            stop,
            queue_pairs,
            leader,
            is_led: AtomicBool::new(false),
            leads: AtomicU64::new(0),
            led_ns: AtomicU64::new(0),
            much_ns: AtomicU64::new(0),
            lookout: Mutex::new(()),
            ended: Condvar::new(),
            sleeps: Mutex::new(false),
        })
    }

    /// The life of a thread of the completion queues.
    fn run(&self) {
        let _watched = pulse::watch_service(std::thread::current().name().unwrap_or_default());
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        while !self.stop.load(Ordering::Acquire) {
            pulse::beat();
            if self.is_led() {
                self.keep_away();
                continue;
            }
            let events = self.look(&mut space, pulse::BEAT);
            let roused = events.iter().any(|event| event.data.u64() == ROUSE);
            let elsewhere = self.core.board().elsewhere().filter(|_| roused);
            let was_meant_for_another = elsewhere.is_some_and(Elsewhere::rouse_once_more);
            self.serve_all(events, false);
            if was_meant_for_another {
                // who sleeps there, too
                std::thread::sleep(AWAY);
            }
        }
    }

    /// True if somebody receives what comes while it waits.
    fn is_led(&self) -> bool {
        let is_led = self.is_led.load(Ordering::SeqCst) || is_recent(&self.led_ns, AWAY);
        is_led && !self.receives_much()
    }

    /// True if there is work for several threads.
    fn receives_much(&self) -> bool {
        is_recent(&self.much_ns, MUCH_FOR)
    }

    /// Until that ends.
    fn keep_away(&self) {
        let Some(looks_out) = self.lookout.try_lock() else {
            let mut sleeps = self.sleeps.lock();
            if self.is_led() && !self.stop.load(Ordering::SeqCst) {
                self.ended.wait_for(&mut sleeps, pulse::BEAT);
            }
            return;
        };
        let (mut away, mut leads) = (AWAY, self.leads.load(Ordering::SeqCst));
        while self.is_led() && !self.stop.load(Ordering::SeqCst) {
            pulse::beat();
            let mut sleeps = self.sleeps.lock();
            // whoever finds much to receive ends it
            self.ended.wait_for(&mut sleeps, away);
            // looked at under the lock that whoever ends the sleep takes; who has just waited ends none
            let is_led = self.is_led.load(Ordering::SeqCst) && !self.receives_much();
            let led_before = std::mem::replace(&mut leads, self.leads.load(Ordering::SeqCst));
            if away == AWAY_MAX
                && leads == led_before
                && is_led
                && !self.stop.load(Ordering::SeqCst)
            {
                // one who waits for long
                *sleeps = true;
                self.ended.wait_for(&mut sleeps, pulse::BEAT);
                *sleeps = false;
                // it has what it waited for: what comes now is soon received here
                away = AWAY;
                continue;
            }
            away = AWAY_MAX.min(2 * away);
        }
        drop(looks_out);
        self.end_sleep();
    }

    /// Ends the sleep of all that keep away: they look again.
    fn end_sleep(&self) {
        let _looked = self.sleeps.lock();
        self.ended.notify_all();
    }

    /// Waits in epoll until the doorbell rings.
    fn lead(&self, elsewhere: &Elsewhere, ticket: Ticket, deadline: Deadline) -> Wake {
        let (board, mut blocked) = (self.core.board(), false);
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let over = |wake, blocked| {
            self.core.count_wait(wake, blocked);
            wake
        };
        if board.ticket() != ticket {
            return over(Wake::Event, false);
        }
        if deadline.passed() {
            // whoever only looks has what there is
            self.serve_all(self.look(&mut space, Duration::ZERO), true);
            let has_rung = board.ticket() != ticket;
            return over(if has_rung { Wake::Event } else { Wake::TimedOut }, false);
        }
        let _leads = Leads::begin(self, elsewhere);
        let spin = Deadline::after(self.core.config().spin.min(deadline.remaining()));
        loop {
            pulse::beat();
            let mut events: &[epoll::Event] = &[];
            while events.is_empty() && board.ticket() == ticket && !spin.passed() {
                // whoever is to send may wait for this very core
                std::thread::yield_now();
                events = self.look(&mut space, Duration::ZERO);
            }
            elsewhere.falls_asleep();
            // looked at again once whoever rings knows who sleeps here
            let has_rung = board.ticket() != ticket;
            if events.is_empty() && !has_rung && !deadline.passed() {
                blocked = true;
                events = self.look(&mut space, deadline.remaining().min(pulse::BEAT));
            }
            elsewhere.wakes_up();
            self.serve_all(events, true);
            if has_rung || board.ticket() != ticket {
                return over(Wake::Event, blocked);
            }
            if deadline.passed() {
                return over(Wake::TimedOut, blocked);
            }
        }
    }

    /// Sleeps until something happens; returns what.
    fn look<'s>(
        &self,
        space: &'s mut [MaybeUninit<epoll::Event>],
        longest: Duration,
    ) -> &'s [epoll::Event] {
        let found = epoll::wait(&self.epoll, space, Some(&timespec(longest)));
        // fails only if a signal comes
        found.map_or(&[], |(events, _)| events)
    }

    /// `waits`: for one who waits for something.
    fn serve_all(&self, events: &[epoll::Event], waits: bool) {
        for event in events {
            let found = self.queue_pairs.read().get(&event.data.u64()).cloned();
            if let Some(queue_pair) = found {
                self.serve(&queue_pair, event.flags, waits);
            }
        }
    }

    fn serve(&self, queue_pair: &QueuePair, flags: epoll::EventFlags, waits: bool) {
        let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let mut result = Ok(());
        if flags.intersects(ends | epoll::EventFlags::IN) {
            result = queue_pair.receive_turn(flags.intersects(ends)).map(|bytes| {
                if bytes >= MUCH {
                    let has_begun = !self.receives_much();
                    self.much_ns.store(Clock::now_ns(), Ordering::SeqCst);
                    if has_begun {
                        self.end_sleep();
                    }
                }
            });
        }
        if result.is_ok() && flags.contains(epoll::EventFlags::OUT) {
            result = queue_pair.send_turn(waits);
        }
        if let Err(broken) = result {
            let _ = epoll::delete(&self.epoll, &queue_pair.socket);
            self.queue_pairs.write().remove(&queue_pair.id);
            give_up(&self.core, queue_pair, broken);
        }
    }
}

/// True if that was no longer ago.
fn is_recent(at_ns: &AtomicU64, within: Duration) -> bool {
    // fits: far less than a second
    Clock::now_ns() < at_ns.load(Ordering::SeqCst) + within.as_nanos() as u64
}

/// Somebody waits in epoll until this is dropped.
struct Leads<'a>(&'a Shared, &'a Elsewhere);

impl Leads<'_> {
    fn begin<'a>(shared: &'a Shared, elsewhere: &'a Elsewhere) -> Leads<'a> {
        shared.leads.fetch_add(1, Ordering::SeqCst);
        shared.is_led.store(true, Ordering::SeqCst);
        Leads(shared, elsewhere)
    }
}

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        let Leads(shared, elsewhere) = self;
        elsewhere.wakes_up();
        shared.led_ns.store(Clock::now_ns(), Ordering::SeqCst);
        shared.is_led.store(false, Ordering::SeqCst);
        let sleeps = shared.sleeps.lock();
        if *sleeps {
            shared.ended.notify_all();
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
