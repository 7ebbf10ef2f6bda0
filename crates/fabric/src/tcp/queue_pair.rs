//! One socket, both directions: an outgoing queue that posters and the poller drain, and the frame
//! that the poller is reading. Memory in flight is held by the queue. Headers are sealed, in the order in which they go;
//! payload goes as it lies, or in records that are sealed too, and is then copied once at each end.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use tensorwire_base::sync::Mutex;
use tensorwire_base::sync::atomic::{AtomicBool, Ordering};

use super::frame::{HEADER_BYTES, Header, Kind};
use super::outgoing::{Bytes, Outgoing, PIECE_BYTES, RECORD_BYTES, Sent};
use super::receiving::{Received, Receiving};
use crate::api::{Completion, Direction, Signal};
use crate::common::{Core, Credits};
use crate::control::{Link, Suspicion};
use crate::device::Work;
use crate::error::{CompletionError, PostError};
use crate::mesh::Connection;
use crate::raw_io::{self, FRAMES_MAX};
use crate::seal::{Sealer, Seals};

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;

/// Bytes moved for one socket before the next one has its turn.
const TURN_BYTES: usize = 4 << 20;
/// Room for what has come to a socket: several pieces of each of its queue pairs. By itself the system gives it as more and more comes, up to
/// more than that.
const ROOM_BYTES: usize = 2 << 20;
/// Of a payload, at most so many bytes gather before the poller is woken: more would leave the caches.
const WAKE_BYTES: u64 = 256 << 10;
/// Reads of the peer that wait for the socket; its own queue depth keeps it far below.
const RESPONSES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct QueuePair {
    core: Arc<Core>,
    pub(super) link: Arc<Link>,
    pub(super) socket: OwnedFd,
    /// The poller's, and our place in it.
    epoll: Arc<OwnedFd>,
    pub(super) id: u64,
    peer_slots: u64,
    /// Where a broken connection is reported.
    suspicion: Suspicion,
    credits: Arc<Credits>,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    /// Something came since whoever receives last began.
    has_come: AtomicBool,
    /// Epoll has said that nothing comes behind what is there.
    ends: AtomicBool,
    pub(super) said_goodbye: AtomicBool,
    pub(super) goodbye_acked: AtomicBool,
}

#[derive(Debug)]
struct Sending {
    sealer: Sealer,
    /// Where payload is sealed: a record that is being sent, and how much of it was.
    record: Option<(Vec<u8>, usize)>,
    frames: VecDeque<Outgoing>,
    /// Reads that were requested and not answered yet.
    reads: HashMap<u64, PendingRead>,
    requests: u64,
    /// Not all is sent; epoll says when the socket has room.
    is_full: bool,
    /// The connection is over; nothing may be queued any more.
    closed: bool,
}

#[derive(Debug)]
struct PendingRead {
    target: Bytes,
    token: u64,
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum Broken {
    HungUp,
    Io(Errno),
    /// The peer broke the rules; it is told.
    Refused(String),
}

impl QueuePair {
    pub(super) fn new(
        core: Arc<Core>,
        link: Arc<Link>,
        connection: Connection,
        poller: (Arc<OwnedFd>, u64),
        peer_slots: u64,
        suspicion: Suspicion,
    ) -> QueuePair {
        let credits = Credits::new(core.config().queue_depth);
        raw_io::make_room(&connection.socket, ROOM_BYTES);
        let Connection { socket, seals: Seals { sealer, opener } } = connection;
        let record = core.config().encrypt.then(|| (Vec::new(), 0));
        let sending = Sending {
            sealer,
            record: record.clone(),
            frames: VecDeque::new(),
            reads: HashMap::new(),
            requests: 0,
            is_full: false,
            closed: false,
        };
        QueuePair {
            core,
            link,
            socket,
            epoll: poller.0,
            id: poller.1,
            peer_slots,
            suspicion,
            credits,
            sending: Mutex::new(sending),
            receiving: Mutex::new(Receiving::new(opener, record)),
            has_come: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            said_goodbye: AtomicBool::new(false),
            goodbye_acked: AtomicBool::new(false),
        }
    }

    /// Takes work, and sends of it and of what was queued before it what the socket takes, for a turn; `waits`: a piece of it, for whoever
    /// posts waits next, and whoever waits sends and receives in turns.
    pub(super) fn post(&self, work: Work, waits: bool) -> Result<(), PostError> {
        let peer = self.link.rank();
        self.link.peer.check()?;
        work.check_slot(peer, self.peer_slots)?;
        let mut sending = self.sending.lock();
        if sending.closed {
            return Err(PostError::PeerLost { peer, cause: self.link.peer.cause() });
        }
        self.credits.take()?;
        self.core.counters().posted(work.direction, work.bytes);
        let outgoing = sending.frame(work);
        self.queue(&mut sending, outgoing, most(waits));
        Ok(())
    }

