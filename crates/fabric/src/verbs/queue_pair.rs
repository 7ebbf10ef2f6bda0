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
//! the next generation, with back-off, until a time limit. Each end then says how many signals
//! it took in all: what they cover is done, the rest is posted again. A write without a signal behind it
//! may so land twice, which nobody can see: nobody was told that it had landed once.

mod chain;
mod recovery;
mod state;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::chain::Chain;
use self::state::{Item, Life, Phase, Posted, State, Theirs};
use super::device::NicEnd;
use super::failure::{FLUSHED, Failure};
use super::ibv::{CHAIN_MAX, Path, Remote, Segment, WorkCompletion};
use super::progress::Queue;
use super::region::ControlMemory;
use super::wire::{self, Introduced, Introduction, NOTE_BYTES, News, Note, What};
use crate::api::{ArrivalSlot, Completion};
use crate::arrival::ArrivalMode;
use crate::common::{Core, Credits};
use crate::control::Link;
use crate::device::Work;
use crate::error::{CompletionError, FaultCause, PostError};

/// Up to here payload and immediate are one request; beyond, switches route payload better alone.
const ONE_REQUEST_BYTES: u64 = 8 << 10;
/// A request's bytes; the standard's limit is 2 GiB. After a failure of the path they are fewer: a device
/// may count its retries by request, and where packets are lost or overtake each other a large one
/// then never gets through (Soft-RoCE).
const PIECE_BYTES: [u64; 4] = [1 << 30, 64 << 10, 16 << 10, 4 << 10];
/// Payload that travels in its request.
pub(super) const INLINE_BYTES: u32 = 64;
/// Receives beyond the window.
pub(super) const NOTES: u32 = 8;
/// How long flushed requests may take to be told of; then the queue pair is destroyed all the same.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);
/// Marks the id of a receive; below it the life that it belongs to, and its buffer.
const RECEIVE: u64 = 1 << 63;
const LIFE_AT: u32 = 32;
const LIVES: u64 = (1 << 31) - 1;
/// Lives that the peer may be ahead.
const GENERATIONS_MAX: u32 = 1 << 16;

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
    // before the memory that its queue pair receives into
    state: Mutex<State>,
    memory: ControlMemory,
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

impl Depth {
    pub(super) fn receives(self) -> u32 {
        self.window + NOTES
    }

