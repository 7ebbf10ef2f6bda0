//! Who is in a job: membership, barriers, liveness, and what a death means. Never on the data path; it does
//! not know what is pushed, nor how a process is started or killed.
//!
//! Ranks `0..workers` are workers, the servers come behind them, and a server's replacement gets the next
//! rank that was never used: a rank names one life. The connection to a node keeps order and loses nothing
//! while both ends live; all the same, every event may come twice, and a barrier that was released is
//! released again for whoever asks again.

use serde::{Deserialize, Serialize};
use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Identity;

/// What a node of a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    Worker(u32),
    Server(u32),
}

/// What a job wants of its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    pub workers: u32,
    pub servers: u32,
    /// A worker's death does not end the job; the others go on.
    pub elastic: bool,
    /// A server's death does not end the job; another takes its place.
    pub replace_servers: bool,
    /// So many times in one job: a server that dies again and again has a cause that no restart mends.
    pub replacements_max: u32,
    /// There was a scheduler before, and what it said is known by what the nodes say.
    pub taken_over: bool,
    /// How long a silent node is believed to be alive, from when it joined; none: for ever.
    pub liveness_ms: Option<u64>,
}

impl SchedulerOptions {
    /// A job that ends with its first death, with heartbeats.
    pub fn new(workers: u32, servers: u32) -> SchedulerOptions {
        SchedulerOptions {
            workers,
            servers,
            elastic: false,
            replace_servers: false,
            replacements_max: 3,
            taken_over: false,
            liveness_ms: Some(6_000),
        }
    }
}

/// What has happened. What a node says carries its incarnation; what was seen of it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// It is up and its peers can reach it.
    Joined { node: Identity },
    /// It said anything.
    Heard { node: Identity },
    /// It waits at its barrier of this number, from 1.
    Entered { node: Identity, barrier: u64 },
    /// It has done its part and ended well: nobody waits for it any more.
    Left { node: Identity },
    /// Its process or its connection ended too early.
    Died { rank: Rank, why: String },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// All live workers are at this barrier: they may pass.
    Release { barrier: u64, to: Vec<Rank> },
    /// The world has shrunk to the workers `alive`, for the `epoch`th time.
    World { epoch: u64, alive: Vec<u32>, to: Vec<Rank> },
    /// It was silent for too long and counts as dead: it must be killed, lest it wakes up and writes.
    GiveUp { rank: Rank, silent_ms: u64 },
    /// Start `server` anew, as `rank`; it takes over from `was`.
    Replace { server: u32, was: Rank, rank: Rank },
    /// It is lost, and all workers have done their part: nobody needs it, nor another in its place.
    Spare { rank: Rank },
    /// `node` is now `server`, in place of `was`.
    Replaced { server: u32, was: Rank, node: Identity, to: Vec<Rank> },
    /// The job is over: it cannot go on without `rank`. Nothing is done after this.
    End { rank: Rank, why: String },
}

/// The scheduler of one job.
#[derive(Clone, Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    /// By rank.
    nodes: Vec<NodeState>,
    /// How often the world has shrunk.
    epoch: u64,
    /// The last barrier that was released.
    released: u64,
    replacements: u32,
    ended: bool,
}

#[derive(Clone, Debug)]
struct NodeState {
    role: Role,
    life: Life,
    /// The last barrier it came to.
    entered: u64,
    /// Whom it replaces.
    replaces: Option<Rank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Expected,
    Alive { incarnation: Incarnation, heard_ms: u64 },
    Left,
    Dead,
}

impl NodeState {
    fn expected(role: Role, replaces: Option<Rank>) -> NodeState {
        NodeState { role, life: Life::Expected, entered: 0, replaces }
    }

    /// Somebody may have to wait for it.
    fn active(&self) -> bool {
        matches!(self.life, Life::Expected | Life::Alive { .. })
    }
}

impl Scheduler {
    pub fn new(options: SchedulerOptions) -> Scheduler {
        let workers = (0..options.workers).map(Role::Worker);
        let roles = workers.chain((0..options.servers).map(Role::Server));
        Scheduler {
            options,
            nodes: roles.map(|role| NodeState::expected(role, None)).collect(),
            epoch: 0,
            released: 0,
            replacements: 0,
            ended: false,
        }
    }

