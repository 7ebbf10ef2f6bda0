//! Where the processes that somebody else started are gathered: the launcher's side. It opens before the job is
//! prepared, so that nobody calls in vain, and tells everyone that waits what became of it, also when there
//! will be no job. When the launcher takes over it hands on its port and everyone in it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_fabric::handshake::{self, HandshakeRefusal, Purpose};
use tensorwire_fabric::lobby::{Caller, Handshakes, Lobby, Stranger, StrangerLog, Turn, Unproven};
use tensorwire_fabric::{Identity, JobCredentials};

use super::detect::{Detected, LaunchedAs, Rendezvous};
use super::key::KeyFile;
use super::listening::bind;
use super::{Answer, JobKeyError, JoinRequest, KeySource, Machine, key};
use crate::assignment::Assignment;
use crate::control::{Speaker, ToMember, ends};
use crate::cpus::CpuMask;
use crate::hosts::Hosts;
use crate::launcher::{REASON_PATIENCE, callers};

/// How often the gathering looks around.
const TICK: Duration = Duration::from_millis(20);
/// How often those who wait are told that they still do.
const WAIT_EVERY: Duration = Duration::from_secs(1);
/// How long until those are named who have not come yet.
const COMPLAIN_AFTER: Duration = Duration::from_secs(10);
/// How long a caller may take to say who it is, and to take an answer.
const CALLER_PATIENCE: Duration = Duration::from_secs(1);
/// How long one that has proven itself may take to say what it is: its host may be busy starting others.
const ENLISTING_PATIENCE: Duration = Duration::from_secs(5);
/// How long a gathering without a job stays to tell those who call late.
const DISMISS_PATIENCE: Duration = Duration::from_secs(3);

/// Why the processes of a job could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    #[error(
        "cannot listen for the job's processes at {at}: {source}; set MASTER_PORT to a free port for all of them"
    )]
    Listen { at: String, source: std::io::Error },
    #[error(
        "{missing} of {world} processes did not call {at} within {waited_s} s: {which}; {by} started them, and each must reach that address (MASTER_ADDR, firewall) with the same key: one TENSORWIRE_SECRET for all, or one HOME; where some start late, --gather-timeout SECONDS"
    )]
    Missing {
        missing: usize,
        world: u32,
        at: SocketAddr,
        waited_s: u64,
        which: String,
        by: &'static str,
    },
    #[error("first to fail: {who} before the job began: its process ended")]
    Lost { who: String },
    #[error("interrupted before all had come; missing: {which}")]
    Interrupted { which: String },
    #[error("nobody answers at {at} for {waited_s} s: {last}")]
    NobodyThere { at: Rendezvous, waited_s: u64, last: String },
    #[error(
        "whoever answers at {at} has another secret than this process; set TENSORWIRE_SECRET to the same text for all processes, or for none"
    )]
    Secret { at: SocketAddr },
    #[error("the launcher at {at} hung up; what it said is where the output of rank 0 goes")]
    HungUp { at: SocketAddr },
    #[error("the launcher at {at} has said nothing for {silent_s} s; was it stopped?")]
    Silent { at: SocketAddr, silent_s: u64 },
    #[error("{reason}")]
    Refused { reason: String },
    #[error("there is no job; the output of the launcher says why")]
    NoJob {
        /// With which the launcher ends.
        status: u8,
    },
    #[error(transparent)]
    Key(#[from] JobKeyError),
    #[error("the system has no thread to spare: {0}")]
    Thread(std::io::Error),
}

/// A process that has joined.
#[derive(Debug)]
pub(crate) struct JoinedProcess {
    /// Open until it ends, and the sign that it has.
    pub(crate) speaker: Speaker,
    pub(crate) pid: u32,
    machine: Machine,
    cpus: CpuMask,
}

