//! What the system's sockets cost cores: both ends of a connection of the loopback on one core, which does nothing else, so that
//! the time of the bytes is all of their work, that of the system in between included.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tensorwire_base::Clock;
use tensorwire_train::Quantiles;

/// More than caches hold, sent in pieces as a fabric does.
const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// The first is not counted.
const ROUNDS: usize = 6;
/// Of one read or write.
const PATIENCE: Duration = Duration::from_secs(10);

/// 10⁹ bytes that a core sends, or receives, in a second in which it does nothing else: half of its time is that of each end.
///
/// # Errors
/// When there is no such connection, or a thread may not choose its core.
pub(super) fn core_gbs() -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    for end in [&sender, &receiver] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
    }
    let core = one_core()?;
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| -> io::Result<()> {
            sched_setaffinity(None, &core)?;
            let bytes = vec![1; BYTES];
            for _ in 0..ROUNDS {
                bytes.chunks(PIECE).try_for_each(|piece| sender.write_all(piece))?;
                // until all of them have come
                sender.read_exact(&mut [0])?;
            }
            Ok(())
        });
        let receiving = scope.spawn(|| -> io::Result<Vec<u64>> {
            sched_setaffinity(None, &core)?;
            let mut bytes = vec![0; BYTES];
            let mut all_ns = Vec::new();
            for _ in 0..ROUNDS {
                // the first piece begins when the last round is answered
                let start_ns = Clock::now_ns();
                receiver.read_exact(&mut bytes)?;
                all_ns.push(Clock::now_ns() - start_ns);
                receiver.write_all(&[1])?;
            }
            Ok(all_ns)
        });
        (joined(sending), joined(receiving))
    });
    sent?;
    // fits: nanoseconds of some seconds
    let behind_first = received?.into_iter().skip(1).map(|ns| ns as f64);
    let median_ns = Quantiles::of(behind_first).map(|ns| ns.median);
    let median_ns = median_ns.ok_or_else(|| io::Error::other("nothing was measured"))?;
    // fits: bytes of a nanosecond are 10⁹ of a second
    Ok(2.0 * BYTES as f64 / median_ns.max(1.0))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a thread panicked"))?
}

/// The first of those that this thread may use.
fn one_core() -> io::Result<CpuSet> {
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core));
    let mut one = CpuSet::new();
    one.set(first.ok_or_else(|| io::Error::other("this thread may use no core"))?);
    Ok(one)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_take_some_time_of_a_core() {
        let gbs = super::core_gbs().unwrap();
        assert!(gbs > 1e-3 && gbs < 1e3, "{gbs} GB/s");
    }
}
