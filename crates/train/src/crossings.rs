//! What crosses between the processes of a job in a training step, whoever carries it: edges of the graph, values of a
//! store, vectors of a group.

use std::collections::VecDeque;

use tensorwire_graph::{
    Crossing, Edge, Graph, Lane, ModelLayer, NodeId, Op, Plan, SendFrom, Task, Transfer, What,
    layer_of,
};
use tensorwire_kvstore::{StoreError, TransferMode};
use tensorwire_nn::Program;

use crate::group::is_of_group;
use crate::job::{Prepared, StoreValue};
use crate::topology::{Topology, Weights};

/// What the link of a process carries in a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLoad {
    pub task: Task,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl LinkLoad {
    /// Returns what it carries both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_sent + self.bytes_received
    }
}

/// Nodes between a received tensor and the update that it is for, at most.
const HOPS_MAX: usize = 6;

/// True if what groups of workers reduce crosses over edges of a plan: none of it is a group's.
pub(crate) fn reduces_by_edges(topology: &Topology, plan: &Plan) -> bool {
    let mut nodes = plan.parts.iter().flat_map(|part| part.graph.nodes());
    let has_vectors = nodes.any(|(_, node)| node.op.vector().is_some());
    topology.is_grouped() && !plan.edges.is_empty() && !has_vectors
}

impl Prepared {
    /// The layers of the model, in the order of declaration.
    pub fn model_layers(&self) -> Vec<ModelLayer> {
        let mut layers: Vec<ModelLayer> = Vec::new();
        for variable in self.program.weights() {
            // fits: sizes in memory
            let (name, bytes) = (layer_of(&variable.name), variable.spec.bytes() as u64);
            match layers.iter_mut().find(|layer| layer.name == name) {
                Some(layer) => {
                    layer.variables += 1;
                    layer.bytes += bytes;
                }
                None => layers.push(ModelLayer { name: name.to_string(), variables: 1, bytes }),
            }
        }
        layers
    }

    /// What crosses in a training step. Where each worker trains at its own pace, what crosses for one of them.
    ///
    /// # Errors
    /// Never: a model has far fewer variables than there are keys of a store.
    pub fn crossings(&self) -> Result<Vec<Crossing>, StoreError> {
        let mut crossings = Vec::new();
        if self.topology.is_grouped() {
            crossings.extend(self.vectors());
        }
        if self.topology.has_store() {
            crossings.extend(self.pushes_and_pulls()?);
        }
        let is_one_graph =
            !self.topology.has_store() && self.topology.weights != Weights::Replicated;
        if is_one_graph || self.reduces_by_edges() {
            // what crosses to a store and from it is told above
            let is_told = |edge: &&Edge| is_one_graph || is_of_group(&self.plan, edge);
            crossings.extend(self.edge_crossings(self.sent_in_training().filter(is_told)));
        }
        Ok(crossings)
    }

    /// What the links of those who hold variables for others carry in a training step, if each process had a host of its own:
    /// of servers, or of workers that hold a share each. By the plan of the hosts that there are, where a host's workers send on to each
    /// other what came to one of them. Empty where nobody holds any, and where weights are averaged now and then.
    /// Tensors whose size is known only when they exist are not counted.
    ///
    /// # Errors
    /// As [`Prepared::crossings`].
    pub fn link_loads(&self) -> Result<Vec<LinkLoad>, StoreError> {
        let topology = &self.topology;
        let has_store = topology.has_store();
        let holders: Vec<Task> = match topology.servers {
            _ if topology.averaging.is_some() => Vec::new(),
            _ if !has_store && topology.weights != Weights::Servers => Vec::new(),
            0 => (0..topology.workers).map(Task::worker).collect(),
            servers => (0..servers).map(Task::server).collect(),
        };
        let none = |task| LinkLoad { task, bytes_sent: 0, bytes_received: 0 };
        let mut loads: Vec<LinkLoad> = holders.into_iter().map(none).collect();
        let mut count = |task: Task, sent: u64, received: u64| {
            if let Some(load) = loads.iter_mut().find(|load| load.task == task) {
                load.bytes_sent += sent;
                load.bytes_received += received;
            }
        };
        if has_store {
            let values = self.store_values()?.into_iter();
            // rows are counted when they exist
            let of_known_size = values.filter(|value| value.spec.columns == 1);
            for StoreValue { spec, shards, .. } in of_known_size {
                for shard in shards {
                    // fits: sizes in memory, and servers are few
                    let bytes = (shard.rows.len() * spec.row_bytes()) as u64;
                    let bytes = bytes * u64::from(topology.groups);
                    count(Task::server(shard.server as u32), bytes, bytes);
                }
            }
            return Ok(loads);
        }
        for edge in self.sent_in_training() {
            // fits: sizes in memory
            let bytes = edge.bytes().unwrap_or_default() as u64;
            count(self.plan.parts[edge.from].task, bytes, 0);
            count(self.plan.parts[edge.to].task, 0, bytes);
        }
        Ok(loads)
    }

