//! Training over a key-value store: workers run their part of the same plan as with `ps`, push gradients as they
//! appear and pull weights as they are needed; servers fold and update (Li et al.; ps-lite).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::GroupStats;
use tensorwire_fabric::{Endpoint, Fabric};
use tensorwire_graph::{Edge, Op, Transfer};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{RingOptions, SHOWN_FROM, WireStats};
use tensorwire_kvstore::{
    BIG_ELEMENTS, Checkpoint, Key, KvServer, KvWorker, Part as StorePart, Partition, ServerLoad,
    Sizes, StoreError, Travels, ValueSpec,
};
use tensorwire_memory::{Buffer, Copies, CopyPurpose, TensorMut};
use tensorwire_models::{Program, Variable};
use tensorwire_runtime::{Ports, Session, SessionOptions, Storage};

use super::trainer::{LAST_WORKER_DEADLINE, Trainer};
use super::{DYNAMIC_BYTES_MAX, Part, Prepared, SPIN, STEP_DEADLINE, TrainError, replicas};
use super::{cores, default_threads, kernel_choice, peak_bytes};
use crate::carried::Carried;
use crate::config::{
    Averaging, ConfigError, Exchange, Seat, StoreConfig, Strategy, TrainConfig, Transport,
};
use crate::group::{
    ClientError, OrderOnly, SharedGroup, bind_part, master_ports, member_ports, open_group,
};
use crate::member::{Member, Peers, QUEUE_PAIRS, WireOptions};
use crate::open_part::PartError;
use crate::report::TrainReport;
use crate::store::{
    StoreEnd, StoreExchange, StoreKeys, StoreOptions, StoreRule, StoreRules, StoreWire,
};
use crate::weights::{self, Weights};

impl TrainConfig {
    /// Which part of the plan a worker runs, where servers are no part of it.
    pub(super) fn part(&self, worker: u32) -> usize {
        // fits: usize is 64 bits wide
        if self.is_of_one() { 0 } else { worker as usize }
    }

    /// Do workers read weights where the servers have them? Where both share memory, every worker is done with
    /// one step's before the next step's are made, and no server comes from elsewhere.
    pub(super) fn shows_weights(&self) -> bool {
        let StoreConfig { elastic, checkpoint, .. } = &self.store;
        self.strategy == Strategy::DistSgd
            && self.exchange == Exchange::ZeroCopy
            && self.settled_transport() == Some(Transport::Shm)
            && !elastic
            && checkpoint.is_none()
    }

    /// Values of more elements are split over all servers; not where they are read where they lie, in one piece.
    fn big_elements(&self) -> usize {
        if self.shows_weights() { usize::MAX } else { BIG_ELEMENTS }
    }

    /// What decides how values travel between workers and servers.
    fn store_sizes(&self) -> Sizes {
        if self.exchange == Exchange::Zmq {
            return Sizes { direct_from: None, shown_from: None };
        }
        let shares_memory = self.settled_transport() == Some(Transport::Shm);
        Sizes {
            direct_from: Some(RingOptions::default().direct_from),
            shown_from: shares_memory.then_some(SHOWN_FROM),
        }
    }

    fn store_mode(&self) -> Mode {
        match self.strategy {
            Strategy::DistAsgd | Strategy::MpiAsgd => {
                Mode::Async { max_delay: self.store.max_delay }
            }
            // a centre moves whenever a client comes
            _ if self.averaging().is_some() => Mode::Async { max_delay: None },
            _ => Mode::Sync,
        }
    }
}

/// A variable in a store.
#[derive(Clone, Debug)]
pub struct StoreValue {
    pub name: String,
    pub key: Key,
    pub spec: ValueSpec,
    /// Where it lies: whole on one server, or some of its rows on each.
    pub parts: Vec<StorePart>,
    /// How each part is pushed and pulled.
    pub travels: Travels,
}

impl Prepared {
    /// What is in the store, in the order of keys.
    ///
    /// # Errors
    /// As [`Prepared::store_table`].
    pub fn store_values(&self) -> Result<Vec<StoreValue>, StoreError> {
        let partition = Partition::new(self.config.servers, self.config.big_elements());
        let sizes = self.config.store_sizes();
        let names = self.program.weights().map(|variable| variable.name.clone());
        let value = |(name, (key, spec)): (String, (Key, ValueSpec))| {
            let parts = partition.parts(key, &spec)?;
            let least = parts.iter().map(|part| part.rows.len() * spec.row_bytes()).min();
            let travels = sizes.travels(least.unwrap_or_default(), spec.columns > 1);
            Ok(StoreValue { name, key, spec, parts, travels })
        };
        names.zip(values(&self.config, &self.program)).map(value).collect()
    }

