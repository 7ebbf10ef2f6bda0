//! The strategies by name: a row each, from which all else follows that is said of one. [`Topology`](crate::Topology) adds
//! the numbers of a job.

use serde::{Deserialize, Serialize};

use crate::topology::Weights;

/// A way of training (`--strategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One process, no communication; `workers` replicas are computed one after another.
    Local,
    /// Variables on servers as graph partitions, worker replicas (Xue et al.).
    Ps,
    /// Variables in a key-value store: workers push gradients and pull weights, servers update once a step
    /// (ps-lite; Li et al.).
    DistSgd,
    /// The same, where servers update with every gradient that comes.
    DistAsgd,
    /// Each worker trains weights of its own, and every so many steps they and a centre in the store move
    /// towards each other (elastic averaging: Zhang et al. 2015).
    DistEsgd,
    /// Each worker has the weights; gradients are summed over all, and everybody updates alike.
    #[serde(rename = "allreduce")]
    AllReduce,
    /// As [`Strategy::DistSgd`], where a worker of the store is a client, a group of workers that sum
    /// their gradients among themselves (Mamidala et al.).
    MpiSgd,
    /// As [`Strategy::DistAsgd`], so.
    MpiAsgd,
    /// As [`Strategy::DistEsgd`], so.
    MpiEsgd,
}

/// What is said of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StrategyRow {
    /// As `--strategy` spells it.
    pub(crate) name: &'static str,
    /// Where the weights are. Groups of a store without servers have them themselves.
    pub(crate) weights: Weights,
    pub(crate) grouping: Grouping,
    pub(crate) pacing: Pacing,
    /// Weights are averaged, not gradients.
    pub(crate) averages: bool,
}

/// Who all-reduces gradients with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// Each worker is for itself.
    Alone,
    /// All workers are one group.
    All,
    /// As many groups as `--clients` says.
    Clients,
}

/// When workers, or groups, wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pacing {
    Together,
    /// `--async` says.
    Asked,
    /// Each at its own pace, within `--max-delay`.
    Bounded,
    /// Each at its own pace.
    Free,
}

impl Strategy {
    /// All of them, in the order in which help lists them.
    pub const ALL: [Strategy; 9] = [
        Strategy::Local,
        Strategy::Ps,
        Strategy::DistSgd,
        Strategy::DistAsgd,
        Strategy::DistEsgd,
        Strategy::AllReduce,
        Strategy::MpiSgd,
        Strategy::MpiAsgd,
        Strategy::MpiEsgd,
    ];

    #[rustfmt::skip]
    pub(crate) const fn row(self) -> StrategyRow {
        use {Grouping::*, Pacing::*, Weights::*};
        match self {
            Strategy::Local => row("local", Local, Alone, Together),
            Strategy::Ps => row("ps", Servers, Alone, Asked),
            Strategy::DistSgd => row("dist-sgd", Store, Alone, Together),
            Strategy::DistAsgd => row("dist-asgd", Store, Alone, Bounded),
            Strategy::DistEsgd => row("dist-esgd", Replicated, Alone, Free).averages(),
            Strategy::AllReduce => row("allreduce", Replicated, All, Together),
            Strategy::MpiSgd => row("mpi-sgd", Store, Clients, Together),
            Strategy::MpiAsgd => row("mpi-asgd", Store, Clients, Bounded),
            Strategy::MpiEsgd => row("mpi-esgd", Replicated, Clients, Free).averages(),
        }
    }

    /// As `--strategy` spells it.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The strategy of this name.
    pub fn named(name: &str) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name() == name)
    }

    /// True if workers may form groups.
    pub fn has_groups(self) -> bool {
        self.row().grouping != Grouping::Alone
    }

    /// True if weights are averaged, not gradients.
    pub fn is_averaging(self) -> bool {
        self.row().averages
    }
}

const fn row(
    name: &'static str,
    weights: Weights,
    grouping: Grouping,
    pacing: Pacing,
) -> StrategyRow {
    StrategyRow { name, weights, grouping, pacing, averages: false }
}

impl StrategyRow {
    const fn averages(self) -> StrategyRow {
        StrategyRow { averages: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_are_written() {
        for strategy in Strategy::ALL {
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
            assert_eq!(Strategy::named(strategy.name()), Some(strategy));
        }
        assert_eq!(Strategy::named("gossip"), None);
    }
}
