//! Who reads what was received, in one run of a part: a tensor that came over an edge is read by every node
//! that takes it, or a view of it, and is over when the last of them is done.

use std::collections::HashMap;

use tensorwire_graph::{EdgeId, NodeId, Op, Output, Part};

/// The readers of what is received, counted.
#[derive(Debug)]
pub(crate) struct Readers {
    /// By node: the received tensors that it reads, each once.
    reads: HashMap<NodeId, Vec<usize>>,
    /// The edges that somebody reads, and how many do.
    edges: Vec<(EdgeId, u32)>,
    left: Vec<u32>,
}

impl Readers {
    /// The readers among `nodes`, a run's share of `part`.
    pub(crate) fn new(part: &Part, nodes: &[NodeId]) -> Readers {
        let mut places: HashMap<EdgeId, usize> = HashMap::new();
        let mut edges: Vec<(EdgeId, u32)> = Vec::new();
        let mut reads = HashMap::new();
        for &id in nodes {
            let node = part.graph.node(id);
            if node.op.is_view() {
                continue;
            }
            let mut read: Vec<usize> = Vec::new();
            for edge in node.inputs.iter().flat_map(|input| received(part, *input)) {
                let place = *places.entry(edge).or_insert(edges.len());
                if place == edges.len() {
                    edges.push((edge, 0));
                }
                if !read.contains(&place) {
                    edges[place].1 += 1;
                    read.push(place);
                }
            }
            if !read.is_empty() {
                reads.insert(id, read);
            }
        }
        let left = edges.iter().map(|(_, count)| *count).collect();
        Readers { reads, edges, left }
    }

    /// Begins a run.
    pub(crate) fn start(&mut self) {
        self.left.clear();
        self.left.extend(self.edges.iter().map(|(_, count)| *count));
    }

    /// A node is done: calls `released` with each edge that nobody reads any more.
    pub(crate) fn complete(&mut self, node: NodeId, mut released: impl FnMut(EdgeId)) {
        let Some(read) = self.reads.get(&node) else { return };
        for place in read {
            self.left[*place] -= 1;
            if self.left[*place] == 0 {
                released(self.edges[*place].0);
            }
        }
    }
}

/// The edges that a tensor, or what it is a view of, came over.
pub(crate) fn received(part: &Part, output: Output) -> Vec<EdgeId> {
    let node = part.graph.node(output.node);
    match node.op {
        Op::Recv { edge, .. } => vec![edge],
        ref op if op.is_view() => {
            node.inputs.iter().flat_map(|input| received(part, *input)).collect()
        }
        _ => Vec::new(),
    }
}
