//! One reliable connected queue pair through all its lives: posting, completions, and being built anew.
//!
//! **Order.** Memcpys take effect in the order of their posts: RC carries requests out in order, and what
//! cannot be posted now waits in a backlog behind which everything later waits too. A signal after a
//! read is fenced, so that it is sent when the read is done.
//!
//! **Queue depths.** A memcpy is a chain of requests of which the last one is signaled; its requests are
//! taken from `sends_free` before it is posted and given back with its completion, so the send queue
//! never overflows. Signals that the peer has not said to have taken stay within its `window`, which
//! its receive queue exceeds by [`NOTES`]: at most four notes of signals taken, a goodbye and its
//! acknowledgement come beside them. The completion queue has room for both queues of all its pairs.
//!
//! **Failure.** The first bad completion poisons the queue pair: it is drained, destroyed, and built anew as
//! the next generation, with back-off, until [`REBUILD_WITHIN`]. Each end then says how many signals
//! it took in all: what they cover is done, the rest is posted again. A write without a signal behind it
//! may so land twice, which nobody can see: nobody was told that it had landed once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::device::NicEnd;
use super::failure::{FLUSHED, Failure};
use super::ibv::{self, CHAIN_MAX, Kind, Path, Remote, Request, Segment, WorkCompletion};
use super::progress::Queue;
use super::region::ControlMemory;
use super::wire::{self, Introduced, Introduction, NOTE_BYTES, News, Note, What};
use crate::api::{ArrivalSlot, Completion, Direction, Signal};
use crate::arrival::ArrivalMode;
use crate::common::{Core, Credits, Gone};
use crate::control::{Frame, Link};
use crate::device::Work;
use crate::error::{CompletionError, FaultCause, PostError};

/// Up to here payload and immediate are one request; beyond, switches route payload better alone.
const ONE_REQUEST_BYTES: u64 = 8 << 10;
/// A request's bytes; the standard's limit is 2 GiB.
const PIECE_BYTES: u64 = 1 << 30;
/// Payload that travels in its request.
pub(super) const INLINE_BYTES: u32 = 64;
/// Receives beyond the window.
pub(super) const NOTES: u32 = 8;
/// How long a queue pair may be away before its peer counts as lost. With the detection of the failure
/// less than 5 s.
const REBUILD_WITHIN: Duration = Duration::from_millis(3500);
/// How long flushed requests may take to be told of; then the queue pair is destroyed all the same.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_millis(500);
/// Marks the id of a receive.
const RECEIVE: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct QueuePair {
    me: Weak<QueuePair>,
    core: Arc<Core>,
    pub(super) link: Arc<Link>,
    end: Arc<NicEnd>,
    pub(super) queue: Arc<Queue>,
    index: u32,
    depth: Depth,
    credits: Arc<Credits>,
    mode: ArrivalMode,
    peer: OnceLock<PeerEnd>,
    /// Where the peer writes flags through this queue pair.
    flags: Remote,
    /// The highest flag written to each slot.
    flags_sent: Mutex<HashMap<u32, u64>>,
    memory: ControlMemory,
    state: Mutex<State>,
    pub(super) goodbye_acked: AtomicBool,
}

/// Sizes of the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    pub(super) sends: u32,
    /// Signals of the peer that there is room for.
    pub(super) window: u32,
    /// Memcpys posted and not polled.
    pub(super) memcpys: u32,
}

/// The other end.
#[derive(Debug)]
struct PeerEnd {
    introduction: Introduction,
    slots: u64,
    path: Path,
}

#[derive(Debug)]
struct State {
    raw: Option<ibv::QueuePair>,
    phase: Phase,
    generation: u32,
    first_packet: u32,
    in_flight: VecDeque<Posted>,
    backlog: VecDeque<Item>,
    /// Go before the backlog, and are under no window.
    notes: VecDeque<Note>,
    sends_free: u32,
    /// Ends of chains that were posted and not told of.
    ends_out: u32,
    receives_out: u32,
    next_id: u64,
    signals_sent: u64,
    /// Signals that the peer says it took.
    peer_took: u64,
    /// Signals of the peer that were taken here, and how many of them it knows of.
    taken: u64,
    told: u64,
    failure: Option<Failure>,
    /// The request that failed.
    faulty: Option<u64>,
    failing_since: Option<Instant>,
    attempts: u32,
    theirs: Option<Theirs>,
    joined: bool,
    /// The peer's last word of readiness.
    peer_ready: Option<u32>,
}

