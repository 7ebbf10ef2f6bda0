//! What the machine itself can do, to hold our figures against: a memcpy into memory of the kind that
//! tensors cross in, and a plain loopback TCP connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::Clock;

/// Bytes that one timing of a memcpy covers at least: below, the clock would be what is measured.
const TIMED_BYTES_MIN: usize = 256 << 10;
/// Longest that the two ends of a connection wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which limit a transport is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// One thread copies from the tensor to pre-faulted shared memory of the same size, both as warm as
    /// the last copy left them.
    Memcpy,
    /// Two threads over 127.0.0.1, blocking, `TCP_NODELAY`: from before the sender's `write_all` of the
    /// tensor to the moment when the receiver's `read_exact` into a warm buffer has all of it, on the
    /// same clock, as our own transfers are measured. An answer gates the next one, unmeasured.
    LoopbackTcp,
}

impl LimitKind {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Memcpy => "memcpy",
            LimitKind::LoopbackTcp => "loopback TCP",
        }
    }
}

/// A limit, ready to be measured with the tensor itself as the source.
#[derive(Debug)]
pub(crate) enum Limit<'a> {
    Memcpy { target: &'a mut [u8] },
    LoopbackTcp(Loopback),
}

impl Limit<'_> {
    /// Nanoseconds that `source` takes once.
    pub(crate) fn measure(&mut self, source: &[u8]) -> std::io::Result<f64> {
        match self {
            Limit::Memcpy { target } => Ok(time_memcpy(source, target)),
            Limit::LoopbackTcp(loopback) => loopback.time(source),
        }
    }
}

fn time_memcpy(source: &[u8], target: &mut [u8]) -> f64 {
    let copies = (TIMED_BYTES_MIN / source.len()).max(1);
    let start_ns = Clock::now_ns();
    for _ in 0..copies {
        target.copy_from_slice(std::hint::black_box(source));
        std::hint::black_box(&mut *target);
    }
    // fits: durations and counts far below 2^53
    (Clock::now_ns() - start_ns) as f64 / copies as f64
}

/// A connection of this process to itself; a thread receives.
#[derive(Debug)]
pub(crate) struct Loopback {
    stream: TcpStream,
}

impl Loopback {
    /// A connection that carries `bytes` bytes at a time.
    pub(crate) fn open(bytes: usize) -> std::io::Result<Loopback> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (peer, from) = listener.accept()?;
        if from != stream.local_addr()? {
            return Err(std::io::Error::other("a stranger connected to the benchmark's listener"));
        }
        peer.set_nodelay(true)?;
        // ends when the stream is dropped
        std::thread::Builder::new().name("loopback".into()).spawn(move || receive(peer, bytes))?;
        Ok(Loopback { stream })
    }

    /// Nanoseconds from before the write until the other thread has it all.
    fn time(&mut self, source: &[u8]) -> std::io::Result<f64> {
        let start_ns = Clock::now_ns();
        self.stream.write_all(source)?;
        let mut stamp = [0; 8];
        self.stream.read_exact(&mut stamp)?;
        // fits: durations far below 2^53
        Ok(u64::from_le_bytes(stamp).saturating_sub(start_ns) as f64)
    }
}

/// Answers each message with the moment at which it was there.
fn receive(mut stream: TcpStream, bytes: usize) {
    // written once, so that its pages are there
    let mut buffer = vec![1; bytes];
    while stream.read_exact(&mut buffer).is_ok() {
        let now = Clock::now_ns();
        std::hint::black_box(&buffer);
        if stream.write_all(&now.to_le_bytes()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_take_some_time_and_the_memcpy_copies() {
        let (source, mut target) = (vec![7; 5000], vec![0; 5000]);
        assert!(Limit::Memcpy { target: &mut target }.measure(&source).unwrap() > 0.0);
        assert_eq!(target, source);
        let mut tcp = Limit::LoopbackTcp(Loopback::open(5000).unwrap());
        for _ in 0..3 {
            assert!(tcp.measure(&source).unwrap() > 0.0);
        }
    }
}
