//! Opening, connecting and closing a simulated fabric.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_memory::{DmaBuf, Slab};

use super::progress::{Entry, SimNetwork, State};
use super::queue_pair::{InFlight, Lane};
use super::region;
use crate::api::{ArrivalSlot, Message};
use crate::arrival::ArrivalMode;
use crate::common::{Core, Credits, Gone, Peer};
use crate::config::{Endpoint, FabricConfig, PeerAddress};
use crate::device::{Device, Work};
use crate::doorbell::{Ticket, Wake};
use crate::error::{
    CloseError, ConnectError, FaultCause, OpenFabricError, OpenRegionError, PostError, RegionError,
    SendMessageError,
};
use crate::flags::{FlagTable, Watched};
use crate::handshake::{HandshakeError, HandshakeRefusal};
use crate::mesh::LOOK_UP;
use crate::region::{Region, RegionDescriptor, RegionMemory, RemoteRegion};

/// How often to look whether a peer that shares memory has done something.
const LOOK_FOR_NEAR: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct SimDevice {
    network: SimNetwork,
    core: Arc<Core>,
    watched: Arc<Watched>,
    credits: Mutex<BTreeMap<(Rank, usize), Arc<Credits>>>,
}

pub(crate) fn open(
    network: SimNetwork,
    config: FabricConfig,
) -> Result<(Arc<Core>, Arc<dyn Device>), OpenFabricError> {
    let core = Core::private(config)?;
    let device = SimDevice::open(network, core.clone())?;
    Ok((core, Arc::new(device)))
}

impl SimDevice {
    pub(crate) fn open(network: SimNetwork, core: Arc<Core>) -> Result<SimDevice, OpenFabricError> {
        let rank = core.me().rank;
        let mut state = network.shared().lock();
        if state.members.contains_key(&rank) {
            return Err(OpenFabricError::RankTaken { rank });
        }
        let watched = Arc::new(Watched::default());
        state.members.insert(rank, Entry::new(core.clone(), watched.clone()));
        network.shared().changed.notify_all();
        drop(state);
        Ok(SimDevice { network, core, watched, credits: Mutex::default() })
    }

    fn me(&self) -> Rank {
        self.core.me().rank
    }

    /// Enters the peer if each of us is who the other expects and both agree how signals travel; None if
    /// it does not connect yet.
    fn admit(&self, state: &mut State, peer: &PeerAddress) -> Option<Result<(), ConnectError>> {
        let refused =
            |(mode, reason)| ConnectError::ArrivalRefused { rank: peer.rank, mode, reason };
        let me = state.members.get_mut(&self.me())?;
        if let Some(refusal) = me.refused.remove(&peer.rank) {
            return Some(Err(refused(refusal)));
        }
        let other = state.members.get(&peer.rank)?;
        if let Err(refusal) = self.introduce(other, peer)? {
            let (rank, endpoint) = (peer.rank, peer.endpoint.to_string());
            let source = HandshakeError::Refused(refusal);
            return Some(Err(ConnectError::Handshake { rank, endpoint, source }));
        }
        if let Err(refusal) = self.agree(&other.core) {
            self.core.counters().add(|c| &c.connections_refused, 1);
            let other = state.members.get_mut(&peer.rank)?;
            other.refused.insert(self.me(), refusal.clone());
            return Some(Err(refused(refusal)));
        }
        let me = state.members.get(&self.me())?;
        if let Err(error) = give_flags(me, other).and_then(|()| give_flags(other, me)) {
            return Some(Err(error));
        }
        let entered = Peer::new(peer);
        self.core.enter_peer(&entered);
        state.members.get_mut(&self.me())?.peers.insert(peer.rank, entered);
        Some(Ok(()))
    }

    /// Who may talk to whom.
    fn introduce(&self, other: &Entry, peer: &PeerAddress) -> Option<Result<(), HandshakeRefusal>> {
        let (mine, theirs) = (&self.core.config().job, &other.core.config().job);
        let refuse = |by: &Core, refusal| {
            by.counters().add(|c| &c.connections_refused, 1);
            Some(Err(refusal))
        };
        if mine.job_id != theirs.job_id {
            return refuse(&other.core, HandshakeRefusal::OtherJob);
        }
        if mine.secret != theirs.secret {
            return refuse(&other.core, HandshakeRefusal::WrongSecret);
        }
        if other.core.me() != peer.member() {
            return refuse(&self.core, HandshakeRefusal::StaleIncarnation);
        }
        if *other.expects.get(&self.me())? != self.core.me() {
            return refuse(&other.core, HandshakeRefusal::StaleIncarnation);
        }
        Some(Ok(()))
    }

