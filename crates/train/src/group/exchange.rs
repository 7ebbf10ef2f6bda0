//! A worker's exchange in a client: its group's vectors beside the edges to a store, where it has any. What a group
//! does moves when the executor looks for news, between two kernels.

use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_collectives::{Call, GroupError, Ticket};
use tensorwire_graph::{EdgeId, NodeId};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_runtime::{Exchange, ExchangeError, Sending};
use tensorwire_tensor::TensorSpec;

use super::{Bound, SharedGroup};
use crate::carried::Carried;

/// How long one of two is waited for while the other may have news too.
const TURN: Duration = Duration::from_micros(100);

/// An [`Exchange`] over a group.
pub(crate) struct GroupExchange {
    group: SharedGroup,
    bound: Bound,
    /// Of a client's master.
    store: Option<Box<dyn Exchange>>,
    under_way: Vec<(Ticket, NodeId)>,
    /// Sends to servers that this worker has nothing to do with.
    over: Vec<EdgeId>,
    carried: Carried,
}

impl GroupExchange {
    /// Over `group`, which knows the vectors of `bound`; edges to servers go over `store`.
    pub(crate) fn new(
        group: SharedGroup,
        bound: Bound,
        store: Option<Box<dyn Exchange>>,
        carried: Carried,
    ) -> GroupExchange {
        GroupExchange { group, bound, store, under_way: Vec::new(), over: Vec::new(), carried }
    }

    fn progress(&mut self) -> Result<bool, ExchangeError> {
        self.group.lock().progress().map_err(group_error)
    }
}

fn group_error(error: GroupError) -> ExchangeError {
    ExchangeError::Other { peer: error.lost_peer(), what: error.to_string() }
}

fn no_edge(edge: EdgeId) -> ExchangeError {
    let what = format!("edge {} ends at a server, and there is none", edge.0);
    ExchangeError::Other { peer: None, what }
}

impl Exchange for GroupExchange {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        match &mut self.store {
            Some(store) => store.send(edge, epoch, tensor),
            None if tensor.is_some() => Err(no_edge(edge)),
            // an order among nodes, some of them a server's: here there is none
            None => {
                self.over.push(edge);
                Ok(Sending::Started)
            }
        }
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        let store = self.store.as_mut().ok_or_else(|| no_edge(edge))?;
        store.announce(edge, epoch, spec, tensor)
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> bool {
        self.store.as_mut().is_none_or(|store| store.arrived(edge, epoch))
    }

    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError> {
        self.store.as_mut().ok_or_else(|| no_edge(edge))?.announced(edge, epoch)
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.store.as_mut().ok_or_else(|| no_edge(edge))?.fetch(edge, epoch, into, deadline)
    }

    fn released(&mut self, edge: EdgeId) {
        if let Some(store) = &mut self.store {
            store.released(edge);
        }
    }

    fn collect(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError> {
        let Some((vector, call)) = self.bound.calls.get(&node) else {
            let what = format!("node {} is none that the group knows", node.0);
            return Err(ExchangeError::Other { peer: None, what });
        };
        let mut group = self.group.lock();
        match call {
            Call::Broadcast { root } if *root == group.me() => {}
            Call::Broadcast { .. } => self.carried.spread(tensor.bytes()),
            _ => self.carried.folded(tensor.bytes(), group.size()),
        }
        let ticket = group.start(*vector, call.clone()).map_err(group_error)?;
        drop(group);
        self.under_way.push((ticket, node));
        Ok(())
    }

    fn collected(&mut self, collected: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        self.progress()?;
        let mut group = self.group.lock();
        self.under_way.retain(|(ticket, node)| {
            let is_done = group.is_done(*ticket);
            if is_done {
                collected.push(*node);
            }
            !is_done
        });
        Ok(())
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        finished.append(&mut self.over);
        self.store.as_mut().map_or(Ok(()), |store| store.finished(finished))
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        match &mut self.store {
            // what is allocated while a job runs is for edges
            Some(store) => store.alloc(bytes),
            None => self.group.lock().alloc(bytes).map_err(group_error),
        }
    }

    /// Others may know the memory for as long as the job runs.
    fn free(&mut self, slab: &Slab) {
        if let Some(store) = &mut self.store {
            store.free(slab);
        }
    }

    fn observe(&mut self) {
        self.group.lock().observe();
        if let Some(store) = &mut self.store {
            store.observe();
        }
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        match &mut self.store {
            Some(store) if self.under_way.is_empty() => store.wait(deadline),
            None => {
                self.group.lock().wait_for_news(deadline);
                Ok(())
            }
            Some(store) => {
                store.wait(deadline.min(Deadline::after(Duration::ZERO)))?;
                if !self.group.lock().progress().map_err(group_error)? {
                    let turn = deadline.min(Deadline::after(TURN));
                    self.group.lock().wait_for_news(turn);
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tensorwire_base::Rank;
    use tensorwire_collectives::{Collectives, Group, GroupOptions};
    use tensorwire_fabric::{Backend, Fabric, FabricConfig, JobCredentials, Member, Secret};

    use super::*;

    /// A group of one process.
    fn alone() -> SharedGroup {
        let me = Member { rank: Rank(0), incarnation: tensorwire_base::Incarnation(1) };
        let job = JobCredentials { job_id: tensorwire_base::JobId(1), secret: Secret([1; 32]) };
        let fabric = Fabric::open(Backend::Shm, FabricConfig::new(me, job)).unwrap();
        let soon = Deadline::after(Duration::from_secs(10));
        let group = Group::open(fabric, &[Rank(0)], 0, GroupOptions::default(), soon).unwrap();
        let group: Box<dyn Collectives> = Box::new(group);
        Arc::new(Mutex::new(group))
    }

    #[test]
    fn what_only_orders_nodes_is_over_at_once_and_a_tensor_goes_nowhere() {
        let mut exchange = GroupExchange::new(alone(), Bound::default(), None, Carried::default());
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
        let error = exchange.collect(NodeId(7), &buffer).unwrap_err();
        assert!(error.to_string().contains("node 7"), "{error}");
    }
}
