//! Gradients, simplification and placement, on small graphs whose results can be written down.

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, Job, NodeId, Op, Output, Placement, Rule, Task,
    gradients, place, simplify, verify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const HINT: Hint = Hint::Replica(0);

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}

/// loss of softmax(x·Wᵀ + b) with one layer: the inputs, the loss, the variables.
fn one_layer(graph: &mut Graph) -> (Output, Vec<Output>) {
    let fact = Fact::known(DType::F32, &[4, 3]);
    let x = graph.add("x", HINT, Op::Input { fact }, &[]).unwrap().into();
    let fact = Fact::known(DType::I32, &[4]);
    let labels = graph.add("labels", HINT, Op::Input { fact }, &[]).unwrap().into();
    let w = graph.variable("w", spec(&[2, 3]), Init::Zeros).unwrap();
    let b = graph.variable("b", spec(&[2]), Init::Zeros).unwrap();
    let product = Op::MatMul { transpose_a: false, transpose_b: true };
    let y = graph.add("y", HINT, product, &[x, w]).unwrap().into();
    let z = graph.add("z", HINT, Op::BiasAdd, &[y, b]).unwrap().into();
    let loss = graph.add("loss", HINT, Op::SoftmaxCrossEntropy, &[z, labels]).unwrap();
    (loss.into(), vec![w, b])
}

#[test]
fn a_gradient_has_the_shape_of_its_variable() {
    let mut graph = Graph::new();
    let (loss, variables) = one_layer(&mut graph);
    let found = gradients(&mut graph, "grad", HINT, loss, &variables).unwrap();
    for (gradient, variable) in found.iter().zip(&variables) {
        assert_eq!(graph.fact(gradient.dense().unwrap()), graph.fact(*variable));
    }
    verify(&graph, "gradients").unwrap();
    // x needs no gradient: no product computes one
    let products = graph.nodes().filter(|(_, n)| matches!(n.op, Op::MatMul { .. })).count();
    assert_eq!(products, 2, "y, dw");
}

#[test]
fn simplification_drops_the_factor_one_and_what_nobody_needs() {
    let mut graph = Graph::new();
    let (loss, variables) = one_layer(&mut graph);
    let found = gradients(&mut graph, "grad", HINT, loss, &variables).unwrap();
    let roots: Vec<NodeId> = found.iter().map(|g| g.dense().unwrap().node).collect();
    graph.add("idle", HINT, Op::NoOp, &[]).unwrap();
    let (small, moved) = simplify(&graph, &roots).unwrap();
    verify(&small, "simplify").unwrap();
    assert!(!small.nodes().any(|(_, n)| matches!(n.op, Op::ScaleBy | Op::Fill { .. } | Op::NoOp)));
    let db = small.node(moved[&roots[1]]);
    assert_eq!(db.op, Op::SumRows);
    assert_eq!(db.inputs, [Output { node: small.find("loss").unwrap(), index: 1 }]);
}

#[test]
fn an_output_with_two_users_adds_their_gradients() {
    let mut graph = Graph::new();
    let w = graph.variable("w", spec(&[4, 2]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::I32, &[4]);
    let labels = graph.add("labels", HINT, Op::Input { fact }, &[]).unwrap().into();
    let relu = graph.add("relu", HINT, Op::Relu, &[w]).unwrap().into();
    let sum = graph.add("sum", HINT, Op::Add, &[w, relu]).unwrap().into();
    let loss = graph.add("loss", HINT, Op::SoftmaxCrossEntropy, &[sum, labels]).unwrap();
    let dw = gradients(&mut graph, "grad", HINT, loss.into(), &[w]).unwrap()[0].dense().unwrap();
    let total = graph.node(dw.node);
    assert_eq!(total.op, Op::Add);
    assert_eq!(graph.node(total.inputs[1].node).op, Op::ReluGrad);
}

#[test]
fn what_has_no_gradient_says_so() {
    let mut graph = Graph::new();
    let w = graph.variable("w", spec(&[4, 2]), Init::Zeros).unwrap();
    let max = graph.add("max", HINT, Op::ReduceMax, &[w]).unwrap();
    let error = gradients(&mut graph, "grad", HINT, max.into(), &[w]).unwrap_err();
    assert!(matches!(error, GraphError::NoGradient { ref node, .. } if node == "max"), "{error}");
    let error = gradients(&mut graph, "grad2", HINT, w, &[w]).unwrap_err();
    assert!(matches!(error, GraphError::LossNotScalar { .. }), "{error}");
}

#[test]
fn variables_go_round_robin_and_updates_to_their_variable() {
    let mut graph = Graph::new();
    let mut updates = vec![];
    for name in ["a", "b", "c"] {
        let v = graph.variable(name, spec(&[2]), Init::Zeros).unwrap();
        let g = graph.add(&format!("g{name}"), HINT, Op::Relu, &[v]).unwrap().into();
        let step = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        let hint = Hint::With(v.node);
        updates.push(graph.add(&format!("update {name}"), hint, step, &[v, g]).unwrap());
    }
    let cluster = Cluster::ParameterServers { workers: 1, servers: 2 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let server = |index| Some(Task { job: Job::Server, index });
    let tasks: Vec<_> = updates.iter().map(|id| placed.node(*id).task).collect();
    assert_eq!(tasks, [server(0), server(1), server(0)]);
    let worker = placed.node(placed.find("ga").unwrap()).task;
    assert_eq!(worker, Some(Task { job: Job::Worker, index: 0 }));
    let local = place(&graph, Cluster::Local, Placement::RoundRobin).unwrap();
    assert!(local.nodes().all(|(_, n)| n.task == Some(Task { job: Job::Worker, index: 0 })));
}

#[test]
fn a_cluster_that_does_not_fit_is_refused() {
    let mut graph = Graph::new();
    graph.variable("a", spec(&[2]), Init::Zeros).unwrap();
    let try_place = |workers, servers| {
        place(&graph, Cluster::ParameterServers { workers, servers }, Placement::RoundRobin)
            .unwrap_err()
            .to_string()
    };
    assert!(try_place(1, 2).starts_with("of 2 servers only 1 would hold a variable, or rows"));
    assert_eq!(try_place(0, 1), "a cluster needs at least one worker");
    assert_eq!(try_place(1, 0), "a cluster needs at least one server");
    let wrong = graph.variable("a", spec(&[3]), Init::Zeros).unwrap_err();
    assert!(matches!(wrong, GraphError::VariableRedeclared { .. }));
}
