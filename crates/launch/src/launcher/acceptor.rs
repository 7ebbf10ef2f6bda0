//! Where members knock at the launcher: each proves itself on a thread of its own, which from then on passes
//! on what it says. Knows who is expected, and nothing of what they do.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_fabric::handshake::{self, HandshakeRefusal, Purpose};
use tensorwire_fabric::lobby::{
    Caller, Handshakes, Lobby, Stranger, StrangerError, StrangerLog, Turn, Unproven,
};
use tensorwire_fabric::{Identity, JobCredentials};

use crate::assignment::JobIdentity;
use crate::clock::{ClockReading, clock_id};
use crate::control::{FromMember, Hearer, Speaker, ends};

/// Calls that are taken before those are heard who have called.
const CALLS_MAX: usize = 256;
/// How long a caller may take to say who it is; a member says it at once.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(1);

/// What the launcher's threads report to it.
pub(super) enum Event {
    /// By one connection, numbered from 1.
    Joined {
        rank: Rank,
        speaker: Speaker,
        connection: u64,
    },
    Said {
        rank: Rank,
        message: FromMember,
    },
    /// Its clock was read.
    Clock {
        rank: Rank,
        reading: ClockReading,
    },
    HungUp {
        rank: Rank,
        connection: u64,
    },
}

/// Where members knock.
pub(super) struct Acceptor {
    listener: TcpListener,
    job: JobCredentials,
    /// By rank.
    pub(super) expected: Vec<Identity>,
    me: Identity,
    events: Sender<Event>,
    lobby: Lobby<TcpStream>,
    handshakes: Handshakes,
    connections: u64,
    log: Arc<Mutex<StrangerLog>>,
}

impl Acceptor {
    pub(super) fn new(
        listener: TcpListener,
        identity: &JobIdentity,
        events: Sender<Event>,
    ) -> Acceptor {
        let me = Identity { rank: Rank(u32::MAX), incarnation: identity.launcher };
        let job = identity.credentials.clone();
        // fits: a job has far fewer than 2^32 members
        let ranks = (0..identity.world as u32).map(Rank);
        Acceptor {
            listener,
            expected: ranks.map(|rank| identity.member(rank)).collect(),
            lobby: Lobby::new(job.job_id, me, HANDSHAKE_PATIENCE),
            job,
            me,
            events,
            handshakes: Handshakes::default(),
            connections: 0,
            log: Arc::default(),
        }
    }

    /// Hears everyone who has knocked since the last time, and has whoever says the hello of this job prove itself on a
    /// thread of its own.
    pub(super) fn answer(&mut self) {
        let Turn { ready, strangers } = callers(&self.listener, &mut self.lobby, &self.handshakes);
        for Stranger { from, why } in strangers {
            warn(&self.log, &from, &why);
        }
        for caller in ready {
            let (job, me, expected) = (self.job.clone(), self.me, self.expected.clone());
            let (events, log, from) = (self.events.clone(), self.log.clone(), caller.from.clone());
            self.connections += 1;
            let connection = self.connections;
            let greet = move |caller: Caller<TcpStream>, unproven: Unproven| {
                let from = caller.from.clone();
                match introduce(caller, unproven, &job, me, &expected) {
                    Ok((rank, speaker, hearer)) => {
                        let joined = Event::Joined { rank, speaker, connection };
                        // a launcher that has ended listens to no events: then there is nobody to tell
                        if events.send(joined).is_ok() {
                            listen_to(rank, connection, hearer, &events);
                        }
                    }
                    Err(reason) => warn(&log, &from, &reason),
                }
            };
            if let Err(error) = self.handshakes.begin(caller, greet) {
                warn(&self.log, &from, &error);
            }
        }
    }
}

/// Takes in everyone who has called since the last time. Returns who has said hello, and who went or could not be taken in.
pub(crate) fn callers(
    listener: &TcpListener,
    lobby: &mut Lobby<TcpStream>,
    handshakes: &Handshakes,
) -> Turn<TcpStream> {
    let mut crowded = Vec::new();
    for _ in 0..CALLS_MAX {
        match listener.accept() {
            Ok((stream, from)) => {
                let from = from.to_string();
                let entered = lobby.enter(stream, from.clone());
                let failed = |error: std::io::Error| Some(Stranger { from, why: error.into() });
                crowded.extend(entered.unwrap_or_else(failed));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => {
                let from = "a caller".to_string();
                crowded.push(Stranger { from, why: StrangerError::NotTaken(error) });
                break;
            }
        }
    }
    let mut turn = lobby.turn(handshakes.room());
    turn.strangers.extend(crowded);
    turn
}

fn warn(log: &Mutex<StrangerLog>, from: &str, why: &dyn std::fmt::Display) {
    let line = log.lock().line(|| format!("turned away {from}: {why}"));
    line.inspect(|line| tracing::warn!("{line}"));
}

fn introduce(
    caller: Caller<TcpStream>,
    unproven: Unproven,
    job: &JobCredentials,
    me: Identity,
    expected: &[Identity],
) -> Result<(Rank, Speaker, Hearer), String> {
    let failed = |error: std::io::Error| error.to_string();
    let Caller { mut stream, hello, .. } = caller;
    let admit = |caller: &handshake::Caller| {
        unproven.proven();
        match expected.get(caller.member.rank.index()) {
            _ if caller.purpose != Purpose::Rendezvous => Err(HandshakeRefusal::Purpose),
            None => Err(HandshakeRefusal::UnexpectedRank),
            Some(member) if *member != caller.member => Err(HandshakeRefusal::StaleIncarnation),
            Some(_) => Ok(()),
        }
    };
    let deadline = Deadline::after(HANDSHAKE_PATIENCE);
    let caller = handshake::accept(&mut stream, &hello, job, me, admit, deadline);
    let (caller, seals) = caller.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(None).map_err(failed)?;
    let (speaker, hearer) = ends(stream, seals).map_err(failed)?;
    Ok((caller.member.rank, speaker, hearer))
}

/// Passes on what a member says until it hangs up.
fn listen_to(rank: Rank, connection: u64, mut hearer: Hearer, events: &Sender<Event>) {
    let end = loop {
        match hearer.hear() {
            Err(error) => break error,
            Ok(message) => {
                let event = match message {
                    FromMember::Clock { told_ns, at_ns, clock } => {
                        let heard_ns = Clock::now_ns();
                        let is_same = clock.is_some() && clock == clock_id();
                        let reading = match is_same {
                            true => Some(ClockReading::same(at_ns)),
                            false => ClockReading::of(told_ns, at_ns, heard_ns),
                        };
                        let Some(reading) = reading else {
                            continue;
                        };
                        Event::Clock { rank, reading }
                    }
                    message => Event::Said { rank, message },
                };
                if events.send(event).is_err() {
                    return;
                }
            }
        }
    };
    if end.kind() == ErrorKind::InvalidData {
        tracing::warn!("the control connection of rank {rank}: {end}");
    }
    let _ = events.send(Event::HungUp { rank, connection });
}
