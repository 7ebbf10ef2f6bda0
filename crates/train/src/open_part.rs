//! A member's part of a plan, opened: its registered memory, its edges to the other members and its
//! kernels, put together into a session.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{ArrivalMode, CloseError, Endpoint, Fabric, RegionError, VerbsOptions};
use tensorwire_graph::Plan;
use tensorwire_kernels::{KernelChoice, Kernels, SharedDevice};
use tensorwire_memory::{Arena, ArenaError, Buffer, Place, Slab};
use tensorwire_runtime::{
    Computing, ConnectEdgesError, OneSided, OneSidedOptions, Opening, Ports, Session, SessionError,
    SessionOptions, Storage, share_variables,
};

use crate::config::Exchange as Crossing;
use crate::messages::{self, MessageEnd, OpenMessagesError};
use tensorwire_launch::{Member, MemberError, Peers, QUEUE_PAIRS, Transport, WireOptions};

/// The ports of each session and its memory.
pub(crate) type Opened = Vec<(Ports, Storage)>;

/// How to open a part.
#[derive(Clone, Debug)]
pub struct PartOptions {
    pub transport: Transport,
    pub exchange: Crossing,
    /// Which NIC, if it comes to verbs.
    pub verbs: VerbsOptions,
    pub arrival: Option<ArrivalMode>,
    /// What leaves this host is encrypted.
    pub encrypt: bool,
    /// How long a wait spins before it blocks: none where processes share cores.
    pub spin: Duration,
    pub kernels: KernelChoice,
    /// Threads that compute.
    pub threads: usize,
    /// Longest that a run may wait for peers that are alive.
    pub step_deadline: Duration,
    /// Record when each node ran.
    pub timeline: bool,
    /// Most bytes of each arena for tensors whose size is known only when they exist.
    pub dynamic_bytes_max: usize,
    /// What the plan has on a device is computed there.
    pub device: Option<SharedDevice>,
    /// Devices of this host do not reach each other's memory: tensors of theirs go by way of pinned memory.
    pub devices_apart: bool,
}

/// A part that is ready to run, connected to all others.
#[derive(Debug)]
pub struct OpenPart {
    pub session: Session,
    /// What computes, and why that was chosen.
    pub kernels: String,
    end: End,
}

/// What the sessions' tensors cross by.
#[derive(Debug)]
enum End {
    OneSided(Fabric),
    Messages(MessageEnd),
}

/// Which part of a plan a member runs, and with whom: once, or once for each of its sessions.
#[derive(Clone, Debug)]
pub struct SessionRanks {
    pub part: usize,
    /// By session, by part: who runs it.
    pub ranks: Vec<Vec<Rank>>,
}

/// All sessions of a member, ready to run.
#[derive(Debug)]
pub struct OpenSessions {
    pub sessions: Vec<Session>,
    /// What computes, and why that was chosen.
    pub kernels: String,
    end: End,
}

