//! ZeroMQ as ps-lite drives it, at its best: every process has one socket that all its peers send to, and one to each of
//! them. A message is one multipart message: each of its blocks is a frame, and so is its metadata (Mamidala et al.,
//! Figure 6). Knows not what a block means.
//!
//! * One thread of ZeroMQ's moves the bytes, as in ps-lite; the caller's thread takes messages, and sleeps
//!   while there are none. A second such thread gained nothing on two cores, from 4 KiB to 64 MiB.
//! * No high-water mark: a send never waits and nothing is dropped, so what is unanswered is for the
//!   caller to limit.
//! * A block is copied once on sending: ZeroMQ sends from memory that it owns, and safe Rust cannot lend it
//!   another's until its thread is done with it. The copy is counted. What arrives is lent where it lies.
//! * A connection says the receiver's password before anything of it is kept (ZMTP's PLAIN mechanism); a stranger's
//!   is closed.
//! * Its sealed metadata proves who sent a message (`seals.rs`). What does not open, or not in its turn, is dropped
//!   and counted. Connections have no names: the sockets are a PULL and PUSHes, where ps-lite has a ROUTER and DEALERs. With
//!   names, one that took another's would cut it off.
//! * Metadata goes last. Who hears it, and would send it with other blocks, hears it once the message is there.
//! * ZeroMQ says nothing of a peer that is gone: it connects again and again. Somebody else watches.

mod error;
mod gate;
mod message;
mod store_wire;
mod transport;

use std::collections::HashMap;

use ::zmq::{Context, DONTWAIT, Message, POLLIN, SNDMORE, Socket, SocketType};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::seal::Order;

pub use error::ZmqError;
pub use message::ZmqMessage;
pub use store_wire::ZmqWire;
pub use transport::ZmqTransport;

use crate::seals::{HeadSeals, SEAL_BYTES, lengths};
use crate::{PeerCredentials, PeerIdentity};
use gate::Gate;

/// Of the library: `4.3.5`.
pub fn version() -> String {
    let (major, minor, patch) = ::zmq::version();
    format!("{major}.{minor}.{patch}")
}

/// Of ZeroMQ, for all sockets of a process.
const IO_THREADS: i32 = 1;
/// No limit.
const HIGH_WATER_MARK: i32 = 0;
/// Longest frame: more than any tensor that a process has. What says to be longer is refused before memory is
/// asked for.
const FRAME_BYTES_MAX: usize = 1 << 40;

/// One process among those that send each other messages.
pub struct ZmqNode {
    endpoint: String,
    receiver: Socket,
    /// By peer: what is sent to it goes here.
    senders: HashMap<Rank, Socket>,
    seals: HeadSeals,
    stats: ZmqStats,
    /// Dropped once nobody can connect any more.
    gate: Gate,
    /// Dropped last: it ends when its sockets have.
    context: Context,
}

/// What a node did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZmqStats {
    /// Sent.
    pub messages: u64,
    /// Of the messages sent: one for the metadata and one a block.
    pub frames: u64,
    /// Into frames to send.
    pub bytes_copied: u64,
    /// Messages that no connected peer sent, or that came before.
    pub refused: u64,
    /// Connections of strangers, who said a wrong password.
    pub turned_away: u64,
}

impl ZmqNode {
    /// Listens at `at`: `tcp://127.0.0.1:*` (the system chooses the port) or `ipc://FILE`.
    ///
    /// # Errors
    /// When it cannot listen there, or there are no sockets left.
    pub fn bind(credentials: PeerCredentials, at: &str) -> Result<ZmqNode, ZmqError> {
        let setup = |source| ZmqError::Setup { source };
        let context = Context::new();
        context.set_io_threads(IO_THREADS).map_err(setup)?;
        let seals = HeadSeals::new(credentials, Order::Kept);
        let gate = Gate::open(&context, seals.password(&seals.me()))?;
        let receiver = context.socket(SocketType::PULL).map_err(setup)?;
        gate.guard(&receiver).map_err(setup)?;
        // fits: the limit is a constant
        receiver.set_maxmsgsize(FRAME_BYTES_MAX as i64).map_err(setup)?;
        receiver.set_rcvhwm(HIGH_WATER_MARK).map_err(setup)?;
        receiver.set_linger(0).map_err(setup)?;
        receiver.set_ipv6(is_ipv6(at)).map_err(setup)?;
        let listen = |source| ZmqError::Listen { at: at.to_string(), source };
        receiver.bind(at).map_err(listen)?;
        let endpoint = receiver.get_last_endpoint().map_err(listen)?;
        let endpoint = endpoint.map_err(|_| listen(::zmq::Error::EINVAL))?;
        let (senders, stats) = (HashMap::new(), ZmqStats::default());
        Ok(ZmqNode { endpoint, receiver, senders, seals, stats, gate, context })
    }

    /// Where peers connect to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What peers are to be told, beside the endpoint.
    pub fn identity(&self) -> PeerIdentity {
        self.seals.me()
    }

    /// From now on `peer` can be sent to at `endpoint`, and what it sends is taken. Replaces what was connected
    /// as its rank. Whether anybody is there shows when somebody answers.
    ///
    /// # Errors
    /// When `endpoint` is none, or there are no sockets left.
    pub fn connect(&mut self, peer: PeerIdentity, endpoint: &str) -> Result<(), ZmqError> {
        let (rank, setup) = (peer.rank, |source| ZmqError::Setup { source });
        let sender = self.context.socket(SocketType::PUSH).map_err(setup)?;
        gate::say(&sender, &self.seals.password(&peer)).map_err(setup)?;
        sender.set_sndhwm(HIGH_WATER_MARK).map_err(setup)?;
        sender.set_linger(0).map_err(setup)?;
        sender.set_ipv6(is_ipv6(endpoint)).map_err(setup)?;
        let connect = |source| ZmqError::Connect { rank, endpoint: endpoint.to_string(), source };
        sender.connect(endpoint).map_err(connect)?;
        self.senders.insert(rank, sender);
        self.seals.expect(peer);
        Ok(())
    }

