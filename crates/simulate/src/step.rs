//! A job's plan as activities: steps of training, one behind another, as its processes do them.

use std::collections::{HashMap, HashSet};

use tensorwire_collectives::{Algorithm, GroupOptions, LinkCost};
use tensorwire_graph::{EdgeId, Graph, Job as Role, NodeId, Op, Plan, RELAYED_BYTES_MIN};
use tensorwire_kvstore::{BIG_ELEMENTS, Key, Partition, ValueSpec};

use crate::cluster::{Cluster, End, Update};
use crate::collective::Group;
use crate::component::Component;
use crate::cost;
use crate::engine::{Activity, ActivityId, Engine, QueueId};
use crate::estimate::{SimulateError, SimulatedJob, SimulatedStrategy};

/// Steps that are simulated. The first is how the job gets into its stride; of the last one that counts, the next shares
/// links and cores, as servers send what is updated while others still push.
pub(crate) const STEPS: usize = 4;
/// [`tensorwire_nn::Program::TRAIN`], by its place.
const TRAIN: usize = 0;

/// What servers hold of one variable, and how it crosses.
struct Value {
    /// Server, and its share of the value.
    parts: Vec<(u32, f64)>,
    /// Edges that bring it to a worker, and its gradient back.
    pulls: Vec<(EdgeId, f64)>,
    pushes: Vec<(EdgeId, f64)>,
    update: Update,
}

/// Workers of a class that do the same.
struct Workers {
    class: usize,
    /// Of each machine.
    count: u32,
    /// The part of the plan that is theirs.
    part: usize,
    has_servers: bool,
    queue: QueueId,
    /// To and from their accelerators.
    buses: [QueueId; 2],
    /// Seconds of a core, or of an accelerator, that a unit of [`cost::work`] takes.
    second_of_work: f64,
}

pub(crate) struct Build<'a> {
    job: &'a SimulatedJob<'a>,
    pub(crate) engine: Engine,
    pub(crate) cluster: Cluster<'a>,
    workers: Vec<Workers>,
    values: Vec<Value>,
    /// The class of each server's machine, and where its updates are done.
    servers: Vec<(usize, QueueId)>,
    /// Messages between workers and a server, by direction.
    channels: HashMap<(usize, u32, bool), QueueId>,
}

/// What one step is to the next.
#[derive(Default)]
struct Before {
    /// By workers: the step is over.
    workers: Vec<ActivityId>,
    /// By value and part: it is updated. By server: all are.
    updated: Vec<Vec<ActivityId>>,
    servers: Vec<ActivityId>,
}

/// A node as others see it.
type Ends = HashMap<NodeId, (ActivityId, ActivityId)>;