/// Where the processes of a job are gathered.
#[derive(Debug)]
pub struct Gathering {
    detected: Detected,
    at: SocketAddr,
    machine: Machine,
    cpus: CpuMask,
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    /// As long as others may still come.
    key_file: Mutex<Option<KeyFile>>,
    listener: TcpListener,
    /// Members of a job that has failed.
    to_stop: Mutex<Vec<Speaker>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// By rank; none for that of the launcher, and for whoever has not come.
    places: Vec<Option<JoinedProcess>>,
    /// Who had joined and is gone, the first of them.
    lost: Option<String>,
    /// How many have come and gone.
    left: u32,
    /// There will be no job: the status with which the launcher ends.
    dismissed: Option<u8>,
}

impl Gathering {
    /// Listens where the others will call. `listen`: there instead, and nowhere else.
    ///
    /// # Errors
    /// When there is no port to listen at.
    pub fn open(
        detected: &Detected,
        key: &KeySource,
        listen: Option<SocketAddr>,
    ) -> Result<Gathering, RendezvousError> {
        let listener = bind(&detected.rendezvous, listen)?;
        let failed =
            |source| RendezvousError::Listen { at: detected.rendezvous.to_string(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let (job, key_file) = key::made(&detected.key, key)?;
        let places = (0..detected.world).map(|_| None).collect();
        let state = State { places, lost: None, left: 0, dismissed: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), closed: AtomicBool::new(false) });
        let incarnation = Incarnation(u64::from_le_bytes(handshake::random_bytes()));
        let keeper = Keeper {
            listener: listener.try_clone().map_err(failed)?,
            job,
            me: Identity { rank: Rank(u32::MAX), incarnation },
            detected: detected.clone(),
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new().name("gathering".into());
        let thread = thread.spawn(move || keeper.keep()).map_err(RendezvousError::Thread)?;
        Ok(Gathering {
            detected: detected.clone(),
            at,
            machine: Machine::here(),
            cpus: CpuMask::here(),
            shared,
            key_file: Mutex::new(key_file),
            keeper: Mutex::new(Some(thread)),
            listener,
            to_stop: Mutex::default(),
        })
    }

    /// Where the others call.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Waits until all have come. Ends early once `interrupt` is set.
    ///
    /// # Errors
    /// When some do not come in time, one ends before all are there, or the launcher is told to end.
    pub fn gather(&self, interrupt: &AtomicBool) -> Result<(), RendezvousError> {
        let patience = self.detected.patience;
        let deadline = Deadline::after(patience);
        let (begun, mut complained) = (Instant::now(), false);
        let mut told_to_end: Option<Instant> = None;
        loop {
            let missing = {
                let state = self.shared.state.lock();
                if let Some(who) = &state.lost {
                    return Err(RendezvousError::Lost { who: who.clone() });
                }
                self.missing(&state)
            };
            if interrupt.load(Ordering::Relaxed) {
                let since = *told_to_end.get_or_insert_with(Instant::now);
                if since.elapsed() >= REASON_PATIENCE {
                    return Err(RendezvousError::Interrupted { which: missing.join(", ") });
                }
            } else if missing.is_empty() {
                self.place_workers_here_first();
                return Ok(());
            } else if deadline.passed() {
                let (world, by) = (self.detected.world, self.detected.by.name());
                let (waited_s, count) = (patience.as_secs(), missing.len());
                let which = missing.join(", ");
                let at = self.at;
                return Err(RendezvousError::Missing {
                    missing: count,
                    world,
                    at,
                    waited_s,
                    which,
                    by,
                });
            }
            if begun.elapsed() >= COMPLAIN_AFTER && !complained {
                complained = true;
                let (waited_s, which) = (COMPLAIN_AFTER.as_secs(), missing.join(", "));
                tracing::warn!("not there after {waited_s} s: {which}; still waiting");
            }
            std::thread::sleep(TICK);
        }
    }

    /// Where everyone is, by rank, once all have come.
    pub fn hosts(&self) -> Hosts {
        self.hosts_and_here(0)
    }

    /// The same, with so many members behind them that the launcher starts on its own host.
    pub fn hosts_and_here(&self, started: u32) -> Hosts {
        let state = self.shared.state.lock();
        let mut members = Vec::new();
        for place in &state.places {
            let machine = place.as_ref().map_or(&self.machine, |joined| &joined.machine);
            let here = machine.id == self.machine.id;
            // containers are often called alike
            let alike = !here && machine.name == self.machine.name;
            let other = state.places.iter().flatten().map(|joined| &joined.machine);
            let alike =
                alike || other.clone().any(|o| o.name == machine.name && o.id != machine.id);
            let address =
                place.as_ref().and_then(|joined| joined.speaker.stream().peer_addr().ok());
            let name = match address.filter(|_| alike && !here) {
                Some(address) => format!("{} ({})", machine.name, address.ip().to_canonical()),
                None => machine.name.clone(),
            };
            let cpus = place.as_ref().map_or(&self.cpus, |joined| &joined.cpus);
            members.push((name, here, cpus.clone()));
        }
        let own = || (self.machine.name.clone(), true, self.cpus.clone());
        members.extend((0..started).map(|_| own()));
        Hosts::of_members(members)
    }

    /// Tells everyone, also those who come in the next moments, that there is no job, or no more, and members why. Whoever
    /// started the processes may end this one as soon as they end: what is to be said is said before, and those that are no
    /// members yet end with `status`, as this process is about to.
    pub fn dismiss(&self, why: &str, status: u8) {
        for mut member in self.to_stop.lock().drain(..) {
            // one that is gone needs not be told
            let _ = member.say(&ToMember::Stop { reason: why.to_string() });
        }
        self.shared.state.lock().dismissed = Some(status);
        let deadline = Deadline::after(DISMISS_PATIENCE);
        // it closes by itself once all have come and gone
        while !deadline.passed() && !self.shared.closed.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
        }
        self.close();
    }