    /// The edges over which something is sent in a training step.
    fn sent_in_training(&self) -> impl Iterator<Item = &Edge> {
        let run = &self.plan.runs[Program::TRAIN.0];
        let is_sent = move |edge: &&Edge| run.nodes[edge.from].binary_search(&edge.send).is_ok();
        self.plan.edges.iter().filter(is_sent)
    }

    /// True if what groups of workers all-reduce crosses over edges of the plan, and stays in the memory of their devices.
    pub fn reduces_by_edges(&self) -> bool {
        reduces_by_edges(&self.topology, &self.plan)
    }

    /// The edges over which workers of a group give each other tensors. The plan of a job with a store has others, which the
    /// store serves.
    pub fn edges_of_groups(&self) -> impl Iterator<Item = &Edge> {
        let is_shown = self.reduces_by_edges();
        self.plan.edges.iter().filter(move |edge| is_shown && is_of_group(&self.plan, edge))
    }

    /// Edges of the graph as what crosses.
    pub fn edge_crossings<'a>(&self, edges: impl Iterator<Item = &'a Edge>) -> Vec<Crossing> {
        let plan = &self.plan;
        let tracer = Tracer::new(plan);
        let crossing = |edge: &Edge| {
            let (from, to) = (&plan.parts[edge.from], &plan.parts[edge.to]);
            let (layer, what) = match edge.transfer {
                Transfer::Signal => (self.layer_of_node(&edge.name), What::Signal),
                _ => tracer
                    .source(edge.from, edge.send)
                    .or_else(|| tracer.target(edge.to, edge.recv))
                    .unwrap_or_else(|| (self.layer_of_node(&edge.name), What::Tensor)),
            };
            Crossing {
                tensor: edge.name.clone(),
                layer,
                what,
                from: vec![from.task],
                to: vec![to.task],
                // fits: sizes in memory
                bytes: edge.bytes().map(|bytes| bytes as u64),
                how: self.how(edge),
                fact: edge.fact.to_string(),
                reason: self.reason(edge).to_string(),
                lies_at: where_it_lies(plan, edge),
                at: where_it_is_read(plan, edge),
                reuse: edge.reuse.to_string(),
            }
        };
        edges.map(crossing).collect()
    }

    /// Why an edge crosses so, for people.
    fn reason(&self, edge: &Edge) -> &'static str {
        match edge.transfer {
            // nobody writes
            Transfer::Write(_) if self.config.exchange.is_by_message() => "size known",
            transfer => transfer.reason(),
        }
    }

    /// How an edge crosses, in a word.
    fn how(&self, edge: &Edge) -> String {
        match (self.plan.send_from, edge.transfer) {
            _ if self.config.exchange.is_by_message() => {
                format!("a message, {}", self.config.exchange.name())
            }
            (SendFrom::Staging, Transfer::Write(_)) => "a copy, one write".to_string(),
            (_, Transfer::Dynamic) => "dynamic".to_string(),
            (_, transfer) => transfer.to_string(),
        }
    }

    /// What each group of workers reduces and broadcasts: the same in each.
    fn vectors(&self) -> Vec<Crossing> {
        let part = &self.plan.parts[0];
        let tracer = Tracer::new(&self.plan);
        let mut vectors = Vec::new();
        for (id, node) in part.graph.nodes() {
            let (Some(vector), Some(spot)) = (node.op.vector(), part.memory.spot(id.into())) else {
                continue;
            };
            let made = node.inputs.first().map(|input| &part.graph.node(input.node).name);
            let tensor = made.unwrap_or(&node.name).clone();
            let is_reduced = matches!(node.op, Op::AllReduce { .. });
            let (what, how, reason) = match is_reduced {
                true if part.memory.is_in_place(id) => {
                    (What::AllReduce, "where it was made", "in place")
                }
                true => (What::AllReduce, "copied first", "its input is used again"),
                false => (What::Broadcast, "from the master", "the master alone has it"),
            };
            let known = match is_reduced {
                true => tracer.target(0, id),
                false => tracer.source(0, id),
            };
            let layer = known.map_or_else(|| self.layer_of_node(&tensor), |(layer, _)| layer);
            let crossing = |members: Vec<Task>| Crossing {
                tensor: tensor.clone(),
                layer: layer.clone(),
                what,
                from: members.clone(),
                to: members,
                // fits: sizes in memory
                bytes: Some(spot.spec.bytes() as u64),
                how: how.to_string(),
                fact: spot.spec.to_string(),
                reason: reason.to_string(),
                lies_at: format!("registered+{}", spot.offset),
                at: format!("registered+{}", spot.offset),
                reuse: String::new(),
            };
            let groups = (0..self.topology.groups).map(|group| self.members_of(group));
            vectors.extend(groups.map(|members| (vector, crossing(members))));
        }
        vectors.sort_by_key(|(vector, _)| *vector);
        vectors.into_iter().map(|(_, crossing)| crossing).collect()
    }

    /// The scope of any node: that of the variable that its name begins with, or as if it were a variable's.
    fn layer_of_node(&self, name: &str) -> String {
        let name = without_owner(name.trim_start_matches('^'));
        let scope = layer_of(name);
        let is_variable = self.program.weights().any(|variable| variable.name == scope);
        if is_variable { layer_of(scope) } else { scope }.to_string()
    }

    fn members_of(&self, group: u32) -> Vec<Task> {
        let groups = self.topology.groups.max(1) as usize;
        (group..self.config.workers).step_by(groups).map(Task::worker).collect()
    }

    /// What masters push to the store, and pull from it.
    fn pushes_and_pulls(&self) -> Result<Vec<Crossing>, StoreError> {
        let [pulled, pushed] = match (self.topology.averaging, self.topology.reduces_in_store) {
            (Some(_), _) => [What::Weights, What::Difference],
            (None, true) => [What::Gradient, What::Gradient],
            (None, false) => [What::Weights, What::Gradient],
        };
        let mut crossings = Vec::new();
        for value in self.store_values()? {
            let StoreValue { name, spec, shards, mode, .. } = &value;
            // fits: servers are few
            let servers: Vec<Task> =
                shards.iter().map(|shard| Task::server(shard.server as u32)).collect();
            let (how, reason) = match mode {
                TransferMode::PeerMapped => ("by reference", "memory shared"),
                TransferMode::Written => ("one write", "memory not shared"),
                TransferMode::InMessages => ("in messages", "small"),
            };
            let variable = self.program.weights().find(|variable| variable.name == *name);
            let fact = variable.map(|variable| variable.spec.to_string()).unwrap_or_default();
            for worker in (0..self.topology.groups).map(Task::worker) {
                let crossing = |what, from: &[Task], to: &[Task]| Crossing {
                    tensor: name.clone(),
                    layer: layer_of(name).to_string(),
                    what,
                    from: from.to_vec(),
                    to: to.to_vec(),
                    // fits: sizes in memory
                    bytes: Some(spec.bytes() as u64),
                    how: how.to_string(),
                    fact: fact.clone(),
                    reason: reason.to_string(),
                    lies_at: String::new(),
                    at: String::new(),
                    reuse: String::new(),
                };
                crossings.push(crossing(pulled, &servers, &[worker]));
                crossings.push(crossing(pushed, &[worker], &servers));
            }
        }
        Ok(crossings)
    }
}

