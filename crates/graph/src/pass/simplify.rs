//! Simplification: what changes no value is not computed. A product with the constant 1 is its other
//! factor (every gradient starts with one); a node that no root needs is dropped.

use std::collections::HashMap;

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output};
use crate::op::Op;

/// A graph that computes the same at `roots`, and where each old node went (none: dropped).
///
/// # Errors
/// Never for a graph that [`crate::verify`] accepts.
pub fn simplify(
    graph: &Graph,
    roots: &[NodeId],
) -> Result<(Graph, HashMap<NodeId, NodeId>), GraphError> {
    let stands_for: HashMap<Output, Output> = graph
        .nodes()
        .filter(|(_, node)| node.op == Op::ScaleBy && is_one(graph, node.inputs[1]))
        .map(|(id, node)| (Output::from(id), node.inputs[0]))
        .collect();
    let resolve = |mut output: Output| {
        while let Some(next) = stands_for.get(&output) {
            output = *next;
        }
        output
    };
    let needed = needed(graph, roots, &resolve);
    let mut small = Graph::new();
    let mut moved: HashMap<NodeId, NodeId> = HashMap::new();
    for (id, node) in graph.nodes().filter(|(id, _)| needed[id.index()]) {
        let inputs = node.inputs.iter().map(|&input| {
            let Output { node, index } = resolve(input);
            Output { node: moved[&node], index }
        });
        let controls = node.controls.iter().filter_map(|c| moved.get(c).copied());
        let hint = match node.hint {
            Hint::With(other) => moved.get(&other).map_or(node.hint, |&to| Hint::With(to)),
            hint => hint,
        };
        let (inputs, controls) = (inputs.collect(), controls.collect());
        moved.insert(id, small.push(Node { inputs, controls, hint, ..node.clone() })?);
    }
    Ok((small, moved))
}

fn is_one(graph: &Graph, output: Output) -> bool {
    matches!(graph.node(output.node).op, Op::Fill { value: 1.0, .. })
}

fn needed(graph: &Graph, roots: &[NodeId], resolve: &impl Fn(Output) -> Output) -> Vec<bool> {
    let mut needed = vec![false; graph.len()];
    let mut open: Vec<NodeId> = roots.to_vec();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut needed[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        open.extend(node.inputs.iter().map(|&input| resolve(input).node));
        open.extend(node.controls.iter().copied());
        if let Hint::With(other) = node.hint {
            open.push(other);
        }
    }
    needed
}
