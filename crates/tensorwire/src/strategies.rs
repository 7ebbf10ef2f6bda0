//! The strategies as a program names them: each a value with its numbers.

use tensorwire_train::{ClientConfig, StoreConfig, Strategy, TrainConfig};

/// A way of training; one of the types of [`crate::strategies`].
pub trait IntoStrategy {
    /// Writes it into a job's configuration.
    fn configure(self, config: &mut TrainConfig);
}

/// One process, nothing crosses: `replicas` copies of the model, each with a batch of its own, are computed one after another. Gives
/// the bits of a synchronous job of as many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    pub replicas: u32,
}

/// Variables on servers that are parts of the graph, a replica of the model at each worker (Xue et al. 2019, §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterServers {
    pub workers: u32,
    /// None: every worker is a server, too, of its share of the variables.
    pub servers: u32,
}

/// As [`ParameterServers`], each worker at its own pace: a server updates with every gradient that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncParameterServers {
    pub workers: u32,
    pub servers: u32,
}

/// Variables in a key-value store: workers push gradients and pull weights, servers update once a step (ps-lite; Li et al.).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    pub workers: u32,
    pub servers: u32,
    /// Snapshots, elasticity.
    pub options: StoreConfig,
}

/// As [`Store`], where servers update with every gradient that comes; the fastest worker is at most
/// [`StoreConfig::max_delay`] steps ahead of the slowest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsyncStore {
    pub workers: u32,
    pub servers: u32,
    pub options: StoreConfig,
}

/// Each worker has the weights; gradients are all-reduced, and everybody updates alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    pub workers: u32,
    /// Sums are made in the order of ranks, so that every algorithm and transport gives the same bits.
    pub deterministic: bool,
}

/// Weights of each worker's own, and a centre in a store that they and it are drawn to every `interval` steps (Zhang et al. 2015;
/// Mamidala et al. §5).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ElasticAveraging {
    pub workers: u32,
    pub servers: u32,
    /// None: 64 steps.
    pub interval: Option<u64>,
    /// How far a worker and the centre go towards each other; none: 0.9 by the number of workers.
    pub alpha: Option<f64>,
}

/// `groups` of workers that all-reduce their gradients among themselves; a group's master alone deals with the store
/// (Mamidala et al. §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    pub workers: u32,
    pub servers: u32,
    pub groups: u32,
}

/// As [`Groups`], where servers update with every gradient that comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncGroups {
    pub workers: u32,
    pub servers: u32,
    pub groups: u32,
    /// How many steps the fastest group may be ahead of the slowest; none: any.
    pub max_delay: Option<u64>,
}

/// As [`ElasticAveraging`], where a worker of the store is a group of [`Groups`]: weights of each group's own (Mamidala et al. §5).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ElasticGroups {
    pub workers: u32,
    pub servers: u32,
    pub groups: u32,
    /// None: 64 steps.
    pub interval: Option<u64>,
    /// How far a group and the centre go towards each other; none: 0.9 by the number of groups.
    pub alpha: Option<f64>,
}

impl IntoStrategy for Local {
    fn configure(self, config: &mut TrainConfig) {
        (config.strategy, config.workers) = (Strategy::Local, self.replicas);
    }
}

impl IntoStrategy for ParameterServers {
    fn configure(self, config: &mut TrainConfig) {
        let ParameterServers { workers, servers } = self;
        (config.strategy, config.workers, config.servers) = (Strategy::Ps, workers, servers);
        config.asynchronous = false;
    }
}

impl IntoStrategy for AsyncParameterServers {
    fn configure(self, config: &mut TrainConfig) {
        let AsyncParameterServers { workers, servers } = self;
        ParameterServers { workers, servers }.configure(config);
        config.asynchronous = true;
    }
}

impl IntoStrategy for Store {
    fn configure(self, config: &mut TrainConfig) {
        (config.strategy, config.store) = (Strategy::DistSgd, self.options);
        (config.workers, config.servers) = (self.workers, self.servers);
    }
}

impl IntoStrategy for AsyncStore {
    fn configure(self, config: &mut TrainConfig) {
        (config.strategy, config.store) = (Strategy::DistAsgd, self.options);
        (config.workers, config.servers) = (self.workers, self.servers);
    }
}

impl IntoStrategy for AllReduce {
    fn configure(self, config: &mut TrainConfig) {
        (config.strategy, config.workers) = (Strategy::AllReduce, self.workers);
        config.clients =
            ClientConfig { deterministic: self.deterministic, ..config.clients.clone() };
    }
}

impl IntoStrategy for ElasticAveraging {
    fn configure(self, config: &mut TrainConfig) {
        let ElasticAveraging { workers, servers, interval, alpha } = self;
        (config.strategy, config.workers, config.servers) = (Strategy::DistEsgd, workers, servers);
        config.clients = ClientConfig { interval, alpha, ..config.clients.clone() };
    }
}

impl IntoStrategy for Groups {
    fn configure(self, config: &mut TrainConfig) {
        let Groups { workers, servers, groups } = self;
        (config.strategy, config.workers, config.servers) = (Strategy::MpiSgd, workers, servers);
        config.clients = ClientConfig { clients: Some(groups), ..config.clients.clone() };
    }
}

impl IntoStrategy for AsyncGroups {
    fn configure(self, config: &mut TrainConfig) {
        let AsyncGroups { workers, servers, groups, max_delay } = self;
        Groups { workers, servers, groups }.configure(config);
        (config.strategy, config.store.max_delay) = (Strategy::MpiAsgd, max_delay);
    }
}

impl IntoStrategy for ElasticGroups {
    fn configure(self, config: &mut TrainConfig) {
        let ElasticGroups { workers, servers, groups, interval, alpha } = self;
        ElasticAveraging { workers, servers, interval, alpha }.configure(config);
        config.strategy = Strategy::MpiEsgd;
        config.clients = ClientConfig { clients: Some(groups), ..config.clients.clone() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_strategy_of_the_command_line_has_a_type_that_makes_sense_by_itself() {
        let (workers, servers, groups) = (4, 2, 2);
        let named = |strategy: &str, configure: &dyn Fn(&mut TrainConfig)| {
            let mut config = TrainConfig::default();
            configure(&mut config);
            config.check().unwrap();
            assert_eq!(config.strategy.name(), strategy);
            (config.topology().groups, config.topology().averaging.map(|found| found.interval))
        };
        named("local", &|c| Local { replicas: workers }.configure(c));
        named("ps", &|c| ParameterServers { workers, servers }.configure(c));
        named("ps", &|c| AsyncParameterServers { workers, servers }.configure(c));
        named("dist-sgd", &|c| Store { workers, servers, ..Store::default() }.configure(c));
        named("dist-asgd", &|c| {
            AsyncStore { workers, servers, ..AsyncStore::default() }.configure(c)
        });
        named("allreduce", &|c| AllReduce { workers, deterministic: true }.configure(c));
        let averaging = ElasticAveraging { workers, servers, ..ElasticAveraging::default() };
        let alone = named("dist-esgd", &|c| averaging.configure(c));
        assert_eq!(alone.1, Some(64));
        let of_two = [
            named("mpi-sgd", &|c| Groups { workers, servers, groups }.configure(c)),
            named("mpi-asgd", &|c| {
                AsyncGroups { workers, servers, groups, max_delay: Some(3) }.configure(c);
            }),
        ];
        assert_eq!(of_two, [(groups, None); 2]);
        let elastic = ElasticGroups { workers, servers, groups, ..ElasticGroups::default() };
        assert_eq!(named("mpi-esgd", &|c| elastic.configure(c)), (groups, Some(64)));
    }
}
