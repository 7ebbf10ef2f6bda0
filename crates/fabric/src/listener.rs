//! Accepting connections of strangers and peers alike: each gets a thread of its own, a deadline and
//! a handshake, so that one that says nothing delays nobody. Does not know who is expected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use tensorwire_base::Deadline;

use crate::handshake::TimedStream;

/// How long a stranger may take to introduce itself.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Strangers that introduce themselves at the same time; the next ones wait in the kernel's backlog.
const HANDSHAKES_MAX: usize = 64;
/// How long to wait before accepting again when the process has no descriptor left.
const BACK_OFF: Duration = Duration::from_millis(20);

/// A silent connection is probed that often, and given up after so many probes: 20 s in all.
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

/// A thread that accepts until dropped.
#[derive(Debug)]
pub(crate) struct Acceptor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts accepting; `greet` runs on a thread of its own for each connection. The string is the
    /// remote address, for the log.
    pub(crate) fn start(
        listener: Arc<Listener>,
        greet: impl Fn(Socket, String, Deadline) + Send + Sync + 'static,
    ) -> std::io::Result<Acceptor> {
        listener.set_nonblocking()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags)?);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("fabric-accept".into())
            .spawn(move || accept_loop(&listener, &stopped, Arc::new(greet)))?;
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

fn accept_loop<G>(listener: &Listener, stop: &OwnedFd, greet: Arc<G>)
where
    G: Fn(Socket, String, Deadline) + Send + Sync + 'static,
{
    let greeting = Arc::new(AtomicUsize::new(0));
    loop {
        let full = greeting.load(Ordering::Acquire) >= HANDSHAKES_MAX;
        let mut polled = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        let watched = if full { &mut polled[..1] } else { &mut polled[..] };
        let timeout = full.then(|| timespec(BACK_OFF));
        let _ = rustix::event::poll(watched, timeout.as_ref());
        if !polled[0].revents().is_empty() {
            return;
        }
        if full || polled[1].revents().is_empty() {
            continue;
        }
        match listener.accept() {
            Ok((socket, from)) => spawn_greeting(socket, from, &greeting, &greet),
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; are too many files open?");
                let mut stop = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
                let _ = rustix::event::poll(&mut stop, Some(&timespec(BACK_OFF)));
            }
        }
    }
}

fn spawn_greeting<G>(socket: Socket, from: String, greeting: &Arc<AtomicUsize>, greet: &Arc<G>)
where
    G: Fn(Socket, String, Deadline) + Send + Sync + 'static,
{
    greeting.fetch_add(1, Ordering::AcqRel);
    let (slots, greet) = (greeting.clone(), greet.clone());
    let spawned = std::thread::Builder::new().name("fabric-greet".into()).spawn(move || {
        greet(socket, from, Deadline::after(HANDSHAKE_WITHIN));
        slots.fetch_sub(1, Ordering::AcqRel);
    });
    if let Err(error) = spawned {
        greeting.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!(%error, "no thread for a new connection; it is dropped");
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
    fn accept(&self) -> std::io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok((Socket::Tcp(stream), from.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let credentials = rustix::net::sockopt::socket_peercred(&stream);
                let pid = credentials.map_or(0, |found| found.pid.as_raw_nonzero().get());
                Ok((Socket::Unix(stream), format!("process {pid} of this host")))
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
    pub(crate) fn into_nonblocking(self) -> std::io::Result<OwnedFd> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                // a signal must not wait for the acknowledgement of the payload before it
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
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
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVES_MAX)?)
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
