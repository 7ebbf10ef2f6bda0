//! Payload that goes without a copy: its pages go through a pipe into the queue of the socket, which reads them when it sends, and where
//! both ends are of one machine the receiver copies out of them. So they stay as they are until the peer has taken them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use super::outgoing::Bytes;
use crate::raw_io;

/// A payload of less is copied sooner than its pages are passed on and its end is told.
pub(super) const LENT_BYTES: u64 = 512 << 10;
/// What a system lets anybody have.
const PIPE_BYTES: usize = 1 << 20;

/// A pipe of pages, all of one payload.
#[derive(Debug)]
pub(super) struct PagePipe {
    reads: OwnedFd,
    writes: OwnedFd,
    /// What it holds.
    bytes: usize,
}

/// The pipe of a socket, made when it is first wanted.
#[derive(Debug, Default)]
pub(super) enum Pages {
    #[default]
    Untried,
    By(PagePipe),
    /// The system gives no pipe, or would end the process for a peer that is gone: payload is copied.
    Copied,
}

impl Pages {
    pub(super) fn pipe(&mut self) -> Option<&mut PagePipe> {
        if matches!(self, Pages::Untried) {
            *self = PagePipe::new().map_or(Pages::Copied, Pages::By);
        }
        match self {
            Pages::By(pipe) => Some(pipe),
            Pages::Untried | Pages::Copied => None,
        }
    }
}

impl PagePipe {
    /// None where there can be none that is large, or a socket whose peer is gone would end this process by SIGPIPE.
    fn new() -> Option<PagePipe> {
        if cfg!(miri) || raw_io::is_ended_by_a_broken_pipe() {
            return None;
        }
        let (reads, writes) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        rustix::pipe::fcntl_setpipe_size(&writes, PIPE_BYTES).ok()?;
        Some(PagePipe { reads, writes, bytes: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sends the next pages of a payload behind the first `done` bytes, as many as the pipe takes, and the socket of those; returns how
    /// many bytes the socket took.
    pub(super) fn send(
        &mut self,
        payload: &Bytes,
        done: u64,
        socket: &OwnedFd,
    ) -> Result<usize, Errno> {
        // fits both ways: a count of bytes in memory
        let next = payload.span(done + self.bytes as u64);
        let left = next.bytes() as usize;
        if left > 0 {
            match raw_io::lend_pages(&self.writes, next) {
                Ok(count) => self.bytes += count,
                // the socket makes room in it
                Err(_) if self.bytes > 0 => {}
                Err(error) => return Err(error),
            }
        }
        let is_last = self.bytes as u64 == payload.bytes - done;
        let more = if is_last { SpliceFlags::empty() } else { SpliceFlags::MORE };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK | more;
        let sent = rustix::pipe::splice(&self.reads, None, socket, None, self.bytes, flags)?;
        self.bytes -= sent;
        Ok(sent)
    }
}