    /// Queues a goodbye behind everything that was posted. False if the connection is over.
    pub(super) fn send_goodbye(&self) -> bool {
        self.queue_bare(Kind::Goodbye)
    }

    /// Says whatever it likes, as a peer may that knows the job's secret.
    #[cfg(test)]
    pub(super) fn lie(&self, clear: &[u8; super::frame::CLEAR_BYTES]) -> [u8; HEADER_BYTES] {
        let header = super::frame::seal(clear, &mut self.sending.lock().sealer);
        self.send_raw(&header);
        header
    }

    /// Takes a frame as if it had come; true if payload follows.
    #[cfg(test)]
    pub(super) fn comes(&self, header: Header) -> Result<bool, Broken> {
        self.begin(header).map(|payload| payload.is_some())
    }

    /// Sends what is no frame.
    #[cfg(test)]
    pub(super) fn send_raw(&self, bytes: &[u8]) {
        assert_eq!(raw_io::send(&self.socket, bytes, None), Ok(bytes.len()));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sending.lock().closed
    }

    /// Reports that the connection broke without a reason of its own.
    pub(super) fn suspect(&self, detail: String) {
        self.suspicion.report(self.link.rank(), detail);
    }

    /// Sends of what has not gone, when the socket has room; `waits`: a piece, for whoever waits looks between two of them whether what it
    /// waits for is there.
    pub(super) fn send_turn(&self, waits: bool) -> Result<(), Broken> {
        let mut sending = self.sending.lock();
        if sending.is_full { self.flush(&mut sending, most(waits)) } else { Ok(()) }
    }

    /// Receives what has come, for one turn; returns how many bytes. Where another thread does already, that one receives this too.
    /// `ends`: epoll says that nothing comes behind it. However it ends, epoll knows what to wake for.
    pub(super) fn receive_turn(&self, ends: bool) -> Result<usize, Broken> {
        let mut bytes = 0;
        if ends {
            // before whoever receives looks again: it is said once
            self.ends.store(true, Ordering::SeqCst);
        }
        self.has_come.store(true, Ordering::SeqCst);
        // whoever holds the lock looks again once it has let go of it
        while self.has_come.load(Ordering::SeqCst)
            && let Some(mut receiving) = self.receiving.try_lock()
        {
            self.has_come.store(false, Ordering::SeqCst);
            if receiving.is_over {
                // whoever found that gives the connection up
                break;
            }
            let turn = self.receive_some(&mut receiving);
            receiving.is_over = turn.is_err();
            self.await_enough(&mut receiving);
            drop(receiving);
            bytes += turn?;
            if bytes >= TURN_BYTES {
                // there may be more, and others have their turn before
                self.await_event();
                break;
            }
        }
        Ok(bytes)
    }

    fn receive_some(&self, receiving: &mut Receiving) -> Result<usize, Broken> {
        let mut turn = 0;
        while turn < TURN_BYTES {
            let (received, wanted) = receiving.receive(&self.socket);
            let count = match received {
                Ok(0) => return Err(Broken::HungUp),
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(turn),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Broken::Io(error)),
            };
            match receiving.takes_record() {
                true => self.received_record(receiving, count)?,
                false => self.received(receiving, count)?,
            }
            turn += count;
            if count < wanted && !self.ends.load(Ordering::SeqCst) {
                // the socket is empty; epoll says when it is not. Of an end it has said so already
                return Ok(turn);
            }
        }
        Ok(turn)
    }

    /// What is left of a payload comes for certain: waking for each of its packets would take longer than copying it.
    fn await_enough(&self, receiving: &mut Receiving) {
        let left = receiving.payload.as_ref().map_or(0, |(bytes, _)| bytes.bytes);
        // a part of a record may be here; fits: usize is 64 bits wide
        let left =
            left.saturating_sub(receiving.record.as_ref().map_or(0, |(_, have)| *have as u64));
        // fits: at most WAKE_BYTES
        let wakes_at = left.clamp(1, WAKE_BYTES) as usize;
        if wakes_at != receiving.wakes_at {
            receiving.wakes_at = wakes_at;
            raw_io::set_receive_low_water(&self.socket, wakes_at);
        }
    }

    /// Ends the connection: everything in flight completes with an error.
    pub(super) fn fail(&self) {
        let mut sending = self.sending.lock();
        sending.closed = true;
        let (frames, reads) =
            (std::mem::take(&mut sending.frames), std::mem::take(&mut sending.reads));
        drop(sending);
        let written = frames.into_iter().filter_map(|frame| match frame.then {
            Sent::Complete { token } => Some(token),
            Sent::Nothing | Sent::Raise(_) => None,
        });
        let mut receiving = self.receiving.lock();
        receiving.is_over = true;
        let being_read = receiving.payload.take().and_then(|(_, then)| match then {
            Received::Complete { token } => Some(token),
            Received::Raise(_) => None,
        });
        drop(receiving);
        let read = reads.into_values().map(|read| read.token);
        for token in written.chain(being_read).chain(read) {
            let peer = self.link.rank();
            let cause = self.link.peer.cause();
            self.complete(token, Err(CompletionError::PeerLost { peer, cause }));
        }
        self.core.board().ring();
    }

