//! One peer's control connection: an outgoing queue that any thread may fill, and what the peer has
//! told us. Reading is the service's. Does not know what the frames mean to a backend.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tensorwire_base::{Deadline, Rank};

use super::frame::{Attached, Frame, Granted, Reply};
use crate::common::{Core, Peer};
use crate::doorbell::Wake;
use crate::error::{OpenRegionError, SendMessageError};
use crate::mesh::Connection;
use crate::region::RegionDescriptor;
use crate::seal::{Opener, Sealer, Seals};

/// Most bytes of messages that wait for the socket: room for a few of the largest.
const OUTGOING_BYTES_MAX: usize = 8 << 20;
/// Most bytes that wait in all, answers included: beyond it the peer asks without listening.
const ANSWERS_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    pub(crate) socket: Arc<OwnedFd>,
    core: Arc<Core>,
    epoll: Arc<OwnedFd>,
    outgoing: Mutex<Outgoing>,
    /// Of what the peer sends, until the service takes it.
    pub(super) opener: Mutex<Option<Opener>>,
    requests: AtomicU64,
    replies: Mutex<HashMap<u64, Option<Reply>>>,
    /// The peer's Attach, until the backend takes it.
    pub(crate) attach: Mutex<Option<Attached>>,
    pub(crate) ready: AtomicBool,
    pub(crate) goodbye_acked: AtomicBool,
    /// Reading is suspended until the inbox has room.
    pub(crate) paused: AtomicBool,
}

#[derive(Debug)]
struct Outgoing {
    sealer: Sealer,
    frames: VecDeque<Pending>,
    bytes: usize,
    /// The service waits for room in the socket.
    armed: bool,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    sent: usize,
    fd: Option<OwnedFd>,
}