impl<'a> Build<'a> {
    pub(crate) fn new(
        job: &'a SimulatedJob<'a>,
        mut engine: Engine,
        cluster: Cluster<'a>,
    ) -> Result<Build<'a>, SimulateError> {
        let values = values(job)?;
        let mut workers = Vec::new();
        for (class, machine) in cluster.classes.iter().enumerate() {
            let kinds = [(machine.masters, job.master, true), (machine.others, job.other, false)];
            for (count, part, has_servers) in kinds.into_iter().filter(|(count, ..)| *count > 0) {
                workers.push(Workers {
                    class,
                    count,
                    part,
                    has_servers,
                    queue: engine.queue(),
                    buses: [engine.queue(), engine.queue()],
                    second_of_work: second_of_work(job, &cluster, class, part),
                });
            }
        }
        let class_of = |server: u32| {
            let holds = |class: &crate::layout::Class| class.servers.contains(&server);
            cluster.classes.iter().position(holds).unwrap_or_default()
        };
        let servers = (0..job.servers).map(|server| (class_of(server), engine.queue())).collect();
        let channels = HashMap::new();
        Ok(Build { job, engine, cluster, workers, values, servers, channels })
    }

    /// Adds all steps; the ends of each at all workers.
    pub(crate) fn steps(&mut self) -> Vec<Vec<ActivityId>> {
        let mut before = Before::default();
        let mut ends = Vec::new();
        for _ in 0..STEPS {
            before = self.step(&before);
            ends.push(before.workers.clone());
        }
        ends
    }

    fn step(&mut self, before: &Before) -> Before {
        let arrivals = self.pulls(before);
        let mut ends: Vec<Ends> = Vec::new();
        let mut over = Vec::new();
        // one for each of the workers
        for (at, arrivals) in arrivals.iter().enumerate() {
            let (nodes, end) = self.process(at, before.workers.get(at).copied(), arrivals);
            ends.push(nodes);
            over.push(end);
        }
        self.together(&ends);
        let (updated, servers) = self.pushes(&ends);
        if self.job.is_colocated {
            // a worker's step is over when what it holds is updated
            for (worker, over) in self.workers.iter().zip(&over) {
                for server in &self.cluster.classes[worker.class].servers {
                    self.engine.order(servers[*server as usize], *over);
                }
            }
        }
        Before { workers: over, updated, servers }
    }

    /// The kernels of one worker in one step, and what is to be sent, reduced and broadcast: nodes whose second half
    /// is for others to add. Its own end, too.
    fn process(
        &mut self,
        at: usize,
        before: Option<ActivityId>,
        arrivals: &HashMap<EdgeId, Vec<ActivityId>>,
    ) -> (Ends, ActivityId) {
        let Workers { class, count, part, queue, second_of_work, .. } = self.workers[at];
        let graph = &self.job.plan.parts[part].graph;
        let nodes = &self.job.plan.runs[TRAIN].nodes[part];
        let (begin, end) =
            (self.engine.add(Activity::nothing()), self.engine.add(Activity::nothing()));
        self.engine.order(begin, end);
        if let Some(before) = before {
            self.engine.order(before, begin);
        }
        let mut ends = Ends::new();
        for id in nodes {
            let node = graph.node(*id);
            let (busy_s, component) = match update(&self.cluster, graph, *id) {
                Some(update) => (self.cluster.own_update_s(update), Component::Updates),
                None => (cost::work(graph, *id) * second_of_work, Component::Compute),
            };
            let first = match busy_s {
                busy_s if busy_s > 0.0 => {
                    let kernel = self.cluster.kernel(class, count, busy_s, queue);
                    self.engine.add(Activity { component: Some(component), ..kernel })
                }
                _ => self.engine.add(Activity::nothing()),
            };
            let has_second = node.op.is_send() || node.op.vector().is_some();
            let last = if has_second { self.engine.add(Activity::nothing()) } else { first };
            if has_second {
                self.engine.order(first, last);
            }
            self.engine.order(begin, first);
            self.engine.order(last, end);
            let arrived = node.op.edge().and_then(|edge| arrivals.get(&edge));
            for arrival in arrived.into_iter().flatten() {
                self.engine.order(*arrival, first);
            }
            ends.insert(*id, (first, last));
        }
        for id in nodes {
            for earlier in graph.predecessors(*id) {
                self.order(&ends, earlier, *id);
            }
        }
        for (first, then) in &self.job.plan.parts[part].order {
            self.order(&ends, *first, *then);
        }
        (ends, end)
    }

    /// `then` comes behind `first`, if the run has both.
    fn order(&mut self, ends: &Ends, first: NodeId, then: NodeId) {
        if let (Some((_, over)), Some((begins, _))) = (ends.get(&first), ends.get(&then)) {
            self.engine.order(*over, *begins);
        }
    }

    /// What groups reduce and broadcast: it begins when all members have come, and ends for all at once.
    fn together(&mut self, ends: &[Ends]) {
        let mut vectors: Vec<(u32, bool, usize)> = Vec::new();
        for worker in &self.workers {
            let graph = &self.job.plan.parts[worker.part].graph;
            for id in &self.job.plan.runs[TRAIN].nodes[worker.part] {
                let is_folded = matches!(graph.node(*id).op, Op::AllReduce { .. });
                if let Some(vector) = graph.node(*id).op.vector() {
                    // fits: the size of a tensor
                    let bytes = cost::bytes(graph.fact((*id).into())) as usize;
                    vectors.push((vector, is_folded, bytes));
                }
            }
        }
        vectors.sort_unstable();
        vectors.dedup();
        let group = self.group();
        for (vector, is_folded, bytes) in vectors {
            let start = self.engine.add(Activity::nothing());
            let vectors = self.nodes_of(ends, |op| op.vector() == Some(vector));
            vectors.iter().for_each(|(first, _)| self.engine.order(*first, start));
            let what = (self.algorithm(group, bytes), bytes);
            let end = match is_folded {
                true => group.all_reduce(&mut self.engine, &self.cluster, what, start),
                false => group.broadcast(&mut self.engine, &self.cluster, what, start),
            };
            vectors.iter().for_each(|(_, last)| self.engine.order(end, *last));
        }
    }

    /// The ends of such nodes at all workers.
    fn nodes_of(&self, ends: &[Ends], is: impl Fn(&Op) -> bool) -> Vec<(ActivityId, ActivityId)> {
        let mut found = Vec::new();
        for (worker, ends) in self.workers.iter().zip(ends) {
            let graph = &self.job.plan.parts[worker.part].graph;
            let nodes = self.job.plan.runs[TRAIN].nodes[worker.part].iter();
            let those = nodes.filter(|id| is(&graph.node(**id).op));
            found.extend(those.filter_map(|id| ends.get(id)));
        }
        found
    }

    /// A client: its members are as many workers apart as there are clients.
    fn group(&self) -> Group {
        let (workers, clients) = (self.job.workers as usize, self.job.clients.max(1) as usize);
        let a_machine = match self.cluster.network.machine.workers {
            0 => workers,
            some => some as usize,
        };
        Group { size: workers / clients, on_one: (a_machine / clients).max(1) }
    }

    fn algorithm(&self, group: Group, bytes: usize) -> Algorithm {
        let network = self.cluster.network;
        // as a job is told that runs over the transport of such a network
        let link = match network.link.core_gbs {
            _ if self.job.shares_memory(network) => LinkCost::SHARED_MEMORY,
            None => LinkCost::RDMA,
            Some(_) if network.machine.workers == 0 => LinkCost::LOOPBACK,
            Some(_) => LinkCost::TCP,
        };
        let options = GroupOptions::default();
        // those of one machine share memory
        let hosts = if network.local.by_reference { group.hosts() } else { Vec::new() };
        let chosen = || match hosts[..] {
            [] => link.choose(group.size, bytes, &options),
            _ => link.choose_on_hosts(&hosts, bytes, &options),
        };
        match self.job.algorithm.unwrap_or_else(chosen) {
            // what it is where nobody shares a machine with somebody, or all do
            Algorithm::Hierarchical if hosts.is_empty() => Algorithm::Direct,
            algorithm => algorithm,
        }
    }

    /// The values on their way to the workers: by workers, when each edge's arrives.
    fn pulls(&mut self, before: &Before) -> Vec<HashMap<EdgeId, Vec<ActivityId>>> {
        let mut arrivals = vec![HashMap::new(); self.workers.len()];
        for value in 0..self.values.len() {
            for part in 0..self.values[value].parts.len() {
                let (server, share) = self.values[value].parts[part];
                let updated = before.updated.get(value).and_then(|parts| parts.get(part)).copied();
                // a server of the graph does one run after another; one of a store answers at once
                let waits = match self.job.strategy {
                    SimulatedStrategy::Ps => before.servers.get(server as usize).copied(),
                    _ => updated,
                };
                for (edge, bytes) in self.values[value].pulls.clone() {
                    for (at, arrivals) in arrivals.iter_mut().enumerate() {
                        if !self.workers[at].has_servers {
                            continue;
                        }
                        let (_, end) = self.send(at, server, false, bytes * share, waits);
                        arrivals.entry(edge).or_insert_with(Vec::new).push(end);
                    }
                }
            }
        }
        arrivals
    }

    /// The gradients on their way, and the updates: by value and part, then by server.
    fn pushes(&mut self, ends: &[Ends]) -> (Vec<Vec<ActivityId>>, Vec<ActivityId>) {
        let servers: Vec<ActivityId> =
            self.servers.iter().map(|_| self.engine.add(Activity::nothing())).collect();
        let mut updated = Vec::new();
        for value in 0..self.values.len() {
            let mut of_parts = Vec::new();
            for (server, share) in self.values[value].parts.clone() {
                let (class, queue) = self.servers[server as usize];
                let update = self.values[value].update.share(share);
                let is_worker = self.job.is_colocated;
                let update = self.cluster.update(class, update, queue, is_worker);
                let update = self.engine.add(update);
                for (edge, bytes) in self.values[value].pushes.clone() {
                    for (at, ends) in ends.iter().enumerate() {
                        let sent = self.sent(at, ends, edge);
                        let Some((ready, over)) = sent else { continue };
                        let (left, end) = self.send(at, server, true, bytes * share, Some(ready));
                        self.engine.order(left, over);
                        self.engine.order(end, update);
                    }
                }
                self.engine.order(update, servers[server as usize]);
                of_parts.push(update);
            }
            updated.push(of_parts);
        }
        (updated, servers)
    }

    /// The two ends of the Send of an edge at some workers, who have to do with servers.
    fn sent(&self, at: usize, ends: &Ends, edge: EdgeId) -> Option<(ActivityId, ActivityId)> {
        let Workers { has_servers, .. } = self.workers[at];
        let send = self.job.plan.edges[edge.index()].send;
        ends.get(&send).filter(|_| has_servers).copied()
    }

    /// Messages between some workers and a server, once `ready` is over: when they have left, and arrived.
    fn send(
        &mut self,
        at: usize,
        server: u32,
        is_push: bool,
        bytes: f64,
        ready: Option<ActivityId>,
    ) -> (ActivityId, ActivityId) {
        let Workers { class, count, buses, .. } = self.workers[at];
        let machines = self.cluster.classes[class].machines;
        let server_class = self.servers[server as usize].0;
        // it comes to one of a machine, who sends it on; that this one first ends its kernel is left out; fits: below 2^53
        let is_far = server_class != class && bytes >= RELAYED_BYTES_MIN as f64;
        let is_sent_on = !is_push && is_far && count > 1 && self.cluster.sends_on(self.job);
        let count = if is_sent_on { 1 } else { count };
        let worker = End { class, count, is_worker: true };
        let far = End { class: server_class, count: count * machines, is_worker: false };
        let ends = if is_push { (worker, far) } else { (far, worker) };
        let engine = &mut self.engine;
        let queue = *self.channels.entry((at, server, is_push)).or_insert_with(|| engine.queue());
        let exchange = self.job.exchange;
        let transfer = engine.add(self.cluster.transfer(ends, bytes, exchange, queue));
        let (mut first, mut last) = (transfer, transfer);
        if is_sent_on {
            let others = self.workers[at].count - 1;
            let sent_on = engine.add(self.cluster.sent_on(worker, bytes, others));
            engine.order(last, sent_on);
            last = sent_on;
        }
        let [to_device, from_device] = buses;
        let crossing = self.cluster.crossing(ends.0, bytes, true, from_device);
        for stage in self.cluster.stages(ends.0, bytes, exchange, true).into_iter().chain(crossing)
        {
            let then = first;
            first = engine.add(stage);
            engine.order(first, then);
        }
        let crossing = self.cluster.crossing(ends.1, bytes, false, to_device);
        for stage in self.cluster.stages(ends.1, bytes, exchange, false).into_iter().chain(crossing)
        {
            let earlier = last;
            last = engine.add(stage);
            engine.order(earlier, last);
        }
        if let Some(ready) = ready {
            engine.order(ready, first);
        }
        (transfer, last)
    }
}

