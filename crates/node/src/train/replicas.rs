//! Training with weights of each worker's own: gradients are folded in the worker's client as they appear, and
//! every member of it updates alike (`allreduce`); or clients go their own ways and meet at a centre (`…-esgd`).

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_graph::NodeId;
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{Key, KvWorker};
use tensorwire_memory::{CopyPurpose, Slab};
use tensorwire_runtime::{Session, SessionError, Storage};

use super::averaging::{Averaging, Weight};
use super::dist::{add_store, begin, finish, leave_group, meet, session_options};
use super::trainer::Trainer;
use super::{Part, STEP_DEADLINE, TrainError};
use crate::carried::Carried;
use crate::group::{ClientError, SharedGroup, bind_part, member_ports};
use crate::member::Member;

/// A worker's part, from its client and its end of the store to its report.
pub(super) fn work(
    member: &Member,
    part: &Part,
    worker: u32,
    kernels: Arc<Kernels>,
    (mut store, group): (Option<KvWorker>, Option<SharedGroup>),
) -> Result<(), TrainError> {
    let Part { config, program, plan, shape, data } = part;
    // fits: workers are few
    let here = worker as usize;
    let patience = Deadline::after(member.setup_patience());
    let bytes = plan.parts[here].memory.registered_bytes;
    let registered = match &group {
        Some(group) => group.lock().alloc(bytes).map_err(ClientError::from)?,
        None => Slab::anonymous(bytes).map_err(SessionError::from)?,
    };
    let storage = Storage::new(&plan.parts[here], &registered)?;
    let bound = group.as_ref().map(|group| bind_part(group, &plan.parts[here], &storage, patience));
    let bound = bound.transpose()?;
    let widest = bound.as_ref().and_then(|bound| bound.widest());
    let carried = Carried::default();
    let ports = group.as_ref().zip(bound);
    let ports = ports.map(|(group, bound)| member_ports(group, bound, carried.clone()));
    let options = session_options(config);
    let mut session = Session::new(plan, here, storage, kernels.clone(), ports, options)?;
    let weights = weights(part, worker, &session)?;
    let replicas = worker..worker + 1;
    let averaging = config.averaging();
    let trainer = Trainer::new(config, program, plan, *shape, &mut session, replicas);
    let mut trainer = Trainer { concludes: worker == 0, carried, ..trainer };
    trainer.initialise()?;
    if let Some(store) = &mut store {
        begin(store, part, |_| None, (member, &trainer.carried), patience)?;
    }
    match (averaging, &group, widest) {
        (Some(how), ..) => {
            let ends = (store.take(), group.clone());
            let carried = trainer.carried.clone();
            let mut averaging =
                Averaging::open(how, kernels.clone(), ends, weights, (carried, patience))?;
            averaging.adopt(trainer.session, false, Deadline::after(STEP_DEADLINE))?;
            trainer.averaging = Some(averaging);
        }
        (None, Some(group), Some(widest)) => {
            let nodes = weights.iter().map(|weight| weight.node);
            let copied = spread(group, &widest, trainer.session, nodes, patience)?;
            trainer.carried.copied(CopyPurpose::Broadcast, copied);
        }
        _ => {}
    }
    let mut report = trainer.train(data.as_ref(), &mut &*member)?;
    if let Some(averaging) = &mut trainer.averaging
        && let Some(store) = &mut averaging.store
    {
        // whoever evaluates has what all have pushed
        meet(store)?;
        if worker == 0 {
            averaging.adopt(trainer.session, true, Deadline::after(STEP_DEADLINE))?;
        }
    }
    trainer.conclude(data.as_ref(), &mut report)?;
    if let Some(averaging) = trainer.averaging.take() {
        report.store_bytes = trainer.carried.traffic().store_bytes;
        store = averaging.store;
    }
    let patience = Deadline::after(member.setup_patience());
    if let Some(mut store) = store {
        add_store(&mut report, &store.stats(), &store.copies());
        store.close(patience)?;
    }
    leave_group(member, group.as_ref(), &mut report)?;
    finish(member, &kernels, report)
}

/// The weights of a worker, in the order of the store's keys.
fn weights(part: &Part, worker: u32, session: &Session) -> Result<Vec<Weight>, TrainError> {
    let sharing = part.config.sharing();
    let weight = |(key, variable): (Key, &tensorwire_models::Variable)| {
        let name = sharing.name(&variable.name, worker);
        let node = session.node(&name)?;
        Ok(Weight { key, name, spec: variable.spec.clone(), node })
    };
    (0..).map(Key).zip(part.program.weights()).map(weight).collect()
}

/// Gives all members of the group the first one's weights; returns the bytes that were copied here for it.
fn spread(
    group: &SharedGroup,
    widest: &crate::group::Widest,
    session: &Session,
    nodes: impl Iterator<Item = NodeId>,
    deadline: Deadline,
) -> Result<usize, TrainError> {
    let values = nodes.map(|node| session.write(node.into()).map(|(_, bytes)| bytes));
    let mut values = values.collect::<Result<Vec<_>, SessionError>>()?;
    let mut values: Vec<&mut [u8]> = values.iter_mut().map(|bytes| &mut **bytes).collect();
    Ok(widest.spread(group, &mut values, deadline)?)
}
