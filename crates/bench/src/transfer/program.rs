//! The graph of a transfer and its plan: a variable on one task, a `reduce_max` on another. Nothing in
//! it says "send"; the partitioner does.

use tensorwire_base::Rank;
use tensorwire_graph::{
    Cluster, Edge, Graph, GraphError, Hint, Init, NodeId, Op, Output, Plan, RunId, RunSpec,
    SendFrom, place, plan,
};
use tensorwire_node::Exchange;
use tensorwire_tensor::{DType, TensorSpec};

/// Worker 0: it computes with the tensor.
pub(super) const RECEIVER: Rank = Rank(0);
/// Server 0: it has the variable.
pub(super) const SENDER: Rank = Rank(1);

/// The tensor goes to its `reduce_max`.
pub(super) const MOVE: RunId = RunId(0);
/// A small tensor comes back, so that the sender waits until the receiver has looked at all of the
/// large one: the plan guards what operators read, not what we read between runs.
pub(super) const ANSWER: RunId = RunId(1);

pub(super) const PAYLOAD: &str = "payload";
pub(super) const MAXIMUM: &str = "maximum";
const WORD: &str = "answer";
const HEARD: &str = "answered";

/// The plan for a tensor of f32 of `bytes` bytes.
pub(super) fn transfer_plan(bytes: usize, exchange: Exchange) -> Result<Plan, GraphError> {
    let shape = |source| GraphError::Shape { node: PAYLOAD.to_string(), source };
    let spec = TensorSpec::new(DType::F32, &[bytes / 4]).map_err(shape)?;
    let word = TensorSpec::new(DType::F32, &[1]).map_err(shape)?;
    let mut graph = Graph::new();
    let receiver = Hint::Replica(0);
    let payload = graph.variable(PAYLOAD, spec, Init::Zeros)?;
    let maximum = graph.add(MAXIMUM, receiver, Op::ReduceMax, &[payload])?;
    let variable = Op::Variable { spec: word, init: Init::Zeros };
    let word = graph.add(WORD, receiver, variable, &[])?;
    let heard = graph.add(HEARD, Hint::With(payload.node), Op::ReduceMax, &[word.into()])?;
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster)?;
    let run = |name, root: NodeId, followed_by| RunSpec {
        name,
        roots: vec![root],
        fetch_to: None,
        given: vec![],
        followed_by,
    };
    // placing keeps the nodes' ids
    let runs = [run("move", maximum, vec![0, 1]), run("answer", heard, vec![0])];
    let send_from = match exchange {
        Exchange::ZeroCopy => SendFrom::Origin,
        Exchange::Copy => SendFrom::Staging,
    };
    plan(&placed, &cluster.tasks(), &runs, send_from)
}

/// The edge that the tensor crosses.
pub(super) fn payload_edge(plan: &Plan) -> Option<&Edge> {
    plan.edges.iter().find(|edge| edge.name == PAYLOAD)
}

/// Where the receiver has the tensor.
pub(super) fn received(edge: &Edge) -> Output {
    edge.recv.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tensor_crosses_once_and_its_buffer_is_guarded() {
        for exchange in [Exchange::ZeroCopy, Exchange::Copy] {
            let plan = transfer_plan(4096, exchange).unwrap();
            let edge = payload_edge(&plan).unwrap();
            let (from, to) = (SENDER.index(), RECEIVER.index());
            assert_eq!((edge.from, edge.to, edge.spec.bytes()), (from, to, 4096));
            assert_eq!(plan.bytes_crossing(MOVE), 4096);
            assert_eq!(plan.bytes_crossing(ANSWER), 4);
            let guarded = plan.edges.iter().any(|edge| edge.name.starts_with('^'));
            assert!(guarded, "nothing else orders the next write behind the reduce_max");
        }
    }
}
