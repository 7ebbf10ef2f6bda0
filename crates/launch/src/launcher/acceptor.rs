//! Where members knock at the launcher: each proves itself on a thread of its own, which from then on passes
//! on what it says. Knows who is expected, and nothing of what they do.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::handshake::{self, HandshakeRefusal, Purpose};
use tensorwire_fabric::{Identity, JobCredentials};

use crate::control::{FromMember, read_frame};

/// Callers that are asked who they are at the same time; more wait.
const HANDSHAKES_MAX: usize = 64;
/// How long a caller may take to say who it is; a member says it at once.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(1);

/// What the launcher's threads report to it.
pub(super) enum Event {
    Joined { rank: Rank, stream: TcpStream },
    Said { rank: Rank, message: FromMember },
    HungUp { rank: Rank },
}

/// Where members knock.
pub(super) struct Acceptor {
    pub(super) listener: TcpListener,
    pub(super) job: JobCredentials,
    /// By rank.
    pub(super) expected: Vec<Identity>,
    pub(super) me: Identity,
    pub(super) events: Sender<Event>,
    pub(super) busy: Arc<AtomicUsize>,
}

impl Acceptor {
    /// Answers everyone who has knocked since the last time, each on a thread of its own.
    pub(super) fn answer(&self) {
        // when all places are taken the others wait in the backlog
        while self.busy.load(Ordering::Relaxed) < HANDSHAKES_MAX {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    return;
                }
            };
            self.busy.fetch_add(1, Ordering::Relaxed);
            let (job, me, expected) = (self.job.clone(), self.me, self.expected.clone());
            let (events, busy) = (self.events.clone(), self.busy.clone());
            let deadline = Deadline::after(HANDSHAKE_PATIENCE);
            let spawned = std::thread::Builder::new().name("handshake".into()).spawn(move || {
                let admitted = introduce(stream, &job, me, &expected, deadline);
                busy.fetch_sub(1, Ordering::Relaxed);
                match admitted {
                    Ok((rank, stream)) => listen_to(rank, stream, &events),
                    Err(reason) => tracing::warn!("turned away {from}: {reason}"),
                }
            });
            if let Err(error) = spawned {
                self.busy.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!("turned away {from}: no thread for it: {error}");
            }
        }
    }
}

fn introduce(
    mut stream: TcpStream,
    job: &JobCredentials,
    me: Identity,
    expected: &[Identity],
    deadline: Deadline,
) -> Result<(Rank, TcpStream), String> {
    let failed = |error: std::io::Error| error.to_string();
    stream.set_nonblocking(false).map_err(failed)?;
    let admit = |caller: &handshake::Caller| match expected.get(caller.member.rank.index()) {
        _ if caller.purpose != Purpose::Rendezvous => Err(HandshakeRefusal::Purpose),
        None => Err(HandshakeRefusal::UnexpectedRank),
        Some(member) if *member != caller.member => Err(HandshakeRefusal::StaleIncarnation),
        Some(_) => Ok(()),
    };
    let caller = handshake::accept(&mut stream, job, me, admit, deadline);
    let caller = caller.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(None).map_err(failed)?;
    Ok((caller.member.rank, stream))
}

/// Passes on what a member says until it hangs up.
fn listen_to(rank: Rank, stream: TcpStream, events: &Sender<Event>) {
    let Ok(mut reader) = stream.try_clone() else {
        return;
    };
    // a launcher that has ended listens to no events: then there is nobody to tell
    if events.send(Event::Joined { rank, stream }).is_err() {
        return;
    }
    while let Ok(message) = read_frame(&mut reader) {
        if events.send(Event::Said { rank, message }).is_err() {
            return;
        }
    }
    let _ = events.send(Event::HungUp { rank });
}