    /// What the node of this rank does; none: there never was one.
    pub fn role(&self, rank: Rank) -> Option<Role> {
        self.nodes.get(rank.index()).map(|node| node.role)
    }

    /// Workers that others wait for: neither dead nor done.
    pub fn workers(&self) -> Vec<u32> {
        let active = self.nodes.iter().filter(|node| node.active());
        let worker = |node: &NodeState| match node.role {
            Role::Worker(index) => Some(index),
            Role::Server(_) => None,
        };
        active.filter_map(worker).collect()
    }

    /// How often the world has shrunk.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes in what happened at `now_ms` and appends what is to be done, in order. What a stranger, a
    /// former life or a dead node says is ignored.
    pub fn handle(
        &mut self,
        now_ms: u64,
        event: SchedulerEvent,
        actions: &mut Vec<SchedulerAction>,
    ) {
        if self.ended {
            return;
        }
        match event {
            SchedulerEvent::Joined { node } => self.joined(now_ms, node, actions),
            SchedulerEvent::Heard { node } => {
                self.heard(now_ms, node);
            }
            SchedulerEvent::Entered { node, barrier } => {
                if self.heard(now_ms, node) {
                    self.entered(node.rank, barrier, actions);
                }
            }
            SchedulerEvent::Left { node } => {
                if self.heard(now_ms, node) {
                    self.left(node.rank, actions);
                }
            }
            SchedulerEvent::Died { rank, why } => self.died(rank, why, actions),
            SchedulerEvent::Tick => self.give_up_silent(now_ms, actions),
        }
    }

    fn joined(&mut self, now_ms: u64, node: Identity, actions: &mut Vec<SchedulerAction>) {
        let Some(state) = self.nodes.get_mut(node.rank.index()) else {
            return;
        };
        if state.life != Life::Expected {
            self.heard(now_ms, node);
            return;
        }
        state.life = Life::Alive { incarnation: node.incarnation, heard_ms: now_ms };
        let (role, replaces) = (state.role, state.replaces);
        if let (Role::Server(server), Some(was)) = (role, replaces) {
            // it must not wait for workers that died before it came
            if self.epoch > 0 {
                let (epoch, alive) = (self.epoch, self.workers());
                actions.push(SchedulerAction::World { epoch, alive, to: vec![node.rank] });
            }
            let to = self.ranks(|role| matches!(role, Role::Worker(_)));
            actions.push(SchedulerAction::Replaced { server, was, node, to });
        }
    }

    /// Takes note that `node` lives; false: it is no live node of this job.
    fn heard(&mut self, now_ms: u64, node: Identity) -> bool {
        match self.nodes.get_mut(node.rank.index()).map(|state| &mut state.life) {
            Some(Life::Alive { incarnation, heard_ms }) if *incarnation == node.incarnation => {
                *heard_ms = now_ms.max(*heard_ms);
                true
            }
            _ => false,
        }
    }

    fn left(&mut self, rank: Rank, actions: &mut Vec<SchedulerAction>) {
        let node = &mut self.nodes[rank.index()];
        node.life = Life::Left;
        let is_worker = matches!(node.role, Role::Worker(_));
        let alive = self.workers();
        // a server that takes another's place hears of it when it comes
        self.epoch += u64::from(is_worker);
        // a server must not wait for what it will never push
        if is_worker && !alive.is_empty() {
            let to = self.ranks(|role| matches!(role, Role::Server(_)));
            actions.push(SchedulerAction::World { epoch: self.epoch, alive, to });
        }
        self.release(actions);
    }

    fn entered(&mut self, rank: Rank, barrier: u64, actions: &mut Vec<SchedulerAction>) {
        let node = &mut self.nodes[rank.index()];
        if matches!(node.role, Role::Server(_)) {
            return;
        }
        if barrier <= self.released {
            actions.push(SchedulerAction::Release { barrier, to: vec![rank] });
        } else if barrier == self.released + 1 || self.options.taken_over {
            node.entered = barrier;
            // it has passed the one before, which the launcher before this one may not have said to all
            if self.released < barrier - 1 {
                self.released = barrier - 1;
                let waits =
                    |node: &NodeState| matches!(node.role, Role::Worker(_)) && node.active();
                let nodes = (0u32..).map(Rank).zip(&self.nodes);
                let waiting = nodes.filter(|(_, node)| waits(node) && node.entered == barrier - 1);
                let to: Vec<Rank> = waiting.map(|(rank, _)| rank).collect();
                if !to.is_empty() {
                    actions.push(SchedulerAction::Release { barrier: barrier - 1, to });
                }
            }
            self.release(actions);
        }
        // a later one comes from nobody who waited for this one
    }

