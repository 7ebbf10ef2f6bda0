//! Partition, order and reuse proofs, on parameter-server graphs of a few nodes.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use tensorwire_graph::{
    Cluster, Graph, Hint, Init, NodeId, Op, Output, Plan, Reuse, Run, RunSpec, SendFrom, gradients,
    place, plan, simplify,
};
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}

/// A network of `layers` square layers, replicated over `workers`, its updates on the servers.
fn network(layers: usize, workers: u32) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut per_worker: Vec<Vec<Output>> = Vec::new();
    let mut weights = Vec::new();
    for worker in 0..workers {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("worker{worker}/{what}");
        let fact = Fact::known(DType::F32, &[2, 4]);
        let mut y: Output = graph.add(&name("x"), hint, Op::Input { fact }, &[]).unwrap().into();
        let fact = Fact::known(DType::I32, &[2]);
        let labels = graph.add(&name("labels"), hint, Op::Input { fact }, &[]).unwrap().into();
        weights.clear();
        for layer in 0..layers {
            let w = graph.variable(&format!("w{layer}"), spec(&[4, 4]), Init::Zeros).unwrap();
            let op = Op::MatMul { transpose_a: false, transpose_b: true };
            y = graph.add(&name(&format!("y{layer}")), hint, op, &[y, w]).unwrap().into();
            weights.push(w);
        }
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &[y, labels]).unwrap();
        let grads = gradients(&mut graph, &name("grad"), hint, loss.into(), &weights).unwrap();
        per_worker.push(grads);
    }
    let mut updates = Vec::new();
    for (layer, w) in weights.iter().enumerate() {
        let mut inputs = vec![*w];
        inputs.extend(per_worker.iter().map(|grads| grads[layer]));
        let op = Op::ApplySgd { rate: 0.1 };
        let hint = Hint::With(w.node);
        updates.push(graph.add(&format!("update{layer}"), hint, op, &inputs).unwrap());
    }
    let (graph, moved) = simplify(&graph, &updates).unwrap();
    (graph, updates.iter().map(|id| moved[id]).collect())
}

fn planned(layers: usize, workers: u32, servers: u32) -> Plan {
    let (graph, roots) = network(layers, workers);
    let cluster = Cluster::ParameterServers { workers, servers };
    let placed = place(&graph, cluster).unwrap();
    let train =
        RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[train], SendFrom::Origin).unwrap()
}

#[test]
fn every_edge_has_one_send_and_one_recv_of_the_same_tensor() {
    for (layers, workers, servers) in [(1, 1, 1), (3, 2, 2), (4, 3, 4)] {
        let plan = planned(layers, workers, servers);
        let mut sends = HashSet::new();
        for edge in &plan.edges {
            let (from, to) = (&plan.parts[edge.from], &plan.parts[edge.to]);
            assert_ne!(edge.from, edge.to);
            assert_eq!(from.graph.node(edge.send).op, Op::Send { edge: edge.id });
            let recv = from.graph.node(edge.send);
            assert!(sends.insert((edge.from, edge.send)));
            let Op::Recv { edge: id, fact } = &to.graph.node(edge.recv).op else {
                panic!("{} is no Recv", to.graph.node(edge.recv).name)
            };
            assert_eq!((*id, fact), (edge.id, &Fact::from(&edge.spec)));
            if let [sent] = recv.inputs[..] {
                assert_eq!(from.graph.fact(sent), fact, "{}", edge.name);
            }
        }
        let count = |p: usize, f: fn(&Op) -> bool| {
            plan.parts[p].graph.nodes().filter(|(_, n)| f(&n.op)).count()
        };
        let total = |f: fn(&Op) -> bool| (0..plan.parts.len()).map(|p| count(p, f)).sum::<usize>();
        assert_eq!(total(|op| matches!(op, Op::Send { .. })), plan.edges.len());
        assert_eq!(total(|op| matches!(op, Op::Recv { .. })), plan.edges.len());
        // each worker gets every weight once though two nodes read it, and gives every gradient
        let bytes = plan.edges.iter().filter(|e| e.spec.bytes() > 0).count();
        assert_eq!(bytes, 2 * layers * workers as usize);
        let run = tensorwire_graph::RunId(0);
        assert_eq!(plan.bytes_crossing(run), (2 * layers * workers as usize * 64) as u64);
    }
}

#[test]
fn what_crosses_is_registered_and_places_do_not_overlap() {
    let plan = planned(3, 2, 2);
    for part in &plan.parts {
        let mut spots = vec![];
        for (id, node) in part.graph.nodes() {
            for index in 0..node.facts.len() as u32 {
                let spot = part.memory.spot(Output { node: id, index }).unwrap();
                assert_eq!(spot.offset % 64, 0);
                spots.push((spot.lane == tensorwire_graph::Lane::Registered, spot));
            }
            if let Op::Send { .. } = node.op {
                for input in &node.inputs {
                    let spot = part.memory.spot(*input).unwrap();
                    assert_eq!(spot.lane, tensorwire_graph::Lane::Registered, "{}", node.name);
                }
            }
        }
        spots.sort_by_key(|(lane, spot)| (*lane, spot.offset));
        for pair in spots.windows(2) {
            let ((lane, a), (other, b)) = (&pair[0], &pair[1]);
            assert!(lane != other || a.offset + a.spec.bytes() <= b.offset);
        }
    }
}

