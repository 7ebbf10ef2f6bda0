//! The end of one life of a queue pair and the beginning of the next: draining, resting, telling the peer,
//! and posting again what the peer did not get.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::device::NicEnd;
use super::super::failure::Failure;
use super::super::ibv::{self, Remote};
use super::super::wire::{News, Note, What};
use super::QueuePair;
use super::state::{Item, Life, Phase, Posted, State};
use crate::api::Direction;
use crate::arrival::ArrivalMode;
use crate::common::Gone;
use crate::control::Frame;
use crate::error::{CompletionError, FaultCause};

/// How long a queue pair may be away before its peer counts as lost. With the detection of the failure
/// less than 5 s, or seven tenths of what a silent host is believed to be alive.
const REBUILD_WITHIN: Duration = Duration::from_millis(4200);
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_millis(500);

impl QueuePair {
    pub(super) fn fail(&self, state: &mut State, faulty: Option<u64>, request: String) {
        if state.outage.failure.is_none() {
            let path = self.path_text(state);
            state.outage.failure = Some(Failure { status: None, vendor: 0, request, path });
            state.outage.faulty = faulty;
        }
        self.begin_draining(state);
    }

    pub(super) fn begin_draining(&self, state: &mut State) {
        let now = Instant::now();
        state.outage.since.get_or_insert(now);
        let life = state.phase.take_life();
        if let Some(life) = &life {
            // a device that is gone cannot; then the time limit ends the draining
            let _ = life.raw.to_error();
        }
        state.phase = Phase::Draining { life, since: now };
        // whoever took the completion: time moves the rest on, in the queue's thread
        self.queue.wake();
    }

    /// Nothing of the old life is with the NIC any more.
    pub(super) fn drained(&self, state: &mut State, now: Instant) {
        self.end_life(state);
        if self.link.peer.gone().is_some() {
            return self.fail_all(state);
        }
        let failure = self.failure_of(state);
        if failure.is_of_the_path() {
            if failure.status.is_some() {
                state.path_failures = state.path_failures_at(now) + 1;
                state.path_failed = Some(now);
            }
            tracing::warn!(me = %self.core.me().rank, peer = %self.link.rank(),
                queue_pair = self.index, generation = state.generation, "{failure}; building it anew");
        }
        if self.mode != ArrivalMode::WriteImm {
            // whether a flag was seen cannot be known, so nothing may be written again
            return self.lose(state, FaultCause::Unreachable { detail: failure.to_string() });
        }
        let elapsed = state.outage.since.map_or(Duration::ZERO, |since| now.duration_since(since));
        if elapsed >= self.rebuild_within() {
            return self.give_up_late(state, now);
        }
        let attempts = state.outage.attempts;
        let rest = REST_MIN.saturating_mul(1 << attempts.min(8)).min(REST_MAX);
        let rest = if attempts == 0 { Duration::ZERO } else { rest };
        state.outage.attempts += 1;
        state.phase = Phase::Resting { until: now + rest };
        if rest.is_zero() {
            self.rebuild(state);
        }
    }

    pub(super) fn rebuild(&self, state: &mut State) {
        let next = state.generation + 1;
        state.generation = state.theirs.map_or(next, |theirs| theirs.generation.max(next));
        let life = match self.begin_life(state.generation) {
            Ok(life) => life,
            Err(error) => {
                return self.fail(state, None, format!("no queue pair can be made ({error})"));
            }
        };
        let (number, first_packet) = (life.raw.number(), life.first_packet);
        let signals_taken = state.signals.taken;
        state.phase = Phase::Rebuilding { life, joined: false };
        state.signals.told = signals_taken;
        // the peer is told with the next life
        state.notes.retain(|note| !matches!(note, Note::Taken(_)));
        let what = What::Rebuilt { number, first_packet, signals_taken };
        self.tell(News { queue_pair: self.index, generation: state.generation, what });
        self.join(state);
    }

