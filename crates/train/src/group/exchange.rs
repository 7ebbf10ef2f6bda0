//! The ports of a worker in a client: collective operations of its group, beside the edges to a store where it has
//! any. What a group does moves when the executor looks for events, between two kernels.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_collectives::{CollectiveCall, GroupError, Handle};
use tensorwire_graph::{EdgeId, NodeId};
use tensorwire_memory::{Buffer, Slab, SlabError};
use tensorwire_runtime::{Events, ExchangeError, GroupOps, Ports, Sending, TensorExchange};
use tensorwire_tensor::TensorSpec;

use super::{Bound, SharedGroup};
use crate::carried::Carried;
use crate::store::{StoreEvents, StoreExchange};

/// How long one of two is waited for while the other may have news too.
pub(super) const TURN: Duration = Duration::from_micros(100);

/// Operations that were started and are not over, each with its node.
type UnderWay = Arc<Mutex<Vec<(Handle, NodeId)>>>;

/// A session's collective operations, by the group that knows the vectors of its part.
struct Operations {
    group: SharedGroup,
    bound: Bound,
    under_way: UnderWay,
    carried: Carried,
}

impl Operations {
    fn new(group: SharedGroup, bound: Bound, carried: Carried) -> Operations {
        Operations { group, bound, under_way: UnderWay::default(), carried }
    }
}

/// The ports of a client's member: its group's operations on the vectors of `bound`, and no edges.
pub(crate) fn member_ports(group: &SharedGroup, bound: Bound, carried: Carried) -> Ports {
    let operations = Operations::new(group.clone(), bound, carried);
    Ports::new(GroupEvents { group: group.clone() }).with_group(operations)
}

/// The ports of a client's master, whose edges go over `store`.
pub(crate) fn master_ports(
    group: &SharedGroup,
    bound: Bound,
    store: StoreExchange,
    carried: Carried,
) -> Ports {
    let operations = Operations::new(group.clone(), bound, carried);
    let under_way = operations.under_way.clone();
    let events = MasterEvents { group: group.clone(), store: store.events(), under_way };
    Ports::new(events).with_exchange(store).with_group(operations)
}

fn group_error(error: GroupError) -> ExchangeError {
    ExchangeError::Other { peer: error.lost_peer(), what: error.to_string() }
}

impl GroupOps for Operations {
    fn start(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError> {
        let Some((vector, call)) = self.bound.calls.get(&node) else {
            let what = format!("node {} is none that the group knows", node.0);
            return Err(ExchangeError::Other { peer: None, what });
        };
        let mut group = self.group.lock();
        match call {
            CollectiveCall::Broadcast { root } if *root == group.me() => {}
            CollectiveCall::Broadcast { .. } => self.carried.broadcast(tensor.bytes()),
            _ => self.carried.reduced(tensor.bytes(), group.size()),
        }
        let handle = group.start(*vector, call.clone()).map_err(group_error)?;
        self.under_way.lock().push((handle, node));
        Ok(())
    }

    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        let mut under_way = self.under_way.lock();
        if under_way.is_empty() {
            return Ok(());
        }
        let mut group = self.group.lock();
        group.progress().map_err(group_error)?;
        under_way.retain(|(handle, node)| {
            let is_done = group.is_done(*handle);
            if is_done {
                finished.push(*node);
            }
            !is_done
        });
        Ok(())
    }
}

/// What happens in a group, as a source of [`Events`].
struct GroupEvents {
    group: SharedGroup,
}

impl Events for GroupEvents {
    fn observe(&mut self) {
        self.group.lock().observe();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        self.group.lock().wait_for_news(deadline);
        Ok(())
    }
}

/// What happens at a client's master, in its group and at its end of the store, which have a fabric each.
struct MasterEvents {
    group: SharedGroup,
    store: StoreEvents,
    under_way: UnderWay,
}

