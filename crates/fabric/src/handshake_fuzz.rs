//! The handshake with whoever says anything: strangers, and one who stands between two members and changes what they say.
//! Called by [`crate::fuzz`] alone.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::*;

/// Somebody who says this, whatever he hears.
struct Scripted<'a>(&'a [u8]);

/// One end of a stream in memory, and what is changed of what comes out of it.
struct End<'a> {
    from: Arc<Pipe>,
    to: Arc<Pipe>,
    changes: &'a [u8],
}

#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// Any bytes as a hello and a proof, as a challenge and a verdict, and as what is changed of those of others.
pub fn fuzz_handshake(bytes: &[u8]) {
    let _ = check_magic(bytes);
    if let Some((hello, behind)) = bytes.split_first_chunk::<HELLO_BYTES>() {
        if let Ok(found) = Hello::decode(hello) {
            let again = Hello::decode(&found.encode()).map(|again| again.encode());
            assert_eq!(again, Ok(found.encode()));
        }
        let _ = refusal(hello, job().job_id, member(0));
        let accepted = accept(&mut Scripted(behind), hello, &job(), member(0), |_| Ok(()), soon());
        assert!(accepted.is_err(), "a stranger knows no secret");
    }
    let dialled = dial(&mut Scripted(bytes), &job(), member(1), None, Purpose::Control, soon());
    assert!(dialled.is_err(), "a stranger knows no secret");
    between(bytes);
}

/// Two members agree if and only if nothing was changed of what they said.
fn between(changes: &[u8]) {
    const DIALER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;
    let (of_dialer, of_acceptor) = changes.split_at(changes.len().min(DIALER_BYTES));
    let of_acceptor = &of_acceptor[..of_acceptor.len().min(CHALLENGE_BYTES + VERDICT_BYTES)];
    let (there, back) = (Arc::new(Pipe::default()), Arc::new(Pipe::default()));
    let mut near = End { from: back.clone(), to: there.clone(), changes: of_acceptor };
    let mut far = End { from: there, to: back, changes: of_dialer };
    let (dialled, accepted) = std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let hello = receive(&mut far, "its hello", soon())?;
            accept(&mut far, &hello, &job(), member(0), |_| Ok(()), soon())
        });
        let dialled = dial(&mut near, &job(), member(1), Some(member(0)), Purpose::Control, soon());
        drop(near);
        (dialled, accepting.join().expect("it does not panic"))
    });
    let untouched =
        changes.iter().take(of_dialer.len() + of_acceptor.len()).all(|change| *change == 0);
    assert_eq!(dialled.is_ok() && accepted.is_ok(), untouched);
}

fn job() -> JobCredentials {
    JobCredentials { job_id: JobId(1), secret: Secret([9; 32]) }
}

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(100 + u64::from(rank)) }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

impl Read for Scripted<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Scripted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TimedStream for Scripted<'_> {
    fn set_timeout(&self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for End<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut state = self.from.state.lock();
        while state.bytes.is_empty() && !state.closed {
            self.from.changed.wait(&mut state);
        }
        let count = into.len().min(state.bytes.len());
        for (byte, said) in into.iter_mut().zip(state.bytes.drain(..count)) {
            let change = self.changes.split_off_first();
            *byte = said ^ change.copied().unwrap_or(0);
        }
        Ok(count)
    }
}

impl Write for End<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.state.lock().bytes.extend(bytes);
        self.to.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TimedStream for End<'_> {
    fn set_timeout(&self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        for pipe in [&self.from, &self.to] {
            pipe.state.lock().closed = true;
            pipe.changed.notify_all();
        }
    }
}
