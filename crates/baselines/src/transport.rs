//! The seam between a way of sending messages and whoever exchanges tensors by it. A message is a head of a
//! few bytes, which says what it is, and a content. Messages of one peer may come in any order: what has an
//! order says so in its head.

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tensorwire_base::{Deadline, Rank};

/// Longest head of a message, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 1 << 10;

/// Sends messages to peers, and hands to a [`MessageSink`] what they send.
pub trait MessageTransport: Send + std::fmt::Debug {
    /// Starts to send; never waits for the peer. The content is dropped once its memory may be written
    /// again. What is for a peer that left in good order goes nowhere: it waits for nothing any more.
    ///
    /// # Errors
    /// When there is no such peer, or it is lost.
    fn send(&mut self, to: Rank, head: &[u8], content: Bytes) -> Result<(), MessageError>;

    /// Takes note of this moment, and hands over what has come if no thread of the transport's own does.
    ///
    /// # Errors
    /// When what is below fails.
    fn observe(&mut self) -> Result<(), MessageError>;

    /// Sleeps until something may have happened since the last [`MessageTransport::observe`], or until the deadline.
    ///
    /// # Errors
    /// When what is below fails.
    fn wait(&mut self, deadline: Deadline) -> Result<(), MessageError>;

    /// Bytes of contents copied on their way here, but for those that the sink copies.
    fn bytes_copied(&self) -> u64;

    /// Leaves in good order: what was sent has arrived when this returns. Nothing is handed over any more.
    ///
    /// # Errors
    /// When that is not so by the deadline.
    fn close(&mut self, deadline: Deadline) -> Result<(), MessageError>;
}

/// Takes what comes, maybe on a thread of the transport's.
pub trait MessageSink: Send + Sync {
    /// A message of a peer's begins: where its content of `bytes` bytes goes. Nothing of the content has been kept.
    ///
    /// # Errors
    /// What is wrong with it: either end of the message fails then.
    fn open(&self, from: Rank, head: &[u8], bytes: usize) -> Result<Box<dyn ContentSink>, String>;

    /// Something went wrong that ends the job; the first counts.
    fn fail(&self, error: MessageError);

    /// Rung whenever any of these two happened, and whenever a content was dropped.
    fn bell(&self) -> &Bell;
}

/// Where the content of one message goes.
pub trait ContentSink: Send {
    /// The next bytes; with those before no more than were told of.
    fn write(&mut self, bytes: &[u8]);

    /// All have been written.
    fn done(self: Box<Self>);
}

/// Why a message did not go or come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct MessageError {
    /// The peer that it happened with.
    pub peer: Option<Rank>,
    pub what: String,
}

impl MessageError {
    pub(crate) fn with(peer: Rank, what: impl std::fmt::Display) -> MessageError {
        MessageError { peer: Some(peer), ..MessageError::here(peer, what) }
    }

    /// Of something that this process lacks for its messages with `peer`.
    pub(crate) fn here(peer: Rank, what: impl std::fmt::Display) -> MessageError {
        MessageError { peer: None, what: format!("messages with rank {peer}: {what}") }
    }
}

/// Counts what happened.
#[derive(Debug, Default)]
pub struct Bell {
    count: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.count.lock() += 1;
        self.rung.notify_all();
    }

    /// How often it was rung.
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until it was rung more often than `seen`, or until the deadline.
    pub fn wait(&self, seen: u64, deadline: Deadline) {
        let mut count = self.count.lock();
        while *count == seen && !deadline.passed() {
            self.rung.wait_for(&mut count, deadline.remaining());
        }
    }
}
