//! Placement: every node gets a task. A replica's nodes go to its worker, an update to its variable, what the user has
//! pinned to where he wants it. Variables go to the servers (or the workers, where those are servers too) by bytes, large
//! ones split by rows, or round-robin (Xue et al. §5.2).

pub(super) mod balance;
pub(super) mod split;

use std::collections::{HashMap, HashSet};

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Job, NodeId, Task};
use crate::op::Op;
use balance::{Balance, Shares, round_robin};
use split::split;

/// How servers get the variables that all replicas share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// By bytes: the largest variables first, each to the server that holds least. One that would bring a server above
    /// its equal share, and is larger than `split_above` bytes ([`Placement::SPLIT_ABOVE`] unless given; a training job
    /// whose processes share memory gives more), is split by rows, if only workers read it and its update goes element
    /// by element.
    Balanced { split_above: Option<usize> },
    /// One after another, in the order in which they are declared (Xue et al. §5.2).
    RoundRobin,
}

impl Placement {
    /// Below so many bytes a second write costs more than balance gains.
    pub const SPLIT_ABOVE: usize = 4 << 20;
}

impl Default for Placement {
    fn default() -> Placement {
        Placement::Balanced { split_above: None }
    }
}

/// The processes that a graph is spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// One process computes everything, all replicas included.
    Local,
    /// Each worker a replica, the variables on the servers.
    ParameterServers { workers: u32, servers: u32 },
    /// Each worker a replica and a part of the variables: every worker is a server, too.
    Colocated { workers: u32 },
    /// Each worker a replica and variables of its own.
    Workers { workers: u32 },
}

impl Cluster {
    /// All tasks, workers first: a task's place in this list is its rank.
    pub fn tasks(self) -> Vec<Task> {
        let (workers, servers) = match self {
            Cluster::Local => (1, 0),
            Cluster::ParameterServers { workers, servers } => (workers, servers),
            Cluster::Workers { workers } | Cluster::Colocated { workers } => (workers, 0),
        };
        (0..workers).map(Task::worker).chain((0..servers).map(Task::server)).collect()
    }

    /// The tasks that hold the variables which all replicas share.
    fn holders(self) -> Vec<Task> {
        match self {
            Cluster::Local => vec![Task::worker(0)],
            Cluster::ParameterServers { servers, .. } => (0..servers).map(Task::server).collect(),
            Cluster::Colocated { workers } => (0..workers).map(Task::worker).collect(),
            Cluster::Workers { .. } => Vec::new(),
        }
    }
}

/// The same graph with a task at every node. Of a variable that is split, [`Graph::find_all`] finds the pieces of its
/// update; its own name is that of the whole at the first worker. Where nothing is split, nodes keep their ids.
///
/// # Errors
/// When the cluster lacks what the graph needs, or has more servers than there are variables and rows to hold.
pub fn place(graph: &Graph, cluster: Cluster, placement: Placement) -> Result<Graph, GraphError> {
    let workers = match cluster {
        Cluster::Local => {
            let mut placed = graph.clone();
            graph.ids().for_each(|id| placed.node_mut(id).task = Some(Task::worker(0)));
            return Ok(placed);
        }
        Cluster::ParameterServers { workers, .. }
        | Cluster::Colocated { workers }
        | Cluster::Workers { workers } => workers,
    };
    if workers == 0 {
        return Err(GraphError::EmptyCluster { what: "worker" });
    }
    let tasks = cluster.tasks();
    let fixed = fixed(graph, workers, &tasks)?;
    let shared: Vec<NodeId> =
        graph.nodes().filter(|(_, node)| node.hint == Hint::Shared).map(|(id, _)| id).collect();
    let holders = cluster.holders();
    if holders.is_empty() && (is_served(cluster) || !shared.is_empty()) {
        return Err(GraphError::EmptyCluster { what: "server" });
    }
    let shares = match placement {
        _ if holders.is_empty() => HashMap::new(),
        Placement::Balanced { split_above } => {
            let split_above = split_above.unwrap_or(Placement::SPLIT_ABOVE);
            Balance { graph, fixed: &fixed, holders: &holders, split_above }.of(&shared)
        }
        Placement::RoundRobin => round_robin(&shared, &holders),
    };
    if let Cluster::ParameterServers { servers, .. } = cluster {
        each_holds_something(graph, servers, &shares)?;
    }
    let mut placed = graph.clone();
    for id in graph.ids() {
        let task = match (graph.node(id).hint, fixed[id.index()], shares.get(&id)) {
            (_, Some(task), _) => Some(task),
            (_, None, Some(shares)) => shares.first().map(|share| share.holder),
            (Hint::With(other), None, None) => placed.node(other).task,
            (_, None, None) => None,
        };
        placed.node_mut(id).task = task;
    }
    match shares.values().any(|shares| shares.len() > 1) {
        true => split(&placed, &shares, tasks[0]),
        false => Ok(placed),
    }
}

