//! A worker's edges over a store: what the plan would send to a server is pushed as soon as it is there, what
//! it would receive from one is pulled when the step begins. So the graph, the plan and the executor of
//! `dist-sgd` are those of `ps`, and pushes and pulls are nodes of the graph like any.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Clock, Deadline};
use tensorwire_graph::{EdgeId, NodeId, Op, Output, Plan, Transfer};
use tensorwire_kvstore::{Key, KvHandle, KvProgress, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_runtime::{
    DeviceWay, Events, ExchangeError, Ports, Sending, Storage, TensorExchange,
};
use tensorwire_tensor::{DType, TensorSpec};

use super::encoded::{Less, encoded};
use super::keys::{Sent, StoreKeys, carried_value};
use super::rows::sorted_rows;
use crate::carried::Carried;
use crate::config::SendOrder;
use crate::mover::Mover;

/// A [`TensorExchange`] over a store.
#[derive(Debug)]
pub(crate) struct StoreExchange {
    /// Its user asks it for other things between two runs.
    worker: Arc<Mutex<KvWorker>>,
    outbound: HashMap<EdgeId, (String, Key, Sent)>,
    inbound: HashMap<EdgeId, Inbound>,
    /// By edge of the device whose tensor goes by the host: where it lies there, in one piece.
    staged: HashMap<EdgeId, Arc<[Buffer]>>,
    /// By edge: the last that was asked for.
    pulls: HashMap<EdgeId, Asked>,
    pushes: HashMap<KvHandle, EdgeId>,
    /// Of variables that are asked for ahead.
    progressed: HashMap<Key, Progressed>,
    /// Values that are pulled into memory of this process are asked for ahead, too.
    asks_ahead: bool,
    /// Halves of gradients by rows.
    halves: HashMap<Key, (EdgeId, Sent, TensorSpec, Buffer)>,
    /// Halves of what servers make gradients of.
    parts: HashMap<Key, (EdgeId, Buffer)>,
    over: Vec<EdgeId>,
    failed: Option<StoreError>,
    news: Vec<KvProgress>,
    carried: Carried,
    order: SendOrder,
    /// Where something is on a wire: answers come, and what waits for them goes, while kernels run.
    mover: Option<Mover<KvWorker>>,
}

#[derive(Debug)]
struct Inbound {
    name: String,
    key: Key,
    bytes: usize,
    /// None: it is read where its server has it.
    into: Option<Vec<Buffer>>,
    /// It is made of what is pushed in the same step, and asked for behind that.
    follows: bool,
    /// A run that pushes it reads it, too. What an evaluation alone reads is never asked for ahead: nobody would let go of it, and
    /// its server waits for that.
    is_read_where_pushed: bool,
    /// What the value in the store is rounded from, of this type.
    wide: Option<DType>,
}

/// What goes by the host of a worker's device.
#[derive(Debug, Default)]
struct Staging {
    edges: HashMap<EdgeId, Arc<[Buffer]>>,
    /// The device copies a tensor once, whatever it is pushed to.
    tensors: HashMap<Output, Arc<[Buffer]>>,
}

impl Staging {
    /// Has a tensor go by the host, if it lies where servers do not reach it; returns where it lies there then.
    fn stage(
        &mut self,
        worker: &mut KvWorker,
        (edge, key): (EdgeId, Key),
        tensor: Output,
        storage: &Storage,
    ) -> Result<Option<Buffer>, StoreError> {
        let there = storage.buffer(tensor);
        let Some(there) = there.filter(|there| worker.goes_by_host(key, there)) else {
            return Ok(None);
        };
        let pieces = match self.tensors.get(&tensor) {
            Some(pieces) => pieces.clone(),
            None => [worker.alloc(&ValueSpec::dense(DType::U8, there.bytes()))?].into(),
        };
        self.tensors.insert(tensor, pieces.clone());
        self.edges.insert(edge, pieces.clone());
        Ok(pieces.first().cloned())
    }
}

/// A value that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    epoch: u64,
    handle: KvHandle,
    at_ns: u64,
}

