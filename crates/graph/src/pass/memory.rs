//! The memory plan: where each output of a part lives. What crosses lives in the registered lane, so
//! that a send copies nothing and a receive lands where the next operator reads; the rest is private.

use std::collections::{HashMap, HashSet};

use tensorwire_tensor::TensorSpec;

use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Output};
use crate::op::Op;
use crate::pass::infer::static_spec;

/// Offsets are multiples of this, in bytes: a cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;

/// The two arenas of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Registered with the fabric: peers write here, and sends read from here.
    Registered,
    /// This process's own.
    Private,
}

/// The place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub lane: Lane,
    /// Bytes from the lane's start.
    pub offset: usize,
    pub spec: TensorSpec,
}

/// Where the sender's tensor is when its write starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFrom {
    /// Where the operator that made it put it: in the registered lane. No copy (RDMA.zerocp).
    Origin,
    /// In a registered place of the Send's own, copied there first: Xue et al.'s RDMA.cp (§5.1).
    Staging,
}

/// The places of all tensors of a part.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlan {
    pub registered_bytes: usize,
    pub private_bytes: usize,
    spots: HashMap<Output, Spot>,
    staging: HashMap<NodeId, Spot>,
}

impl MemoryPlan {
    /// Where an output lives.
    pub fn spot(&self, output: Output) -> Option<&Spot> {
        self.spots.get(&output)
    }

    /// Where a Send copies its tensor first; none: it writes from where the tensor is.
    pub fn staging(&self, send: NodeId) -> Option<&Spot> {
        self.staging.get(&send)
    }

    /// A fresh place at the end of a lane.
    fn reserve(&mut self, node: &str, lane: Lane, spec: TensorSpec) -> Result<Spot, GraphError> {
        let end = match lane {
            Lane::Registered => &mut self.registered_bytes,
            Lane::Private => &mut self.private_bytes,
        };
        let offset = *end;
        *end = advance(offset, spec.bytes()).ok_or_else(|| GraphError::Invalid {
            node: node.to_string(),
            what: "the tensors up to here exceed the address space".to_string(),
        })?;
        Ok(Spot { lane, offset, spec })
    }
}

/// Gives every output of a part its own place.
///
/// # Errors
/// When an output's size is not known, or the sum does not fit an address space.
pub(crate) fn plan_memory(graph: &Graph, send_from: SendFrom) -> Result<MemoryPlan, GraphError> {
    let mut plan = MemoryPlan::default();
    let crosses = match send_from {
        SendFrom::Origin => crossing_outputs(graph),
        SendFrom::Staging => HashSet::new(),
    };
    for (id, node) in graph.nodes() {
        for (index, fact) in node.facts.iter().enumerate() {
            // fits: operators have at most two outputs
            let output = Output { node: id, index: index as u32 };
            let spec = static_spec(&node.name, fact)?;
            let registered = matches!(node.op, Op::Recv { .. }) || crosses.contains(&output);
            let lane = if registered { Lane::Registered } else { Lane::Private };
            let spot = plan.reserve(&node.name, lane, spec)?;
            plan.spots.insert(output, spot);
        }
        if let (Op::Send { .. }, SendFrom::Staging, [sent]) =
            (&node.op, send_from, &node.inputs[..])
        {
            let spec = static_spec(&node.name, graph.fact(*sent))?;
            let spot = plan.reserve(&node.name, Lane::Registered, spec)?;
            plan.staging.insert(id, spot);
        }
    }
    Ok(plan)
}

fn crossing_outputs(graph: &Graph) -> HashSet<Output> {
    let sends = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Send { .. }));
    sends.flat_map(|(_, node)| node.inputs.iter().copied()).collect()
}

fn advance(offset: usize, bytes: usize) -> Option<usize> {
    offset.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)
}
