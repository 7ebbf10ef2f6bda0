//! What a link costs cores: their work for bytes that go over it, at both ends and, where the link is the system's own, in between.
//! One process sends and another receives; what the machine's cores did meanwhile is not idle time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;

/// More than caches hold, sent in pieces as a fabric does.
const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// Bytes are sent for so long, behind those that warm up.
const LASTS: Duration = Duration::from_millis(1500);
/// Of one read or write, over a link of 10 Mb/s too, and until the other end is there.
const PATIENCE: Duration = Duration::from_secs(60);
const COMES: Duration = Duration::from_secs(20);

/// What bytes over a link took the machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LinkCores {
    pub bytes: u64,
    pub seconds: f64,
    /// Of all cores, when they were not idle.
    pub busy_s: f64,
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
                std::thread::sleep(Duration::from_millis(5));
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
/// When the receiver is not there or is lost, or the system does not say how long its cores were idle.
pub fn send_over_link(to: SocketAddr) -> io::Result<LinkCores> {
    let comes = Deadline::after(COMES);
    let mut stream = loop {
        match TcpStream::connect(to) {
            Err(_) if !comes.passed() => std::thread::sleep(Duration::from_millis(5)),
            connected => break connected?,
        }
    };
    patient(&stream)?;
    let bytes = vec![1; BYTES];
    let mut round = || -> io::Result<()> {
        bytes.chunks(PIECE).try_for_each(|piece| stream.write_all(piece))?;
        // until all of them have come
        stream.read_exact(&mut [0])
    };
    round()?;
    let (idle_s, start, mut rounds) = (Idle::now()?, Instant::now(), 0);
    while start.elapsed() < LASTS {
        round()?;
        rounds += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let now = Idle::now()?;
    // fits: cores of a machine
    let all_s = seconds * now.cores as f64;
    let busy_s = all_s - (now.seconds - idle_s.seconds);
    if busy_s <= 0.0 {
        return Err(io::Error::other("the system says that its cores were idle while bytes went"));
    }
    // fits: usize is 64 bits wide
    Ok(LinkCores { bytes: rounds * BYTES as u64, seconds, busy_s })
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// How long the machine's cores were idle so far.
struct Idle {
    cores: usize,
    seconds: f64,
}

impl Idle {
    fn now() -> io::Result<Idle> {
        Idle::of(&std::fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| io::Error::other("/proc/stat does not say how long cores were idle"))
    }

    /// As proc(5) has it: user, nice, system, idle, iowait and others, in ticks.
    fn of(stat: &str) -> Option<Idle> {
        let of_core = |line: &&str| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let all = stat.lines().find(|line| line.starts_with("cpu "))?;
        let mut ticks = all.split_whitespace().skip(4).map(str::parse::<u64>);
        let (idle, waiting) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
        // fits: ticks of some centuries
        let seconds = (idle + waiting) as f64 / rustix::param::clock_ticks_per_second() as f64;
        Some(Idle { cores: stat.lines().filter(of_core).count(), seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cores_do_is_what_is_not_idle() {
        let stat = "cpu  10 0 20 300 100 5 5 0 0 0\ncpu0 5 0 10 150 50 5 5 0 0 0\ncpu1 5 0 10 150 50\nintr 7\n";
        let idle = Idle::of(stat).unwrap();
        assert_eq!(idle.cores, 2);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert!((idle.seconds - 400.0 / ticks).abs() < 1e-9);
        assert!(Idle::of("intr 7\n").is_none());
        assert!(Idle::of("cpu  1 2 3\n").is_none());
    }

    #[test]
    fn both_ends_do_half_of_the_work() {
        let took = LinkCores { bytes: 3_000_000_000, seconds: 4.0, busy_s: 2.0 };
        assert!((took.core_gbs() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn bytes_over_a_connection_take_cores_some_time() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let receiving = std::thread::spawn(move || receive(&listener));
        let took = send_over_link(at).unwrap();
        receiving.join().unwrap().unwrap();
        assert!(took.bytes >= BYTES as u64 && took.seconds >= LASTS.as_secs_f64());
        assert!(took.busy_s > 0.0, "{took:?}");
    }
}