    fn memory_bytes(self) -> u64 {
        self.words_at() + u64::from(self.memcpys + NOTES) * 8
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
            state: Mutex::new(State::new()),
            goodbye_acked: AtomicBool::new(false),
        });
        let life = queue_pair.begin_life(0)?;
        queue_pair.state.lock().phase = Phase::New(life);
        Ok(queue_pair)
    }

    /// For the peer.
    pub(super) fn introduction(&self) -> Introduced {
        let state = self.state.lock();
        let first_packet = state.phase.life().map_or(0, |life| life.first_packet);
        Introduced { number: state.phase.number(), first_packet, flags: self.flags }
    }

    /// Ready to receive and to send; nothing is sent before [`QueuePair::start`].
    pub(super) fn connect(
        &self,
        introduction: &Introduction,
        slots: u64,
        path: Path,
    ) -> std::io::Result<()> {
        let peer = PeerEnd { introduction: introduction.clone(), slots, path };
        let state = self.state.lock();
        // fits: the number of queue pairs was compared
        let Introduced { number, first_packet, .. } = introduction.queue_pairs[self.index as usize];
        let address = introduction.address(number, first_packet);
        // set once: a queue pair connects once
        let _ = self.peer.set(peer);
        let life = state.phase.life().ok_or(std::io::ErrorKind::NotConnected)?;
        life.connect(&address, &path)
    }

    pub(super) fn writes_land_in_order(&self) -> bool {
        let state = self.state.lock();
        state.phase.life().is_some_and(|life| life.raw.writes_land_in_order())
    }

    /// Every end is ready: what was posted may go.
    pub(super) fn start(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::New(_))
            && let Some(life) = state.phase.take_life()
        {
            state.phase = Phase::Ready(life);
            self.send_waiting(&mut state);
        }
    }

    pub(super) fn post(&self, work: Work) -> Result<(), PostError> {
        let rank = self.link.rank();
        self.link.peer.check()?;
        work.check_slot(rank, self.slots())?;
        if work.local.registration().is_none() || work.remote.remote().is_none() {
            return Err(PostError::OtherFabric);
        }
        let bytes_max = u64::from(self.depth.sends / 2) * PIECE_BYTES[0];
        if work.bytes > bytes_max {
            return Err(PostError::TooLarge { bytes: work.bytes, bytes_max });
        }
        self.credits.take()?;
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
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
        if matches!(state.phase, Phase::Closed) || self.link.peer.gone().is_some() {
            return false;
        }
        state.backlog.push_back(Item::Note(Note::Goodbye));
        self.send_waiting(&mut state);
        true
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Closed)
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

    /// The peer left: nobody will make room for what waits.
    pub(super) fn strand(&self) {
        self.fail_stranded(&mut self.state.lock());
    }

    /// Destroys it, without a word to anybody: its fabric is gone.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        self.end_life(&mut state);
        state.in_flight.clear();
        state.backlog.clear();
    }

    /// True while time alone moves it on.
    pub(super) fn needs_attention(&self) -> bool {
        !matches!(self.state.lock().phase, Phase::New(_) | Phase::Ready(_) | Phase::Closed)
    }

    /// One completion of its queues.
    pub(super) fn completed(&self, completion: &WorkCompletion) {
        let mut state = self.state.lock();
        if state.phase.life().is_none_or(|life| life.raw.number() != completion.queue_pair) {
            return; // of a life that ended before it was told of
        }
        match completion.id & RECEIVE {
            0 => self.sent(&mut state, completion),
            // numbers may be given again: a receive of an earlier life counts for nothing
            _ if completion.id >> LIFE_AT & LIVES != receive_life(state.generation) => {}
            _ => self.received(&mut state, completion),
        }
    }

    /// What time brings.
    pub(super) fn turn(&self, now: Instant) {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::New(_) | Phase::Ready(_) | Phase::Closed => {}
            Phase::Draining { life, since } => {
                let drained = life.as_ref().is_none_or(Life::is_drained);
                if drained || now.duration_since(*since) >= DRAIN_WITHIN {
                    self.drained(&mut state, now);
                }
            }
            Phase::Resting { until } if now >= *until => self.rebuild(&mut state),
            Phase::Resting { .. } => {}
            Phase::Rebuilding { .. } => self.give_up_late(&mut state, now),
        }
    }

    /// The peer says something of this queue pair.
    pub(super) fn news(&self, news: &News) -> Result<(), String> {
        let mut state = self.state.lock();
        match news.what {
            What::Rebuilt { number, first_packet, signals_taken: took } => {
                let generation = news.generation;
                let known = state.theirs.map_or(0, |theirs| theirs.generation);
                if generation <= known.max(state.generation.saturating_sub(1)) {
                    return Ok(()); // an answer to a life that is over
                }
                let rebuilding = matches!(state.phase, Phase::Rebuilding { .. });
                let awaited = rebuilding && generation == state.generation;
                if generation <= state.generation && !awaited {
                    return Ok(());
                }
                if generation - state.generation > GENERATIONS_MAX {
                    return Err(format!(
                        "life {generation} of a queue pair in {}",
                        state.generation
                    ));
                }
                if !(state.signals.peer_took..=state.signals.sent).contains(&took) {
                    return Err(format!("{took} signals taken of {}", state.signals.sent));
                }
                state.theirs = Some(Theirs { generation, number, first_packet, took });
                match state.phase {
                    Phase::Rebuilding { .. } if awaited => self.join(&mut state),
                    Phase::New(_) | Phase::Ready(_) | Phase::Rebuilding { .. } => {
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
        Ok(())
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
        if let Some(life) = self.state.lock().phase.life() {
            life.raw.to_error().unwrap();
        }
    }

    /// Posts what waits, as far as there is room.
    fn send_waiting(&self, state: &mut State) {
        while let Phase::Ready(life) = &state.phase
            && life.sends_free > 0
        {
            let Some(note) = state.notes.pop_front() else { break };
            self.send(state, Item::Note(note));
        }
        while let Phase::Ready(life) = &state.phase {
            let Some(next) = state.backlog.front() else { return };
            let fits = life.sends_free >= self.sends_of(state, next);
            // a memcpy of more requests than there are waits until it has them all to itself
            if !fits && life.sends_free < self.depth.sends {
                return;
            }
            let under_window = matches!(next, Item::Memcpy(work) if work.signal.is_some());
            let window = u64::from(self.peer.get().map_or(0, |peer| peer.introduction.window));
            let counts = self.mode == ArrivalMode::WriteImm && under_window;
            if counts && state.signals.sent - state.signals.peer_took >= window {
                return;
            }
            if let Some(item) = state.backlog.pop_front() {
                self.send(state, item);
            }
        }
    }

    /// At most so many requests.
    fn sends_of(&self, state: &State, item: &Item) -> u32 {
        match item {
            Item::Note(_) => 1,
            Item::Memcpy(work) => {
                let pieces = work.bytes.div_ceil(self.piece_bytes(state, work.bytes));
                (pieces as u32).max(1) + 1 // fits: at most the send queue's depth
            }
        }
    }

    /// Bytes of each request of a memcpy: few enough for the path, and not so few that they would not fit
    /// the send queue.
    fn piece_bytes(&self, state: &State, bytes: u64) -> u64 {
        let failures = state.path_failures_at(Instant::now());
        let wanted = PIECE_BYTES[failures.min(PIECE_BYTES.len() - 1)];
        wanted.max(bytes.div_ceil(u64::from(self.depth.sends / 2))).min(PIECE_BYTES[0])
    }

    fn send(&self, state: &mut State, item: Item) {
        let piece_bytes = match &item {
            Item::Memcpy(work) => self.piece_bytes(state, work.bytes),
            Item::Note(_) => 0,
        };
        let Phase::Ready(life) = &mut state.phase else { return };
        let id = state.next_id;
        state.next_id += 1;
        let requests = Vec::with_capacity(CHAIN_MAX);
        let mut chain = Chain { raw: &life.raw, id, requests, sends: 0, failed: None };
        match &item {
            Item::Note(note) => chain.push_message(note.encode(), false),
            Item::Memcpy(work) => self.push_memcpy(&mut chain, work, id, piece_bytes),
        }
        chain.finish();
        let Chain { sends, failed, .. } = chain;
        life.sends_free = life.sends_free.saturating_sub(sends);
        // a chain of which nothing was taken has no end that is told
        life.ends_out += u32::from(failed.is_none());
        let counted = match &item {
            Item::Memcpy(Work { signal: Some(_), .. }) if self.mode == ArrivalMode::WriteImm => {
                true
            }
            Item::Memcpy(_) | Item::Note(_) => false,
        };
        state.signals.sent += u64::from(counted);
        let signal = counted.then_some(state.signals.sent);
        state.in_flight.push_back(Posted { id, sends, item, signal });
        if let Some(error) = failed {
            self.fail(state, Some(id), format!("the NIC takes no request ({error})"));
        }
    }

    fn sent(&self, state: &mut State, completion: &WorkCompletion) {
        let (id, is_end) = (completion.id >> 1, completion.id & 1 == 1);
        let Some(first) = state.in_flight.front().map(|posted| posted.id) else { return };
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(place) = place.filter(|&place| place < state.in_flight.len()) else { return };
        let Some(life) = state.phase.life_mut() else { return };
        if is_end {
            life.ends_out = life.ends_out.saturating_sub(1);
        }
        if completion.status != 0 {
            let status = completion.status;
            if status != FLUSHED && state.outage.faulty.is_none() {
                let request = self.describe(&state.in_flight[place]);
                let (status, vendor) = (Some(status), completion.vendor);
                let path = self.path_text(state);
                state.outage.failure = Some(Failure { status, vendor, request, path });
                state.outage.faulty = Some(id);
            }
            if matches!(state.phase, Phase::Ready(_)) {
                self.begin_draining(state);
            }
            return;
        }
        // in order: what was posted before has succeeded too
        let ends = place + 1;
        life.ends_out = life.ends_out.saturating_sub(place as u32); // fits: at most the queue's depth
        let done: Vec<Posted> = state.in_flight.drain(..ends).collect();
        life.sends_free += done.iter().map(|posted| posted.sends).sum::<u32>();
        for posted in done {
            self.finish(posted.item, Ok(()));
        }
        if matches!(state.phase, Phase::Ready(_)) {
            state.recovered();
            self.send_waiting(state);
        }
        self.fail_stranded(state);
    }

    /// Once a peer is gone and the NIC has nothing more for it, what waits can only fail.
    fn fail_stranded(&self, state: &mut State) {
        if self.link.peer.gone().is_none() || !state.in_flight.is_empty() {
            return;
        }
        let (peer, cause) = (self.link.rank(), self.link.peer.cause());
        for item in std::mem::take(&mut state.backlog) {
            self.finish(item, Err(CompletionError::PeerLost { peer, cause: cause.clone() }));
        }
    }

    fn received(&self, state: &mut State, completion: &WorkCompletion) {
        let Some(life) = state.phase.life_mut() else { return };
        life.receives_out = life.receives_out.saturating_sub(1);
        if completion.status != 0 {
            if completion.status != FLUSHED && state.outage.failure.is_none() {
                let (status, vendor) = (Some(completion.status), completion.vendor);
                let request = "receiving a message".to_string();
                let path = self.path_text(state);
                state.outage.failure = Some(Failure { status, vendor, request, path });
            }
            if matches!(state.phase, Phase::Ready(_)) {
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
                state.signals.taken += 1;
                if state.signals.taken - state.signals.told >= u64::from(self.depth.window / 4) {
                    state.signals.told = state.signals.taken;
                    state.notes.push_back(Note::Taken(state.signals.taken));
                }
            }
            Some(Note::Taken(count)) if count <= state.signals.sent => {
                state.signals.peer_took = state.signals.peer_took.max(count);
            }
            Some(Note::Goodbye) => state.notes.push_back(Note::GoodbyeAck),
            Some(Note::GoodbyeAck) => {
                self.goodbye_acked.store(true, Ordering::Release);
                self.core.board().ring();
            }
            Some(Note::Signal(_) | Note::Taken(_)) | None => {
                let detail = "it sent a bad message on a queue pair".to_string();
                return self.lose(state, FaultCause::Protocol { detail });
            }
        }
        let (life, is_new) = match &mut state.phase {
            Phase::New(life) => (life, true),
            Phase::Ready(life) | Phase::Rebuilding { life, .. } => (life, false),
            Phase::Draining { .. } | Phase::Resting { .. } | Phase::Closed => return,
        };
        if let Err(error) = self.post_receive(life, state.generation, index) {
            return self.fail(state, None, format!("the NIC takes no receive ({error})"));
        }
        if !is_new {
            state.recovered();
        }
        self.send_waiting(state);
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

    fn post_receive(&self, life: &mut Life, generation: u32, index: u64) -> std::io::Result<()> {
        let address = self.memory.address(index * NOTE_BYTES as u64);
        let key = self.memory.registration.local_key();
        let id = RECEIVE | receive_life(generation) << LIFE_AT | index;
        life.raw.post_receive(id, Segment { address, bytes: NOTE_BYTES as u32, key })?;
        life.receives_out += 1;
        Ok(())
    }

    fn finish(&self, item: Item, result: Result<(), CompletionError>) {
        if let Item::Memcpy(work) = item {
            let completion = Completion { token: work.token, peer: self.link.rank(), result };
            self.core.complete(completion, &self.credits);
        }
    }
}

/// The bits of a life in the id of its receives.
fn receive_life(generation: u32) -> u64 {
    u64::from(generation) & LIVES
}

/// A slot as peers must name it, when its epochs come with their payload.
pub(super) fn tail_slot(slot: ArrivalSlot) -> ArrivalSlot {
    ArrivalSlot(slot.0 | ArrivalSlot::TAIL)
}
