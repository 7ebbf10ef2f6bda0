//! What the runtime needs of the outside. Adapters fit the fabric (and, for the baselines, RPC) to it,
//! so that how tensors are exchanged is one field of a configuration.

use tensorwire_base::Deadline;
use tensorwire_graph::{EdgeId, NodeId};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_tensor::TensorSpec;

use crate::error::ExchangeError;

/// Whether a send or a fetch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// It is under way; [`Exchange::finished`] will name the edge once it is over.
    Started,
    /// The queue is full: ask again later. Nothing was sent.
    Full,
}

/// Sends and receives tensors along the edges of a plan. Calls never block but [`Exchange::wait`], and
/// [`Exchange::fetch`] where the sender's memory is seen for the first time. `epoch` counts the
/// tensors of an edge from 1.
pub trait Exchange: Send {
    /// Starts sending `tensor` (none: no bytes, only the news) along an edge whose size is known. It is
    /// over when the tensor may be written again as far as the exchange is concerned.
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError>;

    /// Tells the receiver of a dynamic edge what `tensor` is and where it lies. It is over when the
    /// receiver has read it; until then the tensor is lent.
    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError>;

    /// Is the tensor of this epoch there to be read, whole? Of a dynamic edge: is it announced?
    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> bool;

    /// What was announced on a dynamic edge for an epoch that has arrived.
    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError>;

    /// Starts reading the tensor that [`Exchange::announced`] told of into memory of its size.
    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError>;

    /// In this run nothing reads any more what came over an edge.
    fn released(&mut self, _edge: EdgeId) {}

    /// Starts what the members of a group do together with one vector each, in place: an all-reduce's or a
    /// broadcast's, which is node `node` of this part. It is over when [`Exchange::collected`] names the node;
    /// until then the tensor is the group's.
    fn collect(&mut self, node: NodeId, _tensor: &Buffer) -> Result<(), ExchangeError> {
        let what = format!("node {} is a group's, and there is no group here", node.0);
        Err(ExchangeError::Other { peer: None, what })
    }

    /// Appends the nodes that were started by [`Exchange::collect`] and are over to `collected`.
    fn collected(&mut self, _collected: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        Ok(())
    }

    /// Appends the edges whose send or fetch is over to `finished`.
    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError>;

    /// Memory that tensors can be sent from and fetched into, until it is given to
    /// [`Exchange::free`].
    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError>;

    /// Forgets memory of [`Exchange::alloc`], of which nothing is lent.
    fn free(&mut self, slab: &Slab);

    /// Takes note of this moment; [`Exchange::wait`] returns if anything happened after it.
    fn observe(&mut self);

    /// Waits until something may have changed since [`Exchange::observe`], or until the deadline.
    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError>;
}
