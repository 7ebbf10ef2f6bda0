//! What the members of a store, and of groups, meet each other by: a fabric to the store's other end, one to the group, and
//! the two ends opened over them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{Collectives, GroupOptions, GroupStats};
use tensorwire_cuda::OpenedGpus;
use tensorwire_fabric::{Endpoint, Fabric, pulse};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::WireStats;
use tensorwire_kvstore::{Checkpoint, DeviceReach, Keep, KvServer, KvWorker, StoreError};
use tensorwire_launch::{Member, Peers, QUEUE_PAIRS, Role, Transport, WireOptions};
use tensorwire_memory::Copies;
use tensorwire_runtime::Computing;

use super::averaging::GpusOfCentre;
use super::values::stored_shards;
use crate::checkpoint::CheckpointFolder;
use crate::config::{ConfigError, DeviceChoice, Exchange, TunedLink};
use crate::crossings::reduces_by_edges;
use crate::figures::StoreGauge;
use crate::group::{ClientError, NcclLibrary, NcclPlace, SharedGroup, open_group};
use crate::job::computing::{computing_on, open_gpus, verbs_options};
use crate::job::trainer::LAST_WORKER_DEADLINE;
use crate::job::{Part, SPIN, TrainError, cores, default_threads, kernel_choice, peak_bytes};
use crate::open_part::PartError;
use crate::report::TrainReport;
use crate::store::{
    CheckpointShards, DeviceOfStore, SnapshotFiles, StoreEnd, StoreOptions, StoreWire,
    open_store_on,
};
use crate::topology::Topology;

/// A member's ends, opened.
pub(super) enum Ends {
    Server(Box<KvServer>),
    /// Of a worker: its end of the store, if it deals with it, and of its group, if it is not alone there.
    Worker {
        worker: u32,
        store: Option<Box<KvWorker>>,
        group: Option<SharedGroup>,
        /// To its group too, where what that reduces goes over edges of the plan.
        edges: Option<Fabric>,
        /// By which its GPU will find those of its group, where they reduce by NCCL.
        nccl: Option<NcclPlace>,
        /// What its weights are averaged on, where the centre lies on devices.
        gpus: Option<Box<GpusOfCentre>>,
    },
}