    /// How signals travel: each says how it sends, and each may refuse what its device does not promise.
    fn agree(&self, other: &Core) -> Result<(), (ArrivalMode, String)> {
        let knobs = &self.network.shared().knobs;
        for (sender, receiver) in [(&*self.core, other), (other, &*self.core)] {
            let mode = mode_of(sender);
            let is_right = knobs.places_in_order() || receiver.config().trust_tail;
            if mode == ArrivalMode::FlagTail && !is_right {
                let reason = format!(
                    "the device of rank {} does not promise that writes land in ascending order \
                     (simulated: {:?} within a write, {:?} between writes)",
                    receiver.me().rank,
                    knobs.within,
                    knobs.between
                );
                return Err((mode, reason));
            }
        }
        let (me, peer) = (self.me(), other.me().rank);
        let (to, from) = (mode_of(&self.core), mode_of(other));
        tracing::debug!(%me, "signals go to rank {peer} by {to} and come by {from}, as configured");
        Ok(())
    }

    /// The peer, if both of us are still there; else why not.
    fn alive<'a>(&self, state: &'a State, peer: Rank) -> Result<&'a Core, String> {
        if let Some(gone) = self.core.peer(peer).and_then(|peer| peer.gone().cloned()) {
            return Err(gone.to_string());
        }
        let both = state.members.contains_key(&self.me());
        let found = state.members.get(&peer).filter(|_| both);
        found.map(|entry| &*entry.core).ok_or_else(|| "it left the simulation".into())
    }

    fn credits(&self, peer: Rank, queue_pair: usize) -> Arc<Credits> {
        let depth = self.core.config().queue_depth;
        let mut credits = self.credits.lock();
        credits.entry((peer, queue_pair)).or_insert_with(|| Credits::new(depth)).clone()
    }
}

impl Device for SimDevice {
    fn endpoint(&self) -> Endpoint {
        Endpoint::Sim
    }

    fn connect(
        &self,
        peers: &[PeerAddress],
        deadline: Deadline,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), ConnectError> {
        let shared = self.network.shared();
        let mut state = shared.lock();
        let entry = state.members.get_mut(&self.me()).ok_or(ConnectError::Closed)?;
        entry.refused.clear();
        entry.expects.extend(peers.iter().map(|peer| (peer.rank, peer.member())));
        shared.changed.notify_all();
        for peer in peers {
            let (rank, endpoint) = (peer.rank, peer.endpoint.to_string());
            if peer.endpoint != Endpoint::Sim {
                return Err(ConnectError::WrongBackend { rank, endpoint, backend: "sim" });
            }
            let admitted = loop {
                if let Some(admitted) = self.admit(&mut state, peer) {
                    break admitted;
                }
                let remaining = deadline.remaining();
                if remaining.is_zero() {
                    return Err(ConnectError::TimedOut { missing: format!("rank {rank}") });
                }
                if !go_on() {
                    return Err(ConnectError::GivenUp { missing: format!("rank {rank}") });
                }
                shared.changed.wait_for(&mut state, remaining.min(LOOK_UP));
            };
            // a refusal is news for the peer as well
            shared.changed.notify_all();
            admitted?;
        }
        Ok(())
    }

    fn alloc_region(&self, bytes: u64) -> Result<Region, RegionError> {
        region::alloc(&self.core, bytes)
    }

    fn adopt_region(&self, file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        region::adopt(&self.core, file, bytes)
    }

    fn adopt_device(
        &self,
        memory: &Slab,
        _: Result<DmaBuf, String>,
    ) -> Result<(Region, String), RegionError> {
        let reaches = self.network.shared().reach.as_ref().is_some_and(|r| r.reaches(self.me()));
        match mode_of(&self.core) {
            _ if !reaches => Err(RegionError::NoNic),
            ArrivalMode::WriteImm => Ok(region::adopt_device(&self.core, memory)),
            mode => Err(RegionError::FlagsOnDevice { mode: mode.name() }),
        }
    }

    fn open_region(
        &self,
        peer: Rank,
        descriptor: RegionDescriptor,
        _: Deadline,
    ) -> Result<RemoteRegion, OpenRegionError> {
        let state = self.network.shared().lock();
        let owner = self.alive(&state, peer);
        let owner = owner.map_err(|cause| OpenRegionError::PeerLost { peer, cause })?;
        region::open(owner, descriptor)
    }

