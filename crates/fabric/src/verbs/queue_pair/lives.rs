//! The end of one life of a queue pair and the beginning of the next: draining, resting, telling the peer,
//! and posting again what the peer did not get.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::device::NicEnd;
use super::super::failure::Failure;
use super::super::ibv::{self, Remote};
use super::super::wire::{News, Note, What};
use super::{Depth, Item, Phase, Posted, QueuePair, State};
use crate::api::Direction;
use crate::arrival::ArrivalMode;
use crate::common::Gone;
use crate::control::Frame;
use crate::error::{CompletionError, FaultCause};

/// How long a queue pair may be away before its peer counts as lost. With the detection of the failure
/// less than 5 s.
const REBUILD_WITHIN: Duration = Duration::from_millis(4200);
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_millis(500);

impl QueuePair {
    pub(super) fn fail(&self, state: &mut State, faulty: Option<u64>, request: String) {
        if state.failure.is_none() {
            let path = self.path_text(state);
            state.failure = Some(Failure { status: None, vendor: 0, request, path });
            state.faulty = faulty;
        }
        self.begin_draining(state);
    }

    pub(super) fn begin_draining(&self, state: &mut State) {
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
    pub(super) fn drained(&self, state: &mut State, now: Instant) {
        self.end_life(state);
        if self.link.peer.gone().is_some() {
            return self.fail_all(state);
        }
        let failure = self.failure_of(state);
        if failure.is_of_the_path() {
            state.path_failures += usize::from(failure.status.is_some());
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

    pub(super) fn rebuild(&self, state: &mut State) {
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
    pub(super) fn start_again(&self, state: &mut State) {
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
        if state.in_flight.is_empty() {
            // no completion will say that this life is good: the next failure is another outage
            state.failing_since = None;
        }
    }

    pub(super) fn give_up_late(&self, state: &mut State, now: Instant) {
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
    pub(super) fn lose(&self, state: &mut State, cause: FaultCause) {
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
    pub(super) fn begin_life(&self, state: &mut State) -> std::io::Result<()> {
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

    pub(super) fn end_life(&self, state: &mut State) {
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

    pub(super) fn path_text(&self, state: &State) -> String {
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