    /// Opens the next barrier if all who must come are there.
    fn release(&mut self, actions: &mut Vec<SchedulerAction>) {
        let next = self.released + 1;
        let mut to = Vec::new();
        for (rank, node) in (0u32..).map(Rank).zip(&self.nodes) {
            if matches!(node.role, Role::Worker(_)) && node.active() {
                if node.entered < next {
                    return;
                }
                to.push(rank);
            }
        }
        if !to.is_empty() {
            self.released = next;
            actions.push(SchedulerAction::Release { barrier: next, to });
        }
    }

    fn give_up_silent(&mut self, now_ms: u64, actions: &mut Vec<SchedulerAction>) {
        let Some(liveness_ms) = self.options.liveness_ms else {
            return;
        };
        for index in 0..self.nodes.len() {
            let Life::Alive { heard_ms, .. } = self.nodes[index].life else {
                continue;
            };
            let silent_ms = now_ms.saturating_sub(heard_ms);
            if silent_ms >= liveness_ms && !self.ended {
                // fits: ranks are u32
                let rank = Rank(index as u32);
                actions.push(SchedulerAction::GiveUp { rank, silent_ms });
                let for_s = silent_ms as f64 / 1e3;
                let why = format!("nothing was heard of it for {for_s:.1} s (stopped or hung)");
                self.died(rank, why, actions);
            }
        }
    }

    fn died(&mut self, rank: Rank, why: String, actions: &mut Vec<SchedulerAction>) {
        // a job that never stood does not go on with less
        let stood = self.nodes.iter().all(|n| n.replaces.is_some() || n.life != Life::Expected);
        let Some(node) = self.nodes.get_mut(rank.index()).filter(|node| node.active()) else {
            return;
        };
        node.life = Life::Dead;
        let survived = stood
            && match node.role {
                Role::Worker(_) => self.shrink(actions),
                Role::Server(server) => self.replace(server, rank, actions),
            };
        if !survived {
            self.ended = true;
            actions.push(SchedulerAction::End { rank, why });
        }
    }

    /// Goes on without a worker, if the job may and there is one left or one that has done its part.
    fn shrink(&mut self, actions: &mut Vec<SchedulerAction>) -> bool {
        let worker = |node: &NodeState| matches!(node.role, Role::Worker(_));
        let survivor = |node: &NodeState| worker(node) && node.life != Life::Dead;
        if !self.options.elastic || !self.nodes.iter().any(survivor) {
            return false;
        }
        self.epoch += 1;
        let (epoch, alive, to) = (self.epoch, self.workers(), self.ranks(|_| true));
        actions.push(SchedulerAction::World { epoch, alive, to });
        self.release(actions);
        true
    }

    /// Lets another take a server's place, if the job may and a worker is left that needs it.
    fn replace(&mut self, server: u32, was: Rank, actions: &mut Vec<SchedulerAction>) -> bool {
        if !self.options.replace_servers {
            return false;
        }
        // had none done its part, the last one's death would have ended the job
        if self.workers().is_empty() {
            actions.push(SchedulerAction::Spare { rank: was });
            return true;
        }
        if self.replacements == self.options.replacements_max {
            return false;
        }
        self.replacements += 1;
        // fits: there are at most `replacements_max` more of them than there were
        let rank = Rank(self.nodes.len() as u32);
        self.nodes.push(NodeState::expected(Role::Server(server), Some(was)));
        actions.push(SchedulerAction::Replace { server, was, rank });
        true
    }

    /// Live nodes of these roles.
    fn ranks(&self, of: impl Fn(Role) -> bool) -> Vec<Rank> {
        let alive = |node: &NodeState| matches!(node.life, Life::Alive { .. });
        let ranks = (0u32..).map(Rank).zip(&self.nodes);
        ranks.filter(|(_, node)| of(node.role) && alive(node)).map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
