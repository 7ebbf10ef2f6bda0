//! Weights in a key-value store: workers run their part of the same plan as with servers in the graph, push gradients as
//! they appear and pull weights as they are needed; servers reduce and update (Li et al.; ps-lite). In groups, a group's
//! master alone deals with the store (Mamidala et al.).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank, Space};
use tensorwire_collectives::Collectives;
use tensorwire_fabric::Fabric;
use tensorwire_graph::{Edge, Plan, PlanOptions, Transfer};
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_kvstore::{DeviceReach, Key, KvWorker, StoreError, ValueSpec};
use tensorwire_launch::Member;
use tensorwire_memory::{Buffer, CopyPurpose, Slab, TensorMut};
use tensorwire_nn::{Program, Variable};
use tensorwire_runtime::{Computing, OneSided, Ports, Session, SessionError, Storage};

use super::ends::{
    self, Ends, add_store, is_first, keep_together, leave_group, meet, written_to_group,
};
use super::values::{rules, server_bytes, staged_bytes, values};
use super::{Connected, SharedBy, Strategy};
use crate::carried::Carried;
use crate::checkpoint::Resumed;
use crate::config::TrainConfig;
use crate::group::{
    BesideGroup, Bound, ClientError, GroupEdges, OpenEdges, OrderOnly, SharedGroup, bind_part,
    crosses_on_host, master_ports, member_ports, sent_in_group,
};
use crate::job::computing::{computing, computing_on};
use crate::job::trainer::Trainer;
use crate::job::worker::{Link, Worker};
use crate::job::{Part, TrainError, session_options};
use crate::report::TrainReport;
use crate::store::{StoreExchange, StoreKeys, carried_value, reach_by_nic, round};
use crate::topology::Topology;
use crate::weights::{self, Weights};

pub(super) struct Store;

impl Strategy for Store {
    fn plan_options(&self, config: &TrainConfig, topology: &Topology) -> PlanOptions {
        let options = config.exchange.plan_options(config.transport, &config.host_numbers());
        let options = options.shared_by(topology);
        if config.shows_weights() { options } else { super::pulled_into_own_memory(options) }
    }

    fn bytes_beside_plan(
        &self,
        config: &TrainConfig,
        topology: &Topology,
        program: &Program,
    ) -> u64 {
        let of_servers = server_bytes(program, config, topology);
        of_servers.saturating_add(staged_bytes(program, config, topology))
    }

    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError> {
        let (ends, computing) = ends::open(member, part)?;
        match ends {
            Ends::Server(server) => Ok(Connected::Serves(Box::new(move || {
                ends::serve(member, part, computing, *server)
            }))),
            Ends::Worker { worker, store: Some(store), group, edges, .. } => {
                open_master(member, part, (worker, *store), (group, edges), computing)
                    .map(|worker| Connected::Steps(Box::new(worker)))
            }
            Ends::Worker { worker, store: None, group, edges, .. } => {
                open_follower(member, part, worker, (group, edges), computing)
                    .map(|worker| Connected::Steps(Box::new(worker)))
            }
        }
    }
}

