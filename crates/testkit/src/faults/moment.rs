//! The moment of a cell: waits until a job is in its phase, and hurts who is to be hurt.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::files::has_begun;
use super::job::{CHECKPOINTS, METRICS, Running, STEPS};
use super::{Fault, FaultCell, Heal, HostLink, Phase, Victim};
use crate::machine::send;
use crate::random::Random;

/// Steps after which a job is in the middle of training.
const IN_THE_MIDDLE: usize = 10;
/// How far into a phase, at most.
const WITHIN_MS: usize = 60;
/// Longer than that no phase is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a process that gets no more memory may still have.
const ROOM: u64 = 64 << 10;

/// What is said of a disk that is full.
const NO_ROOM: &str = "No space left on device";

pub(super) struct Moment<'a> {
    pub(super) cell: &'a FaultCell,
    pub(super) seed: u64,
}

/// Who was hurt.
pub(super) struct Hurt {
    /// What is said of them in the last line, where they have a name.
    pub(super) name: Option<String>,
}

impl Moment<'_> {
    /// Waits for the moment, and hurts; none if the job had ended by then.
    ///
    /// # Errors
    /// Why nobody can be hurt so on this machine.
    pub(super) fn hurt(
        &self,
        job: &mut Running,
        link: Option<&HostLink>,
    ) -> Result<Option<Hurt>, String> {
        let Some(victim) = self.wait_for(job, |job| self.victim(job)) else { return Ok(None) };
        // a disk is too small from the beginning, but for one that is to be full behind the first snapshots
        if self.cell.role != Victim::Disk || self.fills_disk() {
            let reached = self.wait_for(job, |job| self.is_reached(job).then_some(()));
            if reached.is_none() {
                return Ok(None);
            }
        }
        if !matches!(self.cell.phase, Phase::Start | Phase::Checkpoint | Phase::End) {
            let within = Random::new(self.seed).below(WITHIN_MS);
            std::thread::sleep(Duration::from_millis(within as u64));
        }
        if job.has_ended() {
            return Ok(None);
        }
        let hurt = self.who(victim, link);
        match self.cell.fault {
            Fault::Kill => send(victim, Signal::KILL),
            Fault::Stop => send(victim, Signal::STOP),
            Fault::Term => send(victim, Signal::TERM),
            Fault::OutOfMemory => give_no_more_memory(victim)?,
            Fault::FullDisk if self.fills_disk() => job.fill_disk(),
            Fault::FullDisk => {}
            Fault::CutLink => link.map_or(Ok(()), HostLink::cut)?,
            Fault::HalfOpenLink => link.map_or(Ok(()), HostLink::cut_one_way)?,
            Fault::SlowLink => link.map_or(Ok(()), HostLink::make_slow)?,
        }
        Ok(Some(hurt))
    }

    /// True if a disk is filled at its moment: what a store must keep to begin with is there, and what replaces it finds no room.
    fn fills_disk(&self) -> bool {
        let FaultCell { role, phase, heals, .. } = self.cell;
        (*role, *phase, *heals) == (Victim::Disk, Phase::Checkpoint, Heal::Snapshot)
    }

    /// Who is signalled; the launcher stands for what is no process.
    fn victim(&self, job: &Running) -> Option<Pid> {
        match self.cell.member() {
            Some((rank, _)) => job.member(rank),
            None => Some(job.launcher()),
        }
    }

    fn who(&self, victim: Pid, link: Option<&HostLink>) -> Hurt {
        let Some((rank, role)) = self.cell.member() else {
            let is_of_link = self.cell.fault.is_of_link();
            let there = link.filter(|_| is_of_link).map(|link| format!(", on {})", link.there()));
            let no_room = (self.cell.fault == Fault::FullDisk).then(|| NO_ROOM.to_string());
            return Hurt { name: there.or(no_room) };
        };
        if self.cell.fault == Fault::OutOfMemory {
            // it lives, and others may say first what it refuses them
            return Hurt { name: Some(format!("{role} (rank {rank}")) };
        }
        if self.cell.is_on_unequal_hosts() {
            // it may be on the other one, which is named in the place of its process
            return Hurt { name: Some(format!("error: first to fail: {role} (rank {rank}, ")) };
        }
        let pid = victim.as_raw_nonzero();
        Hurt { name: Some(format!("error: first to fail: {role} (rank {rank}, pid {pid})")) }
    }

    fn is_reached(&self, job: &Running) -> bool {
        let folder = job.folder();
        let lines = || {
            let text = std::fs::read_to_string(folder.join(METRICS)).unwrap_or_default();
            text.lines().count()
        };
        match self.cell.phase {
            Phase::Start => true,
            Phase::Meeting => job.member(0).is_some(),
            Phase::FirstStep => lines() > 0,
            Phase::Training | Phase::Evaluation => lines() >= IN_THE_MIDDLE,
            Phase::Checkpoint if self.fills_disk() => lines() >= IN_THE_MIDDLE,
            Phase::Checkpoint => has_begun(&folder.join(CHECKPOINTS)),
            Phase::End => lines() >= STEPS,
        }
    }

    fn wait_for<T>(&self, job: &mut Running, found: impl Fn(&Running) -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = found(job) {
                return Some(found);
            }
            if job.has_ended() || start.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn give_no_more_memory(victim: Pid) -> Result<(), String> {
    let statm = format!("/proc/{}/statm", victim.as_raw_nonzero());
    let pages = std::fs::read_to_string(statm).unwrap_or_default();
    let pages: Option<u64> = pages.split(' ').next().and_then(|pages| pages.parse().ok());
    let bytes = pages.unwrap_or_default() * 4096 + ROOM;
    let limit = Rlimit { current: Some(bytes), maximum: None };
    match prlimit(Some(victim), Resource::As, limit) {
        // one that is gone needs none
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(format!("no limit for another process: {errno}")),
    }
}
