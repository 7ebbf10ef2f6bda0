//! A member's side of a job: it calls the launcher, proves itself, and from then on a thread tells the
//! launcher that it is alive and watches that the launcher is.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_fabric::handshake::{self, HandshakeError, Purpose};
use tensorwire_fabric::{ArrivalMode, Backend, Endpoint, Fabric, FabricConfig};
use tensorwire_fabric::{
    ConnectError, JobCredentials, OpenError, VerbsOptions, VerbsUnusable, verbs_usable,
};
use tensorwire_fabric::{Member as Identity, PeerAddress};
use tensorwire_kvstore::proto::Role;

use crate::assignment::{Assignment, JobIdentity};
use crate::control::{FromMember, ToMember, read_frame, record_frames, write_frame};
use crate::launcher::START_PATIENCE;
use crate::negotiate::Offer;
use crate::store_job::{BarrierError, ControlEvents, StoreEvent, StorePlace};
use crate::transport::Transport;

/// Queue pairs to each peer; edges are spread over them. Xue et al. §5 use as many.
pub const QUEUE_PAIRS: usize = 4;

/// How long a replacement tries to reach one worker before it tries the next: some may not expect it yet.
const ONE_TRY: Duration = Duration::from_secs(1);
/// How long it waits before it tries them all again.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// This process as a member of a job.
#[derive(Debug)]
pub struct Member {
    assignment: Assignment,
    identity: JobIdentity,
    control: Arc<Mutex<TcpStream>>,
    /// The address at which this host reaches the launcher's, and others reach this one.
    reached_at: SocketAddr,
    told: Receiver<Introduction>,
    control_events: Arc<ControlEvents>,
    step: Arc<AtomicU64>,
}

/// How a member's bytes travel.
#[derive(Clone, Debug)]
pub struct WireOptions {
    pub transport: Transport,
    /// Which NIC, if it comes to verbs.
    pub verbs: VerbsOptions,
    pub arrival: Option<ArrivalMode>,
    /// How long a wait spins before it blocks: none where processes share cores.
    pub spin: Duration,
    /// To each peer.
    pub queue_pairs: usize,
    pub peers: Peers,
}

/// With whom a member connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Everybody.
    All,
    /// The ranks below `workers` with the others, and nobody with his like (ps-lite's workers and servers).
    Across { workers: u32 },
    /// These, each of whom names this one; may be nobody.
    These(Vec<Rank>),
}

impl Peers {
    fn connects(&self, rank: Rank, other: Rank) -> bool {
        rank != other
            && match self {
                Peers::All => true,
                Peers::Across { workers } => (rank.0 < *workers) != (other.0 < *workers),
                Peers::These(ranks) => ranks.contains(&other),
            }
    }
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
    Open(tensorwire_fabric::OpenError),
    /// The user wants RDMA and nothing else.
    #[error("RDMA cannot be used on this process's host: {}; {}", .0.reason, .0.mend)]
    Verbs(VerbsUnusable),
    #[error("connecting to the peers: {0}")]
    Connect(#[from] ConnectError),
    #[error("the launcher did not introduce the peers within {waited_s} s")]
    NoPeers { waited_s: u64 },
    #[error("the launcher did not say which transport to take within {waited_s} s")]
    NoTransport { waited_s: u64 },
    #[error("the launcher introduced a peer at {endpoint:?}, which is no endpoint")]
    BadEndpoint { endpoint: String },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

impl MemberError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            MemberError::Connect(ConnectError::Lost(fault)) => Some(fault.rank),
            MemberError::Connect(
                ConnectError::Unreachable { rank, .. } | ConnectError::Handshake { rank, .. },
            ) => Some(*rank),
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
        let stream = dial(&identity, assignment.rank(), at, Deadline::after(liveness))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(liveness))?;
        let step = Arc::new(AtomicU64::new(0));
        let (tell, told) = channel();
        let reached_at = SocketAddr::new(stream.local_addr()?.ip(), 0);
        let reader = stream.try_clone()?;
        reader.set_read_timeout(Some(liveness / 2))?;
        let control = Arc::new(Mutex::new(stream));
        spawn_heartbeat(control.clone(), step.clone(), liveness)?;
        let control_events = Arc::<ControlEvents>::default();
        spawn_watch(
            reader,
            ControlReader { tell, control_events: control_events.clone() },
            on_ending,
        )?;
        Ok(Member { assignment, identity, control, reached_at, told, control_events, step })
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

