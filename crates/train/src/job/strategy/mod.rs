//! The strategies: what each plans, what a member connects, and what it does around the one loop of [`super::worker`]. One
//! file each; a topology says which.

mod averaging;
mod ends;
mod local;
mod replicated;
mod servers;
mod store;
pub(super) mod values;

use tensorwire_graph::{PlanOptions, SharedMemory};
use tensorwire_launch::Member;
use tensorwire_nn::Program;

use super::worker::Worker;
use super::{Part, TrainError};
use crate::config::{ConfigError, TrainConfig};
use crate::report::TrainReport;
use crate::topology::{Topology, Weights};

pub(super) use local::open as open_local;

/// A way of training on several processes, or in one.
pub(super) trait Strategy {
    /// Returns how the graph is planned.
    fn plan_options(&self, config: &TrainConfig, topology: &Topology) -> PlanOptions {
        let options = config.exchange.plan_options(config.transport, &config.host_numbers());
        options.shared_by(topology)
    }

    /// Checks what can be known of a plan before anything is started.
    fn check(
        &self,
        _config: &TrainConfig,
        _plan: &tensorwire_graph::Plan,
    ) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the bytes that processes of this host take beside their parts of the plan.
    fn bytes_beside_plan(
        &self,
        _config: &TrainConfig,
        _topology: &Topology,
        _program: &Program,
    ) -> u64 {
        0
    }

    /// Connects a member to those it trains with. All members do so at once.
    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError>;
}

/// What a connected member does.
pub(super) enum Connected<'a> {
    /// Makes steps: a worker, or a server that is a part of the graph.
    Steps(Box<Worker<'a>>),
    /// Serves until all workers are done.
    Serves(Box<dyn FnOnce() -> Result<TrainReport, TrainError> + 'a>),
}

/// Returns the strategy of a topology.
pub(super) fn strategy(topology: &Topology) -> &'static dyn Strategy {
    match topology.weights {
        Weights::Local => &local::Local,
        Weights::Servers => &servers::Servers,
        _ if topology.reduces_in_store => &store::Store,
        Weights::Store => &store::Store,
        Weights::Replicated => &replicated::Replicated,
    }
}

/// What is pulled, or all-reduced, lies in the worker's own memory.
fn pulled_into_own_memory(options: PlanOptions) -> PlanOptions {
    PlanOptions { shared_memory: SharedMemory::Unused, ..options }
}

trait SharedBy {
    fn shared_by(self, topology: &Topology) -> Self;
}

impl SharedBy for PlanOptions {
    /// Where each trains at its own pace, others change a variable at any time. Where one plan is that of all workers, it says
    /// nothing of who is on whose host.
    fn shared_by(self, topology: &Topology) -> PlanOptions {
        let shared_memory = match self.shared_memory {
            SharedMemory::UsedOnHosts(_) if topology.plans_one_worker() => SharedMemory::None,
            shared_memory => shared_memory,
        };
        PlanOptions { variables_shared: topology.is_asynchronous(), shared_memory, ..self }
    }
}
