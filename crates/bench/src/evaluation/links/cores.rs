//! What a link costs cores: their work for bytes that go over it, at both ends and, where the link is the system's own, in between.
//! One process sends and another receives, while a thread a core counts: what cannot be counted meanwhile is what bytes took. So it is
//! what computing loses. Cores that are idle meanwhile would be woken for every few packets, which a core that computes is not, and
//! the price of a byte would be too high.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;

use crate::machine::cores;

/// More than caches hold, sent in pieces as a fabric does.
const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// Bytes are sent for so long, behind those that warm up: while nobody else does anything, and while all cores count. These count for
/// as long by themselves, half of it before and half of it behind, so that what else the machine does meets both.
const CARRIES: Duration = Duration::from_millis(500);
const LASTS: Duration = Duration::from_millis(1500);
/// So often that is done: of a slow link bytes take little, and what else a machine does for a moment hides it, or adds to it.
const TRIES: usize = 3;
/// Between two looks at how far it has come.
const COUNTED: u64 = 1 << 16;
/// Of one read or write, over a link of 10 Mb/s too, and until the other end is there.
const PATIENCE: Duration = Duration::from_secs(60);
const COMES: Duration = Duration::from_secs(20);

/// What bytes over a link took the machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LinkCores {
    pub bytes: u64,
    pub seconds: f64,
    /// Of all cores, what bytes took of them.
    pub busy_s: f64,
    /// 10⁹ bytes a second, where cores do nothing else.
    pub carried_gbs: f64,
}

impl LinkCores {
    /// 10⁹ bytes that a core sends, or receives, in a second in which it does nothing else: half of the work is that of each end.
    pub(super) fn core_gbs(self) -> f64 {
        // fits: bytes of some seconds
        2.0 * self.bytes as f64 / self.busy_s / 1e9
    }
}

/// Receives what one sender sends to this address, until it ends.
///
/// # Errors
/// When nobody may listen there, or the sender does not come, says nothing, or is lost.
pub fn receive_over_link(at: SocketAddr) -> io::Result<()> {
    receive(&TcpListener::bind(at)?)
}

fn receive(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let comes = Deadline::after(COMES);
    let mut stream = loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && !comes.passed() => {
                thread::sleep(Duration::from_millis(5));
            }
            accepted => break accepted?.0,
        }
    };
    stream.set_nonblocking(false)?;
    patient(&stream)?;
    let mut bytes = vec![0; BYTES];
    loop {
        match stream.read_exact(&mut bytes) {
            // it has sent all
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        stream.write_all(&[1])?;
    }
}

/// Sends to who receives there for a while, and returns what that took.
///
/// # Errors
/// When the receiver is not there or is lost, or other work of the machine hides what bytes took.
pub fn send_over_link(to: SocketAddr) -> io::Result<LinkCores> {
    let took = sent(to)?;
    match took.busy_s > 0.0 {
        true => Ok(took),
        false => Err(io::Error::other("cores counted as fast while bytes went as without them")),
    }
}

fn sent(to: SocketAddr) -> io::Result<LinkCores> {
    let comes = Deadline::after(COMES);
    let mut stream = loop {
        match TcpStream::connect(to) {
            Err(_) if !comes.passed() => thread::sleep(Duration::from_millis(5)),
            connected => break connected?,
        }
    };
    patient(&stream)?;
    let data = vec![1; BYTES];
    let mut round = || -> io::Result<()> {
        data.chunks(PIECE).try_for_each(|piece| stream.write_all(piece))?;
        // until all of them have come
        stream.read_exact(&mut [0])
    };
    round()?;
    let mut rounds = |lasts: Duration| -> io::Result<(u64, f64)> {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < lasts {
            round()?;
            rounds += 1;
        }
        // fits: usize is 64 bits wide
        Ok((rounds * BYTES as u64, start.elapsed().as_secs_f64()))
    };
    let (carried, carried_s) = rounds(CARRIES)?;
    let (cores, counters) = (cores(), Counters::default());
    let mut beside_counters = || -> io::Result<LinkCores> {
        let before = counters.alone();
        let from = counters.now();
        let (bytes, seconds) = rounds(LASTS)?;
        let meanwhile = counters.now() - from;
        // fits: counts of some seconds
        let rate = (before + counters.alone()) as f64 / LASTS.as_secs_f64();
        let busy_s = lost_s(cores, seconds, meanwhile as f64 / rate);
        // fits: bytes of some seconds
        Ok(LinkCores { bytes, seconds, busy_s, carried_gbs: carried as f64 / carried_s / 1e9 })
    };
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| counters.count());
        }
        let all: io::Result<Vec<LinkCores>> = (0..TRIES).map(|_| beside_counters()).collect();
        counters.enough.store(true, Ordering::Relaxed);
        Ok(median(all?))
    })
}

/// The one of which a byte took neither more nor less than of most others.
fn median(mut all: Vec<LinkCores>) -> LinkCores {
    // fits: bytes of some seconds
    let a_byte = |took: &LinkCores| took.busy_s / took.bytes as f64;
    all.sort_by(|one, other| a_byte(one).total_cmp(&a_byte(other)));
    all[all.len() / 2]
}

/// Seconds of cores that were lost in such a time, in which all of them together counted as far as they do by themselves in another.
fn lost_s(cores: usize, seconds: f64, counted_s: f64) -> f64 {
    // fits: cores of a machine
    cores as f64 * (seconds - counted_s)
}

/// How far threads have counted that do nothing else.
#[derive(Debug, Default)]
struct Counters {
    sum: AtomicU64,
    enough: AtomicBool,
}

impl Counters {
    fn count(&self) {
        while !self.enough.load(Ordering::Relaxed) {
            (0..COUNTED).for_each(|at| {
                std::hint::black_box(at);
            });
            self.sum.fetch_add(COUNTED, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    /// How far they come in half of the time in which bytes are sent.
    fn alone(&self) -> u64 {
        let from = self.now();
        thread::sleep(LASTS / 2);
        self.now() - from
    }
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bytes_take_is_what_cannot_be_counted_meanwhile() {
        // all cores of two counted half as far in 2 s as they would have
        assert!((lost_s(2, 2.0, 1.0) - 2.0).abs() < 1e-9);
        assert!(lost_s(2, 2.0, 2.0).abs() < 1e-9);
        let counters = Counters::default();
        thread::scope(|scope| {
            scope.spawn(|| counters.count());
            let counted = counters.alone();
            counters.enough.store(true, Ordering::Relaxed);
            assert!(counted > 0 && counted.is_multiple_of(COUNTED));
        });
    }

    #[test]
    fn both_ends_do_half_of_the_work() {
        let took = LinkCores { bytes: 3_000_000_000, seconds: 4.0, busy_s: 2.0, carried_gbs: 1.0 };
        assert!((took.core_gbs() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_disturbed_is_left_aside() {
        let took = |busy_s| LinkCores { bytes: 1 << 30, seconds: 1.5, busy_s, carried_gbs: 1.0 };
        let found = median([0.4, -0.1, 0.3].map(took).to_vec());
        assert!((found.busy_s - 0.3).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn bytes_over_a_connection_are_counted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let receiving = std::thread::spawn(move || receive(&listener));
        // what it took of the cores is for a machine that does nothing else
        let took = sent(at).unwrap();
        receiving.join().unwrap().unwrap();
        assert!(took.bytes >= BYTES as u64 && took.seconds >= LASTS.as_secs_f64());
        assert!(took.busy_s.is_finite() && took.carried_gbs > 0.0, "{took:?}");
    }
}
