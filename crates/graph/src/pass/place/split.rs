//! A variable on several servers, or on several devices of a worker: each has some of its rows, with slots and an update of
//! its own. Workers join the rows to a whole where they come together, and send to each server, or device, the rows of the
//! gradient that it updates. Updates go element by element, so that the bits are those of the whole.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tensorwire_tensor::TensorSpec;

use super::balance::{Share, Shares};
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Piece, Task};
use crate::op::Op;
use crate::pass::infer::infer;
use crate::pass::rings::devices_of_mean;
use crate::pass::space::devices_of;
use tensorwire_base::Space;

/// What is split, and how.
#[derive(Debug, Default)]
pub(in crate::pass) struct Split<'a> {
    /// By variable, of several shares each.
    pub(in crate::pass) shares: HashMap<NodeId, &'a [Share]>,
    /// What is split as a variable is, besides what lies with it: at its own task, on the devices of the shares.
    pub(in crate::pass) along: HashMap<NodeId, NodeId>,
    /// By number of a vector that is split, and of the share: the number that its piece has.
    pub(in crate::pass) vectors: HashMap<(u32, usize), u32>,
    /// The task that variables are fetched to which all replicas share; others, and without it all, are where they are.
    pub(in crate::pass) first: Option<Task>,
}

/// The graph with every variable of several shares in as many pieces. `first` is the task that variables are fetched
/// to: the whole has the variable's name there.
pub(super) fn split(placed: &Graph, shares: &Shares, first: Task) -> Result<Graph, GraphError> {
    let several = shares.iter().filter(|(_, shares)| shares.len() > 1);
    let shares = several.map(|(id, shares)| (*id, &shares[..])).collect();
    Ok(Splitter::new(placed, Split { shares, first: Some(first), ..Split::default() }).all()?.out)
}

pub(in crate::pass) struct Splitter<'a> {
    placed: &'a Graph,
    split: Split<'a>,
    devices: Vec<u32>,
    /// Means over devices of a worker of which only rows are taken: they are made of rows.
    means: HashSet<NodeId>,
    pub(in crate::pass) out: Graph,
    /// What became of a node: itself, or a piece for each share.
    moved: HashMap<NodeId, Vec<NodeId>>,
    /// The whole of a variable at a task, on one of its devices.
    wholes: HashMap<(NodeId, Task, u32), Output>,
}