    /// The address of this host at which the other members reach it.
    pub fn address(&self) -> IpAddr {
        self.reached_at.ip()
    }

    /// How long a silent process is believed to be alive.
    pub fn liveness(&self) -> Duration {
        Duration::from_millis(self.assignment.liveness_ms)
    }

    /// How long a step of the set-up may wait for peers. A dead or stopped one is noticed by the
    /// launcher long before, which then knows whom to blame.
    pub fn setup_patience(&self) -> Duration {
        self.liveness() * 4
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

    /// Opens a fabric over the transport that `options` name, or that is agreed on, and connects it to the
    /// other members, or to those that `options` want. `plan_digest` must be the same everywhere: the launcher compares.
    ///
    /// # Errors
    /// When this host cannot use the transport, or a peer cannot be reached in time.
    pub fn connect(&self, options: &WireOptions, plan_digest: &str) -> Result<Fabric, MemberError> {
        let [fabric] = self.connect_all([options], plan_digest)?;
        Ok(fabric)
    }

    /// As [`Member::connect`], several fabrics at once, each with peers of its own. All members open as many, in
    /// the same order, and all over the transport of the first.
    ///
    /// # Errors
    /// As [`Member::connect`].
    pub fn connect_all<const N: usize>(
        &self,
        options: [&WireOptions; N],
        plan_digest: &str,
    ) -> Result<[Fabric; N], MemberError> {
        let transport = match options.first() {
            Some(first) => self.transport(first)?,
            None => Transport::Auto,
        };
        let mut fabrics = Vec::with_capacity(N);
        for options in options {
            fabrics.push(self.open_fabric(options, transport)?);
        }
        let endpoints = fabrics.iter().map(|fabric| fabric.endpoint().to_string()).collect();
        let endpoints = self.introduce(endpoints, plan_digest)?;
        let deadline = Deadline::after(self.setup_patience());
        for (index, (fabric, options)) in fabrics.iter().zip(options).enumerate() {
            let peers = self.peers(&endpoints, index, &options.peers)?;
            match self.store() {
                Some(store) if store.replaces().is_some() => {
                    self.call_workers(fabric, peers, deadline)?;
                }
                _ => fabric.connect(&peers, deadline)?,
            }
        }
        if self.store().is_some_and(|store| store.replaces().is_none()) {
            self.tell(&FromMember::Connected)?;
        }
        Ok(fabrics.try_into().unwrap_or_else(|_| unreachable!("as many as options")))
    }

    fn open_fabric(
        &self,
        options: &WireOptions,
        transport: Transport,
    ) -> Result<Fabric, MemberError> {
        let me = self.identity.member(self.rank());
        let mut config = FabricConfig::new(me, self.identity.credentials.clone());
        config.spin = options.spin;
        config.queue_pairs_per_peer = options.queue_pairs;
        // fits: a job has far fewer than 2^32 members
        let ranks = (0..self.world() as u32).map(Rank);
        let peers = ranks.filter(|rank| options.peers.connects(self.rank(), *rank)).count();
        // each has a thread: no more than there can be completions for
        config.completion_queues = config.completion_queues.min(options.queue_pairs * peers).max(1);
        config.endpoint = self.reached_at;
        Fabric::open(backend(options, transport, &mut config), config).map_err(
            |error| match error {
                OpenError::Verbs(unusable) => MemberError::Verbs(unusable),
                error => MemberError::Open(error),
            },
        )
    }

    /// Whom a member's fabric of this number connects with, and where they are.
    fn peers(
        &self,
        endpoints: &[Option<Vec<String>>],
        index: usize,
        wanted: &Peers,
    ) -> Result<Vec<PeerAddress>, MemberError> {
        let mut peers = Vec::new();
        for (rank, endpoints) in (0u32..).map(Rank).zip(endpoints) {
            if let Some(endpoints) =
                endpoints.as_ref().filter(|_| wanted.connects(self.rank(), rank))
            {
                let Identity { incarnation, .. } = self.identity.member(rank);
                let endpoint = endpoints.get(index).cloned().unwrap_or_default();
                let parsed: Result<Endpoint, _> = endpoint.parse();
                let endpoint = parsed.map_err(|_| MemberError::BadEndpoint { endpoint })?;
                peers.push(PeerAddress { rank, incarnation, endpoint });
            }
        }
        Ok(peers)
    }

    /// Says where this member's fabrics are found, and hears where the others' are, by rank.
    pub fn introduce(
        &self,
        endpoints: Vec<String>,
        plan_digest: &str,
    ) -> Result<Vec<Option<Vec<String>>>, MemberError> {
        let plan_digest = plan_digest.to_string();
        self.tell(&FromMember::Ready { endpoints, plan_digest })?;
        match self.told.recv_timeout(self.others_patience()) {
            Ok(Introduction::Peers(endpoints)) => Ok(endpoints),
            _ => {
                let waited_s = self.others_patience().as_secs();
                Err(MemberError::NoPeers { waited_s })
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

    /// Connects a server that comes later to the workers, each when it is ready for it. A worker that dies
    /// meanwhile is not waited for.
    fn call_workers(
        &self,
        fabric: &Fabric,
        mut workers: Vec<PeerAddress>,
        deadline: Deadline,
    ) -> Result<(), ConnectError> {
        loop {
            let mut failed = None;
            workers.retain(|worker| {
                let one_try = deadline.min(Deadline::after(ONE_TRY));
                let connected = self.control_events.lives(worker.rank.0)
                    && match fabric.connect(std::slice::from_ref(worker), one_try) {
                        Ok(()) => true,
                        Err(error) => {
                            failed = Some(error);
                            false
                        }
                    };
                !connected && self.control_events.lives(worker.rank.0)
            });
            match failed.filter(|_| !workers.is_empty()) {
                None => return Ok(()),
                Some(error) if deadline.passed() => return Err(error),
                Some(_) => std::thread::sleep(TRY_AGAIN.min(deadline.remaining())),
            }
        }
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

    /// The transport, as it was given or is agreed on.
    fn transport(&self, options: &WireOptions) -> Result<Transport, MemberError> {
        let spread = self.members_here() < self.world();
        match options.transport.settled(spread) {
            Some(transport) => Ok(transport),
            None => self.negotiate(&options.verbs),
        }
    }

    /// Says whether this host can use RDMA, and hears what all will take.
    fn negotiate(&self, options: &VerbsOptions) -> Result<Transport, MemberError> {
        let verbs = verbs_usable(options).map_err(Into::into);
        self.tell(&FromMember::Offer(Offer { verbs }))?;
        match self.told.recv_timeout(self.others_patience()) {
            Ok(Introduction::Transport(transport)) => Ok(transport),
            _ => {
                let waited_s = self.others_patience().as_secs();
                Err(MemberError::NoTransport { waited_s })
            }
        }
    }

    /// Tells the launcher that `step` (from 1) begins: if this process is killed or stopped in it,
    /// nobody else can say which it was.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn begin_step(&self, step: u64) -> std::io::Result<()> {
        self.step.store(step, Ordering::Relaxed);
        self.tell(&FromMember::Heartbeat { step })
    }

    /// Shows the launcher something.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn progress(&self, value: serde_json::Value) -> std::io::Result<()> {
        self.tell(&FromMember::Progress { step: self.step.load(Ordering::Relaxed), value })
    }

    /// Sends the launcher what this member recorded, in the job's own form, in order.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn record(&self, values: Vec<serde_json::Value>) -> std::io::Result<()> {
        let mut frames = record_frames(values).into_iter();
        frames.try_for_each(|values| self.tell(&FromMember::Records { values }))
    }

    /// Says that this member's part is done.
    ///
    /// # Errors
    /// When the launcher is gone.
    pub fn finish(&self, report: serde_json::Value) -> std::io::Result<()> {
        self.tell(&FromMember::Finished { report })
    }

    /// Says why this member gives up. Best effort: if the launcher is gone nobody wants to know.
    pub fn fail(&self, error: &str, user_error: bool, lost_peer: Option<Rank>) {
        let step = self.step.load(Ordering::Relaxed);
        let (error, lost_peer) = (error.to_string(), lost_peer.map(|rank| rank.0));
        let _ = self.tell(&FromMember::Failed { step, error, user_error, lost_peer });
    }

    /// What another thread may tell the launcher when this process is about to end.
    pub fn farewell(&self) -> Farewell {
        Farewell { control: self.control.clone() }
    }

    fn tell(&self, message: &FromMember) -> std::io::Result<()> {
        tell(&self.control, message)
    }
}

/// What a transport means for a fabric.
fn backend(options: &WireOptions, transport: Transport, config: &mut FabricConfig) -> Backend {
    match transport {
        Transport::Auto | Transport::Shm => Backend::Shm,
        Transport::Tcp => Backend::Tcp,
        Transport::Verbs => {
            config.arrival = options.arrival;
            Backend::Verbs(options.verbs.clone())
        }
    }
}

/// A member's last word.
#[derive(Clone, Debug)]
pub struct Farewell {
    control: Arc<Mutex<TcpStream>>,
}

impl Farewell {
    /// Says that a signal told this process to end: it is not the cause of anything. Best effort.
    pub fn told_to_end(&self) {
        let _ = tell(&self.control, &FromMember::ToldToEnd);
    }
}

fn tell(control: &Mutex<TcpStream>, message: &FromMember) -> std::io::Result<()> {
    let mut stream = control.lock().map_err(|_| std::io::Error::other("poisoned"))?;
    write_frame(&mut *stream, message)
}

/// The launcher as a store's scheduler.
#[derive(Clone, Debug)]
pub struct Scheduling {
    control: Arc<Mutex<TcpStream>>,
    control_events: Arc<ControlEvents>,
    store: Option<StorePlace>,
}

impl Scheduling {
    /// What the launcher has said of the store since the last call, in order. Never blocks: a driver looks
    /// here every few milliseconds, whatever else it waits for.
    pub fn store_events(&self) -> Vec<StoreEvent> {
        self.control_events.take()
    }

    /// Comes to the next barrier and returns its number; [`Scheduling::barrier_passed`] tells when all workers
    /// have. Coming again before that changes nothing.
    ///
    /// # Errors
    /// When this is no worker, or the launcher is gone.
    pub fn enter_barrier(&self) -> Result<u64, BarrierError> {
        if !matches!(self.store.map(|store| store.role), Some(Role::Worker(_))) {
            return Err(BarrierError::NoWorker);
        }
        let number = self.control_events.released() + 1;
        tell(&self.control, &FromMember::EnterBarrier { number })?;
        Ok(number)
    }

    /// Have all live workers come to this barrier?
    pub fn barrier_passed(&self, number: u64) -> bool {
        self.control_events.released() >= number
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

/// Calls the launcher, again and again if it hangs up before it has answered: it may be busy with
/// strangers. Nobody listening means that it is gone.
fn dial(
    identity: &JobIdentity,
    rank: Rank,
    at: std::net::SocketAddr,
    deadline: Deadline,
) -> Result<TcpStream, JoinError> {
    let me = identity.member(rank);
    let launcher = Identity { rank: Rank(u32::MAX), incarnation: identity.launcher };
    let job = &identity.credentials;
    loop {
        let patience = deadline.remaining().max(Duration::from_millis(1));
        let error = match TcpStream::connect_timeout(&at, patience) {
            Err(source) => JoinError::Unreachable { at, source },
            Ok(mut stream) => {
                let purpose = Purpose::Rendezvous;
                match handshake::dial(&mut stream, job, me, Some(launcher), purpose, deadline) {
                    Ok(_) => return Ok(stream),
                    Err(source) => JoinError::Handshake { at, source },
                }
            }
        };
        let last = match &error {
            JoinError::Handshake { source, .. } => {
                matches!(source, HandshakeError::Rejected(_) | HandshakeError::Refused(_))
            }
            // it listened before it started this process, so it is gone
            JoinError::Unreachable { source, .. } => {
                source.kind() == std::io::ErrorKind::ConnectionRefused
            }
            _ => true,
        };
        if last || deadline.passed() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ten heartbeats in the time that the launcher waits for one.
fn spawn_heartbeat(
    control: Arc<Mutex<TcpStream>>,
    step: Arc<AtomicU64>,
    liveness: Duration,
) -> std::io::Result<()> {
    let beat = move || {
        loop {
            std::thread::sleep(liveness / 10);
            let message = FromMember::Heartbeat { step: step.load(Ordering::Relaxed) };
            let Ok(mut stream) = control.lock() else {
                return;
            };
            // a lost launcher is noticed by the watching thread
            if write_frame(&mut *stream, &message).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("heartbeat".into()).spawn(beat).map(drop)
}

/// Who wants to know what the launcher says.
struct ControlReader {
    tell: Sender<Introduction>,
    control_events: Arc<ControlEvents>,
}

impl ControlReader {
    /// Passes one word on; why the member must end, if it says so.
    fn hear(&self, message: ToMember) -> Option<Ending> {
        match message {
            // nobody asks any more once the member runs
            ToMember::Transport(transport) => {
                drop(self.tell.send(Introduction::Transport(transport)))
            }
            ToMember::Peers { endpoints } => drop(self.tell.send(Introduction::Peers(endpoints))),
            ToMember::Heartbeat => {}
            ToMember::Released { number } => self.control_events.put_released(number),
            ToMember::World { epoch, alive } => self.control_events.put_world(epoch, alive),
            ToMember::ServerReplaced { server, was, rank, incarnation, endpoint } => {
                let Ok(endpoint) = endpoint.parse::<Endpoint>() else {
                    let reason = format!("the launcher named {endpoint:?}, which is no endpoint");
                    return Some(Ending::Orphaned { reason });
                };
                let (rank, incarnation) = (Rank(rank), Incarnation(incarnation));
                let (was, peer) = (Rank(was), PeerAddress { rank, incarnation, endpoint });
                self.control_events.put(StoreEvent::ServerReplaced { server, was, peer });
            }
            ToMember::Stop { reason } => return Some(Ending::Told { reason }),
        }
        None
    }
}

/// Reads what the launcher says; its silence or end is the end of this member. Silence is two time-outs
/// in a row: after the whole job was suspended and continued, the first one means nothing.
fn spawn_watch(
    mut reader: TcpStream,
    reader_state: ControlReader,
    on_ending: impl FnOnce(Ending) + Send + 'static,
) -> std::io::Result<()> {
    let watch = move || {
        let mut silences = 0;
        let ending = loop {
            let gone = |reason: String| Ending::Orphaned { reason };
            match reader.peek(&mut [0]) {
                Ok(0) => break gone("the launcher hung up".to_string()),
                Ok(_) => silences = 0,
                // a read with a time-out is not restarted after the process was stopped
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) if is_timeout(&error) && silences == 0 => {
                    silences += 1;
                    continue;
                }
                Err(error) if is_timeout(&error) => {
                    break gone("nothing was heard of the launcher for too long".to_string());
                }
                Err(error) => break gone(format!("the launcher is gone ({error})")),
            }
            match read_frame::<ToMember>(&mut reader) {
                Ok(message) => {
                    if let Some(ending) = reader_state.hear(message) {
                        break ending;
                    }
                }
                Err(error) => break gone(format!("the launcher is gone ({error})")),
            }
        };
        on_ending(ending);
    };
    std::thread::Builder::new().name("launcher-watch".into()).spawn(watch).map(drop)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_whose_launcher_is_gone_gives_up_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let patience = Deadline::after(Duration::from_secs(60));
        let error = dial(&JobIdentity::random(1), Rank(0), at, patience).unwrap_err();
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
        assert!(patience.remaining() > Duration::from_secs(30), "it went on calling");
    }
}