    /// Takes account of bytes that were read into the payload and what is behind it.
    fn received(&self, receiving: &mut Receiving, count: usize) -> Result<(), Broken> {
        // fits both ways: a count of bytes in memory
        let mut left = count as u64;
        if let Some((bytes, _)) = &mut receiving.payload {
            left -= bytes.advance(left);
        }
        receiving.have += left as usize;
        self.finish_payload(receiving);
        let mut at = 0;
        while let Some(header) = receiving.header(at) {
            at += HEADER_BYTES;
            let header = header?;
            receiving.payload = self.begin(header)?;
            at += receiving.payload_ahead(at);
            self.finish_payload(receiving);
        }
        receiving.ahead.copy_within(at..receiving.have, 0);
        receiving.have -= at;
        Ok(())
    }

    /// Takes account of bytes that were read into the record of a payload.
    fn received_record(&self, receiving: &mut Receiving, count: usize) -> Result<(), Broken> {
        let Receiving { opener, record: Some((record, have)), payload: Some((bytes, _)), .. } =
            receiving
        else {
            return Ok(());
        };
        *have += count;
        if *have == record.len() {
            *have = 0;
            let (sealed, tag) =
                record.split_last_chunk_mut().expect("a record is longer than its tag");
            opener.open(&[], sealed, tag).map_err(|error| Broken::Refused(error.to_string()))?;
            bytes.part(0, RECORD_BYTES).write(sealed);
            bytes.advance(sealed.len() as u64); // fits: usize is 64 bits wide
        }
        self.finish_payload(receiving);
        Ok(())
    }

    /// Checks a frame, before anything of its payload is read. Some if payload follows.
    fn begin(&self, header: Header) -> Result<Option<(Bytes, Received)>, Broken> {
        let Header { kind, key, offset, bytes, request, signal, .. } = header;
        let own_slots = self.core.board().slots();
        if let Some(signal) = signal.filter(|signal| signal.slot.0 as usize >= own_slots) {
            return Err(Broken::Refused(format!(
                "it signals slot {} of {own_slots}",
                signal.slot.0
            )));
        }
        let find = || {
            let found = self.core.regions().check(key, offset, bytes);
            found.map(|region| Bytes { region, offset, bytes }).map_err(Broken::Refused)
        };
        match kind {
            Kind::Write => Ok(Some((find()?, Received::Raise(signal)))),
            Kind::ReadRequest => self.serve_read(find()?, request, signal).map(|()| None),
            Kind::ReadResponse => {
                let mut sending = self.sending.lock();
                if sending.closed {
                    // another thread found that, and ended the reads
                    return Err(Broken::HungUp);
                }
                let read = sending.reads.remove(&request);
                let read =
                    read.ok_or(Broken::Refused("it answers a read nobody asked for".into()))?;
                if read.target.bytes != bytes {
                    // the requester still gets its completion, when the connection ends
                    let wanted = read.target.bytes;
                    sending.reads.insert(request, read);
                    let reason = format!("it answers a read of {wanted} bytes with {bytes}");
                    return Err(Broken::Refused(reason));
                }
                Ok(Some((read.target, Received::Complete { token: read.token })))
            }
            Kind::Goodbye => {
                // said again and again, it would fill the queue of whoever takes no answers
                if !self.said_goodbye.swap(true, Ordering::AcqRel) {
                    self.queue_bare(Kind::GoodbyeAck);
                }
                Ok(None)
            }
            Kind::GoodbyeAck => {
                self.goodbye_acked.store(true, Ordering::Release);
                self.core.board().ring();
                Ok(None)
            }
        }
    }

    fn serve_read(
        &self,
        source: Bytes,
        request: u64,
        signal: Option<Signal>,
    ) -> Result<(), Broken> {
        let mut sending = self.sending.lock();
        if sending.closed {
            return Err(Broken::HungUp);
        }
        if sending.frames.len() >= RESPONSES_MAX {
            return Err(Broken::Refused("it reads and does not take the answers".into()));
        }
        let bytes = source.bytes;
        let header = Header { request, bytes, ..Header::bare(Kind::ReadResponse) };
        let response = Outgoing::new(header, Some(source), Sent::Raise(signal));
        self.queue(&mut sending, response, PIECE_BYTES);
        Ok(())
    }

