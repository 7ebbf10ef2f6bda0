//! What can be wrong with a graph. Each error names the node, so that a model's author finds the line.

use tensorwire_tensor::{Fact, ShapeError};

use crate::graph::Task;

/// Why a graph cannot be built, differentiated, placed or planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    #[error("node '{node}': {op} takes {wanted} inputs, {found} were given")]
    InputCount { node: String, op: &'static str, wanted: String, found: usize },
    #[error("node '{node}': {op} cannot take {found}: {wanted}", found = list(.found))]
    Mismatch { node: String, op: &'static str, found: Vec<Fact>, wanted: &'static str },
    #[error("node '{node}': {source}")]
    Shape { node: String, source: ShapeError },
    #[error("node '{node}' refers to an output that no earlier node has")]
    UnknownOutput { node: String },
    #[error("two nodes are named '{name}'")]
    DuplicateName { name: String },
    #[error(
        "variable '{name}' was declared as {first} and again as {second}; give what is another variable another name"
    )]
    VariableRedeclared { name: String, first: String, second: String },
    #[error("no gradient flows through {op} of node '{node}'")]
    NoGradient { node: String, op: &'static str },
    #[error("node '{node}': {op} refuses {found}: {why}", found = list(.found))]
    Refused { node: String, op: &'static str, found: Vec<Fact>, why: String },
    #[error("node '{node}': the {rule} of {op} panicked: {said}")]
    Panicked { node: String, op: &'static str, rule: &'static str, said: String },
    #[error("the loss '{node}' is {found}; a gradient starts at a scalar of floating point")]
    LossNotScalar { node: String, found: Fact },
    #[error(
        "of {servers} servers only {used} would hold a variable, or rows of one; take {used}, or split smaller variables by rows"
    )]
    IdleServers { servers: u32, used: u32 },
    #[error("a cluster needs at least one {what}")]
    EmptyCluster { what: &'static str },
    #[error("node '{node}' belongs to replica {replica}, the cluster has {workers} workers")]
    NoSuchWorker { node: String, replica: u32, workers: u32 },
    #[error(
        "node '{node}' is to be on {task}, which this cluster lacks; it has {tasks}. Pin the node to one of these, or \
         start more processes"
    )]
    NoSuchTask { node: String, task: Task, tasks: String },
    #[error("node '{node}' has no task; the graph must be placed before it is planned")]
    Unplaced { node: String },
    #[error("node '{node}' waits for itself: {cycle}")]
    Cycle { node: String, cycle: String },
    #[error("after pass '{pass}': {source}")]
    Broken { pass: &'static str, source: Box<GraphError> },
    #[error("node '{node}': {what}")]
    Invalid { node: String, what: String },
}

fn list(facts: &[Fact]) -> String {
    let facts: Vec<String> = facts.iter().map(Fact::to_string).collect();
    format!("({})", facts.join(", "))
}
