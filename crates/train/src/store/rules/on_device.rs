//! Rules of values in a device's memory: started there, over later.

use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::{DeviceCall, DeviceFailure, DeviceOperand};
use tensorwire_kvstore::ShardKey;
use tensorwire_memory::{Buffer, DeviceLoan, DeviceWriteLoan, LoanError};
use tensorwire_tensor::TensorSpec;

use super::super::on_device::{DeviceOfStore, text};
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
        (inputs, outputs): (&[Buffer], Vec<(&TensorSpec, &Buffer)>),
        in_place: bool,
    ) -> Result<(), String> {
        // what is lent is nobody else's until the operator is started; then the device's order stands for it
        let lent = |error: LoanError| text(error);
        let reads: Result<Vec<DeviceLoan>, _> = inputs.iter().map(Buffer::lend_to_device).collect();
        let reads = reads.map_err(lent)?;
        let writes: Result<Vec<DeviceWriteLoan>, _> =
            outputs.iter().map(|(_, buffer)| buffer.lend_to_device_for_writing()).collect();
        let writes = writes.map_err(lent)?;
        let inputs = reads.iter();
        let inputs: Vec<DeviceOperand<'_>> = inputs
            .map(|loan| DeviceOperand { spec: &self.spec, address: loan.address() })
            .collect();
        let outputs: Vec<DeviceOperand<'_>> = outputs
            .iter()
            .zip(&writes)
            .map(|((spec, _), loan)| DeviceOperand { spec, address: loan.address() })
            .collect();
        // what is made ready for one is used again in the next round
        let node = NodeId(2 * self.number + u32::from(in_place));
        let call = DeviceCall { node, device: 0, op, inputs: &inputs, outputs: &outputs, in_place };
        let started = device.device.lock().start(call);
        started.map_err(|failure| match failure {
            DeviceFailure::Kernel { source, .. } => format!("key {}: {source}", self.key.0),
            DeviceFailure::Device(source) => source.to_string(),
        })
    }
}
