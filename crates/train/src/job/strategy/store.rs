//! Weights in a key-value store: workers run their part of the same plan as with servers in the graph, push gradients as
//! they appear and pull weights as they are needed; servers reduce and update (Li et al.; ps-lite). In groups, a group's
//! master alone deals with the store (Mamidala et al.).

use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::PlanOptions;
use tensorwire_graph::{Edge, Transfer};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
use tensorwire_launch::Member;
use tensorwire_memory::{Buffer, CopyPurpose, TensorMut};
use tensorwire_nn::{Program, Variable};
use tensorwire_runtime::{Computing, Ports, Session, Storage};

use super::ends::{
    self, Ends, add_store, is_first, keep_together, leave_group, meet, written_to_group,
};
use super::values::{rules, server_bytes, values};
use super::{Connected, SharedBy, Strategy};
use crate::carried::Carried;
use crate::checkpoint::Resumed;
use crate::config::TrainConfig;
use crate::group::{ClientError, OrderOnly, SharedGroup, bind_part, master_ports, member_ports};
use crate::job::computing::{computing, computing_on};
use crate::job::trainer::Trainer;
use crate::job::worker::{Link, Worker};
use crate::job::{Part, TrainError, session_options};
use crate::report::TrainReport;
use crate::store::{StoreExchange, StoreKeys, carried_value, round};
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
        server_bytes(program, config, topology)
    }

    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError> {
        let (ends, computing) = ends::open(member, part)?;
        match ends {
            Ends::Server(server) => Ok(Connected::Serves(Box::new(move || {
                ends::serve(member, part, computing, *server)
            }))),
            Ends::Worker { worker, store: Some(store), group, .. } => {
                open_master(member, part, (worker, *store), group, computing)
                    .map(|worker| Connected::Steps(Box::new(worker)))
            }
            Ends::Worker { worker, store: None, group, .. } => {
                open_follower(member, part, worker, group, computing.kernels)
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
    group: Option<SharedGroup>,
    Computing { kernels, device }: Computing,
) -> Result<Worker<'a>, TrainError> {
    let Part { config, topology, program, plan, .. } = part;
    let here = topology.part(member.rank());
    let bytes = plan.parts[here].memory.registered_bytes;
    let registered = match &group {
        // what the group reduces lies where the others reach it; the store takes a copy
        Some(group) => group.lock().alloc(bytes).map_err(ClientError::from)?,
        None => store.alloc_slab(bytes)?,
    };
    let mut storage = Storage::new(&plan.parts[here], &registered)?;
    if device.is_some() {
        // what crosses lies on the first device
        let bytes = plan.parts[here].memory.device_bytes.first().copied().unwrap_or_default();
        let memory = store.alloc_on_device(bytes)?;
        storage.place_on_device(&plan.parts[here], &memory)?;
    }
    let patience = Deadline::after(member.setup_patience());
    let bound = group.as_ref().map(|group| bind_part(group, &plan.parts[here], &storage, patience));
    let bound = bound.transpose()?;
    let carried = Carried::default();
    let ends = (member, &carried);
    match topology.reduces_in_store {
        true => give_means(&mut store, part, number, patience)?,
        false => give_values(&mut store, part, first_place(part, here, &storage), ends, patience)?,
    }
    refer(&mut store, part, here, &mut storage, patience)?;
    let store = Arc::new(Mutex::new(store));
    let names = program.weights().map(|variable| variable.name.as_str());
    let keys = match topology.reduces_in_store {
        true => StoreKeys::of_means(names),
        false => StoreKeys::new(names),
    };
    let exchange = StoreExchange::new(store.clone(), plan, here, &storage, &keys, carried.clone())
        .in_order(config.send_order);
    let ports = match group.as_ref().zip(bound) {
        Some((group, bound)) => master_ports(group, bound, exchange, carried.clone()),
        None => Ports::from(exchange),
    };
    let (computing, description) = match device {
        Some(device) => computing_on(Some(device), kernels),
        None => computing(part, member.rank(), kernels)?,
    };
    let options = session_options(config);
    let session = Session::new(plan, here, storage, computing, Some(ports), options)?;
    let of_one = topology.plans_one_worker();
    let replicas = if of_one { 0..1 } else { number..number + 1 };
    // fits: workers are few
    let shard = if of_one { number as usize } else { 0 };
    let link = Box::new(StoreLink { member, part, store, group });
    let worker = Worker::new(session, description, replicas, link);
    Ok(Worker { shard, concludes: number == 0, carried, ..worker })
}

/// The store, and the worker's group if it is not alone there.
struct StoreLink<'a> {
    member: &'a Member,
    part: &'a Part,
    store: Arc<Mutex<KvWorker>>,
    group: Option<SharedGroup>,
}

impl Link for StoreLink<'_> {
    fn bytes_written(&self) -> u64 {
        self.store.lock().stats().bytes_direct + written_to_group(self.group.as_ref())
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
        leave_group(self.member, self.group.as_ref(), report)
    }
}

/// Opens a worker that is no master: it gets weights from its group's, and gives its gradients there.
fn open_follower<'a>(
    member: &'a Member,
    part: &'a Part,
    worker: u32,
    group: Option<SharedGroup>,
    kernels: Arc<Kernels>,
) -> Result<Worker<'a>, TrainError> {
    let Part { config, topology, plan, .. } = part;
    let here = topology.part(member.rank());
    let group = group.ok_or(ClientError::Alone)?;
    let bytes = plan.parts[here].memory.registered_bytes;
    let registered = group.lock().alloc(bytes).map_err(ClientError::from)?;
    let storage = Storage::new(&plan.parts[here], &registered)?;
    let patience = Deadline::after(member.setup_patience());
    let bound = bind_part(&group, &plan.parts[here], &storage, patience)?;
    let carried = Carried::default();
    let ports = member_ports(&group, bound, carried.clone()).with_exchange(OrderOnly::default());
    let (computing, description) = computing(part, member.rank(), kernels)?;
    let options = session_options(config);
    let session = Session::new(plan, here, storage, computing, Some(ports), options)?;
    let link = Box::new(GroupLink { member, group });
    let opened = Worker::new(session, description, worker..worker + 1, link);
    Ok(Worker { carried, ..opened })
}

/// The group alone.
struct GroupLink<'a> {
    member: &'a Member,
    group: SharedGroup,
}

impl Link for GroupLink<'_> {
    fn bytes_written(&self) -> u64 {
        written_to_group(Some(&self.group))
    }

    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        leave_group(self.member, Some(&self.group), report)
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
    let handle = worker.init(&values, Some(&first))?;
    Ok(worker.wait(handle, patience)?)
}