/// How far a step is with a variable. Once it is pushed and nothing reads it any more, the next step's is asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Progressed {
    is_pushed: bool,
    is_released: bool,
}

impl StoreExchange {
    /// The edges of `plan.parts[part]`, whose memory `storage` is cut from slabs that the worker knows.
    ///
    /// # Errors
    /// When there is no memory of the host for what goes by it.
    pub(crate) fn new(
        worker: Arc<Mutex<KvWorker>>,
        plan: &Plan,
        part: usize,
        storage: &Storage,
        keys: &StoreKeys,
        carried: Carried,
    ) -> Result<StoreExchange, StoreError> {
        let (mut outbound, mut inbound) = (HashMap::new(), HashMap::new());
        let mut staging = Staging::default();
        let sent = plan.edges.iter().filter(|edge| edge.from == part);
        let pushes: Vec<(Key, NodeId)> =
            sent.filter_map(|edge| Some((keys.updated_by(plan, edge)?.0, edge.send))).collect();
        for edge in &plan.edges {
            let name = edge.name.clone();
            if edge.from == part
                && let Some((key, sent)) = keys.updated_by(plan, edge)
            {
                let source = plan.parts[part].graph.node(edge.send).inputs.first().copied();
                if let Some(source) = source.filter(|_| sent == Sent::Whole) {
                    staging.stage(&mut worker.lock(), (edge.id, key), source, storage)?;
                }
                outbound.insert(edge.id, (name, key, sent));
            } else if edge.to == part
                && edge.transfer != Transfer::Signal
                && let Some(key) = keys.key(carried_value(plan, edge))
            {
                let into = match edge.transfer {
                    Transfer::Reference => None,
                    _ => {
                        let recv = edge.recv.into();
                        let by =
                            staging.stage(&mut worker.lock(), (edge.id, key), recv, storage)?;
                        by.or(storage.buffer(recv)).map(|buffer| vec![buffer])
                    }
                };
                let bytes = edge.bytes().unwrap_or_default();
                let source = plan.parts[edge.from].graph.find(carried_value(plan, edge));
                let follows = source
                    .is_some_and(|source| plan.parts[edge.from].graph.node(source).op == Op::Mean);
                let in_store = worker.lock().spec(key).map(|spec| spec.dtype);
                let wide = in_store
                    .filter(|in_store| *in_store != edge.fact.dtype)
                    .map(|_| edge.fact.dtype);
                let is_read_where_pushed = plan.runs.iter().any(|run| {
                    let has = |node: &NodeId| run.nodes[part].binary_search(node).is_ok();
                    has(&edge.recv) && pushes.iter().any(|(of, send)| *of == key && has(send))
                });
                let this = Inbound { name, key, bytes, into, follows, is_read_where_pushed, wide };
                inbound.insert(edge.id, this);
            }
        }
        let exchange = StoreExchange::over(worker, outbound, inbound);
        Ok(StoreExchange { staged: staging.edges, carried, ..exchange })
    }

    /// Of these edges, all of whose tensors lie where servers reach them.
    fn over(
        worker: Arc<Mutex<KvWorker>>,
        outbound: HashMap<EdgeId, (String, Key, Sent)>,
        inbound: HashMap<EdgeId, Inbound>,
    ) -> StoreExchange {
        let has_wire = {
            let mut worker = worker.lock();
            worker.tell_news();
            worker.is_over_wire()
        };
        let mover = has_wire.then(|| Mover::new(worker.clone()));
        StoreExchange {
            worker,
            outbound,
            inbound,
            staged: HashMap::new(),
            pulls: HashMap::new(),
            pushes: HashMap::new(),
            progressed: HashMap::new(),
            asks_ahead: false,
            halves: HashMap::new(),
            parts: HashMap::new(),
            over: Vec::new(),
            failed: None,
            news: Vec::new(),
            carried: Carried::default(),
            order: SendOrder::default(),
            mover,
        }
    }

