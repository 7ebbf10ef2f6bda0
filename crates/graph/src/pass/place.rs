//! Placement: every node gets a task. Variables go round-robin over the servers (Xue et al. §5.2),
//! a replica's nodes to its worker, an update to its variable, what the user has pinned to where he wants it.

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Job, NodeId, Task};
use crate::op::Op;

/// The processes that a graph is spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// One process computes everything, all replicas included.
    Local,
    /// Each worker a replica, the variables on the servers.
    ParameterServers { workers: u32, servers: u32 },
    /// Each worker a replica and variables of its own.
    Workers { workers: u32 },
}

impl Cluster {
    /// All tasks, workers first: a task's place in this list is its rank.
    pub fn tasks(self) -> Vec<Task> {
        let (workers, servers) = match self {
            Cluster::Local => (1, 0),
            Cluster::ParameterServers { workers, servers } => (workers, servers),
            Cluster::Workers { workers } => (workers, 0),
        };
        (0..workers).map(Task::worker).chain((0..servers).map(Task::server)).collect()
    }
}

/// The same graph with a task at every node.
///
/// # Errors
/// When the cluster lacks what the graph needs, or has more servers than there are variables.
pub fn place(graph: &Graph, cluster: Cluster) -> Result<Graph, GraphError> {
    let sizes = match cluster {
        Cluster::Local => None,
        Cluster::ParameterServers { workers, servers } => Some((workers, Some(servers))),
        Cluster::Workers { workers } => Some((workers, None)),
    };
    if let Some((0, _)) = sizes {
        return Err(GraphError::EmptyCluster { what: "worker" });
    }
    if let Some((_, Some(servers))) = sizes {
        // what is pinned to a server gives it something to hold, too
        let served = |hint| match hint {
            Hint::Shared => true,
            Hint::Task(task) => task.job == Job::Server,
            _ => false,
        };
        let variables = graph.nodes().filter(|(_, n)| is_variable(&n.op) && served(n.hint)).count();
        if servers == 0 {
            return Err(GraphError::EmptyCluster { what: "server" });
        }
        if servers as usize > variables {
            return Err(GraphError::MoreServersThanVariables { servers, variables });
        }
    }
    let mut placed = graph.clone();
    let tasks = cluster.tasks();
    let mut next_server = 0;
    for id in graph.ids() {
        let task = match sizes {
            None => Task::worker(0),
            Some((workers, servers)) => match graph.node(id).hint {
                Hint::Shared => {
                    let servers = servers.ok_or(GraphError::EmptyCluster { what: "server" })?;
                    next_server += 1;
                    Task::server((next_server - 1) % servers)
                }
                Hint::Replica(replica) if replica < workers => Task::worker(replica),
                Hint::Replica(replica) => {
                    let node = graph.node(id).name.clone();
                    return Err(GraphError::NoSuchWorker { node, replica, workers });
                }
                Hint::Task(task) if tasks.contains(&task) => task,
                Hint::Task(task) => {
                    let node = graph.node(id).name.clone();
                    return Err(GraphError::NoSuchTask { node, task, tasks: list(&tasks) });
                }
                Hint::With(other) => task_of(&placed, id, other)?,
            },
        };
        placed.node_mut(id).task = Some(task);
    }
    Ok(placed)
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
        count => Some(format!("{} to {}", Task { job, index: 0 }, count - 1)),
    };
    let all: Vec<String> = [Job::Worker, Job::Server].into_iter().filter_map(of).collect();
    all.join(" and ")
}

fn task_of(placed: &Graph, id: NodeId, other: NodeId) -> Result<Task, GraphError> {
    let unplaced = || GraphError::Invalid {
        node: placed.node(id).name.clone(),
        what: "is to be placed with a node that comes after it".to_string(),
    };
    placed.node(other).task.filter(|_| other < id).ok_or_else(unplaced)
}