/// By node: its task, where that does not depend on which server gets a variable.
fn fixed(graph: &Graph, workers: u32, tasks: &[Task]) -> Result<Vec<Option<Task>>, GraphError> {
    let mut fixed: Vec<Option<Task>> = Vec::with_capacity(graph.len());
    for (id, node) in graph.nodes() {
        let name = || node.name.clone();
        fixed.push(match node.hint {
            Hint::Shared => None,
            Hint::Replica(replica) | Hint::Device { replica, .. } if replica < workers => {
                Some(Task::worker(replica))
            }
            Hint::Replica(replica) | Hint::Device { replica, .. } => {
                return Err(GraphError::NoSuchWorker { node: name(), replica, workers });
            }
            Hint::Task(task) if tasks.contains(&task) => Some(task),
            Hint::Task(task) => {
                return Err(GraphError::NoSuchTask { node: name(), task, tasks: list(tasks) });
            }
            Hint::With(other) if other < id => fixed[other.index()],
            Hint::With(_) => {
                let what = "is to be placed with a node that comes after it".to_string();
                return Err(GraphError::Invalid { node: name(), what });
            }
        });
    }
    Ok(fixed)
}

/// Refuses servers that nothing is left for. Where there are variables enough, one without any is the choice of whoever
/// pinned them all to others.
fn each_holds_something(graph: &Graph, servers: u32, shares: &Shares) -> Result<(), GraphError> {
    let variables = graph.nodes().filter(|(_, node)| is_variable(&node.op));
    let (mut shared, mut pinned) = (0, Vec::new());
    for (_, node) in variables {
        match node.hint {
            Hint::Shared => shared += 1,
            Hint::Task(Task { job: Job::Server, index }) => pinned.push(index),
            _ => {}
        }
    }
    if shared + pinned.len() >= servers as usize {
        return Ok(());
    }
    let holders = shares.values().flatten().map(|share| share.holder.index).chain(pinned);
    let holders: HashSet<u32> = holders.collect();
    // fits: no more than servers
    match holders.len() as u32 {
        used if used < servers => Err(GraphError::IdleServers { servers, used }),
        _ => Ok(()),
    }
}

/// True if it has servers, be there none.
fn is_served(cluster: Cluster) -> bool {
    matches!(cluster, Cluster::ParameterServers { .. })
}

fn is_variable(op: &Op) -> bool {
    matches!(op, Op::Variable { .. })
}

/// What there is of each job, as errors put it.
fn list(tasks: &[Task]) -> String {
    let of = |job: Job| match tasks.iter().filter(|task| task.job == job).count() {
        0 => None,
        1 => Some(Task { job, index: 0 }.to_string()),
        // fits: as many as tasks
        count => {
            let one = Task { job, index: 0 }.to_string();
            Some(format!("{} to {}", one.replacen(' ', "s ", 1), count - 1))
        }
    };
    let all: Vec<String> = [Job::Worker, Job::Server].into_iter().filter_map(of).collect();
    all.join(" and ")
}
