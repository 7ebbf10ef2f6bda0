//! Where callers wait until they have said who they are. Strangers cost a place here and no thread: whoever says
//! something else than a hello of this job is turned away at once, and where there are too many, those who say nothing go
//! first, the oldest of them. What is said of them is limited in rate. Knows no secret.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use tensorwire_base::JobId;

use crate::config::Identity;
use crate::handshake::{self, HELLO_BYTES, HandshakeRefusal, TimedStream};

/// Callers that may wait: at a thousand strangers a second each has a quarter of a second to say its hello.
const PLACES: usize = 256;
/// Callers that prove themselves at the same time.
const HANDSHAKES_MAX: usize = 64;
/// How long one may take before another one gets its slot, where all are taken.
const GRACE: Duration = Duration::from_secs(1);
/// How soon to look whether a slot is free.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Lines about strangers in a window.
const LINES_MAX: u32 = 5;
const WINDOW: Duration = Duration::from_secs(10);

/// Callers that have not said their hello.
#[derive(Debug)]
pub struct Lobby<S> {
    job_id: JobId,
    me: Identity,
    patience: Duration,
    waiting: VecDeque<Waiting<S>>,
}

#[derive(Debug)]
struct Waiting<S> {
    caller: Caller<S>,
    have: usize,
    since: Instant,
}

/// A caller and its hello, which proves nothing yet.
#[derive(Debug)]
pub struct Caller<S> {
    pub stream: S,
    /// Its address, for the log.
    pub from: String,
    pub hello: [u8; HELLO_BYTES],
}

/// A caller that went without a handshake.
#[derive(Debug)]
pub struct Stranger {
    pub from: String,
    pub why: StrangerError,
}

/// Why a caller went.
#[derive(Debug, thiserror::Error)]
pub enum StrangerError {
    #[error("turned away: {0}")]
    Refused(#[from] HandshakeRefusal),
    #[error("it hung up before it had said who it is")]
    HungUp,
    #[error("it did not say who it is within {0:?}")]
    Silent(Duration),
    #[error("it had not proven who it is while many others called")]
    Crowded,
    #[error("it belongs to another user of this host")]
    OtherUser,
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("the connection cannot be accepted: {0}; are too many files open?")]
    NotTaken(std::io::Error),
}

/// What a look at those who wait came to.
#[derive(Debug)]
pub struct Turn<S> {
    /// Those who have said a hello of this job, in the order in which they came. They block again.
    pub ready: Vec<Caller<S>>,
    pub strangers: Vec<Stranger>,
}

enum Heard {
    /// More is to come.
    Part,
    All,
}

impl<S: TimedStream + AsFd> Lobby<S> {
    /// Whoever calls here wants `me`, of this job, and says so within `patience`.
    pub fn new(job_id: JobId, me: Identity, patience: Duration) -> Lobby<S> {
        Lobby { job_id, me, patience, waiting: VecDeque::new() }
    }

