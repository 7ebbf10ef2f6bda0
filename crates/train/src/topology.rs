//! Which process is what, whose the weights are, and who waits for whom: a strategy, resolved once from what the job was
//! told and then carried.

use tensorwire_base::Rank;
use tensorwire_graph::Cluster;
use tensorwire_kvstore::proto::{Mode, Role};
use tensorwire_nn::Sharing;

use crate::config::{Averaging, TrainConfig};
use crate::strategy::{Grouping, Pacing};

/// Where the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// In the one process that there is.
    Local,
    /// On servers that are parts of the graph (Xue et al.), or on the workers where there are none.
    Servers,
    /// In a key-value store (ps-lite; Li et al.).
    Store,
    /// Each worker has its own.
    Replicated,
}

/// When workers wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// All make the same steps together.
    Synchronous,
    /// Each worker, or group, at its own pace; the fastest at most `max_delay` steps ahead of the slowest, if that is given.
    Asynchronous { max_delay: Option<u64> },
}

/// A strategy with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    pub weights: Weights,
    pub workers: u32,
    /// Processes that hold variables for others: parts of the graph, or of a store.
    pub servers: u32,
    /// Groups of workers that all-reduce their gradients among themselves (the clients of Mamidala et al.). Worker w is in
    /// group w mod this; a group's first worker, its master, alone deals with servers. As many as workers: nobody does.
    pub groups: u32,
    pub pace: Pace,
    /// Weights are averaged with a centre in a store.
    pub averaging: Option<Averaging>,
    /// Each worker has its own weights, updated with the mean gradient of all that a store makes.
    pub reduces_in_store: bool,
    /// A worker's death does not end the job.
    pub elastic: bool,
}

impl Topology {
    /// What a configuration asks for. Makes sense only if [`TrainConfig::check`] passes.
    pub fn of(config: &TrainConfig) -> Topology {
        let TrainConfig { strategy, workers, .. } = *config;
        let row = strategy.row();
        let groups = match row.grouping {
            Grouping::Alone => workers,
            Grouping::All => 1,
            Grouping::Clients => config.clients.clients.unwrap_or(1),
        };
        let has_servers = config.servers > 0;
        let has_own = row.grouping == Grouping::Clients && !has_servers;
        // no server of a store knows the gradients of another, whose norm counts too
        let reduces_in_store =
            row.weights == Weights::Store && has_servers && config.clip_norm.is_some();
        let weights = if has_own || reduces_in_store { Weights::Replicated } else { row.weights };
        let averaging = config.clients.averaging(strategy, groups);
        let free = |max_delay| Pace::Asynchronous { max_delay };
        let pace = match row.pacing {
            Pacing::Bounded => free(config.store.max_delay),
            Pacing::Free if groups > 1 => free(None),
            Pacing::Asked if config.asynchronous => free(None),
            _ => Pace::Synchronous,
        };
        let has_centre = row.averages && (row.grouping == Grouping::Alone || has_servers);
        let serves =
            matches!(weights, Weights::Servers | Weights::Store) || has_centre || reduces_in_store;
        let servers = if serves { config.servers } else { 0 };
        let elastic = config.store.elastic;
        Topology { weights, workers, servers, groups, pace, averaging, reduces_in_store, elastic }
    }

    /// True if there is a key-value store.
    pub fn has_store(&self) -> bool {
        self.weights == Weights::Store
            || self.reduces_in_store
            || (self.averaging.is_some() && self.servers > 0)
    }

    /// True if what workers push in a step is reduced in a store, and what they pull is made there.
    pub(crate) fn trains_over_store(&self) -> bool {
        self.weights == Weights::Store || self.reduces_in_store
    }

    /// True if workers all-reduce their gradients among themselves.
    pub fn is_grouped(&self) -> bool {
        self.groups < self.workers
    }

    /// True if workers all-reduce their gradients among themselves, and that is all that steps exchange.
    pub(crate) fn reduces_apart_from_store(&self) -> bool {
        self.is_grouped() && self.is_replicated() && !self.reduces_in_store
    }

    /// True if each worker has weights of its own.
    pub fn is_replicated(&self) -> bool {
        self.weights == Weights::Replicated
    }

    /// True if each worker, or group, trains at its own pace.
    pub fn is_asynchronous(&self) -> bool {
        self.pace != Pace::Synchronous
    }

    /// True if the plan is that of one worker, which each of them runs. In an elastic job anyone may have to evaluate in the end.
    pub fn plans_one_worker(&self) -> bool {
        let alone = matches!(self.weights, Weights::Servers | Weights::Store) && !self.is_grouped();
        (alone && self.is_asynchronous()) || self.elastic
    }

    /// Returns whose the variables of the graph are.
    pub fn sharing(&self) -> Sharing {
        let clients = self.groups;
        match (self.is_replicated(), self.is_grouped()) {
            _ if self.reduces_in_store => Sharing::Reduced { clients },
            (true, _) => Sharing::Own { clients },
            (false, true) => Sharing::Clients { clients },
            (false, false) => Sharing::All,
        }
    }

