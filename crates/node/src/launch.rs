//! The launcher: starts the members of a job on this machine, introduces them to each other, shows what
//! they say, and watches them. However a member ends, the job ends: the first cause is found, and no
//! process is left behind.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::handshake::{self, Purpose, Refusal};
use tensorwire_fabric::{JobCredentials, Member as Identity};

use crate::assignment::JobIdentity;
use crate::control::{FromMember, ToMember, read_frame, write_frame};
use crate::trace::{TraceError, TraceEvent};
use crate::verdict::{End, FirstFailure, Seen, first_failure};

/// How often the launcher looks around.
const TICK: Duration = Duration::from_millis(20);
/// How long, after the first failure, the other members may say what they saw.
const SETTLE: Duration = Duration::from_millis(700);
/// A gap between two looks that means that the launcher itself did not run.
const SUSPENDED: Duration = Duration::from_secs(2);
/// What the launcher takes in between two looks.
const EVENTS_MAX: usize = 10_000;
/// Callers that are asked who they are at the same time; more wait.
const HANDSHAKES_MAX: usize = 64;
/// How long a caller may take to say who it is; a member says it at once.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(1);

/// A job to launch.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The program that becomes a member: it reads its [`crate::Assignment`] from standard input.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Told to the members, so that one program can serve several kinds of jobs.
    pub kind: String,
    /// What each member is, by rank: `worker 0`, `server 1`.
    pub roles: Vec<String>,
    pub payload: serde_json::Value,
    /// Where to listen for the members; port 0: the system chooses.
    pub listen: SocketAddr,
    /// How long a silent member is believed to be alive.
    pub liveness: Duration,
    /// Set to end the job.
    pub interrupt: Arc<AtomicBool>,
}

/// What happens while a job runs.
#[derive(Clone, Debug)]
pub enum Update {
    Started {
        rank: Rank,
        pid: u32,
    },
    /// All members have been introduced to each other.
    Introduced,
    Progress {
        rank: Rank,
        step: u64,
        value: serde_json::Value,
    },
    /// What a member did, on this host's monotonic clock.
    Trace {
        rank: Rank,
        events: Vec<TraceEvent>,
    },
}

/// A job that was done.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// What each member reported, by rank.
    pub reports: Vec<serde_json::Value>,
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(
        "cannot listen on {at}: {source}; give another --listen ADDRESS:PORT, or port 0 to let the system choose"
    )]
    Listen { at: SocketAddr, source: std::io::Error },
    #[error("cannot start {role}: {program}: {source}")]
    Spawn { role: String, program: PathBuf, source: std::io::Error },
    #[error("interrupted")]
    Interrupted,
    #[error("{role} (rank {rank}) made another plan than {first}; do all run the same version?")]
    PlansDiffer { rank: Rank, role: String, first: String },
    /// The members gave up a launcher that was stopped itself.
    #[error(
        "the launcher itself was stopped for {for_s:.1} s, and its members gave it up; raise --deadline to survive that"
    )]
    Suspended { for_s: f64 },
    #[error("{0}")]
    Failed(FirstFailure),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Launches a job and stays until it is done or has failed. All members have ended when it returns.
///
/// # Errors
/// When a member fails, or the job is interrupted.
pub fn launch(spec: &JobSpec, on_update: &mut dyn FnMut(Update)) -> Result<JobOutcome, JobError> {
    let listen = |source| JobError::Listen { at: spec.listen, source };
    let listener = TcpListener::bind(spec.listen).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let at = listener.local_addr().map_err(listen)?;
    let identity = JobIdentity::random(spec.roles.len());
    let (events, inbox) = channel();
    let door = Door {
        listener,
        job: identity.credentials.clone(),
        expected: (0..spec.roles.len()).map(|i| identity.member(Rank(i as u32))).collect(),
        me: Identity { rank: Rank(u32::MAX), incarnation: identity.launcher },
        events,
        busy: Arc::new(AtomicUsize::new(0)),
    };
    let mut launcher =
        Launcher { spec, members: Vec::new(), ends: 0, introduced: false, suspended: None };
    for rank in (0..spec.roles.len() as u32).map(Rank) {
        launcher.spawn(&identity, rank, at)?;
        on_update(Update::Started { rank, pid: launcher.members[rank.index()].child.id() });
    }
    launcher.watch(&door, &inbox, on_update)
    // dropping the launcher kills and reaps whoever is left
}

/// What the launcher's threads report to it.
enum Event {
    Joined { rank: Rank, stream: TcpStream },
    Said { rank: Rank, message: FromMember },
    HungUp { rank: Rank },
}

/// Where members knock.
struct Door {
    listener: TcpListener,
    job: JobCredentials,
    expected: Vec<Identity>,
    me: Identity,
    events: Sender<Event>,
    busy: Arc<AtomicUsize>,
}

