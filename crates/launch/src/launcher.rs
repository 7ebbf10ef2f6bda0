//! The launcher: starts the members of a job, here and on other hosts, introduces them to each other, shows
//! what they say, and watches them. However a member ends, the job ends: the first cause is found, and no
//! process is left behind.

mod acceptor;
mod answers;
mod beginning;
mod entrance;
mod membership;
mod process;
mod standstill;
mod state;
mod wind_down;

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_fabric::verbs_usable;

use crate::assignment::JobIdentity;
use crate::control::{Behind, Blame, FromMember, ToMember};
use crate::hosts::RanksByHost;
use crate::job::{JobError, JobOutcome, JobSpec, JobUpdate, OnUpdate, RawUpdate, Resize};
use crate::negotiate::{Offer, TransportChoice, choose};
use crate::rendezvous::JoinedProcess;
use crate::standing::Still;
use crate::start::REAP_PATIENCE;
use crate::store_job::StoreJob;
use crate::takeover::RecordFile;
use crate::transport::Transport;
use crate::verdict::{End, FirstFailure, Seen, first_failure};
pub(crate) use acceptor::callers;
use acceptor::{Acceptor, Event};
use answers::Answers;
use entrance::Entrance;
use membership::Membership;
use process::{Ended, Exit};
use standstill::Standstill;
use state::{MemberState, shown};
use wind_down::WindDown;

/// How often the launcher looks around.
const TICK: Duration = Duration::from_millis(20);
/// How long, after the first failure, the other members may say what they saw.
const SETTLE: Duration = Duration::from_millis(700);
/// How long a launcher that is told to end looks for the reason, where who started all processes may have told
/// them so because one died.
pub(crate) const REASON_PATIENCE: Duration = Duration::from_millis(300);
/// How long after its end a member's call may take to be answered.
const CALLS_LATE: Duration = Duration::from_millis(200);
/// A gap between two looks that means that the launcher itself did not run; less where members give it up before.
const SUSPENDED: Duration = Duration::from_secs(2);
/// What the launcher takes in between two looks.
const EVENTS_MAX: usize = 10_000;
/// How long a member of another host may take to be started and to call, if a silent one is not believed
/// to be alive for longer: logging in takes seconds on a slow machine.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(20);

/// Launches a job, as [`crate::launch`], and tells `on_update` what members say as they said it.
pub(crate) fn run(
    spec: &JobSpec,
    on_update: &mut OnUpdate<'_>,
) -> Result<JobOutcome<Value>, JobError> {
    let world = spec.roles.len();
    let here = (0..world as u32).map(Rank).find(|rank| spec.hosts.is_here(*rank));
    if let (Some(options), Some(_)) = (&spec.verbs, here) {
        let why = verbs_usable(options, None)?;
        let choice = TransportChoice { transport: Transport::Verbs, why, fallback: false };
        on_update(JobUpdate::Transport(choice))?;
    }
    let Entrance { listener, listen, at, waiting } = Entrance::open(spec)?;
    let mut launcher = Launcher::new(spec, listen, at, waiting);
    let placement = RanksByHost { hosts: &spec.hosts, roles: &spec.roles };
    tracing::info!("{}: {world} processes, which call {at}; {placement}", spec.title);
    if spec.hosts.any_remote() && spec.gathering.is_none() {
        on_update(JobUpdate::Listening { at })?;
    }
    let (events, inbox) = channel();
    let mut acceptor = Acceptor::new(listener, &launcher.identity, events);
    launcher.begin(&mut acceptor, &inbox, on_update)?;
    launcher.watch(&mut acceptor, &inbox, on_update)
    // dropping the launcher kills and reaps whoever is left
}

struct Launcher<'a> {
    spec: &'a JobSpec,
    /// Where members find this launcher, and where it listens.
    at: SocketAddr,
    listen: SocketAddr,
    /// Who has joined and is not told yet what it is, from the next rank on.
    waiting: VecDeque<Option<JoinedProcess>>,
    identity: JobIdentity,
    /// By rank.
    members: Vec<MemberState>,
    /// When they were last told that it is alive.
    last_beat: Instant,
    /// When it last saw to its members: a gap is time in which this process did not run.
    last_look: Instant,
    /// Ends noticed so far.
    ends: u32,
    /// A member has ended without which the job cannot go on.
    fatal: bool,
    negotiated: Option<Transport>,
    introduced: bool,
    /// What members said for people.
    said: Vec<String>,
    /// When it was noticed that this process had not run for so long that members give it up.
    stood_still: Option<(Instant, Duration)>,
    /// When it was told to end.
    interrupted: Option<Instant>,
    wind_down: WindDown,
    /// Up to which step all may go on, as one of them said last.
    allowed: Option<(u64, Behind)>,
    standstill: Standstill,
    answers: Answers,
    /// Who of a store lives, and what follows from that.
    store: Option<Membership>,
    /// What another launcher finds if this one is killed.
    record: Option<RecordFile>,
    /// How the job is to go on, as is written there.
    asked: Option<Resize>,
    /// What members show of steps that they made while they had no launcher.
    made_alone: Vec<RawUpdate>,
}