    /// What each server of the store will hold.
    ///
    /// # Errors
    /// Never: a model has far fewer variables than there are keys.
    pub fn store_table(&self) -> Result<Vec<ServerLoad>, StoreError> {
        let partition = Partition::new(self.config.servers, self.config.big_elements());
        Ok(partition.table(&values(&self.config, &self.program))?)
    }
}

/// What the servers of a store take here: weights, slots of the optimizer, and a slot for what each worker
/// pushes where it does not show it.
pub(super) fn server_bytes(program: &Program, config: &TrainConfig) -> u64 {
    if !config.has_store() {
        return 0;
    }
    let partition = Partition::new(config.servers.max(1), config.big_elements());
    let parts = values(config, program).into_iter().flat_map(|(key, spec)| {
        // a key that has no place is said where the store is made
        let parts = partition.parts(key, &spec).unwrap_or_default().into_iter();
        parts.map(move |part| (part.server, ValueSpec { rows: part.rows.len(), ..spec }))
    });
    // fits: servers are few
    let is_here = |server: usize| config.hosts.is_here(Rank(config.masters() + server as u32));
    let sizes = config.store_sizes();
    let bytes = parts.filter(|(server, _)| is_here(*server)).map(|(_, part)| {
        let slots = if sizes.needs_slot(&part) { config.clients() as usize } else { 0 };
        let state = if config.averaging().is_some() { 0 } else { config.rule().slots() };
        let kept = part.bytes().saturating_mul(1 + state);
        // fits: usize is 64 bits wide
        kept.saturating_add(part.slot_bytes().saturating_mul(slots)) as u64
    });
    bytes.fold(0, u64::saturating_add)
}

/// What workers here take for a centre beside their weights: room for it, and for what a master pushes.
pub(super) fn centre_bytes(program: &Program, config: &TrainConfig) -> u64 {
    if config.averaging().is_none() {
        return 0;
    }
    // fits: sizes in memory
    let weights: u64 = program.weights().map(|variable| variable.spec.bytes() as u64).sum();
    let here = (0..config.workers).filter(|worker| config.hosts.is_here(config.rank_of(*worker)));
    let copies = here.map(|worker| match worker {
        // its own stand aside while it evaluates the centre
        0 if config.evaluate_each_epoch => 3,
        worker if worker < config.masters() => 2,
        _ => 1,
    });
    let copies = copies.sum::<u64>();
    weights.saturating_mul(copies)
}

/// A variable's key is its place in the order of declaration.
fn values(config: &TrainConfig, program: &Program) -> Vec<(Key, ValueSpec)> {
    let by_rows = |variable: &Variable| {
        let at = program.graph.find(&variable.name);
        program.graph.nodes().any(|(_, node)| {
            let first = node.inputs.first().map(|input| input.node);
            matches!(node.op, Op::ApplyRows { .. }) && first == at
        })
    };
    let value = |variable: &Variable| {
        let spec = &variable.spec;
        let dense = ValueSpec::dense(spec.dtype, spec.elements());
        match spec.dims() {
            // a centre is of whole values
            [rows, columns] if config.averaging().is_none() && by_rows(variable) => {
                ValueSpec { rows: *rows, columns: *columns, ..dense }
            }
            _ => dense,
        }
    };
    (0..).map(Key).zip(program.weights().map(value)).collect()
}

/// What each variable's update is: the optimizer's, or a moving average's.
fn rules(config: &TrainConfig, program: &Program) -> StoreRules {
    if let Some(Averaging { alpha, .. }) = config.averaging() {
        return StoreRules::all(StoreRule::Elastic { alpha });
    }
    let mut rules = StoreRules::all(StoreRule::from(config.rule()));
    let averages = (0u64..).zip(program.weights()).skip(program.variables.len());
    for (key, variable) in averages {
        let at = program.graph.find(&variable.name);
        let rate = program.graph.nodes().find_map(|(_, node)| match node.op {
            Op::ApplyAverage { rate } if node.inputs.first().map(|input| input.node) == at => {
                Some(rate)
            }
            _ => None,
        });
        rules.of_keys.extend(rate.map(|rate| (key, StoreRule::Average { rate })));
    }
    rules
}