/// Opens a member's ends, and what computes there: its devices as well, where the store lies in the memory of some. All members
/// do so at once.
pub(super) fn open(member: &Member, part: &Part) -> Result<(Ends, Computing), TrainError> {
    let Part { config, topology, program, plan, .. } = part;
    let wires = wires(member, part);
    let Met { store: fabric, group, client, edges, nccl } = connect(member, part, &wires)?;
    let [transport, _] = wires;
    let threads = config.threads.unwrap_or_else(|| default_threads(config, member.rank()));
    let kernels =
        Kernels::open(kernel_choice(config, &part.program), threads).map_err(ConfigError::from)?;
    let kernels = Arc::new(kernels);
    let reach = config.store_reach(topology, &program.graph);
    let keeps_centre = topology.averaging.is_some() && reach.is_some();
    let is_on_devices = keeps_centre
        || topology.trains_over_store() && plan.edges.iter().any(|edge| edge.space.is_device());
    // a worker whose tensors go by way of the host opens its own with its session
    let is_server = matches!(topology.role(member.rank()), Role::Server(_));
    let is_apart = matches!(reach, Some(DeviceReach::ByNic | DeviceReach::ByHost));
    let opens = is_on_devices || (is_apart && is_server);
    let gpus = if opens { open_gpus(part, member.rank())? } else { None };
    let device = gpus.as_ref().map(OpenedGpus::shared);
    // a centre is met by the first alone
    let count = gpus.as_ref().map_or(1, |gpus| if keeps_centre { 1 } else { gpus.count() });
    let of_store = device.as_ref().zip(reach).map(|(device, reach)| {
        (Arc::new(DeviceOfStore::new(device.clone(), count, config.step_deadline())), reach)
    });
    if config.device != DeviceChoice::Cpu && member.store().is_some() {
        let there = match keeps_centre {
            true => "the centre lies in the memory of its servers' GPUs, which move it",
            false => "the store's values lie in the memory of its servers' GPUs, which update them",
        };
        let staged = config.store_is_staged(topology, &program.graph);
        let line = match (config.store_by_host(), staged) {
            (None, None) => there.to_string(),
            // servers say what they find
            (None, Some(_)) if reach == Some(DeviceReach::ByNic) => there.to_string(),
            (None, Some(why)) => {
                let what =
                    if keeps_centre { "it and weights go" } else { "gradients and weights go" };
                format!("{there}; {what} by pinned memory of the host: {why}")
            }
            (Some(why), _) => format!("the store's values lie in the host's memory: {why}"),
        };
        // a launcher that is gone is noticed by the thread that watches it
        let _ = member.say(&line);
    }
    let every = config.store.snapshot_every;
    let checkpoint = config.store.snapshot.as_ref();
    let checkpoint = checkpoint.map(|at| Checkpoint { path: at.to_string_lossy().into(), every });
    let options = StoreOptions {
        transport,
        over: match config.exchange {
            Exchange::Zmq => StoreWire::Zmq,
            _ => StoreWire::ZeroCopy,
        },
        mode: topology.store_mode(),
        big_elements: config.big_elements(),
        slice_bytes: config.slice_bytes(),
        elastic: topology.elastic,
        checkpoint,
        kernels: kernels.clone(),
        rates: part.rates.behind(part.shape.done),
        digest: crate::open_part::digest(&part.plan),
    };
    let store = match member.store() {
        Some(_) => {
            // what a worker has to do with a device of which servers reach nothing is its session's
            let reaches =
                |(_, reach): &(_, DeviceReach)| is_server || *reach != DeviceReach::ByHost;
            let reached = (fabric, of_store.clone().filter(reaches));
            Some(open_store_on(member, options, reached, keep(member, part)?)?)
        }
        None => None,
    };
    let computing = Computing { kernels, device };
    let store = match store {
        Some(StoreEnd::Server(server)) => return Ok((Ends::Server(server), computing)),
        Some(StoreEnd::Worker(worker)) => Some(worker),
        None => None,
    };
    let (Role::Worker(worker) | Role::Server(worker)) = topology.role(member.rank());
    let gpus = gpus.zip(of_store).filter(|_| keeps_centre);
    let of_centre = |(gpus, (device, reach))| GpusOfCentre { gpus, device, reach, client };
    let gpus = gpus.map(of_centre).map(Box::new);
    Ok((Ends::Worker { worker, store, group, edges, nccl, gpus }, computing))
}

/// Where a server writes what it is told to: its share of the job's checkpoints, or snapshots.
fn keep(member: &Member, part: &Part) -> Result<Box<dyn Keep>, TrainError> {
    let Part { config, topology, program, resumed, .. } = part;
    if config.checkpoint.is_none() && resumed.is_none() {
        return Ok(Box::new(SnapshotFiles));
    }
    let shards = stored_shards(config, topology, program)?;
    let folder = config.checkpoint.as_ref();
    let folder = folder.map(|to| CheckpointFolder::new(&to.path).of_steps(part.shape.steps));
    let (recorder, resumed) = (member.recorder(), resumed.clone());
    let (saver, saved) = (None, None);
    Ok(Box::new(CheckpointShards { folder, recorder, shards, resumed, saver, saved }))
}

/// What is said where a server's NIC reaches its device's memory, but for some values.
fn some_by_host(why: &str) -> String {
    format!("at servers some of what is pushed and pulled goes by pinned memory of the host: {why}")
}

/// Serves a store until all workers are done.
pub(super) fn serve(
    member: &Member,
    part: &Part,
    computing: Computing,
    mut server: KvServer,
) -> Result<TrainReport, TrainError> {
    part.standing.serves(server.standing());
    let mut gauge = StoreGauge::new(Instant::now());
    let mut has_said = false;
    server.serve_telling(&mut |server| {
        if let (Some(why), false) = (server.why_by_host(), has_said) {
            // a launcher that is gone is noticed by the thread that watches it; so below
            let _ = pulse::rest(|| member.say(&some_by_host(why)));
            has_said = true;
        }
        let counts = || (server.counters(), server.stats().bytes_direct);
        if let Some(figures) = gauge.look(Instant::now(), counts) {
            let _ = pulse::rest(|| member.figures(figures));
        }
    })?;
    let mut report = TrainReport::default();
    add_store(&mut report, &server.stats(), &server.copies());
    server.close(Deadline::after(member.setup_patience()))?;
    (_, report.kernels) = computing_on(computing.device, computing.kernels);
    report.peak_bytes = peak_bytes();
    Ok(report)
}