/// Opens a worker that deals with the store.
fn open_master<'a>(
    member: &'a Member,
    part: &'a Part,
    (number, mut store): (u32, KvWorker),
    (group, edges): (Option<SharedGroup>, Option<Fabric>),
    computing: Computing,
) -> Result<Worker<'a>, TrainError> {
    let Part { config, topology, program, plan, .. } = part;
    let here = topology.part(member.rank());
    let patience = || Deadline::after(member.setup_patience());
    let Met { mut storage, in_group, edges } = match edges {
        Some(fabric) => by_edges(member, part, fabric, (Some(&mut store), &computing), patience())?,
        None => {
            let bytes = plan.parts[here].memory.registered_bytes;
            let registered = match &group {
                // what the group reduces lies where the others reach it; the store takes a copy
                Some(group) => group.lock().alloc(bytes).map_err(ClientError::from)?,
                None => store.alloc_slab(bytes)?,
            };
            let mut storage = Storage::new(&plan.parts[here], &registered)?;
            if let Some(device) = &computing.device {
                let reach = config.store_reach(topology, &program.graph);
                for (number, bytes) in device_bytes(plan, here) {
                    let memory = match reach {
                        Some(DeviceReach::ByNic) => {
                            let allocated = device.lock().alloc(number, bytes);
                            let memory = allocated.map_err(|source| failed(part, here, source))?;
                            if crosses_on(plan, here, number) {
                                reach_by_nic(member, &mut store, &memory);
                            }
                            memory
                        }
                        _ => store.alloc_on_device(number, bytes)?,
                    };
                    storage.place_on_device(&plan.parts[here], number, &memory)?;
                }
            }
            let bind = |group| bind_part(group, &plan.parts[here], &storage, patience());
            let bound = group.as_ref().map(bind).transpose()?;
            Met { storage, in_group: InGroup::Vectors(bound), edges: None }
        }
    };
    let carried = Carried::default();
    let ends = (member, &carried);
    match topology.reduces_in_store {
        true => give_means(&mut store, part, number, patience())?,
        false => {
            give_values(&mut store, part, first_place(part, here, &storage), ends, patience())?
        }
    }
    refer(&mut store, part, here, &mut storage, patience())?;
    let store = Arc::new(Mutex::new(store));
    let names = program.weights().map(|variable| variable.name.as_str());
    let keys = match topology.reduces_in_store {
        true => StoreKeys::of_means(names),
        false => StoreKeys::new(names),
    };
    let exchange = StoreExchange::new(store.clone(), plan, here, &storage, &keys, carried.clone())?
        .in_order(config.send_order)
        // what a master broadcasts is read by its own kernels where it came
        .asking_ahead(makes_same_steps_alone(topology));
    let ports = match (in_group, &group) {
        (InGroup::Edges(edges), _) => BesideGroup::new(plan, *edges, exchange).ports(),
        (InGroup::Vectors(Some(bound)), Some(group)) => {
            master_ports(group, bound, exchange, carried.clone())
        }
        (InGroup::Vectors(_), _) => Ports::from(exchange),
    };
    let (computing, description) = computing_here(part, member.rank(), computing)?;
    let options = session_options(config);
    let session = Session::new(plan, here, storage, computing, Some(ports), options)?;
    let of_one = topology.plans_one_worker();
    let replicas = if of_one { 0..1 } else { number..number + 1 };
    // fits: workers are few
    let shard = if of_one { number as usize } else { 0 };
    let in_group = GroupLink { member, group, edges, carried: carried.clone() };
    let link = Box::new(StoreLink { member, part, store, in_group });
    let worker = Worker::new(session, description, replicas, link);
    Ok(Worker { shard, concludes: number == 0, carried, ..worker })
}

/// True for workers that make the same steps, each for itself.
fn makes_same_steps_alone(topology: &Topology) -> bool {
    !topology.is_asynchronous() && !topology.is_grouped() && !topology.reduces_in_store
}

/// A worker's memory, and how it meets its group.
struct Met {
    storage: Storage,
    in_group: InGroup,
    edges: Option<OpenEdges>,
}

/// What a worker reduces with the others of its group by.
enum InGroup {
    /// Vectors of the group, if there is one.
    Vectors(Option<Bound>),
    /// Edges of the plan.
    Edges(Box<OneSided>),
}

fn failed(part: &Part, here: usize, source: DeviceFailure) -> SessionError {
    SessionError::Device { name: part.plan.parts[here].task.to_string(), source }
}

/// By the numbers of its devices: the bytes of what a part has there.
fn device_bytes(plan: &Plan, part: usize) -> impl Iterator<Item = (u32, usize)> {
    (0..).zip(plan.parts[part].memory.device_bytes.iter().copied())
}

