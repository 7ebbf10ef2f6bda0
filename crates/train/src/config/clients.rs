//! Workers in groups (Mamidala et al.): which process is what, whose weights are where, and how often they meet.

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_collectives::{Algorithm, GroupOptions};
use tensorwire_nn::Sharing;

use super::{ConfigError, Exchange, Strategy, TrainConfig, Transport, TunedRow};

/// Steps between two meetings of a client with the centre, where nothing else is said: the paper's.
const INTERVAL: u64 = 64;
/// β of Zhang et al. 2015 §5: all clients together move the centre by this much of the way to their mean, so that
/// each has α = β/clients.
const BETA: f64 = 0.9;

/// What only groups of workers, and weights that are averaged, can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientConfig {
    /// Groups that fold their gradients among themselves (`mpi-…`); none: one of all workers.
    pub clients: Option<u32>,
    /// Steps between two exchanges with the centre (`…-esgd`).
    pub interval: Option<u64>,
    /// How far a client and the centre go towards each other then.
    pub alpha: Option<f64>,
    /// Gradients are folded in the order of ranks, so that every algorithm has the same bits.
    pub deterministic: bool,
    /// How gradients are folded; none: what was measured to be fastest.
    pub algorithm: Option<Algorithm>,
    /// What was measured, where no algorithm is named; for a transport without a row, what comes with the program.
    pub table: Vec<TunedRow>,
}

/// What a process of a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    Worker(u32),
    Server(u32),
}

/// Weights of its own for each client, and a centre that all are drawn to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Averaging {
    pub interval: u64,
    pub alpha: f64,
}

impl TrainConfig {
    /// Groups of workers that fold their gradients among themselves. Worker w is in client w mod this; a client's
    /// first worker is its master, who alone has to do with servers.
    pub fn clients(&self) -> u32 {
        match self.strategy {
            Strategy::AllReduce => 1,
            strategy if strategy.has_clients() => self.clients.clients.unwrap_or(1),
            _ => self.workers,
        }
    }

    /// Do workers fold their gradients among themselves?
    pub fn is_grouped(&self) -> bool {
        self.strategy.has_clients() && self.clients() < self.workers
    }

    /// Is there a key-value store?
    pub fn has_store(&self) -> bool {
        match self.strategy {
            Strategy::Local | Strategy::Ps | Strategy::AllReduce => false,
            Strategy::DistSgd | Strategy::DistAsgd | Strategy::DistEsgd => true,
            Strategy::MpiSgd | Strategy::MpiAsgd | Strategy::MpiEsgd => self.servers > 0,
        }
    }

    /// How weights are averaged, if they are.
    pub fn averaging(&self) -> Option<Averaging> {
        let interval = self.clients.interval.unwrap_or(INTERVAL);
        let alpha = self.clients.alpha.unwrap_or(BETA / f64::from(self.clients().max(1)));
        self.strategy.is_averaging().then_some(Averaging { interval, alpha })
    }

    /// Has each worker weights of its own?
    pub fn has_own_weights(&self) -> bool {
        let folds_all = self.strategy.has_clients() && !self.has_store();
        folds_all || self.averaging().is_some()
    }

    /// Whose the variables of the graph are.
    pub(crate) fn sharing(&self) -> Sharing {
        let clients = self.clients();
        match (self.has_own_weights(), self.is_grouped()) {
            (true, _) => Sharing::Own { clients },
            (false, true) => Sharing::Clients { clients },
            (false, false) => Sharing::All,
        }
    }

    /// Processes that hold variables for others.
    pub fn servers_started(&self) -> u32 {
        let has_servers = self.strategy == Strategy::Ps || self.has_store();
        if has_servers { self.servers } else { 0 }
    }

    /// Workers in front of the servers, in the order of ranks: those that have to do with them.
    pub(crate) fn masters(&self) -> u32 {
        if self.has_store() { self.clients() } else { self.workers }
    }

    /// What a member is. Masters come first, then servers, then the other workers.
    pub fn seat(&self, rank: Rank) -> Seat {
        let (masters, servers) = (self.masters(), self.servers_started());
        match rank.0.checked_sub(masters) {
            None => Seat::Worker(rank.0),
            Some(server) if server < servers => Seat::Server(server),
            Some(_) => Seat::Worker(rank.0 - servers),
        }
    }

    /// Which member a worker is.
    pub fn rank_of(&self, worker: u32) -> Rank {
        let is_behind = worker >= self.masters();
        Rank(if is_behind { worker.saturating_add(self.servers_started()) } else { worker })
    }

    /// The members of a worker's client, its master first.
    pub(crate) fn client_of(&self, worker: u32) -> Vec<Rank> {
        let clients = self.clients().max(1);
        // fits: steps of a loop over u32
        (worker % clients..self.workers)
            .step_by(clients as usize)
            .map(|w| self.rank_of(w))
            .collect()
    }

    /// What a group is told that travels so.
    pub(crate) fn group_options(&self, transport: Transport) -> GroupOptions {
        let ClientConfig { algorithm, deterministic, ref table, .. } = self.clients;
        let table = TunedRow::table(table, transport);
        GroupOptions { algorithm, table, deterministic, ..GroupOptions::default() }
    }