impl Launcher<'_> {
    fn watch(
        &mut self,
        acceptor: &mut Acceptor,
        inbox: &Receiver<Event>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<JobOutcome<Value>, JobError> {
        let mut failing: Option<Instant> = None;
        loop {
            if self.is_to_end() && !self.winds_down(on_update)? {
                self.stop("interrupted");
                return Err(JobError::Interrupted);
            }
            if self.is_to_pause() && !self.winds_down(on_update)? {
                self.stop("the job goes on in another way");
                return Err(JobError::Interrupted);
            }
            // should this process be stopped from here on, the next look forgives what it did not hear
            let looked = Instant::now();
            self.listen(acceptor, inbox, on_update)?;
            self.forgive_suspension();
            self.reap();
            self.notice_silence(looked);
            self.standstill.notice(&self.members, on_update)?;
            self.answers.hear(self.spec, &self.members, self.introduced, self.fatal);
            // what somebody is promised outlives this process
            self.note_asked();
            self.answers.tell();
            self.negotiate(on_update)?;
            self.introduce(on_update)?;
            self.manage_store(looked, acceptor, on_update)?;
            if self.members.iter().all(|member| member.done() || member.survived) {
                return Ok(self.outcome());
            }
            if self.fatal {
                let since = *failing.get_or_insert_with(Instant::now);
                let all_over = self.members.iter().all(|m| m.end != End::None || m.done());
                // who was told to end is killed soon
                let settle = if self.interrupted.is_some() { SETTLE / 3 } else { SETTLE };
                if all_over || since.elapsed() >= settle {
                    self.forgive_suspension();
                    self.find_still();
                    let failure = first_failure(&self.seen());
                    self.stop("another member failed");
                    let suspension = failure.as_ref().and_then(|first| self.suspension(first));
                    return Err(match (failure, suspension) {
                        (_, Some(gap)) => JobError::Suspended { for_s: gap.as_secs_f64() },
                        (Some(failure), None) => JobError::Failed(Box::new(failure)),
                        (None, None) => JobError::Interrupted,
                    });
                }
            }
        }
    }

    /// Was it told to end, and has found no better reason to?
    fn is_to_end(&mut self) -> bool {
        if !self.spec.interrupt.load(Ordering::Relaxed) && !self.others_are_told() {
            return false;
        }
        if self.interrupted.is_none() && self.spec.takeover.is_some() {
            // who interrupts twice waits for nobody
            self.tell_all(&ToMember::EndWithLauncher);
        }
        let since = *self.interrupted.get_or_insert_with(Instant::now);
        self.spec.gathering.is_none() || !self.fatal && since.elapsed() >= REASON_PATIENCE
    }

    fn outcome(&mut self) -> JobOutcome<Value> {
        let done = (0u32..).map(Rank).zip(&mut self.members).filter(|(_, member)| member.done());
        let reports = done.map(|(rank, m)| (rank, m.report.take().unwrap_or_default())).collect();
        JobOutcome { reports, negotiated: self.negotiated }
    }

    /// Takes in what was said; waits one tick if nothing was.
    fn hear(
        &mut self,
        inbox: &Receiver<Event>,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        let first = inbox.recv_timeout(TICK).ok();
        let more = inbox.try_iter();
        // bounded: a talkative job must not keep the launcher from looking around
        for event in first.into_iter().chain(more).take(EVENTS_MAX) {
            match event {
                // it had called before it was lost
                Event::Joined { rank, .. } if self.members[rank.index()].survived => {}
                Event::Joined { rank, speaker, connection } => {
                    // a member that does not read must not hold up the others
                    let _ = speaker.stream().set_write_timeout(Some(TICK));
                    let member = &mut self.members[rank.index()];
                    member.last_heard = Instant::now();
                    member.control = Some(speaker);
                    (member.connection, member.hung_up) = (connection, false);
                    member.tell_again();
                    self.tell_how_far(rank);
                    // how its clock goes is known early
                    self.tell(&[rank], &ToMember::Heartbeat { now_ns: Clock::now_ns() });
                }
                // no sign of life: who only listens says that, too
                Event::Clock { rank, reading } => {
                    let has_own = self.members[rank.index()].host.is_some();
                    if has_own {
                        on_update(JobUpdate::Clock { rank, reading })?;
                    }
                }
                Event::HungUp { rank, connection } => {
                    let member = &mut self.members[rank.index()];
                    // where another launcher may come, a member calls once more
                    member.hung_up |= member.connection == connection;
                }
                Event::Said { rank, message } => self.said(rank, message, on_update)?,
            }
        }
        Ok(())
    }

    fn said(
        &mut self,
        rank: Rank,
        message: FromMember,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        let member = &mut self.members[rank.index()];
        if member.survived {
            return Ok(());
        }
        member.last_heard = Instant::now();
        self.heard(rank);
        let member = &mut self.members[rank.index()];
        match message {
            FromMember::Offer(offer) => {
                member.offer = Some(offer);
                // whoever comes later takes what was chosen
                if let Some(transport) = self.negotiated {
                    self.tell(&[rank], &ToMember::Transport(transport));
                }
            }
            FromMember::Ready { endpoints, plan_digest } => {
                tracing::info!("rank {rank} ({}) is there", member.role);
                member.ready = Some((endpoints, plan_digest));
                self.is_ready(rank);
            }
            FromMember::ToldToEnd => member.told_to_end = true,
            FromMember::AskedToEnd => {
                tracing::info!("rank {rank} ({}) was asked to end", member.role);
                self.spec.interrupt.store(true, Ordering::Relaxed);
            }
            FromMember::Held { step } => member.held = Some(step),
            // those that are held stay so
            FromMember::Allow { until, behind } if self.wind_down == WindDown::Not => {
                self.allowed = Some((until, behind));
                self.tell_all(&ToMember::Allow { until, behind });
            }
            FromMember::Allow { .. } => {}
            FromMember::Connected => self.is_connected(rank),
            FromMember::EnterBarrier { number } => self.enter_barrier(rank, number),
            FromMember::Heartbeat { step, still } => {
                member.step = member.step.max(step);
                member.still = still.map(|still| Still { what: shown(&still.what), ..still });
            }
            FromMember::Progress { step, value } => {
                member.step = member.step.max(step);
                member.progress = Some(value.clone());
                let progress = JobUpdate::Progress { rank, step, value };
                match (&self.spec.abandoned, self.introduced) {
                    // made while there was no launcher
                    (Some(_), false) => self.made_alone.push(progress),
                    _ => on_update(progress)?,
                }
            }
            FromMember::Says { line } => {
                let line = shown(&line);
                if !self.said.contains(&line) {
                    self.said.push(line.clone());
                    on_update(JobUpdate::Said { line })?;
                }
            }
            FromMember::Figures { value } => member.figures = Some(value),
            FromMember::Records { values, .. } => {
                on_update(JobUpdate::Recorded { rank, values })?;
            }
            FromMember::Failed { step, error, blame } => {
                self.end(rank, End::Failed { step, error: shown(&error), blame });
            }
            FromMember::Finished { report } => {
                member.report = Some(report);
                self.tell(&[rank], &ToMember::HeardOut);
            }
            // heard where it was read
            FromMember::Clock { .. } => {}
        }
        Ok(())
    }

    fn end(&mut self, rank: Rank, end: End) {
        if self.note_end(rank, end) {
            self.judge_end(rank);
        }
    }

    /// True for the first end of this member.
    fn note_end(&mut self, rank: Rank, end: End) -> bool {
        let member = &mut self.members[rank.index()];
        let first = member.end == End::None;
        if first {
            if let Some(cause) = end.cause() {
                let (role, step) = (&member.role, member.step);
                tracing::info!("rank {rank} ({role}) is lost in step {step}: {cause}");
            }
            member.end = end;
            member.order = self.ends;
            self.ends += 1;
        }
        first
    }

    /// Exit statuses. What a dead process said last is heard first: its end counts once its
    /// connection has been read to the end.
    fn reap(&mut self) {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if member.exit.is_none() {
                member.exit = member.process.try_wait();
            }
            let Some(exit) = member.exit else { continue };
            let exited = *member.exited.get_or_insert_with(Instant::now);
            // one that has just called is heard in a moment
            let never_called = member.control.is_none() && exited.elapsed() >= CALLS_LATE;
            let heard_out = member.hung_up || never_called;
            if heard_out && member.done() {
                // fits: the world is a u32
                self.has_left(Rank(index as u32));
            } else if heard_out {
                let (host, called) = (member.host.as_deref(), member.control.is_some());
                let ended = Ended { host, called, told_to_end: member.told_to_end };
                let how = exit.describe(self.spec, &ended);
                // fits: the world is a u32
                self.end(Rank(index as u32), End::Died { how });
            }
        }
    }

    /// Those of whom nothing had been heard for too long when this process `looked`.
    fn notice_silence(&mut self, looked: Instant) {
        for index in 0..self.members.len() {
            let member = &self.members[index];
            let silent = looked.saturating_duration_since(member.last_heard);
            let unreached = member.host.as_ref().filter(|_| member.control.is_none());
            let patience = match unreached {
                Some(_) => self.spec.liveness.max(START_PATIENCE),
                None => self.spec.liveness,
            };
            // what was said before the end may be lost on the way, and the connection stays open then
            let is_heard_out = member.hung_up || member.control.is_none();
            let is_over = member.done() || member.exit.is_some() && is_heard_out;
            // whoever has joined a store is its scheduler's to give up
            if silent < patience || is_over || member.joined {
                continue;
            }
            let for_s = silent.as_secs_f64();
            let end = match unreached {
                None => End::Silent { for_s },
                Some(host) => {
                    let why = member.process.why_unreached(self.spec, host, self.at, for_s);
                    End::Unreached { why }
                }
            };
            self.end(Rank(index as u32), end);
        }
    }

    /// If this process itself did not run (Ctrl-Z, a suspended machine), silence meant nothing.
    fn forgive_suspension(&mut self) {
        let gap = self.last_look.elapsed();
        self.last_look = Instant::now();
        // a member gives its launcher up after half the liveness at the earliest, with status 1
        let given_up_after = self.spec.liveness / 2;
        if gap >= SUSPENDED.min(given_up_after) {
            tracing::warn!("the launcher did not run for {:.1} s", gap.as_secs_f64());
            for member in &mut self.members {
                member.last_heard = Instant::now();
                member.exit = member.process.try_wait();
            }
            if gap >= given_up_after {
                self.stood_still = Some((Instant::now(), gap));
            }
            for rank in (0..self.members.len() as u32).map(Rank) {
                self.heard(rank);
            }
        }
    }

    /// For how long this process itself did not run, if that is why the first member ended: it gives up a launcher that says
    /// nothing, without a word, and its end may be noticed a moment after the launcher runs again.
    fn suspension(&self, first: &FirstFailure) -> Option<Duration> {
        // on a busy machine as long as a member may be silent
        let recently = SETTLE * 2 + self.spec.liveness;
        let is_recent = |noticed: &Instant| noticed.elapsed() <= recently;
        let (_, gap) = self.stood_still.filter(|(noticed, _)| is_recent(noticed))?;
        let guilty = &self.members[first.rank.index()];
        let wordless = matches!(guilty.end, End::Died { .. });
        let gave_up = wordless && guilty.exit.is_some_and(Exit::gave_up);
        // those that saw another end say so
        let has_cause = |member: &MemberState| {
            member.end.is_own_word() || member.exit.is_some_and(Exit::is_by_signal)
        };
        let has_other_cause =
            self.members.iter().any(|member| !member.survived && has_cause(member));
        (gave_up && !has_other_cause).then_some(gap)
    }

    /// Once every member has said what it can, chooses for all.
    fn negotiate(&mut self, on_update: &mut OnUpdate<'_>) -> Result<(), JobError> {
        let hosts = &self.spec.hosts;
        let offers = (0u32..).map(Rank).zip(&self.members);
        let offers = offers.map(|(rank, member)| Some((hosts.name(rank), member.offer.as_ref()?)));
        let offers: Option<Vec<(&str, &Offer)>> = offers.collect();
        let Some(offers) = offers.filter(|_| self.negotiated.is_none()) else {
            return Ok(());
        };
        let choice = choose(&offers);
        self.negotiated = Some(choice.transport);
        self.tell_all(&ToMember::Transport(choice.transport));
        on_update(JobUpdate::Transport(choice))
    }

    /// Once every member has said where it is, tells everyone.
    fn introduce(&mut self, on_update: &mut OnUpdate<'_>) -> Result<(), JobError> {
        if !self.introduced && self.members.iter().any(|member| member.ready.is_some()) {
            let left = self.members.iter().position(|m| m.ready.is_none() && m.done());
            if let Some(index) = left {
                let error = "it ended before it had met the others, which wait for it".to_string();
                // fits: the world is a u32
                self.end(Rank(index as u32), End::Failed { step: 0, error, blame: Blame::Own });
            }
        }
        let ready: Option<Vec<&(Vec<String>, String)>> =
            self.members.iter().map(|member| member.ready.as_ref()).collect();
        let Some(ready) = ready.filter(|_| !self.introduced) else {
            return Ok(());
        };
        let other = ready.iter().position(|(_, digest)| *digest != ready[0].1);
        if let Some(index) = other {
            let (role, first) = (self.members[index].role.clone(), self.members[0].role.clone());
            return Err(JobError::PlansDiffer { rank: Rank(index as u32), role, first });
        }
        let endpoints = ready.iter().map(|(endpoints, _)| Some(endpoints.clone())).collect();
        self.tell_all(&ToMember::Peers { endpoints });
        self.introduced = true;
        tracing::info!("all {} processes have met", self.members.len());
        on_update(JobUpdate::Introduced)?;
        if self.spec.abandoned.is_some() {
            self.tell_taken_over(on_update)?;
        }
        Ok(())
    }

    fn tell(&mut self, ranks: &[Rank], message: &ToMember) {
        // what lasts is kept once, however many hear it
        let message = Arc::new(message.clone());
        ranks.iter().for_each(|rank| self.members[rank.index()].tell(&message));
    }

    fn tell_all(&mut self, message: &ToMember) {
        let message = Arc::new(message.clone());
        self.members.iter_mut().for_each(|member| member.tell(&message));
    }

    /// What may have ended the job.
    fn seen(&self) -> Vec<Seen> {
        let furthest = self.members.iter().map(|member| member.step).max().unwrap_or_default();
        // a store's server has no steps of its own: it is where the workers are
        let is_server = |rank: Rank| {
            let is_worker = |store: StoreJob| rank.0 < store.workers || self.is_beside(rank);
            self.spec.store.is_some_and(|store| !is_worker(store))
        };
        let seen = |(rank, member): (Rank, &MemberState)| Seen {
            rank,
            role: member.role.clone(),
            pid: member.process.pid(),
            host: member.host.clone(),
            step: if is_server(rank) { furthest } else { member.step },
            end: member.end.clone(),
            still: member.still.clone(),
            survived: member.survived,
            order: member.order,
        };
        let members = (0u32..).map(Rank).zip(&self.members);
        members.map(seen).collect()
    }

    /// Ends all members: first by word, then, after a moment, by force. Those that somebody else started
    /// are told by the gathering, later: when they end, this process may be ended, too.
    fn stop(&mut self, reason: &str) {
        if let Some(gathering) = &self.spec.gathering {
            let joined = self.members.iter_mut().filter(|m| m.process.has_joined());
            joined
                .filter_map(|m| m.control.take())
                .for_each(|control| gathering.stop_later(control));
        }
        self.tell_all(&ToMember::Stop { reason: reason.to_string() });
        let deadline = Deadline::after(SETTLE / 2);
        let lives = |m: &MemberState| m.exit.is_none() && !m.process.has_joined();
        while !deadline.passed() && self.members.iter().any(lives) {
            std::thread::sleep(Duration::from_millis(5));
            for member in self.members.iter_mut().filter(|m| m.exit.is_none()) {
                member.exit = member.process.try_wait();
            }
        }
    }
}

impl Drop for Launcher<'_> {
    fn drop(&mut self) {
        let mut left: Vec<&mut MemberState> =
            self.members.iter_mut().filter(|member| member.exit.is_none()).collect();
        for member in &mut left {
            // a thread that listens holds the connection, too; those of other hosts end with it
            if let Some(control) = &member.control {
                let _ = control.stream().shutdown(Shutdown::Both);
            }
            // SIGKILL ends stopped processes too
            member.process.kill();
        }
        let deadline = Deadline::after(REAP_PATIENCE);
        for member in left {
            if !member.process.reap(deadline) {
                tracing::warn!(
                    "{} (pid {}) was killed and has not ended: it waits for a disk, or a debugger holds it; it is left behind",
                    member.role,
                    member.process.pid()
                );
            }
        }
    }
}
