//! Who writes what of a job's checkpoints.

use tensorwire_base::Rank;
use tensorwire_graph::Plan;
use tensorwire_launch::Role;
use tensorwire_nn::Program;

use super::Prepared;
use crate::checkpoint::{self, CheckpointState, DataPosition, Evaluated, Keeper};
use crate::topology::Topology;

impl Prepared {
    /// Puts checkpoints together, if there are to be any.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        let Prepared { config, topology, program, shape, .. } = self;
        let checkpoint = config.checkpoint.as_ref()?;
        let sharing = topology.sharing();
        let is_first = |name: &&String| checkpoint::plain_name(name, sharing) == name.as_str();
        let mut slots: Vec<String> = program.slots.iter().filter(is_first).cloned().collect();
        slots.sort();
        let job = CheckpointState {
            version: env!("CARGO_PKG_VERSION").to_string(),
            step: 0,
            position: DataPosition { epoch: 0, step: 0, steps_per_epoch: shape.steps_per_epoch },
            seed: config.seed,
            model: config.model.clone(),
            data: config.data.clone(),
            strategy: config.strategy,
            workers: config.workers,
            servers: topology.servers,
            batch: config.batch,
            accumulate: config.accumulate,
            best: self.resumed.as_ref().and_then(|resumed| resumed.state.best.clone()),
            slots,
            files: std::collections::BTreeMap::new(),
        };
        let ranks = (0..topology.world()).map(Rank);
        let shards = ranks.filter_map(|rank| shard(program, &self.plan, topology, rank)).collect();
        let evaluated = Evaluated { every: config.evaluate_every, steps: shape.steps };
        let started = Keeper::start(checkpoint, shards, job, evaluated);
        started.inspect_err(|error| tracing::warn!("no checkpoints: {error}")).ok()
    }
}

/// The name of the file that a member writes of each checkpoint, if it does.
pub(super) fn shard(
    program: &Program,
    plan: &Plan,
    topology: &Topology,
    rank: Rank,
) -> Option<String> {
    let role = topology.role(rank);
    let is_owner = match (topology.has_store(), role) {
        (true, Role::Server(_)) => !topology.reduces_in_store,
        // averages of weights
        (true, Role::Worker(worker)) if worker > 0 => false,
        // where each has all, the first one's are everybody's
        (false, Role::Worker(worker)) if topology.is_replicated() && worker > 0 => false,
        _ => {
            let part = &plan.parts[topology.part(rank)].graph;
            !checkpoint::own_variables(part, program, topology.sharing()).is_empty()
        }
    };
    is_owner.then(|| checkpoint::shard_file(role))
}
