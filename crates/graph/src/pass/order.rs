//! Write after read: an operator that changes a variable in place runs after every other reader of
//! that variable in the same run, Sends included. These are orders, not needs: a reader that is not
//! part of a run is not waited for.

use crate::graph::{Graph, NodeId};

/// Pairs (first, then) that keep in-place updates behind the readers of what they change.
pub(crate) fn write_after_read(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    let successors = graph.successors();
    let mut order = Vec::new();
    for (writer, node) in graph.nodes() {
        for changed in &node.inputs[..node.op.mutated_inputs()] {
            for &reader in &successors[changed.node.index()] {
                let reads = graph.node(reader).inputs.contains(changed);
                if reader != writer && reads && graph.node(reader).op.mutated_inputs() == 0 {
                    order.push((reader, writer));
                }
            }
        }
    }
    order.sort_unstable();
    order.dedup();
    order
}