/// Who computes in a member: on the devices that were opened for the store, if some were.
fn computing_here(
    part: &Part,
    rank: Rank,
    Computing { kernels, device }: Computing,
) -> Result<(Computing, String), TrainError> {
    match device {
        Some(device) => Ok(computing_on(Some(device), kernels)),
        None => computing(part, rank, kernels),
    }
}

/// Opens a worker's edges to the others of its group, and the memory that these reach. Of one that deals with a `store` servers
/// reach it, too, or what goes there and comes from there lies in memory of the store's.
fn by_edges(
    member: &Member,
    part: &Part,
    fabric: Fabric,
    (store, computing): (Option<&mut KvWorker>, &Computing),
    patience: Deadline,
) -> Result<Met, TrainError> {
    let Part { config, topology, plan, program, .. } = part;
    let here = topology.part(member.rank());
    let device = computing.device.clone().ok_or(SessionError::NoDevice { part: here })?;
    let (mut memory, mut registered) = (Vec::new(), None);
    let mut by_nic = None;
    match (store, config.store_reach(topology, &program.graph)) {
        (Some(store), Some(DeviceReach::Mapped)) => {
            memory = shown_to_servers(store, part, here, &device)?;
        }
        (Some(store), Some(DeviceReach::ByNic)) => by_nic = Some(store),
        // else the store takes a copy
        (Some(store), _) if !crosses_on_host(plan, here) => {
            registered = Some(store.alloc_slab(plan.parts[here].memory.registered_bytes)?);
        }
        _ => {}
    }
    let workers = (0..topology.workers).map(|worker| topology.rank_of(worker));
    // the store's servers are one part, which nobody is asked for here
    let ranks = workers.chain([topology.rank_of(0)]).collect();
    let edges = GroupEdges {
        fabric: fabric.clone(),
        ranks,
        device,
        memory,
        registered,
        maps_devices: !config.devices_apart,
        dynamic_bytes_max: config.dynamic_bytes_max,
    };
    let (exchange, storage) = edges.open(plan, here, patience)?;
    if let Some(store) = by_nic {
        // the same as what the NIC has for the group, which is another connection's
        for (number, _) in device_bytes(plan, here) {
            if let Some(memory) = crossing(plan, here, number, &storage) {
                reach_by_nic(member, store, &memory);
            }
        }
    }
    if let Some(way) = exchange.device_way() {
        // a launcher that is gone is noticed by the thread that watches it
        let _ = member.say(way);
    }
    let open = OpenEdges { fabric, sent: sent_in_group(plan, here) };
    Ok(Met { storage, in_group: InGroup::Edges(Box::new(exchange)), edges: Some(open) })
}

/// True if a tensor goes from, or comes to, one of a part's devices.
fn crosses_on(plan: &Plan, here: usize, number: u32) -> bool {
    let is_there = |edge: &Edge| edge.from == here || edge.to == here;
    plan.edges.iter().any(|edge| edge.space == Space::Device(number) && is_there(edge))
}

/// The memory of one of a part's devices, if it receives something there.
fn crossing(plan: &Plan, here: usize, number: u32, storage: &Storage) -> Option<Slab> {
    let is_there = |edge: &&Edge| edge.to == here && edge.space == Space::Device(number);
    let mut received = plan.edges.iter().filter(is_there);
    received.find_map(|edge| Some(storage.buffer(edge.recv.into())?.slab().clone()))
}

/// Allocates what a part has on its devices, which servers of a store map.
fn shown_to_servers(
    store: &mut KvWorker,
    part: &Part,
    here: usize,
    device: &SharedDevice,
) -> Result<Vec<(Slab, Arc<OwnedFd>)>, TrainError> {
    let failed = |source| failed(part, here, source);
    let mut all = Vec::new();
    for (number, bytes) in device_bytes(&part.plan, here) {
        let allocated = device.lock().alloc_shared(number, bytes);
        let (memory, file) = allocated.map_err(failed)?;
        let file = file.map_err(failed)?;
        let copied = file.try_clone();
        let copied = copied.map_err(|error| DeviceFailure::Device(Box::new(error)));
        store.show_on_device(&memory, copied.map_err(failed)?)?;
        all.push((memory, Arc::new(file)));
    }
    Ok(all)
}