    /// What is not yet sent to `rank` is dropped, and what it sends is refused.
    pub fn disconnect(&mut self, rank: Rank) {
        self.senders.remove(&rank);
        self.seals.forget(rank);
    }

    /// Sends a message; does not wait. Messages to one peer arrive in order.
    ///
    /// # Errors
    /// When `to` is not connected, or ZeroMQ fails.
    pub fn send(&mut self, to: Rank, meta: &[u8], blocks: &[&[u8]]) -> Result<(), ZmqError> {
        let Some(sender) = self.senders.get(&to) else {
            return Err(ZmqError::NoPeer { rank: to });
        };
        let failed = |source| ZmqError::Send { rank: to, source };
        for block in blocks {
            uninterrupted(|| sender.send(*block, DONTWAIT | SNDMORE)).map_err(failed)?;
            self.stats.bytes_copied += block.len() as u64;
        }
        let mut sealed = vec![0; meta.len() + SEAL_BYTES];
        if !self.seals.seal(to, meta, &lengths(blocks.iter().copied()), &mut sealed) {
            return Err(ZmqError::NoPeer { rank: to });
        }
        uninterrupted(|| sender.send(&sealed, DONTWAIT)).map_err(failed)?;
        self.stats.bytes_copied += meta.len() as u64;
        self.stats.frames += 1 + blocks.len() as u64;
        self.stats.messages += 1;
        Ok(())
    }

    /// The next message; none where none has come, or what came was refused.
    ///
    /// # Errors
    /// When ZeroMQ fails.
    pub fn try_receive(&mut self) -> Result<Option<ZmqMessage>, ZmqError> {
        let Some(first) = self.try_receive_frame()? else { return Ok(None) };
        let mut frames = vec![first];
        while frames.last().is_some_and(Message::get_more) {
            // a multipart message comes whole or not at all
            let Some(frame) = self.try_receive_frame()? else { break };
            frames.push(frame);
        }
        let Some(mut sealed) = frames.pop() else { return Ok(None) };
        let content = lengths(frames.iter().map(|block| &block[..]));
        match self.seals.open(&mut sealed, &content) {
            Ok((from, meta)) => Ok(Some(ZmqMessage { from, sealed, meta, blocks: frames })),
            Err(why) => {
                self.seals.refuse(sealed.gets("Peer-Address").unwrap_or("a stranger"), why);
                Ok(None)
            }
        }
    }

    /// The next message; none where none has come by the deadline.
    ///
    /// # Errors
    /// When ZeroMQ fails.
    pub fn receive(&mut self, deadline: Deadline) -> Result<Option<ZmqMessage>, ZmqError> {
        loop {
            let message = self.try_receive()?;
            if message.is_some() || deadline.passed() {
                return Ok(message);
            }
            self.wait(deadline)?;
        }
    }

    /// Sleeps until something has come, or until the deadline; says which.
    ///
    /// # Errors
    /// When ZeroMQ fails.
    pub fn wait(&self, deadline: Deadline) -> Result<bool, ZmqError> {
        let ready = uninterrupted(|| self.receiver.poll(POLLIN, milliseconds(deadline).into()));
        Ok(ready.map_err(|source| ZmqError::Receive { source })? > 0)
    }

    pub fn stats(&self) -> ZmqStats {
        let (refused, turned_away) = (self.seals.refused(), self.gate.turned_away());
        ZmqStats { refused, turned_away, ..self.stats }
    }

    /// Hands to the operating system what was sent, as far as it can by the deadline. A node that is
    /// dropped without this leaves at once, and with it what it still has.
    ///
    /// # Errors
    /// When ZeroMQ fails.
    pub fn close(self, deadline: Deadline) -> Result<(), ZmqError> {
        for sender in self.senders.values() {
            let linger = sender.set_linger(milliseconds(deadline));
            linger.map_err(|source| ZmqError::Setup { source })?;
        }
        Ok(())
    }

    fn try_receive_frame(&self) -> Result<Option<Message>, ZmqError> {
        match uninterrupted(|| self.receiver.recv_msg(DONTWAIT)) {
            Ok(frame) => Ok(Some(frame)),
            Err(::zmq::Error::EAGAIN) => Ok(None),
            Err(source) => Err(ZmqError::Receive { source }),
        }
    }
}

impl std::fmt::Debug for ZmqNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers: Vec<&Rank> = self.senders.keys().collect();
        f.debug_struct("ZmqNode")
            .field("endpoint", &self.endpoint)
            .field("peers", &peers)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Once more where a signal came in between.
fn uninterrupted<T>(mut call: impl FnMut() -> ::zmq::Result<T>) -> ::zmq::Result<T> {
    loop {
        match call() {
            Err(::zmq::Error::EINTR) => {}
            done => return done,
        }
    }
}

/// Until the deadline, rounded up: a wait that ends early would be a spin.
fn milliseconds(deadline: Deadline) -> i32 {
    let left = deadline.remaining().as_micros().div_ceil(1000);
    i32::try_from(left).unwrap_or(i32::MAX)
}

/// ZeroMQ looks for IPv6 only where it is told to.
fn is_ipv6(endpoint: &str) -> bool {
    endpoint.starts_with("tcp://[")
}