/// What is left of a worker's step when its updates are taken off it, by [`cost::work`]. What its part does not update
/// the servers do, or another would: as often, all its variables are.
fn second_of_work(job: &SimulatedJob<'_>, cluster: &Cluster<'_>, class: usize, part: usize) -> f64 {
    let graph = &job.plan.parts[part].graph;
    let nodes = &job.plan.runs[TRAIN].nodes[part];
    let kernels = nodes.iter().filter(|id| update(cluster, graph, **id).is_none());
    let kernels: f64 = kernels.map(|id| cost::work(graph, *id)).sum();
    let updates_s: f64 = (0..job.plan.parts.len())
        .filter(|at| *at == part || job.plan.parts[*at].task.job == Role::Server)
        .flat_map(|at| job.plan.runs[TRAIN].nodes[at].iter().map(move |id| (at, *id)))
        .filter_map(|(at, id)| update(cluster, &job.plan.parts[at].graph, id))
        .map(|update| cluster.own_update_s(Update { folded: 0.0, ..update }))
        .sum();
    let busy_s = job.busy_s(cluster.network, cluster.threads(class));
    (busy_s - updates_s).max(0.0) / kernels.max(1.0)
}

/// What a node takes that updates variables. None: it does not, or an accelerator does it, of which nobody has said how
/// fast it is at that, nor what it saves when the cores of servers update.
fn update(cluster: &Cluster<'_>, graph: &Graph, id: NodeId) -> Option<Update> {
    let node = graph.node(id);
    let mutated = node.op.mutated_inputs();
    if !node.op.is_update() || cluster.network.machine.accelerators > 0 {
        return None;
    }
    let bytes = |input: &tensorwire_graph::Output| cost::bytes(graph.fact(*input));
    let (state, gradients) = node.inputs.split_at(mutated);
    let touched = 2.0 * state.iter().map(bytes).sum::<f64>() + gradients.first().map_or(0.0, bytes);
    Some(Update { touched, folded: gradients.iter().skip(1).map(bytes).sum() })
}