/// The store, and the worker's group if it is not alone there.
struct StoreLink<'a> {
    member: &'a Member,
    part: &'a Part,
    store: Arc<Mutex<KvWorker>>,
    in_group: GroupLink<'a>,
}

impl Link for StoreLink<'_> {
    fn bytes_written(&self) -> u64 {
        self.store.lock().stats().bytes_direct + self.in_group.bytes_written()
    }

    fn before_step(&mut self, step: u64, session: &mut Session) -> Result<(), TrainError> {
        self.in_group.before_step(step, session)
    }

    fn may_begin_early(&self) -> bool {
        makes_same_steps_alone(&self.part.topology)
    }

    fn settle(&mut self, trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
        // whoever evaluates has what all have pushed
        meet(&mut self.store.lock())?;
        trainer.concludes = is_first(self.member);
        Ok(())
    }

    fn takes_over(&mut self, trainer: &Trainer<'_>) -> Result<bool, TrainError> {
        let Part { config, topology, .. } = self.part;
        if !topology.elastic && config.store.snapshot.is_none() {
            return Ok(false);
        }
        // whoever is to evaluate may be lost before it has, or a server that all have to bring up to date
        meet(&mut self.store.lock())?;
        Ok(!trainer.concludes && is_first(self.member))
    }

    fn checkpoint(&mut self, step: u64) -> Result<(), TrainError> {
        if !self.part.topology.reduces_in_store {
            keep_together(&mut self.store.lock(), self.member, &self.part.topology, step)?;
        }
        Ok(())
    }

    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        let mut store = self.store.lock();
        add_store(report, &store.stats(), &store.copies());
        store.close(Deadline::after(self.member.setup_patience()))?;
        self.in_group.leave(report)
    }
}

/// Opens a worker that is no master: it gets weights from its group's, and gives its gradients there.
fn open_follower<'a>(
    member: &'a Member,
    part: &'a Part,
    worker: u32,
    (group, edges): (Option<SharedGroup>, Option<Fabric>),
    computing: Computing,
) -> Result<Worker<'a>, TrainError> {
    let Part { config, topology, plan, .. } = part;
    let here = topology.part(member.rank());
    let group = group.ok_or(ClientError::Alone)?;
    let patience = Deadline::after(member.setup_patience());
    let Met { storage, in_group, edges } = match edges {
        Some(fabric) => by_edges(member, part, fabric, (None, &computing), patience)?,
        None => {
            let bytes = plan.parts[here].memory.registered_bytes;
            let registered = group.lock().alloc(bytes).map_err(ClientError::from)?;
            let storage = Storage::new(&plan.parts[here], &registered)?;
            let bound = bind_part(&group, &plan.parts[here], &storage, patience)?;
            Met { storage, in_group: InGroup::Vectors(Some(bound)), edges: None }
        }
    };
    let carried = Carried::default();
    let others = OrderOnly::default();
    let ports = match in_group {
        InGroup::Edges(edges) => BesideGroup::new(plan, *edges, others).ports_of_group(),
        InGroup::Vectors(bound) => {
            let bound = bound.unwrap_or_default();
            member_ports(&group, bound, carried.clone()).with_exchange(others)
        }
    };
    let (computing, description) = computing_here(part, member.rank(), computing)?;
    let options = session_options(config);
    let session = Session::new(plan, here, storage, computing, Some(ports), options)?;
    let link = Box::new(GroupLink { member, group: Some(group), edges, carried: carried.clone() });
    let opened = Worker::new(session, description, worker..worker + 1, link);
    Ok(Worker { carried, ..opened })
}