    /// It with pushes and pulls in this order.
    pub(crate) fn in_order(self, order: SendOrder) -> StoreExchange {
        StoreExchange { order, ..self }
    }

    /// It with the next step's values asked for as soon as this step is done with a variable: of workers that make the same steps
    /// all of them have that step's pushes, whenever they are asked for.
    pub(crate) fn asking_ahead(self, asks_ahead: bool) -> StoreExchange {
        StoreExchange { asks_ahead, ..self }
    }

    /// What happens at its worker.
    pub(crate) fn events(&self) -> StoreEvents {
        StoreEvents { worker: self.worker.clone() }
    }

    fn progress(&mut self) {
        let mut worker = self.worker.lock();
        if let Err(error) = worker.progress() {
            self.failed.get_or_insert(error);
        }
        worker.news(&mut self.news);
        if let Some(mover) = &self.mover {
            mover.has_work(!worker.is_idle());
        }
        drop(worker);
        for news in self.news.drain(..) {
            if let KvProgress::Sent(handle) = news {
                self.over.extend(self.pushes.remove(&handle));
            }
        }
    }

    fn check(&mut self) -> Result<(), ExchangeError> {
        self.failed.take().map_or(Ok(()), |error| Err(store_error(error)))
    }

    /// What the next forward pass needs first goes first, or what was made first.
    fn priority(&self, key: Key) -> i32 {
        match self.order {
            // fits: variables are few
            SendOrder::Priority => -i32::try_from(key.0).unwrap_or(i32::MAX),
            SendOrder::Ready => 0,
        }
    }

    fn push(&mut self, edge: EdgeId, key: Key, tensor: &Buffer) -> Result<Sending, ExchangeError> {
        self.carried.to_store(tensor.bytes());
        let priority = self.priority(key);
        let handle = self.worker.lock().push(&[key], &[vec![tensor.clone()]], priority);
        self.pushes.insert(handle.map_err(store_error)?, edge);
        self.progressed.entry(key).or_default().is_pushed = true;
        self.ask_ahead(key);
        // it is started as soon as it is there: nothing is gained by waiting for the rest
        self.progress();
        self.check()?;
        Ok(Sending::Started)
    }
}

impl StoreExchange {
    /// Pushes what servers make a gradient of, once both tensors are there.
    fn push_less(
        &mut self,
        edge: EdgeId,
        (key, less, is_second): (Key, Less, bool),
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        let Some((other_edge, other)) = self.parts.remove(&key) else {
            self.parts.insert(key, (edge, tensor.clone()));
            return Ok(Sending::Started);
        };
        let parts = if is_second { [&other, tensor] } else { [tensor, &other] };
        let priority = self.priority(key);
        let mut worker = self.worker.lock();
        let encoded = encoded((&mut worker, &self.carried), key, less, parts);
        let encoded = encoded.map_err(store_error)?;
        worker.push_encoded(key, &encoded, priority).map_err(store_error)?;
        drop(worker);
        self.carried.to_store(encoded.iter().map(Buffer::bytes).sum());
        // what is pushed is a copy
        self.over.extend([other_edge, edge]);
        self.progressed.entry(key).or_default().is_pushed = true;
        self.ask_ahead(key);
        self.progress();
        self.check()?;
        Ok(Sending::Started)
    }