    /// Returns the cluster that is planned for.
    pub fn cluster(&self) -> Cluster {
        let workers = self.replicas();
        match self.weights {
            Weights::Local => Cluster::Local,
            Weights::Servers if self.servers == 0 => Cluster::Colocated { workers },
            Weights::Servers => Cluster::ParameterServers { workers, servers: self.servers },
            Weights::Replicated if !self.reduces_in_store => Cluster::Workers { workers },
            // what the servers of the graph would do, those of the store do
            Weights::Store | Weights::Replicated => {
                Cluster::ParameterServers { workers, servers: 1 }
            }
        }
    }

    /// Returns the number of replicas in the graph.
    pub fn replicas(&self) -> u32 {
        if self.plans_one_worker() { 1 } else { self.workers }
    }

    /// Returns how the store's servers treat the pushes of several workers.
    pub fn store_mode(&self) -> Mode {
        match (self.averaging, self.pace) {
            // a centre moves whenever a group comes
            (Some(_), _) => Mode::Async { max_delay: None },
            (None, Pace::Asynchronous { max_delay }) => Mode::Async { max_delay },
            (None, Pace::Synchronous) => Mode::Sync,
        }
    }

    /// Returns the number of processes of the job.
    pub fn world(&self) -> u32 {
        match self.weights {
            Weights::Local => 1,
            _ => self.workers.saturating_add(self.servers),
        }
    }

    /// Returns how many workers come before the servers in the order of ranks: those that deal with them.
    pub fn masters(&self) -> u32 {
        if self.has_store() { self.groups } else { self.workers }
    }

    /// Returns what a member is. Masters come first, then servers, then the other workers.
    pub fn role(&self, rank: Rank) -> Role {
        match rank.0.checked_sub(self.masters()) {
            None => Role::Worker(rank.0),
            Some(server) if server < self.servers => Role::Server(server),
            Some(_) => Role::Worker(rank.0 - self.servers),
        }
    }

    /// Returns which worker a member is; none for a server.
    pub fn worker(&self, rank: Rank) -> Option<u32> {
        match self.role(rank) {
            Role::Worker(worker) => Some(worker),
            Role::Server(_) => None,
        }
    }

    /// Returns the names of what the members are, by rank. Replicas of one process have one each.
    pub fn roles(&self) -> Vec<String> {
        let count = self.workers.saturating_add(self.servers);
        let role = |rank| match self.role(Rank(rank)) {
            Role::Worker(worker) => format!("worker {worker}"),
            Role::Server(server) => format!("server {server}"),
        };
        (0..count).map(role).collect()
    }

    /// Returns which member a worker is.
    pub fn rank_of(&self, worker: u32) -> Rank {
        let is_behind = worker >= self.masters();
        Rank(if is_behind { worker.saturating_add(self.servers) } else { worker })
    }

    /// Returns the number of a worker's group.
    pub fn client_of(&self, worker: u32) -> u32 {
        worker % self.groups.max(1)
    }

    /// Returns the members of a worker's group, its master first.
    pub fn group_of(&self, worker: u32) -> Vec<Rank> {
        let groups = self.groups.max(1);
        let of_group = (self.client_of(worker)..self.workers).step_by(groups as usize);
        of_group.map(|worker| self.rank_of(worker)).collect()
    }

    /// Returns the part of the plan that a member runs; where a store's servers are in the plan's place for one, part 1 on is theirs.
    pub fn part(&self, rank: Rank) -> usize {
        // fits: members are few
        match self.role(rank) {
            Role::Worker(_) if self.plans_one_worker() => 0,
            Role::Worker(worker) => worker as usize,
            Role::Server(server) => (self.replicas() + server) as usize,
        }
    }

    /// Returns, by part of the plan, the number of its host, of those of all ranks; a store's servers, which are one part, are on none.
    pub(crate) fn of_parts(&self, hosts: &[u32]) -> Vec<u32> {
        if self.weights == Weights::Servers {
            return hosts.to_vec();
        }
        let workers = (0..self.replicas()).map(|worker| hosts[self.rank_of(worker).index()]);
        workers.chain([u32::MAX]).collect()
    }