impl Door {
    /// Answers everyone who has knocked since the last time, each on a thread of its own.
    fn answer(&self) {
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
        _ if caller.purpose != Purpose::Rendezvous => Err(Refusal::Purpose),
        None => Err(Refusal::UnexpectedRank),
        Some(member) if *member != caller.member => Err(Refusal::StaleIncarnation),
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

struct Launcher<'a> {
    spec: &'a JobSpec,
    members: Vec<MemberState>,
    /// Ends noticed so far.
    ends: u32,
    introduced: bool,
    /// How long this process did not run, if the members ended in that time.
    suspended: Option<Duration>,
}

struct MemberState {
    child: Child,
    exit: Option<ExitStatus>,
    control: Option<TcpStream>,
    hung_up: bool,
    last_heard: Instant,
    step: u64,
    ready: Option<(String, String)>,
    report: Option<serde_json::Value>,
    end: End,
    order: u32,
}

impl Launcher<'_> {
    fn spawn(&mut self, job: &JobIdentity, rank: Rank, at: SocketAddr) -> Result<(), JobError> {
        let spec = self.spec;
        let role = || spec.roles[rank.index()].clone();
        let program = || spec.program.clone();
        let failed = |source| JobError::Spawn { role: role(), program: program(), source };
        // fits: a deadline is at most an hour
        let liveness_ms = spec.liveness.as_millis() as u64;
        let assignment = job.assignment(rank, at, liveness_ms, &spec.kind, &spec.payload);
        let line = serde_json::to_string(&assignment).map_err(|e| failed(e.into()))?;
        let mut child = Command::new(&spec.program)
            .args(&spec.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let told = child.stdin.take().map(|mut stdin| stdin.write_all(line.as_bytes()));
        self.members.push(MemberState {
            child,
            exit: None,
            control: None,
            hung_up: false,
            last_heard: Instant::now(),
            step: 0,
            ready: None,
            report: None,
            end: End::None,
            order: 0,
        });
        match told {
            // a child that died before it read its assignment is found by its exit status
            Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => Err(failed(error)),
            _ => Ok(()),
        }
    }

    fn watch(
        &mut self,
        door: &Door,
        inbox: &Receiver<Event>,
        on_update: &mut dyn FnMut(Update),
    ) -> Result<JobOutcome, JobError> {
        let (mut last_beat, mut last_look) = (Instant::now(), Instant::now());
        let mut failing: Option<Instant> = None;
        loop {
            if self.spec.interrupt.load(Ordering::Relaxed) {
                self.stop("interrupted");
                return Err(JobError::Interrupted);
            }
            door.answer();
            self.hear(inbox, on_update);
            self.forgive_suspension(&mut last_look);
            if last_beat.elapsed() >= self.spec.liveness / 10 {
                last_beat = Instant::now();
                self.tell_all(&ToMember::Heartbeat);
            }
            self.reap();
            self.notice_silence();
            self.introduce(on_update)?;
            if self.members.iter().all(MemberState::done) {
                let reports = self.members.iter_mut().map(|m| m.report.take().unwrap_or_default());
                return Ok(JobOutcome { reports: reports.collect() });
            }
            if self.ends > 0 {
                let since = *failing.get_or_insert_with(Instant::now);
                let all_over = self.members.iter().all(|m| m.end != End::None || m.done());
                if all_over || since.elapsed() >= SETTLE {
                    let failure = first_failure(&self.seen());
                    self.stop("another member failed");
                    return Err(match (failure, self.suspended) {
                        (_, Some(gap)) => JobError::Suspended { for_s: gap.as_secs_f64() },
                        (Some(failure), None) => JobError::Failed(failure),
                        (None, None) => JobError::Interrupted,
                    });
                }
            }
        }
    }

    /// Takes in what was said; waits one tick if nothing was.
    fn hear(&mut self, inbox: &Receiver<Event>, on_update: &mut dyn FnMut(Update)) {
        let first = inbox.recv_timeout(TICK).ok();
        let more = inbox.try_iter();
        // bounded: a talkative job must not keep the launcher from looking around
        for event in first.into_iter().chain(more).take(EVENTS_MAX) {
            match event {
                Event::Joined { rank, stream } => {
                    // a member that does not read must not hold up the others
                    let _ = stream.set_write_timeout(Some(TICK));
                    let member = &mut self.members[rank.index()];
                    member.last_heard = Instant::now();
                    member.control = Some(stream);
                }
                Event::HungUp { rank } => self.members[rank.index()].hung_up = true,
                Event::Said { rank, message } => self.said(rank, message, on_update),
            }
        }
    }

    fn said(&mut self, rank: Rank, message: FromMember, on_update: &mut dyn FnMut(Update)) {
        let member = &mut self.members[rank.index()];
        member.last_heard = Instant::now();
        match message {
            FromMember::Ready { endpoint, plan_digest } => {
                member.ready = Some((endpoint, plan_digest));
            }
            FromMember::Heartbeat { step } => member.step = member.step.max(step),
            FromMember::Progress { step, value } => {
                member.step = member.step.max(step);
                on_update(Update::Progress { rank, step, value });
            }
            FromMember::Trace { events } => on_update(Update::Trace { rank, events }),
            FromMember::Failed { step, error, user_error, lost_peer } => {
                let lost_peer = lost_peer.map(Rank);
                self.end(rank, End::Failed { step, error, user_error, lost_peer });
            }
            FromMember::Finished { report } => member.report = Some(report),
        }
    }

    fn end(&mut self, rank: Rank, end: End) {
        let member = &mut self.members[rank.index()];
        if member.end == End::None {
            member.end = end;
            member.order = self.ends;
            self.ends += 1;
        }
    }

    /// Exit statuses. What a dead process said last is heard first: its end counts once its
    /// connection has been read to the end.
    fn reap(&mut self) {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if member.exit.is_none() {
                member.exit = member.child.try_wait().ok().flatten();
            }
            let Some(status) = member.exit else { continue };
            let heard_out = member.hung_up || member.control.is_none();
            if heard_out && !member.done() {
                let how = describe(status);
                // fits: the world is a u32
                self.end(Rank(index as u32), End::Died { how });
            }
        }
    }

