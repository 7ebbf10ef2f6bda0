//! Gradients of which less was made cross so: what makes a gradient of that again moves to where it is used. Where some rows of it are
//! used, some rows of the bytes cross, with all scales; of the elements that were chosen all do, and those of other rows are left out there.

use std::collections::HashMap;

use tensorwire_base::Space;

use super::infer::infer;
use super::place::split::hint_of;
use super::space::device_of;
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Task};
use crate::op::Op;
use crate::plan::RunSpec;

/// A placed graph whose compressed gradients are expanded at the tasks that use them, and the runs on its nodes.
///
/// # Errors
/// When a node has no task.
pub(crate) fn expand_where_used(
    placed: &Graph,
    runs: &[RunSpec],
) -> Result<(Graph, Vec<RunSpec>), GraphError> {
    if !placed.nodes().any(|(_, node)| node.op.expands()) {
        return Ok((placed.clone(), runs.to_vec()));
    }
    let mut expander = Expander {
        placed,
        out: Graph::continued(placed),
        moved: HashMap::with_capacity(placed.len()),
        expanded: HashMap::new(),
    };
    for (id, node) in placed.nodes() {
        // made where they are used
        if expansion(placed, id.into()).is_none() {
            expander.take(id, node)?;
        }
    }
    let runs = runs.iter().map(|run| expander.run(run)).collect();
    Ok((expander.out, runs))
}

/// A gradient that is made of a compressed one, or some rows of it.
struct Expansion {
    /// What makes it.
    by: NodeId,
    /// Its first row, and how many there are; none: all.
    rows: Option<[usize; 2]>,
}

/// True if an output is a gradient that is made of a compressed one.
pub(crate) fn is_expanded(graph: &Graph, output: Output) -> bool {
    expansion(graph, output).is_some()
}

fn expansion(graph: &Graph, output: Output) -> Option<Expansion> {
    let mut rows: Option<[usize; 2]> = None;
    let mut at = output.node;
    loop {
        let node = graph.node(at);
        match node.op {
            _ if node.op.expands() => return Some(Expansion { by: at, rows }),
            Op::Rows { start, length } => {
                rows = match rows {
                    None => Some([start, length]),
                    Some([later, length]) => Some([start + later, length]),
                };
                at = node.inputs.first()?.node;
            }
            _ => return None,
        }
    }
}

struct Expander<'a> {
    placed: &'a Graph,
    out: Graph,
    /// What became of a node of `placed`.
    moved: HashMap<NodeId, NodeId>,
    /// What a gradient of `placed` is at a task.
    expanded: HashMap<(Output, Task), Output>,
}

impl Expander<'_> {
    fn take(&mut self, id: NodeId, node: &Node) -> Result<(), GraphError> {
        let task = task_of(node)?;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(match expansion(self.placed, input) {
                Some(made) => self.expand(input, &made, task)?,
                None => self.same(input),
            });
        }
        let controls = node.controls.iter().map(|id| self.origin(*id)).collect();
        let hint = match node.hint {
            Hint::With(other) => Hint::With(self.origin(other)),
            hint => hint,
        };
        let new = self.out.push(Node { inputs, controls, hint, ..node.clone() })?;
        self.moved.insert(id, new);
        Ok(())
    }

    /// A gradient at a task, of what crosses to it.
    fn expand(&mut self, of: Output, made: &Expansion, task: Task) -> Result<Output, GraphError> {
        if let Some(there) = self.expanded.get(&(of, task)) {
            return Ok(*there);
        }
        let (node, by) = (self.placed.node(of.node), self.placed.node(made.by));
        let is_here = node.task == Some(task);
        let mut inputs: Vec<Output> = by.inputs.iter().map(|input| self.same(*input)).collect();
        let dims = by.facts[0].spec().and_then(Result::ok);
        let row: usize = dims.iter().flat_map(|spec| spec.dims().iter().skip(1)).product();
        let offset = made.rows.map_or(0, |[start, _]| start * row);
        let op = match (&by.op, made.rows) {
            (Op::Dequantize { block, first }, rows) => {
                if let Some([start, length]) = rows {
                    inputs[0] = self.rows(inputs[0], start, length)?;
                }
                Op::Dequantize { block: *block, first: first + offset }
            }
            (Op::ScatterElements { to, first }, rows) => {
                let mut to = to.clone();
                if let (Some(count), Some([_, length])) = (to.first_mut(), rows) {
                    *count = length;
                }
                Op::ScatterElements { to, first: first + offset }
            }
            (op, _) => op.clone(),
        };
        let name = if is_here { node.name.clone() } else { format!("{} at {task}", node.name) };
        let hint = match is_here {
            true => Hint::With(inputs[0].node),
            false => hint_of(task, device_of(&self.out, inputs[0].node)),
        };
        let made = Output::from(self.push(name, op, inputs, hint, task)?);
        self.expanded.insert((of, task), made);
        Ok(made)
    }

    /// Some rows of what crosses, where it is made.
    fn rows(&mut self, of: Output, start: usize, length: usize) -> Result<Output, GraphError> {
        let node = self.out.node(of.node);
        let name = format!("{}[{start}..{}]", node.name, start + length);
        if let Some(there) = self.out.find(&name) {
            return Ok(there.into());
        }
        let task = task_of(node)?;
        let op = Op::Rows { start, length };
        Ok(self.push(name, op, vec![of], Hint::With(of.node), task)?.into())
    }

    fn push(
        &mut self,
        name: String,
        op: Op,
        inputs: Vec<Output>,
        hint: Hint,
        task: Task,
    ) -> Result<NodeId, GraphError> {
        let facts: Vec<_> = inputs.iter().map(|input| self.out.fact(*input).clone()).collect();
        let facts = infer(&name, &op, &facts)?;
        let (controls, piece, space, task) = (Vec::new(), None, Space::Host, Some(task));
        self.out.push(Node { name, op, inputs, controls, hint, task, facts, piece, space })
    }

    fn same(&self, output: Output) -> Output {
        Output { node: self.origin(output.node), index: output.index }
    }

    /// What became of a node; of a gradient that is made where it is used: of what it is made of.
    fn origin(&self, id: NodeId) -> NodeId {
        let made_of = expansion(self.placed, id.into());
        let first = made_of.and_then(|made| self.placed.node(made.by).inputs.first().copied());
        self.moved[&first.map_or(id, |input| input.node)]
    }

    fn run(&self, run: &RunSpec) -> RunSpec {
        let moved = |ids: &[NodeId]| ids.iter().map(|id| self.origin(*id)).collect();
        RunSpec { roots: moved(&run.roots), given: moved(&run.given), ..run.clone() }
    }
}

fn task_of(node: &Node) -> Result<Task, GraphError> {
    node.task.ok_or_else(|| GraphError::Unplaced { node: node.name.clone() })
}