/// How a member's two fabrics travel: to the store's other end, and to its client's other workers.
fn wires(member: &Member, config: &TrainConfig) -> [WireOptions; 2] {
    let crowded = member.members_here() > cores();
    let (masters, servers) = (config.masters(), config.servers_started());
    let ranks = |range: std::ops::Range<u32>| range.map(Rank).collect::<Vec<Rank>>();
    let (across, client) = match config.seat(member.rank()) {
        Seat::Server(_) => (ranks(0..masters), Vec::new()),
        Seat::Worker(worker) if worker < masters => {
            (ranks(masters..masters + servers), config.client_of(worker))
        }
        Seat::Worker(worker) => (Vec::new(), config.client_of(worker)),
    };
    let to = |peers: Vec<Rank>, queue_pairs| WireOptions {
        transport: config.transport,
        verbs: config.verbs.clone(),
        arrival: config.arrival,
        spin: if crowded { Duration::ZERO } else { SPIN },
        queue_pairs,
        peers: Peers::These(peers.into_iter().filter(|rank| *rank != member.rank()).collect()),
    };
    [to(across, 1), to(client, QUEUE_PAIRS)]
}

/// What a member's part meets others by: the fabric to the store, if it is connected already, and its client.
fn connect(
    member: &Member,
    part: &Part,
    wires: &[WireOptions; 2],
) -> Result<(Option<Fabric>, Option<SharedGroup>), TrainError> {
    let config = &part.config;
    let digest = crate::open_part::digest(&part.plan);
    let [to_store, to_client] = wires;
    let joined = |error| TrainError::Part(PartError::Member(error));
    let (across, client) = match (config.has_store(), config.is_grouped()) {
        // whoever opens the store connects it
        (true, false) => return Ok((None, None)),
        (true, true) => {
            let [across, client] =
                member.connect_all([to_store, to_client], &digest).map_err(joined)?;
            (Some(across), client)
        }
        (false, _) => (None, member.connect(to_client, &digest).map_err(joined)?),
    };
    let worker = match config.seat(member.rank()) {
        Seat::Worker(worker) if config.is_grouped() => worker,
        _ => return Ok((across, None)),
    };
    let deadline = Deadline::after(member.setup_patience());
    let transport = match client.endpoint() {
        Endpoint::Shm(_) | Endpoint::Sim => Transport::Shm,
        Endpoint::Tcp(_) => Transport::Tcp,
        Endpoint::Verbs(_) => Transport::Verbs,
    };
    let (ranks, options) = (config.client_of(worker), config.group_options(transport));
    let group = open_group(client, &ranks, member.rank(), options, deadline)?;
    Ok((across, Some(group)))
}

/// A member's part, from its end of the store, or of its client, to its report.
pub(super) fn member_part(member: &Member, part: &Part) -> Result<(), TrainError> {
    let config = &part.config;
    let wires = wires(member, config);
    let (fabric, group) = connect(member, part, &wires)?;
    let [transport, _] = wires;
    let threads = config.threads.unwrap_or_else(|| default_threads(config, member.rank()));
    let kernels = Kernels::open(kernel_choice(config), threads).map_err(ConfigError::from)?;
    let kernels = Arc::new(kernels);
    let path = |path: &std::path::PathBuf| path.to_string_lossy().to_string();
    let every = config.store.checkpoint_every;
    let checkpoint = config.store.checkpoint.as_ref();
    let options = StoreOptions {
        transport,
        over: match config.exchange {
            Exchange::Zmq => StoreWire::Zmq,
            _ => StoreWire::ZeroCopy,
        },
        mode: config.store_mode(),
        big_elements: config.big_elements(),
        elastic: config.store.elastic,
        checkpoint: checkpoint.map(|at| Checkpoint { path: path(at), every }),
        kernels: kernels.clone(),
        digest: crate::open_part::digest(&part.plan),
    };
    let store = match member.store() {
        Some(_) => Some(member.open_store_on(options, fabric)?),
        None => None,
    };
    let worker = match config.seat(member.rank()) {
        Seat::Worker(worker) => worker,
        Seat::Server(server) => server,
    };
    let store = match store {
        Some(StoreEnd::Server(server)) => return serve(member, &kernels, *server),
        Some(StoreEnd::Worker(worker)) => Some(*worker),
        None => None,
    };
    match (store, group) {
        ends if config.has_own_weights() => replicas::work(member, part, worker, kernels, ends),
        (Some(store), group) => work(member, part, kernels, store, group),
        (None, group) => follow(member, part, worker, kernels, group),
    }
}

