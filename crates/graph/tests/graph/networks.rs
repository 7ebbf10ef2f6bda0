//! Networks that plans are made of.

use tensorwire_graph::{
    Gradient, Graph, Hint, Init, NodeId, Op, Output, Rule, gradients, simplify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

pub(crate) fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}

/// A network of `layers` square layers, replicated over `workers`, its updates on the servers.
pub(crate) fn network(layers: usize, workers: u32) -> (Graph, Vec<NodeId>) {
    network_of(layers, workers, 4)
}

/// The same with weights of `width` × `width`.
pub(crate) fn network_of(layers: usize, workers: u32, width: usize) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut per_worker: Vec<Vec<Output>> = Vec::new();
    let mut weights = Vec::new();
    for worker in 0..workers {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("worker{worker}/{what}");
        let fact = Fact::known(DType::F32, &[2, width]);
        let mut y: Output = graph.add(&name("x"), hint, Op::Input { fact }, &[]).unwrap().into();
        let fact = Fact::known(DType::I32, &[2]);
        let labels = graph.add(&name("labels"), hint, Op::Input { fact }, &[]).unwrap().into();
        weights.clear();
        for layer in 0..layers {
            let spec = spec(&[width, width]);
            let w = graph.variable(&format!("w{layer}"), spec, Init::Zeros).unwrap();
            let op = Op::MatMul { transpose_a: false, transpose_b: true };
            y = graph.add(&name(&format!("y{layer}")), hint, op, &[y, w]).unwrap().into();
            weights.push(w);
        }
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &[y, labels]).unwrap();
        let grads = gradients(&mut graph, &name("grad"), hint, loss.into(), &weights).unwrap();
        let grads: Vec<Output> = grads.into_iter().filter_map(Gradient::dense).collect();
        per_worker.push(grads);
    }
    let mut updates = Vec::new();
    for (layer, w) in weights.iter().enumerate() {
        let mut inputs = vec![*w];
        inputs.extend(per_worker.iter().map(|grads| grads[layer]));
        let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        let hint = Hint::With(w.node);
        updates.push(graph.add(&format!("update{layer}"), hint, op, &inputs).unwrap());
    }
    let (graph, moved) = simplify(&graph, &updates).unwrap();
    (graph, updates.iter().map(|id| moved[id]).collect())
}