/// Finds the variable that a tensor is of, also in another process.
struct Tracer<'a> {
    plan: &'a Plan,
    /// By part and node: the nodes that take something of it.
    users: Vec<Vec<Vec<NodeId>>>,
}

impl<'a> Tracer<'a> {
    fn new(plan: &'a Plan) -> Tracer<'a> {
        Tracer { plan, users: plan.parts.iter().map(|part| users(&part.graph)).collect() }
    }

    /// The variable whose value a node has or sends, if it is one: its layer.
    fn source(&self, part: usize, node: NodeId) -> Option<(String, What)> {
        let (mut part, mut at) = (part, node);
        for _ in 0..HOPS_MAX {
            let graph = &self.plan.parts[part].graph;
            let node = graph.node(at);
            match &node.op {
                Op::Variable { .. } => return Some((layer_of_variable(graph, at), What::Weights)),
                Op::Recv { edge, .. } => {
                    let edge = &self.plan.edges[edge.index()];
                    (part, at) = (edge.from, edge.send);
                }
                Op::Send { .. }
                | Op::SendDynamic { .. }
                | Op::Broadcast { .. }
                | Op::Cast { .. }
                | Op::CopyTo { .. }
                | Op::Reshape { .. }
                | Op::Rows { .. }
                | Op::Gather => at = node.inputs.first()?.node,
                _ => return None,
            }
        }
        None
    }

    /// The variable that a tensor changes, or whose rows it names: its layer.
    fn target(&self, part: usize, tensor: NodeId) -> Option<(String, What)> {
        let mut next = VecDeque::from([(part, tensor, 0)]);
        while let Some((part, at, hops)) = next.pop_front() {
            let graph = &self.plan.parts[part].graph;
            for &user in &self.users[part][at.index()] {
                let node = graph.node(user);
                let layer =
                    || node.inputs.first().map(|input| layer_of_variable(graph, input.node));
                match &node.op {
                    Op::Apply { .. } | Op::ApplyRows { .. } => {
                        return Some((layer()?, What::Gradient));
                    }
                    Op::ApplyAverage { .. } => return Some((layer()?, What::Statistics)),
                    Op::Gather if node.inputs.get(1).is_some_and(|input| input.node == at) => {
                        return Some((layer()?, What::Tensor));
                    }
                    Op::Send { edge } | Op::SendDynamic { edge } if hops < HOPS_MAX => {
                        let edge = &self.plan.edges[edge.index()];
                        next.push_back((edge.to, edge.recv, hops + 1));
                    }
                    Op::Cast { .. }
                    | Op::CopyTo { .. }
                    | Op::Reshape { .. }
                    | Op::Rows { .. }
                    | Op::Join
                    | Op::Dequantize { .. }
                    | Op::ScatterElements { .. }
                    | Op::AllReduce { .. }
                    | Op::Mean
                    | Op::Add
                    | Op::AddRows
                    | Op::Scale { .. }
                    | Op::ScaleBy
                        if hops < HOPS_MAX =>
                    {
                        next.push_back((part, user, hops + 1));
                    }
                    _ => {}
                }
            }
        }
        None
    }
}

/// The nodes that take something of each node.
fn users(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut users = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for input in &node.inputs {
            users[input.node.index()].push(id);
        }
    }
    users
}

