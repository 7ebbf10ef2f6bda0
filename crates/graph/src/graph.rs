//! Nodes, and where a node is to run.

use std::collections::HashMap;
use std::fmt;

use tensorwire_tensor::{Fact, Symbol, TensorSpec};

use crate::error::GraphError;
use crate::op::{Init, Op};
use crate::pass::infer::infer;
use tensorwire_base::Space;

pub(crate) use crate::output::{NodeId, Output};

/// The two kinds of processes that a graph is partitioned over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Job {
    Worker,
    Server,
}

/// One process of a job: `/worker:1`, `/server:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    pub job: Job,
    pub index: u32,
}

/// Where a node would like to be; [`crate::place`] turns it into a [`Task`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// State that all replicas share, or a mean of what they have: [`crate::Placement`] says how servers get it.
    Shared,
    /// Part of one worker's replica, on the first of its devices if there are any.
    Replica(u32),
    /// Part of one worker's replica, on this one of its devices.
    Device { replica: u32, device: u32 },
    /// On this task, whichever replica it is part of: the replicas of a data-parallel job all have it there. A graph
    /// that one process computes has it in that process.
    Task(Task),
    /// Wherever that node is.
    With(NodeId),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub op: Op,
    pub inputs: Vec<Output>,
    /// Nodes that must be done before this one starts, though it takes no tensor from them.
    pub controls: Vec<NodeId>,
    pub hint: Hint,
    pub task: Option<Task>,
    /// What is known of each output.
    pub facts: Vec<Fact>,
    /// Which rows it has of a variable that was split over servers, or changes there.
    pub piece: Option<Piece>,
    /// Where it computes, and where its outputs lie. Planning says so.
    pub space: Space,
}

/// Some rows of a variable that lies on several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name that the node has where it is not split.
    pub of: String,
    /// The first of its rows, an index into the whole variable's first dimension.
    pub first_row: usize,
}

/// A data-flow graph. Nodes are in an order in which inputs precede their users.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    by_name: HashMap<String, NodeId>,
    /// Symbols handed out.
    symbols: u32,
}

impl Task {
    /// `/worker:index`, counted from 0.
    pub const fn worker(index: u32) -> Task {
        Task { job: Job::Worker, index }
    }

    /// `/server:index`, counted from 0.
    pub const fn server(index: u32) -> Task {
        Task { job: Job::Server, index }
    }
}

impl Graph {
    pub fn new() -> Graph {
        Graph::default()
    }

    /// An empty graph that hands out symbols where `other` stopped.
    pub(crate) fn continued(other: &Graph) -> Graph {
        Graph { symbols: other.symbols, ..Graph::default() }
    }

    /// Adds a node and infers the facts of its outputs.
    ///
    /// # Errors
    /// When the inputs do not fit the operator, or the name is taken.
    pub fn add(
        &mut self,
        name: &str,
        hint: Hint,
        op: Op,
        inputs: &[Output],
    ) -> Result<NodeId, GraphError> {
        let mut facts = Vec::with_capacity(inputs.len());
        for input in inputs {
            let unknown = || GraphError::UnknownOutput { node: name.to_string() };
            facts.push(self.try_fact(*input).ok_or_else(unknown)?.clone());
        }
        let facts = infer(name, &op, &facts)?;
        let inputs = inputs.to_vec();
        let name = name.to_string();
        let (controls, task, piece, space) = (Vec::new(), None, None, Space::Host);
        self.push(Node { name, op, inputs, controls, hint, task, facts, piece, space })
    }

    /// Adds a node as it is, its facts included.
    ///
    /// # Errors
    /// When the name is taken.
    pub(crate) fn push(&mut self, node: Node) -> Result<NodeId, GraphError> {
        // fits: 2^32 nodes of over a hundred bytes exceed any memory this runs in
        let id = NodeId(self.nodes.len() as u32);
        if self.by_name.insert(node.name.clone(), id).is_some() {
            return Err(GraphError::DuplicateName { name: node.name });
        }
        self.nodes.push(node);
        Ok(id)
    }

    /// The variable of this name, declared on first use and shared from then on.
    ///
    /// # Errors
    /// When it was declared with another spec or initialiser.
    pub fn variable(
        &mut self,
        name: &str,
        spec: TensorSpec,
        init: Init,
    ) -> Result<Output, GraphError> {
        self.variable_at(name, Hint::Shared, spec, init)
    }

    /// As [`Graph::variable`], of whoever `hint` says.
    ///
    /// # Errors
    /// As above.
    pub fn variable_at(
        &mut self,
        name: &str,
        hint: Hint,
        spec: TensorSpec,
        init: Init,
    ) -> Result<Output, GraphError> {
        let op = Op::Variable { spec, init };
        let words = |op: &Op| match op {
            Op::Variable { spec, init } => format!("{spec} with first values {init:?}"),
            other => other.name().to_string(),
        };
        match self.find(name) {
            None => self.add(name, hint, op, &[]).map(Output::from),
            Some(id) if self.node(id).op == op => Ok(id.into()),
            Some(id) => Err(GraphError::VariableRedeclared {
                name: name.to_string(),
                first: words(&self.node(id).op),
                second: words(&op),
            }),
        }
    }

    /// A name for a dimension that is known only when its tensor exists. Use one symbol wherever the
    /// sizes are equal, for example for the rows of a batch and of its labels.
    pub fn symbol(&mut self) -> Symbol {
        self.symbols += 1;
        Symbol(self.symbols - 1)
    }

    /// Makes `node` wait for `before`.
    pub fn control(&mut self, before: NodeId, node: NodeId) {
        let controls = &mut self.nodes[node.index()].controls;
        if !controls.contains(&before) {
            controls.push(before);
        }
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// What is known of an output.
    pub fn fact(&self, output: Output) -> &Fact {
        &self.nodes[output.node.index()].facts[output.index as usize]
    }

    pub(crate) fn try_fact(&self, output: Output) -> Option<&Fact> {
        self.nodes.get(output.node.index())?.facts.get(output.index as usize)
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The node of this name, or those that it was split into.
    pub fn find_all(&self, name: &str) -> Vec<NodeId> {
        let is_piece = |node: &Node| node.piece.as_ref().is_some_and(|piece| piece.of == name);
        match self.find(name) {
            Some(whole) => vec![whole],
            None => self.nodes().filter(|(_, n)| is_piece(n)).map(|(id, _)| id).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.ids().zip(self.nodes.iter())
    }

    /// The nodes that a node waits for: inputs and controls, each named once.
    pub fn predecessors(&self, id: NodeId) -> Vec<NodeId> {
        let node = self.node(id);
        let inputs = node.inputs.iter().map(|input| input.node);
        let mut before: Vec<NodeId> = inputs.chain(node.controls.iter().copied()).collect();
        before.sort_unstable();
        before.dedup();
        before
    }

    /// For each node, the nodes that wait for it.
    pub fn successors(&self) -> Vec<Vec<NodeId>> {
        let mut after = vec![Vec::new(); self.len()];
        for id in self.ids() {
            for before in self.predecessors(id) {
                after[before.index()].push(id);
            }
        }
        after
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Job::Worker => write!(f, "worker {}", self.index),
            Job::Server => write!(f, "server {}", self.index),
        }
    }
}
