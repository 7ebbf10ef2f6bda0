//! Somebody who hears what an end is told: its peers call him, and he passes on what they say, changes it, or keeps it to
//! himself.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(super) struct Tap {
    at: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// Before the end at `to`; for one caller.
    pub(super) fn before(to: SocketAddr) -> Tap {
        Tap::changing(to, |_| {})
    }

    /// One that changes what the caller says, as it comes.
    pub(super) fn changing(to: SocketAddr, change: impl Fn(&mut [u8]) + Send + 'static) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, heard) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let tap = Tap { at, heard: heard.clone() };
        std::thread::spawn(move || {
            let (caller, _) = listener.accept().unwrap();
            let end = TcpStream::connect(to).unwrap();
            let answers = (end.try_clone().unwrap(), caller.try_clone().unwrap());
            std::thread::spawn(move || pass_on(answers, |_| {}));
            pass_on((caller, end), |said| {
                heard.lock().unwrap().extend_from_slice(said);
                change(said);
            });
        });
        tap
    }

    /// One that tells nobody, and answers nothing; for one caller.
    pub(super) fn silent() -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, heard) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let tap = Tap { at, heard: heard.clone() };
        std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = caller.read(&mut bytes) {
                heard.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        tap
    }

    /// Where he is called.
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    /// What the caller said so far.
    pub(super) fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until `found` something in what the caller said.
    pub(super) fn until<T>(&self, found: impl Fn(&[u8]) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(&self.heard()) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it was not said");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn pass_on((mut from, mut to): (TcpStream, TcpStream), hear: impl Fn(&mut [u8])) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        hear(&mut bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
