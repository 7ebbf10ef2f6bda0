//! Weights of each worker's own: gradients are all-reduced in the worker's group as they appear, and every member of it
//! updates alike (`allreduce`); or groups go their own ways and meet at a centre in a store (elastic averaging).

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_collectives::Collectives;
use tensorwire_cuda::{CudaKernels, OpenedGpus};
use tensorwire_fabric::Fabric;
use tensorwire_graph::{Node, NodeId, Op};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{Key, KvWorker};
use tensorwire_launch::Member;
use tensorwire_memory::{CopyPurpose, Slab};
use tensorwire_nn::Program;
use tensorwire_runtime::{Session, SessionError, Storage};

use super::averaging::{Averaging, GpusOfCentre, Weight};
use super::ends::{self, Ends, add_store, keep_together, leave_group, meet, written_to_group};
use super::servers::part_options;
use super::store::give_values;
use super::values::{centre_bytes, server_bytes};
use super::{Connected, Strategy};
use crate::carried::Carried;
use crate::config::{self, TrainConfig};
use crate::group::{
    ClientError, NcclPlace, SharedGroup, Widest, bind_part, bind_widest, member_ports, nccl_ports,
    sent_in_group,
};
use crate::job::computing::{computing_on, open_gpus};
use crate::job::trainer::Trainer;
use crate::job::worker::{Link, Worker};
use crate::job::{Part, TrainError, session_options};
use crate::open_part::{OpenSessions, SessionRanks, open_sessions_on};
use crate::report::TrainReport;
use crate::topology::Topology;

pub(super) struct Replicated;

impl Strategy for Replicated {
    fn bytes_beside_plan(
        &self,
        config: &TrainConfig,
        topology: &Topology,
        program: &Program,
    ) -> u64 {
        let servers = server_bytes(program, config, topology);
        servers.saturating_add(centre_bytes(program, config, topology))
    }

    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError> {
        let (ends, computing) = ends::open(member, part)?;
        match ends {
            Ends::Server(server) => Ok(Connected::Serves(Box::new(move || {
                ends::serve(member, part, computing, *server)
            }))),
            Ends::Worker { worker, store, group, edges, nccl, gpus } => {
                let link = ReplicaLink {
                    member,
                    part,
                    worker,
                    kernels: computing.kernels,
                    store: store.map(|store| *store),
                    group,
                    edges: None,
                    of_centre: gpus,
                    gpus: None,
                    widest: None,
                    averaging: None,
                    carried: Carried::default(),
                };
                let opened = match (edges, nccl) {
                    (Some(fabric), _) => link.open_by_edges(fabric),
                    (None, Some(place)) => link.open_by_nccl(&place),
                    (None, None) => link.open(),
                };
                opened.map(|worker| Connected::Steps(Box::new(worker)))
            }
        }
    }
}

/// The worker's group, and its way to the centre if there is one.
struct ReplicaLink<'a> {
    member: &'a Member,
    part: &'a Part,
    worker: u32,
    kernels: Arc<Kernels>,
    /// Until weights are averaged over it.
    store: Option<KvWorker>,
    group: Option<SharedGroup>,
    /// The edges to the group, where what it reduces goes over those.
    edges: Option<OpenSessions>,
    /// Its GPUs, where its weights are averaged on them.
    of_centre: Option<Box<GpusOfCentre>>,
    /// Its GPUs, where the first of them reduces with the others' by NCCL.
    gpus: Option<OpenedGpus>,
    /// The largest vector of the group.
    widest: Option<Widest>,
    averaging: Option<Averaging>,
    carried: Carried,
}