/// What the peer said of its next life.
#[derive(Clone, Copy, Debug)]
struct Theirs {
    generation: u32,
    number: u32,
    first_packet: u32,
    took: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Not connected yet.
    New,
    Ready,
    /// Waiting for the end of everything that was posted.
    Draining {
        since: Instant,
    },
    /// Waiting before the next try.
    Resting {
        until: Instant,
    },
    /// Waiting for the peer's half.
    Rebuilding,
    Closed,
}

#[derive(Debug)]
struct Posted {
    id: u64,
    sends: u32,
    item: Item,
    /// How many signals had been sent with it.
    signal: Option<u64>,
}

#[derive(Debug)]
enum Item {
    Memcpy(Work),
    Note(Note),
}

impl Depth {
    pub(super) fn receives(self) -> u32 {
        self.window + NOTES
    }

    fn memory_bytes(self) -> u64 {
        self.words_at() + u64::from(self.memcpys + 1) * 8
    }

    /// Where the epochs of `flag-tail` are sent from, behind the receive buffers.
    fn words_at(self) -> u64 {
        u64::from(self.receives()) * NOTE_BYTES as u64
    }
}

impl QueuePair {
    /// A queue pair that can be told of, and is connected to nobody.
    pub(super) fn new(
        core: &Arc<Core>,
        link: &Arc<Link>,
        end: &Arc<NicEnd>,
        queue: &Arc<Queue>,
        index: u32,
        flags: Remote,
    ) -> std::io::Result<Arc<QueuePair>> {
        let depth = end.depth;
        let memory = ControlMemory::new(&end.domain, depth.memory_bytes())?;
        let state = State {
            raw: None,
            phase: Phase::New,
            generation: 0,
            first_packet: 0,
            in_flight: VecDeque::new(),
            backlog: VecDeque::new(),
            notes: VecDeque::new(),
            sends_free: depth.sends,
            ends_out: 0,
            receives_out: 0,
            next_id: 0,
            signals_sent: 0,
            peer_took: 0,
            taken: 0,
            told: 0,
            failure: None,
            faulty: None,
            failing_since: None,
            attempts: 0,
            theirs: None,
            joined: false,
            peer_ready: None,
        };
        let queue_pair = Arc::new_cyclic(|me| QueuePair {
            me: me.clone(),
            core: core.clone(),
            link: link.clone(),
            end: end.clone(),
            queue: queue.clone(),
            index,
            depth,
            credits: Credits::new(core.config().queue_depth),
            mode: core.config().arrival.unwrap_or_default(),
            peer: OnceLock::new(),
            flags,
            flags_sent: Mutex::default(),
            memory,
            state: Mutex::new(state),
            goodbye_acked: AtomicBool::new(false),
        });
        queue_pair.begin_life(&mut queue_pair.state.lock())?;
        Ok(queue_pair)
    }

    /// For the peer.
    pub(super) fn introduction(&self) -> Introduced {
        let state = self.state.lock();
        let number = state.raw.as_ref().map_or(0, ibv::QueuePair::number);
        Introduced { number, first_packet: state.first_packet, flags: self.flags }
    }

    /// Ready to receive and to send; nothing is sent before [`QueuePair::start`].
    pub(super) fn connect(
        &self,
        introduction: &Introduction,
        slots: u64,
        path: Path,
    ) -> std::io::Result<()> {
        let peer = PeerEnd { introduction: introduction.clone(), slots, path };
        let mut state = self.state.lock();
        // fits: the number of queue pairs was compared
        let Introduced { number, first_packet, .. } = introduction.queue_pairs[self.index as usize];
        let address = introduction.address(number, first_packet);
        // set once: a queue pair connects once
        let _ = self.peer.set(peer);
        let mine = state.first_packet;
        let raw = state.raw.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        raw.init_to_rtr(&address, &path)?;
        raw.rtr_to_rts(mine, &path)?;
        state.joined = true;
        Ok(())
    }

    pub(super) fn writes_land_in_order(&self) -> bool {
        self.state.lock().raw.as_ref().is_some_and(ibv::QueuePair::writes_land_in_order)
    }

    /// Every end is ready: what was posted may go.
    pub(super) fn start(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::New {
            state.phase = Phase::Ready;
            self.send_waiting(&mut state);
        }
    }

    pub(super) fn post(&self, work: Work) -> Result<(), PostError> {
        let rank = self.link.rank();
        self.link.peer.check()?;
        work.check_slot(rank, self.slots())?;
        self.credits.take()?;
        let mut state = self.state.lock();
        if state.phase == Phase::Closed {
            self.credits.give_back();
            return Err(PostError::PeerLost { peer: rank, cause: self.link.peer.cause() });
        }
        self.core.counters().posted(work.direction, work.bytes);
        state.backlog.push_back(Item::Memcpy(work));
        self.send_waiting(&mut state);
        Ok(())
    }