/// How a member's two fabrics travel: to the store's other end, and to its client's other workers.
pub(super) fn wires(member: &Member, part: &Part) -> [WireOptions; 2] {
    let Part { config, topology, .. } = part;
    let verbs = verbs_options(part, member.rank());
    let crowded = member.cores_shared_by() > cores();
    let (masters, servers) = (topology.masters(), topology.servers);
    let ranks = |range: std::ops::Range<u32>| range.map(Rank).collect::<Vec<Rank>>();
    let (across, client) = match topology.role(member.rank()) {
        Role::Server(_) => (ranks(0..masters), Vec::new()),
        Role::Worker(worker) if worker < masters => {
            (ranks(masters..masters + servers), topology.group_of(worker))
        }
        Role::Worker(worker) => (Vec::new(), topology.group_of(worker)),
    };
    let to = |peers: Vec<Rank>, queue_pairs| WireOptions {
        transport: config.transport,
        verbs: verbs.clone(),
        arrival: config.arrival,
        encrypt: config.encrypt,
        spin: if crowded { Duration::ZERO } else { SPIN },
        queue_pairs,
        peers: Peers::These(peers.into_iter().filter(|rank| *rank != member.rank()).collect()),
    };
    [to(across, 1), to(client, QUEUE_PAIRS)]
}

/// What a member's part meets others by.
#[derive(Default)]
struct Met {
    /// The fabric to the store, if it is connected already.
    store: Option<Fabric>,
    group: Option<SharedGroup>,
    /// What the group goes over, and who is the first of it.
    client: Option<(Fabric, Rank)>,
    /// By which tensors cross within the group, if they do.
    edges: Option<Fabric>,
    nccl: Option<NcclPlace>,
}

/// Meets the others.
fn connect(member: &Member, part: &Part, wires: &[WireOptions; 2]) -> Result<Met, TrainError> {
    let Part { config, topology, plan, .. } = part;
    let digest = crate::open_part::digest(&part.plan);
    let [to_store, to_client] = wires;
    let joined = |error| TrainError::Part(PartError::Member(error));
    let by_nccl = config.all_reduce_by_nccl().is_some();
    let crosses = reduces_by_edges(topology, plan);
    let library =
        by_nccl.then(|| NcclLibrary::open(member, config, topology)).transpose()?.flatten();
    // all tell something, and hear so of the first of their group
    let word = by_nccl.then(|| library.as_ref().map_or(String::new(), NcclLibrary::word));
    let mut words = Vec::new();
    let (across, client, edges) = match (topology.has_store(), topology.is_grouped(), crosses) {
        // whoever opens the store connects it
        (true, false, _) => return Ok(Met::default()),
        (true, true, false) => {
            let all = [to_store, to_client];
            let ([across, client], told) =
                member.connect_telling(all, &digest, word).map_err(joined)?;
            words = told;
            (Some(across), client, None)
        }
        (true, true, true) => {
            let all = [to_store, to_client, to_client];
            let [across, client, edges] = member.connect_all(all, &digest).map_err(joined)?;
            (Some(across), client, Some(edges))
        }
        (false, _, false) => {
            let told = member.connect_telling([to_client], &digest, word).map_err(joined)?;
            let ([client], told) = told;
            words = told;
            (None, client, None)
        }
        (false, _, true) => {
            let all = [to_client, to_client];
            let [client, edges] = member.connect_all(all, &digest).map_err(joined)?;
            (None, client, Some(edges))
        }
    };
    let worker = match topology.role(member.rank()) {
        Role::Worker(worker) if topology.is_grouped() => worker,
        _ => return Ok(Met { store: across, ..Met::default() }),
    };
    let deadline = Deadline::after(member.setup_patience());
    let transport = transport_of(&client.endpoint());
    let cores = (member.members_here() == member.world()).then(|| member.cores_here());
    let options = GroupOptions { cores, ..config.group_options(transport) };
    let ranks = topology.group_of(worker);
    let nccl = library.map(|library| library.place(member.rank(), &ranks, &words)).transpose()?;
    let kept_in = config.measured_link(transport);
    let told = (options, kept_in.is_some());
    let (group, measured) = open_group(client.clone(), &ranks, member.rank(), told, deadline)?;
    if let (0, Some(link), Some(path)) = (worker, measured, kept_in) {
        let found = TunedLink { transport, several_hosts: config.spread(), link };
        let line = match found.append(path) {
            Ok(()) => format!("{found}, measured and kept in {}", path.display()),
            Err(error) => format!("{found}, measured; keeping it in {}: {error}", path.display()),
        };
        // a launcher that is gone is noticed by the thread that watches it
        let _ = member.say(&line);
    }
    let client = ranks.first().map(|first| (client, *first));
    Ok(Met { store: across, group: Some(group), client, edges, nccl })
}