/// What crosses between a worker that has to do with servers and the servers, by variable.
fn values(job: &SimulatedJob<'_>) -> Result<Vec<Value>, SimulateError> {
    let SimulatedJob { plan, .. } = *job;
    let run: HashSet<(usize, NodeId)> = (0..plan.parts.len())
        .flat_map(|part| plan.runs[TRAIN].nodes[part].iter().map(move |id| (part, *id)))
        .collect();
    for edge in &plan.edges {
        if run.contains(&(edge.from, edge.send)) && edge.bytes().is_none() {
            return Err(SimulateError::Dynamic { tensor: edge.name.clone() });
        }
    }
    // fits: sizes of tensors
    let bytes = |edge: EdgeId| plan.edges[edge.index()].bytes().unwrap_or_default() as f64;
    let mut values = Vec::new();
    for (at, part) in plan.parts.iter().enumerate() {
        if part.task.job != Role::Server {
            continue;
        }
        for id in &plan.runs[TRAIN].nodes[at] {
            let node = part.graph.node(*id);
            let mutated = node.op.mutated_inputs();
            let Some(variable) = node.inputs.first().filter(|_| node.op.is_update()) else {
                continue;
            };
            let is_pull = |op: &Op| op.is_send();
            let pulls = part
                .graph
                .nodes()
                .filter(|(_, n)| is_pull(&n.op) && n.inputs.first() == Some(variable));
            let edge = |id: NodeId| part.graph.node(id).op.edge();
            let of_master = |edge: &EdgeId| {
                let edge = &plan.edges[edge.index()];
                run.contains(&(edge.from, edge.send)) && [edge.from, edge.to].contains(&job.master)
            };
            let with_bytes = |edge: EdgeId| (edge, bytes(edge));
            let pulls: Vec<_> =
                pulls.filter_map(|(id, _)| edge(id)).filter(of_master).map(with_bytes).collect();
            let pushes = node.inputs[mutated..].iter().filter_map(|input| edge(input.node));
            let pushes: Vec<_> = pushes.filter(of_master).map(with_bytes).collect();
            let state: f64 = node.inputs[..mutated]
                .iter()
                .map(|input| cost::bytes(part.graph.fact(*input)))
                .sum();
            let pushed: f64 = pushes.iter().map(|(_, bytes)| bytes).sum();
            let size = Size { index: values.len(), server: part.task.index };
            let others = f64::from(job.masters()) - 1.0;
            values.push(Value {
                parts: parts(job, &part.graph, *variable, size),
                update: Update { touched: 2.0 * state + pushed, folded: pushed * others },
                pulls,
                pushes,
            });
        }
    }
    Ok(values)
}

/// Where the plan has put a value, and which one it is.
struct Size {
    index: usize,
    server: u32,
}

/// Which servers hold which shares of a value.
fn parts(
    job: &SimulatedJob<'_>,
    graph: &Graph,
    variable: tensorwire_graph::Output,
    Size { index, server }: Size,
) -> Vec<(u32, f64)> {
    if job.strategy == SimulatedStrategy::Ps {
        return vec![(server, 1.0)];
    }
    let fact = graph.fact(variable);
    // fits: the size of a tensor
    let elements = cost::bytes(fact) as usize / fact.dtype.bytes().max(1);
    let spec = ValueSpec::dense(fact.dtype, elements);
    let partition = Partition::new(job.servers.max(1), BIG_ELEMENTS);
    // no model has as many variables as there are keys
    let found = partition.shards(Key(index as u64), &spec).unwrap_or_default();
    // fits: far below 2^53
    let share = |rows: usize| rows as f64 / elements.max(1) as f64;
    found.into_iter().map(|part| (part.server as u32, share(part.rows.len()))).collect()
}

/// The training step's nodes of a plan's parts, for those who look for some of them.
pub(crate) fn has_training_run(plan: &Plan) -> bool {
    plan.runs.len() > TRAIN
}
