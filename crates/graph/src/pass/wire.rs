//! Numbers on the wire: tensors of f32 that go from one process to another, or around a group of them, are rounded where they are
//! made and widened where they are used. What is computed stays f32; what crosses is half of the bytes.

use std::collections::{HashMap, HashSet};

use tensorwire_base::Space;
use tensorwire_tensor::DType;

use super::expand::is_expanded;
use super::infer::infer;
use super::place::split::hint_of;
use super::space::device_of;
use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Task};
use crate::op::Op;
use crate::plan::RunSpec;

/// Elements of the smallest tensor that is worth rounding: a loss, a norm, a bias are not.
pub const NARROWED_FROM: usize = 256;

/// A placed graph whose crossing tensors of f32 cross as `to`, and the runs on its nodes.
///
/// # Errors
/// When a node has no task.
pub(crate) fn narrow_wire(
    placed: &Graph,
    runs: &[RunSpec],
    to: Option<DType>,
) -> Result<(Graph, Vec<RunSpec>), GraphError> {
    let Some(to) = to else { return Ok((placed.clone(), runs.to_vec())) };
    let fetches = runs.iter().filter(|run| run.fetch_to.is_some());
    let mut narrower = Narrower {
        placed,
        to,
        fetched: fetches.flat_map(|run| run.roots.iter().copied()).collect(),
        by_rows: placed.nodes().filter_map(|(_, node)| by_rows(node)).collect(),
        out: Graph::continued(placed),
        moved: Vec::with_capacity(placed.len()),
        used: Vec::with_capacity(placed.len()),
        casts: HashMap::new(),
    };
    for id in placed.ids() {
        narrower.take(id)?;
    }
    let runs = runs.iter().map(|run| narrower.run(run)).collect();
    Ok((narrower.out, runs))
}

struct Narrower<'a> {
    placed: &'a Graph,
    to: DType,
    /// What is wanted as it is.
    fetched: HashSet<NodeId>,
    /// Variables of which gradients are some rows, which cross as they are: so do these.
    by_rows: HashSet<NodeId>,
    out: Graph,
    /// By node of `placed`: the same in `out`.
    moved: Vec<NodeId>,
    /// By node of `placed`: what those take that use it, where it was rounded on the way.
    used: Vec<NodeId>,
    /// What an output of `out` is at a task, as another type.
    casts: HashMap<(Output, Task, DType), Output>,
}