    /// Who has not come, in words.
    fn missing(&self, state: &State) -> Vec<String> {
        let own = match self.detected.launched_as {
            LaunchedAs::Rank(rank) => Some(rank),
            _ => None,
        };
        let empty = (0u32..).zip(&state.places).filter(|(_, place)| place.is_none());
        let empty = empty.map(|(rank, _)| rank).filter(|rank| Some(*rank) != own);
        empty.map(|rank| place_name(&self.detected, rank)).collect()
    }

    /// Ranks that come as they come: the first worker evaluates and saves, and does so here if it can.
    fn place_workers_here_first(&self) {
        let Some((workers, _)) = self.detected.counts else { return };
        let mut state = self.shared.state.lock();
        let here = |place: &Option<JoinedProcess>| {
            place.as_ref().is_some_and(|joined| self.is_here(joined))
        };
        let workers = (workers as usize).min(state.places.len());
        state.places[..workers].sort_by_key(|place| !here(place));
    }

    /// No more callers: the port is the launcher's.
    fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        drop(self.key_file.lock().take());
        if let Some(keeper) = self.keeper.lock().take() {
            // a thread that panicked has said so
            let _ = keeper.join();
        }
    }

    /// Hands the port and everyone in it to the launcher: by rank, none for its own. Later there is nobody
    /// any more.
    ///
    /// # Errors
    /// When one has ended since all were there.
    pub(crate) fn take_over(
        &self,
    ) -> Result<(TcpListener, VecDeque<Option<JoinedProcess>>), RendezvousError> {
        self.close();
        let mut state = self.shared.state.lock();
        if let Some(who) = &state.lost {
            return Err(RendezvousError::Lost { who: who.clone() });
        }
        let failed = |source| RendezvousError::Listen { at: self.at.to_string(), source };
        let listener = self.listener.try_clone().map_err(failed)?;
        Ok((listener, std::mem::take(&mut state.places).into()))
    }

    /// The address at which members find the launcher: that at which other hosts' have called it, so that
    /// those of this host are found by them, too.
    pub(crate) fn reached_at(&self, places: &VecDeque<Option<JoinedProcess>>) -> SocketAddr {
        let remote = places.iter().flatten().find(|joined| !self.is_here(joined));
        let called = remote.or(places.iter().flatten().next());
        let called = called.and_then(|joined| joined.speaker.stream().local_addr().ok());
        let mut at = self.at;
        // who called by IPv4 is found so, also by a socket of both kinds
        at.set_ip(called.map_or(Ipv4Addr::LOCALHOST.into(), |called| called.ip().to_canonical()));
        at
    }

    /// Takes the control connection of a member that is to end when all is said.
    pub(crate) fn stop_later(&self, member: Speaker) {
        self.to_stop.lock().push(member);
    }

    fn is_here(&self, joined: &JoinedProcess) -> bool {
        joined.machine.id == self.machine.id
    }

    /// Tells a process what it is.
    pub(crate) fn assign(
        &self,
        joined: &mut JoinedProcess,
        mut assignment: Assignment,
    ) -> std::io::Result<()> {
        if !self.is_here(joined) {
            // where it has called already, whatever way others take
            let called = joined.speaker.stream().local_addr()?.ip();
            assignment.coordinator.set_ip(called.to_canonical());
        }
        joined.speaker.stream().set_nonblocking(false)?;
        joined.speaker.stream().set_write_timeout(Some(CALLER_PATIENCE))?;
        joined.speaker.say_all(&Answer::Assigned(Box::new(assignment)))?;
        joined.speaker.stream().set_nonblocking(true)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        self.close();
    }
}