    /// Asks the peer to confirm all that was posted before. False if there is nobody to ask.
    pub(super) fn send_goodbye(&self) -> bool {
        let mut state = self.state.lock();
        if state.phase == Phase::Closed || self.link.peer.gone().is_some() {
            return false;
        }
        state.backlog.push_back(Item::Note(Note::Goodbye));
        self.send_waiting(&mut state);
        true
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().phase == Phase::Closed
    }

    /// The peer is gone: what is in flight fails, as soon as the NIC has let go of it.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Closed => {}
            Phase::Draining { .. } => self.queue.wake(),
            _ => self.begin_draining(&mut state),
        }
    }

    /// Destroys it, without a word to anybody: its fabric is gone.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        self.end_life(&mut state);
        state.phase = Phase::Closed;
        state.in_flight.clear();
        state.backlog.clear();
    }

    /// True while time alone moves it on.
    pub(super) fn needs_attention(&self) -> bool {
        !matches!(self.state.lock().phase, Phase::New | Phase::Ready | Phase::Closed)
    }

    /// One completion of its queues.
    pub(super) fn completed(&self, completion: &WorkCompletion) {
        let mut state = self.state.lock();
        if state.raw.as_ref().is_none_or(|raw| raw.number() != completion.queue_pair) {
            return; // of a life that ended before it was told of
        }
        match completion.id & RECEIVE {
            0 => self.sent(&mut state, completion),
            _ => self.received(&mut state, completion),
        }
    }

    /// What time brings.
    pub(super) fn turn(&self, now: Instant) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::New | Phase::Ready | Phase::Closed => {}
            Phase::Draining { since } => {
                let drained = state.ends_out == 0 && state.receives_out == 0;
                if drained || now.duration_since(since) >= DRAIN_WITHIN {
                    self.drained(&mut state, now);
                }
            }
            Phase::Resting { until } if now >= until => self.rebuild(&mut state),
            Phase::Resting { .. } => {}
            Phase::Rebuilding => self.give_up_late(&mut state, now),
        }
    }

    /// The peer says something of this queue pair.
    pub(super) fn news(&self, news: &News) {
        let mut state = self.state.lock();
        match news.what {
            What::Rebuilt { number, first_packet, signals_taken: took } => {
                let generation = news.generation;
                let known = state.theirs.map_or(0, |theirs| theirs.generation);
                if generation <= known.max(state.generation.saturating_sub(1)) {
                    return; // an answer to a life that is over
                }
                let awaited = state.phase == Phase::Rebuilding && generation == state.generation;
                if generation <= state.generation && !awaited {
                    return;
                }
                state.theirs = Some(Theirs { generation, number, first_packet, took });
                match state.phase {
                    Phase::Rebuilding if awaited => self.join(&mut state),
                    Phase::New | Phase::Ready | Phase::Rebuilding => {
                        let told = "the other end built its queue pair anew";
                        self.fail(&mut state, None, told.into());
                    }
                    Phase::Draining { .. } | Phase::Resting { .. } | Phase::Closed => {}
                }
                self.queue.wake();
            }
            What::Ready => {
                state.peer_ready = Some(news.generation);
                self.start_again(&mut state);
            }
        }
    }

    fn slots(&self) -> u64 {
        self.peer.get().map_or(0, |peer| peer.slots)
    }

    /// Which life it is in, from 0.
    #[cfg(test)]
    pub(super) fn generation(&self) -> u32 {
        self.state.lock().generation
    }

    /// Ends this life as a device would, without a word.
    #[cfg(test)]
    pub(super) fn kill(&self) {
        if let Some(raw) = &self.state.lock().raw {
            raw.to_error().unwrap();
        }
    }

    // ---- posting

    /// Posts what waits, as far as there is room.
    fn send_waiting(&self, state: &mut State) {
        while state.phase == Phase::Ready && state.sends_free > 0 {
            let Some(note) = state.notes.pop_front() else { break };
            self.send(state, Item::Note(note));
        }
        while state.phase == Phase::Ready {
            let Some(next) = state.backlog.front() else { return };
            let fits = state.sends_free >= self.sends_of(next);
            // a memcpy of more requests than there are waits until it has them all to itself
            if !fits && state.sends_free < self.depth.sends {
                return;
            }
            let under_window = matches!(next, Item::Memcpy(work) if work.signal.is_some());
            let window = u64::from(self.peer.get().map_or(0, |peer| peer.introduction.window));
            let counts = self.mode == ArrivalMode::WriteImm && under_window;
            if counts && state.signals_sent - state.peer_took >= window {
                return;
            }
            if let Some(item) = state.backlog.pop_front() {
                self.send(state, item);
            }
        }
    }

    /// At most so many requests.
    fn sends_of(&self, item: &Item) -> u32 {
        match item {
            Item::Note(_) => 1,
            // fits: a region is far below 2^62 bytes
            Item::Memcpy(work) => (work.bytes.div_ceil(PIECE_BYTES) as u32).max(1) + 1,
        }
    }

    fn send(&self, state: &mut State, item: Item) {
        let id = state.next_id;
        state.next_id += 1;
        let Some(raw) = state.raw.as_ref() else { return };
        let requests = Vec::with_capacity(CHAIN_MAX);
        let mut chain = Chain { raw, id, requests, sends: 0, failed: None };
        match &item {
            Item::Note(note) => chain.push_message(note.encode(), false),
            Item::Memcpy(work) => self.push_memcpy(&mut chain, work, id),
        }
        chain.finish();
        let Chain { sends, failed, .. } = chain;
        let counted = match &item {
            Item::Memcpy(Work { signal: Some(_), .. }) if self.mode == ArrivalMode::WriteImm => {
                true
            }
            Item::Memcpy(_) | Item::Note(_) => false,
        };
        state.signals_sent += u64::from(counted);
        let signal = counted.then_some(state.signals_sent);
        state.sends_free = state.sends_free.saturating_sub(sends);
        // a chain of which nothing was taken has no end that is told
        state.ends_out += u32::from(failed.is_none());
        state.in_flight.push_back(Posted { id, sends, item, signal });
        if let Some(error) = failed {
            self.fail(state, Some(id), format!("the NIC takes no request ({error})"));
        }
    }

    fn push_memcpy(&self, chain: &mut Chain<'_>, work: &Work, id: u64) {
        let Some(remote) = work.remote.remote() else { return };
        let Some(registration) = work.local.registration() else { return };
        let Some(peer) = self.peer.get() else { return };
        let local_key = registration.local_key();
        let at = |offset: u64| Segment {
            address: work.local.mapping().at(work.local_offset + offset) as u64,
            bytes: 0,
            key: local_key,
        };
        let there = |offset: u64| Remote {
            address: remote.address.wrapping_add(work.remote_offset + offset),
            key: remote.key,
        };
        let is_read = work.direction == Direction::Read;
        let plan = self.plan(work.signal, is_read, work.bytes, peer.slots);
        let mut done = 0;
        while done < work.bytes {
            let bytes = (work.bytes - done).min(PIECE_BYTES);
            let segment = Segment { bytes: bytes as u32, ..at(done) }; // fits: at most 1 GiB
            let is_last = done + bytes == work.bytes;
            let (kind, tail) = match plan {
                _ if is_read => (Kind::Read, None),
                Plan::Within(immediate) => (Kind::WriteWithImmediate(immediate), None),
                Plan::Tail(epoch) if is_last => (Kind::Write, Some(self.word(id, epoch))),
                _ => (Kind::Write, None),
            };
            let inline = !is_read && tail.is_none() && bytes <= u64::from(self.end.inline_bytes);
            let segments = [Some(segment), tail];
            chain.push(kind, segments, inline, there(done), false);
            done += bytes;
        }
        match plan {
            Plan::None | Plan::Within(_) if work.bytes > 0 => {}
            // nothing to move and nothing to tell: the completion alone
            Plan::None => chain.push(Kind::Write, [None; 2], false, there(0), is_read),
            Plan::Tail(_) if work.bytes > 0 => {}
            Plan::Tail(epoch) => {
                chain.push(Kind::Write, [Some(self.word(id, epoch)), None], false, there(0), false);
            }
            Plan::Immediate(immediate) | Plan::Within(immediate) => {
                let kind = Kind::WriteWithImmediate(immediate);
                chain.push(kind, [None; 2], false, Remote::default(), is_read);
            }
            Plan::Message(signal) => chain.push_message(Note::Signal(signal).encode(), is_read),
            Plan::Flag(Signal { slot, epoch }) => {
                // fits: the number of queue pairs was compared
                let flags = peer.introduction.queue_pairs[self.index as usize].flags;
                let address = flags.address.wrapping_add(u64::from(slot.index()) * 8);
                chain.push_flag(epoch, Remote { address, key: flags.key }, is_read);
            }
        }
    }

    /// How a signal travels.
    fn plan(&self, signal: Option<Signal>, is_read: bool, bytes: u64, slots: u64) -> Plan {
        let Some(signal) = signal else { return Plan::None };
        match self.mode {
            ArrivalMode::WriteImm => match wire::to_immediate(signal, slots) {
                Some(immediate) if !is_read && (1..=ONE_REQUEST_BYTES).contains(&bytes) => {
                    Plan::Within(immediate)
                }
                Some(immediate) => Plan::Immediate(immediate),
                None => Plan::Message(signal),
            },
            ArrivalMode::FlagTail if signal.slot.is_tail() && !is_read => Plan::Tail(signal.epoch),
            ArrivalMode::FlagSeparate | ArrivalMode::FlagTail => {
                let mut sent = self.flags_sent.lock();
                let highest = sent.entry(signal.slot.index()).or_insert(0);
                if signal.epoch <= *highest {
                    // a lower flag would take back what was said
                    return Plan::None;
                }
                *highest = signal.epoch;
                Plan::Flag(signal)
            }
        }
    }

    /// An epoch in registered memory, for the request of that id.
    fn word(&self, id: u64, epoch: u64) -> Segment {
        let offset = self.depth.words_at() + id % u64::from(self.depth.memcpys + 1) * 8;
        // SAFETY: 8 bytes inside the control memory, at a multiple of 8 from a page's start. Only the
        // request of this id reads them: the one that had the word before it, `memcpys + 1` ids ago, has
        // completed, as at most `memcpys` and a goodbye are in flight.
        unsafe { self.memory.mapping.at(offset).cast::<u64>().write(epoch.to_le()) };
        let key = self.memory.registration.local_key();
        Segment { address: self.memory.address(offset), bytes: 8, key }
    }

    // ---- completions

    fn sent(&self, state: &mut State, completion: &WorkCompletion) {
        let (id, is_end) = (completion.id >> 1, completion.id & 1 == 1);
        let Some(first) = state.in_flight.front().map(|posted| posted.id) else { return };
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(place) = place.filter(|&place| place < state.in_flight.len()) else { return };
        if is_end {
            state.ends_out = state.ends_out.saturating_sub(1);
        }
        if completion.status != 0 {
            let status = completion.status;
            if status != FLUSHED && state.faulty.is_none() {
                let request = self.describe(&state.in_flight[place]);
                let (status, vendor) = (Some(status), completion.vendor);
                let path = self.path_text(state);
                state.failure = Some(Failure { status, vendor, request, path });
                state.faulty = Some(id);
            }
            if state.phase == Phase::Ready {
                self.begin_draining(state);
            }
            return;
        }
        // in order: what was posted before has succeeded too
        let ends = place + 1;
        state.ends_out = state.ends_out.saturating_sub(place as u32); // fits: at most the queue's depth
        for posted in state.in_flight.drain(..ends).collect::<Vec<_>>() {
            state.sends_free += posted.sends;
            self.finish(posted.item, Ok(()));
        }
        if state.phase == Phase::Ready {
            state.recovered();
            self.send_waiting(state);
        }
    }

    fn received(&self, state: &mut State, completion: &WorkCompletion) {
        state.receives_out = state.receives_out.saturating_sub(1);
        if completion.status != 0 {
            if completion.status != FLUSHED && state.failure.is_none() {
                let (status, vendor) = (Some(completion.status), completion.vendor);
                let request = "receiving a message".to_string();
                let path = self.path_text(state);
                state.failure = Some(Failure { status, vendor, request, path });
            }
            if state.phase == Phase::Ready {
                self.begin_draining(state);
            }
            return;
        }
        let index = completion.id & u64::from(u32::MAX);
        let mine = self.core.board().slots() as u64; // fits: usize is 64 bits wide
        let note = match completion.immediate {
            Some(immediate) => wire::from_immediate(immediate, mine).map(Note::Signal),
            None => self.read_note(index, completion.bytes),
        };
        match note {
            Some(Note::Signal(signal)) if u64::from(signal.slot.index()) < mine => {
                self.core.board().raise(signal.slot.index(), signal.epoch);
                state.taken += 1;
                if state.taken - state.told >= u64::from(self.depth.window / 4) {
                    state.told = state.taken;
                    state.notes.push_back(Note::Taken(state.taken));
                }
            }
            Some(Note::Taken(count)) => state.peer_took = state.peer_took.max(count),
            Some(Note::Goodbye) => state.notes.push_back(Note::GoodbyeAck),
            Some(Note::GoodbyeAck) => {
                self.goodbye_acked.store(true, Ordering::Release);
                self.core.board().ring();
            }
            Some(Note::Signal(_)) | None => {
                let detail = "it sent a bad message on a queue pair".to_string();
                return self.lose(state, FaultCause::Protocol { detail });
            }
        }
        if matches!(state.phase, Phase::Ready | Phase::Rebuilding | Phase::New) {
            if let Err(error) = self.post_receive(state, index) {
                return self.fail(state, None, format!("the NIC takes no receive ({error})"));
            }
            if state.phase == Phase::Ready {
                state.recovered();
                self.send_waiting(state);
            }
        }
    }

    fn read_note(&self, index: u64, bytes: u32) -> Option<Note> {
        if index >= u64::from(self.depth.receives()) || bytes as usize != NOTE_BYTES {
            return None;
        }
        let mut wire = [0u8; NOTE_BYTES];
        let from = self.memory.mapping.at(index * NOTE_BYTES as u64);
        // SAFETY: a receive buffer inside the control memory. The NIC has written it and says so, and does
        // not write it again before it is posted again, by whoever calls this, afterwards.
        unsafe { std::ptr::copy_nonoverlapping(from, wire.as_mut_ptr(), NOTE_BYTES) };
        Note::decode(&wire).ok()
    }

    fn post_receive(&self, state: &mut State, index: u64) -> std::io::Result<()> {
        let raw = state.raw.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        let address = self.memory.address(index * NOTE_BYTES as u64);
        let key = self.memory.registration.local_key();
        raw.post_receive(RECEIVE | index, Segment { address, bytes: NOTE_BYTES as u32, key })?;
        state.receives_out += 1;
        Ok(())
    }

    fn finish(&self, item: Item, result: Result<(), CompletionError>) {
        if let Item::Memcpy(work) = item {
            let completion = Completion { token: work.token, peer: self.link.rank(), result };
            self.core.complete(completion, &self.credits);
        }
    }

    // ---- failure and the next life

    fn fail(&self, state: &mut State, faulty: Option<u64>, request: String) {
        if state.failure.is_none() {
            let path = self.path_text(state);
            state.failure = Some(Failure { status: None, vendor: 0, request, path });
            state.faulty = faulty;
        }
        self.begin_draining(state);
    }

    fn begin_draining(&self, state: &mut State) {
        let now = Instant::now();
        state.failing_since.get_or_insert(now);
        state.phase = Phase::Draining { since: now };
        state.joined = false;
        if let Some(raw) = &state.raw {
            // a device that is gone cannot; then the time limit ends the draining
            let _ = raw.to_error();
        }
        // whoever took the completion: time moves the rest on, in the queue's thread
        self.queue.wake();
    }

    /// Nothing of the old life is with the NIC any more.
    fn drained(&self, state: &mut State, now: Instant) {
        self.end_life(state);
        if self.link.peer.gone().is_some() {
            return self.fail_all(state);
        }
        let failure = self.failure_of(state);
        if failure.is_of_the_path() {
            tracing::warn!(me = %self.core.me().rank, peer = %self.link.rank(),
                queue_pair = self.index, generation = state.generation, "{failure}; building it anew");
        }
        if self.mode != ArrivalMode::WriteImm {
            // whether a flag was seen cannot be known, so nothing may be written again
            return self.lose(state, FaultCause::Unreachable { detail: failure.to_string() });
        }
        let elapsed = state.failing_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        if elapsed >= REBUILD_WITHIN {
            return self.give_up_late(state, now);
        }
        let rest = REST_MIN.saturating_mul(1 << state.attempts.min(8)).min(REST_MAX);
        let rest = if state.attempts == 0 { Duration::ZERO } else { rest };
        state.attempts += 1;
        state.phase = Phase::Resting { until: now + rest };
        if rest.is_zero() {
            self.rebuild(state);
        }
    }

    fn rebuild(&self, state: &mut State) {
        let next = state.generation + 1;
        state.generation = state.theirs.map_or(next, |theirs| theirs.generation.max(next));
        state.joined = false;
        state.phase = Phase::Rebuilding;
        if let Err(error) = self.begin_life(state) {
            return self.fail(state, None, format!("no queue pair can be made ({error})"));
        }
        let number = state.raw.as_ref().map_or(0, ibv::QueuePair::number);
        let (first_packet, signals_taken) = (state.first_packet, state.taken);
        state.told = state.taken;
        let what = What::Rebuilt { number, first_packet, signals_taken };
        self.tell(News { queue_pair: self.index, generation: state.generation, what });
        self.join(state);
    }

    /// Connects the new life if the peer has told of its own.
    fn join(&self, state: &mut State) {
        let Some(theirs) = state.theirs.filter(|theirs| theirs.generation == state.generation)
        else {
            return;
        };
        let (Some(peer), Some(raw)) = (self.peer.get(), state.raw.as_ref()) else { return };
        if state.joined {
            return;
        }
        let address = peer.introduction.address(theirs.number, theirs.first_packet);
        let connected = raw
            .init_to_rtr(&address, &peer.path)
            .and_then(|()| raw.rtr_to_rts(state.first_packet, &peer.path));
        if let Err(error) = connected {
            return self.fail(
                state,
                None,
                format!("the new queue pair does not connect ({error})"),
            );
        }
        state.joined = true;
        let what = What::Ready;
        self.tell(News { queue_pair: self.index, generation: state.generation, what });
        self.start_again(state);
    }

    /// Both ends are ready: what the peer's signals do not cover goes again.
    fn start_again(&self, state: &mut State) {
        let ready = state.peer_ready == Some(state.generation);
        if state.phase != Phase::Rebuilding || !state.joined || !ready {
            return;
        }
        let Some(theirs) = state.theirs else { return };
        tracing::info!(me = %self.core.me().rank, peer = %self.link.rank(), queue_pair = self.index,
            generation = state.generation, "the queue pair is back");
        let failure = state.failure.take();
        let faulty = state.faulty.take();
        let covered = state
            .in_flight
            .iter()
            .rposition(|posted| posted.signal.is_some_and(|signal| signal <= theirs.took))
            .map_or(0, |last| last + 1);
        let refused = failure.filter(|failure| !failure.is_of_the_path());
        let mut again = VecDeque::new();
        for (place, posted) in std::mem::take(&mut state.in_flight).into_iter().enumerate() {
            let Posted { id, item, signal, .. } = posted;
            let is_read = matches!(&item, Item::Memcpy(work) if work.direction == Direction::Read);
            let done = place < covered && (!is_read || signal.is_some());
            match (&item, &refused, faulty) {
                (Item::Note(Note::Taken(_)), ..) => {}
                _ if done => self.finish(item, Ok(())),
                (Item::Memcpy(_), Some(failure), Some(faulty)) if id >= faulty => {
                    let (peer, cause) = (self.link.rank(), failure.to_string());
                    let queue_pair = self.index as usize; // fits: at most 1024
                    let error = match id == faulty {
                        true => CompletionError::QueuePairFailed { peer, queue_pair, cause },
                        false => CompletionError::Flushed { peer, cause },
                    };
                    self.finish(item, Err(error));
                }
                _ => again.push_back(item),
            }
        }
        again.append(&mut state.backlog);
        state.backlog = again;
        (state.signals_sent, state.peer_took) = (theirs.took, theirs.took);
        state.phase = Phase::Ready;
        self.send_waiting(state);
    }

    fn give_up_late(&self, state: &mut State, now: Instant) {
        let since = state.failing_since.unwrap_or(now);
        if now.duration_since(since) >= REBUILD_WITHIN {
            let (failure, tried) = (self.failure_of(state), state.attempts);
            let detail = format!(
                "{failure} (built anew {tried} times in {:.1} s, in vain)",
                REBUILD_WITHIN.as_secs_f64()
            );
            self.lose(state, FaultCause::Unreachable { detail });
        }
    }

    /// The peer is lost, and with it every queue pair to it.
    fn lose(&self, state: &mut State, cause: FaultCause) {
        self.link.send(Frame::Refusal { reason: cause.to_string() });
        self.core.peer_gone(&self.link.peer, Gone::Lost(cause));
        // its end is noticed by the control thread, which closes the others
        self.link.shutdown();
        if state.raw.is_some() {
            self.begin_draining(state);
        } else {
            self.fail_all(state);
        }
    }

    fn fail_all(&self, state: &mut State) {
        state.phase = Phase::Closed;
        let (peer, cause) = (self.link.rank(), self.link.peer.cause());
        let waiting = state.in_flight.drain(..).map(|posted| posted.item);
        let items: Vec<Item> = waiting.chain(state.backlog.drain(..)).collect();
        for item in items {
            self.finish(item, Err(CompletionError::PeerLost { peer, cause: cause.clone() }));
        }
        self.core.board().ring();
    }

    /// A fresh queue pair that can be told of, with its receives.
    fn begin_life(&self, state: &mut State) -> std::io::Result<()> {
        let Depth { sends, .. } = self.depth;
        let receives = self.depth.receives();
        let NicEnd { domain, .. } = &*self.end;
        let made = domain.create_queue_pair(
            self.queue.completions(),
            sends,
            receives,
            self.end.inline_bytes,
        )?;
        made.reset_to_init(self.end.port_number())?;
        self.queue.enter(made.number(), self.me.clone());
        // 24 bits
        state.first_packet = crate::handshake::random_u64() as u32 & 0x00ff_ffff;
        state.sends_free = sends;
        (state.ends_out, state.receives_out) = (0, 0);
        state.raw = Some(made);
        for index in 0..receives {
            self.post_receive(state, index.into())?;
        }
        Ok(())
    }

    fn end_life(&self, state: &mut State) {
        if let Some(raw) = state.raw.take() {
            self.queue.leave(raw.number());
        }
        (state.ends_out, state.receives_out) = (0, 0);
    }

    fn tell(&self, news: News) {
        // a peer that does not read is found dead by the time limit
        self.link.send(Frame::QueuePair { body: news.encode() });
    }

    fn failure_of(&self, state: &State) -> Failure {
        state.failure.clone().unwrap_or_else(|| Failure {
            status: None,
            vendor: 0,
            request: "the device ended the queue pair".into(),
            path: self.path_text(state),
        })
    }

    fn path_text(&self, state: &State) -> String {
        let mine = state.raw.as_ref().map_or(0, ibv::QueuePair::number);
        let theirs = self.peer.get().map(|peer| {
            let first = peer.introduction.queue_pairs.get(self.index as usize);
            let number = state.theirs.map(|theirs| theirs.number);
            let number = number.or(first.map(|first| first.number)).unwrap_or(0);
            format!("{} queue pair {number:#x}", ibv::address_of(peer.introduction.gid))
        });
        format!(
            "from {} queue pair {mine:#x} to {}",
            self.end.gid_address(),
            theirs.unwrap_or_else(|| "nobody yet".into())
        )
    }

    fn describe(&self, posted: &Posted) -> String {
        match &posted.item {
            Item::Note(note) => format!("a message ({note:?})"),
            Item::Memcpy(work) => {
                let what = match work.direction {
                    Direction::Write => "a write",
                    Direction::Read => "a read",
                };
                let Remote { address, key } = work.remote.remote().unwrap_or_default();
                let start = address.wrapping_add(work.remote_offset);
                format!("{what} of {} bytes at remote address {start:#x}, key {key:#x}", work.bytes)
            }
        }
    }
}

