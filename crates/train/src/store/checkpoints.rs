//! Checkpoints of what a store's server holds: its file has the same names as that of a part of the graph, so that any
//! strategy goes on from it. Knows not when one is made.

use tensorwire_kvstore::{Keep, ShardKey, ShardSnapshot, Snapshot, StateTensor, ValueSpec};
use tensorwire_launch::{Recorder, Role};
use tensorwire_nn::{Optimizer, Variable};
use tensorwire_tensor::{DType, TensorSpec};

use super::rules::{MASTER, UPDATES};
use crate::checkpoint::{
    Captured, CheckpointFolder, Held, Resumed, Saver, ShardIndex, ShardReport, shard_file,
};
use crate::run::{MemberRecord, telling_saver};

/// A variable as a server of a store has it, or some of it.
#[derive(Clone, Debug)]
pub(crate) struct StoredShard {
    pub(crate) server: usize,
    pub(crate) key: ShardKey,
    pub(crate) variable: Variable,
    /// Of what is here.
    pub(crate) spec: ValueSpec,
    pub(crate) first_row: usize,
    /// What it is updated by; none: it keeps nothing beside it.
    pub(crate) optimizer: Option<Optimizer>,
}

/// A server's files of checkpoints, written while it serves on.
#[derive(Debug)]
pub(crate) struct CheckpointShards {
    /// None where there are to be no new ones.
    pub(crate) folder: Option<CheckpointFolder>,
    /// Who is told what became of a file: that one could not be written stops nobody.
    pub(crate) recorder: Recorder,
    /// Of all servers.
    pub(crate) shards: Vec<StoredShard>,
    /// What [`Keep::load`] reads.
    pub(crate) resumed: Option<Resumed>,
    /// Once there was one.
    pub(crate) saver: Option<Saver>,
    /// The step of the last one.
    pub(crate) saved: Option<u64>,
}

impl StoredShard {
    /// In the variable.
    fn first_element(&self) -> usize {
        self.first_row * self.spec.columns
    }

    /// The dimensions of what is here, and of the whole that it is of.
    fn dims(&self) -> (Vec<usize>, Vec<usize>) {
        let whole = self.variable.spec.dims().to_vec();
        let ValueSpec { rows, columns, .. } = self.spec;
        let here = match columns {
            _ if self.spec.elements() == self.variable.spec.elements() => whole.clone(),
            1 => vec![rows],
            _ => vec![rows, columns],
        };
        (here, whole)
    }

    fn read(&self, index: &ShardIndex) -> Result<ShardSnapshot, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let name = &self.variable.name;
        let read = |name: &str, first: usize, bytes: usize| {
            let mut into = vec![0; bytes];
            index.read(name, first, &mut into).map(|()| into).map_err(|error| text(&error))
        };
        let ValueSpec { rows, columns, .. } = self.spec;
        let dtype = self.variable.spec.dtype;
        let spec = TensorSpec::new(dtype, &[rows, columns]).map_err(|error| text(&error))?;
        let weights = read(name, self.first_element() * dtype.bytes(), spec.bytes())?;
        let slots = self.optimizer.map_or(Ok(Vec::new()), |optimizer| optimizer.slots_of(&spec));
        let mut state = Vec::new();
        for (slot, spec) in slots.map_err(|error| text(&error))? {
            // what is one number for the whole variable is the same for each shard
            let first = if spec.dims().is_empty() { 0 } else { self.first_element() };
            let bytes = read(&format!("{name}/{slot}"), first * spec.dtype.bytes(), spec.bytes())?;
            let (dtype, dims) = (spec.dtype, spec.dims().to_vec());
            state.push(StateTensor { name: slot.to_string(), dtype, dims, bytes });
        }
        if dtype == self.spec.dtype {
            return Ok(ShardSnapshot { key: self.key, spec: self.spec, weights, state });
        }
        let mut rounded = vec![0; self.spec.bytes()];
        round(&weights, &mut rounded);
        let dims = spec.dims().to_vec();
        state.push(StateTensor { name: MASTER.to_string(), dtype, dims, bytes: weights });
        Ok(ShardSnapshot { key: self.key, spec: self.spec, weights: rounded, state })
    }

    /// A value that was never changed, as the variable is.
    fn widened(&self, dtype: DType, value: Vec<u8>) -> (DType, Vec<u8>) {
        match self.variable.spec.dtype {
            own if own == dtype => (dtype, value),
            own => (own, widen(&value)),
        }
    }
}

/// Returns slices of a variable that lie one behind the other as one.
fn joined(mut slices: Vec<Captured>) -> Vec<Captured> {
    slices.sort_by(|a, b| (&a.name, a.first_element).cmp(&(&b.name, b.first_element)));
    let mut all: Vec<Captured> = Vec::with_capacity(slices.len());
    for slice in slices {
        let before = all.last_mut().filter(|before| before.name == slice.name);
        let Some(before) = before else {
            all.push(slice);
            continue;
        };
        // what is one number for the whole variable has no dimension, and is there
        if let (Held::Apart(bytes), Held::Apart(more), [all_rows], [rows]) =
            (&mut before.bytes, slice.bytes, &mut before.dims[..], &slice.dims[..])
        {
            *all_rows += rows;
            bytes.extend(more);
        }
    }
    all
}

