//! The simulated network: who is in it, what is in flight, and the seeded choice of what happens
//! next. One lock; every event happens under it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_base::Rank;

use super::late::LateNews;
use super::queue_pair::{InFlight, Lane};
use crate::api::Completion;
use crate::common::{Core, Gone, Peer};
use crate::config::Member;
use crate::error::{CompletionError, FaultCause};

/// Turns that one call of `poll` gives the network at most.
const TURNS_PER_CALL: u32 = 32;

/// A network that fabrics of this process share. Clones are the same network.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    shared: Arc<Shared>,
}

/// How adversarial the network is. `Default`: pieces in random order, a few pieces and signals twice,
/// and all of it now and then late.
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
    /// Of a thousand turns, how many land a piece again that had landed.
    pub duplicate_per_mille: u32,
    /// Most turns that the completion of a memcpy comes after its bytes and its signal, and that a signal
    /// comes again after it came first.
    pub late_turns_max: u32,
    /// Of a thousand signals, how many come twice.
    pub signal_twice_per_mille: u32,
    /// Of a thousand memcpys, how many fail.
    pub fail_per_mille: u32,
    /// Of a thousand posts, how many find the queue full.
    pub full_per_mille: u32,
}

/// The order in which the pieces of one memcpy land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    Ascending,
    Random,
}

/// How the memcpys of one queue pair overlap. Signals keep their order always, and so do completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// One memcpy after the other.
    Ordered,
    /// Pieces of all of them interleave, as on NICs with relaxed ordering: two writes to the same
    /// bytes may land in either order.
    Random,
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
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) knobs: SimKnobs,
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
}

/// A fabric in the network.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) core: Arc<Core>,
    /// Its peer table: who it connects to, or wants to.
    pub(super) expects: BTreeMap<Rank, Member>,
    /// The peers it connected to, as it sees them.
    pub(super) peers: BTreeMap<Rank, Arc<Peer>>,
}

impl Entry {
    pub(super) fn new(core: Arc<Core>) -> Entry {
        Entry { core, expects: BTreeMap::new(), peers: BTreeMap::new() }
    }
}

impl SimNetwork {
    pub fn new(seed: u64, knobs: SimKnobs) -> SimNetwork {
        let state = State {
            random: Random(seed),
            members: BTreeMap::new(),
            in_flight: Vec::new(),
            late: LateNews::default(),
        };
        let shared = Shared { knobs, state: Mutex::new(state), changed: Condvar::new() };
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
        let turns = 1 + state.random.below(TURNS_PER_CALL);
        for _ in 0..turns {
            state.turn(&self.knobs);
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
    fn turn(&mut self, knobs: &SimKnobs) {
        let eligible: Vec<usize> = (0..self.in_flight.len())
            .filter(|&i| {
                let is_first = self.is_first(i);
                is_first || (knobs.between == Between::Random && !self.in_flight[i].is_landed())
            })
            .collect();
        let late = self.late.eligible();
        if eligible.is_empty() && late.is_empty() {
            return;
        }
        let chosen = self.random.index(eligible.len() + late.len());
        let Some(&chosen) = eligible.get(chosen) else {
            self.late.turn(late[chosen - eligible.len()], &self.members);
            return;
        };
        if self.in_flight[chosen].is_landed() {
            let ended = self.in_flight.remove(chosen);
            self.end(ended, knobs);
            return;
        }
        let memcpy = &mut self.in_flight[chosen];
        let lane = memcpy.lane;
        let Some(receiver) = self.members.get(&Rank(lane.to)) else {
            return;
        };
        if let Err(reason) = memcpy.turn(&receiver.core, knobs, &mut self.random) {
            self.refuse(lane, &reason);
        }
    }

    /// True if no earlier memcpy of its lane is in flight.
    fn is_first(&self, index: usize) -> bool {
        let lane = self.in_flight[index].lane;
        self.in_flight[..index].iter().all(|earlier| earlier.lane != lane)
    }

    /// Signal, then completion.
    fn end(&mut self, ended: InFlight, knobs: &SimKnobs) {
        let State { random, members, late, .. } = self;
        let (lane, peer, token) = (ended.lane, Rank(ended.lane.to), ended.work.token);
        let result = match ended.fails() {
            true => Err(CompletionError::Injected),
            false => Ok(()),
        };
        if let (Ok(()), Some(signal), Some(receiver)) =
            (&result, ended.work.signal, members.get(&peer))
        {
            receiver.core.board().raise(signal.slot.index(), signal.epoch);
            if random.happens(knobs.signal_twice_per_mille) {
                late.signal_again(lane, signal, knobs.late_turns_max, random);
            }
        }
        let completion = Completion { token, peer, result };
        late.complete(lane, completion, ended.credits, knobs.late_turns_max, random, members);
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
        self.members.remove(&rank);
    }
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
