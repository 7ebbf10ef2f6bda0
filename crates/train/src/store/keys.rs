//! What in a store an edge of the plan is: a variable by its key, and what of its gradient comes over the edge.

use std::collections::HashMap;

use tensorwire_graph::{Edge, Node, Op, Output, Plan};
use tensorwire_kvstore::Key;
use tensorwire_nn::Program;

use super::encoded::Less;

/// The tensors of a job by the names of its variables: a variable's key is its place in this list.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    keys: HashMap<String, Key>,
}

impl StoreKeys {
    pub(crate) fn new<'a>(variables: impl Iterator<Item = &'a str>) -> StoreKeys {
        StoreKeys { keys: variables.map(str::to_string).zip((0..).map(Key)).collect() }
    }

    /// Those of a job whose store makes the means of what is pushed.
    pub(crate) fn of_means<'a>(variables: impl Iterator<Item = &'a str>) -> StoreKeys {
        let names = variables.map(Program::mean_of);
        StoreKeys { keys: names.zip((0..).map(Key)).collect() }
    }

    pub(crate) fn key(&self, variable: &str) -> Option<Key> {
        self.keys.get(variable).copied()
    }

    /// The variable whose update takes what comes over an edge, and which of a row gradient's two tensors it is.
    pub(super) fn updated_by(&self, plan: &Plan, edge: &Edge) -> Option<(Key, Sent)> {
        let graph = &plan.parts[edge.to].graph;
        // what comes rounded is widened first, and of what is less than a gradient one is made
        let comes_to = |node: &Node| node.inputs.iter().position(|from| from.node == edge.recv);
        let expands = graph.nodes().find(|(_, node)| node.op.expands() && comes_to(node).is_some());
        let widens = |node: &Node| matches!(node.op, Op::Cast { .. }) && comes_to(node) == Some(0);
        let widened = graph.nodes().find(|(_, node)| widens(node)).or(expands).map(|(id, _)| id);
        let whole = match expands {
            None => Sent::Whole,
            Some((_, node)) => {
                let count = graph.fact(*node.inputs.last()?).spec()?.ok()?.elements();
                let less = Less::expanded_by(&node.op, count)?;
                Sent::Less { less, is_second: comes_to(node) == Some(1) }
            }
        };
        let comes = |input: &Output| input.node == edge.recv || Some(input.node) == widened;
        let takes = |node: &Node| !node.op.expands() && !widens(node);
        graph.nodes().filter(|(_, node)| takes(node)).find_map(|(_, node)| {
            let at = node.inputs.iter().position(comes)?;
            let state = node.op.mutated_inputs();
            if node.op == Op::Mean {
                return self.key(&node.name).map(|key| (key, whole));
            }
            let key = self.key(&graph.node(node.inputs.first()?.node).name)?;
            match node.op {
                Op::Apply { .. } | Op::ApplyAverage { .. } => Some((key, whole)),
                Op::ApplyRows { .. } if (at - state).is_multiple_of(2) => {
                    Some((key, Sent::Indices))
                }
                Op::ApplyRows { .. } => Some((key, Sent::Rows)),
                _ => None,
            }
        })
    }
}

/// The name of what an edge carries, rounded or not.
pub(crate) fn carried_value<'p>(plan: &'p Plan, edge: &'p Edge) -> &'p str {
    let graph = &plan.parts[edge.from].graph;
    let made = graph.node(edge.send).inputs.first().map(|input| graph.node(input.node));
    let rounded = made.filter(|node| matches!(node.op, Op::Cast { .. }));
    rounded.map_or(&edge.name, |node| &graph.node(node.inputs[0].node).name)
}

/// What an edge brings to a variable's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Whole,
    /// A gradient by rows: which, and what.
    Indices,
    Rows,
    /// One of two tensors of which servers make a gradient.
    Less {
        less: Less,
        is_second: bool,
    },
}
