//! How servers change what they hold, computed by the kernels that train: the rule of a key, the state that
//! it keeps beside a shard, and sums. The rules travel as JSON.

mod integers;
mod on_device;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorwire_graph::Op;
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{
    DeviceRows, Key, PushedRows, Reduce, ShardKey, StateTensor, StoreDevice, Updater, ValueSpec,
};
use tensorwire_memory::{Arena, Buffer, Place, Slab, TensorMut, TensorRef};
use tensorwire_nn::Optimizer;
use tensorwire_tensor::{DType, TensorSpec};

use self::integers::add_integers;
use super::encoded::expand;
use super::on_device::DeviceOfStore;
use crate::rates::Rates;

/// The count of a shard's updates, in a snapshot.
pub(super) const UPDATES: &str = "updates";
/// What a rounded shard is of, in a snapshot.
pub(super) const MASTER: &str = "master";

/// What a push of all workers does to a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreRule {
    /// The value becomes the sum of what was pushed; rows are added to it.
    #[default]
    Sum,
    /// The value becomes the mean of what was pushed.
    Mean,
    /// The value changes as the optimizer says, with g the mean of what was pushed.
    Optimizer(Optimizer),
    /// w ← w + rate·(mean − w): a moving average.
    Average { rate: f64 },
    /// w ← w + alpha·Σ (x − w) over the workers' weights x: the centre variable of elastic averaging (Zhang
    /// et al. 2015; Mamidala et al. eq. 2).
    Elastic { alpha: f64 },
}

/// The rules of a store, as [`tensorwire_kvstore::KvWorker::set_optimizer`] takes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreRules {
    /// Of keys that have none of their own.
    pub default: StoreRule,
    pub of_keys: BTreeMap<u64, StoreRule>,
    /// Values of bf16 are rounded ones of f32, which servers keep beside them (`master`, as mixed precision has it: Micikevicius et
    /// al. 2018) and which rules change. A sum is of what was pushed, as it is.
    #[serde(default)]
    pub masters: bool,
}

impl StoreRules {
    /// One rule for all keys.
    pub fn all(default: StoreRule) -> StoreRules {
        StoreRules { default, of_keys: BTreeMap::new(), masters: false }
    }

    /// What [`tensorwire_kvstore::KvWorker::set_optimizer`] is given.
    pub fn to_bytes(&self) -> Vec<u8> {
        // numbers and names alone: nothing that JSON has no form for but what is not finite, which reads as an error
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn of(&self, key: Key) -> StoreRule {
        self.of_keys.get(&key.0).copied().unwrap_or(self.default)
    }

    /// What is kept of a shard of such a value under its rule, fresh.
    fn kept(
        &self,
        key: Key,
        spec: &TensorSpec,
        device: Option<&DeviceOfStore>,
    ) -> Result<(StoreRule, Kept), String> {
        let rule = self.of(key);
        let has_master =
            self.masters && spec.dtype == DType::BF16 && !matches!(rule, StoreRule::Sum);
        if !has_master {
            return Ok((rule, Kept { slots: slots(rule, spec, device)?, master: None }));
        }
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let spec = TensorSpec::new(DType::F32, spec.dims()).map_err(|error| text(&error))?;
        let slots = slots(rule, &spec, device)?;
        let master = Master { slot: Slot::zeros(MASTER, spec, device)?, is_known: false };
        Ok((rule, Kept { slots, master: Some(master) }))
    }
}

impl From<Optimizer> for StoreRule {
    fn from(optimizer: Optimizer) -> StoreRule {
        StoreRule::Optimizer(optimizer)
    }
}

impl StoreRule {
    fn optimizer(self) -> Option<Optimizer> {
        match self {
            StoreRule::Optimizer(optimizer) => Some(optimizer),
            StoreRule::Sum
            | StoreRule::Mean
            | StoreRule::Average { .. }
            | StoreRule::Elastic { .. } => None,
        }
    }
}

/// The servers' arithmetic, and the workers'.
#[derive(Debug)]
pub struct Arithmetic {
    kernels: Arc<Kernels>,
    rules: StoreRules,
    shards: HashMap<ShardKey, ShardState>,
    /// What was pushed rounded, widened, by worker.
    widened: Vec<Vec<f32>>,
    /// The same in the memory of the device.
    widened_there: Vec<Buffer>,
    rates: Rates,
    /// Updates of a shard that are one step.
    updates_per_step: u64,
    /// In whose memory shards lie, and who computes; none: the host.
    device: Option<Arc<DeviceOfStore>>,
}

/// What is kept beside a shard.
#[derive(Debug)]
struct ShardState {
    key: Key,
    /// Among the shards here.
    number: u32,
    spec: TensorSpec,
    rule: StoreRule,
    kept: Kept,
    /// How often it was changed.
    updates: u64,
}

/// The tensors beside a shard.
#[derive(Debug)]
struct Kept {
    slots: Vec<Slot>,
    master: Option<Master>,
}

/// What a shard is the rounded form of.
#[derive(Debug)]
struct Master {
    slot: Slot,
    /// It has the shard's value.
    is_known: bool,
}

#[derive(Debug)]
struct Slot {
    name: &'static str,
    spec: TensorSpec,
    buffer: Buffer,
}

impl Arithmetic {
    /// Without an optimizer: a value becomes the sum of a round.
    pub fn new(kernels: Arc<Kernels>) -> Arithmetic {
        let (rules, shards, widened, widened_there, rates) = Default::default();
        let (updates_per_step, device) = (1, None);
        Arithmetic {
            kernels,
            rules,
            shards,
            widened,
            widened_there,
            rates,
            updates_per_step,
            device,
        }
    }