/// The group alone, if there is one.
struct GroupLink<'a> {
    member: &'a Member,
    group: Option<SharedGroup>,
    /// By which it reduces, where that is not done by vectors of the group.
    edges: Option<OpenEdges>,
    carried: Carried,
}

impl Link for GroupLink<'_> {
    fn bytes_written(&self) -> u64 {
        let by_edges = self.edges.as_ref().map_or(0, OpenEdges::bytes_written);
        by_edges + written_to_group(self.group.as_ref())
    }

    fn before_step(&mut self, _step: u64, _session: &mut Session) -> Result<(), TrainError> {
        if let Some(edges) = &self.edges {
            self.carried.sent_in_client(edges.sent);
        }
        Ok(())
    }

    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        if let Some(edges) = self.edges.take() {
            report.bytes_written += edges.bytes_written();
            edges.close(Deadline::after(self.member.setup_patience()))?;
        }
        leave_group(self.member, self.group.as_ref(), report)
    }
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
            let handle = worker.pull_mapped(key, 0)?.ok_or(StoreError::NotMapped { key })?;
            worker.wait(handle, patience)?;
            let value = worker.mapped(key).ok_or(StoreError::NotMapped { key })?;
            storage.refer(edge.recv, variable.spec.clone(), value);
            worker.release(key);
        }
    }
    Ok(())
}

/// A variable's first value lies where it will be pulled to, if it ever is, and in the host's memory.
fn first_place(
    part: &Part,
    here: usize,
    storage: &Storage,
) -> impl Fn(&Variable, &ValueSpec) -> Option<Buffer> {
    move |variable: &Variable, spec: &ValueSpec| {
        let plan = &part.plan;
        let here = |edge: &&Edge| edge.to == here && carried_value(plan, edge) == variable.name;
        // of a value that travels rounded there are two
        let edges = plan.edges.iter().filter(here);
        let mut places = edges.filter_map(|edge| storage.buffer(edge.recv.into()));
        places.find(|into| into.bytes() == spec.bytes() && !into.space().is_device())
    }
}

/// Makes all variables known to the servers. Worker 0 says how they are updated, and what they are at first; if it
/// is lost before that is done, the first that lives does.
pub(super) fn give_values(
    worker: &mut KvWorker,
    part: &Part,
    pulled: impl Fn(&Variable, &ValueSpec) -> Option<Buffer>,
    (member, carried): (&Member, &Carried),
    patience: Deadline,
) -> Result<(), TrainError> {
    let rank = member.rank();
    if rank.0 == 0 {
        give_first(worker, part, pulled, carried, patience)?;
    } else {
        let handle = worker.init(&values(&part.config, &part.topology, &part.program), None)?;
        worker.wait(handle, patience)?;
        if part.topology.elastic {
            await_first(worker, part, pulled, (member, carried))?;
        }
    }
    restore_slots(worker, part, rank)
}

/// Waits until all variables have first values; gives them if whoever was to is lost.
fn await_first(
    worker: &mut KvWorker,
    part: &Part,
    pulled: impl Fn(&Variable, &ValueSpec) -> Option<Buffer>,
    (member, carried): (&Member, &Carried),
) -> Result<(), TrainError> {
    let Part { config, topology, program, .. } = part;
    let values = values(config, topology, program);
    let (mut keys, mut into) = (Vec::new(), Vec::new());
    for (variable, (key, spec)) in program.weights().zip(&values) {
        let buffer = pulled(variable, spec).map_or_else(|| worker.alloc(spec), Ok)?;
        keys.push(*key);
        into.push(vec![buffer]);
    }
    // what can be pulled was given
    let there = worker.pull(&keys, &into, 0)?;
    let deadline = Deadline::after(config.step_deadline());
    let mut has_given = false;
    while !worker.is_done(there) && !deadline.passed() {
        if is_first(member) && !has_given {
            // in memory of its own: what was given before may be on its way to the other
            give_first(worker, part, |_, _| None, carried, deadline)?;
            has_given = true;
        }
        worker.observe();
        if !worker.progress()? {
            worker.wait_for_news(deadline);
        }
    }
    Ok(worker.wait(there, deadline)?)
}

