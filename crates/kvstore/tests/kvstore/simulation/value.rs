//! Values as symbols: what was folded into them, by whom and when.

use tensorwire_kvstore::ShardKey;

/// A worker's push of a round; round 0 is a first value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gradient {
    pub(crate) worker: usize,
    pub(crate) shard: ShardKey,
    pub(crate) round: u64,
}

/// What weights hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) first: Option<Gradient>,
    /// With the version that each made.
    pub(crate) folded: Vec<(u64, Gradient)>,
}

impl Value {
    pub(crate) fn version(&self) -> u64 {
        self.folded.last().map_or(0, |(version, _)| *version)
    }

    /// How many rounds of this worker are in.
    pub(crate) fn rounds(&self, worker: usize) -> u64 {
        self.folded.iter().filter(|(_, gradient)| gradient.worker == worker).count() as u64
    }

    /// Folds the next version; refuses what is doubled, lost, foreign or out of order.
    pub(crate) fn apply(&mut self, shard: ShardKey, gradients: &[Gradient]) -> Result<(), String> {
        if self.first.is_none() {
            return Err(format!("shard {} is folded before it has a first value", shard.0));
        }
        let version = self.version() + 1;
        for gradient in gradients {
            let Gradient { worker, shard: of, round } = *gradient;
            let expected = self.rounds(worker) + 1;
            if of != shard || round != expected {
                let found = format!("version {version} of shard {} folds {gradient:?}", shard.0);
                return Err(format!("{found}, where round {expected} is due"));
            }
            self.folded.push((version, *gradient));
        }
        Ok(())
    }
}
