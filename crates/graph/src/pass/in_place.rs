//! Who computes over its input's bytes. A reshape always shares its input's memory; an element-wise
//! operator does where nobody else uses the input and the input is no state. So a tensor may have been
//! allocated several nodes before the one that gives it its value: Xue et al. §3.4's allocation site. Rows of a
//! tensor lie in it, and tensors that are joined lie in the whole.

use std::collections::{HashMap, HashSet};

use tensorwire_tensor::Fact;

use crate::error::GraphError;
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
    /// Where outputs that do not lie at their class's start do, in bytes.
    offsets: HashMap<Output, usize>,
    /// Outputs that a Join has behind each other.
    joined: HashSet<Output>,
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
        let joins = joins(graph);
        let mut of_join: HashMap<NodeId, usize> = HashMap::new();
        all.joined.extend(joins.keys());
        for (id, node) in graph.nodes() {
            let mut here = Vec::with_capacity(node.facts.len());
            for index in 0..node.facts.len() {
                // fits: operators have a dozen outputs at most
                let output = Output { node: id, index: index as u32 };
                if let Some(&(join, offset)) = joins.get(&output) {
                    let class = *of_join.entry(join).or_insert(all.classes.len());
                    if class == all.classes.len() {
                        all.classes.push(Class { members: Vec::new(), is_owned: false });
                    }
                    all.classes[class].members.push(output);
                    all.offsets.insert(output, offset);
                    here.push(class);
                    continue;
                }
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
                        Op::Rows { .. } | Op::Join => Some((class, false)),
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
                if let (Some(&input), Some(_)) = (first, shared) {
                    let offset = all.offset(input) + shift(node);
                    // a Join begins where its first input does
                    all.offsets.extend((offset > 0).then_some((output, offset)));
                }
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

    /// Where an output begins in its class's memory, in bytes.
    pub(crate) fn offset(&self, output: Output) -> usize {
        self.offsets.get(&output).copied().unwrap_or_default()
    }

    /// True if the output lies in a whole, with others.
    pub(crate) fn is_joined(&self, output: Output) -> bool {
        self.joined.contains(&output)
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

/// What Joins take: for each output the Join, and where in it the output lies, in bytes.
fn joins(graph: &Graph) -> HashMap<Output, (NodeId, usize)> {
    let mut joins = HashMap::new();
    for (id, node) in graph.nodes().filter(|(_, node)| node.op == Op::Join) {
        let mut offset = 0;
        for &input in &node.inputs {
            joins.insert(input, (id, offset));
            offset += bytes(graph, input);
        }
    }
    joins
}

/// Where a view begins in what it is a view of, in bytes.
fn shift(node: &Node) -> usize {
    match (&node.op, node.facts.first().and_then(Fact::spec)) {
        (Op::Rows { start, length }, Some(Ok(spec))) => spec.bytes() / length.max(&1) * start,
        _ => 0,
    }
}

/// The bytes of an output of known size.
fn bytes(graph: &Graph, output: Output) -> usize {
    graph.fact(output).spec().and_then(Result::ok).map_or(0, |spec| spec.bytes())
}

/// Checks that what is joined can lie together: it is received, computed, or copied from a device or to it, is of known size, and
/// is part of one whole only.
///
/// # Errors
/// [`GraphError::Invalid`] names the Join.
pub(crate) fn check_joins(graph: &Graph) -> Result<(), GraphError> {
    let mut seen = HashSet::new();
    for (_, node) in graph.nodes().filter(|(_, node)| node.op == Op::Join) {
        let fits = |input: &Output| {
            let made_by = &graph.node(input.node).op;
            let is_brought = matches!(made_by, Op::Recv { .. } | Op::CopyTo { .. });
            let is_made = is_brought || made_by.is_computed();
            is_made && graph.fact(*input).spec().is_some() && seen.insert(*input)
        };
        if !node.inputs.iter().all(fits) {
            let what =
                "joins what is neither received nor computed here, or is joined elsewhere, too"
                    .to_string();
            return Err(GraphError::Invalid { node: node.name.clone(), what });
        }
    }
    Ok(())
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
    use tensorwire_tensor::{DType, Dim, TensorSpec};

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
