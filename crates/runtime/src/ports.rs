//! What a session needs of the outside: somewhere to exchange the tensors of its edges, a group to reduce vectors
//! with, and one source of events to wait on. Adapters fit the fabric, a store, messages and groups of processes to
//! these ports, so that how tensors are exchanged is one field of a configuration.

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_graph::{EdgeId, NodeId};
use tensorwire_kernels::Shown;
use tensorwire_memory::{Buffer, Slab};
use tensorwire_tensor::TensorSpec;

use crate::error::{AllocError, ExchangeError};

/// The ports of one session, each optional, and the source of events that serves them all.
pub struct Ports {
    pub(crate) events: Box<dyn Events>,
    pub(crate) exchange: Option<Box<dyn TensorExchange>>,
    pub(crate) group: Option<Box<dyn GroupOps>>,
}

impl Ports {
    /// No port yet. `events` reports news of every port that is added.
    pub fn new(events: impl Events + 'static) -> Ports {
        Ports { events: Box::new(events), exchange: None, group: None }
    }

    /// Exchanges the tensors of edges by `exchange`.
    #[must_use]
    pub fn with_exchange(mut self, exchange: impl TensorExchange + 'static) -> Ports {
        self.exchange = Some(Box::new(exchange));
        self
    }

    /// Does collective operations by `group`.
    #[must_use]
    pub fn with_group(mut self, group: impl GroupOps + 'static) -> Ports {
        self.group = Some(Box::new(group));
        self
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ports")
            .field("exchange", &self.exchange.is_some())
            .field("group", &self.group.is_some())
            .finish_non_exhaustive()
    }
}

/// Where the news of a session's ports comes from: an event at any of them ends a wait.
pub trait Events: Send {
    /// Takes note of this moment; [`Events::wait`] returns once anything has happened after it.
    fn observe(&mut self);

    /// Waits until something may have changed since [`Events::observe`], or until the deadline.
    ///
    /// # Errors
    /// When a peer is lost.
    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError>;
}

/// Whether a send or a fetch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// It is under way; [`TensorExchange::finished`] will name the edge once it is over.
    Started,
    /// The queue is full: ask again later. Nothing was sent.
    Full,
}

/// How a tensor in a device's memory gets to its reader.
#[derive(Clone, Debug)]
pub enum DeviceWay {
    /// The reader's device reads it where it is; the exchange brings the news.
    Stays,
    /// The sender's device copies it there, in the memory of the reader's; the exchange brings the news then.
    Copied(Buffer),
    /// The sender's device copies it to these pieces of the host's memory, from which the exchange moves them.
    Staged(Arc<[Buffer]>),
    /// The exchange moves it.
    Sent,
    /// Its size is known only now: it is announced in memory that the exchange was shown ([`TensorExchange::show`]).
    Announced,
    /// Its size is known only now, and no peer reaches the device's memory: the sender's device copies it to pieces of so many
    /// bytes of the host's memory, which is announced ([`TensorExchange::announce_in_pieces`]).
    AnnouncedInPieces { piece_bytes: usize },
}

/// How a tensor that was announced gets into the memory of its reader's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnouncedWay {
    /// The reader's device copies it from where [`TensorExchange::on_peer`] says.
    Mapped,
    /// The exchange reads it ([`TensorExchange::fetch`]) into memory of the device that it was shown.
    Read,
    /// The exchange reads it into pieces of so many bytes of the host's memory ([`TensorExchange::fetch_piece`]), from which the
    /// reader's device copies it.
    InPieces { piece_bytes: usize },
}

/// What was announced, in memory of its sender's device that is mapped here: the whole of that, and the first byte in it.
pub type OnPeer = (Buffer, usize);

/// Sends and receives tensors along the edges of a plan. No call blocks, except [`TensorExchange::give_up`], and
/// [`TensorExchange::fetch`], [`TensorExchange::fetch_piece`] and [`TensorExchange::on_peer`] where the sender's memory is seen for
/// the first time. `epoch` counts the tensors of an edge from 1.
pub trait TensorExchange: Send {
    /// Starts sending `tensor` (none: no bytes, only the signal) along an edge whose size is known. It is
    /// over when the tensor may be written again as far as the exchange is concerned.
    ///
    /// # Errors
    /// When the tensor cannot be sent, or a peer is lost. So everywhere below.
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

    /// Has these pieces, one behind the other in memory of [`TensorExchange::alloc`], as what [`TensorExchange::send_piece`] sends
    /// next of a dynamic edge: it announces the tensor with the first, and tells of each of the others. Over as of
    /// [`TensorExchange::announce`].
    fn announce_in_pieces(&mut self, _edge: EdgeId, _spec: &TensorSpec, _pieces: Arc<[Buffer]>) {}

    /// Returns true once the whole tensor of this epoch can be read; of a dynamic edge, once it is announced.
    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError>;

    /// Returns when a tensor that has arrived was asked for, by the host's monotonic clock; none: its sender sends it unasked.
    fn asked_ns(&self, _edge: EdgeId) -> Option<u64> {
        None
    }

    /// Returns what was announced on a dynamic edge for an epoch that has arrived.
    fn announced(&mut self, edge: EdgeId, epoch: u64) -> Result<TensorSpec, ExchangeError>;

    /// Starts reading the tensor that [`TensorExchange::announced`] described into memory of its size.
    fn fetch(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        into: &Buffer,
        deadline: Deadline,
    ) -> Result<Sending, ExchangeError>;

