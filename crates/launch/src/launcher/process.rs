//! The process of a member, however it came to be: a child of the launcher, which may stand for one on another
//! host, or one that somebody else started and that has joined.

use std::process::{Child, ExitStatus};

use tensorwire_base::Deadline;

use super::JobSpec;
use crate::exit::{Remote, describe, describe_remote};
use crate::rendezvous::JoinedProcess;
use crate::start::reap;
use crate::takeover::OtherProcess;

/// The process of a member.
pub(super) enum Process {
    /// The member, or what started it on another host.
    Child(Child),
    /// The launcher cannot end it but by word.
    Joined(JoinedProcess),
    /// A child of a launcher that died.
    Other(OtherProcess),
}

/// How a process ended.
#[derive(Clone, Copy)]
pub(super) enum Exit {
    Status(ExitStatus),
    /// Whoever started it knows the status.
    Gone,
}

/// What the launcher knows of a member that ended too early.
pub(super) struct Ended<'a> {
    /// Its host, where that is another.
    pub(super) host: Option<&'a str>,
    /// It had called the launcher.
    pub(super) called: bool,
    /// It said that a signal told it to end.
    pub(super) told_to_end: bool,
}

impl Process {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Process::Child(child) => child.id(),
            Process::Joined(joined) => joined.pid,
            Process::Other(other) => other.pid,
        }
    }

    pub(super) fn has_joined(&self) -> bool {
        matches!(self, Process::Joined(_))
    }

    /// How it ended, none while it lives.
    pub(super) fn try_wait(&mut self) -> Option<Exit> {
        match self {
            Process::Child(child) => child.try_wait().ok().flatten().map(Exit::Status),
            Process::Joined(joined) => joined.is_gone().then_some(Exit::Gone),
            Process::Other(other) => other.has_ended().then_some(Exit::Gone),
        }
    }

    /// Ends it by force, as far as that can be done from here: one that joined ends with its connection.
    pub(super) fn kill(&mut self) {
        match self {
            // fails if it has just ended by itself
            Process::Child(child) => drop(child.kill()),
            Process::Other(other) => other.kill(),
            Process::Joined(_) => {}
        }
    }

    /// As [`reap`], of one that was killed.
    pub(super) fn reap(&mut self, deadline: Deadline) -> bool {
        match self {
            Process::Child(child) => reap(child, deadline),
            Process::Other(other) => other.await_end(deadline),
            Process::Joined(_) => true,
        }
    }

    /// Why nothing is heard of it, where it never called; `at` is where it should have.
    pub(super) fn why_unreached(
        &self,
        spec: &JobSpec,
        host: &str,
        at: std::net::SocketAddr,
        for_s: f64,
    ) -> String {
        match self {
            Process::Child(_) | Process::Other(_) => format!(
                "nothing was heard of it for {for_s:.1} s; does `{} {host} true` work at once, and does {host} reach {at} (--listen, firewall)?",
                spec.hosts.rsh().join(" "),
            ),
            Process::Joined(_) => format!(
                "nothing was heard of it for {for_s:.1} s after it was told what it is; does {host} reach {at} (MASTER_ADDR, firewall)?"
            ),
        }
    }
}

impl Exit {
    pub(super) fn is_good(self) -> bool {
        match self {
            Exit::Status(status) => status.success(),
            // it has reported before it went
            Exit::Gone => true,
        }
    }

    /// As a member ends that gives its launcher up.
    pub(super) fn gave_up(self) -> bool {
        match self {
            Exit::Status(status) => status.code() == Some(1),
            Exit::Gone => true,
        }
    }

    /// Somebody killed it, as the system does where memory is short.
    pub(super) fn is_by_signal(self) -> bool {
        matches!(self, Exit::Status(status) if status.code().is_none())
    }

    /// Says how a member ended too early.
    pub(super) fn describe(self, spec: &JobSpec, ended: &Ended<'_>) -> String {
        let Exit::Status(status) = self else {
            let how = match ended.told_to_end {
                true => "it was told to end (SIGTERM)",
                false => "its process ended: killed, or out of memory, or its host went down",
            };
            return how.to_string();
        };
        match ended.host {
            _ if ended.told_to_end => "it was told to end (SIGTERM)".to_string(),
            None => describe(status),
            Some(host) => {
                let rsh = spec.hosts.rsh().join(" ");
                let (rsh, program) = (&*rsh, &*spec.program.to_string_lossy());
                describe_remote(status, Remote { host, rsh, program, called: ended.called })
            }
        }
    }
}
