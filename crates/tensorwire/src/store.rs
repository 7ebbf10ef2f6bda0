//! A store for a program that is its own boss: the processes that torchrun, mpirun, srun or a tracker of ps-lite started come
//! together as its workers, and go on with what they were doing. [`KvWorker`] is what they do with it.
//!
//! Where nobody started servers, the process of rank 0 starts them, and leads the job beside being a worker of it. A tracker
//! of ps-lite starts them all: workers, servers and a scheduler, which run the same program; in the latter two
//! [`OpenStore::open`] does its part and returns when the job is over.
//!
//! ```no_run
//! use std::time::Duration;
//! use tensorwire::base::Deadline;
//! use tensorwire::kvstore::{Key, ValueSpec};
//! use tensorwire::store::{OpenStore, OpenedStore, StoreFailure};
//! use tensorwire::tensor::DType;
//!
//! fn main() -> Result<(), StoreFailure> {
//!     tensorwire::init()?;
//!     let OpenedStore::Worker(mut worker) = OpenStore::default().open()? else { return Ok(()) };
//!     let soon = Deadline::after(Duration::from_secs(10));
//!     let handle = worker.store().init(&[(Key(0), ValueSpec::dense(DType::F32, 1000))], None)?;
//!     worker.wait(handle, soon, &mut || true)?;
//!     worker.close(soon, &mut || true)
//! }
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_kvstore::proto::{Mode, Role};
use tensorwire_kvstore::{BIG_ELEMENTS, KvHandle, KvServer, KvWorker, StoreError};
use tensorwire_launch::rendezvous::{
    Detected, Gathering, Joined, LaunchedAs, RendezvousError, SignOfLife, join,
};
use tensorwire_launch::{
    Assignment, Blame, Ending, JobError, JobSpec, Member, Peers, Reports, StoreJob, Transport,
    WireOptions, launch,
};
use tensorwire_train::{
    Arithmetic, OpenStoreError, Rates, SnapshotFiles, StoreEnd, StoreOptions, StoreWire, open_store,
};

use crate::program::{self, ProgramError};

/// What the job is called.
const KIND: &str = "store";
/// How long the launcher may take to say whose loss it was that a worker noticed.
const VERDICT: Duration = Duration::from_secs(3);
/// How long a wait goes on before it asks whether it is to.
const TURN: Duration = Duration::from_millis(100);
/// How long a server may take to say goodbye to its workers.
const GOODBYE: Duration = Duration::from_secs(20);

/// Stores that this process has opened: each is a job of its own.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// How a store is opened. All its processes must say the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenStore {
    pub mode: Mode,
    /// How many are started where nobody else has.
    pub servers: u32,
    /// Values of more elements are split over all servers.
    pub big_elements: usize,
    /// The others go on when a worker is lost.
    pub elastic: bool,
    pub transport: Transport,
    /// What a server is started as; none: this program with its own arguments, which calls [`crate::init`] and opens the store.
    #[serde(skip)]
    pub server: Option<(PathBuf, Vec<String>)>,
}

impl Default for OpenStore {
    /// A server, rounds in which all workers push, and the transport that the hosts have.
    fn default() -> OpenStore {
        OpenStore {
            mode: Mode::Sync,
            servers: 1,
            big_elements: BIG_ELEMENTS,
            elastic: false,
            transport: Transport::Auto,
            server: None,
        }
    }
}

/// What this process was in the store.
#[derive(Debug)]
pub enum OpenedStore {
    Worker(Box<StoreMember>),
    /// A server or the scheduler, and the job is over.
    Served,
}

