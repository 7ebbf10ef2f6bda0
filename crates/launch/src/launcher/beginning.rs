//! How a launcher comes to its members: it starts them, finds them waiting, or takes over those of a launcher that died; and what it
//! writes down for the one that comes after it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use tensorwire_base::{Clock, Deadline, Rank};

use super::acceptor::{Acceptor, Event};
use super::answers::Answers;
use super::membership::Membership;
use super::process::Process;
use super::standstill::Standstill;
use super::wind_down::WindDown;
use super::{Launcher, MemberState, START_PATIENCE};
use crate::assignment::JobIdentity;
use crate::control::ToMember;
use crate::job::{JobError, JobSpec, JobUpdate, OnUpdate};
use crate::rendezvous::JoinedProcess;
use crate::start::start;
use crate::store_job::StorePlace;
use crate::takeover::{Abandoned, JobRecord, MemberRecord, PROTOCOL, ProcessName, RecordFile};

/// Members that are started at the same time on another host: of more than ten that are about to log in sshd turns some away
/// (MaxStartups 10:30:100).
const LOGINS_MAX: usize = 8;

impl<'a> Launcher<'a> {
    /// Of a job whose members find it `at`, where it listens, or wait already.
    pub(super) fn new(
        spec: &'a JobSpec,
        listen: SocketAddr,
        at: SocketAddr,
        waiting: VecDeque<Option<JoinedProcess>>,
    ) -> Launcher<'a> {
        Launcher {
            spec,
            at,
            listen,
            waiting,
            identity: match &spec.abandoned {
                Some(abandoned) => abandoned.identity(),
                None => JobIdentity::random(spec.roles.len()),
            },
            members: Vec::new(),
            last_beat: Instant::now(),
            last_look: Instant::now(),
            ends: 0,
            fatal: false,
            negotiated: None,
            introduced: false,
            said: Vec::new(),
            stood_still: None,
            interrupted: None,
            wind_down: WindDown::default(),
            allowed: None,
            standstill: Standstill::default(),
            answers: Answers::open(spec),
            store: spec.store.map(|store| Membership::new(store, spec)),
            record: spec.takeover.as_ref().map(|takeover| RecordFile::new(takeover.record.clone())),
            asked: None,
            made_alone: Vec::new(),
        }
    }
}

