//! A process that somebody else started calls the launcher of its job, until that answers, and waits for its
//! assignment.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_fabric::handshake::{self, HandshakeError, HandshakeRefusal, Purpose};
use tensorwire_fabric::{Identity, JobCredentials};

use super::detect::{Detected, Rendezvous};
use super::gathering::RendezvousError;
use super::{Answer, JoinRequest, KeySource, Machine, key};
use crate::assignment::Assignment;
use crate::control::{Hearer, Speaker, ends};
use crate::cpus::CpuMask;
use crate::hosts::resolve;

/// How long one call may take.
const ONE_CALL: Duration = Duration::from_secs(2);
/// How long until the next round of calls: the launcher may not have been started yet.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long a launcher that has answered may be silent: it says every second that one has to wait.
const SILENCE: Duration = Duration::from_secs(10);

/// This process, once it knows what it is to be.
#[derive(Debug)]
pub struct Joined {
    pub assignment: Assignment,
    pub sign_of_life: SignOfLife,
}

/// To be kept until the process ends: by it the launcher sees that.
#[derive(Debug)]
pub struct SignOfLife(#[expect(dead_code, reason = "it is open as long as this lives")] Speaker);

/// Calls the launcher of the job that `detected` tells of, and waits until it says what this process is to be.
///
/// # Errors
/// When nobody answers in time, or the launcher has no job for this process.
pub fn join(detected: &Detected, key: &KeySource) -> Result<Joined, RendezvousError> {
    let (at, (mut speaker, mut hearer)) = call(detected, key, Deadline::after(detected.patience))?;
    let lost = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            RendezvousError::Silent { at, silent_s: SILENCE.as_secs() }
        }
        _ => RendezvousError::HungUp { at },
    };
    speaker.stream().set_nodelay(true).map_err(lost)?;
    speaker.stream().set_read_timeout(Some(SILENCE)).map_err(lost)?;
    let (launched_as, world) = (detected.launched_as, detected.world);
    let (machine, pid, cpus) = (Machine::here(), std::process::id(), CpuMask::here());
    speaker.say_all(&JoinRequest { launched_as, world, machine, pid, cpus }).map_err(lost)?;
    loop {
        match hearer.hear().map_err(lost)? {
            Answer::Wait => {}
            Answer::Assigned(assignment) => {
                let sign_of_life = SignOfLife(speaker);
                return Ok(Joined { assignment: *assignment, sign_of_life });
            }
            Answer::Refused { reason } => return Err(RendezvousError::Refused { reason }),
            Answer::NoJob { status } => return Err(RendezvousError::NoJob { status }),
        }
    }
}

/// Calls every place where the launcher may be, again and again, until one proves to be it.
fn call(
    detected: &Detected,
    key: &KeySource,
    deadline: Deadline,
) -> Result<(SocketAddr, (Speaker, Hearer)), RendezvousError> {
    let (begun, rendezvous) = (deadline.remaining(), &detected.rendezvous);
    let mut last = "nothing listens there".to_string();
    let (mut known, mut refused_at) = (None, None);
    loop {
        // a text is stretched once; a file may be left of an earlier job until the launcher writes it anew
        if known.is_none() || matches!(key, KeySource::Folder(_)) {
            known = key::found(&detected.key, key)?;
        }
        let Some(job) = &known else {
            last = key::lacking(&detected.key, key);
            wait(rendezvous, begun, &last, deadline)?;
            continue;
        };
        for at in places(rendezvous, &mut last) {
            match (knock(at, job, deadline), key) {
                (Ok(ends), _) => return Ok((at, ends)),
                // so says whoever has the port: the launcher may have another one
                (Err(Knock::WrongSecret), KeySource::Text(_)) => {
                    if refused_at.replace(at).is_none() {
                        tracing::warn!("{}; calling on", RendezvousError::Secret { at });
                    }
                }
                (Err(Knock::WrongSecret), KeySource::Folder(_)) => {
                    last = format!("{at} has another key: {}", key::lacking(&detected.key, key));
                }
                (Err(Knock::Nobody), _) => {}
                (Err(Knock::Other(why)), _) => last = format!("{at}: {why}"),
            }
        }
        if let Some(at) = refused_at.filter(|_| deadline.passed()) {
            return Err(RendezvousError::Secret { at });
        }
        wait(rendezvous, begun, &last, deadline)?;
    }
}

/// Lets a moment pass before the next round of calls, if there is to be one.
fn wait(
    rendezvous: &Rendezvous,
    begun: Duration,
    last: &str,
    deadline: Deadline,
) -> Result<(), RendezvousError> {
    if deadline.passed() {
        let (at, waited_s, last) = (rendezvous.clone(), begun.as_secs(), last.to_string());
        return Err(RendezvousError::NobodyThere { at, waited_s, last });
    }
    std::thread::sleep(TRY_AGAIN.min(deadline.remaining()));
    Ok(())
}

/// Where to call; a host that has no address yet may get one.
fn places(rendezvous: &Rendezvous, last: &mut String) -> Vec<SocketAddr> {
    let Some(host) = &rendezvous.host else {
        let here = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        return rendezvous.ports.iter().map(here).collect();
    };
    let addresses = resolve(host);
    if addresses.is_empty() {
        *last = format!("{host} has no address that is known here, or nobody says it in time");
    }
    let at =
        |port: &u16| addresses.iter().map(|ip| SocketAddr::new(*ip, *port)).collect::<Vec<_>>();
    rendezvous.ports.iter().flat_map(at).collect()
}

/// Why a call did not reach the launcher.
enum Knock {
    Nobody,
    /// Whoever answers says that this process does not know the secret.
    WrongSecret,
    Other(String),
}

fn knock(
    at: SocketAddr,
    job: &JobCredentials,
    deadline: Deadline,
) -> Result<(Speaker, Hearer), Knock> {
    let deadline = deadline.min(Deadline::after(ONE_CALL));
    let patience = deadline.remaining().max(Duration::from_millis(1));
    let mut stream =
        TcpStream::connect_timeout(&at, patience).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => Knock::Nobody,
            _ => Knock::Other(error.to_string()),
        })?;
    let incarnation = Incarnation(u64::from_le_bytes(handshake::random_bytes()));
    // the rank comes with the assignment
    let me = Identity { rank: Rank(u32::MAX), incarnation };
    match handshake::dial(&mut stream, job, me, None, Purpose::Rendezvous, deadline) {
        Ok((_, seals)) => ends(stream, seals).map_err(|error| Knock::Other(error.to_string())),
        Err(HandshakeError::RefusedUnproven(HandshakeRefusal::WrongSecret)) => {
            Err(Knock::WrongSecret)
        }
        Err(error) => Err(Knock::Other(error.to_string())),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