/// Makes all means known to the servers, which hold nothing else.
fn give_means(
    worker: &mut KvWorker,
    part: &Part,
    number: u32,
    patience: Deadline,
) -> Result<(), TrainError> {
    let Part { config, topology, program, .. } = part;
    let values = values(config, topology, program);
    let mut first = Vec::new();
    if number == 0 {
        let handle = worker.set_optimizer(&rules(config, topology, program).to_bytes());
        worker.wait(handle, patience)?;
        for (_, spec) in &values {
            first.push(worker.alloc(spec)?);
        }
    }
    let handle = worker.init(&values, (number == 0).then_some(&first[..]))?;
    Ok(worker.wait(handle, patience)?)
}

/// Has the servers take the optimizer's state of the checkpoint that training goes on from, before anybody pushes.
fn restore_slots(worker: &mut KvWorker, part: &Part, rank: Rank) -> Result<(), TrainError> {
    let Some(resumed) = &part.resumed else { return Ok(()) };
    let deadline = Deadline::after(part.config.step_deadline());
    // where the first may be lost before it has asked, all do
    if rank.0 == 0 || part.topology.elastic {
        let loading = worker.load(&resumed.path.to_string_lossy());
        worker.wait(loading, deadline)?;
    }
    Ok(worker.barrier(deadline)?)
}

/// Says how variables are updated, and gives their first values where they have none, from a file or from the seed.
fn give_first(
    worker: &mut KvWorker,
    part: &Part,
    place: impl Fn(&Variable, &ValueSpec) -> Option<Buffer>,
    carried: &Carried,
    patience: Deadline,
) -> Result<(), TrainError> {
    let Part { config, topology, program, .. } = part;
    let handle = worker.set_optimizer(&rules(config, topology, program).to_bytes());
    worker.wait(handle, patience)?;
    let load = config.load.as_deref();
    let file = load.map(|path| Weights::open(path, program.weights())).transpose()?;
    let resumed = part.resumed.as_ref().map(Resumed::index).transpose()?;
    let values = values(config, topology, program);
    let mut first = Vec::new();
    for (variable, (_, spec)) in program.weights().zip(&values) {
        let buffer = place(variable, spec).map_or_else(|| worker.alloc(spec), Ok)?;
        let lent = |source: tensorwire_memory::LoanError| StoreError::Update(source.to_string());
        let is_rounded = spec.dtype != variable.spec.dtype;
        let wide = match is_rounded {
            true => worker.alloc(&ValueSpec::dense(variable.spec.dtype, spec.elements()))?,
            false => buffer.clone(),
        };
        let mut bytes = wide.write().map_err(lent)?;
        match (&resumed, &file) {
            (Some(index), _) => index.read(&variable.name, 0, &mut bytes)?,
            (None, Some(file)) => {
                bytes.copy_from_slice(file.tensor(&variable.name)?);
                carried.copied(CopyPurpose::Checkpoint, bytes.len());
            }
            (None, None) => {
                let bad = |source| TrainError::Tensor { name: variable.name.clone(), source };
                let tensor = TensorMut::new(&variable.spec, &mut bytes).map_err(bad)?;
                weights::first_values(&variable.name, variable.init, config.seed, 0, tensor)
                    .map_err(bad)?;
            }
        }
        if is_rounded {
            round(&bytes, &mut buffer.write().map_err(lent)?);
        }
        drop(bytes);
        first.push(buffer);
    }
    // what was read took its time
    let patience = Deadline::after(part.config.step_deadline());
    let handle = worker.init(&values, Some(&first))?;
    Ok(worker.wait(handle, patience)?)
}