    /// Returns, for each session that a member runs over its part of the plan, who runs which part with it. Where each worker
    /// runs a plan of its own, a server has a session for each.
    pub fn sessions(&self, rank: Rank) -> Vec<Vec<Rank>> {
        let servers = self.workers..self.workers + self.servers;
        if !self.plans_one_worker() {
            return vec![(0..servers.end).map(Rank).collect()];
        }
        let session = |worker: u32| [worker].into_iter().chain(servers.clone()).map(Rank).collect();
        match self.role(rank) {
            Role::Worker(worker) => vec![session(worker)],
            Role::Server(_) => (0..self.workers).map(session).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClientConfig, tests::config};
    use crate::strategy::Strategy;

    fn grouped(strategy: Strategy, workers: u32, clients: u32, servers: u32) -> Topology {
        let clients = ClientConfig { clients: Some(clients), ..ClientConfig::default() };
        Topology::of(&TrainConfig { strategy, workers, servers, clients, ..config() })
    }

    #[test]
    fn masters_come_first_then_servers_then_the_others() {
        let topology = grouped(Strategy::MpiSgd, 6, 2, 3);
        let roles: Vec<Role> =
            (0..topology.world()).map(|rank| topology.role(Rank(rank))).collect();
        let (worker, server) = (Role::Worker, Role::Server);
        let masters = [worker(0), worker(1), server(0), server(1), server(2)];
        assert_eq!(roles, [&masters[..], &[2, 3, 4, 5].map(worker)].concat());
        for w in 0..6 {
            assert_eq!(topology.role(topology.rank_of(w)), worker(w));
        }
        assert_eq!(topology.group_of(3), [1, 6, 8].map(Rank));
        assert_eq!(topology.group_of(0), [0, 5, 7].map(Rank));
    }

    #[test]
    fn without_servers_all_workers_are_one_group() {
        let topology = grouped(Strategy::MpiSgd, 3, 1, 0);
        assert_eq!((topology.world(), topology.sharing()), (3, Sharing::Own { clients: 1 }));
        // servers are for others
        let all = TrainConfig { strategy: Strategy::AllReduce, workers: 3, ..config() };
        let topology = Topology::of(&all);
        assert_eq!((topology.world(), topology.sharing()), (3, Sharing::Own { clients: 1 }));
        assert_eq!(topology.group_of(2), [0, 1, 2].map(Rank));
    }

    #[test]
    fn clients_of_one_are_workers_of_a_store() {
        assert_eq!(grouped(Strategy::MpiSgd, 4, 4, 2).sharing(), Sharing::All);
        assert_eq!(grouped(Strategy::MpiSgd, 4, 2, 2).sharing(), Sharing::Clients { clients: 2 });
        assert_eq!(grouped(Strategy::MpiEsgd, 4, 2, 2).sharing(), Sharing::Own { clients: 2 });
    }

    #[test]
    fn averages_are_as_far_as_the_paper_goes_unless_told() {
        let found = grouped(Strategy::MpiEsgd, 6, 3, 1).averaging;
        assert_eq!(found, Some(Averaging { interval: 64, alpha: 0.9 / 3.0 }));
        let dist = TrainConfig { strategy: Strategy::DistEsgd, workers: 2, ..config() };
        let alpha = Topology::of(&dist).averaging.map(|averaging| averaging.alpha);
        assert_eq!(alpha, Some(0.45));
        assert_eq!(grouped(Strategy::MpiSgd, 6, 3, 1).averaging, None);
    }

    #[test]
    fn synchronous_members_share_one_plan() {
        let topology = Topology::of(&TrainConfig { servers: 3, ..config() });
        let all: Vec<Rank> = (0..5).map(Rank).collect();
        assert_eq!((topology.part(Rank(3)), topology.sessions(Rank(3))), (3, vec![all]));
        assert_eq!(topology.replicas(), 2);
    }

    #[test]
    fn without_servers_every_worker_holds_a_share() {
        let topology = Topology::of(&TrainConfig { servers: 0, workers: 3, ..config() });
        assert_eq!(topology.cluster(), Cluster::Colocated { workers: 3 });
        assert_eq!((topology.world(), topology.sharing()), (3, Sharing::All));
        assert_eq!(topology.roles(), ["worker 0", "worker 1", "worker 2"]);
    }

    #[test]
    fn asynchronous_workers_meet_every_server_in_a_session_of_their_own() {
        let topology = Topology::of(&TrainConfig { servers: 3, asynchronous: true, ..config() });
        let session = |worker: u32| [worker, 2, 3, 4].map(Rank).to_vec();
        assert_eq!((topology.part(Rank(1)), topology.sessions(Rank(1))), (0, vec![session(1)]));
        let server = (topology.part(Rank(4)), topology.sessions(Rank(4)));
        assert_eq!(server, (3, vec![session(0), session(1)]));
        assert_eq!(topology.replicas(), 1);
        assert_eq!(topology.roles()[4], "server 2");
    }

    #[test]
    fn a_strategy_is_what_the_papers_say() {
        use Pace::{Asynchronous, Synchronous};
        let free = Asynchronous { max_delay: None };
        for (strategy, weights, pace, has_store, plans_one) in [
            (Strategy::Local, Weights::Local, Synchronous, false, false),
            (Strategy::Ps, Weights::Servers, Synchronous, false, false),
            (Strategy::DistSgd, Weights::Store, Synchronous, true, false),
            (Strategy::DistAsgd, Weights::Store, free, true, true),
            (Strategy::DistEsgd, Weights::Replicated, free, true, false),
            (Strategy::AllReduce, Weights::Replicated, Synchronous, false, false),
            (Strategy::MpiSgd, Weights::Store, Synchronous, true, false),
            (Strategy::MpiAsgd, Weights::Store, free, true, false),
            (Strategy::MpiEsgd, Weights::Replicated, Synchronous, true, false),
        ] {
            let found = Topology::of(&TrainConfig { strategy, ..config() });
            let name = strategy.name();
            assert_eq!((found.weights, found.pace), (weights, pace), "{name}");
            assert_eq!(
                (found.has_store(), found.plans_one_worker()),
                (has_store, plans_one),
                "{name}"
            );
        }
    }
}