    fn post(&self, peer: Rank, queue_pair: usize, work: Work) -> Result<(), PostError> {
        let shared = self.network.shared();
        let mut state = shared.lock();
        let receiver = self.alive(&state, peer);
        let receiver = receiver.map_err(|cause| PostError::PeerLost { peer, cause })?;
        // fits: usize is 64 bits wide
        work.check_slot(peer, receiver.board().slots() as u64)?;
        if state.random.happens(shared.knobs.full_per_mille) {
            return Err(PostError::Full { depth: self.core.config().queue_depth });
        }
        let credits = self.credits(peer, queue_pair);
        credits.take()?;
        self.core.counters().posted(work.direction, work.bytes);
        let lane = Lane { from: self.me().0, to: peer.0, queue_pair };
        let (mode, knobs) = (mode_of(&self.core), &shared.knobs);
        let memcpy = InFlight::new(lane, work, credits, mode, knobs, &mut state.random);
        state.in_flight.push(memcpy);
        shared.changed.notify_all();
        Ok(())
    }

    fn progress(&self) {
        self.network.shared().turns();
        self.watched.look_at_all(self.core.board());
    }

    fn watch_tail(&self, slot: ArrivalSlot, memory: &Arc<RegionMemory>, end: u64) -> ArrivalSlot {
        if mode_of(&self.core) != ArrivalMode::FlagTail {
            return slot;
        }
        self.watched.enter_tail(slot.index(), memory, end);
        ArrivalSlot(slot.0 | ArrivalSlot::TAIL)
    }

    fn look(&self, slot: ArrivalSlot) {
        self.watched.look(self.core.board(), slot.index());
    }

    /// Moves the network along; sleeps when nothing is in flight.
    fn wait(&self, ticket: Ticket, deadline: Deadline) -> Wake {
        let shared = self.network.shared();
        let counters = self.core.counters();
        loop {
            let mut state = shared.lock();
            // under the lock: what lands after it rings `changed`
            self.watched.look_at_all(self.core.board());
            if self.core.board().ticket() != ticket {
                counters.add(|c| &c.wakes, 1);
                return Wake::Event;
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                return Wake::TimedOut;
            }
            if state.is_idle() {
                counters.add(|c| &c.blocked_waits, 1);
                // peers of this host ring no bell of the network's
                let has_near = self.core.config().host.is_some();
                let at_most = if has_near { remaining.min(LOOK_FOR_NEAR) } else { remaining };
                shared.changed.wait_for(&mut state, at_most);
                continue;
            }
            drop(state);
            shared.turns();
        }
    }

    fn send_message(&self, peer: Rank, body: &[u8], _: Deadline) -> Result<(), SendMessageError> {
        let shared = self.network.shared();
        let state = shared.lock();
        let receiver = self.alive(&state, peer);
        let receiver = receiver.map_err(|cause| SendMessageError::PeerLost { peer, cause })?;
        self.core.counters().add(|c| &c.messages, 1);
        receiver.deliver(Message { from: self.me(), body: body.to_vec() });
        shared.changed.notify_all();
        Ok(())
    }

    /// Lets everything we posted land first.
    fn close(&self, deadline: Deadline) -> Result<(), CloseError> {
        let shared = self.network.shared();
        let me = self.me();
        let mine = |state: &State| {
            let in_flight = state.in_flight.iter();
            let mine = in_flight.filter(|memcpy| memcpy.lane.from == me.0);
            mine.count() + state.late.count_of(me)
        };
        while mine(&shared.lock()) > 0 && !deadline.passed() {
            shared.turns();
        }
        let mut state = shared.lock();
        let unconfirmed = mine(&state);
        state.remove(me, Gone::Departed, Gone::Closed);
        shared.changed.notify_all();
        match unconfirmed {
            0 => Ok(()),
            count => Err(CloseError::Unconfirmed { missing: format!("{count} memcpys in flight") }),
        }
    }
}

fn mode_of(core: &Core) -> ArrivalMode {
    core.config().arrival.unwrap_or_default()
}

/// Gives `sender` the tables of `receiver` that it writes flags into, unless it has them: one a queue pair.
fn give_flags(sender: &Entry, receiver: &Entry) -> Result<(), ConnectError> {
    let rank = sender.core.me().rank;
    let count = match mode_of(&sender.core) {
        ArrivalMode::WriteImm => 0,
        _ => sender.core.config().queue_pairs_per_peer,
    };
    for queue_pair in (0..count).filter(|pair| receiver.watched.table(rank, *pair).is_none()) {
        let bytes = FlagTable::bytes(receiver.core.board().slots());
        let table = region::alloc(&receiver.core, bytes)
            .map_err(|source| ConnectError::Flags { rank, source })?;
        receiver.watched.enter_table(rank, queue_pair, table.memory().clone());
    }
    Ok(())
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        // no goodbye was said: peers see a death, as of a process that exits
        let died = FaultCause::Died { detail: "it dropped its fabric".into() };
        let mut state = self.network.shared().lock();
        state.remove(self.me(), Gone::Lost(died), Gone::Closed);
        self.network.shared().changed.notify_all();
    }
}