/// Why a store could not be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFailure {
    #[error(
        "nobody started other processes to share a store with; start all of them by torchrun, mpirun or srun, or set DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
    )]
    Alone,
    #[error("a store has a server at least; ask for one or more")]
    NoServer,
    #[error(
        "this process asks for {here}, and the one that leads the job for {there}; all must ask for the same"
    )]
    OtherOptions { here: String, there: String },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("the variables of the launcher that started this process: {0}")]
    Detect(#[from] tensorwire_launch::rendezvous::DetectError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    Join(#[from] tensorwire_launch::JoinError),
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error("kernels: {0}")]
    Kernels(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The first cause names the process.
    #[error("{0}")]
    Job(String),
    #[error("interrupted")]
    Interrupted,
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

impl StoreFailure {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            StoreFailure::Store(error) => error.lost_peer(),
            StoreFailure::Open(error) => error.lost_peer(),
            _ => None,
        }
    }
}

impl OpenStore {
    /// Returns the store of one process, without servers: what a push changes is the same, and nothing crosses.
    ///
    /// # Errors
    /// When there are no kernels to update with.
    pub fn alone() -> Result<StoreMember, StoreFailure> {
        let (update, reduce) = (Arithmetic::new(kernels(1)?), Arithmetic::new(kernels(1)?));
        let store = KvWorker::local(Box::new(update), Box::new(SnapshotFiles), Box::new(reduce));
        Ok(StoreMember { store, job: None })
    }

    /// Comes together with the other processes; returns this one's end.
    ///
    /// # Errors
    /// When nobody started several processes, some do not come, or they want different stores.
    pub fn open(&self) -> Result<OpenedStore, StoreFailure> {
        if self.servers == 0 {
            return Err(StoreFailure::NoServer);
        }
        program::init()?;
        if let Some(assignment) = program::assigned() {
            return serve(assignment);
        }
        let mut found = program::detected()?.ok_or(StoreFailure::Alone)?;
        // two stores are two jobs, and neither is what else the processes do together
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        found.key = format!("{} {KIND} {number}", found.key);
        let leads = found.launched_as.is_launcher().then(|| self.lead(&found)).transpose()?;
        match (found.launched_as, leads) {
            (LaunchedAs::Scheduler, Some(lead)) => {
                lead.wait()?;
                Ok(OpenedStore::Served)
            }
            (_, lead) => self.join(&found, lead),
        }
    }

    /// As [`OpenStore::open`], for as long as `go_on` says so, which is asked again and again.
    ///
    /// # Errors
    /// As there, and when `go_on` says no. Then the process is to end: what was begun goes on until it does.
    pub fn open_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<OpenedStore, StoreFailure> {
        let options = self.clone();
        let thread = std::thread::Builder::new().name("store-open".into());
        let opens = thread.spawn(move || options.open())?;
        while !opens.is_finished() {
            if !go_on() {
                return Err(StoreFailure::Interrupted);
            }
            // a fraction of the turn: what is opened is not to wait for it
            std::thread::sleep(TURN / 20);
        }
        let panicked = |_| Err(StoreFailure::Job("the thread that opens it panicked".to_string()));
        opens.join().unwrap_or_else(panicked)
    }

    /// Leads the job, on a thread of its own.
    fn lead(&self, found: &Detected) -> Result<Lead, StoreFailure> {
        let beside = Detected { launched_as: LaunchedAs::Scheduler, ..found.clone() };
        let gathering = Arc::new(Gathering::open(&beside, &program::key_source(), None)?);
        let (workers, servers) = found.counts.unwrap_or((found.world, self.servers));
        let job = StoreJob { workers, servers, elastic: self.elastic, replace_servers: false };
        let (program, arguments) = match &self.server {
            Some((program, arguments)) => (program.clone(), arguments.clone()),
            None => program::own_command()?,
        };
        // a tracker of ps-lite has started the servers, too
        let started = if found.counts.is_none() { servers } else { 0 };
        let interrupt = Arc::new(AtomicBool::new(false));
        let spec = JobSpec {
            arguments,
            marks_members: true,
            store: Some(job),
            gathering: Some(gathering.clone()),
            interrupt: interrupt.clone(),
            ..JobSpec::new(program, KIND, job.roles())
        };
        let spec = spec.with_payload(self).map_err(|error| StoreFailure::Job(error.to_string()))?;
        let run = move || {
            let done = gathering.gather(&spec.interrupt).map_err(|error| error.to_string());
            let done = done.and_then(|()| {
                let spec = JobSpec { hosts: gathering.hosts_and_here(started), ..spec };
                let done = launch::<Reports<()>>(&spec, &mut |_| {});
                done.map(drop).map_err(|error| first_cause(&error))
            });
            done.inspect_err(|why| gathering.dismiss(why, 1))
        };
        let thread = std::thread::Builder::new().name("store-launcher".into()).spawn(run)?;
        Ok(Lead { thread, interrupt })
    }