/// Why a part could not be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("allocating registered memory: {0}")]
    Region(#[from] RegionError),
    #[error("connecting the graph's edges: {0}")]
    Edges(#[from] ConnectEdgesError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error("--kernels: {0}")]
    Kernels(#[from] tensorwire_kernels::OpenError),
    #[error("leaving the job: {0}")]
    Close(#[from] CloseError),
    #[error(transparent)]
    Messages(#[from] OpenMessagesError),
}

/// Opens a member's part of `plan`: part `i` is rank `i`'s. All members must do it.
///
/// # Errors
/// When memory does not suffice, or a peer is lost, late, or of another mind about the plan.
pub fn open_part(
    member: &Member,
    plan: &Plan,
    options: PartOptions,
) -> Result<OpenPart, PartError> {
    // fits: a job has far fewer than 2^32 processes
    let ranks = (0..plan.parts.len() as u32).map(Rank).collect();
    let sessions = SessionRanks { part: member.rank().index(), ranks: vec![ranks] };
    let OpenSessions { mut sessions, kernels, end } =
        open_sessions(member, plan, &sessions, options)?;
    Ok(OpenPart { session: sessions.remove(0), kernels, end })
}

/// Opens one session for each of `sessions`, all over the same variables. All members must open theirs.
///
/// # Errors
/// As [`open_part`].
pub fn open_sessions(
    member: &Member,
    plan: &Plan,
    sessions: &SessionRanks,
    options: PartOptions,
) -> Result<OpenSessions, PartError> {
    if let Some((opened, end)) = messages::open(member, plan, sessions, &options)? {
        return open_with(opened, End::Messages(end), plan, sessions.part, options);
    }
    let fabric = member.connect(&options.wire(), &digest(plan))?;
    open_sessions_on(fabric, member, plan, sessions, options)
}

/// As [`open_sessions`], over a fabric that is connected to those with whom the part shares edges.
pub(crate) fn open_sessions_on(
    fabric: Fabric,
    member: &Member,
    plan: &Plan,
    sessions: &SessionRanks,
    options: PartOptions,
) -> Result<OpenSessions, PartError> {
    let opened = open_one_sided(&fabric, member, plan, sessions, &options)?;
    let opened = opened.into_iter().map(ports).collect();
    open_with(opened, End::OneSided(fabric), plan, sessions.part, options)
}

fn open_with(
    opened: Opened,
    end: End,
    plan: &Plan,
    part: usize,
    options: PartOptions,
) -> Result<OpenSessions, PartError> {
    let variables_shared = opened.len() > 1;
    let kernels = Arc::new(Kernels::open(options.kernels, options.threads)?);
    let PartOptions { step_deadline, timeline, dynamic_bytes_max, device, .. } = options;
    let description = match &device {
        Some(device) => {
            format!("{}; on the host {}", device.lock().description(), kernels.description())
        }
        None => kernels.description(),
    };
    let computing = Computing { kernels, device };
    let options = SessionOptions { step_deadline, timeline, dynamic_bytes_max, variables_shared };
    let session = |(ports, storage): (Ports, Storage)| {
        Session::new(plan, part, storage, computing.clone(), Some(ports), options)
    };
    let sessions: Result<Vec<Session>, SessionError> = opened.into_iter().map(session).collect();
    Ok(OpenSessions { sessions: sessions?, kernels: description, end })
}

/// How many queue pairs the edges to a peer are spread over. Over TCP one: what is sent first comes first. Several would share a
/// link alike, so that of several tensors none came before all did, and what waits for the first waited for the last.
pub(crate) fn queue_pairs(at: &Endpoint) -> usize {
    match at {
        Endpoint::Tcp(_) => 1,
        Endpoint::Near { far, .. } => queue_pairs(far),
        Endpoint::Sim | Endpoint::Shm(_) | Endpoint::Verbs(_) => QUEUE_PAIRS,
    }
}

fn open_one_sided(
    fabric: &Fabric,
    member: &Member,
    plan: &Plan,
    sessions: &SessionRanks,
    options: &PartOptions,
) -> Result<Vec<(OneSided, Storage)>, PartError> {
    let deadline = Deadline::after(member.setup_patience());
    let open = |ranks: &Vec<Rank>| {
        let told = OneSidedOptions {
            ranks: ranks.clone(),
            device: options.device.clone(),
            maps_devices: !options.devices_apart,
            ..OneSidedOptions::new(plan, queue_pairs(&fabric.endpoint()), options.dynamic_bytes_max)
        };
        Opening::new(fabric, plan, sessions.part, told, deadline)
    };
    let openings: Result<Vec<Opening>, ConnectEdgesError> =
        sessions.ranks.iter().map(open).collect();
    let mut opened = Opening::complete_all(openings?, deadline)?;
    if let Some(way) = opened.first().and_then(|(exchange, _)| exchange.device_way()) {
        // a launcher that is gone is noticed by the thread that watches it
        let _ = member.say(way);
    }
    share_variables(&plan.parts[sessions.part], &mut opened);
    Ok(opened)
}

fn ports((exchange, storage): (impl Into<Ports>, Storage)) -> (Ports, Storage) {
    (exchange.into(), storage)
}

impl End {
    /// Bytes written into others' memory, or sent to them.
    fn bytes_written(&self) -> u64 {
        match self {
            End::OneSided(fabric) => fabric.stats().bytes_written,
            End::Messages(end) => end.bytes_sent(),
        }
    }

    fn bytes_read(&self) -> u64 {
        match self {
            End::OneSided(fabric) => fabric.stats().bytes_read,
            End::Messages(_) => 0,
        }
    }

    /// Beside what the sessions copy.
    fn bytes_copied(&self) -> u64 {
        match self {
            End::OneSided(_) => 0,
            End::Messages(end) => end.bytes_copied(),
        }
    }

    /// The sessions' memory outlives this: a peer's last write may still be on its way.
    fn close(&self, deadline: Deadline) -> Result<(), PartError> {
        match self {
            End::OneSided(fabric) => Ok(fabric.close(deadline)?),
            End::Messages(end) => Ok(messages::close(end, deadline)?),
        }
    }
}

impl PartOptions {
    pub(crate) fn wire(&self) -> WireOptions {
        let PartOptions { transport, arrival, encrypt, spin, .. } = *self;
        let (verbs, queue_pairs) = (self.verbs.clone(), QUEUE_PAIRS);
        WireOptions { transport, verbs, arrival, encrypt, spin, queue_pairs, peers: Peers::All }
    }
}

impl OpenSessions {
    /// Bytes that this member wrote into others' memory, or sent to them, so far.
    pub fn bytes_written(&self) -> u64 {
        self.end.bytes_written()
    }

    /// Bytes of tensors that were copied on their way to others and from them, beside what the sessions copied.
    pub fn bytes_copied(&self) -> u64 {
        self.end.bytes_copied()
    }

    /// Says goodbye to all other members; the sessions make no more steps.
    ///
    /// # Errors
    /// When a peer is lost, or does not confirm in time that our last writes have landed.
    pub fn close(&self, deadline: Deadline) -> Result<(), PartError> {
        self.end.close(deadline)
    }
}

impl OpenPart {
    /// Bytes that this member wrote into others' memory, read from it, or sent so far.
    pub fn bytes_moved(&self) -> u64 {
        self.end.bytes_written() + self.end.bytes_read()
    }

    /// Bytes of tensors that the runtime copied so far.
    pub fn bytes_copied(&self) -> u64 {
        self.session.copies().bytes() + self.end.bytes_copied()
    }

    /// More memory of the kind that tensors cross in. Benchmarks measure the machine with it.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn alloc_buffer(&self, bytes: usize) -> Result<Buffer, PartError> {
        let slab = match &self.end {
            // fits: usize is 64 bits wide
            End::OneSided(fabric) => fabric.alloc_region(bytes as u64)?.slab(),
            End::Messages(_) => Slab::anonymous(bytes).map_err(SessionError::from)?,
        };
        let mut buffers = Arena::new(&slab, &[Place { offset: 0, bytes }])?.into_buffers();
        Ok(buffers.remove(0))
    }

    /// Says goodbye to all other members and ends the session.
    ///
    /// # Errors
    /// When a peer is lost, or does not confirm in time that our last writes have landed.
    pub fn close(self, deadline: Deadline) -> Result<(), PartError> {
        self.end.close(deadline)
    }
}

impl PartError {
    /// Did the user's command make this, so that another command mends it?
    pub fn is_user_error(&self) -> bool {
        matches!(self, PartError::Member(MemberError::Verbs(_)) | PartError::Kernels(_))
    }

    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        use tensorwire_fabric::{OpenRegionError, ReceiveError};
        match self {
            PartError::Member(error) => error.lost_peer(),
            PartError::Edges(ConnectEdgesError::Told(ReceiveError::Fault(fault))) => {
                Some(fault.rank)
            }
            // there is no room for the peer's region here
            PartError::Edges(ConnectEdgesError::Open {
                source: OpenRegionError::Map { .. },
                ..
            }) => None,
            PartError::Edges(
                ConnectEdgesError::Tell { peer, .. }
                | ConnectEdgesError::Nonsense { peer, .. }
                | ConnectEdgesError::Open { peer, .. },
            ) => Some(*peer),
            PartError::Messages(error) => error.lost_peer(),
            _ => None,
        }
    }
}

/// The same on every member that made the same plan.
pub(crate) fn digest(plan: &Plan) -> String {
    hex::encode(plan.digest())
}
