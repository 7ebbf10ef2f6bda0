//! What a job with a key-value store wants of its launcher, and what its members are told: who is worker and who is
//! server, barriers, and what the launcher, which is the store's scheduler, says while the job runs. Names no value.

use std::collections::{HashSet, VecDeque};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::PeerAddress;
use tensorwire_kvstore::proto::Role;

/// What a store's job wants of its launcher. Ranks `0..workers` are the workers, the servers come behind them, and
/// members that have no part in the store behind these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreJob {
    pub workers: u32,
    pub servers: u32,
    /// A worker's death does not end the job; the others go on.
    pub elastic: bool,
    /// A server's death does not end the job; a new process takes its place, a few times.
    pub replace_servers: bool,
}

/// What a member is in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorePlace {
    pub workers: u32,
    pub servers: u32,
    pub role: Role,
    replaces: Option<u32>,
}

impl StoreJob {
    /// Who is what, as a job's roles.
    pub fn roles(&self) -> Vec<String> {
        let workers = (0..self.workers).map(|worker| format!("worker {worker}"));
        workers.chain((0..self.servers).map(|server| format!("server {server}"))).collect()
    }

    /// What the member `rank` is at the job's beginning, if it has a part in the store.
    pub(crate) fn place(&self, rank: Rank) -> Option<StorePlace> {
        let StoreJob { workers, servers, .. } = *self;
        let role = match rank.0.checked_sub(workers) {
            None => Role::Worker(rank.0),
            Some(server) if server < servers => Role::Server(server),
            Some(_) => return None,
        };
        Some(StorePlace { workers, servers, role, replaces: None })
    }

    /// What a member is that takes the place of `was` as `server`.
    pub(crate) fn replacement(&self, server: u32, was: Rank) -> StorePlace {
        let StoreJob { workers, servers, .. } = *self;
        StorePlace { workers, servers, role: Role::Server(server), replaces: Some(was.0) }
    }
}

impl StorePlace {
    /// The member whose place it takes: it has to restore what that one last saved.
    pub fn replaces(&self) -> Option<Rank> {
        self.replaces.map(Rank)
    }
}

/// What a member of a store is told while the job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Workers were lost; these go on, and nobody waits for another.
    World { epoch: u64, alive: Vec<u32> },
    /// The member `was` was lost; `peer` is `server` now, and calls this worker until it is expected
    /// ([`tensorwire_fabric::Fabric::connect`]). Should it be lost before that, another event says who
    /// takes its place: a worker waits for the call no longer than it can do without the next event.
    ServerReplaced { server: u32, was: Rank, peer: PeerAddress },
}

/// Why a barrier was not passed.
#[derive(Debug, thiserror::Error)]
pub enum BarrierError {
    #[error(
        "not all workers came to barrier {number} in time; give it a later deadline if one of them has more to do"
    )]
    TimedOut { number: u64 },
    #[error("barriers are between the workers of a store, and this process is none")]
    NoWorker,
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

/// Where the thread that listens to the launcher puts down what concerns the store.
#[derive(Debug, Default)]
pub(crate) struct ControlEvents {
    state: Mutex<ControlState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct ControlState {
    /// The last barrier that this member may pass.
    released: u64,
    epoch: u64,
    /// Once the world has shrunk.
    alive: Option<Vec<u32>>,
    /// At most one per death, of which a job survives no more than it has workers and replacements.
    events: VecDeque<StoreEvent>,
    /// Ranks that took a server's place, as far as that was told.
    replacements: HashSet<u32>,
}

impl ControlEvents {
    pub(crate) fn put_released(&self, number: u64) {
        let mut state = self.state.lock();
        state.released = state.released.max(number);
        self.released.notify_all();
    }

    pub(crate) fn put_world(&self, epoch: u64, alive: Vec<u32>) {
        let mut state = self.state.lock();
        if epoch > state.epoch {
            state.epoch = epoch;
            state.alive = Some(alive.clone());
            state.events.push_back(StoreEvent::World { epoch, alive });
        }
    }

    pub(crate) fn put_replaced(&self, server: u32, was: Rank, peer: PeerAddress) {
        let mut state = self.state.lock();
        if state.replacements.insert(peer.rank.0) {
            state.events.push_back(StoreEvent::ServerReplaced { server, was, peer });
        }
    }

    /// All events since the last call.
    pub(crate) fn take(&self) -> Vec<StoreEvent> {
        self.state.lock().events.drain(..).collect()
    }

    /// Has nothing been said of the loss of this worker?
    pub(crate) fn lives(&self, worker: u32) -> bool {
        self.state.lock().alive.as_ref().is_none_or(|alive| alive.contains(&worker))
    }

    pub(crate) fn released(&self) -> u64 {
        self.state.lock().released
    }

    /// Waits until a barrier is open; false: it was not by the deadline.
    pub(crate) fn await_released(&self, number: u64, deadline: Deadline) -> bool {
        let mut state = self.state.lock();
        while state.released < number {
            if deadline.passed() {
                return false;
            }
            self.released.wait_for(&mut state, deadline.remaining());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_come_first() {
        let job = StoreJob { workers: 2, servers: 1, elastic: false, replace_servers: true };
        assert_eq!(job.roles(), ["worker 0", "worker 1", "server 0"]);
        let roles = [0, 1, 2, 3].map(|rank| job.place(Rank(rank)).map(|place| place.role));
        let [first, second, third] = [Role::Worker(0), Role::Worker(1), Role::Server(0)].map(Some);
        assert_eq!(roles, [first, second, third, None]);
        let place = job.replacement(0, Rank(2));
        assert_eq!((place.role, place.replaces()), (Role::Server(0), Some(Rank(2))));
    }

    #[test]
    fn a_world_that_is_told_again_or_late_is_told_once() {
        let control_events = ControlEvents::default();
        assert!(control_events.lives(0));
        control_events.put_world(2, vec![1]);
        control_events.put_world(1, vec![0, 1]);
        control_events.put_world(2, vec![1]);
        assert_eq!(control_events.take(), [StoreEvent::World { epoch: 2, alive: vec![1] }]);
        assert_eq!(control_events.take(), []);
        assert!(control_events.lives(1) && !control_events.lives(0));
    }

    #[test]
    fn a_server_that_took_anothers_place_is_told_once() {
        let control_events = ControlEvents::default();
        let peer = |rank| PeerAddress {
            rank: Rank(rank),
            incarnation: tensorwire_base::Incarnation(7),
            endpoint: "shm:x".parse().unwrap(),
        };
        for rank in [3, 4, 3] {
            control_events.put_replaced(0, Rank(2), peer(rank));
        }
        let replaced =
            |rank| StoreEvent::ServerReplaced { server: 0, was: Rank(2), peer: peer(rank) };
        assert_eq!(control_events.take(), [3, 4].map(replaced));
    }

    #[test]
    fn a_barrier_is_waited_for_until_the_deadline() {
        let control_events = ControlEvents::default();
        let now = Deadline::after(std::time::Duration::ZERO);
        assert!(!control_events.await_released(1, now));
        control_events.put_released(1);
        assert!(control_events.await_released(1, now));
        assert!(!control_events.await_released(2, now));
    }
}