    /// How what was announced gets into the memory of this process's device.
    fn way_of_announced(&self, _edge: EdgeId) -> AnnouncedWay {
        AnnouncedWay::Mapped
    }

    /// Starts reading the next piece of the tensor that [`TensorExchange::announced`] described, which
    /// [`TensorExchange::pieces_arrived`] said can be read: each of them once, in order. The fetch is over when
    /// [`TensorExchange::acknowledge`] has told that all are read.
    fn fetch_piece(
        &mut self,
        _edge: EdgeId,
        _into: &Buffer,
        _deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        Ok(Sending::Full)
    }

    /// Returns how many pieces that [`TensorExchange::fetch_piece`] began to read are there.
    fn pieces_fetched(&self, _edge: EdgeId) -> usize {
        0
    }

    /// Where what [`TensorExchange::announced`] described lies, for this process's device to read; none, if it does not lie in
    /// memory of a device.
    fn on_peer(
        &mut self,
        _edge: EdgeId,
        _deadline: Deadline,
    ) -> Result<Option<OnPeer>, ExchangeError> {
        Ok(None)
    }

    /// Tells the sender of a dynamic edge that all that was announced is read, by the device or in pieces.
    fn acknowledge(&mut self, _edge: EdgeId, _epoch: u64) -> Result<Sending, ExchangeError> {
        Ok(Sending::Full)
    }

    /// How a tensor in a device's memory goes along an edge.
    fn way_from_device(&self, _edge: EdgeId) -> DeviceWay {
        DeviceWay::Stays
    }

    /// Starts sending the piece of this number, from 0, of a tensor that is [`DeviceWay::Staged`] or
    /// [`DeviceWay::AnnouncedInPieces`]: each of them once, in order. The send is over when all are, and of the latter when its
    /// receiver has read them.
    fn send_piece(
        &mut self,
        _edge: EdgeId,
        _epoch: u64,
        _index: usize,
    ) -> Result<Sending, ExchangeError> {
        Ok(Sending::Full)
    }

    /// Where a tensor lands on its way to a device, in pieces of the host's memory; none: it lands where it belongs.
    fn way_to_device(&self, _edge: EdgeId) -> Option<Arc<[Buffer]>> {
        None
    }

    /// Returns how many of these pieces of an epoch can be read; of a dynamic edge that is not [`AnnouncedWay::Mapped`], how many
    /// pieces of what was announced, or of [`AnnouncedWay::Read`] one, once all of it can be read.
    fn pieces_arrived(&mut self, _edge: EdgeId, _epoch: u64) -> Result<usize, ExchangeError> {
        Ok(0)
    }

    /// Why a device cannot be told of an edge before its tensor is there, or is sent; none: it can, for the exchange takes
    /// no part in where the tensor lies.
    fn why_in_parts(&self, _edge: EdgeId) -> Option<&'static str> {
        Some("crosses by messages or a store")
    }

    /// True if a NIC writes an edge's tensors into a device's memory here.
    fn is_written_by_nic(&self, _edge: EdgeId) -> bool {
        false
    }

    /// Fails if a peer gave up a step whose device computes on: what was read of the peer's memory, or came to that of a device
    /// here, may be torn. To be asked behind the reading, before a run counts as done and before anybody uses what was read. What
    /// sends asks itself.
    fn check_peers(&self) -> Result<(), ExchangeError> {
        Ok(())
    }

    /// Tells peers that this part gives up the step that its device was told, and waits until the exchange moves nothing from
    /// the device's memory any more. Then the device may compute on.
    fn give_up(&mut self, _deadline: Deadline) {}

    /// Takes note that nothing reads what came over an edge any more in this run.
    fn released(&mut self, _edge: EdgeId) {}

    /// True if sends go on while nobody calls, and what a run receives is the same whether sends that the run before has started are
    /// over or not: a run may then be over before its sends, and the next one begin.
    fn moves_alone(&self) -> bool {
        false
    }

    /// Appends the edges whose send or fetch is over to `finished`.
    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError>;

    /// Allocates memory that tensors can be sent from and fetched into, until it is given to
    /// [`TensorExchange::free`].
    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError>;

    /// Lets peers reach memory of the device, which they are told of by [`TensorExchange::announce`], until it is given to
    /// [`TensorExchange::free`]: they map its file, or their NICs read it. This process's NIC reads and writes it likewise.
    fn show(&mut self, _memory: &Slab, _file: Shown) -> Result<(), AllocError> {
        Ok(())
    }

    /// Forgets memory of [`TensorExchange::alloc`] or [`TensorExchange::show`], of which nothing is lent.
    fn free(&mut self, slab: &Slab);
}

/// Collective operations of the group that a session's process belongs to. No call blocks.
pub trait GroupOps: Send {
    /// Starts what all members do together, each with one vector, in place: the all-reduce or broadcast that is
    /// `node` of this part. Until [`GroupOps::finished`] names the node, the tensor is the group's. Of a vector in a device's
    /// memory it is over when the device was told: what uses the vector comes behind on the device.
    ///
    /// # Errors
    /// When the group does not know the node, or a member is lost.
    fn start(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError>;

    /// Appends the nodes whose operation is over to `finished`.
    ///
    /// # Errors
    /// When a member is lost.
    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError>;

    /// True if operations go on while nobody calls: a run may then be over before them, and the next one begin.
    fn moves_alone(&self) -> bool {
        false
    }

    /// True while a device is being told: until [`GroupOps::finished`] names more nodes it is told nothing else.
    fn holds(&self) -> bool {
        false
    }
}
