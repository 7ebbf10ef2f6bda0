//! Who is where: what the user pins, gradients beside what they are the gradients of, and what crosses for it.

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Plan, PlanOptions, Rule, RunId,
    RunSpec, Task, gradients, place, plan, simplify, verify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const ON: [Hint; 2] = [Hint::Task(Task::worker(0)), Hint::Task(Task::worker(1))];
const REPLICA: Hint = Hint::Replica(0);

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}

/// A network of one replica whose second layer, variable and all, is on worker 1.
struct Cut {
    graph: Graph,
    roots: Vec<NodeId>,
}

fn cut() -> Cut {
    let mut graph = Graph::new();
    let fact = Fact::known(DType::F32, &[2, 4]);
    let x: Output = graph.add("x", REPLICA, Op::Input { fact }, &[]).unwrap().into();
    let fact = Fact::known(DType::I32, &[2]);
    let labels: Output = graph.add("labels", REPLICA, Op::Input { fact }, &[]).unwrap().into();
    let product = Op::MatMul { transpose_a: false, transpose_b: true };
    let mut weights = Vec::new();
    let mut y = x;
    for (layer, at) in [REPLICA, ON[1], REPLICA].into_iter().enumerate() {
        let name = |what: &str| format!("{what}{layer}");
        let w = graph.variable_at(&name("w"), at, spec(&[4, 4]), Init::Zeros).unwrap();
        y = graph.add(&name("y"), at, product.clone(), &[y, w]).unwrap().into();
        y = graph.add(&name("relu"), at, Op::Relu, &[y]).unwrap().into();
        weights.push(w);
    }
    let loss = graph.add("loss", REPLICA, Op::SoftmaxCrossEntropy, &[y, labels]).unwrap();
    let found = gradients(&mut graph, "grad", REPLICA, loss.into(), &weights).unwrap();
    let mut roots = Vec::new();
    for (layer, (w, gradient)) in weights.iter().zip(found).enumerate() {
        let op = Op::Apply { rule: Rule::Sgd { rate: 0.1 } };
        let inputs = [*w, gradient.dense().unwrap()];
        let name = format!("update{layer}");
        roots.push(graph.add(&name, Hint::With(w.node), op, &inputs).unwrap());
    }
    let (graph, moved) = simplify(&graph, &roots).unwrap();
    let roots = roots.iter().map(|id| moved[id]).collect();
    Cut { graph, roots }
}

fn planned(Cut { graph, roots }: &Cut, cluster: Cluster) -> Plan {
    let placed = place(graph, cluster).unwrap();
    verify(&placed, "place").unwrap();
    let weights: Vec<NodeId> = (0..3).map(|at| placed.find(&format!("w{at}")).unwrap()).collect();
    let run = |name, roots: &[NodeId], fetch_to, followed_by| RunSpec {
        name,
        roots: roots.to_vec(),
        fetch_to,
        given: vec![],
        followed_by,
    };
    let runs = [
        run("train", roots, None, vec![0, 1]),
        run("fetch", &weights, Some(Task::worker(0)), vec![]),
    ];
    plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap()
}

#[test]
fn what_is_pinned_is_there_its_gradient_and_its_update_too() {
    let cut = cut();
    let placed = place(&cut.graph, Cluster::Workers { workers: 2 }).unwrap();
    let on = |worker| {
        let here = placed.nodes().filter(|(_, node)| node.task == Some(Task::worker(worker)));
        here.map(|(_, node)| (node.name.as_str(), node.op.name())).collect::<Vec<_>>()
    };
    let ops = |worker| -> Vec<&str> { on(worker).iter().map(|(_, op)| *op).collect() };
    // forward; then what flows back through the layer: to its weight, and to the layer before
    let pinned = ["Variable", "MatMul", "Relu", "ReluGrad", "MatMul", "MatMul", "ApplySgd"];
    assert_eq!(ops(1), pinned);
    assert_eq!(on(0).len() + on(1).len(), placed.len());
    assert!(on(0).iter().all(|(name, _)| !name.ends_with('1')), "{:?}", on(0));
}

#[test]
fn one_replica_on_two_workers_is_a_plan_and_only_activations_cross_it() {
    let plan = planned(&cut(), Cluster::Workers { workers: 2 });
    let crossing = |run: usize| -> Vec<(&str, usize, usize)> {
        let carries = plan.edges.iter().filter(|edge| edge.bytes() > Some(0));
        let sent = |nodes: &[Vec<NodeId>], part: usize, id| nodes[part].binary_search(&id).is_ok();
        carries
            .filter(|edge| sent(&plan.runs[run].nodes, edge.from, edge.send))
            .map(|edge| (edge.name.as_str(), edge.from, edge.to))
            .collect()
    };
    let trained = crossing(0);
    // there and back, in both directions; no weight and no weight's gradient
    let expected =
        [("relu0", 0, 1), ("relu1", 1, 0), ("grad/d_relu1_4", 0, 1), ("grad/d_relu0_7", 1, 0)];
    assert_eq!(trained, expected);
    // what worker 0 has no use for comes there all the same, to be looked at
    assert_eq!(crossing(1), [("w1", 1, 0)]);
    let fetched = plan.edges.iter().find(|edge| edge.name == "w1").unwrap();
    assert!(plan.parts[0].memory.is_kept(fetched.recv.into()));
    assert_eq!(plan.traffic(RunId(1)).written, 64);
}