    /// It with an optimizer's rate for each step; so many updates of a shard are one.
    pub(crate) fn at_rates(self, rates: Rates, updates_per_step: u64) -> Arithmetic {
        Arithmetic { rates, updates_per_step: updates_per_step.max(1), ..self }
    }

    /// It with shards in a device's memory.
    pub(crate) fn on_device(self, device: Option<Arc<DeviceOfStore>>) -> Arithmetic {
        Arithmetic { device, ..self }
    }

    /// Counts an update of a shard; returns what the optimizer's rate is multiplied by in it.
    fn count(&mut self, shard: ShardKey) -> f64 {
        let Some(state) = self.shards.get_mut(&shard) else { return 1.0 };
        state.updates += 1;
        self.rates.factor(state.updates.div_ceil(self.updates_per_step))
    }

    /// into ← the sum of two.
    fn sum(&self, spec: &TensorSpec, into: &mut [u8], of: [&[u8]; 2]) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let [first, second] = of.map(|bytes| TensorRef::new(spec, bytes));
        let inputs = [first.map_err(|e| text(&e))?, second.map_err(|e| text(&e))?];
        let into = TensorMut::new(spec, into).map_err(|error| text(&error))?;
        self.kernels.run(&Op::Add, &inputs, &mut [into]).map_err(|error| text(&error))
    }

    /// One update by what is made of the pushes: f32.
    fn apply_widened(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        (op, pushes): (&Op, &[&[u8]]),
        widen: impl Fn(&Kernels, (&TensorSpec, &[u8]), (&TensorSpec, &mut [u8])) -> Result<(), String>,
    ) -> Result<(), String> {
        let Arithmetic { kernels, shards, widened, .. } = self;
        let Some(state) = shards.get_mut(&shard) else { return Ok(()) };
        let text = |error: String| format!("key {}: {error}", state.key.0);
        let wide = TensorSpec::new(DType::F32, state.spec.dims());
        let wide = wide.map_err(|error| text(error.to_string()))?;
        widened.resize_with(pushes.len().max(widened.len()), Vec::new);
        for (push, into) in pushes.iter().zip(&mut *widened) {
            // of the largest shard
            into.resize(wide.elements().max(into.len()), 0.0);
            let into = &mut bytemuck::cast_slice_mut(into)[..wide.bytes()];
            widen(kernels, (&state.spec, push), (&wide, into)).map_err(text)?;
        }
        state.change_widened(kernels, op, weights, (&wide, &widened[..pushes.len()]))
    }

    fn shard(&self, shard: ShardKey) -> Result<&ShardState, String> {
        self.shards.get(&shard).ok_or_else(|| format!("shard {} is unknown", shard.0))
    }
}

impl ShardState {
    /// What this many pushes do, where the optimizer's rate is multiplied by this; none: they are added up.
    fn op(&self, factor: f64, pushes: usize) -> Option<Op> {
        match (self.rule, self.rule.optimizer()) {
            (_, Some(rule)) => Some(Op::Apply { rule: rule.times(factor), clipped: false }),
            (StoreRule::Mean, _) => Some(Op::Mean),
            (StoreRule::Average { rate }, _) => Some(Op::ApplyAverage { rate }),
            // the mean's share of the sum is 1/W
            (StoreRule::Elastic { alpha }, _) => {
                // fits: workers are few
                Some(Op::ApplyAverage { rate: alpha * pushes as f64 })
            }
            _ => None,
        }
    }