impl Link {
    pub(crate) fn new(
        core: Arc<Core>,
        peer: Arc<Peer>,
        connection: Connection,
        epoll: Arc<OwnedFd>,
    ) -> Link {
        let Connection { socket, seals: Seals { sealer, opener } } = connection;
        let outgoing = Outgoing { sealer, frames: VecDeque::new(), bytes: 0, armed: false };
        Link {
            peer,
            socket: Arc::new(socket),
            core,
            epoll,
            outgoing: Mutex::new(outgoing),
            opener: Mutex::new(Some(opener)),
            requests: AtomicU64::new(0),
            replies: Mutex::default(),
            attach: Mutex::default(),
            ready: AtomicBool::new(false),
            goodbye_acked: AtomicBool::new(false),
            paused: AtomicBool::new(false),
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.peer.member.rank
    }

    /// Queues a frame and sends what the socket takes now. For answers and goodbyes, which wait for
    /// nothing; false if the peer asks and asks and does not listen.
    pub(crate) fn send(&self, frame: Frame) -> bool {
        let mut outgoing = self.outgoing.lock();
        let fits = outgoing.bytes < ANSWERS_BYTES_MAX;
        if fits {
            outgoing.push(frame);
            self.flush_locked(&mut outgoing);
        }
        fits
    }

    /// Queues a message as soon as there is room.
    pub(crate) fn send_message(
        &self,
        body: &[u8],
        deadline: Deadline,
    ) -> Result<(), SendMessageError> {
        let peer = self.rank();
        loop {
            let ticket = self.core.board().ticket();
            if self.peer.gone().is_some() {
                return Err(SendMessageError::PeerLost { peer, cause: self.peer.cause() });
            }
            let mut outgoing = self.outgoing.lock();
            if outgoing.bytes < OUTGOING_BYTES_MAX {
                outgoing.push(Frame::Message { body: body.to_vec() });
                self.flush_locked(&mut outgoing);
                self.core.counters().add(|c| &c.messages, 1);
                return Ok(());
            }
            drop(outgoing);
            if self.core.wait(ticket, deadline) == Wake::TimedOut {
                return Err(SendMessageError::TimedOut { peer });
            }
        }
    }

    /// Asks the peer for a region and waits for the answer.
    pub(crate) fn request_region(
        &self,
        descriptor: RegionDescriptor,
        deadline: Deadline,
    ) -> Result<Granted, OpenRegionError> {
        let peer = self.rank();
        if self.peer.gone().is_some() {
            return Err(OpenRegionError::PeerLost { peer, cause: self.peer.cause() });
        }
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.replies.lock().insert(request, None);
        self.send(Frame::OpenRegion { request, descriptor });
        let answer = loop {
            let ticket = self.core.board().ticket();
            if let Some(reply) = self.replies.lock().get_mut(&request).and_then(Option::take) {
                break Ok(reply);
            }
            if self.peer.gone().is_some() {
                break Err(OpenRegionError::PeerLost { peer, cause: self.peer.cause() });
            }
            if self.core.wait(ticket, deadline) == Wake::TimedOut {
                break Err(OpenRegionError::TimedOut { peer });
            }
        };
        self.replies.lock().remove(&request);
        match answer? {
            Reply::Opened(grant) => Ok(grant),
            Reply::Refused(reason) => Err(OpenRegionError::Refused { peer, reason }),
        }
    }

    /// Hangs up; what was sent still arrives.
    pub(crate) fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Hands an answer to whoever waits for it; nobody does if its deadline has passed.
    pub(super) fn answered(&self, request: u64, reply: Reply) {
        if let Some(place) = self.replies.lock().get_mut(&request) {
            *place = Some(reply);
        }
        self.core.board().ring();
    }

    /// Sends what the socket takes now.
    pub(super) fn flush(&self) {
        self.flush_locked(&mut self.outgoing.lock());
    }

    fn flush_locked(&self, outgoing: &mut Outgoing) {
        let was_full = outgoing.bytes >= OUTGOING_BYTES_MAX;
        while let Some(first) = outgoing.frames.front_mut() {
            match first.send(&self.socket) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(sent) => {
                    first.sent += sent;
                    let done = first.sent == first.bytes.len();
                    outgoing.bytes -= sent;
                    if done {
                        outgoing.frames.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                // the peer is going: its end is noticed, with its cause, where we read
                Err(_) => {
                    outgoing.frames.clear();
                    outgoing.bytes = 0;
                }
            }
        }
        if was_full && outgoing.bytes < OUTGOING_BYTES_MAX {
            self.core.board().ring();
        }
        let unsent = !outgoing.frames.is_empty();
        if unsent != outgoing.armed {
            outgoing.armed = unsent;
            self.arm(unsent);
        }
    }

    /// Tells epoll what to wait for.
    fn arm(&self, unsent: bool) {
        let mut flags = epoll::EventFlags::empty();
        if !self.paused.load(Ordering::Relaxed) {
            flags |= epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        }
        if unsent {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(self.rank().0.into());
        // fails only once the service has let go of the socket, and then nobody waits
        let _ = epoll::modify(&self.epoll, &self.socket, data, flags);
    }

    pub(super) fn pause(&self, paused: bool) {
        let outgoing = self.outgoing.lock();
        self.paused.store(paused, Ordering::Relaxed);
        self.arm(outgoing.armed);
    }
}

impl Outgoing {
    fn push(&mut self, frame: Frame) {
        let (bytes, fd) = frame.encode(&mut self.sealer);
        self.bytes += bytes.len();
        self.frames.push_back(Pending { bytes, sent: 0, fd });
    }
}

impl Pending {
    fn send(&mut self, socket: &OwnedFd) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let rest = [IoSlice::new(&self.bytes[self.sent..])];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = self.fd.as_ref().map(|fd| [fd.as_fd()]);
        if let Some(fds) = &fds {
            let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed, "the space is made for one descriptor");
        }
        let sent = rustix::net::sendmsg(socket, &rest, &mut ancillary, flags)?;
        // it went with the first byte
        self.fd = None;
        Ok(sent)
    }
}
