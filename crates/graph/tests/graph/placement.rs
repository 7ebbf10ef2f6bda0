//! Who is where: what the user pins, gradients beside what they are the gradients of, and what crosses for it.

use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, Job, NodeId, Op, Output, Placement, Plan, PlanOptions,
    Rule, RunId, RunSpec, Task, gradients, place, plan, simplify, verify,
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
        let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        let inputs = [*w, gradient.dense().unwrap()];
        let name = format!("update{layer}");
        roots.push(graph.add(&name, Hint::With(w.node), op, &inputs).unwrap());
    }
    let (graph, moved) = simplify(&graph, &roots).unwrap();
    let roots = roots.iter().map(|id| moved[id]).collect();
    Cut { graph, roots }
}

fn planned(Cut { graph, roots }: &Cut, cluster: Cluster) -> Plan {
    let placed = place(graph, cluster, Placement::RoundRobin).unwrap();
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
    let placed = place(&cut.graph, Cluster::Workers { workers: 2 }, Placement::RoundRobin).unwrap();
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
    let local = place(&cut.graph, Cluster::Local, Placement::RoundRobin).unwrap();
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
    let error = place(&graph, cluster, Placement::RoundRobin).unwrap_err();
    assert!(matches!(error, GraphError::NoSuchTask { task, .. } if task == Task::server(3)));
    let text = error.to_string();
    for part in ["node 'far'", "server 3", "it has workers 0 to 1 and server 0"] {
        assert!(text.contains(part), "{text}");
    }
    let error = place(&cut().graph, Cluster::Workers { workers: 1 }, Placement::RoundRobin)
        .unwrap_err()
        .to_string();
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

/// Bytes of variables by server.
fn loads(graph: &Graph, servers: u32) -> Vec<usize> {
    loads_of(graph, Job::Server, servers)
}

fn loads_of(graph: &Graph, of: Job, count: u32) -> Vec<usize> {
    let mut loads = vec![0; count as usize];
    for (id, node) in graph.nodes() {
        match (&node.op, graph.node(id).task) {
            (Op::Variable { spec, .. }, Some(Task { job, index })) if job == of => {
                loads[index as usize] += spec.bytes();
            }
            _ => {}
        }
    }
    loads
}

/// A worker that multiplies by each of `sizes` matrices of so many rows of 64 bytes, and updates them.
fn chain(rows: &[usize]) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    for (at, rows) in rows.iter().enumerate() {
        let w = graph.variable(&format!("w{at}"), spec(&[*rows, 16]), Init::Zeros).unwrap();
        let dw = graph.add(&format!("dw{at}"), REPLICA, Op::Relu, &[w]).unwrap();
        let op = Op::Apply { rule: Rule::momentum(0.1), clipped: false };
        let slot = Op::Variable { spec: spec(&[*rows, 16]), init: Init::Zeros };
        let with = Hint::With(w.node);
        let slot = graph.add(&format!("w{at}/velocity"), with, slot, &[]).unwrap();
        let inputs = [w, slot.into(), dw.into()];
        roots.push(graph.add(&format!("w{at}/update"), with, op, &inputs).unwrap());
    }
    (graph, roots)
}

#[test]
fn servers_may_be_more_than_variables_where_rows_give_each_something() {
    let (graph, _) = chain(&[300, 8]);
    let on = |servers, placement| {
        let cluster = Cluster::ParameterServers { workers: 1, servers };
        place(&graph, cluster, placement)
    };
    let split = Placement::Balanced { split_above: Some(0) };
    let placed = on(5, split).unwrap();
    assert!(loads(&placed, 5).iter().all(|bytes| *bytes > 0));
    for whole in [Placement::RoundRobin, Placement::default()] {
        assert!(on(2, whole).is_ok());
        let error = on(3, whole).unwrap_err();
        assert!(matches!(error, GraphError::IdleServers { servers: 3, used: 2 }), "{error}");
    }
}

#[test]
fn servers_get_variables_by_bytes() {
    let (graph, _) = chain(&[64, 8, 32, 24, 16, 16]);
    let cluster = Cluster::ParameterServers { workers: 1, servers: 2 };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    // 64 + 16 rows, and 32 + 24 + 16 + 8, each with its velocity
    assert_eq!(loads(&placed, 2), [2 * 80 * 64, 2 * 80 * 64]);
    let turns = place(&graph, cluster, Placement::RoundRobin).unwrap();
    assert_eq!(loads(&turns, 2), [2 * (64 + 32 + 16) * 64, 2 * (8 + 24 + 16) * 64]);
    assert_eq!(turns.len(), graph.len());
}