impl JoinedProcess {
    /// Has its process ended? It says nothing more, so whatever comes is its end.
    pub(crate) fn is_gone(&self) -> bool {
        match self.speaker.stream().peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// The thread that keeps a gathering.
struct Keeper {
    listener: TcpListener,
    job: JobCredentials,
    me: Identity,
    detected: Detected,
    shared: Arc<Shared>,
}

impl Keeper {
    fn keep(&self) {
        let mut lobby = Lobby::new(self.job.job_id, self.me, CALLER_PATIENCE);
        let (handshakes, mut told) = (Handshakes::default(), Instant::now());
        let mut log = StrangerLog::default();
        while !self.shared.closed.load(Ordering::Relaxed) {
            self.answer(&mut lobby, &handshakes, &mut log);
            let mut state = self.shared.state.lock();
            if let Some(status) = state.dismissed {
                dismiss_all(&mut state, status);
                // the launcher itself is none of the others
                let others = self.detected.world
                    - u32::from(self.detected.launched_as == LaunchedAs::Rank(0));
                if state.left >= others {
                    self.shared.closed.store(true, Ordering::Relaxed);
                }
            }
            notice_lost(&mut state, &self.detected);
            if told.elapsed() >= WAIT_EVERY {
                told = Instant::now();
                for joined in state.places.iter_mut().flatten() {
                    // who does not take it is not there any more, or does not read: a job would notice
                    let _ = joined.speaker.say(&Answer::Wait);
                }
            }
            drop(state);
            std::thread::sleep(TICK);
        }
    }

    /// Hears everyone who has called since the last time; who says the hello of this job is asked on a thread of its own.
    fn answer(&self, lobby: &mut Lobby<TcpStream>, handshakes: &Handshakes, log: &mut StrangerLog) {
        let Turn { ready, strangers } = callers(&self.listener, lobby, handshakes);
        // another job's processes look here, too, if its port was taken
        for Stranger { from, why } in strangers {
            let line = log.line(|| format!("turned away {from}: {why}"));
            line.inspect(|line| tracing::info!("{line}"));
        }
        for caller in ready {
            let (job, me, shared) = (self.job.clone(), self.me, self.shared.clone());
            let (detected, from) = (self.detected.clone(), caller.from.clone());
            let begun = handshakes.begin(caller, move |caller, unproven| {
                let from = caller.from.clone();
                if let Err(reason) = ask(caller, unproven, &job, me, &detected, &shared) {
                    tracing::info!("turned away {from}: {reason}");
                }
            });
            if let Err(error) = begun {
                tracing::warn!("turned away {from}: no thread for it: {error}");
            }
        }
    }
}

/// Asks a caller who it is and gives it its seat.
fn ask(
    caller: Caller<TcpStream>,
    unproven: Unproven,
    job: &JobCredentials,
    me: Identity,
    detected: &Detected,
    shared: &Shared,
) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let Caller { mut stream, hello, .. } = caller;
    let admit = |caller: &handshake::Caller| {
        unproven.proven();
        match caller.purpose {
            Purpose::Rendezvous => Ok(()),
            _ => Err(HandshakeRefusal::Purpose),
        }
    };
    let deadline = Deadline::after(CALLER_PATIENCE);
    let accepted = handshake::accept(&mut stream, &hello, job, me, admit, deadline);
    let (_, seals) = accepted.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(ENLISTING_PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(CALLER_PATIENCE)).map_err(failed)?;
    let (mut speaker, mut hearer) = ends(stream, seals).map_err(failed)?;
    let said: JoinRequest = hearer.hear().map_err(failed)?;
    let mut state = shared.state.lock();
    match free_place(&state, &said, detected) {
        Ok(rank) => {
            speaker.stream().set_nonblocking(true).map_err(failed)?;
            let JoinRequest { machine, pid, cpus, .. } = said;
            state.places[rank] = Some(JoinedProcess { speaker, pid, machine, cpus });
            Ok(())
        }
        Err(reason) => {
            let answer = Answer::Refused { reason: reason.clone() };
            // whoever does not read holds up nobody
            drop(state);
            speaker.say_all(&answer).map_err(failed)?;
            Err(reason)
        }
    }
}

/// The rank that a process gets, or why it gets none.
fn free_place(state: &State, said: &JoinRequest, detected: &Detected) -> Result<usize, String> {
    if said.world != detected.world {
        let (theirs, ours) = (said.world, detected.world);
        return Err(format!(
            "this process was told of {theirs} processes, and the launcher of {ours}; were all started by one command?"
        ));
    }
    let workers = detected.counts.map_or(0, |(workers, _)| workers as usize);
    let first_free = |from: usize, to: usize| {
        let free = (from..to.min(state.places.len())).find(|rank| state.places[*rank].is_none());
        free.ok_or_else(|| {
            format!("there are enough already: {} is one too many", said.launched_as)
        })
    };
    match said.launched_as {
        LaunchedAs::Worker => first_free(0, workers),
        LaunchedAs::Server => first_free(workers, state.places.len()),
        LaunchedAs::Rank(rank) => match state.places.get(rank as usize) {
            // the launcher itself is no member to call, unless it stands beside all of them
            Some(None) if rank > 0 || detected.launched_as == LaunchedAs::Scheduler => {
                Ok(rank as usize)
            }
            _ => Err(format!("there is a process of rank {rank} already")),
        },
        LaunchedAs::Scheduler => Err("there is a scheduler already".to_string()),
    }
}

/// Tells everyone that there is no job.
fn dismiss_all(state: &mut State, status: u8) {
    for mut joined in state.places.iter_mut().filter_map(Option::take) {
        // who is gone needs not be told
        let _ = joined.speaker.say_all(&Answer::NoJob { status });
        state.left += 1;
    }
}

fn notice_lost(state: &mut State, detected: &Detected) {
    for (rank, place) in (0u32..).zip(&mut state.places) {
        let Some(joined) = place.as_ref().filter(|joined| joined.is_gone()) else { continue };
        let (name, host, pid) = (place_name(detected, rank), &joined.machine.name, joined.pid);
        state.lost.get_or_insert(format!("{name} (pid {pid} on {host})"));
        state.left += 1;
        *place = None;
    }
}

/// What the user knows the process of this rank by, before it is told what it is.
fn place_name(detected: &Detected, rank: u32) -> String {
    match detected.counts {
        Some((workers, _)) if rank < workers => "a worker".to_string(),
        Some(_) => "a server".to_string(),
        None => format!("rank {rank}"),
    }
}