    /// Runs an operator that changes a shard and its slots in place.
    fn change(
        &self,
        kernels: &Kernels,
        op: &Op,
        (spec, weights): (&TensorSpec, &mut [u8]),
        inputs: &[TensorRef<'_>],
    ) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| format!("key {}: {error}", self.key.0);
        let slots = &self.kept.slots;
        let mut guards = Vec::with_capacity(slots.len());
        for slot in slots {
            guards.push(slot.buffer.write().map_err(|error| text(&error))?);
        }
        let mut outputs = vec![TensorMut::new(spec, weights).map_err(|error| text(&error))?];
        for (slot, guard) in slots.iter().zip(&mut guards) {
            outputs.push(TensorMut::new(&slot.spec, guard).map_err(|error| text(&error))?);
        }
        kernels.run(op, inputs, &mut outputs).map_err(|error| text(&error))
    }

    /// As [`ShardState::change`], by what was pushed as f32: of a shard's master, where it has one, which is rounded again.
    fn change_widened(
        &mut self,
        kernels: &Kernels,
        op: &Op,
        weights: &mut [u8],
        (wide, widened): (&TensorSpec, &[Vec<f32>]),
    ) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| format!("key {}: {error}", self.key.0);
        let narrow = &self.spec;
        let inputs: Result<Vec<TensorRef<'_>>, _> = widened
            .iter()
            .map(|from| TensorRef::new(wide, &bytemuck::cast_slice(from)[..wide.bytes()]))
            .collect();
        let inputs = inputs.map_err(|error| text(&error))?;
        let Some(master) = &self.kept.master else {
            return self.change(kernels, op, (narrow, weights), &inputs);
        };
        let mut guard = master.slot.buffer.write().map_err(|error| text(&error))?;
        if !master.is_known {
            cast(kernels, (narrow, weights), (wide, &mut guard))?;
        }
        self.change(kernels, op, (wide, &mut guard), &inputs)?;
        cast(kernels, (wide, &guard), (narrow, weights))?;
        drop(guard);
        if let Some(master) = &mut self.kept.master {
            master.is_known = true;
        }
        Ok(())
    }
}

/// into ← from, as the other type.
fn cast(
    kernels: &Kernels,
    (spec, from): (&TensorSpec, &[u8]),
    (into_spec, into): (&TensorSpec, &mut [u8]),
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let from = TensorRef::new(spec, from).map_err(|error| text(&error))?;
    let into = TensorMut::new(into_spec, into).map_err(|error| text(&error))?;
    let op = Op::Cast { to: into_spec.dtype };
    kernels.run(&op, &[from], &mut [into]).map_err(|error| text(&error))
}

impl Reduce for Arithmetic {
    fn add(&mut self, dtype: DType, into: &mut [u8], from: &[u8]) -> Result<(), String> {
        let elements = from.len() / dtype.bytes();
        let spec = TensorSpec::new(dtype, &[elements]).map_err(|error| error.to_string())?;
        if !dtype.is_floating() {
            return add_integers(dtype, into, from);
        }
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let other = TensorRef::new(&spec, from).map_err(|error| text(&error))?;
        let sum = TensorMut::new(&spec, into).map_err(|error| text(&error))?;
        self.kernels.run_in_place(&Op::Add, &[other], &mut [sum]).map_err(|error| text(&error))
    }
}

impl Updater for Arithmetic {
    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String> {
        let ValueSpec { dtype, rows, columns } = *spec;
        let spec = TensorSpec::new(dtype, &[rows, columns]).map_err(|error| error.to_string())?;
        let (rule, kept) = self.rules.kept(key, &spec, self.device.as_deref())?;
        // fits: a model has far fewer
        let number = self.shards.len() as u32;
        self.shards.insert(shard, ShardState { key, number, spec, rule, kept, updates: 0 });
        Ok(())
    }

    fn apply(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        let state = self.shard(shard)?;
        let Some(op) = state.op(factor, pushes.len()) else {
            let dtype = state.spec.dtype;
            let mut rest = pushes;
            if let ([first, second, others @ ..], true) = (pushes, dtype.is_floating()) {
                // one pass over memory instead of two
                self.sum(&state.spec, weights, [first, second])?;
                rest = others;
            } else if let [first, others @ ..] = pushes {
                weights.copy_from_slice(first);
                rest = others;
            }
            return rest.iter().try_for_each(|push| self.add(dtype, weights, push));
        };
        if state.kept.master.is_some() {
            return self.apply_widened(shard, weights, (&op, pushes), cast);
        }
        let inputs: Result<Vec<TensorRef<'_>>, _> =
            pushes.iter().map(|push| TensorRef::new(&state.spec, push)).collect();
        let inputs = inputs.map_err(|error| error.to_string())?;
        state.change(&self.kernels, &op, (&state.spec, weights), &inputs)
    }

