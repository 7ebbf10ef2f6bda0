//! What a worker asks of whole servers. What cannot be asked is not queued, where it would keep what comes behind it waiting: it
//! ends as what a server refuses does, with an error of the next [`KvWorker::progress`].

use super::core::Core;
use super::operations::Work;
use super::{KvHandle, KvWorker};
use crate::batch::ENTRY_BYTES;
use crate::error::StoreError;
use crate::proto::Control;

impl KvWorker {
    /// How servers update from now on, in the form that their [`crate::Updater`] reads. One worker does it,
    /// before the first push.
    pub fn set_optimizer(&mut self, bytes: &[u8]) -> KvHandle {
        self.ask_all(&Control::SetOptimizer { bytes: bytes.to_vec() })
    }

    /// Every server writes its state; a path of its own is made of `path` and its number.
    pub fn save(&mut self, path: &str) -> KvHandle {
        self.ask_all(&Control::Save { path: path.to_string() })
    }

    /// Every server takes the state that [`KvWorker::save`] wrote, where it has as many servers and the same
    /// keys, which have values already. Nothing may be under way.
    pub fn load(&mut self, path: &str) -> KvHandle {
        self.ask_all(&Control::Load { path: path.to_string() })
    }

    /// Calls a function that was registered on a server; what it returns is [`KvWorker::returned`]'s. Waiting for it fails with
    /// [`StoreError::NoServer`] where there is no such server, and with [`StoreError::AskTooLarge`] where it has more bytes than
    /// a message has room for.
    pub fn call(&mut self, server: usize, head: u32, body: &[u8]) -> KvHandle {
        self.ask(&[server], &Control::Call { head, body: body.to_vec() })
    }

    /// What a call that is done returned, once.
    pub fn returned(&mut self, handle: KvHandle) -> Option<Vec<u8>> {
        self.core.take_returned(handle)
    }

    pub(super) fn ask_all(&mut self, what: &Control) -> KvHandle {
        let all: Vec<usize> = (0..self.core.options.servers.len()).collect();
        self.ask(&all, what)
    }

    /// Asks all of these servers, or none.
    fn ask(&mut self, servers: &[usize], what: &Control) -> KvHandle {
        let handle = self.core.open_handle();
        let checked = servers.iter().try_for_each(|server| self.check_ask(*server, what));
        match checked {
            Ok(()) => servers.iter().for_each(|server| {
                let operation = self.core.operation(handle, Work::Plain);
                self.core.proto.ask(operation, *server, what.clone());
            }),
            Err(error) => {
                let operation = self.core.operation(handle, Work::Plain);
                self.core.unasked.push_back((operation, error));
            }
        }
        self.core.close_handle(handle);
        handle
    }

    fn check_ask(&self, server: usize, what: &Control) -> Result<(), StoreError> {
        let servers = self.core.links.len();
        let link = self.core.links.get(server).ok_or(StoreError::NoServer { server, servers })?;
        // without direct writes, messages are of any size; of a server that it does not reach the wire says so itself
        let room = self.wire.direct_from().map(|_| self.wire.message_bytes_max(link.rank));
        let room = room.filter(|room| *room > 0).unwrap_or(usize::MAX).saturating_sub(ENTRY_BYTES);
        match what.payload_bytes() {
            bytes if bytes > room => Err(StoreError::AskTooLarge { server, bytes, room }),
            _ => Ok(()),
        }
    }
}

impl Core {
    /// The next request that could not be asked is over, and why is what the worker fails with.
    pub(super) fn end_unasked(&mut self) {
        if self.failed.is_none()
            && let Some((operation, error)) = self.unasked.pop_front()
        {
            self.done(Some(operation));
            self.failed = Some(error);
        }
    }
}