fn serve(member: &Member, kernels: &Kernels, mut server: KvServer) -> Result<(), TrainError> {
    server.serve()?;
    let mut report = TrainReport::default();
    add_store(&mut report, &server.stats(), &server.copies());
    server.close(Deadline::after(member.setup_patience()))?;
    finish(member, kernels, report)
}

/// What went to and from the store.
pub(super) fn add_store(report: &mut TrainReport, stats: &WireStats, copies: &Copies) {
    report.add_copies(copies);
    report.bytes_written += stats.bytes_direct;
    report.registered_bytes += stats.registered_bytes;
}

/// What went to the others of a client.
pub(super) fn add_group(report: &mut TrainReport, stats: &GroupStats) {
    report.add_copies(&stats.copies);
    report.bytes_written += stats.bytes_sent;
    report.registered_bytes += stats.registered_bytes;
}

pub(super) fn finish(
    member: &Member,
    kernels: &Kernels,
    mut report: TrainReport,
) -> Result<(), TrainError> {
    report.kernels = kernels.description();
    report.peak_bytes = peak_bytes();
    Ok(member.finish(serde_json::to_value(&report).unwrap_or_default())?)
}

fn work(
    member: &Member,
    part: &Part,
    kernels: Arc<Kernels>,
    mut worker: KvWorker,
    group: Option<SharedGroup>,
) -> Result<(), TrainError> {
    let Part { config, program, plan, shape, data } = part;
    let rank = member.rank();
    let here = config.part(rank.0);
    let bytes = plan.parts[here].memory.registered_bytes;
    let registered = match &group {
        // what the client folds lies where the others reach it; the store takes a copy
        Some(group) => group.lock().alloc(bytes).map_err(ClientError::from)?,
        None => worker.alloc_slab(bytes)?,
    };
    let mut storage = Storage::new(&plan.parts[here], &registered)?;
    let patience = Deadline::after(member.setup_patience());
    let bound = group.as_ref().map(|group| bind_part(group, &plan.parts[here], &storage, patience));
    let bound = bound.transpose()?;
    let carried = Carried::default();
    let ends = (member, &carried);
    begin(&mut worker, part, first_place(part, here, &storage), ends, patience)?;
    refer(&mut worker, part, here, &mut storage, patience)?;
    let worker = Arc::new(Mutex::new(worker));
    let keys = StoreKeys::new(program.weights().map(|variable| variable.name.as_str()));
    let exchange = StoreExchange::new(worker.clone(), plan, here, &storage, &keys, carried.clone());
    let ports = match group.as_ref().zip(bound) {
        Some((group, bound)) => master_ports(group, bound, exchange, carried.clone()),
        None => Ports::from(exchange),
    };
    let options = session_options(config);
    let mut session = Session::new(plan, here, storage, kernels.clone(), Some(ports), options)?;
    let of_one = config.is_of_one();
    let replicas = if of_one { 0..1 } else { rank.0..rank.0 + 1 };
    let shard = if of_one { rank.index() } else { 0 };
    let trainer = Trainer::new(config, program, plan, *shape, &mut session, replicas);
    let mut trainer = Trainer { shard, concludes: rank.0 == 0, carried, ..trainer };
    let mut report = trainer.train(data.as_ref(), &mut &*member)?;
    // whoever evaluates has what all have pushed
    meet(&mut worker.lock())?;
    let is_first = || (0..rank.0).all(|earlier| !member.lives_still(Rank(earlier)));
    trainer.concludes = is_first();
    trainer.conclude(data.as_ref(), &mut report)?;
    let StoreConfig { elastic, checkpoint, .. } = &config.store;
    if *elastic || checkpoint.is_some() {
        // whoever is to evaluate may be lost before it has, or a server that all have to bring up to date
        meet(&mut worker.lock())?;
        if !trainer.concludes && is_first() {
            trainer.concludes = true;
            trainer.conclude(data.as_ref(), &mut report)?;
        }
    }
    report.store_bytes = trainer.carried.traffic().store_bytes;
    let mut worker = worker.lock();
    add_store(&mut report, &worker.stats(), &worker.copies());
    worker.close(Deadline::after(member.setup_patience()))?;
    leave_group(member, group.as_ref(), &mut report)?;
    finish(member, &kernels, report)
}

