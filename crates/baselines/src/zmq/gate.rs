//! Who may speak to a node: ZeroMQ asks here before it keeps a message of a connection (RFC 27, ZAP), and whoever
//! did not say the job's token as password (RFC 24, PLAIN) is turned away. A thread of its own answers, since
//! peers come in while the caller computes. Knows not what is said behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use ::zmq::{Context, DONTWAIT, Socket, SocketType};

use super::{ZmqError, uninterrupted};
use crate::PeerToken;

/// Where ZeroMQ asks, in every context.
const ENDPOINT: &str = "inproc://zeromq.zap.01";
/// PLAIN wants one; nobody looks at it.
const USER: &str = "tensorwire";
/// Longest that a connection may take to say the token, in milliseconds: what it sent until then is dropped. A
/// peer that was too slow connects again.
const HANDSHAKE_MS: i32 = 10_000;

/// Open as long as it lives.
pub(super) struct Gate {
    token: PeerToken,
    /// A request here ends the thread.
    stop: Socket,
    thread: Option<JoinHandle<()>>,
    turned_away: Arc<AtomicU64>,
}

impl Gate {
    /// Lets those in who have the token.
    pub(super) fn open(context: &Context, token: PeerToken) -> Result<Gate, ZmqError> {
        let setup = |source| ZmqError::Setup { source };
        let asked = context.socket(SocketType::REP).map_err(setup)?;
        asked.bind(ENDPOINT).map_err(setup)?;
        let stop = context.socket(SocketType::REQ).map_err(setup)?;
        stop.connect(ENDPOINT).map_err(setup)?;
        let turned_away = Arc::new(AtomicU64::new(0));
        let counter = turned_away.clone();
        let thread = std::thread::Builder::new().name("zmq gate".to_string());
        let thread = thread.spawn(move || answer(&asked, token, &counter));
        let thread = Some(thread.map_err(|source| ZmqError::Thread { source })?);
        Ok(Gate { token, stop, thread, turned_away })
    }

    /// What connects to `receiver` from now on comes through the gate. Versions 1 and 2 of ZeroMQ's protocol
    /// have no passwords and are refused: one of theirs that is connecting when a node leaves would end the
    /// process (libzmq up to 4.3.5, `process_routing_id_msg`).
    pub(super) fn guard(&self, receiver: &Socket) -> ::zmq::Result<()> {
        receiver.set_plain_server(true)?;
        receiver.set_handshake_ivl(HANDSHAKE_MS)
    }

    /// `sender` says the token where it connects.
    pub(super) fn admit(&self, sender: &Socket) -> ::zmq::Result<()> {
        sender.set_plain_username(Some(USER))?;
        sender.set_plain_password(Some(&self.token.to_text()))
    }

    /// Connections that said a wrong token.
    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // otherwise there is no thread any more
        if self.stop.send("", DONTWAIT).is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

/// Answers until something else than a request of ZeroMQ's comes.
fn answer(asked: &Socket, token: PeerToken, turned_away: &AtomicU64) {
    while let Ok(request) = uninterrupted(|| asked.recv_multipart(0)) {
        let [version, number, _domain, _address, _routing_id, _mechanism, _user, password] =
            &request[..]
        else {
            return;
        };
        let is_member = token.is_text(password);
        if !is_member {
            turned_away.fetch_add(1, Ordering::Relaxed);
        }
        let (status, why): (&[u8], &[u8]) =
            if is_member { (b"200", b"") } else { (b"400", b"not of this job") };
        let (user, metadata): (&[u8], &[u8]) = (b"", b"");
        let answer = [version, number, status, why, user, metadata];
        if uninterrupted(|| asked.send_multipart(answer, 0)).is_err() {
            return;
        }
    }
}