    fn join(&self, found: &Detected, lead: Option<Lead>) -> Result<OpenedStore, StoreFailure> {
        let Joined { assignment, sign_of_life } = match join(found, &program::key_source()) {
            Ok(joined) => joined,
            Err(error) => {
                // whoever leads knows why
                let led = lead.map_or(Ok(()), |lead| {
                    lead.interrupt.store(true, Ordering::Relaxed);
                    lead.wait()
                });
                return Err(led.err().unwrap_or(error.into()));
            }
        };
        let options: OpenStore = serde_json::from_value(assignment.payload.clone())
            .map_err(tensorwire_launch::JoinError::Payload)?;
        if let Some(difference) = self.differs(&options) {
            return Err(difference);
        }
        let over = Arc::new(parking_lot::Mutex::new(None));
        let told = over.clone();
        let member = Member::join(assignment, move |ending| *told.lock() = Some(ending))?;
        let end = end(&member, &options).inspect_err(|error| {
            member.fail(&error.to_string(), Blame::of(false, error.lost_peer()));
        });
        let end = end.map_err(|error| verdict(&over, error))?;
        let job = Job { member, over, lead, sign_of_life };
        match end {
            StoreEnd::Worker(store) => {
                Ok(OpenedStore::Worker(Box::new(StoreMember { store: *store, job: Some(job) })))
            }
            StoreEnd::Server(server) => {
                let served = run_server(*server);
                let served = served.inspect_err(|error| {
                    job.member.fail(&error.to_string(), Blame::of(false, error.lost_peer()));
                });
                served.map_err(|error| verdict(&job.over, error.into()))?;
                job.member.leave(())?;
                Ok(OpenedStore::Served)
            }
        }
    }

    /// What is another here than there, if anything that matters is.
    fn differs(&self, there: &OpenStore) -> Option<StoreFailure> {
        let text = |options: &OpenStore| serde_json::to_string(options).unwrap_or_default();
        let (here, there) = (text(self), text(there));
        (here != there).then_some(StoreFailure::OtherOptions { here, there })
    }
}

/// Serves in a process that the launcher of a store started.
fn serve(assignment: Assignment) -> Result<OpenedStore, StoreFailure> {
    let options: OpenStore = serde_json::from_value(assignment.payload.clone())
        .map_err(tensorwire_launch::JoinError::Payload)?;
    // nobody uses a server whose job is over
    let member = Member::join(assignment, |_| std::process::exit(1))?;
    let done = end(&member, &options).and_then(|end| match end {
        StoreEnd::Server(server) => Ok(run_server(*server)?),
        StoreEnd::Worker(_) => Ok(()),
    });
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::of(false, error.lost_peer()));
    }
    done?;
    member.finish(())?;
    Ok(OpenedStore::Served)
}

fn run_server(mut server: KvServer) -> Result<(), StoreError> {
    server.serve()?;
    server.close(Deadline::after(GOODBYE))
}