impl Launcher<'_> {
    /// Starts the members, or takes over those of a launcher that died, and writes down what the next one needs.
    pub(super) fn begin(
        &mut self,
        acceptor: &mut Acceptor,
        inbox: &Receiver<Event>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        let spec = self.spec;
        let abandoned = spec.abandoned.iter().flat_map(Abandoned::members);
        for (rank, (process, role, host)) in (0u32..).map(Rank).zip(abandoned) {
            let pid = process.pid;
            self.members.push(MemberState::new(role, Process::Other(process), host));
            on_update(JobUpdate::Started { rank, pid })?;
        }
        if spec.abandoned.is_none() {
            let mut is_patient = spec.gathering.is_none();
            for rank in (0..spec.roles.len() as u32).map(Rank) {
                if is_patient && !spec.hosts.is_here(rank) {
                    is_patient = self.awaits_logins(rank, acceptor, inbox, on_update)?;
                }
                let place = spec.store.and_then(|store| store.place(rank));
                self.start(rank, rank, place, on_update)?;
                self.forgive_suspension();
            }
        } else {
            self.write_record();
        }
        Ok(())
    }

    /// Waits until one more may log in on the host of `rank`. False if that takes too long: why is found when all are started.
    fn awaits_logins(
        &mut self,
        rank: Rank,
        acceptor: &mut Acceptor,
        inbox: &Receiver<Event>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<bool, JobError> {
        let spec = self.spec;
        let deadline = Deadline::after(spec.liveness.max(START_PATIENCE));
        loop {
            let mut logging_in = 0;
            for (other, member) in (0u32..).map(Rank).zip(&mut self.members) {
                if member.control.is_some() || !spec.hosts.together(rank, other) {
                    continue;
                }
                member.exit = member.exit.or_else(|| member.process.try_wait());
                logging_in += usize::from(member.exit.is_none());
            }
            if logging_in < LOGINS_MAX {
                return Ok(true);
            }
            if deadline.passed() || spec.interrupt.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.listen(acceptor, inbox, on_update)?;
            self.forgive_suspension();
        }
    }

    /// Hears who calls and what members say, for a tick if nothing is said, and tells them that it is alive.
    pub(super) fn listen(
        &mut self,
        acceptor: &mut Acceptor,
        inbox: &Receiver<Event>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        acceptor.answer();
        self.hear(inbox, on_update)?;
        for control in self.members.iter_mut().filter_map(|member| member.control.as_mut()) {
            // as when it is told something
            let _ = control.flush();
        }
        if self.last_beat.elapsed() >= self.spec.liveness / 10 {
            self.last_beat = Instant::now();
            self.tell_all(&ToMember::Heartbeat { now_ns: Clock::now_ns() });
        }
        Ok(())
    }

    /// Says that the members of another launcher go on with this one, and what they made meanwhile: from the first step on that
    /// none of them has told to the one before.
    pub(super) fn tell_taken_over(&mut self, on_update: &mut OnUpdate<'_>) -> Result<(), JobError> {
        let step = self.members.iter().map(|member| member.step).max().unwrap_or_default();
        let mut first = BTreeMap::new();
        for update in &self.made_alone {
            if let JobUpdate::Progress { rank, step, .. } = update {
                first.entry(*rank).or_insert(*step);
            }
        }
        let told = first.values().max().map_or(step, |first| first.saturating_sub(1));
        on_update(JobUpdate::TakenOver { step, told })?;
        for update in std::mem::take(&mut self.made_alone) {
            let JobUpdate::Progress { step, .. } = &update else { continue };
            if *step > told {
                on_update(update)?;
            }
        }
        Ok(())
    }

    /// Writes down how the job is to go on, where that was not known before: another launcher does so, too.
    pub(super) fn note_asked(&mut self) {
        if self.asked != self.asked() {
            self.write_record();
        }
    }

    /// Writes down what another launcher needs to take this job over, as its members are now.
    fn write_record(&mut self) {
        self.asked = self.asked();
        let resize = self.asked.clone();
        let Some(file) = &mut self.record else { return };
        let Some(launcher) = ProcessName::of(std::process::id()) else { return };
        let member = |MemberState { name, role, host, .. }: &MemberState| {
            let (process, role, host) = (*name, role.clone(), host.clone());
            MemberRecord { process, role, host }
        };
        let members = self.members.iter().map(member).collect();
        let mut assignment = self.identity.assignment(Rank(0), Rank(0), self.at, self.spec);
        if let Some(abandoned) = &self.spec.abandoned {
            // what the members were told stays so
            assignment.payload = abandoned.record.assignment.payload.clone();
        }
        let title = self.spec.title.clone();
        let listen = self.listen;
        let protocol = PROTOCOL;
        let record = JobRecord { launcher, title, listen, assignment, members, resize, protocol };
        if let Err(error) = file.write(&record) {
            tracing::warn!("no other launcher can take this job over: {error}");
        }
    }

    /// Starts the next member, `rank`, where the member `home` of the job's beginning is or was.
    pub(super) fn start(
        &mut self,
        rank: Rank,
        home: Rank,
        store: Option<StorePlace>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        let spec = self.spec;
        let role = spec.roles[home.index()].clone();
        let program = || spec.program.clone();
        let failed = |source| JobError::Spawn { role: role.clone(), program: program(), source };
        let mut assignment = self.identity.assignment(rank, home, self.at, spec);
        assignment.store = store;
        let mut host = (!spec.hosts.is_here(home)).then(|| spec.hosts.name(home).to_string());
        let process = match (self.waiting.pop_front().flatten(), &spec.gathering) {
            (Some(mut joined), Some(gathering)) => {
                // one that is gone is found by its end
                let _ = gathering.assign(&mut joined, assignment);
                Process::Joined(joined)
            }
            (_, gathering) => {
                // nobody else starts one more
                host = host.filter(|_| gathering.is_none());
                let line = serde_json::to_string(&assignment).map_err(|e| failed(e.into()))?;
                Process::Child(start(spec, home, &line).map_err(failed)?)
            }
        };
        let pid = process.pid();
        self.members.push(MemberState::new(role, process, host));
        // one that dies while it starts them is found, too
        self.write_record();
        on_update(JobUpdate::Started { rank, pid })
    }
}
