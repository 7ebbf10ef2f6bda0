//! Reverse-mode gradients: a table, one row per operator, walked backwards from the loss.

mod custom;
mod elements;
mod table;

use std::collections::HashMap;

use tensorwire_tensor::TensorSpec;

use crate::error::GraphError;
use crate::graph::{Graph, Hint, NodeId, Output};
use crate::op::Op;
use crate::output::Gradient;

/// Adds to `graph` the nodes that compute d`loss`/d`wrt`, and gives their outputs in `wrt`'s order.
/// The new nodes are named `<prefix>/...`. Each is where the node is whose gradient it is a part of, so that a graph that
/// is cut over several tasks has its gradients cut alike; `hint` is for those of nodes that are shared.
///
/// # Errors
/// When the loss is no floating scalar, or the way to some `wrt` passes an operator without gradient.
pub fn gradients(
    graph: &mut Graph,
    prefix: &str,
    hint: Hint,
    loss: Output,
    wrt: &[Output],
) -> Result<Vec<Gradient>, GraphError> {
    let seed_spec = seed_spec(graph, loss)?;
    let wanted = depends_on(graph, loss.node, wrt);
    let seed = Op::Fill { value: 1.0, spec: seed_spec };
    let at = beside(graph, loss.node, hint);
    let seed = graph.add(&format!("{prefix}/seed"), at, seed, &[])?;
    let mut tape = Tape { graph, prefix, hint, at: hint, partials: HashMap::new(), made: 0 };
    tape.partials.insert(loss, vec![Gradient::Dense(seed.into())]);
    for id in (0..=loss.node.0).rev().map(NodeId) {
        if wanted[id.index()] {
            tape.step_back(id, &wanted)?;
        }
    }
    wrt.iter().map(|&output| tape.sum(output)).collect()
}

fn seed_spec(graph: &Graph, loss: Output) -> Result<TensorSpec, GraphError> {
    let fact = graph.fact(loss);
    match fact.spec() {
        Some(Ok(spec)) if fact.dtype.is_floating() && spec.dims().is_empty() => Ok(spec),
        _ => Err(GraphError::LossNotScalar {
            node: graph.node(loss.node).name.clone(),
            found: fact.clone(),
        }),
    }
}

/// For each node up to the loss: true if it computes from any of `wrt`, or is one. What is no floating number has no
/// derivative, so nothing depends through it: a comparison, a place.
fn depends_on(graph: &Graph, loss: NodeId, wrt: &[Output]) -> Vec<bool> {
    let mut depends = vec![false; graph.len()];
    for output in wrt {
        depends[output.node.index()] = true;
    }
    for (id, node) in graph.nodes().take(loss.index() + 1) {
        if node.inputs.iter().any(|input| depends[input.node.index()] && is_floating(graph, *input))
        {
            depends[id.index()] = true;
        }
    }
    depends
}

fn is_floating(graph: &Graph, output: Output) -> bool {
    graph.fact(output).dtype.is_floating()
}

/// The place of a node, for what goes with it; `otherwise` where it is shared.
fn beside(graph: &Graph, id: NodeId, otherwise: Hint) -> Hint {
    match graph.node(id).hint {
        Hint::Shared => otherwise,
        hint => hint,
    }
}

struct Tape<'a> {
    graph: &'a mut Graph,
    prefix: &'a str,
    /// Of what belongs to nodes that are shared.
    hint: Hint,
    /// Of the nodes that are being added.
    at: Hint,
    /// Parts of the gradient of an output, one for each of its users so far.
    partials: HashMap<Output, Vec<Gradient>>,
    made: usize,
}

impl Tape<'_> {
    fn add(&mut self, name: &str, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        self.made += 1;
        let name = format!("{}/{name}_{}", self.prefix, self.made);
        self.graph.add(&name, self.at, op, inputs).map(Output::from)
    }

    /// Sends the gradient of a node's outputs on to its inputs.
    fn step_back(&mut self, id: NodeId, wanted: &[bool]) -> Result<(), GraphError> {
        let inputs = self.graph.node(id).inputs.clone();
        // fits: operators have a dozen outputs at most
        let outputs =
            (0..self.graph.node(id).facts.len() as u32).map(|index| Output { node: id, index });
        let mut flowing = Vec::new();
        for output in outputs {
            let flows = self.partials.contains_key(&output);
            flowing.push(if flows { Some(self.sum(output)?) } else { None });
        }
        if inputs.is_empty() || flowing.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut dense = Vec::with_capacity(flowing.len());
        for (index, gradient) in (0..).zip(flowing) {
            let output = Output { node: id, index };
            dense.push(gradient.map(|gradient| self.dense(output, gradient)).transpose()?);
        }
        self.at = beside(self.graph, id, self.hint);
        let wants = |input: &Output| wanted[input.node.index()] && is_floating(self.graph, *input);
        let wants: Vec<bool> = inputs.iter().map(wants).collect();
        let partials = self.row(id, &dense, &wants)?;
        for ((input, wants), partial) in inputs.iter().zip(wants).zip(partials) {
            match partial {
                Some(partial) if wants => self.partials.entry(*input).or_default().push(partial),
                None if wants => return Err(self.no_gradient(id)),
                _ => {}
            }
        }
        Ok(())
    }

    fn no_gradient(&self, id: NodeId) -> GraphError {
        let node = self.graph.node(id);
        GraphError::NoGradient { node: node.name.clone(), op: node.op.name() }
    }

    /// The gradient of an output: the sum of its parts, tensors in the order in which they came, then rows in theirs.
    fn sum(&mut self, output: Output) -> Result<Gradient, GraphError> {
        let parts = self.partials.remove(&output).unwrap_or_default();
        // where all parts are, so that one tensor leaves there; else where the output is
        let mut places = parts.iter().map(|part| self.graph.node(part.node()).hint);
        let first = places.next();
        let together = first.filter(|first| places.all(|place| place == *first));
        let sum_at = together.unwrap_or(beside(self.graph, output.node, self.hint));
        // rows are added to a tensor that is there, which costs what they are and not what the tensor is
        let (tensors, rows): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.dense().is_some());
        let mut parts = tensors.into_iter().chain(rows);
        let mut total = parts.next().ok_or_else(|| self.no_gradient(output.node))?;
        for part in parts {
            let left = self.dense(output, total)?;
            self.at = sum_at;
            total = Gradient::Dense(match part {
                Gradient::Dense(right) => self.add("sum", Op::Add, &[left, right])?,
                Gradient::Rows { indices, rows } => {
                    self.add("sum", Op::AddRows, &[left, rows, indices])?
                }
            });
        }
        self.partials.insert(output, vec![total]);
        Ok(total)
    }

    /// A gradient of `output` as a tensor of its shape.
    fn dense(&mut self, output: Output, gradient: Gradient) -> Result<Output, GraphError> {
        match gradient {
            Gradient::Dense(dense) => Ok(dense),
            Gradient::Rows { indices, rows } => {
                self.at = self.graph.node(rows.node).hint;
                self.add("dense", Op::ScatterRows, &[rows, indices, output])
            }
        }
    }
}