impl Events for MasterEvents {
    fn observe(&mut self) {
        self.group.lock().observe();
        self.store.observe();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        if self.under_way.lock().is_empty() {
            return self.store.wait(deadline);
        }
        self.store.wait(deadline.min(Deadline::after(Duration::ZERO)))?;
        let mut group = self.group.lock();
        if !group.progress().map_err(group_error)? {
            group.wait_for_news(deadline.min(Deadline::after(TURN)));
        }
        Ok(())
    }
}

/// The edges of a part between servers that it has nothing to do with: they put nodes in an order, and carry no tensor.
#[derive(Debug, Default)]
pub(crate) struct OrderOnly {
    over: Vec<EdgeId>,
}

fn no_edge(edge: EdgeId) -> ExchangeError {
    let what = format!("edge {} ends at a server, and there is none", edge.0);
    ExchangeError::Other { peer: None, what }
}

impl TensorExchange for OrderOnly {
    fn send(
        &mut self,
        edge: EdgeId,
        _epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        if tensor.is_some() {
            return Err(no_edge(edge));
        }
        self.over.push(edge);
        Ok(Sending::Started)
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        _epoch: u64,
        _spec: &TensorSpec,
        _tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        Err(no_edge(edge))
    }

    fn arrived(&mut self, _edge: EdgeId, _epoch: u64) -> Result<bool, ExchangeError> {
        Ok(true)
    }

    fn announced(&mut self, edge: EdgeId, _epoch: u64) -> Result<TensorSpec, ExchangeError> {
        Err(no_edge(edge))
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        _epoch: u64,
        _into: &Buffer,
        _deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        Err(no_edge(edge))
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        finished.append(&mut self.over);
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        let failed =
            |error: SlabError| ExchangeError::Other { peer: None, what: error.to_string() };
        Slab::anonymous(bytes).map_err(failed)
    }

    fn free(&mut self, _slab: &Slab) {}
}

#[cfg(test)]
mod tests {
    use tensorwire_base::Rank;
    use tensorwire_collectives::{Collectives, Group, GroupOptions};
    use tensorwire_fabric::{Backend, Fabric, FabricConfig, Identity, JobCredentials, Secret};

    use super::*;

    /// A group of one process.
    fn alone() -> SharedGroup {
        let me = Identity { rank: Rank(0), incarnation: tensorwire_base::Incarnation(1) };
        let job = JobCredentials { job_id: tensorwire_base::JobId(1), secret: Secret([1; 32]) };
        let fabric = Fabric::open(Backend::Shm, FabricConfig::new(me, job)).unwrap();
        let soon = Deadline::after(Duration::from_secs(10));
        let group = Group::open(fabric, &[Rank(0)], 0, GroupOptions::default(), soon).unwrap();
        let group: Box<dyn Collectives> = Box::new(group);
        Arc::new(Mutex::new(group))
    }

    #[test]
    fn what_only_orders_nodes_is_over_at_once_and_a_tensor_goes_nowhere() {
        let mut exchange = OrderOnly::default();
        assert!(exchange.arrived(EdgeId(3), 1).unwrap());
        assert_eq!(exchange.send(EdgeId(3), 1, None).unwrap(), Sending::Started);
        let mut finished = Vec::new();
        exchange.finished(&mut finished).unwrap();
        assert_eq!(finished, [EdgeId(3)]);
        assert!(exchange.announced(EdgeId(3), 1).is_err());
        let slab = exchange.alloc(64).unwrap();
        let places = [tensorwire_memory::Place { offset: 0, bytes: 64 }];
        let buffer =
            tensorwire_memory::Arena::new(&slab, &places).unwrap().into_buffers().remove(0);
        assert!(exchange.send(EdgeId(3), 2, Some(&buffer)).is_err());
        let mut operations = Operations::new(alone(), Bound::default(), Carried::default());
        let error = operations.start(NodeId(7), &buffer).unwrap_err();
        assert!(error.to_string().contains("node 7"), "{error}");
    }
}