impl<'a> ReplicaLink<'a> {
    /// A worker whose group reduces what it computes.
    fn open(mut self) -> Result<Worker<'a>, TrainError> {
        let Part { config, topology, plan, .. } = self.part;
        let here = topology.part(self.member.rank());
        let bytes = plan.parts[here].memory.registered_bytes;
        let registered = match &self.group {
            Some(group) => group.lock().alloc(bytes).map_err(ClientError::from)?,
            None => Slab::anonymous(bytes).map_err(SessionError::from)?,
        };
        let storage = Storage::new(&plan.parts[here], &registered)?;
        let bind = |group| bind_part(group, &plan.parts[here], &storage, self.setup_deadline());
        let bound = self.group.as_ref().map(bind).transpose()?;
        self.widest = bound.as_ref().and_then(|bound| bound.widest());
        let ports = self.group.as_ref().zip(bound);
        let ports = ports.map(|(group, bound)| member_ports(group, bound, self.carried.clone()));
        let device = self.gpus()?.map(|gpus| gpus.shared());
        let (computing, description) = computing_on(device, self.kernels.clone());
        let options = session_options(config);
        let session = Session::new(plan, here, storage, computing, ports, options)?;
        Ok(self.worker(session, description))
    }

    /// A worker of a group whose reductions are edges of the plan, over `fabric`. The group itself gives all the same weights.
    fn open_by_edges(mut self, fabric: Fabric) -> Result<Worker<'a>, TrainError> {
        let Part { topology, plan, .. } = self.part;
        let ranks = (0..topology.workers).map(|worker| topology.rank_of(worker)).collect();
        let part = topology.part(self.member.rank());
        let sessions = SessionRanks { part, ranks: vec![ranks] };
        let device = self.gpus()?.map(|gpus| gpus.shared());
        let options = part_options(self.member, self.part, device);
        let mut open = open_sessions_on(fabric, self.member, plan, &sessions, options)?;
        self.bind_widest()?;
        let (session, description) = (open.sessions.remove(0), open.kernels.clone());
        self.edges = Some(open);
        Ok(self.worker(session, description))
    }

    /// A worker of a group whose GPUs reduce by NCCL. The group itself gives all the same weights.
    fn open_by_nccl(mut self, place: &NcclPlace) -> Result<Worker<'a>, TrainError> {
        let Part { config, topology, plan, .. } = self.part;
        let rank = self.member.rank();
        let here = topology.part(rank);
        let part = &plan.parts[here];
        let registered = Slab::anonymous(part.memory.registered_bytes);
        let storage = Storage::new(part, &registered.map_err(SessionError::from)?)?;
        let gpus = self.gpus()?.ok_or(ClientError::Alone)?;
        let ports = nccl_ports(place, &gpus, part, self.carried.clone(), self.setup_deadline())?;
        self.bind_widest()?;
        let (computing, description) = computing_on(Some(gpus.shared()), self.kernels.clone());
        let options = session_options(config);
        let session = Session::new(plan, here, storage, computing, Some(ports), options)?;
        self.gpus = Some(gpus);
        Ok(self.worker(session, description))
    }

    /// The GPUs that it computes on, if it does so on some.
    fn gpus(&self) -> Result<Option<OpenedGpus>, TrainError> {
        match &self.of_centre {
            Some(of_centre) => Ok(Some(of_centre.gpus.clone())),
            None => open_gpus(self.part, self.member.rank()),
        }
    }

    /// Binds what the first member's weights go by, before the first step, where the group reduces none.
    fn bind_widest(&mut self) -> Result<(), ClientError> {
        let Part { topology, program, .. } = self.part;
        let largest = program.weights().map(|weight| weight.spec.bytes()).max();
        let is_spread = topology.averaging.is_none();
        if let (Some(group), Some(bytes), true) = (&self.group, largest, is_spread) {
            self.widest = bind_widest(group, bytes, self.setup_deadline())?;
        }
        Ok(())
    }

    fn worker(self, session: Session, description: String) -> Worker<'a> {
        let (worker, carried) = (self.worker, self.carried.clone());
        let opened = Worker::new(session, description, worker..worker + 1, Box::new(self));
        Worker { concludes: worker == 0, carried, ..opened }
    }
}

impl ReplicaLink<'_> {
    /// Until when a step of the set-up that begins now may wait for its peers.
    fn setup_deadline(&self) -> Deadline {
        Deadline::after(self.member.setup_patience())
    }

    /// Until when a step that begins now may wait for its peers.
    fn step_deadline(&self) -> Deadline {
        Deadline::after(self.part.config.step_deadline())
    }

    fn average(
        &mut self,
        how: config::Averaging,
        trainer: &mut Trainer<'_>,
    ) -> Result<(), TrainError> {
        let weights = weights(self.part, self.worker, trainer.session)?;
        let ends = (self.store.take(), self.group.clone());
        let shared = (trainer.carried.clone(), self.setup_deadline());
        let kernels = self.kernels.clone();
        let mut averaging = match &self.of_centre {
            Some(gpus) => {
                let weights = (weights, &*trainer.session);
                let gpus = (self.member, &**gpus);
                Averaging::open_on_device((how, kernels), ends, weights, gpus, shared)?
            }
            None => Averaging::open(how, kernels, ends, weights, None, shared)?,
        };
        // who goes on from a checkpoint of its own has other weights than the centre
        if self.part.resumed.as_ref().is_none_or(|resumed| resumed.centre_alone) {
            averaging.adopt(trainer.session, false, self.step_deadline())?;
        }
        self.averaging = Some(averaging);
        Ok(())
    }
}