    fn apply_encoded(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        let state = self.shard(shard)?;
        let Some(op) = state.op(factor, pushes.len()) else {
            let (key, spec) = (state.key.0, state.spec.clone());
            if spec.dtype != DType::F32 {
                return Err(format!(
                    "key {key}: sums of less than a value are of f32, not {}",
                    spec.dtype
                ));
            }
            // all are made whole before the first is added: of one that cannot be the sum stays as it was
            let mut whole = vec![0f32; spec.elements() * pushes.len()];
            let mut parts: Vec<&mut [f32]> = whole.chunks_mut(spec.elements().max(1)).collect();
            for (push, into) in pushes.iter().zip(&mut parts) {
                expand(&self.kernels, push, &spec, bytemuck::cast_slice_mut(into))
                    .map_err(|error| format!("key {key}: {error}"))?;
            }
            weights.fill(0);
            return parts
                .iter()
                .try_for_each(|part| self.add(DType::F32, weights, bytemuck::cast_slice(part)));
        };
        self.apply_widened(shard, weights, (&op, pushes), |kernels, (_, push), (spec, into)| {
            expand(kernels, push, spec, into)
        })
    }

    fn start(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[Buffer],
    ) -> Result<(), String> {
        self.start_on_device(shard, weights, pushes)
    }

    fn start_rows(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[DeviceRows],
    ) -> Result<(), String> {
        self.start_rows_on_device(shard, weights, pushes)
    }

