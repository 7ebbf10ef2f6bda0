//! Who may connect to a node: ZeroMQ asks here before it keeps a message of a connection (RFC 27, ZAP), and whoever
//! did not say the node's password (RFC 24, PLAIN) is turned away. A thread of its own answers, since
//! peers come in while the caller computes. The password crosses in clear: it keeps noise from being buffered, and proves
//! nothing of what is said behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use ::zmq::{Context, DONTWAIT, Socket, SocketType};

use tensorwire_fabric::lobby::StrangerLog;

use super::{ZmqError, uninterrupted};

/// Where ZeroMQ asks, in every context.
const ENDPOINT: &str = "inproc://zeromq.zap.01";
/// PLAIN wants one; nobody looks at it.
const USER: &str = "tensorwire";
/// Longest that a connection may take to say the password, in milliseconds: what it sent until then is dropped. A
/// peer that was too slow connects again.
const HANDSHAKE_MS: i32 = 10_000;

/// Open as long as it lives.
pub(super) struct Gate {
    /// A request here ends the thread.
    stop: Socket,
    thread: Option<JoinHandle<()>>,
    turned_away: Arc<AtomicU64>,
}

impl Gate {
    /// Lets those in who have the password.
    pub(super) fn open(context: &Context, password: String) -> Result<Gate, ZmqError> {
        let setup = |source| ZmqError::Setup { source };
        let asked = context.socket(SocketType::REP).map_err(setup)?;
        asked.bind(ENDPOINT).map_err(setup)?;
        let stop = context.socket(SocketType::REQ).map_err(setup)?;
        stop.connect(ENDPOINT).map_err(setup)?;
        let turned_away = Arc::new(AtomicU64::new(0));
        let counter = turned_away.clone();
        let thread = std::thread::Builder::new().name("zmq gate".to_string());
        let thread = thread.spawn(move || answer(&asked, &password, &counter));
        let thread = Some(thread.map_err(|source| ZmqError::Thread { source })?);
        Ok(Gate { stop, thread, turned_away })
    }

    /// What connects to `receiver` from now on comes through the gate. Versions 1 and 2 of ZeroMQ's protocol
    /// have no passwords and are refused: one of theirs that is connecting when a node leaves would end the
    /// process (libzmq up to 4.3.5, `process_routing_id_msg`).
    pub(super) fn guard(&self, receiver: &Socket) -> ::zmq::Result<()> {
        receiver.set_plain_server(true)?;
        receiver.set_handshake_ivl(HANDSHAKE_MS)
    }

    /// Connections that said a wrong password.
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

/// `sender` says the password of a node where it connects.
pub(super) fn say(sender: &Socket, password: &str) -> ::zmq::Result<()> {
    sender.set_plain_username(Some(USER))?;
    sender.set_plain_password(Some(password))
}

/// Answers until something else than a request of ZeroMQ's comes.
fn answer(asked: &Socket, right: &str, turned_away: &AtomicU64) {
    let mut log = StrangerLog::default();
    while let Ok(request) = uninterrupted(|| asked.recv_multipart(0)) {
        let [version, number, _domain, address, _routing_id, _mechanism, _user, password] =
            &request[..]
        else {
            return;
        };
        let is_member = is_same(password, right.as_bytes());
        if !is_member {
            turned_away.fetch_add(1, Ordering::Relaxed);
            let line = log.line(|| "it does not say the password of this end".to_string());
            let from = String::from_utf8_lossy(address);
            line.inspect(|why| tracing::warn!(%from, "connection refused: {why}"));
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

/// Looks at all bytes, so that the time does not tell how many were right.
fn is_same(said: &[u8], right: &[u8]) -> bool {
    let differs = said.iter().zip(right).fold(0, |all, (one, other)| all | (one ^ other));
    said.len() == right.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_password_is_the_password() {
        let right = "a9".repeat(32);
        assert!(is_same(right.as_bytes(), right.as_bytes()));
        for wrong in ["", "a9", &"a8".repeat(32), &"a9".repeat(33), &"A9".repeat(32)] {
            assert!(!is_same(wrong.as_bytes(), right.as_bytes()), "{wrong}");
        }
    }
}