fn end(member: &Member, options: &OpenStore) -> Result<StoreEnd, StoreFailure> {
    let OpenStore { mode, big_elements, elastic, transport, .. } = options.clone();
    let workers = member.store().map_or(0, |store| store.workers);
    let transport = WireOptions {
        transport,
        verbs: Default::default(),
        arrival: None,
        encrypt: false,
        spin: Duration::ZERO,
        queue_pairs: 1,
        peers: Peers::Across { workers },
    };
    let options = StoreOptions {
        transport,
        over: StoreWire::ZeroCopy,
        mode,
        big_elements,
        slice_bytes: None,
        elastic,
        checkpoint: None,
        kernels: kernels(threads_of(member))?,
        rates: Rates::default(),
        digest: KIND.to_string(),
    };
    Ok(open_store(member, options)?)
}

/// A server has all cores that it may run on, as in a job that trains: when it has work, workers wait for it. What a worker adds
/// up is of its own thread.
fn threads_of(member: &Member) -> usize {
    match member.store().map(|place| place.role) {
        Some(Role::Server(_)) => std::thread::available_parallelism().map_or(1, usize::from),
        _ => 1,
    }
}

fn kernels(threads: usize) -> Result<Arc<Kernels>, StoreFailure> {
    let kernels = Kernels::open(KernelChoice::Cpu, threads);
    Ok(Arc::new(kernels.map_err(|error| StoreFailure::Kernels(error.to_string()))?))
}

/// The one that failed first, in words: a store has no steps to name.
fn first_cause(error: &JobError) -> String {
    match error {
        JobError::Failed(first) => {
            let on = first.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let (role, rank, pid) = (&first.role, first.rank, first.pid);
            format!("{role} (rank {rank}, pid {pid}{on}) failed: {}", first.cause)
        }
        error => error.to_string(),
    }
}

