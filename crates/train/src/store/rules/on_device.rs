//! Rules of values in a device's memory: started there, over later.

use tensorwire_graph::{NodeId, Op};
use tensorwire_kvstore::ShardKey;
use tensorwire_memory::Buffer;

use super::super::on_device::{DeviceOfStore, Tensor};
use super::{Arithmetic, ShardState};

impl Arithmetic {
    pub(super) fn start_on_device(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[Buffer],
    ) -> Result<(), String> {
        let factor = self.count(shard);
        let state = self.shard(shard)?;
        let device = self.device.as_ref();
        let device = device.ok_or_else(|| format!("shard {}: there is no device", shard.0))?;
        let failed = |error: &dyn std::fmt::Display| format!("key {}: {error}", state.key.0);
        // the device multiplies the rate itself
        if let Some(op) = state.op(1.0, pushes.len()) {
            device.set_rate_factor(factor).map_err(|error| failed(&error))?;
            let slots = state.kept.slots.iter();
            let outputs = std::iter::once((&state.spec, weights))
                .chain(slots.map(|slot| (&slot.spec, &slot.buffer)));
            return state.start(device, &op, (pushes, outputs.collect()), false);
        }
        let outputs = || vec![(&state.spec, weights)];
        let mut rest = pushes;
        if let [first, second, others @ ..] = pushes {
            let both = [first.clone(), second.clone()];
            state.start(device, &Op::Add, (&both, outputs()), false)?;
            rest = others;
        } else if let [first] = pushes {
            state.start(device, &Op::Mean, (std::slice::from_ref(first), outputs()), false)?;
            rest = &[];
        }
        let mut rest = rest.iter().map(std::slice::from_ref);
        rest.try_for_each(|push| state.start(device, &Op::Add, (push, outputs()), true))
    }
}

impl ShardState {
    /// Starts an operator of a shard.
    fn start(
        &self,
        device: &DeviceOfStore,
        op: &Op,
        (inputs, outputs): (&[Buffer], Vec<Tensor<'_>>),
        in_place: bool,
    ) -> Result<(), String> {
        let inputs: Vec<Tensor<'_>> = inputs.iter().map(|buffer| (&self.spec, buffer)).collect();
        // what is made ready for one is used again in the next round
        let node = NodeId(2 * self.number + u32::from(in_place));
        let of = format!("key {}", self.key.0);
        device.start((node, &of, 0), op, (&inputs, &outputs), in_place)
    }
}