    /// Asks for the tensor of an epoch.
    fn ask(&mut self, edge: EdgeId, epoch: u64) {
        let Some(Inbound { key, bytes, into, wide, .. }) = self.inbound.get(&edge) else { return };
        // who reads it anew is not done with it: that an evaluation was, between two steps, says nothing of this one
        self.progressed.remove(key);
        self.carried.to_store(*bytes);
        let priority = self.priority(*key);
        let mut worker = self.worker.lock();
        let handle = match into {
            Some(into) => match (wide, into.as_slice()) {
                (Some(dtype), [into]) => worker.pull_wide(*key, *dtype, into, priority).map(Some),
                _ => worker.pull(&[*key], std::slice::from_ref(into), priority).map(Some),
            },
            None => worker.pull_mapped(*key, priority),
        };
        match handle {
            Ok(Some(handle)) => {
                self.pulls.insert(edge, Asked { epoch, handle, at_ns: Clock::now_ns() });
            }
            // whoever opened the exchange has looked
            Ok(None) => {
                let key = *key;
                self.failed.get_or_insert(StoreError::NotMapped { key });
            }
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
    }

    /// Asks for the next step's value of a variable as soon as this step is done with it.
    fn ask_ahead(&mut self, key: Key) {
        let progressed = self.progressed.get(&key).copied().unwrap_or_default();
        if !progressed.is_pushed || !progressed.is_released {
            return;
        }
        self.progressed.remove(&key);
        let edge = self.asked_ahead(key);
        let asked = edge.and_then(|edge| Some((edge, self.pulls.get(&edge)?.epoch)));
        if let Some((edge, epoch)) = asked {
            self.ask(edge, epoch + 1);
        }
    }

    /// The edge over which a variable is asked for ahead: of a step that reads it once. What an evaluation reads is another's.
    fn asked_ahead(&self, key: Key) -> Option<EdgeId> {
        let is_its = |inbound: &Inbound| {
            inbound.key == key && inbound.is_read_where_pushed && !inbound.follows
        };
        let mut its = self.inbound.iter().filter(|(_, inbound)| is_its(inbound));
        let (Some((edge, inbound)), None) = (its.next(), its.next()) else { return None };
        let is_free = match &inbound.into {
            None => true,
            // a device may read still what it was told to read
            Some(into) => {
                let is_on_host = into.iter().all(|into| !into.space().is_device());
                self.asks_ahead && is_on_host && !self.staged.contains_key(edge)
            }
        };
        is_free.then_some(*edge)
    }
}

fn store_error(error: StoreError) -> ExchangeError {
    ExchangeError::Other { peer: error.lost_peer(), what: error.to_string() }
}

impl TensorExchange for StoreExchange {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        match (self.outbound.get(&edge), tensor) {
            (Some((_, key, sent @ (Sent::Whole | Sent::Less { .. }))), Some(tensor)) => {
                let key = *key;
                let sending = match *sent {
                    Sent::Less { less, is_second } => {
                        self.push_less(edge, (key, less, is_second), tensor)?
                    }
                    _ => self.push(edge, key, tensor)?,
                };
                if self.parts.contains_key(&key) {
                    return Ok(sending);
                }
                let made =
                    |(_, inbound): &(&EdgeId, &Inbound)| inbound.follows && inbound.key == key;
                if let Some(made) = self.inbound.iter().find(made).map(|(edge, _)| *edge) {
                    self.ask(made, epoch);
                    self.progress();
                    self.check()?;
                }
                Ok(sending)
            }
            // news for a server that is a part of the graph: here it needs none
            _ => {
                self.over.push(edge);
                Ok(Sending::Started)
            }
        }
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        _epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        let Some((_, key, sent)) = self.outbound.get(&edge) else {
            self.over.push(edge);
            return Ok(Sending::Started);
        };
        let (key, sent) = (*key, *sent);
        if sent == Sent::Whole {
            return self.push(edge, key, tensor);
        }
        let here = (edge, sent, spec.clone(), tensor.clone());
        let Some(other) = self.halves.remove(&key) else {
            self.halves.insert(key, here);
            return Ok(Sending::Started);
        };
        let edges = [here.0, other.0];
        let (indices, rows) = if sent == Sent::Indices { (here, other) } else { (other, here) };
        let pushed = {
            let mut worker = self.worker.lock();
            sorted_rows((&mut worker, &self.carried), key, &indices.3, &rows.2, &rows.3)
        };
        let (indices, rows) = pushed.map_err(store_error)?;
        let pushed = self.worker.lock().push_rows(key, &indices, &rows, self.priority(key));
        pushed.map_err(store_error)?;
        self.carried.to_store(rows.bytes() + size_of_val(indices.as_slice()));
        // what is pushed is a copy, in the order of rows
        self.over.extend(edges);
        self.progress();
        self.check()?;
        Ok(Sending::Started)
    }