/// The layer of a variable, of a piece of one, or of what was made of one.
fn layer_of_variable(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let whole = node.piece.as_ref().map_or(&node.name, |piece| &piece.of);
    layer_of(without_owner(whole)).to_string()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A name without the replica that it is of, and without `gradient`.
fn without_owner(name: &str) -> &str {
    let is_owner = |first: &str| {
        first
            .strip_prefix("replica")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut name = match name.split_once('/') {
        Some((first, rest)) if is_owner(first) => rest,
        _ => name,
    };
    // of one of its devices
    name = match name.split_once('/') {
        Some((first, rest)) if first.strip_prefix("device").is_some_and(is_number) => rest,
        _ => name,
    };
    for first in ["gradient/", "gradients/", "spread/", "mean/"] {
        name = name.strip_prefix(first).unwrap_or(name);
    }
    name
}

/// Where the sender's operator puts an edge's tensor.
fn where_it_lies(plan: &Plan, edge: &Edge) -> String {
    let part = &plan.parts[edge.from];
    let sent = part.graph.node(edge.send).inputs.first();
    let Some(spot) = sent.and_then(|sent| part.memory.spot(*sent)) else {
        return String::new();
    };
    let arena = match spot.lane {
        Lane::Registered => "registered",
        Lane::Private => "private",
        Lane::Device(_) => "device",
    };
    format!("{arena}+{}", spot.offset)
}

/// Where the receiver's next operator finds an edge's tensor.
fn where_it_is_read(plan: &Plan, edge: &Edge) -> String {
    let origin = plan.parts[edge.from].graph.node(edge.send).inputs.first();
    let origin = origin.and_then(|sent| plan.parts[edge.from].memory.spot(*sent));
    match (edge.transfer, plan.receive_offset(edge), origin) {
        (Transfer::Write(_), Some(offset), _) => format!("registered+{offset}"),
        (Transfer::Reference, _, Some(spot)) => format!("the sender's+{}", spot.offset),
        (Transfer::Dynamic, _, _) => {
            "registered, dynamic: allocated when its size is told".to_string()
        }
        _ => String::new(),
    }
}