impl Narrower<'_> {
    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.placed.node(id);
        let task = task_of(node)?;
        // the pieces of a variable are received where the whole has them, so that it is widened as a whole
        let joins = matches!(node.op, Op::Join)
            && node.inputs.iter().all(|input| self.crosses(*input, task));
        // so is what a group reduces, where it lies
        let reduces = matches!(node.op, Op::AllReduce { .. })
            && node.inputs.iter().all(|input| self.is_worth_it(*input));
        let is_wanted_whole = joins && self.fetched.contains(&id);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            let used = Output { node: self.used[input.node.index()], index: input.index };
            inputs.push(match self.crosses(input, task) && !joins {
                true => {
                    let narrow = self.narrowed(used)?;
                    self.cast(narrow, task, DType::F32)?
                }
                false => used,
            });
        }
        let mut narrow = Vec::with_capacity(inputs.len());
        if joins || reduces {
            for &input in &inputs {
                narrow.push(self.narrowed(input)?);
            }
        }
        let moved = |id: &NodeId| self.moved[id.index()];
        let controls: Vec<NodeId> = node.controls.iter().map(moved).collect();
        let hint = match node.hint {
            Hint::With(other) => Hint::With(moved(&other)),
            hint => hint,
        };
        let plain = Node { inputs, controls, hint, ..node.clone() };
        if narrow.is_empty() {
            let new = self.out.push(plain)?;
            self.moved.push(new);
            self.used.push(new);
            return Ok(());
        }
        let mut facts = node.facts.clone();
        facts.iter_mut().for_each(|fact| fact.dtype = self.to);
        // its name is that of what is whole, if anybody wants that
        let name = match is_wanted_whole {
            true => format!("{} as {}", node.name, self.to),
            false => node.name.clone(),
        };
        let made = self.out.push(Node { name, inputs: narrow, facts, ..plain.clone() })?;
        let used = self.cast(made.into(), task, DType::F32)?.node;
        let whole = if is_wanted_whole { self.out.push(plain)? } else { used };
        self.moved.push(whole);
        self.used.push(used);
        Ok(())
    }

    /// A run on what became of its nodes. What is fetched is given to those that use it as they have it in a step: rounded.
    fn run(&self, run: &RunSpec) -> RunSpec {
        let with_rounded = |ids: &[NodeId], of_task: Option<Task>| {
            let mut all: Vec<NodeId> = Vec::with_capacity(ids.len());
            for id in ids {
                let (moved, used) = (self.moved[id.index()], self.used[id.index()]);
                all.push(moved);
                all.extend((used != moved).then_some(used));
                let narrow = self.rounded(moved.into());
                let is_used = |narrow: &Output| {
                    let at = |task| self.casts.contains_key(&(*narrow, task, DType::F32));
                    of_task.is_none_or(at)
                };
                all.extend(narrow.filter(is_used).map(|narrow| narrow.node));
            }
            all
        };
        let roots = match run.fetch_to {
            Some(to) => with_rounded(&run.roots, Some(to)),
            None => run.roots.iter().map(|root| self.moved[root.index()]).collect(),
        };
        RunSpec { roots, given: with_rounded(&run.given, None), ..run.clone() }
    }

    /// What an output of `out` was rounded to where it is made, if it was.
    fn rounded(&self, output: Output) -> Option<Output> {
        let task = self.out.node(output.node).task?;
        self.casts.get(&(output, task, self.to)).copied()
    }

    /// True if an output of `placed` comes to a task from another one, and is rounded for it. A gradient of which less was made
    /// crosses as that.
    fn crosses(&self, output: Output, task: Task) -> bool {
        self.placed.node(output.node).task != Some(task) && self.is_worth_it(output)
    }

    fn is_worth_it(&self, output: Output) -> bool {
        let fact = self.placed.fact(output);
        if is_expanded(self.placed, output) {
            return false;
        }
        // the size of a tensor that is announced says what it is
        let elements = fact.spec().and_then(Result::ok).map_or(0, |spec| spec.elements());
        let is_dense = !self.by_rows.contains(&output.node);
        fact.dtype == DType::F32 && elements >= NARROWED_FROM && is_dense
    }

    /// An output of `out` where it is made, rounded.
    fn narrowed(&mut self, output: Output) -> Result<Output, GraphError> {
        let task = task_of(self.out.node(output.node))?;
        self.cast(output, task, self.to)
    }

    fn cast(&mut self, of: Output, task: Task, to: DType) -> Result<Output, GraphError> {
        if let Some(&cast) = self.casts.get(&(of, task, to)) {
            return Ok(cast);
        }
        let node = self.out.node(of.node);
        let index = if of.index == 0 { String::new() } else { format!(":{}", of.index) };
        let name = match node.task == Some(task) {
            true => format!("{}{index} as {to}", node.name),
            false => format!("{}{index} at {task}", node.name),
        };
        let op = Op::Cast { to };
        let facts = infer(&name, &op, &[self.out.fact(of).clone()])?;
        // with whoever made it where both are on one task, else on the device of the same number
        let hint = match node.task == Some(task) {
            true => Hint::With(of.node),
            false => hint_of(task, device_of(&self.out, of.node)),
        };
        let made = self.out.push(Node {
            name,
            op,
            inputs: vec![of],
            controls: vec![],
            hint,
            task: Some(task),
            facts,
            piece: None,
            space: Space::Host,
        })?;
        self.casts.insert((of, task, to), made.into());
        Ok(made.into())
    }
}

/// The variable that a node updates by some of its rows.
fn by_rows(node: &Node) -> Option<NodeId> {
    let updates = matches!(node.op, Op::ApplyRows { .. });
    node.inputs.first().filter(|_| updates).map(|variable| variable.node)
}

fn task_of(node: &Node) -> Result<Task, GraphError> {
    node.task.ok_or_else(|| GraphError::Unplaced { node: node.name.clone() })
}