    /// Servers read what is pushed where it lies, or the NIC does.
    fn way_from_device(&self, edge: EdgeId) -> DeviceWay {
        self.staged.get(&edge).map_or(DeviceWay::Sent, |pieces| DeviceWay::Staged(pieces.clone()))
    }

    fn send_piece(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        index: usize,
    ) -> Result<Sending, ExchangeError> {
        let piece = self.staged.get(&edge).and_then(|pieces| pieces.get(index)).cloned();
        self.send(edge, epoch, piece.as_ref())
    }

    fn way_to_device(&self, edge: EdgeId) -> Option<Arc<[Buffer]>> {
        self.staged.get(&edge).filter(|_| self.inbound.contains_key(&edge)).cloned()
    }

    fn pieces_arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<usize, ExchangeError> {
        self.arrived(edge, epoch).map(usize::from)
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        let Some(Inbound { follows, .. }) = self.inbound.get(&edge) else { return Ok(true) };
        let handle = match self.pulls.get(&edge) {
            Some(asked) if asked.epoch == epoch => asked.handle,
            _ if *follows => return Ok(false),
            _ => {
                // the others are asked for first: all go in one message
                self.ask(edge, epoch);
                return self.check().map(|()| false);
            }
        };
        if !self.worker.lock().is_done(handle) {
            self.progress();
        }
        self.check()?;
        Ok(self.worker.lock().is_done(handle))
    }

    fn asked_ns(&self, edge: EdgeId) -> Option<u64> {
        self.pulls.get(&edge).map(|asked| asked.at_ns)
    }

    fn announced(&mut self, edge: EdgeId, _epoch: u64) -> Result<TensorSpec, ExchangeError> {
        let name = self.inbound.get(&edge).map(|inbound| inbound.name.clone());
        let what = format!("'{}' has no size of its own in a store", name.unwrap_or_default());
        Err(ExchangeError::Other { peer: None, what })
    }

    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        _into: &Buffer,
        _deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        self.announced(edge, epoch).map(|_| Sending::Started)
    }

    fn released(&mut self, edge: EdgeId) {
        let Some(Inbound { key, into, .. }) = self.inbound.get(&edge) else { return };
        let key = *key;
        match into {
            None => self.worker.lock().release(key),
            Some(_) if self.asked_ahead(key) == Some(edge) => {}
            Some(_) => return,
        }
        self.progressed.entry(key).or_default().is_released = true;
        self.ask_ahead(key);
        self.progress();
    }

    /// A value that is asked for behind a push has it, whether or not the push is over.
    fn moves_alone(&self) -> bool {
        self.mover.as_ref().is_some_and(Mover::is_there)
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        if self.over.is_empty() {
            self.progress();
        }
        self.check()?;
        finished.append(&mut self.over);
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        self.worker.lock().alloc_slab(bytes).map_err(store_error)
    }

    /// Servers may know the memory for as long as the job runs.
    fn free(&mut self, _slab: &Slab) {}
}

/// What happens at a worker of a store, as a source of [`Events`].
#[derive(Debug)]
pub(crate) struct StoreEvents {
    worker: Arc<Mutex<KvWorker>>,
}

impl Events for StoreEvents {
    fn observe(&mut self) {
        self.worker.lock().observe();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        let mut worker = self.worker.lock();
        worker.progress().map_err(store_error)?;
        // what the thread moved is news as well
        if !worker.has_news() {
            worker.wait_for_news(deadline);
        }
        worker.progress().map(|_| ()).map_err(store_error)
    }
}

impl From<StoreExchange> for Ports {
    fn from(exchange: StoreExchange) -> Ports {
        Ports::new(exchange.events()).with_exchange(exchange)
    }
}

#[cfg(test)]
#[path = "moved_tests.rs"]
mod moved_tests;