    fn notice_silence(&mut self) {
        for index in 0..self.members.len() {
            let member = &self.members[index];
            let silent = member.last_heard.elapsed();
            if silent >= self.spec.liveness && member.exit.is_none() {
                let for_s = silent.as_secs_f64();
                self.end(Rank(index as u32), End::Silent { for_s });
            }
        }
    }

    /// If this process itself did not run (Ctrl-Z, a suspended machine), silence meant nothing.
    fn forgive_suspension(&mut self, last_look: &mut Instant) {
        let gap = last_look.elapsed();
        *last_look = Instant::now();
        if gap >= SUSPENDED {
            tracing::warn!("the launcher did not run for {:.1} s", gap.as_secs_f64());
            for member in &mut self.members {
                member.last_heard = Instant::now();
                member.exit = member.child.try_wait().ok().flatten();
            }
            // a member gives its launcher up after half the liveness at the earliest, with status 1
            let gave_up = |m: &MemberState| m.exit.is_some_and(|status| status.code() == Some(1));
            let own_fault = gap >= self.spec.liveness / 2 && self.members.iter().any(gave_up);
            self.suspended = own_fault.then_some(gap);
        }
    }

    /// Once every member has said where it is, tells everyone.
    fn introduce(&mut self, on_update: &mut dyn FnMut(Update)) -> Result<(), JobError> {
        let ready: Option<Vec<&(String, String)>> =
            self.members.iter().map(|member| member.ready.as_ref()).collect();
        let Some(ready) = ready.filter(|_| !self.introduced) else {
            return Ok(());
        };
        let other = ready.iter().position(|(_, digest)| *digest != ready[0].1);
        if let Some(index) = other {
            let (role, first) = (self.spec.roles[index].clone(), self.spec.roles[0].clone());
            return Err(JobError::PlansDiffer { rank: Rank(index as u32), role, first });
        }
        let endpoints = ready.iter().map(|(endpoint, _)| endpoint.clone()).collect();
        self.tell_all(&ToMember::Peers { endpoints });
        self.introduced = true;
        on_update(Update::Introduced);
        Ok(())
    }

    fn tell_all(&mut self, message: &ToMember) {
        for member in &mut self.members {
            if let Some(control) = &mut member.control {
                // a member that cannot be told is noticed by its silence or its end
                let _ = write_frame(control, message);
            }
        }
    }

    fn seen(&self) -> Vec<Seen> {
        let seen = |(index, member): (usize, &MemberState)| Seen {
            rank: Rank(index as u32),
            role: self.spec.roles[index].clone(),
            pid: member.child.id(),
            step: member.step,
            end: member.end.clone(),
            order: member.order,
        };
        self.members.iter().enumerate().map(seen).collect()
    }

    /// Ends all members: first by word, then, after a moment, by force.
    fn stop(&mut self, reason: &str) {
        self.tell_all(&ToMember::Stop { reason: reason.to_string() });
        let deadline = Deadline::after(SETTLE / 2);
        while !deadline.passed() && self.members.iter().any(|m| m.exit.is_none()) {
            std::thread::sleep(Duration::from_millis(5));
            for member in self.members.iter_mut().filter(|m| m.exit.is_none()) {
                member.exit = member.child.try_wait().ok().flatten();
            }
        }
    }
}

impl Drop for Launcher<'_> {
    fn drop(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.exit.is_none()) {
            // SIGKILL ends stopped processes too
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl MemberState {
    /// It has reported and ended well.
    fn done(&self) -> bool {
        self.report.is_some() && self.exit.is_some_and(|status| status.success())
    }
}

fn describe(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return match status.code() {
            Some(0) => "it ended before its part was done".to_string(),
            Some(code) => format!("it exited with status {code}"),
            None => "it ended".to_string(),
        };
    };
    let name = match signal {
        2 => " (SIGINT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS: memory ran out)",
        9 => " (SIGKILL: by hand, or out of memory)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("it was killed by signal {signal}{name}")
}