/// The part of a worker who is no master: it gets weights from its client's, and gives its gradients there.
fn follow(
    member: &Member,
    part: &Part,
    worker: u32,
    kernels: Arc<Kernels>,
    group: Option<SharedGroup>,
) -> Result<(), TrainError> {
    let Part { config, program, plan, shape, data } = part;
    let here = config.part(worker);
    let Some(group) = group else {
        return Err(ClientError::Alone.into());
    };
    let bytes = plan.parts[here].memory.registered_bytes;
    let registered = group.lock().alloc(bytes).map_err(ClientError::from)?;
    let storage = Storage::new(&plan.parts[here], &registered)?;
    let patience = Deadline::after(member.setup_patience());
    let bound = bind_part(&group, &plan.parts[here], &storage, patience)?;
    let carried = Carried::default();
    let ports = member_ports(&group, bound, carried.clone()).with_exchange(OrderOnly::default());
    let options = session_options(config);
    let mut session = Session::new(plan, here, storage, kernels.clone(), Some(ports), options)?;
    let replicas = worker..worker + 1;
    let trainer = Trainer::new(config, program, plan, *shape, &mut session, replicas);
    let mut trainer = Trainer { carried, ..trainer };
    let mut report = trainer.train(data.as_ref(), &mut &*member)?;
    trainer.conclude(None, &mut report)?;
    leave_group(member, Some(&group), &mut report)?;
    finish(member, &kernels, report)
}

pub(super) fn session_options(config: &TrainConfig) -> SessionOptions {
    SessionOptions {
        step_deadline: STEP_DEADLINE,
        timeline: config.trace.is_some(),
        dynamic_bytes_max: DYNAMIC_BYTES_MAX,
        variables_shared: false,
    }
}

/// Leaves a client with everything done.
pub(super) fn leave_group(
    member: &Member,
    group: Option<&SharedGroup>,
    report: &mut TrainReport,
) -> Result<(), TrainError> {
    let Some(group) = group else { return Ok(()) };
    let mut group = group.lock();
    add_group(report, &group.stats());
    let closed = group.close(Deadline::after(member.setup_patience()));
    Ok(closed.map_err(ClientError::from)?)
}

/// Waits until all that this worker asked for is done, and every other has come as far.
pub(super) fn meet(worker: &mut KvWorker) -> Result<(), StoreError> {
    let deadline = Deadline::after(LAST_WORKER_DEADLINE);
    worker.wait_all(deadline)?;
    worker.barrier(deadline)
}

/// Makes variables that the plan reads where their servers have them tensors of this process.
fn refer(
    worker: &mut KvWorker,
    part: &Part,
    here: usize,
    storage: &mut Storage,
    patience: Deadline,
) -> Result<(), TrainError> {
    let Part { program, plan, .. } = part;
    for (key, variable) in (0..).map(Key).zip(program.weights()) {
        let edges = plan.edges.iter().filter(|edge| edge.to == here && edge.name == variable.name);
        for edge in edges.filter(|edge| edge.transfer == Transfer::Reference) {
            let ticket = worker.pull_shown(key, 0)?.ok_or(StoreError::NotShown { key })?;
            worker.wait(ticket, patience)?;
            let value = worker.shown(key).ok_or(StoreError::NotShown { key })?;
            storage.refer(edge.recv, variable.spec.clone(), value);
            worker.release(key);
        }
    }
    Ok(())
}

/// A variable's first value lies where it will be pulled to, if it ever is.
fn first_place(
    part: &Part,
    here: usize,
    storage: &Storage,
) -> impl Fn(&Variable) -> Option<Buffer> {
    move |variable: &Variable| {
        let here = |edge: &&Edge| edge.to == here && edge.name == variable.name;
        let edge = part.plan.edges.iter().find(here)?;
        storage.buffer(edge.recv.into()).filter(|into| into.bytes() == variable.spec.bytes())
    }
}

