//! A man in the middle: connections pass through him, and he changes what passes at chosen places. He knows nothing of what
//! it means.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::random::Random;

/// What he reads at a time: small frames come as they were sent, mostly one at a time.
const CHUNK_BYTES: usize = 16 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What is done to bytes that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// One bit is another.
    Flip,
    /// They pass twice.
    Repeat,
    /// They do not pass.
    Drop,
    /// Their halves change places.
    Swap,
    /// What is read with them passes behind what is read next.
    Late,
    /// They do not pass, and the connection ends.
    Cut,
}

pub const TRICKS: [Trick; 6] =
    [Trick::Flip, Trick::Repeat, Trick::Drop, Trick::Swap, Trick::Late, Trick::Cut];

/// The way that bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// Who was called.
    Called,
    /// Who called.
    Caller,
}

/// What he does once.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The number of the connection, in the order in which they were made.
    pub connection: usize,
    pub towards: Towards,
    /// Bytes that pass before.
    pub after: u64,
    pub trick: Trick,
    /// At most so many bytes.
    pub bytes: usize,
}

impl Attack {
    /// One on any of so many connections, early or late.
    pub fn draw(random: &mut Random, connections: usize) -> Attack {
        let before = random.of(&[200, 2000, 60_000]);
        Attack {
            connection: random.below(connections),
            towards: random.of(&[Towards::Called, Towards::Caller]),
            after: random.below(before) as u64, // fits: usize is 64 bits wide
            trick: random.of(&TRICKS),
            bytes: 1 + random.below(300),
        }
    }
}

/// Connections that pass through him, until he is dropped.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    attack: Option<Attack>,
    stop: AtomicBool,
    made: AtomicUsize,
    struck: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    pub fn new(attack: Option<Attack>) -> Proxy {
        let shared = Shared {
            attack,
            stop: AtomicBool::new(false),
            made: AtomicUsize::new(0),
            struck: AtomicBool::new(false),
            sockets: Mutex::default(),
            pumps: Mutex::default(),
        };
        Proxy { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Has who calls here talk to `target`.
    pub fn serve(&mut self, listener: TcpListener, target: SocketAddr) {
        listener.set_nonblocking(true).unwrap();
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((caller, _)) => shared.join(caller, target),
                    Err(_) => std::thread::sleep(LOOK_EVERY),
                }
            }
        }));
    }

    /// Has who calls the returned address talk to `target`.
    pub fn before(&mut self, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        self.serve(listener, target);
        at
    }

    /// True once something that passed was changed.
    pub fn has_struck(&self) -> bool {
        self.shared.struck.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        for socket in lock(&self.shared.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let pumps: Vec<_> = lock(&self.shared.pumps).drain(..).collect();
        pumps.into_iter().for_each(|pump| drop(pump.join()));
    }
}

impl Shared {
    fn join(self: &Arc<Shared>, caller: TcpStream, target: SocketAddr) {
        // nobody there: whoever called is hung up on, too
        let Ok(called) = TcpStream::connect(target) else { return };
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let two = |stream: &TcpStream| {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            lock(&self.sockets).push(stream.try_clone().unwrap());
            stream.try_clone().unwrap()
        };
        let (caller_too, called_too) = (two(&caller), two(&called));
        for (towards, from, to) in
            [(Towards::Called, caller, called), (Towards::Caller, called_too, caller_too)]
        {
            let is_meant =
                |attack: &Attack| (attack.connection, attack.towards) == (number, towards);
            let (attack, shared) = (self.attack.filter(is_meant), self.clone());
            let pump = std::thread::spawn(move || shared.pump(attack, from, to));
            lock(&self.pumps).push(pump);
        }
    }

    /// Passes on what `from` says until it says no more, or the attack ends that.
    fn pump(&self, mut attack: Option<Attack>, mut from: TcpStream, mut to: TcpStream) {
        let (mut passed, mut held) = (0, Vec::new());
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            let mut bytes = chunk[..count].to_vec();
            let end = passed + count as u64; // fits: usize is 64 bits wide
            let mut late = Vec::new();
            if let Some(now) = attack.take_if(|attack| attack.after < end) {
                let at = (now.after - passed) as usize; // fits: it is in the chunk
                let before = bytes.clone();
                match now.trick {
                    Trick::Late => late = std::mem::take(&mut bytes),
                    _ => change(&mut bytes, at, now.bytes, now.trick),
                }
                self.struck.fetch_or(bytes != before, Ordering::AcqRel);
                if now.trick == Trick::Cut {
                    let _ = to.write_all(&bytes);
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    return;
                }
            }
            passed = end;
            bytes.append(&mut held);
            held = late;
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        // who cannot be told more hears that
        let _ = from.shutdown(Shutdown::Read);
    }
}

fn change(bytes: &mut Vec<u8>, at: usize, most: usize, trick: Trick) {
    let end = (at + most).min(bytes.len());
    match trick {
        Trick::Flip => bytes[at] ^= 1 << (most % 8),
        Trick::Repeat => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        Trick::Drop => drop(bytes.drain(at..end)),
        Trick::Swap => bytes[at..end].rotate_left((end - at) / 2),
        Trick::Cut => bytes.truncate(at),
        Trick::Late => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_changed_where_it_was_said_and_nowhere_else() {
        let passed = |trick| {
            let called = TcpListener::bind("127.0.0.1:0").unwrap();
            let attack =
                Attack { connection: 1, towards: Towards::Called, after: 3, trick, bytes: 4 };
            let mut proxy = Proxy::new(Some(attack));
            let at = proxy.before(called.local_addr().unwrap());
            let say = |words: &[&[u8]]| {
                let mut caller = TcpStream::connect(at).unwrap();
                let (mut heard, _) = called.accept().unwrap();
                let mut all = Vec::new();
                for word in words {
                    let _ = caller.write_all(word);
                    let mut part = vec![0; word.len()];
                    match heard.set_read_timeout(Some(Duration::from_millis(200))) {
                        Ok(()) => {
                            let count = heard.read(&mut part).unwrap_or(0);
                            all.extend_from_slice(&part[..count]);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                let _ = caller.shutdown(Shutdown::Write);
                let _ = heard.read_to_end(&mut all);
                String::from_utf8(all).unwrap()
            };
            assert_eq!(say(&[b"0123456789"]), "0123456789", "it is another connection");
            assert!(!proxy.has_struck());
            let heard = say(&[b"0123456789", b"abc"]);
            assert!(proxy.has_struck());
            heard
        };
        let heard = TRICKS.map(passed);
        let expected = [
            "012#456789abc",
            "01234563456789abc",
            "012789abc",
            "0125634789abc",
            "abc0123456789",
            "012",
        ];
        assert_eq!(heard, expected);
    }
}
