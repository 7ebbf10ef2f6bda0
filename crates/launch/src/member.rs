//! A member's side of a job: it calls the launcher, proves itself, and from then on a thread tells the
//! launcher that it is alive and watches that the launcher is.

mod connection;
mod gate;
mod line;
mod scheduling;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::handshake::HandshakeError;
use tensorwire_fabric::{ConnectError, Identity, JobCredentials, VerbsUnusable};

use crate::assignment::{Assignment, JobIdentity};
use crate::control::{Behind, Blame, FromMember, record_frames};
use crate::launcher::START_PATIENCE;
use crate::standing::Whereabouts;
use crate::store_job::{BarrierError, ControlEvents, StorePlace};
use crate::transport::Transport;
use connection::{ControlReader, Heart, LastWords, Watch, configured, dial};
use gate::Gate;
use line::Line;

pub use scheduling::Scheduling;
pub use wire::{Peers, QUEUE_PAIRS, WireOptions};

/// This process as a member of a job.
#[derive(Debug)]
pub struct Member {
    assignment: Assignment,
    identity: JobIdentity,
    control: Arc<Line>,
    /// The address at which this host reaches the launcher's, and others reach this one.
    reached_at: SocketAddr,
    told: Receiver<Introduction>,
    control_events: Arc<ControlEvents>,
    step: Arc<AtomicU64>,
    whereabouts: Arc<OnceLock<Arc<dyn Whereabouts>>>,
    gate: Arc<Gate>,
}

/// What the launcher tells a member that waits for it.
#[derive(Debug)]
enum Introduction {
    Transport(Transport),
    Peers(Vec<Option<Vec<String>>>),
}

/// Why a member's process must end though its part is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The launcher said so; it knows why and shows it.
    Told { reason: String },
    /// The launcher is gone: nobody else will say why.
    Orphaned { reason: String },
    /// The process stands still, which the launcher has been told.
    StandsStill { reason: String },
}

/// Whether a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepWord {
    Begins,
    /// The job is done, before its last step.
    Done,
    /// The job is interrupted.
    Interrupted,
}