/// Makes all variables known to the servers. Worker 0 says how they are updated, and what they are at first; if it
/// is lost before that is done, the first that lives does.
pub(super) fn begin(
    worker: &mut KvWorker,
    part: &Part,
    pulled: impl Fn(&Variable) -> Option<Buffer>,
    (member, carried): (&Member, &Carried),
    patience: Deadline,
) -> Result<(), TrainError> {
    let Part { config, program, .. } = part;
    let rank = member.rank();
    if rank.0 == 0 {
        return give_first(worker, part, pulled, carried, patience);
    }
    let values = values(config, program);
    let ticket = worker.init(&values, None)?;
    worker.wait(ticket, patience)?;
    if !config.store.elastic {
        return Ok(());
    }
    let (mut keys, mut into) = (Vec::new(), Vec::new());
    for (variable, (key, spec)) in program.weights().zip(&values) {
        let buffer = pulled(variable).map_or_else(|| worker.alloc(spec), Ok)?;
        keys.push(*key);
        into.push(vec![buffer]);
    }
    // what can be pulled was given
    let there = worker.pull(&keys, &into, 0)?;
    let deadline = Deadline::after(STEP_DEADLINE);
    let mut has_given = false;
    while !worker.is_done(there) && !deadline.passed() {
        let is_first = (0..rank.0).all(|earlier| !member.lives_still(Rank(earlier)));
        if is_first && !has_given {
            // in memory of its own: what was given before may be on its way to the other
            give_first(worker, part, |_| None, carried, patience)?;
            has_given = true;
        }
        worker.observe();
        if !worker.progress()? {
            worker.wait_for_news(deadline);
        }
    }
    Ok(worker.wait(there, deadline)?)
}

/// Says how variables are updated, and gives their first values where they have none, from a file or from the seed.
fn give_first(
    worker: &mut KvWorker,
    part: &Part,
    place: impl Fn(&Variable) -> Option<Buffer>,
    carried: &Carried,
    patience: Deadline,
) -> Result<(), TrainError> {
    let Part { config, program, .. } = part;
    let ticket = worker.set_optimizer(&rules(config, program).to_bytes());
    worker.wait(ticket, patience)?;
    let load = config.load.as_deref();
    let file = load.map(|path| Weights::open(path, program.weights())).transpose()?;
    let values = values(config, program);
    let mut first = Vec::new();
    for (variable, (_, spec)) in program.weights().zip(&values) {
        let buffer = place(variable).map_or_else(|| worker.alloc(spec), Ok)?;
        let lent = |source: tensorwire_memory::LoanError| StoreError::Update(source.to_string());
        let mut bytes = buffer.write().map_err(lent)?;
        match &file {
            Some(file) => {
                bytes.copy_from_slice(file.tensor(&variable.name)?);
                carried.copied(CopyPurpose::Checkpoint, bytes.len());
            }
            None => {
                let bad = |source| TrainError::Tensor { name: variable.name.clone(), source };
                let tensor = TensorMut::new(&variable.spec, &mut bytes).map_err(bad)?;
                weights::first_values(&variable.name, variable.init, config.seed, tensor)
                    .map_err(bad)?;
            }
        }
        drop(bytes);
        first.push(buffer);
    }
    let ticket = worker.init(&values, Some(&first))?;
    Ok(worker.wait(ticket, patience)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(transport: &str, exchange: &str) -> Prepared {
        let config = serde_json::json!({
            "model": "mlp", "data": "digits", "strategy": "dist-sgd", "workers": 3, "servers": 2,
            "asynchronous": false, "transport": transport, "exchange": exchange, "batch": 8,
            "verbs": {"nic": null, "gid": null}, "arrival": null, "hosts": crate::Hosts::default(),
            "schedule": {"steps": 1}, "optimizer": "momentum", "rate": 0.1, "momentum": 0.9,
            "dtype": "f32", "seed": 1, "threads": null, "kernels": "cpu", "load": null, "save": null,
            "trace": null, "listen": "127.0.0.1:0", "deadline_ms": 10000,
        });
        Prepared::new(serde_json::from_value(config).unwrap()).unwrap()
    }

    #[test]
    fn servers_take_slots_for_what_is_not_shown_alone() {
        for (transport, exchange, shown_from) in [
            ("tcp", "zero-copy", usize::MAX),
            ("tcp", "zmq", usize::MAX),
            ("shm", "zero-copy", SHOWN_FROM),
        ] {
            let Prepared { config, program, .. } = prepared(transport, exchange);
            let sizes: Vec<usize> = program.weights().map(|v| v.spec.bytes()).collect();
            let sent: usize = sizes.iter().filter(|bytes| **bytes < shown_from).sum();
            // weights and velocity, and the pushes of three workers
            let expected = 2 * sizes.iter().sum::<usize>() + 3 * sent;
            assert_eq!(server_bytes(&program, &config), expected as u64, "{transport} {exchange}");
            assert!(sizes.iter().any(|bytes| *bytes >= SHOWN_FROM), "else it says nothing");
        }
    }
}