/// What bytes travel over that leave this host, or if none do, over which they stay.
fn transport_of(endpoint: &Endpoint) -> Transport {
    match endpoint {
        Endpoint::Shm(_) | Endpoint::Sim => Transport::Shm,
        Endpoint::Tcp(_) => Transport::Tcp,
        Endpoint::Verbs(_) => Transport::Verbs,
        Endpoint::Near { far, .. } => transport_of(far),
    }
}

/// Adds what went to and from the store.
pub(super) fn add_store(report: &mut TrainReport, stats: &WireStats, copies: &Copies) {
    report.add_copies(copies);
    report.bytes_written += stats.bytes_direct;
    report.registered_bytes += stats.registered_bytes;
}

/// Bytes that were written to the others of a group so far.
pub(super) fn written_to_group(group: Option<&SharedGroup>) -> u64 {
    group.map_or(0, |group| group.lock().stats().bytes_sent)
}

/// Leaves a group with everything done, and adds what went to its others.
pub(super) fn leave_group(
    member: &Member,
    group: Option<&SharedGroup>,
    report: &mut TrainReport,
) -> Result<(), TrainError> {
    let Some(group) = group else { return Ok(()) };
    let mut group = group.lock();
    let GroupStats { bytes_sent, registered_bytes, copies, .. } = group.stats();
    report.add_copies(&copies);
    report.bytes_written += bytes_sent;
    report.registered_bytes += registered_bytes;
    let closed = group.close(Deadline::after(member.setup_patience()));
    Ok(closed.map_err(ClientError::from)?)
}

/// Waits until all that this worker asked for is done, and every other has come as far.
pub(super) fn meet(worker: &mut KvWorker) -> Result<(), StoreError> {
    let deadline = Deadline::after(LAST_WORKER_DEADLINE);
    worker.wait_all(deadline)?;
    worker.barrier(deadline)
}

/// Has the servers write a checkpoint of `step`, which all workers of the store have made: everything of it is pushed, and
/// nothing of the next. The first that lives asks them. Should it be lost meanwhile, nobody else does: who comes too late
/// would have them write what the others have pushed since.
pub(super) fn keep_together(
    worker: &mut KvWorker,
    member: &Member,
    topology: &Topology,
    step: u64,
) -> Result<(), StoreError> {
    meet(worker)?;
    if is_first(member) {
        let saving = worker.save(&step.to_string());
        worker.wait(saving, Deadline::after(LAST_WORKER_DEADLINE))?;
    }
    let in_step = topology.store_mode() == Mode::Sync && !topology.elastic;
    // where all must push before anything changes, the first holds back the others until it has asked
    if in_step { Ok(()) } else { meet(worker) }
}

/// True if this is the first worker that lives.
pub(super) fn is_first(member: &Member) -> bool {
    (0..member.rank().0).all(|earlier| !member.lives_still(Rank(earlier)))
}
