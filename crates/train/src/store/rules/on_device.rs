//! Rules of values in a device's memory: started there, over later.

use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::DeviceFailure;
use tensorwire_kvstore::{DeviceRows, ShardKey};
use tensorwire_memory::Buffer;
use tensorwire_tensor::{DType, TensorSpec};

use super::super::on_device::{DeviceOfStore, Tensor};
use super::{Arithmetic, Master, ShardState, StoreRule};

/// An operator of a shard, by which what is made ready for it is used again in the next round.
#[derive(Clone, Copy, Debug)]
enum Started {
    Update,
    /// A push that is added to those before it.
    Addition,
    UpdateByRows,
    /// What a rounded shard is of, from its first value.
    Master,
    /// A rounded push.
    Widening,
    /// Of what the shard is the rounded form of.
    Rounding,
}

/// How many there are.
const STARTED: u32 = 6;

impl Arithmetic {
    pub(super) fn start_on_device(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[Buffer],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        self.make_room(shard, pushes.len())?;
        let Arithmetic { shards, device, widened_there, .. } = self;
        let (state, device) = of(shards.get_mut(&shard), device.as_deref(), shard)?;
        // the device multiplies the rate itself
        if let Some(op) = state.op(1.0, pushes.len()) {
            let failed = |error: DeviceFailure| format!("key {}: {error}", state.key.0);
            device.set_rate_factor(factor).map_err(failed)?;
            if state.kept.master.is_some() {
                return state.start_master(device, &op, weights, (pushes, &widened_there[..]));
            }
            let inputs = pushes.iter().map(|push| (&state.spec, push)).collect();
            let outputs = state.changed(&state.spec, weights);
            return state.start(device, Started::Update, &op, (inputs, outputs));
        }
        let sum = || vec![(&state.spec, weights)];
        let whole = |push| vec![(&state.spec, push)];
        let mut rest = pushes;
        if let [first, second, others @ ..] = pushes {
            let both = vec![(&state.spec, first), (&state.spec, second)];
            state.start(device, Started::Update, &Op::Add, (both, sum()))?;
            rest = others;
        } else if let [first] = pushes {
            state.start(device, Started::Update, &Op::Mean, (whole(first), sum()))?;
            rest = &[];
        }
        let mut rest = rest.iter();
        let added = |push| state.start(device, Started::Addition, &Op::Add, (whole(push), sum()));
        rest.try_for_each(added)
    }

    pub(super) fn start_rows_on_device(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[DeviceRows],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        let Arithmetic { shards, device, .. } = self;
        let (state, device) = of(shards.get_mut(&shard), device.as_deref(), shard)?;
        let StoreRule::Optimizer(rule) = state.rule else {
            return Err(format!("key {}: rows are an optimizer's on a device", state.key.0));
        };
        let failed = |error: &dyn std::fmt::Display| format!("key {}: {error}", state.key.0);
        device.set_rate_factor(factor).map_err(|error| failed(&error))?;
        let columns = state.spec.dims()[1];
        let mut specs = Vec::with_capacity(2 * pushes.len());
        for DeviceRows { count, .. } in pushes {
            let (count, dtype) = (*count, state.spec.dtype);
            for (dtype, dims) in [(DType::I32, &[count] as &[usize]), (dtype, &[count, columns])] {
                specs.push(TensorSpec::new(dtype, dims).map_err(|error| failed(&error))?);
            }
        }
        let buffers = pushes.iter().flat_map(|push| [&push.indices, &push.rows]);
        let operands = (specs.iter().zip(buffers).collect(), state.changed(&state.spec, weights));
        state.start(device, Started::UpdateByRows, &Op::ApplyRows { rule }, operands)
    }

    /// Room on the device for so many pushes of the largest rounded shard, widened, if this is a rounded one.
    fn make_room(&mut self, shard: ShardKey, pushes: usize) -> Result<(), String> {
        let Arithmetic { shards, device, widened_there, .. } = self;
        let is_rounded = |state: &&ShardState| state.kept.master.is_some();
        let (Some(device), Some(state)) = (device, shards.get(&shard).filter(is_rounded)) else {
            return Ok(());
        };
        let needed = state.wide_bytes();
        if widened_there.first().is_some_and(|room| room.bytes() < needed) {
            widened_there.clear();
        }
        let most = shards.values().map(ShardState::wide_bytes).max().unwrap_or(needed);
        while widened_there.len() < pushes {
            widened_there.push(device.room(most)?);
        }
        Ok(())
    }
}

/// What there is of a shard, and on what.
fn of<'a>(
    state: Option<&'a mut ShardState>,
    device: Option<&'a DeviceOfStore>,
    shard: ShardKey,
) -> Result<(&'a mut ShardState, &'a DeviceOfStore), String> {
    let state = state.ok_or_else(|| format!("shard {} is unknown", shard.0))?;
    let device = device.ok_or_else(|| format!("shard {}: there is no device", shard.0))?;
    Ok((state, device))
}

impl ShardState {
    fn wide_bytes(&self) -> usize {
        self.kept.master.as_ref().map_or(0, |master| master.slot.spec.bytes())
    }

    /// What an update changes.
    fn changed<'a>(&'a self, spec: &'a TensorSpec, weights: &'a Buffer) -> Vec<Tensor<'a>> {
        let slots = self.kept.slots.iter().map(|slot| (&slot.spec, &slot.buffer));
        std::iter::once((spec, weights)).chain(slots).collect()
    }

    /// As [`ShardState::change_master`], started on a device.
    fn start_master(
        &mut self,
        device: &DeviceOfStore,
        op: &Op,
        weights: &Buffer,
        (pushes, widened): (&[Buffer], &[Buffer]),
    ) -> Result<(), String> {
        let Some(Master { slot, is_known }) = &self.kept.master else { return Ok(()) };
        let (wide, narrow) = (&slot.spec, &self.spec);
        let widens = Op::Cast { to: wide.dtype };
        if !is_known {
            let operands = (vec![(narrow, weights)], vec![(wide, &slot.buffer)]);
            self.start(device, Started::Master, &widens, operands)?;
        }
        for (push, into) in pushes.iter().zip(widened) {
            let operands = (vec![(narrow, push)], vec![(wide, into)]);
            self.start(device, Started::Widening, &widens, operands)?;
        }
        let inputs = widened[..pushes.len()].iter().map(|push| (wide, push)).collect();
        self.start(device, Started::Update, op, (inputs, self.changed(wide, &slot.buffer)))?;
        let operands = (vec![(wide, &slot.buffer)], vec![(narrow, weights)]);
        self.start(device, Started::Rounding, &Op::Cast { to: narrow.dtype }, operands)?;
        if let Some(master) = &mut self.kept.master {
            master.is_known = true;
        }
        Ok(())
    }

    /// Starts an operator of a shard.
    fn start(
        &self,
        device: &DeviceOfStore,
        started: Started,
        op: &Op,
        (inputs, outputs): (Vec<Tensor<'_>>, Vec<Tensor<'_>>),
    ) -> Result<(), String> {
        // what is made ready for one is used again in the next round
        let node = NodeId(STARTED * self.number + started as u32);
        let (of, in_place) = (format!("key {}", self.key.0), matches!(started, Started::Addition));
        device.start((node, &of, 0), op, (&inputs, &outputs), in_place)
    }
}