/// What the launcher says of the end of the job, if it says something in time, else `error`.
fn verdict(over: &Over, error: StoreFailure) -> StoreFailure {
    let lost = error.lost_peer().is_some();
    let patience = Deadline::after(if lost { VERDICT } else { Duration::ZERO });
    loop {
        if let Some(ending) = &*over.lock() {
            return StoreFailure::Job(reason(ending));
        }
        if patience.passed() {
            return error;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn reason(ending: &Ending) -> String {
    match ending {
        Ending::Told { reason } => reason.clone(),
        Ending::Orphaned { reason } | Ending::StandsStill { reason } => {
            format!("the process that leads the store (rank 0, or the scheduler) is gone: {reason}")
        }
    }
}

/// Why the job is over, once it is.
type Over = Arc<parking_lot::Mutex<Option<Ending>>>;

/// A worker of a store.
#[derive(Debug)]
pub struct StoreMember {
    store: KvWorker,
    /// None: a store of one process.
    job: Option<Job>,
}

#[derive(Debug)]
struct Job {
    member: Member,
    over: Over,
    lead: Option<Lead>,
    /// Dropped when this process has left: by it the launcher sees that.
    sign_of_life: SignOfLife,
}

/// The launcher, in this process.
#[derive(Debug)]
struct Lead {
    thread: JoinHandle<Result<(), String>>,
    interrupt: Arc<AtomicBool>,
}

impl Lead {
    /// Waits until the job is over, or the others are too slow: they are led for as long as this process lives.
    fn wait_while(
        &self,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        let start = Clock::now_ns();
        while !self.thread.is_finished() {
            if !go_on() {
                self.interrupt.store(true, Ordering::Relaxed);
                return Err(StoreFailure::Interrupted);
            }
            if deadline.passed() {
                let waited = Duration::from_nanos(Clock::now_ns() - start);
                let what =
                    "the other workers to close the store, whom this process leads".to_string();
                return Err(StoreError::TimedOut { waited, what }.into());
            }
            std::thread::sleep(TURN / 10);
        }
        Ok(())
    }

    /// Waits until the job is over. It has no deadline: the launcher ends when the other processes have, and watches them.
    fn wait(self) -> Result<(), StoreFailure> {
        let panicked = || Err("the launcher's thread panicked".to_string());
        self.thread.join().unwrap_or_else(|_| panicked()).map_err(StoreFailure::Job)
    }
}

impl StoreMember {
    /// Which of the workers it is.
    pub fn rank(&self) -> u32 {
        self.job.as_ref().map_or(0, |job| job.member.rank().0)
    }

    pub fn workers(&self) -> u32 {
        let store = self.job.as_ref().and_then(|job| job.member.store());
        store.map_or(1, |store| store.workers)
    }

    /// What pushes and pulls.
    pub fn store(&mut self) -> &mut KvWorker {
        &mut self.store
    }

    /// As [`StoreMember::store`], to look at.
    pub fn peek(&self) -> &KvWorker {
        &self.store
    }

    /// Waits until all that the handle stands for is done. `go_on` is asked ten times a second.
    ///
    /// # Errors
    /// When that takes longer than the deadline, `go_on` says no, or the job is over: then the first cause is named.
    pub fn wait(
        &mut self,
        handle: KvHandle,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        self.turns(deadline, go_on, |store, turn| store.wait(handle, turn))
    }

    /// Waits until what the handle pushes has left: its tensors may be written again.
    ///
    /// # Errors
    /// As for [`StoreMember::wait`].
    pub fn wait_sent(
        &mut self,
        handle: KvHandle,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        self.turns(deadline, go_on, |store, turn| store.wait_sent(handle, turn))
    }

    /// Waits until every worker is here; `go_on` and the errors as for [`StoreMember::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn barrier(
        &mut self,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        self.turns(deadline, go_on, KvWorker::barrier)
    }

    /// Says goodbye to the servers. The process that leads the job waits until all others have, too; if they have not by the
    /// deadline, it leads them on until it ends.
    ///
    /// # Errors
    /// As for [`StoreMember::wait`].
    pub fn close(
        mut self,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        self.turns(deadline, go_on, |store, turn| store.wait_all(turn))?;
        if self.job.is_some() {
            let closed = self.store.close(deadline);
            closed.map_err(|error| self.why(error.into()))?;
        }
        let Some(Job { member, lead, sign_of_life, .. }) = self.job else { return Ok(()) };
        member.leave(())?;
        drop(sign_of_life);
        let Some(lead) = lead else { return Ok(()) };
        lead.wait_while(deadline, go_on)?;
        lead.wait()
    }

    /// Tells the others that this worker gives up, and why. The process that leads the job waits until all others have heard it
    /// and ended; if they have not by the deadline, it leads them on until it ends.
    ///
    /// # Errors
    /// When that takes longer than the deadline, or `go_on` says no.
    pub fn fail(
        self,
        why: &str,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), StoreFailure> {
        let Some(Job { member, lead, .. }) = self.job else { return Ok(()) };
        member.fail(why, Blame::Own);
        let Some(lead) = lead else { return Ok(()) };
        lead.wait_while(deadline, go_on)?;
        // what it says is what was just told
        drop(lead.wait());
        Ok(())
    }

    /// Waits in turns, between which it looks whether the job goes on and asks whether it is to.
    fn turns(
        &mut self,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
        mut wait: impl FnMut(&mut KvWorker, Deadline) -> Result<(), StoreError>,
    ) -> Result<(), StoreFailure> {
        let start = Clock::now_ns();
        loop {
            match wait(&mut self.store, deadline.min(Deadline::after(TURN))) {
                Ok(()) => return Ok(()),
                Err(StoreError::TimedOut { .. }) if !deadline.passed() => {}
                Err(StoreError::TimedOut { what, .. }) => {
                    let waited = Duration::from_nanos(Clock::now_ns() - start);
                    return Err(StoreError::TimedOut { waited, what }.into());
                }
                Err(error) => return Err(self.why(error.into())),
            }
            if let Some(job) = &self.job
                && let Some(ending) = &*job.over.lock()
            {
                return Err(StoreFailure::Job(reason(ending)));
            }
            if !go_on() {
                return Err(StoreFailure::Interrupted);
            }
        }
    }

    fn why(&self, error: StoreFailure) -> StoreFailure {
        match &self.job {
            Some(job) => verdict(&job.over, error),
            None => error,
        }
    }
}