    fn apply_rows(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[PushedRows<'_>],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        let state = self.shard(shard)?;
        let dtype = state.spec.dtype;
        let columns = state.spec.dims()[1];
        let row = columns * dtype.bytes();
        let Some(rule) = state.rule.optimizer() else {
            if state.rule != StoreRule::Sum {
                let key = state.key.0;
                return Err(format!("key {key}: averages are of whole values, not of rows"));
            }
            for PushedRows { indices, rows } in pushes {
                for (index, from) in indices.as_chunks::<4>().0.iter().zip(rows.chunks_exact(row)) {
                    // checked when it came, but the worker can still write there
                    let index = i32::from_le_bytes(*index);
                    let at = usize::try_from(index).ok().and_then(|index| index.checked_mul(row));
                    let into = at.and_then(|at| weights.get_mut(at..)?.get_mut(..row));
                    let into = into.ok_or_else(|| format!("there is no row {index}"))?;
                    self.add(dtype, into, from)?;
                }
            }
            return Ok(());
        };
        let mut specs = Vec::with_capacity(2 * pushes.len());
        for PushedRows { indices, .. } in pushes {
            let count = indices.len() / size_of::<i32>();
            for (dtype, dims) in [(DType::I32, &[count] as &[usize]), (dtype, &[count, columns])] {
                specs.push(TensorSpec::new(dtype, dims).map_err(|error| error.to_string())?);
            }
        }
        let bytes = pushes.iter().flat_map(|push| [push.indices, push.rows]);
        let inputs: Result<Vec<TensorRef<'_>>, _> =
            specs.iter().zip(bytes).map(|(spec, bytes)| TensorRef::new(spec, bytes)).collect();
        let inputs = inputs.map_err(|error| error.to_string())?;
        let op = Op::ApplyRows { rule: rule.times(factor) };
        state.change(&self.kernels, &op, (&state.spec, weights), &inputs)
    }

    fn set(&mut self, bytes: &[u8]) -> Result<(), String> {
        let rules = serde_json::from_slice(bytes);
        let rules: StoreRules =
            rules.map_err(|error| format!("these are no rules of a store: {error}"))?;
        // all or nothing
        let mut fresh = HashMap::new();
        for (shard, state) in &self.shards {
            let kept = rules.kept(state.key, &state.spec, self.device.as_deref())?;
            fresh.insert(*shard, kept);
        }
        self.rules = rules;
        for (shard, state) in &mut self.shards {
            if let Some((rule, mut kept)) = fresh.remove(shard) {
                // a value is no state
                if let (Some(new), Some(here)) = (&mut kept.master, state.kept.master.take()) {
                    *new = here;
                }
                (state.rule, state.kept, state.updates) = (rule, kept, 0);
            }
        }
        Ok(())
    }

    fn wide(&self, shard: ShardKey, weights: &[u8]) -> Option<Vec<u8>> {
        let state = self.shards.get(&shard)?;
        let master = state.kept.master.as_ref()?;
        if master.is_known {
            return match &self.device {
                Some(device) => device.read(&master.slot.buffer).ok(),
                None => master.slot.buffer.read().ok().map(|wide| wide.to_vec()),
            };
        }
        let mut wide = vec![0f32; master.slot.spec.elements()];
        let into = bytemuck::cast_slice_mut(&mut wide);
        cast(&self.kernels, (&state.spec, weights), (&master.slot.spec, into)).ok()?;
        Some(bytemuck::cast_slice(&wide).to_vec())
    }

    fn state(&self, shard: ShardKey) -> Result<Vec<StateTensor>, String> {
        let Some(state) = self.shards.get(&shard) else { return Ok(Vec::new()) };
        let tensor = |slot: &Slot| -> Result<StateTensor, String> {
            // nothing is updated meanwhile: nobody writes
            let read = match &self.device {
                Some(device) => device.read(&slot.buffer),
                None => match slot.buffer.read() {
                    Ok(bytes) => Ok(bytes.to_vec()),
                    Err(error) => Err(error.to_string()),
                },
            };
            let bytes =
                read.map_err(|error| format!("key {}: {}: {error}", state.key.0, slot.name))?;
            let (name, dims) = (slot.name.to_string(), slot.spec.dims().to_vec());
            Ok(StateTensor { name, dtype: slot.spec.dtype, dims, bytes })
        };
        let master = state.kept.master.as_ref().filter(|master| master.is_known);
        let slots = state.kept.slots.iter().chain(master.map(|master| &master.slot));
        let mut kept = slots.map(tensor).collect::<Result<Vec<StateTensor>, String>>()?;
        if !self.rates.is_constant() {
            let bytes = state.updates.to_le_bytes().to_vec();
            let name = UPDATES.to_string();
            kept.push(StateTensor { name, dtype: DType::I64, dims: Vec::new(), bytes });
        }
        Ok(kept)
    }

    fn restore(&mut self, shard: ShardKey, state: Vec<StateTensor>) -> Result<(), String> {
        let here = self.shards.get_mut(&shard);
        let here = here.ok_or_else(|| format!("shard {} is unknown", shard.0))?;
        let kept = |slot: &Slot| {
            let kept = state.iter().find(|kept| kept.name == slot.name);
            kept.filter(|kept| kept.bytes.len() == slot.buffer.bytes())
        };
        let put = |slot: &Slot, kept: &StateTensor| {
            if let Some(device) = &self.device {
                return device.write(&kept.bytes, &slot.buffer);
            }
            let mut bytes = slot.buffer.write().map_err(|error| error.to_string())?;
            bytes.copy_from_slice(&kept.bytes);
            Ok(())
        };
        for slot in &here.kept.slots {
            let kept = kept(slot).ok_or_else(|| {
                format!("key {}: there is no {} of this optimizer", here.key.0, slot.name)
            })?;
            put(slot, kept)?;
        }
        if let Some(master) = &mut here.kept.master {
            // of a shard that was never changed there is none: it is what the shard is
            let kept = kept(&master.slot);
            kept.map_or(Ok(()), |kept| put(&master.slot, kept))?;
            master.is_known = kept.is_some();
        }
        let updates = state.iter().find(|kept| kept.name == UPDATES);
        let updates = updates.and_then(|kept| kept.bytes.as_slice().try_into().ok());
        if let (Some(bytes), Some(here)) = (updates, self.shards.get_mut(&shard)) {
            here.updates = u64::from_le_bytes(bytes);
        }
        Ok(())
    }
}

/// What a rule keeps beside a shard, as zeros.
fn slots(
    rule: StoreRule,
    spec: &TensorSpec,
    device: Option<&DeviceOfStore>,
) -> Result<Vec<Slot>, String> {
    let Some(optimizer) = rule.optimizer() else { return Ok(Vec::new()) };
    let slots = optimizer.slots_of(spec).map_err(|error| error.to_string())?;
    slots.into_iter().map(|(name, spec)| Slot::zeros(name, spec, device)).collect()
}

impl Slot {
    fn zeros(
        name: &'static str,
        spec: TensorSpec,
        device: Option<&DeviceOfStore>,
    ) -> Result<Slot, String> {
        let bytes = spec.bytes();
        if let Some(device) = device {
            return Ok(Slot { name, buffer: device.zeros(bytes)?, spec });
        }
        let slab = Slab::anonymous(bytes).map_err(|error| error.to_string())?;
        let arena = Arena::new(&slab, &[Place { offset: 0, bytes }]);
        let buffers = arena.map_err(|error| error.to_string())?.into_buffers();
        let buffer = buffers.into_iter().next().ok_or("an arena of no place")?;
        Ok(Slot { name, spec, buffer })
    }
}

#[cfg(test)]
mod tests;