    /// Checks what is of groups and averages alone.
    pub(super) fn check_clients(&self) -> Result<(), ConfigError> {
        let ClientConfig { clients, interval, alpha, deterministic, algorithm, table } =
            &self.clients;
        let strategy = self.strategy;
        let (mpi, averaging) = ("mpi-sgd, mpi-asgd or mpi-esgd", "dist-esgd or mpi-esgd");
        let any = "allreduce, mpi-sgd, mpi-asgd or mpi-esgd";
        let is_mpi = strategy.has_clients() && strategy != Strategy::AllReduce;
        let is_alone = matches!(strategy, Strategy::DistAsgd | Strategy::DistEsgd);
        let options = [
            ("--clients", clients.is_some(), is_mpi, mpi),
            ("--interval", interval.is_some(), strategy.is_averaging(), averaging),
            ("--alpha", alpha.is_some(), strategy.is_averaging(), averaging),
            ("--algorithm", algorithm.is_some(), strategy.has_clients(), any),
            ("--table", !table.is_empty(), strategy.has_clients(), any),
            // what else is folded at once is folded in order
            ("--deterministic", *deterministic, !is_alone, "allreduce or mpi-sgd"),
        ];
        if let Some((option, _, _, with)) =
            options.into_iter().find(|(_, given, fits, _)| *given && !fits)
        {
            return Err(ConfigError::GroupOption { option, with });
        }
        if *interval == Some(0) {
            return Err(ConfigError::Zero { option: "--interval" });
        }
        if *clients == Some(0) {
            return Err(ConfigError::Zero { option: "--clients" });
        }
        if let Some(found) = alpha.filter(|alpha| !(*alpha > 0.0 && *alpha <= 1.0)) {
            let (option, range) = ("--alpha", "above 0 and at most 1");
            return Err(ConfigError::OutOfRange { option, range, found });
        }
        let (clients, workers) = (self.clients(), self.workers);
        if is_mpi && !workers.is_multiple_of(clients) {
            return Err(ConfigError::UnevenClients { clients, workers });
        }
        if is_mpi && !self.has_store() && (clients > 1 || strategy != Strategy::MpiSgd) {
            return Err(ConfigError::NoServers { strategy: strategy.name() });
        }
        match self.exchange {
            Exchange::ZeroCopy => Ok(()),
            found if strategy.has_clients() => Err(ConfigError::GroupExchange { found }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use tensorwire_collectives::Row;

    fn grouped(strategy: Strategy, workers: u32, clients: u32, servers: u32) -> TrainConfig {
        let clients = ClientConfig { clients: Some(clients), ..ClientConfig::default() };
        TrainConfig { strategy, workers, servers, clients, ..config() }
    }

    #[test]
    fn masters_come_first_then_servers_then_the_others() {
        let config = grouped(Strategy::MpiSgd, 6, 2, 3);
        let seats: Vec<Seat> = (0..config.world()).map(|rank| config.seat(Rank(rank))).collect();
        let (worker, server) = (Seat::Worker, Seat::Server);
        let masters = [worker(0), worker(1), server(0), server(1), server(2)];
        assert_eq!(seats, [&masters[..], &[2, 3, 4, 5].map(worker)].concat());
        for w in 0..6 {
            assert_eq!(config.seat(config.rank_of(w)), worker(w));
        }
        assert_eq!(config.client_of(3), [1, 6, 8].map(Rank));
        assert_eq!(config.client_of(0), [0, 5, 7].map(Rank));
    }

    #[test]
    fn a_group_is_told_the_rows_of_its_transport() {
        let row = Row { world: 2, from_bytes: 0, algorithm: Algorithm::Ring };
        let table = vec![TunedRow { transport: Transport::Tcp, row }];
        let clients = ClientConfig { table, ..ClientConfig::default() };
        let config =
            TrainConfig { strategy: Strategy::AllReduce, clients, ..super::tests::config() };
        assert!(config.check().is_ok());
        let rows = |transport| config.group_options(transport).table.map(|table| table.rows);
        assert_eq!((rows(Transport::Tcp), rows(Transport::Shm)), (Some(vec![row]), None));
    }

    #[test]
    fn without_servers_all_workers_are_one_group() {
        let config = grouped(Strategy::MpiSgd, 3, 1, 0);
        assert!(config.check().is_ok());
        assert_eq!((config.world(), config.sharing()), (3, Sharing::Own { clients: 1 }));
        // servers are for others
        let config =
            TrainConfig { strategy: Strategy::AllReduce, workers: 3, ..super::tests::config() };
        assert_eq!((config.world(), config.sharing()), (3, Sharing::Own { clients: 1 }));
        assert_eq!(config.client_of(2), [0, 1, 2].map(Rank));
    }

    #[test]
    fn clients_of_one_are_workers_of_a_store() {
        assert_eq!(grouped(Strategy::MpiSgd, 4, 4, 2).sharing(), Sharing::All);
        assert_eq!(grouped(Strategy::MpiSgd, 4, 2, 2).sharing(), Sharing::Clients { clients: 2 });
        assert_eq!(grouped(Strategy::MpiEsgd, 4, 2, 2).sharing(), Sharing::Own { clients: 2 });
    }

    #[test]
    fn averages_are_as_far_as_the_paper_goes_unless_told() {
        let found = grouped(Strategy::MpiEsgd, 6, 3, 1).averaging();
        assert_eq!(found, Some(Averaging { interval: 64, alpha: 0.9 / 3.0 }));
        let dist = TrainConfig { strategy: Strategy::DistEsgd, workers: 2, ..config() };
        assert_eq!(dist.averaging().map(|averaging| averaging.alpha), Some(0.45));
        assert_eq!(grouped(Strategy::MpiSgd, 6, 3, 1).averaging(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let said = |config: TrainConfig| config.check().unwrap_err().to_string();
        assert!(said(grouped(Strategy::MpiSgd, 4, 3, 1)).contains("--clients 3"));
        assert!(said(grouped(Strategy::MpiSgd, 4, 2, 0)).contains("--servers 1"));
        assert!(said(grouped(Strategy::MpiEsgd, 4, 1, 0)).contains("--servers 1"));
        assert!(said(grouped(Strategy::Ps, 4, 2, 1)).contains("mpi-sgd"));
    }
}