    /// Takes in a caller. Returns whoever had to make room.
    ///
    /// # Errors
    /// When its connection is broken.
    pub fn enter(&mut self, stream: S, from: String) -> std::io::Result<Option<Stranger>> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        let crowded = |oldest: Waiting<S>| {
            let (from, why) = (oldest.caller.from, StrangerError::Crowded);
            Stranger { from, why }
        };
        let is_full = self.waiting.len() >= PLACES;
        // who has said hello is more likely a member
        let silent = self.waiting.iter().position(|waiting| waiting.have < HELLO_BYTES);
        let oldest =
            is_full.then(|| self.waiting.remove(silent.unwrap_or(0)).map(crowded)).flatten();
        let caller = Caller { stream, from, hello: [0; HELLO_BYTES] };
        self.waiting.push_back(Waiting { caller, have: 0, since: Instant::now() });
        Ok(oldest)
    }

    /// Hears what those who wait have said. Does not wait. `most`: how many may be ready; others stay.
    pub fn turn(&mut self, most: usize) -> Turn<S> {
        let mut turn = Turn { ready: Vec::new(), strangers: Vec::new() };
        let have_spoken = self.have_spoken();
        for (mut waiting, has_spoken) in
            std::mem::take(&mut self.waiting).into_iter().zip(have_spoken)
        {
            let is_silent = waiting.have < HELLO_BYTES && !has_spoken;
            if is_silent && waiting.since.elapsed() < self.patience {
                self.waiting.push_back(waiting);
                continue;
            }
            if turn.ready.len() == most && waiting.have == HELLO_BYTES {
                self.waiting.push_back(waiting);
                continue;
            }
            match self.hear(&mut waiting) {
                Ok(Heard::All) if turn.ready.len() == most => self.waiting.push_back(waiting),
                Ok(Heard::All) => match rustix::io::ioctl_fionbio(&waiting.caller.stream, false) {
                    Ok(()) => turn.ready.push(waiting.caller),
                    Err(error) => {
                        let why = std::io::Error::from(error).into();
                        turn.strangers.push(Stranger { from: waiting.caller.from, why });
                    }
                },
                Ok(Heard::Part) => self.waiting.push_back(waiting),
                Err(why) => turn.strangers.push(Stranger { from: waiting.caller.from, why }),
            }
        }
        turn
    }

    /// Those who have not said all of their hello, for whoever sleeps until one of them says something.
    pub fn streams(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let silent = self.waiting.iter().filter(|waiting| waiting.have < HELLO_BYTES);
        silent.map(|waiting| waiting.caller.stream.as_fd())
    }

    /// When to look again at those who wait, though nobody says anything; none where nobody waits.
    pub fn next_look(&self) -> Option<Instant> {
        let is_held_up = self.waiting.iter().any(|waiting| waiting.have == HELLO_BYTES);
        let end = self.waiting.front().map(|waiting| waiting.since + self.patience);
        if is_held_up { Some(Instant::now() + LOOK_AGAIN) } else { end }
    }

    /// For each of those who wait, whether there is something to hear: asked all at once, since most say nothing.
    fn have_spoken(&self) -> Vec<bool> {
        let streams = self.waiting.iter().map(|waiting| waiting.caller.stream.as_fd());
        let mut polled: Vec<PollFd<'_>> =
            streams.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_known = rustix::event::poll(&mut polled, Some(&now)).is_ok();
        // where that cannot be asked, each is read from
        polled.iter().map(|fd| !is_known || !fd.revents().is_empty()).collect()
    }

    fn hear(&self, waiting: &mut Waiting<S>) -> Result<Heard, StrangerError> {
        let Waiting { caller, have, since } = waiting;
        while *have < HELLO_BYTES {
            match caller.stream.read(&mut caller.hello[*have..]) {
                Ok(0) => return Err(StrangerError::HungUp),
                Ok(count) => {
                    *have += count;
                    handshake::check_magic(&caller.hello[..*have])?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if *have < HELLO_BYTES {
            return match since.elapsed() < self.patience {
                true => Ok(Heard::Part),
                false => Err(StrangerError::Silent(self.patience)),
            };
        }
        if let Some((why, answer)) = handshake::refusal(&caller.hello, self.job_id, self.me) {
            // it fits the empty socket, and one that does not take it needs no answer
            let _ = caller.stream.write(&answer);
            return Err(why.into());
        }
        Ok(Heard::All)
    }
}

/// Callers that prove themselves, each on a thread of its own. Where there are too many, one that takes long is hung up on.
#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    begun: u64,
    /// By the number of the handshake, in their order.
    going_on: VecDeque<(u64, Instant, OwnedFd)>,
}

/// The slot of a caller that has not proven itself.
#[derive(Debug)]
pub struct Unproven {
    slots: Arc<Mutex<Slots>>,
    number: u64,
}

impl Handshakes {
    /// How many more may begin.
    pub fn room(&self) -> usize {
        let slots = self.0.lock();
        let slow = slots.going_on.iter().take_while(|(_, begun, _)| begun.elapsed() >= GRACE);
        HANDSHAKES_MAX - slots.going_on.len() + slow.count()
    }

    /// Has a caller prove itself in `run`, on a thread of its own.
    ///
    /// # Errors
    /// When there is no thread or descriptor left.
    pub fn begin<S: AsFd + Send + 'static>(
        &self,
        caller: Caller<S>,
        run: impl FnOnce(Caller<S>, Unproven) + Send + 'static,
    ) -> std::io::Result<()> {
        let handle = caller.stream.as_fd().try_clone_to_owned()?;
        let mut slots = self.0.lock();
        if slots.going_on.len() >= HANDSHAKES_MAX
            && let Some((_, _, oldest)) = slots.going_on.pop_front()
        {
            // its thread sees that and ends
            let _ = rustix::net::shutdown(&oldest, rustix::net::Shutdown::Both);
        }
        let number = slots.begun;
        slots.begun += 1;
        slots.going_on.push_back((number, Instant::now(), handle));
        drop(slots);
        let unproven = Unproven { slots: self.0.clone(), number };
        let thread = std::thread::Builder::new().name("handshake".into());
        thread.spawn(move || run(caller, unproven)).map(drop)
    }
}

impl Unproven {
    /// Gives the slot back: the caller has proven itself, and from now on nobody hangs up on it to make room. To be said
    /// before the caller is told.
    pub fn proven(self) {}
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.slots.lock().going_on.retain(|(number, ..)| *number != self.number);
    }
}

/// What is said of strangers: the first few of them, and then how many more there were.
#[derive(Debug)]
pub struct StrangerLog {
    since: Instant,
    lines: u32,
    unsaid: u64,
}

impl Default for StrangerLog {
    fn default() -> StrangerLog {
        StrangerLog { since: Instant::now(), lines: 0, unsaid: 0 }
    }
}

impl StrangerLog {
    /// Returns the line about a stranger, if it is to be said now.
    pub fn line(&mut self, line: impl FnOnce() -> String) -> Option<String> {
        if self.since.elapsed() >= WINDOW {
            *self = StrangerLog { unsaid: self.unsaid, ..StrangerLog::default() };
        }
        if self.lines == LINES_MAX {
            self.unsaid += 1;
            return None;
        }
        self.lines += 1;
        let more = match std::mem::take(&mut self.unsaid) {
            0 => String::new(),
            unsaid => format!(" (and {unsaid} others before it)"),
        };
        Some(line() + &more)
    }
}

#[cfg(test)]
#[path = "lobby_tests.rs"]
mod tests;