#[test]
fn an_update_waits_for_every_reader_of_its_variable() {
    let plan = planned(2, 2, 1);
    let server = &plan.parts[2];
    let update = server.graph.find("update0").unwrap();
    let first: Vec<&str> = server
        .order
        .iter()
        .filter(|(_, then)| *then == update)
        .map(|(first, _)| server.graph.node(*first).name.as_str())
        .collect();
    assert_eq!(first, ["send w0 to worker 0", "send w0 to worker 1"]);
}

/// Xue et al. §4's argument holds when one server has everything...
#[test]
fn reuse_is_proved_where_the_gradient_of_an_earlier_layer_goes_to_the_same_server() {
    let plan = planned(3, 2, 1);
    for edge in &plan.edges {
        assert_eq!(edge.reuse, Reuse::Proved, "{}", edge.name);
    }
}

/// ... and fails when it does not: the worker has sent the gradient of w1 and still reads w1 to
/// compute the gradient of w0, which goes to the other server.
#[test]
fn a_credit_guards_the_weights_that_are_read_after_their_gradient_was_sent() {
    let plan = planned(2, 1, 2);
    let w1 = plan.edges.iter().find(|e| e.name == "w1").unwrap();
    let Reuse::Credit { readers } = &w1.reuse else { panic!("{:?}", w1.reuse) };
    assert_eq!(readers.len(), 1, "{readers:?}");
    assert!(readers[0].starts_with("worker0/grad/d_worker0_y0"), "{readers:?}");
    let w0 = plan.edges.iter().find(|e| e.name == "w0").unwrap();
    assert_eq!(w0.reuse, Reuse::Proved);
    let credit = plan.edges.iter().find(|e| e.reuse == Reuse::Empty).unwrap();
    assert_eq!((credit.from, credit.to), (w1.to, w1.from), "the credit runs back");
    let runs_it = |run: &Run| run.nodes[credit.to].contains(&credit.recv);
    assert!(runs_it(&plan.runs[0]));
}

#[test]
fn a_run_can_fetch_and_a_later_run_takes_what_was_fetched_as_given() {
    let (graph, roots) = network(2, 2);
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster).unwrap();
    let tasks = cluster.tasks();
    let weights: Vec<NodeId> = ["w0", "w1"].map(|w| placed.find(w).unwrap()).to_vec();
    let y1 = placed.find("worker0/y1").unwrap();
    let run = |name, roots: &[NodeId], fetch_to, given: &[NodeId], followed_by: &[usize]| RunSpec {
        name,
        roots: roots.to_vec(),
        fetch_to,
        given: given.to_vec(),
        followed_by: followed_by.to_vec(),
    };
    let runs = [
        run("train", &roots, None, &[], &[0, 1]),
        run("fetch", &weights, Some(tasks[0]), &[], &[2]),
        run("evaluate", &[y1], None, &weights, &[2]),
    ];
    let plan = plan(&placed, &tasks, &runs, SendFrom::Origin).unwrap();
    let names = |run: usize, part: usize| -> Vec<&str> {
        let nodes = plan.runs[run].nodes[part].iter();
        nodes.map(|id| plan.parts[part].graph.node(*id).name.as_str()).collect()
    };
    assert_eq!(names(1, 0), ["recv w0 from server 0", "recv w1 from server 0"]);
    assert_eq!(names(1, 1), [""; 0]);
    assert_eq!(names(1, 2), ["w0", "send w0 to worker 0", "w1", "send w1 to worker 0"]);
    assert_eq!(names(2, 0), ["worker0/x", "worker0/y0", "worker0/y1"]);
    assert_eq!(names(2, 2), [""; 0]);
}

#[test]
fn the_plan_is_the_same_every_time() {
    let text = |plan: &Plan| format!("{:?} {:?}", plan.edges, plan.runs);
    assert_eq!(text(&planned(4, 3, 3)), text(&planned(4, 3, 3)));
    assert_eq!(planned(4, 3, 3).to_dot(), planned(4, 3, 3).to_dot());
}

#[test]
fn an_edge_of_unknown_size_is_refused_by_name() {
    let mut graph = Graph::new();
    let fact = Fact { dtype: DType::F32, dims: vec![Dim::Dynamic(Symbol(0)), Dim::Known(4)] };
    let hint = Hint::Replica(0);
    let x = graph.add("x", hint, Op::Input { fact }, &[]).unwrap();
    let v = graph.variable("v", spec(&[1]), Init::Zeros).unwrap();
    let sink = graph.add("max", Hint::With(v.node), Op::ReduceMax, &[x.into()]);
    assert!(sink.is_err() || x.index() < v.node.index());
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster).unwrap();
    let roots = vec![sink.unwrap()];
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![] };
    let error = plan(&placed, &cluster.tasks(), &[run], SendFrom::Origin).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("'x' crosses from worker 0 to server 0 as f32[?0×4]"), "{text}");
}