impl<'a> Splitter<'a> {
    pub(in crate::pass) fn new(placed: &'a Graph, split: Split<'a>) -> Splitter<'a> {
        let devices = devices_of(placed);
        let means = means_by_rows(placed, &devices, &split);
        Splitter {
            placed,
            split,
            devices,
            means,
            out: Graph::continued(placed),
            moved: HashMap::new(),
            wholes: HashMap::new(),
        }
    }

    /// Splits what is to be, and keeps all else.
    pub(in crate::pass) fn all(mut self) -> Result<Splitter<'a>, GraphError> {
        for id in self.placed.ids() {
            self.take(id)?;
        }
        Ok(self)
    }

    /// What became of a node: of a variable that was split the whole, where it was.
    pub(in crate::pass) fn moved(&self, id: NodeId) -> Vec<NodeId> {
        let first = self.first_of(self.placed.node(id));
        match first.and_then(|task| self.wholes.get(&(id, task, 0))) {
            Some(whole) => vec![whole.node],
            None => self.moved[&id].clone(),
        }
    }

    /// Where the whole of a variable has its name.
    fn first_of(&self, variable: &Node) -> Option<Task> {
        match variable.hint {
            Hint::Replica(_) => variable.task,
            _ => self.split.first.or(variable.task),
        }
    }

    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        if self.means.contains(&id) {
            return Ok(());
        }
        let node = self.placed.node(id);
        let home = match node.hint {
            // one for all variables, wherever it is
            _ if matches!(node.op, Op::ClipScale { .. }) => id,
            _ if self.split.along.contains_key(&id) => self.split.along[&id],
            Hint::With(other) => other,
            _ => id,
        };
        let Some(&shares) = self.split.shares.get(&home) else {
            return self.keep(id, node);
        };
        let is_along = self.split.along.contains_key(&id);
        // of rows of a variable, which may lie on several servers already
        let (of, first_row) = match &node.piece {
            Some(piece) => (&piece.of, piece.first_row),
            None => (&node.name, 0),
        };
        let mut pieces = Vec::with_capacity(shares.len());
        for (index, share) in shares.iter().enumerate() {
            let rows = share.rows.clone().unwrap_or_default();
            let op = match &node.op {
                Op::Variable { spec, init } => {
                    Op::Variable { spec: self.piece_of(spec, home, &rows)?, init: *init }
                }
                Op::AllReduce { vector } => {
                    let numbered = self.split.vectors.get(&(*vector, index));
                    Op::AllReduce { vector: *numbered.unwrap_or(vector) }
                }
                op => op.clone(),
            };
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for &input in &node.inputs {
                inputs.push(match self.moved.get(&input.node) {
                    // the variable and its slots have a piece here, too
                    Some(pieces) if pieces.len() > 1 => pieces[index].into(),
                    _ if self.placed.fact(input).dims.is_empty() => self.same(input),
                    _ => self.rows_of(input, &rows)?,
                });
            }
            let task = if is_along { node.task.unwrap_or(share.holder) } else { share.holder };
            let hint = match id == home || is_along {
                true => hint_of(task, share.device),
                false => Hint::With(self.moved[&home][index]),
            };
            let (start, end) = (first_row + rows.start, first_row + rows.end);
            let piece = Piece { of: of.clone(), first_row: start };
            let name = format!("{of}[{start}..{end}]");
            let made = Node { hint, piece: Some(piece), ..made(name, op, inputs, task) };
            pieces.push(self.push(made)?);
        }
        self.moved.insert(id, pieces);
        // what is some rows already is joined with the others
        match self.first_of(node).filter(|_| id == home && node.piece.is_none()) {
            Some(task) => self.whole(id, task, 0).map(|_| ()),
            None => Ok(()),
        }
    }

    /// A node that is not split, on what became of its inputs.
    fn keep(&mut self, id: NodeId, node: &Node) -> Result<(), GraphError> {
        let unplaced = || GraphError::Unplaced { node: node.name.clone() };
        let task = node.task.ok_or_else(unplaced)?;
        let at = (task, self.devices[id.index()]);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            match (self.split.shares.contains_key(&input.node), &self.moved[&input.node][..]) {
                _ if node.op == Op::Join => inputs.extend(self.joined(input, at)?),
                (true, _) => inputs.push(self.whole(input.node, task, at.1)?),
                (false, [_]) => inputs.push(self.same(input)),
                // sums of squares: those of all pieces, in the order of the rows
                (false, pieces) => inputs.extend(pieces.iter().map(|id| Output::from(*id))),
            }
        }
        let controls = node.controls.iter().flat_map(|id| self.moved[id].clone()).collect();
        let hint = match node.hint {
            Hint::With(other) => Hint::With(self.moved[&other][0]),
            hint => hint,
        };
        let kept = self.out.push(Node { inputs, controls, hint, ..node.clone() })?;
        self.moved.insert(id, vec![kept]);
        Ok(())
    }

    /// What a variable or a slot of it has at a server.
    fn piece_of(
        &self,
        spec: &TensorSpec,
        home: NodeId,
        rows: &Range<usize>,
    ) -> Result<TensorSpec, GraphError> {
        let mut dims = spec.dims().to_vec();
        // a slot may be one number for the whole variable, and is one for each piece then
        if let Some(first) = dims.first_mut() {
            *first = rows.len();
        }
        TensorSpec::new(spec.dtype, &dims).map_err(|source| GraphError::Shape {
            node: self.placed.node(home).name.clone(),
            source,
        })
    }

    /// The rows of a gradient, where it is made.
    fn rows_of(&mut self, of: Output, rows: &Range<usize>) -> Result<Output, GraphError> {
        let node = self.placed.node(of.node);
        let index = if of.index == 0 { String::new() } else { format!(":{}", of.index) };
        let name = format!("{}{index}[{}..{}]", node.name, rows.start, rows.end);
        if let Some(there) = self.out.find(&name) {
            return Ok(there.into());
        }
        let unplaced = || GraphError::Unplaced { node: node.name.clone() };
        let task = node.task.ok_or_else(unplaced)?;
        if self.means.contains(&of.node) {
            let mut parts = Vec::with_capacity(node.inputs.len());
            for &part in &node.inputs {
                parts.push(self.rows_of(part, rows)?);
            }
            let made = Node { hint: node.hint, ..made(name, Op::Mean, parts, task) };
            return Ok(self.push(made)?.into());
        }
        let from = self.same(of);
        let op = Op::Rows { start: rows.start, length: rows.len() };
        let made = Node { hint: Hint::With(from.node), ..made(name, op, vec![from], task) };
        Ok(self.push(made)?.into())
    }

    /// All of a variable at a task, on one of its devices.
    fn whole(&mut self, variable: NodeId, task: Task, device: u32) -> Result<Output, GraphError> {
        if let Some(whole) = self.wholes.get(&(variable, task, device)) {
            return Ok(*whole);
        }
        let node = self.placed.node(variable);
        let name = match self.first_of(node) == Some(task) {
            true => node.name.clone(),
            false => format!("{} at {task}", node.name),
        };
        let name = if device == 0 { name } else { format!("{name} on device {device}") };
        let pieces = self.joined(variable.into(), (task, device))?;
        let hint = hint_of(task, device);
        let whole = Output::from(self.push(Node { hint, ..made(name, Op::Join, pieces, task) })?);
        self.wholes.insert((variable, task, device), whole);
        Ok(whole)
    }

    /// What became of something that is joined on a device of a task: what is received there, copied from another device, or of a
    /// variable that lies there a copy.
    fn joined(&mut self, of: Output, at: (Task, u32)) -> Result<Vec<Output>, GraphError> {
        let node = self.placed.node(of.node);
        let here = |task: Option<Task>, device| (task, device) == (Some(at.0), at.1);
        let is_state = matches!(node.op, Op::Variable { .. });
        let Some(&shares) = self.split.shares.get(&of.node) else {
            let same = self.same(of);
            let is_here = is_state && here(node.task, self.devices[of.node.index()]);
            return Ok(vec![if is_here { self.copied(same.node, at)? } else { same }]);
        };
        let mut pieces = Vec::with_capacity(shares.len());
        for (share, id) in shares.iter().zip(self.moved[&of.node].clone()) {
            let is_here = here(Some(share.holder), share.device);
            pieces.push(if is_here { self.copied(id, at)? } else { id.into() });
        }
        Ok(pieces)
    }

    fn copied(&mut self, piece: NodeId, (task, device): (Task, u32)) -> Result<Output, GraphError> {
        let node = self.out.node(piece);
        let on = if device == 0 { String::new() } else { format!(" on device {device}") };
        let (name, op) =
            (format!("{} joined{on}", node.name), Op::Cast { to: node.facts[0].dtype });
        let hint = hint_of(task, device);
        Ok(self.push(Node { hint, ..made(name, op, vec![piece.into()], task) })?.into())
    }

    fn same(&self, output: Output) -> Output {
        Output { node: self.moved[&output.node][0], index: output.index }
    }

    /// Adds a node with the facts that its inputs give it.
    fn push(&mut self, mut node: Node) -> Result<NodeId, GraphError> {
        let facts: Vec<_> = node.inputs.iter().map(|at| self.out.fact(*at).clone()).collect();
        node.facts = infer(&node.name, &node.op, &facts)?;
        self.out.push(node)
    }
}