/// Why a process could not join its job.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("the assignment is garbled; members are started by a launcher, not by hand")]
    Garbled,
    #[error("cannot reach the launcher at {at}: {source}")]
    Unreachable { at: std::net::SocketAddr, source: std::io::Error },
    #[error("the launcher at {at}: {source}")]
    Handshake { at: std::net::SocketAddr, source: HandshakeError },
    #[error("the assignment's payload makes no sense: {0}")]
    Payload(#[from] serde_json::Error),
    #[error("the control connection: {0}")]
    Control(#[from] std::io::Error),
}

/// Why a member could not connect to its peers.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("opening the fabric: {0}")]
    Open(tensorwire_fabric::OpenFabricError),
    /// The user wants RDMA and nothing else.
    #[error("RDMA cannot be used on this process's host: {}; {}", .0.reason, .0.mend)]
    Verbs(VerbsUnusable),
    #[error("connecting to the peers: {0}")]
    Connect(#[from] ConnectError),
    #[error("the launcher did not introduce the peers within {waited_s} s")]
    NoPeers { waited_s: u64 },
    #[error("the launcher did not say which transport to take within {waited_s} s")]
    NoTransport { waited_s: u64 },
    #[error("rank {rank} says that it is at {endpoint:?}, which is no endpoint")]
    BadEndpoint { rank: Rank, endpoint: String },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

impl MemberError {
    /// True if it has waited for others, which live, for too long.
    pub fn is_of_others(&self) -> bool {
        matches!(self, MemberError::NoPeers { .. } | MemberError::NoTransport { .. })
    }

    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            MemberError::Connect(ConnectError::Lost(fault)) => Some(fault.rank),
            MemberError::Connect(
                ConnectError::Unreachable { rank, .. } | ConnectError::Handshake { rank, .. },
            )
            | MemberError::BadEndpoint { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

impl Member {
    /// Joins the job that `assignment` describes. `on_ending` is called, from another thread, when
    /// the launcher is gone or says stop: the process must end then.
    ///
    /// # Errors
    /// When the launcher cannot be reached or turns this process away.
    pub fn join(
        assignment: Assignment,
        on_ending: impl FnOnce(Ending) + Send + 'static,
    ) -> Result<Member, JoinError> {
        let identity = assignment.identity().ok_or(JoinError::Garbled)?;
        let at = assignment.coordinator;
        let liveness = Duration::from_millis(assignment.liveness_ms);
        let (speaker, hearer) = dial(&identity, assignment.rank(), at, Deadline::after(liveness))?;
        let stream = configured(speaker.stream(), liveness)?;
        let step = Arc::new(AtomicU64::new(0));
        let (tell, told) = channel();
        let reached_at = SocketAddr::new(stream.local_addr()?.ip(), 0);
        let patience = assignment.takeover_ms.map(Duration::from_millis);
        let control = Arc::new(Line::new(speaker, patience.is_some()));
        let last_words = LastWords::new(on_ending);
        let whereabouts = Arc::<OnceLock<_>>::default();
        let heart = Heart {
            control: control.clone(),
            step: step.clone(),
            whereabouts: whereabouts.clone(),
            last_words: last_words.clone(),
        };
        heart.spawn(liveness)?;
        let (control_events, gate) = (Arc::<ControlEvents>::default(), Arc::new(Gate::open()));
        let hears = ControlReader {
            tell,
            control_events: control_events.clone(),
            gate: gate.clone(),
            control: control.clone(),
        };
        let watch = Watch {
            hears,
            last_words,
            identity: identity.clone(),
            rank: assignment.rank(),
            at,
            liveness,
            patience: patience.unwrap_or_default(),
        };
        watch.spawn(hearer)?;
        Ok(Member {
            assignment,
            identity,
            control,
            reached_at,
            told,
            control_events,
            step,
            whereabouts,
            gate,
        })
    }

    /// From now on this process is watched: the launcher hears where it stands, and it ends, with `on_ending` called, when it
    /// stands still for good. Once in its life.
    pub fn is_watched(&self, whereabouts: Arc<dyn Whereabouts>) {
        // whoever asks twice is the same process
        let _ = self.whereabouts.set(whereabouts);
    }

    /// Which job it is, for whoever starts members of several kinds.
    pub fn kind(&self) -> &str {
        &self.assignment.kind
    }

    pub fn rank(&self) -> Rank {
        self.assignment.rank()
    }

    pub fn world(&self) -> usize {
        self.assignment.world()
    }

    /// Members of the job on this one's host, itself included.
    pub fn members_here(&self) -> usize {
        self.assignment.members_here as usize
    }

    /// Those of them that may run on the same processors, itself included: fewer where a launcher has bound each to some.
    pub fn cores_shared_by(&self) -> usize {
        self.assignment.cores_shared_by as usize
    }

    /// Processors on which the job's members on this one's host run, all together.
    pub fn cores_here(&self) -> usize {
        let own = std::thread::available_parallelism().map_or(1, usize::from);
        own * self.members_here() / self.cores_shared_by().max(1)
    }

    /// The number of this one's host: members of one host have the same.
    pub fn host(&self) -> u32 {
        self.assignment.host
    }

    /// The address of this host at which the other members reach it.
    pub fn address(&self) -> IpAddr {
        self.reached_at.ip()
    }

    /// How long a silent process is believed to be alive.
    pub fn liveness(&self) -> Duration {
        Duration::from_millis(self.assignment.liveness_ms)
    }

    /// How long a step of the set-up may wait for peers, which may have much to read ([`crate::JobSpec::set_up`]). A dead or
    /// stopped one is noticed by the launcher long before, which then knows whom to blame.
    pub fn setup_patience(&self) -> Duration {
        self.assignment.setup_patience()
    }

    /// How long to wait for what the launcher says once it has heard of all members: some may have to
    /// be started on other hosts first.
    fn others_patience(&self) -> Duration {
        START_PATIENCE + self.setup_patience()
    }

    /// What the job is, in its own form.
    ///
    /// # Errors
    /// When the payload is of another form.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, JoinError> {
        Ok(serde_json::from_value(self.assignment.payload.clone())?)
    }

    /// Says where this member's fabrics are found, and hears where the others' are, by rank.
    pub fn introduce(
        &self,
        endpoints: Vec<String>,
        plan_digest: &str,
    ) -> Result<Vec<Option<Vec<String>>>, MemberError> {
        let plan_digest = plan_digest.to_string();
        self.tell(&FromMember::Ready { endpoints, plan_digest })?;
        let deadline = Deadline::after(self.others_patience());
        loop {
            match self.told.recv_timeout(deadline.remaining()) {
                Ok(Introduction::Peers(endpoints)) => return Ok(endpoints),
                // another launcher says it once more
                Ok(Introduction::Transport(_)) => {}
                Err(_) => {
                    let waited_s = self.others_patience().as_secs();
                    return Err(MemberError::NoPeers { waited_s });
                }
            }
        }
    }

    /// The launcher watches for silence only who has said this.
    pub fn say_connected(&self) -> Result<(), MemberError> {
        Ok(self.tell(&FromMember::Connected)?)
    }

    pub fn credentials(&self) -> &JobCredentials {
        &self.identity.credentials
    }

    /// The life of a member, which every other knows it by.
    pub fn life(&self, rank: Rank) -> Identity {
        self.identity.member(rank)
    }

    /// The lives of the first `count` members.
    pub fn lives(&self, count: u32) -> Vec<Identity> {
        (0..count).map(|rank| self.life(Rank(rank))).collect()
    }

    /// Has nothing been said of its loss?
    pub fn lives_still(&self, rank: Rank) -> bool {
        self.control_events.lives(rank.0)
            || self.store().is_none_or(|store| rank.0 >= store.workers)
    }

    /// The launcher as a store's scheduler, for whoever drives the store.
    pub fn scheduling(&self) -> Scheduling {
        let (control, control_events) = (self.control.clone(), self.control_events.clone());
        Scheduling { control, control_events, store: self.store() }
    }

    /// What this member is in a store, if the job is one.
    pub fn store(&self) -> Option<StorePlace> {
        self.assignment.store
    }

    /// Waits at the next barrier until all live workers have come to it. After an error the next call
    /// waits for the same one.
    ///
    /// # Errors
    /// When this is no worker, not all come before the deadline, or the launcher is gone.
    pub fn barrier(&self, deadline: Deadline) -> Result<(), BarrierError> {
        let number = self.scheduling().enter_barrier()?;
        let passed = self.control_events.await_released(number, deadline);
        passed.then_some(()).ok_or(BarrierError::TimedOut { number })
    }

    /// Waits until it is known whether `step` (from 1) begins, as it does wherever nothing else is said
    /// ([`Member::wait_behind`], [`crate::JobSpec::wind_down`]); if so, [`Member::begin_step`].
    ///
    /// # Errors
    /// When the launcher is gone, or has not said so by the deadline.
    pub fn enter_step(&self, step: u64, deadline: Deadline) -> std::io::Result<StepWord> {
        let word = self.gate.begin(step, deadline)?;
        if word == StepWord::Begins {
            self.begin_step(step)?;
        }
        Ok(word)
    }

    /// As [`Member::enter_step`], without waiting: true if `step` begins now. For a member that takes part in several steps at
    /// once, each with others.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn may_enter_step(&self, step: u64) -> std::io::Result<bool> {
        let begins = self.gate.begins(step);
        if begins && step > self.step.load(Ordering::Relaxed) {
            self.begin_step(step)?;
        }
        Ok(begins)
    }

    /// Tells the launcher that `step` (from 1) begins: if this process is killed or stopped in it,
    /// nobody else can say which it was.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn begin_step(&self, step: u64) -> std::io::Result<()> {
        self.step.store(step, Ordering::Relaxed);
        self.tell(&FromMember::Heartbeat { step, still: None })
    }

    /// Has this member wait behind `step` until one says for all what comes there. All are to do so, before their first step.
    pub fn wait_behind(&self, step: u64) {
        self.gate.allow(step, Behind::Unknown);
    }

    /// Says for all members that they may go on up to `until`, and wait there.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn go_on(&self, until: u64) -> std::io::Result<()> {
        self.tell(&FromMember::Allow { until, behind: Behind::Unknown })
    }

    /// Says for all members, which wait behind `step`, that the job is done there.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn end_behind(&self, step: u64) -> std::io::Result<()> {
        self.tell(&FromMember::Allow { until: step, behind: Behind::Done })
    }

    /// Shows the launcher something, in the job's own form ([`crate::Messages::Progress`]).
    ///
    /// # Errors
    /// When it cannot be written as JSON, or the launcher is gone.
    pub fn progress(&self, value: impl Serialize) -> std::io::Result<()> {
        let value = serde_json::to_value(value)?;
        self.tell(&FromMember::Progress { step: self.step.load(Ordering::Relaxed), value })
    }

    /// Tells people what was chosen here: who watches the job shows each line once.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn say(&self, line: &str) -> std::io::Result<()> {
        self.tell(&FromMember::Says { line: line.to_owned() })
    }

    /// Tells the launcher how fast this member is, in the job's own form, for whoever asks how the job stands.
    ///
    /// # Errors
    /// When it cannot be written as JSON, or the launcher is gone.
    pub fn figures(&self, value: impl Serialize) -> std::io::Result<()> {
        self.tell(&FromMember::Figures { value: serde_json::to_value(value)? })
    }

    /// Sends the launcher what this member recorded, in the job's own form ([`crate::Messages::Record`]), in order.
    ///
    /// # Errors
    /// When it cannot be written as JSON, or the launcher is gone.
    pub fn record<T: Serialize>(&self, values: &[T]) -> std::io::Result<()> {
        self.recorder().record(values)
    }

    /// Returns what does so from anywhere in this process.
    pub fn recorder(&self) -> Recorder {
        Recorder { control: self.control.clone() }
    }

    /// Says that this member's part is done, with a report in the job's own form ([`crate::Messages::Report`]).
    ///
    /// # Errors
    /// When it cannot be written as JSON, or the launcher is gone.
    pub fn finish(&self, report: impl Serialize) -> std::io::Result<()> {
        let report = serde_json::to_value(report)?;
        self.tell(&FromMember::Finished { report })?;
        let patience = Duration::from_millis(self.assignment.takeover_ms.unwrap_or_default());
        self.control.await_heard(Deadline::after(self.liveness()), Deadline::after(patience));
        Ok(())
    }

    /// As [`Member::finish`], and leaves the job: this process goes on as it likes.
    ///
    /// # Errors
    /// As there.
    pub fn leave(self, report: impl Serialize) -> std::io::Result<()> {
        self.finish(report)?;
        self.control.close()
    }

    /// Says why this member gives up. Best effort: if the launcher is gone nobody wants to know.
    pub fn fail(&self, error: &str, blame: Blame) {
        let step = self.step.load(Ordering::Relaxed);
        let error = error.to_string();
        let _ = self.tell(&FromMember::Failed { step, error, blame });
    }

    /// What another thread may tell the launcher when this process is about to end.
    pub fn farewell(&self) -> Farewell {
        Farewell { control: self.control.clone(), gate: self.gate.clone() }
    }

    fn tell(&self, message: &FromMember) -> std::io::Result<()> {
        self.control.tell(message)
    }
}

