//! The order of all-reduces that devices do among themselves: each member of a group tells its device all of them in the same
//! order, that of the graph, and small ones together. What is told together waits for what is told before.

use std::collections::BTreeMap;

use super::place::balance::bytes;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Task};
use crate::op::Op;

/// A graph whose all-reduces come in one order at all tasks, up to `together` bytes of them at once.
///
/// # Errors
/// When tasks have them in different orders.
pub(crate) fn in_one_order(graph: &Graph, together: usize) -> Result<Graph, GraphError> {
    let mut by_task: BTreeMap<Task, Vec<(u32, NodeId)>> = BTreeMap::new();
    for (id, node) in graph.nodes() {
        if let (Op::AllReduce { vector }, Some(task)) = (&node.op, node.task) {
            by_task.entry(task).or_default().push((*vector, id));
        }
    }
    let mut out = graph.clone();
    let first: Vec<u32> =
        by_task.values().next().into_iter().flatten().map(|(vector, _)| *vector).collect();
    for members in by_task.into_values() {
        let is_same = members.iter().map(|(vector, _)| *vector).eq(first.iter().copied());
        if let (false, Some((_, id))) = (is_same, members.first()) {
            let node = graph.node(*id).name.clone();
            let what = "is of a worker whose all-reduces have another order than others'";
            return Err(GraphError::Invalid { node, what: what.to_owned() });
        }
        let (mut before, mut last, mut sum) = (None, None, 0usize);
        for (_, id) in members {
            let size = bytes(graph, id);
            if sum.saturating_add(size) > together {
                (before, sum) = (last, 0);
            }
            sum = sum.saturating_add(size);
            last = Some(id);
            if let Some(before) = before {
                out.control(before, id);
            }
        }
    }
    Ok(out)
}
