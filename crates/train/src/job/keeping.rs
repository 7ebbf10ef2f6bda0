//! Who writes what of a job's checkpoints.

use tensorwire_base::Rank;
use tensorwire_launch::Role;

use super::{Prepared, owns};
use crate::checkpoint::{self, CheckpointState, DataPosition, Keeper};

impl Prepared {
    /// Puts checkpoints together, if there are to be any.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        let Prepared { config, topology, program, shape, .. } = self;
        let checkpoint = config.checkpoint.as_ref()?;
        let mut slots: Vec<String> = program.slots.clone();
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
            slots,
            files: std::collections::BTreeMap::new(),
        };
        let ranks = (0..topology.world()).map(Rank).filter(|rank| self.owns(*rank));
        let shards = ranks.map(|rank| checkpoint::shard_file(topology.role(rank))).collect();
        let started = Keeper::start(checkpoint, shards, job);
        started.inspect_err(|error| tracing::warn!("no checkpoints: {error}")).ok()
    }

    /// True if a member writes a file of each checkpoint.
    fn owns(&self, rank: Rank) -> bool {
        let role = self.topology.role(rank);
        match self.topology.has_store() {
            true => matches!(role, Role::Server(_)),
            false => {
                let part = &self.plan.parts[self.topology.part(rank)];
                owns(&part.graph, &self.program, &self.topology, role)
            }
        }
    }
}