/// Half of each variable and of each gradient crosses, where servers of their own take all of both.
#[test]
fn workers_that_are_servers_hold_equal_shares_and_keep_what_is_theirs() {
    let (graph, roots) = chain(&[300, 8, 8]);
    let cluster = Cluster::Colocated { workers: 2 };
    assert_eq!(cluster.tasks(), [Task::worker(0), Task::worker(1)]);
    let split = Placement::Balanced { split_above: Some(0) };
    let placed = place(&graph, cluster, split).unwrap();
    verify(&placed, "place").unwrap();
    let loads = loads_of(&placed, Job::Worker, 2);
    assert_eq!(loads.iter().sum::<usize>(), 2 * 316 * 64);
    assert!(loads.iter().all(|bytes| bytes.abs_diff(316 * 64) <= 2 * 8 * 64), "{loads:?}");

    let of = |id: &NodeId| placed.find_all(&graph.node(*id).name);
    let roots = roots.iter().flat_map(of).collect();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
    // one replica, at worker 0: only what worker 1 holds is read, and its gradient made, elsewhere
    assert_eq!(plan.traffic(RunId(0)).written, 2 * loads[1] as u64 / 2);

    let whole = place(&graph, cluster, Placement::RoundRobin).unwrap();
    assert_eq!(loads_of(&whole, Job::Worker, 2), [2 * 308 * 64, 2 * 8 * 64]);
    // a worker for which nothing is left is a worker still
    assert!(place(&graph, Cluster::Colocated { workers: 5 }, Placement::RoundRobin).is_ok());
}

#[test]
fn what_is_above_an_equal_share_is_split_by_rows() {
    let (graph, roots) = chain(&[300, 8, 8]);
    let cluster = Cluster::ParameterServers { workers: 2, servers: 3 };
    let whole = place(&graph, cluster, Placement::default());
    assert!(whole.is_ok_and(|placed| placed.len() == graph.len()), "19 KiB are too small");
    let split = Placement::Balanced { split_above: Some(0) };
    let placed = place(&graph, cluster, split).unwrap();
    verify(&placed, "place").unwrap();
    let loads = loads(&placed, 3);
    assert_eq!(loads.iter().sum::<usize>(), 2 * 316 * 64);
    assert!(loads.iter().all(|bytes| bytes.abs_diff(2 * 316 * 64 / 3) <= 2 * 8 * 64), "{loads:?}");
    let of = |name: &str| placed.find_all(name);
    let rows: Vec<(usize, Task)> = of("w0/update")
        .iter()
        .map(|id| {
            (placed.node(*id).piece.as_ref().unwrap().first_row, placed.node(*id).task.unwrap())
        })
        .collect();
    assert_eq!(rows, [(0, Task::server(0)), (105, Task::server(1)), (210, Task::server(2))]);
    assert_eq!(of("w0/velocity").len(), 3);
    assert_eq!(of("w1/update").len(), 1);

    let roots = roots.iter().flat_map(|id| of(&graph.node(*id).name)).collect();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
    let worker = &plan.parts[0];
    let spot =
        |name: &str| worker.memory.spot(worker.graph.find(name).unwrap().into()).unwrap().clone();
    let (weight, gradient) = (spot("w0"), spot("dw0"));
    for (server, rows) in [0..105, 105..210, 210..300].into_iter().enumerate() {
        let first = rows.start;
        let rows = format!("[{first}..{}]", rows.end);
        let received = spot(&format!("recv w0{rows} from server {server}"));
        assert_eq!(received.offset, weight.offset + first * 64, "received where the whole has it");
        assert_eq!(spot(&format!("dw0{rows}")).offset, gradient.offset + first * 64);
    }
    let written = plan.traffic(RunId(0)).written;
    assert_eq!(written, 2 * 316 * 64, "worker 1 uses nothing");
}

#[test]
fn what_a_server_reads_or_updates_by_rows_stays_whole() {
    let cluster = Cluster::ParameterServers { workers: 1, servers: 2 };
    let split = Placement::Balanced { split_above: Some(0) };
    let (mut graph, _) = chain(&[300, 8]);
    let w = graph.find("w0").unwrap();
    graph.add("norm", Hint::With(w), Op::Relu, &[w.into()]).unwrap();
    assert_eq!(place(&graph, cluster, split).unwrap().len(), graph.len());

    let mut graph = Graph::new();
    let table = graph.variable("table", spec(&[300, 16]), Init::Zeros).unwrap();
    graph.variable("other", spec(&[8, 16]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::I32, &[4]);
    let indices = graph.add("indices", REPLICA, Op::Input { fact }, &[]).unwrap();
    let rows = graph.add("rows", REPLICA, Op::Gather, &[table, indices.into()]).unwrap();
    let op = Op::ApplyRows { rule: Rule::sgd(0.1) };
    let inputs = [table, indices.into(), rows.into()];
    graph.add("update", Hint::With(table.node), op, &inputs).unwrap();
    assert_eq!(place(&graph, cluster, split).unwrap().len(), graph.len());
}

#[test]
fn a_join_of_what_a_part_holds_is_refused() {
    let (graph, _) = chain(&[300, 8]);
    let mut graph = place(&graph, Cluster::Local, Placement::default()).unwrap();
    let w = graph.find("w0").unwrap();
    graph.add("joined", Hint::With(w), Op::Join, &[w.into()]).unwrap();
    let graph = place(&graph, Cluster::Local, Placement::default()).unwrap();
    let roots = vec![graph.find("joined").unwrap()];
    let run = RunSpec { name: "run", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let tasks = Cluster::Local.tasks();
    let error = plan(&graph, &tasks, &[run], PlanOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains("'joined': joins what is neither received nor computed here"),
        "{error}"
    );
}
