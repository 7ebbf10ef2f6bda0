//! A variable on several servers: each has some of its rows, with slots and an update of its own. Workers join the rows
//! to a whole where they are received, and send to each server the rows of the gradient that it updates. Updates go
//! element by element, so that the bits are those of the whole.

use std::collections::HashMap;
use std::ops::Range;

use tensorwire_tensor::TensorSpec;

use super::balance::{Share, Shares};
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Piece, Task};
use crate::op::Op;
use crate::pass::infer::infer;
use tensorwire_base::Space;

/// The graph with every variable of several shares in as many pieces. `first` is the task that variables are fetched
/// to: the whole has the variable's name there.
pub(super) fn split(placed: &Graph, shares: &Shares, first: Task) -> Result<Graph, GraphError> {
    let several = shares.iter().filter(|(_, shares)| shares.len() > 1);
    let mut splitter = Splitter {
        placed,
        shares: several.map(|(id, shares)| (*id, &shares[..])).collect(),
        first,
        out: Graph::continued(placed),
        moved: HashMap::new(),
        wholes: HashMap::new(),
    };
    for id in placed.ids() {
        splitter.take(id)?;
    }
    Ok(splitter.out)
}

struct Splitter<'a> {
    placed: &'a Graph,
    shares: HashMap<NodeId, &'a [Share]>,
    first: Task,
    out: Graph,
    /// What became of a node: itself, or a piece for each share.
    moved: HashMap<NodeId, Vec<NodeId>>,
    /// The whole of a variable at a task.
    wholes: HashMap<(NodeId, Task), Output>,
}

impl Splitter<'_> {
    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.placed.node(id);
        let home = match node.hint {
            // one for all variables, wherever it is
            _ if matches!(node.op, Op::ClipScale { .. }) => id,
            Hint::With(other) => other,
            _ => id,
        };
        let Some(&shares) = self.shares.get(&home) else {
            return self.keep(id, node);
        };
        let mut pieces = Vec::with_capacity(shares.len());
        for (index, share) in shares.iter().enumerate() {
            let rows = share.rows.clone().unwrap_or_default();
            let op = match &node.op {
                Op::Variable { spec, init } => {
                    Op::Variable { spec: self.piece_of(spec, home, &rows)?, init: *init }
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
            let hint = match id == home {
                true => Hint::Task(share.holder),
                false => Hint::With(self.moved[&home][index]),
            };
            let piece = Piece { of: node.name.clone(), first_row: rows.start };
            let name = format!("{}[{}..{}]", node.name, rows.start, rows.end);
            let made = Node { hint, piece: Some(piece), ..made(name, op, inputs, share.holder) };
            pieces.push(self.push(made)?);
        }
        self.moved.insert(id, pieces);
        if id == home {
            self.whole(id, self.first)?;
        }
        Ok(())
    }

    /// A node that is not split, on what became of its inputs.
    fn keep(&mut self, id: NodeId, node: &Node) -> Result<(), GraphError> {
        let unplaced = || GraphError::Unplaced { node: node.name.clone() };
        let task = node.task.ok_or_else(unplaced)?;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            match (self.shares.contains_key(&input.node), &self.moved[&input.node][..]) {
                (true, _) => inputs.push(self.whole(input.node, task)?),
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
        let from = self.same(of);
        let op = Op::Rows { start: rows.start, length: rows.len() };
        let made = Node { hint: Hint::With(from.node), ..made(name, op, vec![from], task) };
        Ok(self.push(made)?.into())
    }

    /// All of a variable at a task.
    fn whole(&mut self, variable: NodeId, task: Task) -> Result<Output, GraphError> {
        if let Some(whole) = self.wholes.get(&(variable, task)) {
            return Ok(*whole);
        }
        let name = &self.placed.node(variable).name;
        let name = if task == self.first { name.clone() } else { format!("{name} at {task}") };
        let mut pieces = Vec::new();
        for id in self.moved[&variable].clone() {
            pieces.push(self.piece_at(id, task)?);
        }
        let made = Node { hint: Hint::Task(task), ..made(name, Op::Join, pieces, task) };
        let whole = Output::from(self.push(made)?);
        self.wholes.insert((variable, task), whole);
        Ok(whole)
    }

    /// A piece of a variable where a task has the whole: what is received there, or a copy of what the task itself holds.
    fn piece_at(&mut self, piece: NodeId, task: Task) -> Result<Output, GraphError> {
        let node = self.out.node(piece);
        if node.task != Some(task) {
            return Ok(piece.into());
        }
        let (name, op) = (format!("{} joined", node.name), Op::Cast { to: node.facts[0].dtype });
        let copy = made(name, op, vec![piece.into()], task);
        Ok(self.push(copy)?.into())
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

fn made(name: String, op: Op, inputs: Vec<Output>, task: Task) -> Node {
    let (controls, facts, piece, space) = (Vec::new(), Vec::new(), None, Space::Host);
    let hint = Hint::Task(task);
    Node { name, op, inputs, controls, hint, task: Some(task), facts, piece, space }
}
