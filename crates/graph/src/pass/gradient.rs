//! Reverse-mode gradients: a table, one row per operator, walked backwards from the loss.

use std::collections::HashMap;

use tensorwire_tensor::{DType, TensorSpec};

use crate::error::GraphError;
use crate::graph::{Graph, Hint, NodeId, Output};
use crate::op::Op;

/// Adds to `graph` the nodes that compute d`loss`/d`wrt`, and gives their outputs in `wrt`'s order.
/// The new nodes are named `<prefix>/...` and take `hint`.
///
/// # Errors
/// When the loss is no floating scalar, or the way to some `wrt` passes an operator without gradient.
pub fn gradients(
    graph: &mut Graph,
    prefix: &str,
    hint: Hint,
    loss: Output,
    wrt: &[Output],
) -> Result<Vec<Output>, GraphError> {
    let seed_spec = seed_spec(graph, loss)?;
    let wanted = depends_on(graph, loss.node, wrt);
    let seed = Op::Fill { value: 1.0, spec: seed_spec };
    let seed = graph.add(&format!("{prefix}/seed"), hint, seed, &[])?;
    let mut tape = Tape { graph, prefix, hint, partials: HashMap::new(), made: 0 };
    tape.partials.insert(loss, vec![seed.into()]);
    for id in (0..=loss.node.0).rev().map(NodeId) {
        if wanted[id.index()] {
            tape.step_back(id, &wanted)?;
        }
    }
    wrt.iter().map(|&output| tape.sum(output)).collect()
}

fn seed_spec(graph: &Graph, loss: Output) -> Result<TensorSpec, GraphError> {
    let fact = graph.fact(loss);
    let float = matches!(fact.dtype, DType::F32 | DType::F64);
    match fact.spec() {
        Some(Ok(spec)) if float && spec.dims().is_empty() => Ok(spec),
        _ => Err(GraphError::LossNotScalar {
            node: graph.node(loss.node).name.clone(),
            found: fact.clone(),
        }),
    }
}

/// For each node up to the loss: does it compute from any of `wrt`, or is it one?
fn depends_on(graph: &Graph, loss: NodeId, wrt: &[Output]) -> Vec<bool> {
    let mut depends = vec![false; graph.len()];
    for output in wrt {
        depends[output.node.index()] = true;
    }
    for (id, node) in graph.nodes().take(loss.index() + 1) {
        if node.inputs.iter().any(|input| depends[input.node.index()]) {
            depends[id.index()] = true;
        }
    }
    depends
}

struct Tape<'a> {
    graph: &'a mut Graph,
    prefix: &'a str,
    hint: Hint,
    /// Parts of the gradient of an output, one for each of its users so far.
    partials: HashMap<Output, Vec<Output>>,
    made: usize,
}

impl Tape<'_> {
    fn add(&mut self, name: &str, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        self.made += 1;
        let name = format!("{}/{name}_{}", self.prefix, self.made);
        self.graph.add(&name, self.hint, op, inputs).map(Output::from)
    }

    /// Sends the gradient of a node's outputs on to its inputs.
    fn step_back(&mut self, id: NodeId, wanted: &[bool]) -> Result<(), GraphError> {
        let inputs = self.graph.node(id).inputs.clone();
        let used = self.graph.node(id).facts.len() as u32;
        let flowing: Vec<u32> = (0..used)
            .filter(|&index| self.partials.contains_key(&Output { node: id, index }))
            .collect();
        if inputs.is_empty() || flowing.is_empty() {
            return Ok(());
        }
        let no_gradient = |graph: &Graph| {
            let node = graph.node(id);
            GraphError::NoGradient { node: node.name.clone(), op: node.op.name() }
        };
        if flowing != [0] {
            return Err(no_gradient(self.graph));
        }
        let dy = self.sum(Output { node: id, index: 0 })?;
        for (at, input) in inputs.iter().enumerate() {
            if !wanted[input.node.index()] {
                continue;
            }
            match self.row(id, at, dy)? {
                Some(partial) => self.partials.entry(*input).or_default().push(partial),
                None => return Err(no_gradient(self.graph)),
            }
        }
        Ok(())
    }

    /// The table: the part of input `at`'s gradient that flows through node `id`, none where the
    /// operator has no derivative in that input.
    fn row(&mut self, id: NodeId, at: usize, dy: Output) -> Result<Option<Output>, GraphError> {
        let node = self.graph.node(id);
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        let name = format!("d_{}", self.graph.node(inputs[at].node).name.replace('/', "_"));
        let partial = match (op, at) {
            (Op::MatMul { transpose_a, transpose_b }, _) => {
                let (op, left, right) = match (at, transpose_a, transpose_b) {
                    (0, false, tb) => (product(false, !tb), dy, inputs[1]),
                    (0, true, tb) => (product(tb, true), inputs[1], dy),
                    (_, ta, false) => (product(!ta, false), inputs[0], dy),
                    (_, ta, true) => (product(true, ta), dy, inputs[0]),
                };
                self.add(&name, op, &[left, right])?
            }
            (Op::BiasAdd, 0) | (Op::Add, _) => dy,
            (Op::BiasAdd, _) => self.add(&name, Op::SumRows, &[dy])?,
            (Op::Relu, _) => self.add(&name, Op::ReluGrad, &[dy, id.into()])?,
            (Op::Reshape { .. }, _) => {
                let to = self.graph.fact(inputs[0]).dims.clone();
                self.add(&name, Op::Reshape { to }, &[dy])?
            }
            (Op::ScaleBy, 0) => self.add(&name, Op::ScaleBy, &[dy, inputs[1]])?,
            (Op::SoftmaxCrossEntropy, 0) => {
                let dlogits = Output { node: id, index: 1 };
                self.add(&name, Op::ScaleBy, &[dlogits, dy])?
            }
            _ => return Ok(None),
        };
        Ok(Some(partial))
    }

    /// The gradient of an output: the sum of its parts, in the order in which they came.
    fn sum(&mut self, output: Output) -> Result<Output, GraphError> {
        let parts = self.partials.remove(&output).unwrap_or_default();
        let mut parts = parts.into_iter();
        let mut total = parts.next().ok_or_else(|| GraphError::NoGradient {
            node: self.graph.node(output.node).name.clone(),
            op: self.graph.node(output.node).op.name(),
        })?;
        for part in parts {
            total = self.add("sum", Op::Add, &[total, part])?;
        }
        self.partials.insert(output, vec![total]);
        Ok(total)
    }
}

fn product(transpose_a: bool, transpose_b: bool) -> Op {
    Op::MatMul { transpose_a, transpose_b }
}