impl Link for ReplicaLink<'_> {
    fn bytes_written(&self) -> u64 {
        let averaging = self.averaging.as_ref().and_then(|averaging| averaging.store.as_ref());
        let store = self.store.as_ref().or(averaging);
        let to_store = store.map_or(0, |store| store.stats().bytes_direct);
        let over_edges = self.edges.as_ref().map_or(0, |edges| edges.bytes_written());
        to_store + over_edges + written_to_group(self.group.as_ref())
    }

    fn begin(&mut self, trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
        // the others may still read what this one has read
        let deadline = self.setup_deadline();
        if let Some(store) = &mut self.store {
            let ends = (self.member, &trainer.carried);
            give_values(store, self.part, |_, _| None, ends, deadline)?;
        }
        match (self.part.topology.averaging, &self.group, &self.widest) {
            (Some(how), ..) => self.average(how, trainer),
            (None, Some(group), Some(widest)) => {
                let nodes = held(self.part, self.worker, trainer.session);
                let copied = broadcast(group, widest, trainer.session, nodes, deadline)?;
                trainer.carried.copied(CopyPurpose::Broadcast, copied);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn before_step(&mut self, step: u64, session: &mut Session) -> Result<(), TrainError> {
        let Part { config, shape, plan, topology, .. } = self.part;
        if self.edges.is_some() {
            self.carried.sent_in_client(sent_in_group(plan, topology.part(self.member.rank())));
        }
        let deadline = Deadline::after(shape.step_patience(config, step));
        let averaging = self.averaging.as_mut();
        averaging.map_or(Ok(()), |averaging| averaging.before(step, session, deadline))
    }

    /// Averaging moves the weights between two steps.
    fn may_begin_early(&self) -> bool {
        self.averaging.is_none()
    }

    fn checkpoint(&mut self, step: u64) -> Result<(), TrainError> {
        let store = self.averaging.as_mut().and_then(|averaging| averaging.store.as_mut());
        let Some(store) = store else { return Ok(()) };
        Ok(keep_together(store, self.member, &self.part.topology, step)?)
    }

    fn show_evaluated(&mut self, session: &mut Session) -> Result<bool, TrainError> {
        let deadline = self.step_deadline();
        let Some(averaging) = &mut self.averaging else { return Ok(false) };
        averaging.look_at_centre(session, deadline)?;
        Ok(true)
    }

    fn restore(&mut self, session: &mut Session) -> Result<(), TrainError> {
        self.averaging.as_mut().map_or(Ok(()), |averaging| averaging.restore(session))
    }

    fn settle(&mut self, trainer: &mut Trainer<'_>) -> Result<(), TrainError> {
        let deadline = self.step_deadline();
        let Some(averaging) = &mut self.averaging else { return Ok(()) };
        let Some(store) = &mut averaging.store else { return Ok(()) };
        // whoever evaluates has what all have pushed
        meet(store)?;
        if self.worker == 0 {
            averaging.adopt(trainer.session, true, deadline)?;
        }
        Ok(())
    }

    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        let averaging = self.averaging.take();
        let store = self.store.take().or_else(|| averaging.and_then(|averaging| averaging.store));
        if let Some(mut store) = store {
            add_store(report, &store.stats(), &store.copies());
            store.close(Deadline::after(self.member.setup_patience()))?;
        }
        if let Some(edges) = self.edges.take() {
            report.bytes_written += edges.bytes_written();
            edges.close(Deadline::after(self.member.setup_patience()))?;
        }
        if let Some(gpus) = &self.gpus {
            gpus.with_first(CudaKernels::leave);
        }
        leave_group(self.member, self.group.as_ref(), report)
    }
}

/// The weights of a worker, in the order of the store's keys.
fn weights(part: &Part, worker: u32, session: &Session) -> Result<Vec<Weight>, TrainError> {
    let sharing = part.topology.sharing();
    let weight = |(key, variable): (Key, &tensorwire_nn::Variable)| {
        let name = sharing.name(&variable.name, worker);
        let node = session.node(&name)?;
        Ok(Weight { key, name, spec: variable.spec.clone(), node })
    };
    (0..).map(Key).zip(part.program.weights()).map(weight).collect()
}

/// The variables that hold a worker's weights, in the order of those: a weight is one, or several devices' rows of it.
fn held(part: &Part, worker: u32, session: &Session) -> impl Iterator<Item = NodeId> {
    let sharing = part.topology.sharing();
    let graph = &session.part().graph;
    let of_weight = move |variable: &tensorwire_nn::Variable| {
        let name = sharing.name(&variable.name, worker);
        let is_part = move |(_, node): &(NodeId, &Node)| {
            let of = node.piece.as_ref().map_or(&node.name, |piece| &piece.of);
            matches!(node.op, Op::Variable { .. }) && *of == name
        };
        graph.nodes().filter(is_part).map(|(id, _)| id)
    };
    part.program.weights().flat_map(of_weight)
}

/// Gives all members of the group the first one's weights; returns the bytes that were copied here for it.
fn broadcast(
    group: &SharedGroup,
    widest: &Widest,
    session: &Session,
    nodes: impl Iterator<Item = NodeId>,
    deadline: Deadline,
) -> Result<usize, TrainError> {
    let values = nodes.map(|node| session.write(node.into()).map(|(_, bytes)| bytes));
    let mut values = values.collect::<Result<Vec<_>, SessionError>>()?;
    let mut values: Vec<&mut [u8]> = values.iter_mut().map(|bytes| &mut **bytes).collect();
    Ok(widest.broadcast(group, &mut values, deadline)?)
}
