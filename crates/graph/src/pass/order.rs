//! Write after read: an operator that changes a variable in place runs after every other reader of
//! that variable in the same run, Sends included. These are orders, not needs: a reader that is not
//! part of a run is not waited for.

use std::collections::HashSet;

use crate::graph::{Graph, NodeId, Output};

/// Pairs (first, then) that keep in-place updates behind the readers of what they change, and of views of
/// it.
pub(crate) fn write_after_read(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    let mut order = Vec::new();
    for (writer, node) in graph.nodes() {
        for changed in &node.inputs[..node.op.mutated_inputs()] {
            let same = views(graph, *changed);
            for (reader, other) in graph.nodes() {
                let reads = other.inputs.iter().any(|input| same.contains(input));
                // whoever changes it too is another error, found by the verifier
                if reader != writer && reads {
                    order.push((reader, writer));
                }
            }
        }
    }
    order.sort_unstable();
    order.dedup();
    order
}

/// An output, and all views of it.
fn views(graph: &Graph, output: Output) -> HashSet<Output> {
    let mut same = HashSet::from([output]);
    for (id, node) in graph.nodes() {
        if node.op.is_view() && node.inputs.iter().any(|input| same.contains(input)) {
            same.insert(id.into());
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Hint;
    use crate::op::{Init, Op, Rule};
    use tensorwire_tensor::{DType, Dim, TensorSpec};

    #[test]
    fn an_update_comes_after_the_readers_of_its_variable_and_of_views_of_it() {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
        let v = graph.variable("v", spec, Init::Zeros).unwrap();
        let here = Hint::With(v.node);
        let add = |graph: &mut Graph, name: &str, op: Op, inputs: &[Output]| {
            graph.add(name, here, op, inputs).unwrap()
        };
        let square = Op::Reshape { to: vec![Dim::Known(2), Dim::Known(2)] };
        let row = Op::Reshape { to: vec![Dim::Known(4)] };
        let view = add(&mut graph, "view", square, &[v]);
        let again = add(&mut graph, "again", row, &[view.into()]);
        let update =
            add(&mut graph, "update", Op::Apply { rule: Rule::sgd(1.0), clipped: false }, &[v, v]);
        let direct = add(&mut graph, "direct", Op::Relu, &[v]);
        let viewed = add(&mut graph, "viewed", Op::Relu, &[again.into()]);
        add(&mut graph, "other", Op::Relu, &[direct.into()]);
        let readers = [view, again, direct, viewed];
        assert_eq!(write_after_read(&graph), readers.map(|reader| (reader, update)));
    }
}