impl State {
    /// A completion of this life was good: the outage is over.
    fn recovered(&mut self) {
        self.failing_since = None;
        self.attempts = 0;
    }
}

/// How a signal travels with its memcpy.
#[derive(Clone, Copy)]
enum Plan {
    None,
    /// In the payload's request.
    Within(u32),
    /// In a request of its own.
    Immediate(u32),
    /// Too large for an immediate.
    Message(Signal),
    Flag(Signal),
    /// Behind the payload, in its request.
    Tail(u64),
}

/// Requests of one item, posted with one doorbell, or a few where they are many.
struct Chain<'a> {
    raw: &'a ibv::QueuePair,
    id: u64,
    requests: Vec<Request>,
    sends: u32,
    failed: Option<std::io::Error>,
}

impl Chain<'_> {
    fn push(
        &mut self,
        kind: Kind,
        segments: [Option<Segment>; 2],
        inline: bool,
        remote: Remote,
        fence: bool,
    ) {
        if self.requests.len() == CHAIN_MAX {
            self.post();
        }
        self.sends += 1;
        let id = self.id << 1;
        self.requests.push(Request { id, kind, segments, inline, remote, fence, signaled: false });
    }

    /// Bytes that are copied at once: posted before this returns.
    fn push_inline(&mut self, kind: Kind, bytes: &[u8], remote: Remote, fence: bool) {
        let length = bytes.len() as u32; // fits: a few bytes
        let segment = Segment { address: bytes.as_ptr() as u64, bytes: length, key: 0 };
        self.push(kind, [Some(segment), None], true, remote, fence);
        self.finish();
    }

    fn push_message(&mut self, note: [u8; NOTE_BYTES], fence: bool) {
        self.push_inline(Kind::Send, &note, Remote::default(), fence);
    }

    fn push_flag(&mut self, epoch: u64, remote: Remote, fence: bool) {
        self.push_inline(Kind::Write, &epoch.to_le_bytes(), remote, fence);
    }

    /// The last request is the item's end.
    fn finish(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.signaled = true;
            last.id |= 1;
        }
        self.post();
    }

    fn post(&mut self) {
        if self.failed.is_none()
            && let Err((_, error)) = self.raw.post(&self.requests)
        {
            self.failed = Some(error);
        }
        self.requests.clear();
    }
}

/// A slot as peers must name it, when its epochs come with their payload.
pub(super) fn tail_slot(slot: ArrivalSlot) -> ArrivalSlot {
    ArrivalSlot(slot.0 | ArrivalSlot::TAIL)
}
