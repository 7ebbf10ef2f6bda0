//! What the runtime needs of the outside. Adapters fit the fabric (and, for the baselines, RPC) to it,
//! so that how tensors are exchanged is one field of a configuration.

use tensorwire_base::Deadline;
use tensorwire_graph::EdgeId;
use tensorwire_memory::Buffer;

use crate::error::ExchangeError;

/// Whether a send was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// It is under way; [`Exchange::sent`] will name the edge once the buffer may be written again.
    Started,
    /// The queue is full: ask again later. Nothing was sent.
    Full,
}

/// Sends and receives tensors along the edges of a plan. Calls never block but [`Exchange::wait`].
pub trait Exchange: Send {
    /// Starts writing `tensor` (none: no bytes, only the news) into the receiver's buffer of `edge`.
    /// `epoch` counts the sends of that edge from 1.
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError>;

    /// Appends the edges whose send is over to `finished`.
    fn sent(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError>;

    /// Is the tensor of this epoch in the receive buffer, whole?
    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> bool;

    /// Takes note of this moment; [`Exchange::wait`] returns if anything happened after it.
    fn observe(&mut self);

    /// Waits until something may have changed since [`Exchange::observe`], or until the deadline.
    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError>;
}
