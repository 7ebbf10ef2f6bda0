//! Who computes over its input's bytes. A reshape always shares its input's memory; an element-wise
//! operator does where nobody else uses the input and the input is no state. So a tensor may have been
//! allocated several nodes before the one that gives it its value: Xue et al. §3.4's allocation site.

use std::collections::HashSet;

use crate::graph::{Graph, Node, NodeId, Output};
use crate::op::{Kind, Op, OpFacts};

/// The outputs of a part by the memory that they share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// By node, by output: the class it belongs to.
    of: Vec<Vec<usize>>,
    pub(crate) classes: Vec<Class>,
    /// Nodes that compute over their first input.
    pub(crate) in_place: HashSet<NodeId>,
}

/// Outputs that share one piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// First the one whose node allocates the memory.
    pub(crate) members: Vec<Output>,
    /// State, or brought from outside: nothing computes over it.
    pub(crate) is_owned: bool,
}

impl Class {
    pub(crate) fn root(&self) -> Output {
        self.members[0]
    }
}

impl Classes {
    /// The classes of a part. `kept` are nodes whose outputs must be there after a run.
    pub(crate) fn new(graph: &Graph, kept: &HashSet<NodeId>) -> Classes {
        let mut uses = vec![Vec::new(); graph.len()];
        for (id, node) in graph.nodes() {
            uses[id.index()] = vec![0usize; node.facts.len()];
            for input in &node.inputs {
                uses[input.node.index()][input.index as usize] += 1;
            }
        }
        let mut all = Classes::default();
        for (id, node) in graph.nodes() {
            let mut here = Vec::with_capacity(node.facts.len());
            for index in 0..node.facts.len() {
                // fits: operators have a dozen outputs at most
                let output = Output { node: id, index: index as u32 };
                let first = node.inputs.first().filter(|_| index == 0);
                let shared = first.and_then(|&input| {
                    let class = all.class_index(input);
                    let sole = uses[input.node.index()][input.index as usize] == 1
                        && !kept.contains(&input.node);
                    let is_owned = all.classes[class].is_owned && sole;
                    let is_static = |output| graph.fact(output).spec().is_some();
                    let alike = is_static(input) == is_static(output);
                    let OpFacts { kind, works_in_place, .. } = node.op.facts();
                    match node.op {
                        _ if kind == Kind::View => Some((class, is_owned)),
                        // spread from where it is
                        Op::Broadcast { .. } => Some((class, false)),
                        _ if works_in_place && is_owned && alike => {
                            all.in_place.insert(id);
                            Some((class, kind != Kind::Group))
                        }
                        _ => None,
                    }
                });
                here.push(match shared {
                    Some((class, is_owned)) => {
                        all.classes[class].members.push(output);
                        all.classes[class].is_owned = is_owned;
                        class
                    }
                    None => {
                        let is_owned = !is_brought(&node.op);
                        all.classes.push(Class { members: vec![output], is_owned });
                        all.classes.len() - 1
                    }
                });
            }
            all.of.push(here);
        }
        all
    }

    pub(crate) fn class_index(&self, output: Output) -> usize {
        self.of[output.node.index()][output.index as usize]
    }

    pub(crate) fn class(&self, output: Output) -> &Class {
        &self.classes[self.class_index(output)]
    }

    /// The nodes that write a class's memory in a run: whoever computes its members, and whoever
    /// changes a variable.
    pub(crate) fn writers(&self, graph: &Graph, class: &Class) -> Vec<NodeId> {
        let members = class.members.iter().map(|output| output.node);
        let computes = |id: &NodeId| !graph.node(*id).op.is_state() && !is_view(graph.node(*id));
        let mut writers: Vec<NodeId> = members.filter(computes).collect();
        if let Op::Variable { .. } = graph.node(class.root().node).op {
            let changes = graph.nodes().filter(|(_, node)| {
                node.inputs[..node.op.mutated_inputs()].contains(&class.root())
            });
            writers.extend(changes.map(|(id, _)| id));
        }
        writers
    }
}

/// True if it has its input's bytes, and changes none of them.
pub(crate) fn is_view(node: &Node) -> bool {
    match node.op {
        Op::Broadcast { .. } => !node.inputs.is_empty(),
        _ => node.op.is_view(),
    }
}

/// True if its value is there when a run begins, or others bring it while it goes on.
fn is_brought(op: &Op) -> bool {
    matches!(op.facts().kind, Kind::State | Kind::Recv | Kind::Group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Hint;
    use crate::op::Init;
    use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

    fn chain() -> (Graph, [NodeId; 6]) {
        let mut graph = Graph::new();
        let hint = Hint::Replica(0);
        let fact = Fact::known(DType::F32, &[2, 3]);
        let x = graph.add("x", hint, Op::Input { fact }, &[]).unwrap();
        let spec = TensorSpec::new(DType::F32, &[3, 3]).unwrap();
        let w = graph.variable("w", spec, Init::Zeros).unwrap();
        let op = Op::MatMul { transpose_a: false, transpose_b: false };
        let y = graph.add("y", hint, op, &[x.into(), w]).unwrap();
        let relu = graph.add("relu", hint, Op::Relu, &[y.into()]).unwrap();
        let to = vec![Dim::Known(6)];
        let flat = graph.add("flat", hint, Op::Reshape { to }, &[relu.into()]).unwrap();
        let again = graph.add("again", hint, Op::Relu, &[flat.into()]).unwrap();
        (graph, [x, w.node, y, relu, flat, again])
    }

    #[test]
    fn a_chain_of_sole_users_shares_one_piece_of_memory() {
        let (graph, [x, w, y, relu, flat, again]) = chain();
        let classes = Classes::new(&graph, &HashSet::new());
        let members = |id: NodeId| classes.class(id.into()).members.clone();
        assert_eq!(members(again), [y, relu, flat, again].map(Output::from));
        assert_eq!(classes.in_place, HashSet::from([relu, again]));
        assert_eq!((members(x).len(), members(w).len()), (1, 1));
        assert_eq!(classes.writers(&graph, classes.class(flat.into())), [y, relu, again]);
    }

    #[test]
    fn what_is_kept_or_used_twice_is_not_computed_over() {
        let (graph, [_, _, y, relu, flat, again]) = chain();
        let classes = Classes::new(&graph, &HashSet::from([y]));
        assert_eq!(classes.class(y.into()).members, [Output::from(y)]);
        assert_eq!(classes.class(again.into()).members, [relu, flat, again].map(Output::from));
        let (mut graph, _) = chain();
        graph.add("other", Hint::Replica(0), Op::Relu, &[flat.into()]).unwrap();
        let classes = Classes::new(&graph, &HashSet::new());
        assert_eq!(classes.class(flat.into()).members, [y, relu, flat].map(Output::from));
        assert_eq!(classes.in_place, HashSet::from([relu]));
    }

    #[test]
    fn a_view_of_state_is_not_computed_over() {
        let mut graph = Graph::new();
        let hint = Hint::Replica(0);
        let fact = Fact::known(DType::F32, &[4]);
        let x = graph.add("x", hint, Op::Input { fact }, &[]).unwrap();
        let to = vec![Dim::Known(2), Dim::Known(2)];
        let view = graph.add("view", hint, Op::Reshape { to }, &[x.into()]).unwrap();
        let relu = graph.add("relu", hint, Op::Relu, &[view.into()]).unwrap();
        let classes = Classes::new(&graph, &HashSet::new());
        assert_eq!(classes.class(x.into()).members, [x, view].map(Output::from));
        assert_eq!(classes.class(relu.into()).members, [Output::from(relu)]);
    }
}
