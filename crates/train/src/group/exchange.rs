//! The ports of a worker in a client: collective operations of its group, beside the edges to a store where it has
//! any. What a group does moves when the executor looks for events, between two kernels; where members share no memory a
//! thread moves it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_collectives::{CollectiveCall, Collectives, Group, GroupError, Handle};
use tensorwire_graph::{EdgeId, NodeId};
use tensorwire_memory::{Buffer, Slab, SlabError};
use tensorwire_runtime::{Events, ExchangeError, GroupOps, Ports, Sending, TensorExchange};
use tensorwire_tensor::TensorSpec;

use super::{Bound, SharedGroup};
use crate::carried::Carried;
use crate::mover::{Mover, Moving};
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
    mover: Option<Mover<Group>>,
}

impl Operations {
    fn new(group: SharedGroup, bound: Bound, carried: Carried) -> Operations {
        // those who share memory wait for each other's kernels, not for a wire
        let has_wire = !bound.calls.is_empty() && !group.lock().shares_memory();
        let mover = has_wire.then(|| Mover::new(group.clone()));
        Operations { group, bound, under_way: UnderWay::default(), carried, mover }
    }

    fn moving(&self) -> Option<Arc<Moving<Group>>> {
        self.mover.as_ref().map(Mover::moving)
    }

    fn under_way_changed(&self, under_way: &[(Handle, NodeId)]) {
        if let Some(mover) = &self.mover {
            mover.has_work(!under_way.is_empty());
        }
    }
}

/// The ports of a client's member: its group's operations on the vectors of `bound`, and no edges.
pub(crate) fn member_ports(group: &SharedGroup, bound: Bound, carried: Carried) -> Ports {
    let operations = Operations::new(group.clone(), bound, carried);
    let events = GroupEvents { group: group.clone(), moving: operations.moving() };
    Ports::new(events).with_group(operations)
}

/// The ports of a client's master, whose edges go over `store`.
pub(crate) fn master_ports(
    group: &SharedGroup,
    bound: Bound,
    store: StoreExchange,
    carried: Carried,
) -> Ports {
    let operations = Operations::new(group.clone(), bound, carried);
    let (under_way, moving) = (operations.under_way.clone(), operations.moving());
    let events = MasterEvents { group: group.clone(), store: store.events(), under_way, moving };
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
        let mut under_way = self.under_way.lock();
        under_way.push((handle, node));
        self.under_way_changed(&under_way);
        Ok(())
    }

    fn moves_alone(&self) -> bool {
        self.mover.as_ref().is_some_and(Mover::is_there)
    }

    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        let mut under_way = self.under_way.lock();
        if under_way.is_empty() {
            return Ok(());
        }
        let mut group = match &self.mover {
            None => {
                let mut group = self.group.lock();
                group.progress().map_err(group_error)?;
                group
            }
            Some(mover) => match mover.moved().map_err(group_error)? {
                Some(group) => group,
                None => return Ok(()),
            },
        };
        under_way.retain(|(handle, node)| {
            let is_done = group.is_done(*handle);
            if is_done {
                finished.push(*node);
            }
            !is_done
        });
        self.under_way_changed(&under_way);
        Ok(())
    }
}

/// What happens in a group, as a source of [`Events`].
struct GroupEvents {
    group: SharedGroup,
    moving: Option<Arc<Moving<Group>>>,
}

impl Events for GroupEvents {
    fn observe(&mut self) {
        observe(&self.group, self.moving.as_deref());
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        let mut group = self.group.lock();
        if !self.moving.as_ref().is_some_and(|moving| moving.take_news()) {
            group.wait_for_news(deadline);
        }
        Ok(())
    }
}

/// Takes note of this moment, unless another thread moves the group: then there is news in any case.
fn observe(group: &SharedGroup, moving: Option<&Moving<Group>>) {
    match moving {
        None => group.lock().observe(),
        Some(_) => {
            if let Some(mut group) = group.try_lock() {
                group.observe();
            }
        }
    }
}

/// What happens at a client's master, in its group and at its end of the store, which have a fabric each.
struct MasterEvents {
    group: SharedGroup,
    store: StoreEvents,
    under_way: UnderWay,
    moving: Option<Arc<Moving<Group>>>,
}

