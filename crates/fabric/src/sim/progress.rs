//! The simulated network: who is in it, what is in flight, and the seeded choice of what happens
//! next. One lock; every event happens under it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_base::Rank;

use super::late::LateNews;
use super::queue_pair::{InFlight, Lane};
use super::signal::Written;
use crate::api::Completion;
use crate::arrival::ArrivalMode;
use crate::common::{Core, Gone, Peer};
use crate::config::Identity;
use crate::error::{CompletionError, FaultCause};
use crate::flags::Watched;

/// A network that fabrics of this process share. Clones are the same network.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    shared: Arc<Shared>,
}

/// How the network's NICs reach memory of devices: by the address of a device's byte.
pub trait NicReach: std::fmt::Debug + Send + Sync {
    /// True if the NIC of this member reaches its devices.
    fn reaches(&self, _member: Rank) -> bool {
        true
    }

    /// Reads as many bytes as there is room for.
    fn read(&self, address: usize, into: &mut [u8]);

    /// Writes bytes. A stream of the device that waits already need not see them before they are flushed.
    fn write(&self, address: usize, bytes: &[u8]);
}

/// The faults of the network. `Default`: pieces in random order, a few pieces and signals twice, and all of it
/// late now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimKnobs {
    /// The order of the pieces of one memcpy.
    pub within: Within,
    /// The order between memcpys of one queue pair.
    pub between: Between,
    /// Most pieces of one memcpy.
    pub pieces_max: u32,
    /// Most turns that a memcpy sits out before its first piece.
    pub delay_turns_max: u32,
    /// Of a thousand turns, those that land a piece again that had landed.
    pub duplicate_per_mille: u32,
    /// Most turns that the completion of a memcpy comes after its bytes and its signal, and that a signal
    /// comes again after it came first.
    pub late_turns_max: u32,
    /// Of a thousand signals, those that come twice.
    pub signal_twice_per_mille: u32,
    /// Of a thousand memcpys, those that fail.
    pub fail_per_mille: u32,
    /// Of a thousand posts, those that find the queue full.
    pub full_per_mille: u32,
    /// The moment at which a flag that is a write of its own becomes visible.
    pub flags: FlagOrder,
    /// Of a thousand memcpys, those that kill their queue pair. Nothing reconnects it: its two ends lose
    /// each other.
    pub kill_queue_pair_per_mille: u32,
    /// Of a thousand signals that come as a completion, those for which their receiver has no room; they come
    /// again, in order.
    pub receiver_not_ready_per_mille: u32,
    /// Times that such a signal comes again before its queue pair dies.
    pub retries_max: u32,
    /// Most turns that one poll, or one [`SimNetwork::advance`], gives the network. 1: somebody may look
    /// between any two events.
    pub turns_max: u32,
}

/// The order of a flag (`flag-separate`) behind the earlier writes of its queue pair. Flags keep their
/// order among themselves, and a flag behind a read waits for the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagOrder {
    /// Visible behind all earlier writes: flags in strictly ordered memory, writes executed in order.
    Strict,
    /// Visible at any time, as in relaxed-ordered memory or with out-of-order placement.
    Relaxed,
}

/// The order in which the pieces of one memcpy land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// From the first byte on.
    Ascending,
    /// As the seed says.
    Random,
}

/// The overlap of the memcpys of one queue pair. Signals and completions always keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// One memcpy after the other.
    Ordered,
    /// Pieces of all of them interleave, as on NICs with relaxed ordering: two writes to the same
    /// bytes may land in either order.
    Random,
}

impl SimKnobs {
    /// What a NIC says of itself when `flag-tail` asks: a write's bytes become visible in ascending
    /// order, and behind the writes before it.
    pub(super) fn places_in_order(&self) -> bool {
        self.within == Within::Ascending && self.between == Between::Ordered
    }
}

