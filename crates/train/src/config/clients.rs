//! Workers in groups (Mamidala et al.): which process is what, whose weights are where, and how often they meet.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tensorwire_collectives::{Algorithm, GroupOptions};
use tensorwire_graph::AllReduceBy;

use crate::group::link_cost;

use crate::strategy::{Grouping, Pacing, Strategy, StrategyRow};

use super::{
    ConfigError, CudaLibraries, DeviceChoice, Exchange, SendOrder, TrainConfig, Transport,
    TunedLink, TunedRow,
};

/// Steps between two meetings of a client with the centre, where nothing else is said: the paper's.
const INTERVAL: u64 = 64;
/// β of Zhang et al. 2015 §5: all clients together move the centre by this much of the way to their mean, so that
/// each has α = β/clients.
const BETA: f64 = 0.9;

/// Who all-reduces gradients within a group of workers (`--collectives`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectivesChoice {
    /// This program.
    #[default]
    Own,
    /// NCCL, among the GPUs of the workers, over connections of its own.
    Nccl,
}

/// Bytes that a group has posted before what the next step needs later posts more: what it needs first waits for no more than
/// these where it comes last. 1 Gb/s carries them in 17 ms.
const POSTED_BYTES_MAX: usize = 2 << 20;

/// Bytes of small vectors that NCCL reduces at once: as PyTorch's first bucket.
const NCCL_TOGETHER: usize = 1 << 20;

/// What only groups of workers, and weights that are averaged, can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientConfig {
    /// Groups that reduce their gradients among themselves (`mpi-…`); none: one of all workers.
    pub clients: Option<u32>,
    /// Steps between two exchanges with the centre (`…-esgd`).
    pub interval: Option<u64>,
    /// How far a client and the centre go towards each other then.
    pub alpha: Option<f64>,
    /// Who all-reduces gradients.
    #[serde(default)]
    pub collectives: CollectivesChoice,
    /// Gradients are reduced in the order of ranks, so that every algorithm has the same bits.
    pub deterministic: bool,
    /// How gradients are reduced; none: what the table, or a model of the transport, has as fastest for their size.
    pub algorithm: Option<Algorithm>,
    /// What was measured, where no algorithm is named; for a transport without a row, [`tensorwire_collectives::LinkCost`] chooses.
    pub table: Vec<TunedRow>,
    /// By which the model chooses, where they are of the job's transport.
    #[serde(default)]
    pub links: Vec<TunedLink>,
    /// Has a group that spans hosts measure the way between them when it is made, unless `links` has it, and its first worker keep
    /// it in this file. What is measured differs from time to time, and with it the algorithm and the order of sums.
    #[serde(default)]
    pub measured_link: Option<PathBuf>,
}

/// Weights of its own for each client, and a centre that all are drawn to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Averaging {
    pub interval: u64,
    pub alpha: f64,
}

impl ClientConfig {
    /// How weights are averaged by a strategy in so many groups, if they are.
    pub(crate) fn averaging(&self, strategy: Strategy, groups: u32) -> Option<Averaging> {
        let interval = self.interval.unwrap_or(INTERVAL);
        let alpha = self.alpha.unwrap_or(BETA / f64::from(groups.max(1)));
        strategy.is_averaging().then_some(Averaging { interval, alpha })
    }
}

impl TrainConfig {
    /// What a group is told that travels so.
    pub(crate) fn group_options(&self, transport: Transport) -> GroupOptions {
        let ClientConfig { algorithm, deterministic, ref table, .. } = self.clients;
        let table = TunedRow::table(table, transport);
        let measured = TunedLink::link(&self.clients.links, transport, self.spread());
        let link = measured.unwrap_or_else(|| link_cost(transport, self.spread()));
        // those who share memory read what is there
        let is_sent = transport != Transport::Shm && self.send_order == SendOrder::Priority;
        let posted_bytes_max = is_sent.then_some(POSTED_BYTES_MAX);
        let others = GroupOptions::default();
        GroupOptions { algorithm, table, link, deterministic, posted_bytes_max, ..others }
    }

    /// Where a group is to keep the way between hosts over this transport, if it is to measure it.
    pub(crate) fn measured_link(&self, transport: Transport) -> Option<&Path> {
        let known = TunedLink::link(&self.clients.links, transport, self.spread());
        self.clients.measured_link.as_deref().filter(|_| known.is_none())
    }

    /// Who does a plan's all-reduces, if that is the GPUs of groups by themselves.
    pub(crate) fn all_reduce_by_nccl(&self) -> Option<AllReduceBy> {
        let is_nccl = self.clients.collectives == CollectivesChoice::Nccl;
        let is_used = is_nccl && self.topology().reduces_apart_from_store();
        is_used.then_some(AllReduceBy::Devices { together: NCCL_TOGETHER })
    }