impl Events for MasterEvents {
    fn observe(&mut self) {
        observe(&self.group, self.moving.as_deref());
        self.store.observe();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        if self.under_way.lock().is_empty() {
            return self.store.wait(deadline);
        }
        self.store.wait(deadline.min(Deadline::after(Duration::ZERO)))?;
        let mut group = self.group.lock();
        let has_news = self.moving.as_ref().is_some_and(|moving| moving.take_news());
        if !has_news && !group.progress().map_err(group_error)? {
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
    use std::collections::HashMap;

    use tensorwire_base::Rank;
    use tensorwire_collectives::GroupOptions;
    use tensorwire_fabric::{Backend, Fabric, FabricConfig, Identity, JobCredentials, Secret};
    use tensorwire_kernels::FoldKind;
    use tensorwire_memory::{Arena, Place};
    use tensorwire_tensor::DType;
    use tensorwire_testkit::mesh::mesh;

    use super::super::VectorReducer;
    use super::*;

    const NODE: NodeId = NodeId(0);

    /// A member of a group of two, whose one vector is the mean of all at `NODE`.
    fn member(fabric: Fabric, me: usize) -> (Operations, Buffer) {
        let soon = Deadline::after(Duration::from_secs(20));
        let ranks = [Rank(0), Rank(1)];
        let mut group = Group::open(fabric, &ranks, me, GroupOptions::default(), soon).unwrap();
        let bytes = 4 << 20;
        let slab = group.alloc(bytes).unwrap();
        let places = [Place { offset: 0, bytes }];
        let buffer = Arena::new(&slab, &places).unwrap().into_buffers().remove(0);
        let value = if me == 0 { 1.0f32 } else { 4.0 };
        let values = vec![value; bytes / 4];
        buffer.write().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
        let vectors = group.bind(std::slice::from_ref(&buffer), soon).unwrap();
        let reducer = VectorReducer::new(DType::F32, FoldKind::Mean).unwrap();
        let call = CollectiveCall::AllReduce(Arc::new(reducer));
        let bound = Bound { calls: HashMap::from([(NODE, (vectors[0], call))]), widest: None };
        (Operations::new(Arc::new(Mutex::new(group)), bound, Carried::default()), buffer)
    }

    fn members(backend: fn() -> Backend) -> Vec<(Operations, Buffer)> {
        let fabrics = mesh(backend, 2);
        std::thread::scope(|scope| {
            let open = |(me, fabric)| scope.spawn(move || member(fabric, me));
            let opening: Vec<_> = fabrics.into_iter().enumerate().map(open).collect();
            opening.into_iter().map(|opening| opening.join().unwrap()).collect()
        })
    }

    /// Waits for the operations of all, and moves none of them.
    fn wait_until_moved(members: &[(Operations, Buffer)]) {
        let soon = Deadline::after(Duration::from_secs(20));
        let is_over = |(operations, _): &(Operations, Buffer)| {
            let (handle, _) = operations.under_way.lock()[0];
            operations.group.lock().is_done(handle)
        };
        while !members.iter().all(is_over) {
            assert!(!soon.passed(), "nobody moved the group");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn without_shared_memory_a_group_reduces_while_its_session_does_other_things() {
        let mut members = members(|| Backend::Tcp);
        for (operations, buffer) in &mut members {
            operations.start(NODE, buffer).unwrap();
        }
        wait_until_moved(&members);
        for (operations, buffer) in &mut members {
            let mut finished = Vec::new();
            while finished.is_empty() {
                operations.finished(&mut finished).unwrap();
            }
            assert_eq!(finished, [NODE]);
            let means = buffer.read().unwrap();
            assert!(bytemuck::cast_slice::<u8, f32>(&means).iter().all(|mean| *mean == 2.5));
        }
    }

    #[test]
    fn a_session_hears_what_its_group_was_moved_by_a_thread() {
        let mut members = members(|| Backend::Tcp);
        let moving: Vec<_> =
            members.iter().map(|(operations, _)| operations.moving().unwrap()).collect();
        assert!(moving.iter().all(|moving| !moving.take_news()));
        for (operations, buffer) in &mut members {
            operations.start(NODE, buffer).unwrap();
        }
        wait_until_moved(&members);
        let (group, moving) = (members[0].0.group.clone(), Some(moving[0].clone()));
        let mut events = GroupEvents { group, moving };
        // there is nothing to wait for until the session has looked
        events.observe();
        let (patience, begun) = (Duration::from_secs(600), std::time::Instant::now());
        events.wait(Deadline::after(patience)).unwrap();
        assert!(begun.elapsed() < patience / 2, "it waited for news that it had");
    }

    #[test]
    fn with_shared_memory_no_thread_moves_a_group() {
        let members = members(|| Backend::Shm);
        assert!(members.iter().all(|(operations, _)| operations.mover.is_none()));
    }

    /// A group of one process.
    fn alone() -> SharedGroup {
        let me = Identity { rank: Rank(0), incarnation: tensorwire_base::Incarnation(1) };
        let job = JobCredentials { job_id: tensorwire_base::JobId(1), secret: Secret([1; 32]) };
        let fabric = Fabric::open(Backend::Shm, FabricConfig::new(me, job)).unwrap();
        let soon = Deadline::after(Duration::from_secs(10));
        let group = Group::open(fabric, &[Rank(0)], 0, GroupOptions::default(), soon).unwrap();
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