    fn finish_payload(&self, receiving: &mut Receiving) {
        let Some((_, done)) = receiving.payload.take_if(|(bytes, _)| bytes.bytes == 0) else {
            return;
        };
        match done {
            Received::Raise(None) => {}
            Received::Raise(Some(signal)) => {
                self.core.board().raise(signal.slot.index(), signal.epoch);
            }
            Received::Complete { token } => self.complete(token, Ok(())),
        }
    }

    fn queue_bare(&self, kind: Kind) -> bool {
        let mut sending = self.sending.lock();
        let open = !sending.closed;
        if open {
            let bare = Outgoing::new(Header::bare(kind), None, Sent::Nothing);
            self.queue(&mut sending, bare, PIECE_BYTES);
        }
        open
    }

    /// Queues a frame, and sends about `most` bytes of what is queued where the socket may have room.
    fn queue(&self, sending: &mut Sending, outgoing: Outgoing, most: u64) {
        sending.frames.push_back(outgoing);
        // whoever computes next leaves to the threads what the socket has no room for, and not what somebody else's piece left
        if !sending.is_full || most > PIECE_BYTES {
            // an error is seen by the poller as well, which ends the connection with its cause
            let _ = self.flush(sending, most);
        }
    }

    /// Sends about `most` bytes of what is queued, in pieces, or what the socket takes; of the rest epoll says when it may go.
    fn flush(&self, sending: &mut Sending, most: u64) -> Result<(), Broken> {
        let mut turn = 0;
        while turn < most
            && let Sending { frames, sealer, record, .. } = sending
            && let Some(first) = frames.front_mut()
        {
            let sent = match &mut *record {
                Some((record, done)) => first.send_encrypted(&self.socket, sealer, record, done),
                None => Outgoing::send_first(frames, &self.socket, sealer),
            };
            match sent {
                Ok(count) => turn += count as u64, // fits: usize is 64 bits wide
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Broken::Io(error)),
            }
            // of a record no other frame is a part
            let together = if record.is_some() { 1 } else { FRAMES_MAX };
            for _ in 0..together {
                if !frames.front().is_some_and(|first| first.is_sent(record.as_ref())) {
                    break;
                }
                if let Some(frame) = frames.pop_front() {
                    self.sent(frame.then);
                }
            }
        }
        let unsent = !sending.frames.is_empty();
        if unsent != sending.is_full || unsent && turn >= most {
            // it may have room now; what has come, and others, have their turn before
            sending.is_full = unsent;
            self.arm(unsent);
        }
        Ok(())
    }

    fn sent(&self, then: Sent) {
        match then {
            Sent::Nothing | Sent::Raise(None) => {}
            Sent::Complete { token } => self.complete(token, Ok(())),
            Sent::Raise(Some(signal)) => self.core.board().raise(signal.slot.index(), signal.epoch),
        }
    }

    fn complete(&self, token: u64, result: Result<(), CompletionError>) {
        let completion = Completion { token, peer: self.link.rank(), result };
        self.core.complete(completion, &self.credits);
    }

    /// What epoll says, once each time: that something has come or ends, and, of a socket that was full, that it has room.
    pub(super) fn events(is_full: bool) -> epoll::EventFlags {
        let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if is_full { events | epoll::EventFlags::OUT } else { events }
    }

    /// Has epoll say again what there is.
    fn await_event(&self) {
        let sending = self.sending.lock();
        if !sending.closed {
            self.arm(sending.is_full);
        }
    }

    fn arm(&self, is_full: bool) {
        // fails only once the poller has let go of the socket, and then nobody waits
        let data = epoll::EventData::new_u64(self.id);
        let _ = epoll::modify(&self.epoll, &self.socket, data, QueuePair::events(is_full));
    }
}

/// What is sent at a time by one who waits, or by one who does not.
fn most(waits: bool) -> u64 {
    if waits { PIECE_BYTES } else { TURN_BYTES as u64 } // fits: 4 MiB
}

impl Sending {
    /// The frame that carries a memcpy.
    fn frame(&mut self, work: Work) -> Outgoing {
        let Work { local, local_offset, remote, remote_offset, bytes, direction, signal, token } =
            work;
        let local = Bytes { region: local, offset: local_offset, bytes };
        let (key, offset) = (remote.key(), remote_offset);
        match direction {
            Direction::Write => {
                let header = Header { key, offset, bytes, signal, ..Header::bare(Kind::Write) };
                Outgoing::new(header, Some(local), Sent::Complete { token })
            }
            Direction::Read => {
                let request = self.requests;
                self.requests += 1;
                self.reads.insert(request, PendingRead { target: local, token });
                let bare = Header::bare(Kind::ReadRequest);
                let header = Header { key, offset, bytes, request, signal, ..bare };
                Outgoing::new(header, None, Sent::Nothing)
            }
        }
    }
}
