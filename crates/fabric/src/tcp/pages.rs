//! Payload that goes without a copy: its pages go through a pipe into the queue of the socket, which reads them when it sends, and where
//! both ends are of one machine the receiver copies out of them. So they stay as they are until the peer has taken them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use super::outgoing::Bytes;
use crate::raw_io;

/// A payload of less is copied sooner than its pages are passed on and its end is told. A group's segments are smaller: what a group
/// has under way is counted until the write of it is complete.
pub(super) const LENT_BYTES: u64 = 1 << 20;
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

/// The pipe of a socket, which is there while payload goes by its pages: of pages in pipes a system lets a user have so many.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pipe: Option<PagePipe>,
    /// The system passes no pages on: payload is copied.
    refused: bool,
}

/// Why no bytes went by their pages.
#[derive(Debug)]
pub(super) enum PagesError {
    /// The system passes none on.
    Refused,
    Socket(Errno),
}

impl Pages {
    /// True if the next payload may go so. Not where a socket whose peer is gone would end this process: no such call says otherwise.
    pub(super) fn are_lent(&mut self) -> bool {
        if self.refused || cfg!(miri) || raw_io::is_ended_by_a_broken_pipe() {
            return false;
        }
        if self.pipe.is_none() {
            self.pipe = PagePipe::new();
        }
        self.pipe.is_some()
    }

    pub(super) fn pipe(&mut self) -> Option<&mut PagePipe> {
        self.pipe.as_mut()
    }

    /// Nothing is to be sent: the pipe is empty.
    pub(super) fn rest(&mut self) {
        self.pipe = None;
    }

    /// Has all payload copied from now on.
    pub(super) fn refuse(&mut self) {
        (self.pipe, self.refused) = (None, true);
    }
}

impl PagePipe {
    /// None where there can be none that is large.
    fn new() -> Option<PagePipe> {
        let (reads, writes) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        rustix::pipe::fcntl_setpipe_size(&writes, PIPE_BYTES).ok()?;
        Some(PagePipe { reads, writes, bytes: 0 })
    }

    /// Sends the next pages of a payload behind the first `done` bytes, as many as the pipe takes, and the socket of those; returns how
    /// many bytes the socket took.
    pub(super) fn send(
        &mut self,
        payload: &Bytes,
        done: u64,
        socket: &OwnedFd,
    ) -> Result<usize, PagesError> {
        // fits both ways: a count of bytes in memory
        let next = payload.span(done + self.bytes as u64);
        let left = next.bytes() as usize;
        if left > 0 {
            match raw_io::lend_pages(&self.writes, next) {
                Ok(count) => self.bytes += count,
                // the socket makes room in it
                Err(_) if self.bytes > 0 => {}
                Err(Errno::INTR) => return Err(PagesError::Socket(Errno::INTR)),
                Err(_) => return Err(PagesError::Refused),
            }
        }
        let is_last = self.bytes as u64 == payload.bytes - done;
        let more = if is_last { SpliceFlags::empty() } else { SpliceFlags::MORE };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK | more;
        let sent = rustix::pipe::splice(&self.reads, None, socket, None, self.bytes, flags)
            .map_err(PagesError::Socket)?;
        self.bytes -= sent;
        Ok(sent)
    }
}