/// into ← numbers of f32, rounded to bf16.
pub(crate) fn round(numbers: &[u8], into: &mut [u8]) {
    for (from, into) in numbers.as_chunks::<4>().0.iter().zip(into.as_chunks_mut::<2>().0) {
        *into = half::bf16::from_f32(f32::from_le_bytes(*from)).to_le_bytes();
    }
}

/// Numbers of bf16 as f32.
fn widen(numbers: &[u8]) -> Vec<u8> {
    let numbers = numbers.as_chunks::<2>().0.iter();
    numbers.flat_map(|from| half::bf16::from_le_bytes(*from).to_f32().to_le_bytes()).collect()
}

impl CheckpointShards {
    /// What a snapshot holds, as it is called in a checkpoint.
    fn captured(&self, snapshot: Snapshot) -> Result<Vec<Captured>, String> {
        let mut captured = Vec::new();
        for ShardSnapshot { key, spec, weights, state } in snapshot.shards {
            let known = self.shards.iter().find(|known| known.key == key);
            let known = known.ok_or_else(|| format!("shard {} is of no variable", key.0))?;
            let (first_element, own) = (known.first_element(), &known.variable.name);
            let (dims, whole) = known.dims();
            // where it travels rounded, the variable is what that is rounded from
            let (masters, state): (Vec<_>, Vec<_>) =
                state.into_iter().partition(|slot| slot.name == MASTER);
            let (dtype, weights) = match masters.into_iter().next() {
                Some(master) => (master.dtype, master.bytes),
                None => known.widened(spec.dtype, weights),
            };
            // a job that goes on counts from the step of its checkpoint
            for slot in state.into_iter().filter(|slot| slot.name != UPDATES) {
                let (dims, whole) = match slot.dims.is_empty() {
                    true => (Vec::new(), Vec::new()),
                    false => (dims.clone(), whole.clone()),
                };
                let (name, dtype) = (format!("{own}/{}", slot.name), slot.dtype);
                let bytes = Held::Apart(slot.bytes);
                captured.push(Captured { name, dtype, dims, whole, first_element, bytes });
            }
            let (name, bytes) = (own.clone(), Held::Apart(weights));
            captured.push(Captured { name, dtype, dims, whole, first_element, bytes });
        }
        Ok(joined(captured))
    }
}

impl Keep for CheckpointShards {
    /// `to` is the number of a step. Whoever asks again for the last one has it already: two workers may each have thought
    /// themselves the first that lives.
    fn save(&mut self, server: usize, to: &str, snapshot: Snapshot) -> Result<(), String> {
        let (Some(folder), Ok(step)) = (&self.folder, to.parse()) else {
            return Err(format!("there is to be no checkpoint of step {to}"));
        };
        if self.saved.replace(step) == Some(step) {
            return Ok(());
        }
        let captured = self.captured(snapshot)?;
        // fits: servers are few
        let shard = shard_file(Role::Server(server as u32));
        let saver = match self.saver.take() {
            Some(saver) => Ok(saver),
            None => telling_saver(self.recorder.clone(), folder.clone(), &shard),
        };
        match saver {
            Ok(mut saver) => {
                // one at a time, so that all servers write the same ones
                saver.wait();
                saver.write(step, captured);
                self.saver = Some(saver);
                Ok(())
            }
            Err(error) => {
                let written = Err(format!("no thread to write it: {error}"));
                let report = MemberRecord::Shard(ShardReport { step, shard, written });
                let told = self.recorder.record_lasting(&[report]);
                told.map_err(|error| format!("telling the launcher: {error}"))
            }
        }
    }

    /// What this server has of the checkpoint that the job goes on from, whoever wrote it.
    fn load(&mut self, server: usize, _: &str) -> Result<Option<Snapshot>, String> {
        let Some(resumed) = &self.resumed else { return Ok(None) };
        let index = resumed.index().map_err(|error| error.to_string())?;
        let here = self.shards.iter().filter(|shard| shard.server == server);
        let shards = here.map(|shard| shard.read(&index)).collect::<Result<_, String>>()?;
        Ok(Some(Snapshot { protocol: Vec::new(), shards }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, first_element: usize, bytes: &[u8]) -> Captured {
        let (dims, whole) = match bytes.len() {
            1 => (Vec::new(), Vec::new()),
            rows => (vec![rows], vec![4, 2]),
        };
        let bytes = Held::Apart(bytes.to_vec());
        Captured { name: name.to_string(), dtype: DType::U8, dims, whole, first_element, bytes }
    }

    #[test]
    fn slices_of_a_variable_are_one_and_what_is_one_number_is_there_once() {
        let slices = vec![
            slice("w", 3, &[4, 5, 6]),
            slice("w/steps", 0, &[9]),
            slice("v", 0, &[7, 8]),
            slice("w", 0, &[1, 2, 3]),
            slice("w/steps", 3, &[9]),
        ];
        let found: Vec<_> = joined(slices)
            .into_iter()
            .map(|one| {
                let Held::Apart(bytes) = one.bytes else { panic!("{} is elsewhere", one.name) };
                (one.name, one.dims, one.first_element, bytes)
            })
            .collect();
        let of = |name: &str, dims: &[usize], bytes: &[u8]| {
            (name.to_string(), dims.to_vec(), 0, bytes.to_vec())
        };
        let all =
            [of("v", &[2], &[7, 8]), of("w", &[6], &[1, 2, 3, 4, 5, 6]), of("w/steps", &[], &[9])];
        assert_eq!(found, all);
    }
}