#[test]
fn workers_without_a_replica_or_a_piece_of_one_have_nothing_to_do() {
    let plan = planned(&cut(), Cluster::Workers { workers: 4 });
    assert_eq!(plan.parts.len(), 4);
    for run in &plan.runs {
        assert!(run.nodes[2].is_empty() && run.nodes[3].is_empty());
    }
}

#[test]
fn one_process_has_everything_wherever_it_is_pinned() {
    let cut = cut();
    let local = place(&cut.graph, Cluster::Local).unwrap();
    assert!(local.nodes().all(|(_, node)| node.task == Some(Task::worker(0))));
    assert!(planned(&cut, Cluster::Local).edges.is_empty());
}

#[test]
fn a_pin_to_a_task_that_is_not_there_names_the_node_and_what_there_is() {
    let mut graph = Graph::new();
    graph.variable("w", spec(&[2]), Init::Zeros).unwrap();
    let missing = Hint::Task(Task::server(3));
    graph.add("far", missing, Op::NoOp, &[]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let error = place(&graph, cluster).unwrap_err();
    assert!(matches!(error, GraphError::NoSuchTask { task, .. } if task == Task::server(3)));
    let text = error.to_string();
    for part in ["node 'far'", "server 3", "it has worker 0 to 1 and server 0"] {
        assert!(text.contains(part), "{text}");
    }
    let error = place(&cut().graph, Cluster::Workers { workers: 1 }).unwrap_err().to_string();
    assert!(error.contains("on worker 1, which this cluster lacks; it has worker 0"), "{error}");
}

/// A tensor that two tasks use has a part of its gradient from each. They are added where it was made; and where one
/// task has both parts, there, so that one tensor leaves it.
#[test]
fn parts_of_a_gradient_are_added_where_the_fewest_bytes_move() {
    let mut graph = Graph::new();
    let server = Hint::Task(Task::server(0));
    let w = graph.variable_at("w", server, spec(&[4, 4]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::I32, &[4]);
    let labels = graph.add("labels", ON[0], Op::Input { fact }, &[]).unwrap().into();
    let shared = graph.add("shared", ON[0], Op::Tanh, &[w]).unwrap().into();
    let here = graph.add("here", ON[0], Op::Relu, &[shared]).unwrap().into();
    let there = graph.add("there", ON[1], Op::Relu, &[shared]).unwrap().into();
    let both = graph.add("both", ON[0], Op::Add, &[here, there]).unwrap().into();
    let twice = graph.add("twice", ON[0], Op::Mul, &[both, w]).unwrap().into();
    let loss = graph.add("loss", ON[0], Op::SoftmaxCrossEntropy, &[twice, labels]).unwrap();
    let dw = gradients(&mut graph, "grad", REPLICA, loss.into(), &[w]).unwrap()[0];
    let sums: Vec<(Hint, Vec<Hint>)> = graph
        .nodes()
        .filter(|(_, node)| node.name.starts_with("grad/sum"))
        .map(|(_, node)| {
            let of = |input: &Output| graph.node(input.node).hint;
            (node.hint, node.inputs.iter().map(of).collect())
        })
        .collect();
    // of `shared`, from either worker; of `w`, both from worker 0
    assert_eq!(sums, [(ON[0], vec![ON[1], ON[0]]), (ON[0], vec![ON[0], ON[0]])]);
    assert_eq!(graph.node(dw.dense().unwrap().node).hint, ON[0]);
}

#[test]
fn a_plans_digest_is_of_what_members_must_agree_on() {
    let two = Cluster::Workers { workers: 2 };
    let digest = planned(&cut(), two).digest();
    assert_eq!(digest, planned(&cut(), two).digest());
    let mut seen = vec![digest, planned(&cut(), Cluster::Workers { workers: 3 }).digest()];
    let mut changed = |change: fn(&mut Plan)| {
        let mut plan = planned(&cut(), two);
        change(&mut plan);
        seen.push(plan.digest());
    };
    changed(|plan| plan.edges[0].name.push('x'));
    changed(|plan| plan.edges[0].fact = Fact::known(DType::F32, &[4, 2]));
    changed(|plan| plan.edges.swap(0, 1));
    changed(|plan| plan.edges[0].reuse = tensorwire_graph::Reuse::Trusted);
    changed(|plan| plan.edges[0].transfer = tensorwire_graph::Transfer::Reference);
    changed(|plan| plan.runs[0].name = "other");
    changed(|plan| plan.runs[0].nodes[1].truncate(1));
    changed(|plan| plan.send_from = tensorwire_graph::SendFrom::Staging);
    changed(|plan| plan.parts[1].task = Task::server(0));
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "each of these is another plan");
}
