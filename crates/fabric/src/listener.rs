//! Accepting connections of strangers and peers alike: who says the hello of this job gets a thread, a deadline and
//! a handshake, so that one that says nothing delays nobody. Does not know who is expected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use tensorwire_base::JobId;

use crate::config::Identity;
use crate::handshake::TimedStream;
use crate::lobby::{
    Caller, Handshakes, Lobby, Stranger, StrangerError, StrangerLog, Turn, Unproven,
};
use crate::pulse;

/// How long a stranger may take to introduce itself.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Calls that are taken before those are heard who have called.
const CALLS_MAX: usize = 64;
/// How long to wait before accepting again when the process has no descriptor left.
const BACK_OFF: Duration = Duration::from_millis(20);

/// A silent connection is probed that often, or more rarely where silence may last longer, and given up after so many probes:
/// 20 s in all.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVES_MAX: u32 = 3;

/// A listening socket of either family.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connected socket of either family.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Somebody who calls.
struct Called {
    socket: Socket,
    /// Its address, for the log.
    from: String,
    /// It is of this user, or the system's, as far as that can be seen.
    is_ours: bool,
}

/// A thread that accepts until dropped.
#[derive(Debug)]
pub(crate) struct Acceptor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts accepting callers of `me` and of this job; `greet` runs on a thread of its own for each that has said hello,
    /// and `refused` hears of all others.
    pub(crate) fn start(
        listener: Arc<Listener>,
        (job_id, me): (JobId, Identity),
        greet: impl Fn(Caller<Socket>, Unproven) + Send + Sync + 'static,
        refused: impl Fn(Stranger) + Send + 'static,
    ) -> std::io::Result<Acceptor> {
        listener.set_nonblocking()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags)?);
        let accepting = Accepting {
            listener,
            stop: stop.clone(),
            lobby: Lobby::new(job_id, me, HANDSHAKE_WITHIN),
            log: StrangerLog::default(),
            handshakes: Handshakes::default(),
            greet: Arc::new(greet),
            refused,
        };
        let thread = std::thread::Builder::new().name("fabric-accept".into());
        let thread = thread.spawn(move || accepting.run())?;
        Ok(Acceptor { stop, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // cannot fail: the counter is far from its maximum
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread that accepts has.
struct Accepting<G, R> {
    listener: Arc<Listener>,
    stop: Arc<OwnedFd>,
    lobby: Lobby<Socket>,
    log: StrangerLog,
    handshakes: Handshakes,
    greet: Arc<G>,
    refused: R,
}

impl<G, R> Accepting<G, R>
where
    G: Fn(Caller<Socket>, Unproven) + Send + Sync + 'static,
    R: Fn(Stranger),
{
    fn run(mut self) {
        // what it uses of a processor is no work of the process; nobody may call for any time
        let _watched = pulse::watch_service("fabric-accept");
        let _resting = pulse::resting();
        let mut back_off = false;
        loop {
            let (stopped, calls) = self.sleep(std::mem::take(&mut back_off));
            if stopped {
                return;
            }
            if calls {
                back_off = !self.accept_all();
            }
            let Turn { ready, strangers } = self.lobby.turn(self.handshakes.room());
            strangers.into_iter().for_each(&self.refused);
            for caller in ready {
                let (from, greet) = (caller.from.clone(), self.greet.clone());
                let begun =
                    self.handshakes.begin(caller, move |caller, unproven| greet(caller, unproven));
                if let Err(error) = begun {
                    (self.refused)(Stranger { from, why: error.into() });
                }
            }
        }
    }

    /// Sleeps until somebody calls or says something, or is to be given up; says whether to stop, and whether somebody
    /// calls.
    fn sleep(&self, back_off: bool) -> (bool, bool) {
        let mut polled = vec![
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        polled.extend(self.lobby.streams().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let until = |end: Instant| end.saturating_duration_since(Instant::now());
        let end = match back_off {
            true => Some(BACK_OFF),
            false => self.lobby.next_look().map(until),
        };
        let watched = if back_off { &mut polled[..1] } else { &mut polled[..] };
        // a signal is as good as anything to wake up for
        let _ = rustix::event::poll(watched, end.map(timespec).as_ref());
        (!polled[0].revents().is_empty(), !polled[1].revents().is_empty())
    }

    /// False if this process has no descriptor left.
    fn accept_all(&mut self) -> bool {
        for _ in 0..CALLS_MAX {
            let called = match self.listener.accept() {
                Ok(called) => called,
                Err(error) if is_transient(&error) => return true,
                Err(error) => {
                    let line = self.log.line(|| error.to_string());
                    line.inspect(|error| {
                        tracing::warn!(
                            "cannot accept a connection: {error}; are too many files open?"
                        );
                    });
                    return false;
                }
            };
            let Called { socket, from, is_ours } = called;
            let why = match is_ours {
                true => self.lobby.enter(socket, from.clone()).map_err(StrangerError::Io),
                false => Err(StrangerError::OtherUser),
            };
            let refused = why.unwrap_or_else(|why| Some(Stranger { from, why }));
            refused.into_iter().for_each(&self.refused);
        }
        true
    }
}

fn is_transient(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

impl Listener {
    fn accept(&self) -> std::io::Result<Called> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                Ok(Called { socket: Socket::Tcp(stream), from: from.to_string(), is_ours: true })
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let found = rustix::net::sockopt::socket_peercred(&stream)?;
                let (pid, user) = (found.pid.as_raw_nonzero(), found.uid);
                let from = format!("process {pid} of user {}", user.as_raw());
                let is_ours = user == rustix::process::geteuid() || user.is_root();
                Ok(Called { socket: Socket::Unix(stream), from, is_ours })
            }
        }
    }

    fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Socket {
    /// The bare descriptor, non-blocking, without the handshake's timeouts in its way.
    /// Silence may last for `liveness`.
    pub(crate) fn into_nonblocking(self, liveness: Duration) -> std::io::Result<OwnedFd> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                // a signal must not wait for the acknowledgement of the payload before it
                stream.set_nodelay(true)?;
                keep_alive(&stream, liveness)?;
                Ok(stream.into())
            }
            Socket::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
        }
    }
}

/// A process that dies closes its sockets; a host that dies says nothing, and is asked. A process that
/// is only suspended answers: its kernel does.
fn keep_alive(stream: &TcpStream, liveness: Duration) -> std::io::Result<()> {
    use rustix::net::sockopt;
    let every = KEEPALIVE_EVERY.max(liveness / (KEEPALIVES_MAX + 1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, every)?;
    sockopt::set_tcp_keepintvl(stream, every)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVES_MAX)?)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(buffer),
            Socket::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TimedStream for Socket {
    fn set_timeout(&self, timeout: Duration) -> std::io::Result<()> {
        match self {
            Socket::Tcp(stream) => TimedStream::set_timeout(stream, timeout),
            Socket::Unix(stream) => TimedStream::set_timeout(stream, timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_probed_more_rarely_where_a_host_may_be_silent_for_longer() {
        use rustix::net::sockopt;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let probed_every = |liveness: u64| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let socket = Socket::Tcp(stream).into_nonblocking(Duration::from_secs(liveness));
            let socket = socket.unwrap();
            assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), KEEPALIVES_MAX);
            let every = sockopt::tcp_keepidle(&socket).unwrap();
            assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), every);
            every.as_secs()
        };
        assert_eq!([0, 6, 20, 120].map(probed_every), [5, 5, 5, 30]);
    }
}