    /// Refuses NCCL where it reduces nothing, and what is of our own collectives alone.
    fn check_nccl(&self) -> Result<(), ConfigError> {
        let nccl = "--collectives nccl";
        let ClientConfig { deterministic, algorithm, table, links, .. } = &self.clients;
        let topology = self.topology();
        if !self.strategy.has_groups()
            || topology.is_grouped() && !topology.reduces_apart_from_store()
        {
            let with = "allreduce, mpi-esgd, or mpi-sgd with --servers 0";
            return Err(ConfigError::GroupOption { option: nccl, with });
        }
        if self.device == DeviceChoice::Cpu {
            return Err(ConfigError::Unused { option: nccl, used_by: "--device cuda" });
        }
        if self.cuda_libraries == CudaLibraries::Unused {
            return Err(ConfigError::NoNccl);
        }
        let own = [
            ("--algorithm", algorithm.is_some()),
            ("--measure-link", self.clients.measured_link.is_some()),
            ("--table", !table.is_empty() || !links.is_empty()),
            ("--deterministic", *deterministic),
        ];
        match own.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(ConfigError::Unused {
                option,
                used_by: "--collectives own: NCCL chooses itself",
            }),
            None => Ok(()),
        }
    }

    /// Checks what is of groups and averages alone.
    pub(super) fn check_clients(&self) -> Result<(), ConfigError> {
        let ClientConfig {
            clients, interval, alpha, collectives, deterministic, algorithm, ..
        } = &self.clients;
        let has_table = !self.clients.table.is_empty() || !self.clients.links.is_empty();
        let strategy = self.strategy;
        let (mpi, averaging) = ("mpi-sgd, mpi-asgd or mpi-esgd", "dist-esgd or mpi-esgd");
        let any = "allreduce, mpi-sgd, mpi-asgd or mpi-esgd";
        let StrategyRow { grouping, pacing, .. } = strategy.row();
        let is_mpi = grouping == Grouping::Clients;
        let is_alone =
            grouping == Grouping::Alone && matches!(pacing, Pacing::Bounded | Pacing::Free);
        let options = [
            ("--clients", clients.is_some(), is_mpi, mpi),
            ("--interval", interval.is_some(), strategy.is_averaging(), averaging),
            ("--alpha", alpha.is_some(), strategy.is_averaging(), averaging),
            ("--algorithm", algorithm.is_some(), strategy.has_groups(), any),
            ("--measure-link", self.clients.measured_link.is_some(), strategy.has_groups(), any),
            ("--table", has_table, strategy.has_groups(), any),
            // what else is reduced at once is reduced in order
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
        let topology = self.topology();
        let (clients, workers) = (topology.groups, self.workers);
        if is_mpi && !workers.is_multiple_of(clients) {
            return Err(ConfigError::UnevenClients { clients, workers });
        }
        if is_mpi && !topology.has_store() && (clients > 1 || strategy != Strategy::MpiSgd) {
            return Err(ConfigError::NoServers { strategy: strategy.name() });
        }
        if *collectives == CollectivesChoice::Nccl {
            self.check_nccl()?;
        }
        match self.exchange {
            Exchange::ZeroCopy => Ok(()),
            // what devices reduce crosses over edges
            Exchange::Write
                if self.device != DeviceChoice::Cpu && topology.reduces_apart_from_store() =>
            {
                Ok(())
            }
            found if strategy.has_groups() => Err(ConfigError::GroupExchange { found }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use tensorwire_collectives::{LinkCost, Row};

    fn grouped(strategy: Strategy, workers: u32, clients: u32, servers: u32) -> TrainConfig {
        let clients = ClientConfig { clients: Some(clients), ..ClientConfig::default() };
        TrainConfig { strategy, workers, servers, clients, ..config() }
    }

    #[test]
    fn a_group_is_told_the_rows_of_its_transport() {
        let row = Row { world: 2, hosts: None, from_bytes: 0, algorithm: Algorithm::Ring };
        let table = vec![TunedRow { transport: Transport::Tcp, row }];
        let measured = LinkCost { latency_ns: 7, ..LinkCost::LOOPBACK };
        let of_hosts = TunedLink { transport: Transport::Tcp, several_hosts: true, link: measured };
        let links = vec![of_hosts.clone()];
        let clients = ClientConfig { table, links, ..ClientConfig::default() };
        let config =
            TrainConfig { strategy: Strategy::AllReduce, clients, ..super::tests::config() };
        assert!(config.check().is_ok());
        let rows = |transport| config.group_options(transport).table.map(|table| table.rows);
        assert_eq!((rows(Transport::Tcp), rows(Transport::Shm)), (Some(vec![row]), None));
        let link = |transport| config.group_options(transport).link;
        assert_eq!(link(Transport::Verbs), LinkCost::RDMA);
        assert_eq!(link(Transport::Tcp), LinkCost::LOOPBACK, "all are on one host");
        // what is known is not measured again
        let file = Some(PathBuf::from("/table"));
        let known = |links: Vec<TunedLink>| {
            let clients = ClientConfig { links, measured_link: file.clone(), ..Default::default() };
            let config = TrainConfig { clients, ..config.clone() };
            config.measured_link(Transport::Tcp).is_none()
        };
        assert_eq!(
            (config.measured_link(Transport::Tcp), known(vec![of_hosts.clone()])),
            (None, false)
        );
        let here = TunedLink { several_hosts: false, ..of_hosts };
        assert!(known(vec![here.clone()]));
        let clients = ClientConfig { links: vec![here], ..ClientConfig::default() };
        let config = TrainConfig { clients, ..config.clone() };
        assert_eq!(config.group_options(Transport::Tcp).link, measured);
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