    /// Connects the new life if the peer has told of its own.
    pub(super) fn join(&self, state: &mut State) {
        let Some(theirs) = state.theirs.filter(|theirs| theirs.generation == state.generation)
        else {
            return;
        };
        let Some(peer) = self.peer.get() else { return };
        let Phase::Rebuilding { life, joined: joined @ false } = &mut state.phase else { return };
        let address = peer.introduction.address(theirs.number, theirs.first_packet);
        let connected = life.connect(&address, &peer.path);
        *joined = connected.is_ok();
        if let Err(error) = connected {
            return self.fail(
                state,
                None,
                format!("the new queue pair does not connect ({error})"),
            );
        }
        let what = What::Ready;
        self.tell(News { queue_pair: self.index, generation: state.generation, what });
        self.start_again(state);
    }

    /// Both ends are ready: what the peer's signals do not cover goes again.
    pub(super) fn start_again(&self, state: &mut State) {
        let ready = state.peer_ready == Some(state.generation);
        if !matches!(state.phase, Phase::Rebuilding { joined: true, .. }) || !ready {
            return;
        }
        let Some(theirs) = state.theirs else { return };
        tracing::info!(me = %self.core.me().rank, peer = %self.link.rank(), queue_pair = self.index,
            generation = state.generation, "the queue pair is back");
        let failure = state.outage.failure.take();
        let faulty = state.outage.faulty.take();
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
        (state.signals.sent, state.signals.peer_took) = (theirs.took, theirs.took);
        if let Some(life) = state.phase.take_life() {
            state.phase = Phase::Ready(life);
        }
        self.send_waiting(state);
        if state.in_flight.is_empty() {
            // no completion will say that this life is good: the next failure is another outage
            state.outage.since = None;
        }
    }

    fn rebuild_within(&self) -> Duration {
        REBUILD_WITHIN.max(self.core.config().liveness * 7 / 10)
    }

    pub(super) fn give_up_late(&self, state: &mut State, now: Instant) {
        let since = state.outage.since.unwrap_or(now);
        let within = self.rebuild_within();
        if now.duration_since(since) >= within {
            let (failure, tried) = (self.failure_of(state), state.outage.attempts);
            let detail = format!(
                "{failure} (built anew {tried} times in {:.1} s, in vain)",
                within.as_secs_f64()
            );
            self.lose(state, FaultCause::Unreachable { detail });
        }
    }

    /// The peer is lost, and with it every queue pair to it.
    pub(super) fn lose(&self, state: &mut State, cause: FaultCause) {
        self.link.send(Frame::HandshakeRefusal { reason: cause.to_string() });
        self.core.peer_gone(&self.link.peer, Gone::Lost(cause));
        // its end is noticed by the control thread, which closes the others
        self.link.shutdown();
        if state.phase.life().is_some() {
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
    pub(super) fn begin_life(&self, generation: u32) -> std::io::Result<Life> {
        let (sends, receives) = (self.depth.sends, self.depth.receives());
        let NicEnd { domain, .. } = &*self.end;
        let made = domain.create_queue_pair(
            self.queue.completions(),
            sends,
            receives,
            self.end.inline_bytes,
        )?;
        made.reset_to_init(self.end.port_number(), self.end.partition())?;
        let mut life = Life {
            raw: made,
            // 24 bits
            first_packet: crate::handshake::random_u64() as u32 & 0x00ff_ffff,
            sends_free: sends,
            ends_out: 0,
            receives_out: 0,
        };
        self.queue.enter(life.raw.number(), self.me.clone());
        for index in 0..receives {
            if let Err(error) = self.post_receive(&mut life, generation, index.into()) {
                self.queue.leave(life.raw.number());
                return Err(error);
            }
        }
        Ok(life)
    }

    /// Destroys what the NIC has of it; the phase is closed until somebody says otherwise.
    pub(super) fn end_life(&self, state: &mut State) {
        if let Some(life) = state.phase.take_life() {
            self.queue.leave(life.raw.number());
        }
    }

    fn tell(&self, news: News) {
        // a peer that does not read is found dead by the time limit
        self.link.send(Frame::QueuePair { body: news.encode() });
    }

    fn failure_of(&self, state: &State) -> Failure {
        state.outage.failure.clone().unwrap_or_else(|| Failure {
            status: None,
            vendor: 0,
            request: "the device ended the queue pair".into(),
            path: self.path_text(state),
        })
    }

    pub(super) fn path_text(&self, state: &State) -> String {
        let mine = state.phase.number();
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

    pub(super) fn describe(&self, posted: &Posted) -> String {
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