/// The means over devices of a worker that nothing but what is split uses.
fn means_by_rows(placed: &Graph, devices: &[u32], split: &Split<'_>) -> HashSet<NodeId> {
    let users = placed.successors();
    let is_split = |user: &NodeId| match placed.node(*user).hint {
        Hint::With(home) => split.shares.contains_key(&home),
        _ => false,
    };
    let is_by_rows = |id: &NodeId| {
        let users = &users[id.index()];
        let is_of_devices = devices_of_mean(placed, devices, *id).is_some();
        is_of_devices
            && !users.is_empty()
            && users.iter().all(is_split)
            && !split.along.contains_key(id)
    };
    match split.shares.is_empty() {
        true => HashSet::new(),
        false => placed.ids().filter(is_by_rows).collect(),
    }
}

/// On this task, and this one of its devices.
pub(in crate::pass) fn hint_of(task: Task, device: u32) -> Hint {
    match device {
        0 => Hint::Task(task),
        device => Hint::Device { replica: task.index, device },
    }
}

fn made(name: String, op: Op, inputs: Vec<Output>, task: Task) -> Node {
    let (controls, facts, piece, space) = (Vec::new(), Vec::new(), None, Space::Host);
    let hint = Hint::Task(task);
    Node { name, op, inputs, controls, hint, task: Some(task), facts, piece, space }
}