/// Sends the launcher what a member recorded.
#[derive(Clone, Debug)]
pub struct Recorder {
    control: Arc<Line>,
}

impl Recorder {
    /// As [`Member::record`].
    ///
    /// # Errors
    /// As there.
    pub fn record<T: Serialize>(&self, values: &[T]) -> std::io::Result<()> {
        self.tell(values, false)
    }

    /// As [`Member::record`], of what a launcher needs that takes the job over: it hears all of that, and one whose connection
    /// to this member broke hears it again.
    ///
    /// # Errors
    /// As there.
    pub fn record_lasting<T: Serialize>(&self, values: &[T]) -> std::io::Result<()> {
        self.tell(values, true)
    }

    fn tell<T: Serialize>(&self, values: &[T], lasts: bool) -> std::io::Result<()> {
        let values = values.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        let mut frames = record_frames(values).into_iter();
        frames.try_for_each(|values| self.control.tell(&FromMember::Records { values, lasts }))
    }
}

/// A member's last words.
#[derive(Clone, Debug)]
pub struct Farewell {
    control: Arc<Line>,
    gate: Arc<Gate>,
}

impl Farewell {
    /// Says that a signal asks that the job ends behind a step. Best effort.
    pub fn asked_to_end(&self) {
        let _ = self.control.tell(&FromMember::AskedToEnd);
    }

    /// Says that a signal told this process to end: it is not the cause of anything. Best effort.
    pub fn told_to_end(&self) {
        let _ = self.control.tell(&FromMember::ToldToEnd);
    }

    /// True once the launcher has all end behind the same step, which this member is needed for.
    pub fn is_winding_down(&self) -> bool {
        self.gate.is_held()
    }
}

impl JobIdentity {
    /// Which life of which rank a member is.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn member(&self, rank: Rank) -> Identity {
        Identity { rank, incarnation: self.incarnations[rank.index()] }
    }
}