impl Default for SimKnobs {
    fn default() -> SimKnobs {
        SimKnobs {
            within: Within::Random,
            between: Between::Ordered,
            pieces_max: 8,
            delay_turns_max: 4,
            duplicate_per_mille: 50,
            late_turns_max: 4,
            signal_twice_per_mille: 50,
            fail_per_mille: 0,
            full_per_mille: 0,
            flags: FlagOrder::Strict,
            kill_queue_pair_per_mille: 0,
            receiver_not_ready_per_mille: 0,
            retries_max: 7,
            turns_max: 32,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) knobs: SimKnobs,
    /// None: its NICs reach no device.
    pub(super) reach: Option<Arc<dyn NicReach>>,
    state: Mutex<State>,
    /// Something happened or was posted.
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) members: BTreeMap<Rank, Entry>,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) late: LateNews,
    pub(super) written: Written,
}

/// A fabric in the network.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) core: Arc<Core>,
    /// Its peer table: who it connects to, or wants to.
    pub(super) expects: BTreeMap<Rank, Identity>,
    /// The peers it connected to, as it sees them.
    pub(super) peers: BTreeMap<Rank, Arc<Peer>>,
    /// What it looks at to learn of arrivals.
    pub(super) watched: Arc<Watched>,
    /// Peers that found out first that they and it cannot agree on a mode: which, and why.
    pub(super) refused: BTreeMap<Rank, (ArrivalMode, String)>,
}

impl Entry {
    pub(super) fn new(core: Arc<Core>, watched: Arc<Watched>) -> Entry {
        let (expects, peers, refused) = Default::default();
        Entry { core, expects, peers, watched, refused }
    }
}

impl SimNetwork {
    pub fn new(seed: u64, knobs: SimKnobs) -> SimNetwork {
        SimNetwork::made(seed, knobs, None)
    }

    /// As [`SimNetwork::new`], of NICs that reach memory of devices.
    pub fn with_devices(seed: u64, knobs: SimKnobs, reach: impl NicReach + 'static) -> SimNetwork {
        SimNetwork::made(seed, knobs, Some(Arc::new(reach)))
    }

