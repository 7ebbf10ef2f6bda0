//! The graph of a transfer and its plan: a variable on one task, a `reduce_max` on another. Nothing in
//! it says "send"; the partitioner does.

use tensorwire_base::Rank;
use tensorwire_graph::{
    Cluster, Edge, Graph, GraphError, Hint, Init, NodeId, Op, Placement, Plan, RunId, RunSpec,
    place, plan,
};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

use super::{Sizes, TransferSpec};

/// Worker 0: it computes with the tensor.
pub(super) const RECEIVER: Rank = Rank(0);
/// Server 0: it has the variable.
pub(super) const SENDER: Rank = Rank(1);

/// The tensor goes to its `reduce_max`.
pub(super) const MOVE: RunId = RunId(0);
/// The receiver looks at all of it.
pub(super) const LOOK: RunId = RunId(1);
/// A small tensor comes back, so that the sender waits until the receiver has looked.
pub(super) const ANSWER: RunId = RunId(2);
/// Of that tensor: an element of f32.
pub(super) const ANSWER_BYTES: u64 = 4;

pub(super) const PAYLOAD: &str = "payload";
pub(super) const RECEIVED: &str = "received";
pub(super) const MAXIMUM: &str = "maximum";
const ANCHOR: &str = "anchor";
const WORD: &str = "answer";
const HEARD: &str = "answered";

/// The plan for a tensor of f32 of `bytes` bytes.
pub(super) fn transfer_plan(spec: &TransferSpec) -> Result<Plan, GraphError> {
    let shape = |source| GraphError::Shape { node: PAYLOAD.to_string(), source };
    let word = TensorSpec::new(DType::F32, &[1]).map_err(shape)?;
    let mut graph = Graph::new();
    let receiver = Hint::Replica(0);
    // what is placed with it is on the server
    let anchor = graph.variable(ANCHOR, word.clone(), Init::Zeros)?;
    let dim = match spec.sizes {
        Sizes::Static => Dim::Known(spec.bytes / 4),
        Sizes::Dynamic => Dim::Dynamic(graph.symbol()),
    };
    let input = Op::Input { fact: Fact { dtype: DType::F32, dims: vec![dim] } };
    let payload = graph.add(PAYLOAD, Hint::With(anchor.node), input, &[])?;
    let view = Op::Reshape { to: vec![dim] };
    let received = graph.add(RECEIVED, receiver, view, &[payload.into()])?;
    let maximum = graph.add(MAXIMUM, receiver, Op::ReduceMax, &[payload.into()])?;
    let variable = Op::Variable { spec: word, init: Init::Zeros };
    let word = graph.add(WORD, receiver, variable, &[])?;
    let heard = graph.add(HEARD, Hint::With(anchor.node), Op::ReduceMax, &[word.into()])?;
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin)?;
    let run = |name, root: NodeId, given: &[NodeId], followed_by| RunSpec {
        name,
        roots: vec![root],
        fetch_to: None,
        given: given.to_vec(),
        followed_by,
    };
    // placing keeps the nodes' ids
    let runs = [
        run("move", maximum, &[], vec![0, 1]),
        run("look", received, &[payload], vec![2]),
        run("answer", heard, &[], vec![0]),
    ];
    // both ends are on one host
    let options = spec.exchange.plan_options(spec.transport, &[0, 0]);
    plan(&placed, &cluster.tasks(), &runs, options)
}

/// The edge that the tensor crosses.
pub(super) fn payload_edge(plan: &Plan) -> Option<&Edge> {
    plan.edges.iter().find(|edge| edge.name == PAYLOAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{Reuse, RunTraffic};
    use tensorwire_launch::Transport;
    use tensorwire_train::Exchange;

    #[test]
    fn the_tensor_crosses_once_and_its_memory_is_guarded() {
        for transport in [Transport::Shm, Transport::Tcp, Transport::Verbs] {
            for exchange in [Exchange::ZeroCopy, Exchange::Write, Exchange::Copy] {
                for sizes in [Sizes::Static, Sizes::Dynamic] {
                    let spec = TransferSpec::new(transport, exchange, sizes, 4096, true);
                    let plan = transfer_plan(&spec).unwrap();
                    let edge = payload_edge(&plan).unwrap();
                    assert_eq!((edge.from, edge.to), (SENDER.index(), RECEIVER.index()));
                    let RunTraffic { written, by_reference, dynamic, .. } = plan.traffic(MOVE);
                    let expected = match (sizes, exchange, transport) {
                        (Sizes::Dynamic, _, _) => (0, 0, 1),
                        (_, Exchange::ZeroCopy, Transport::Shm) => (0, 4096, 0),
                        _ => (4096, 0, 0),
                    };
                    assert_eq!((written, by_reference, dynamic), expected, "{spec:?}");
                    assert_eq!(plan.traffic(ANSWER).written, ANSWER_BYTES);
                    // nothing in the graph orders the next tensor behind the reduce_max
                    let is_guarded = match sizes {
                        Sizes::Static => matches!(edge.reuse, Reuse::Credit { .. }),
                        Sizes::Dynamic => edge.reuse == Reuse::Acknowledged,
                    };
                    assert!(is_guarded, "{spec:?}: {:?}", edge.reuse);
                }
            }
        }
    }
}