    fn made(seed: u64, knobs: SimKnobs, reach: Option<Arc<dyn NicReach>>) -> SimNetwork {
        let state = State {
            random: Random(seed),
            members: BTreeMap::new(),
            in_flight: Vec::new(),
            late: LateNews::default(),
            written: Written::default(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Shared { knobs, reach, state, changed };
        SimNetwork { shared: Arc::new(shared) }
    }

    /// Ends a member as `kill -9` ends a process: what it had in flight stays half done, its peers
    /// see a fault, and nothing that it does has an effect any more.
    pub fn kill(&self, rank: Rank) {
        let mut state = self.shared.lock();
        let killed = || FaultCause::Died { detail: "killed in the simulation".into() };
        state.remove(rank, Gone::Lost(killed()), Gone::Closed);
        self.shared.changed.notify_all();
    }

    /// Moves the network along, as a member's poll does; false if there was nothing to move. For a thread
    /// that drives several members, none of which has anything to do.
    pub fn advance(&self) -> bool {
        self.shared.turns()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives the network a few turns. True if something was in flight.
    pub(super) fn turns(&self) -> bool {
        let mut state = self.lock();
        if state.is_idle() {
            return false;
        }
        let turns = 1 + state.random.below(self.knobs.turns_max);
        for _ in 0..turns {
            state.turn(&self.knobs, self.reach.as_deref());
        }
        self.changed.notify_all();
        true
    }
}

impl State {
    /// Nothing is in flight, and nothing is yet to be told.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.late.is_empty()
    }

    /// One event, chosen by the seed: a piece lands, a memcpy ends, or something is told late.
    fn turn(&mut self, knobs: &SimKnobs, reach: Option<&dyn NicReach>) {
        let eligible: Vec<usize> = (0..self.in_flight.len())
            .filter(|&index| self.may_move(index, knobs) || self.may_overtake(index, knobs))
            .collect();
        let late = self.late.eligible();
        if eligible.is_empty() && late.is_empty() {
            return;
        }
        let chosen = self.random.index(eligible.len() + late.len());
        match eligible.get(chosen) {
            Some(&index) => self.step(index, knobs, reach),
            None => self.late.turn(late[chosen - eligible.len()], &self.members),
        }
    }

    /// It is the first of its lane, or need not be.
    fn may_move(&self, index: usize, knobs: &SimKnobs) -> bool {
        let is_free = knobs.between == Between::Random && !self.in_flight[index].is_landed();
        is_free || self.earlier(index).next().is_none()
    }

    /// Its flag may become visible now, whatever else has yet to land.
    fn may_overtake(&self, index: usize, knobs: &SimKnobs) -> bool {
        knobs.flags == FlagOrder::Relaxed
            && self.in_flight[index].has_flag_on_its_way()
            && !self.earlier(index).any(InFlight::has_flag)
    }

    /// What was posted on its lane before it and is in flight.
    fn earlier(&self, index: usize) -> impl Iterator<Item = &InFlight> {
        let lane = self.in_flight[index].lane;
        self.in_flight[..index].iter().filter(move |earlier| earlier.lane == lane)
    }

    fn step(&mut self, index: usize, knobs: &SimKnobs, reach: Option<&dyn NicReach>) {
        let may_move = self.may_move(index, knobs);
        if self.may_overtake(index, knobs) && (!may_move || self.random.happens(500)) {
            self.raise(index);
            return;
        }
        let memcpy = &mut self.in_flight[index];
        let lane = memcpy.lane;
        if memcpy.kills() && self.random.happens(200) {
            self.kill_queue_pair(lane, died(lane), knobs);
        } else if memcpy.is_landed() {
            self.end(index, knobs);
        } else if let Some(receiver) = self.members.get(&Rank(lane.to))
            && let Err(reason) =
                memcpy.turn((receiver, reach), knobs, &mut self.random, &mut self.written)
        {
            self.refuse(lane, &reason);
        }
    }

    fn raise(&mut self, index: usize) {
        let memcpy = &mut self.in_flight[index];
        if let Some(receiver) = self.members.get(&Rank(memcpy.lane.to)) {
            memcpy.raise(receiver, &mut self.written);
        }
    }

    /// Signal, then completion; all bytes have landed.
    fn end(&mut self, index: usize, knobs: &SimKnobs) {
        let memcpy = &mut self.in_flight[index];
        let (lane, peer, token) = (memcpy.lane, Rank(memcpy.lane.to), memcpy.work.token);
        if memcpy.needs_room() && self.random.happens(knobs.receiver_not_ready_per_mille) {
            memcpy.not_ready += 1;
            if memcpy.not_ready > knobs.retries_max {
                let attempts = memcpy.not_ready;
                let cause = CompletionError::ReceiverNotReady { peer, attempts };
                self.kill_queue_pair(lane, cause, knobs);
            }
            return;
        }
        self.raise(index);
        if self.in_flight[index].kills() {
            // it is there, and its sender will never know
            self.kill_queue_pair(lane, died(lane), knobs);
            return;
        }
        let ended = self.in_flight.remove(index);
        let State { random, members, late, .. } = self;
        if let Some(carried) = ended.carried()
            && members.contains_key(&peer)
            && random.happens(knobs.signal_twice_per_mille)
        {
            late.signal_again(carried, knobs.late_turns_max, random);
        }
        let result = match ended.fails() {
            true => Err(CompletionError::Injected),
            false => Ok(()),
        };
        let completion = Completion { token, peer, result };
        late.complete(lane, completion, ended.credits, knobs.late_turns_max, random, members);
    }

    /// A queue pair dies in both directions: of each, the first in flight tells why, and what was posted
    /// behind it was not carried out. Its ends lose each other, as there is no way to reconnect.
    fn kill_queue_pair(&mut self, lane: Lane, first: CompletionError, knobs: &SimKnobs) {
        let (detail, queue_pair) = (first.to_string(), lane.queue_pair);
        let there = CompletionError::QueuePairFailed {
            peer: Rank(lane.from),
            queue_pair,
            cause: format!("its other end gave it up: {detail}"),
        };
        for (lane, first) in [(lane, first), (lane.back(), there)] {
            let peer = Rank(lane.to);
            let flushed = CompletionError::Flushed { peer, cause: first.to_string() };
            let mut errors = std::iter::once(first).chain(std::iter::repeat(flushed));
            let (dead, kept) = std::mem::take(&mut self.in_flight)
                .into_iter()
                .partition::<Vec<_>, _>(|memcpy| memcpy.lane == lane);
            self.in_flight = kept;
            let State { random, members, late, .. } = self;
            for memcpy in dead {
                let result = errors.next().map_or(Ok(()), Err);
                let completion = Completion { token: memcpy.work.token, peer, result };
                let turns_max = knobs.late_turns_max;
                late.complete(lane, completion, memcpy.credits, turns_max, random, members);
            }
        }
        let (sender, receiver) = (Rank(lane.from), Rank(lane.to));
        let lost = || Gone::Lost(FaultCause::QueuePair { queue_pair, detail: detail.clone() });
        self.lose(sender, receiver, lost());
        self.lose(receiver, sender, lost());
    }

    /// The receiver found a bad request: both ends are lost to each other.
    fn refuse(&mut self, lane: Lane, reason: &str) {
        let (sender, receiver) = (Rank(lane.from), Rank(lane.to));
        let detail = format!("it sent a bad request: {reason}");
        self.lose(receiver, sender, Gone::Lost(FaultCause::Protocol { detail }));
        let detail = reason.to_string();
        self.lose(sender, receiver, Gone::Lost(FaultCause::Refused { detail }));
    }

    /// `viewer` loses `rank`; what is in flight from the one to the other fails.
    pub(super) fn lose(&mut self, viewer: Rank, rank: Rank, gone: Gone) {
        let Some(entry) = self.members.get(&viewer) else {
            return;
        };
        let Some(peer) = entry.peers.get(&rank) else {
            return;
        };
        entry.core.peer_gone(peer, gone);
        let (core, cause) = (entry.core.clone(), peer.cause());
        self.late.lose(viewer, rank, &self.members);
        let mut kept = Vec::with_capacity(self.in_flight.len());
        for memcpy in std::mem::take(&mut self.in_flight) {
            if (memcpy.lane.from, memcpy.lane.to) != (viewer.0, rank.0) {
                kept.push(memcpy);
                continue;
            }
            let result = Err(CompletionError::PeerLost { peer: rank, cause: cause.clone() });
            let completion = Completion { token: memcpy.work.token, peer: rank, result };
            core.complete(completion, &memcpy.credits);
        }
        self.in_flight = kept;
    }

    /// A member leaves: its peers see `gone`, and it sees `left` of all of them.
    pub(super) fn remove(&mut self, rank: Rank, gone: Gone, left: Gone) {
        let Some(entry) = self.members.get(&rank) else {
            return;
        };
        let peers: Vec<Rank> = entry.peers.keys().copied().collect();
        for peer in peers {
            self.lose(rank, peer, left.clone());
            self.lose(peer, rank, gone.clone());
        }
        self.late.remove(rank);
        self.written.remove(rank);
        self.members.remove(&rank);
        for other in self.members.values() {
            other.watched.forget(rank, other.core.board());
        }
    }
}

fn died(lane: Lane) -> CompletionError {
    let (peer, queue_pair) = (Rank(lane.to), lane.queue_pair);
    let cause = "killed in the simulation".into();
    CompletionError::QueuePairFailed { peer, queue_pair, cause }
}

/// SplitMix64: small, seeded, and good enough to choose with.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from `0..bound`; the bias is below 2^-32.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        // fits: the remainder is below a u32
        (self.next() % u64::from(bound.max(1))) as u32
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        // fits both ways: usize is 64 bits wide
        (self.next() % length.max(1) as u64) as usize
    }

    pub(super) fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < per_mille
    }
}
