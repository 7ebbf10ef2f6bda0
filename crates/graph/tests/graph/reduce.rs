//! All-reduces as edges: who makes which mean of what, in which order, and what is left of the rest of the plan.

use std::collections::HashMap;

use tensorwire_base::Space;
use tensorwire_graph::{
    AllReduceBy, Cluster, DeviceCrossing, DeviceTasks, Gradient, Graph, Hint, Init, NodeId, Op,
    Output, Part, Placement, Plan, PlanOptions, Reuse, Rule, RunId, RunSpec, SharedMemory, Task,
    gradients, place, plan, simplify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const ROWS: usize = 64;
/// Bytes of the first two vectors; the third has an eighth.
const LARGE: u64 = (ROWS * 64 * 4) as u64;

/// Workers with weights of their own. With `eager`, each updates before the next worker's gradients are declared.
fn network(workers: u32, eager: bool) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    let mut late = Vec::new();
    for worker in 0..workers {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("replica{worker}/{what}");
        let input = |graph: &mut Graph, what: &str, dtype, dims: &[usize]| {
            let fact = Fact::known(dtype, dims);
            Output::from(graph.add(&name(what), hint, Op::Input { fact }, &[]).unwrap())
        };
        let x = input(&mut graph, "x", DType::F32, &[8, ROWS]);
        let labels = input(&mut graph, "labels", DType::I32, &[8]);
        let w = [("w0", [ROWS, 64]), ("w1", [64, 64]), ("w2", [64, 8])].map(|(what, dims)| {
            let spec = TensorSpec::new(DType::F32, &dims).unwrap();
            graph.variable_at(&name(what), hint, spec, Init::Zeros).unwrap()
        });
        let mut y = x;
        for (layer, w) in w.iter().enumerate() {
            let product = Op::MatMul { transpose_a: false, transpose_b: false };
            y = graph.add(&name(&format!("y{layer}")), hint, product, &[y, *w]).unwrap().into();
        }
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &[y, labels]).unwrap();
        let made = gradients(&mut graph, &name("gradient"), hint, loss.into(), &w).unwrap();
        let made = made.into_iter().filter_map(Gradient::dense);
        for (vector, (w, gradient)) in (0..).zip(w.into_iter().zip(made)) {
            let op = Op::AllReduce { vector };
            let mean = graph.add(&name(&format!("mean{vector}")), hint, op, &[gradient]).unwrap();
            roots.push(mean);
            late.push((worker, vector, w, mean));
            if eager {
                update(&mut graph, &mut roots, late.pop().unwrap());
            }
        }
    }
    late.into_iter().for_each(|late| update(&mut graph, &mut roots, late));
    let (graph, moved) = simplify(&graph, &roots).unwrap();
    (graph, roots.iter().map(|id| moved[id]).collect())
}

fn update(
    graph: &mut Graph,
    roots: &mut Vec<NodeId>,
    (worker, vector, w, mean): (u32, u32, Output, NodeId),
) {
    let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
    let name = format!("replica{worker}/update{vector}");
    roots.push(graph.add(&name, Hint::With(w.node), op, &[w, mean.into()]).unwrap());
}

fn planned(workers: u32, eager: bool, options: PlanOptions) -> Plan {
    let (graph, roots) = network(workers, eager);
    let cluster = Cluster::Workers { workers };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

fn by_edges(groups: u32, shared_memory: SharedMemory) -> PlanOptions {
    PlanOptions {
        all_reduce: AllReduceBy::Edges { groups, split_above: 8 << 10 },
        devices: DeviceTasks::All,
        device_crossing: DeviceCrossing::Direct,
        shared_memory,
        ..PlanOptions::default()
    }
}

/// The means that a part makes, each with the tasks whose tensors it takes, in this order.
fn means(plan: &Plan, at: usize) -> HashMap<String, Vec<Task>> {
    let part = &plan.parts[at];
    let from = |input: &Output| {
        let edge = plan.edges.iter().find(|edge| edge.to == at && edge.recv == input.node);
        edge.map_or(part.task, |edge| plan.parts[edge.from].task)
    };
    let means = part.graph.nodes().filter(|(_, node)| node.op == Op::Mean);
    means.map(|(_, node)| (node.name.clone(), node.inputs.iter().map(from).collect())).collect()
}

fn bytes_of_means(part: &Part) -> u64 {
    let means = part.graph.nodes().filter(|(_, node)| node.op == Op::Mean);
    // fits: sizes in memory
    means.map(|(id, _)| part.graph.fact(id.into()).spec().unwrap().unwrap().bytes() as u64).sum()
}

#[test]
fn each_worker_makes_its_share_of_the_means_of_what_all_give_in_their_order() {
    for (workers, eager) in [(2, false), (3, false), (4, true)] {
        for shared_memory in [SharedMemory::Used, SharedMemory::Unused, SharedMemory::None] {
            let plan = planned(workers, eager, by_edges(1, shared_memory.clone()));
            let all: Vec<Task> = (0..workers).map(Task::worker).collect();
            let total: u64 = plan.parts.iter().map(bytes_of_means).sum();
            assert_eq!(total, 2 * LARGE + LARGE / 8, "nothing twice");
            for (at, part) in plan.parts.iter().enumerate() {
                for (mean, of) in means(&plan, at) {
                    assert_eq!(of, all, "{mean}");
                }
                let own = bytes_of_means(part);
                let equal = total / u64::from(workers);
                // what is not split is one's
                assert!(own.abs_diff(equal) <= LARGE / 8, "{own} of {total} at {}", part.task);
                let left = part.graph.nodes().find(|(_, node)| node.op.vector().is_some());
                assert!(left.is_none(), "{left:?}");
                // one for each of its variables
                let updates = part.graph.nodes().filter(|(_, n)| n.op.mutated_inputs() > 0);
                assert_eq!(updates.count(), 3);
            }
            for edge in plan.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
                assert_eq!(edge.space, Space::Device(0), "{}", edge.name);
                assert_eq!(edge.reuse, Reuse::Proved, "{}", edge.name);
            }
            let traffic = plan.traffic(RunId(0));
            assert_eq!(traffic.to_host, 0);
            // what all give but one, and what all get but one
            let crosses = 2 * (u64::from(workers) - 1) * total;
            assert_eq!(traffic.written + traffic.by_reference, crosses);
            assert_eq!(traffic.by_reference > 0, shared_memory == SharedMemory::Used);
        }
    }
}

#[test]
fn groups_take_no_note_of_each_other() {
    let plan = planned(4, false, by_edges(2, SharedMemory::Used));
    for (at, part) in plan.parts.iter().enumerate() {
        let group = [0, 2].map(|member| Task::worker(member + part.task.index % 2));
        let means = means(&plan, at);
        assert!(!means.is_empty(), "{}", part.task);
        assert!(means.values().all(|of| *of == group), "{means:?}");
    }
    assert!(plan.edges.iter().all(|edge| edge.from % 2 == edge.to % 2));
}

/// Variables on a server, which the first worker of each group alone deals with.
fn before_a_server(workers: u32, groups: u32, devices: DeviceTasks) -> Plan {
    let mut graph = Graph::new();
    let spec = TensorSpec::new(DType::F32, &[ROWS, 64]).unwrap();
    let w = graph.variable("w", spec.clone(), Init::Zeros).unwrap();
    let (mut means, mut roots) = (Vec::new(), Vec::new());
    for worker in 0..workers {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("replica{worker}/{what}");
        let from: &[Output] = if worker < groups { &[w] } else { &[] };
        let spread = Op::Broadcast { vector: 0, spec: spec.clone() };
        let here = graph.add(&name("spread"), hint, spread, from).unwrap();
        let by = Op::Scale { by: f64::from(worker) };
        let gradient = graph.add(&name("gradient"), hint, by, &[here.into()]).unwrap();
        let reduce = Op::AllReduce { vector: 1 };
        let mean = graph.add(&name("mean"), hint, reduce, &[gradient.into()]).unwrap();
        means.extend((worker < groups).then_some(Output::from(mean)));
        roots.push(mean);
    }
    let apply = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
    let taken: Vec<Output> = [w].into_iter().chain(means).collect();
    roots.push(graph.add("update", Hint::With(w.node), apply, &taken).unwrap());
    let cluster = Cluster::ParameterServers { workers, servers: 1 };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let options = PlanOptions {
        all_reduce: AllReduceBy::Firsts { groups },
        devices,
        ..by_edges(groups, SharedMemory::Unused)
    };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

/// It gives the weights to the others, and makes the means; with a server that has no device it does so by its host's memory.
#[test]
fn the_first_of_a_group_alone_deals_with_servers() {
    for devices in [DeviceTasks::All, DeviceTasks::Workers] {
        let plan = before_a_server(4, 2, devices);
        let server = plan.parts.len() - 1;
        let mut bytes_of_server = 0;
        for edge in plan.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
            let (from, to) = (edge.from, edge.to);
            let is_of_server = [from, to].contains(&server);
            match is_of_server {
                true => {
                    assert!(from.min(to) < 2, "{from} → {to}: {}", edge.name);
                    bytes_of_server += edge.bytes().unwrap() as u64;
                }
                false => assert_eq!(from % 2, to % 2, "{}", edge.name),
            }
            let on_host = is_of_server && devices == DeviceTasks::Workers;
            assert_eq!(edge.space == Space::Host, on_host, "{}", edge.name);
        }
        // the weights to each group, and a mean of each; and once more from its first to the other, and a gradient back
        assert_eq!(bytes_of_server, 4 * LARGE);
        let traffic = plan.traffic(RunId(0));
        assert_eq!(traffic.written, 8 * LARGE);
        let by_host = if devices == DeviceTasks::Workers { 2 * LARGE } else { 0 };
        assert_eq!((traffic.to_host, traffic.to_device), (by_host, by_host));
        for at in 0..2 {
            let members = [0, 2].map(|member| Task::worker(member + at));
            let of = self::means(&plan, at as usize);
            assert_eq!(of[&format!("replica{at}/mean")], members);
            assert_eq!(of[&format!("replica{at}/spread")].len(), 1);
        }
        assert!(self::means(&plan, 2).is_empty() && self::means(&plan, 3).is_empty());
    }
}

#[test]
fn what_is_reduced_in_half_of_the_bytes_crosses_so() {
    let whole = planned(2, false, by_edges(1, SharedMemory::Unused)).traffic(RunId(0));
    let options = PlanOptions { wire: Some(DType::BF16), ..by_edges(1, SharedMemory::Unused) };
    let plan = planned(2, false, options);
    assert_eq!(2 * plan.traffic(RunId(0)).written, whole.written);
    for edge in plan.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
        assert_eq!(edge.fact.dtype, DType::BF16, "{}", edge.name);
    }
}

/// What others give takes no kernel of the replica out of its order, by which tensors share memory.
#[test]
fn a_replicas_kernels_stay_in_sequence() {
    for wire in [None, Some(DType::BF16)] {
        let options =
            |all_reduce| PlanOptions { all_reduce, wire, ..by_edges(1, SharedMemory::Used) };
        let by_edges = planned(3, false, options(by_edges(1, SharedMemory::Used).all_reduce));
        let by_group = planned(3, false, options(AllReduceBy::Group));
        for (part, other) in by_edges.parts.iter().zip(&by_group.parts) {
            let pairs = |part: &Part| {
                let of_replica = |id: &NodeId| {
                    let op = &part.graph.node(*id).op;
                    op.is_computed() && *op != Op::Mean && op.mutated_inputs() == 0
                };
                let both =
                    |(first, then): &&(NodeId, NodeId)| of_replica(first) && of_replica(then);
                let name = |id: &NodeId| part.graph.node(*id).name.clone();
                let pairs = part.order.iter().filter(both);
                let mut pairs: Vec<_> = pairs.map(|(a, b)| (name(a), name(b))).collect();
                pairs.sort();
                pairs
            };
            assert!(!pairs(part).is_empty());
            assert_eq!(pairs(part), pairs(other), "{}", part.task);
        }
    }
}

/// In its place in the graph a cast would wait for all that the replica computes, and its all-reduce with it.
#[test]
fn a_gradient_is_rounded_as_soon_as_it_is_there() {
    let wire = Some(DType::BF16);
    let all_reduce = AllReduceBy::Group;
    let plan = planned(2, false, PlanOptions { all_reduce, wire, ..PlanOptions::default() });
    for part in &plan.parts {
        let op = |id: &NodeId| &part.graph.node(*id).op;
        let before = |cast: NodeId| {
            let pairs = part.order.iter().filter(move |(_, then)| *then == cast);
            pairs.map(|(first, _)| *first).collect::<Vec<_>>()
        };
        let reduced = part.graph.nodes().filter(|(_, node)| node.op.vector().is_some());
        let rounded = reduced.map(|(_, node)| node.inputs[0].node);
        let rounded: Vec<NodeId> = rounded.filter(|id| matches!(op(id), Op::Cast { .. })).collect();
        assert!(rounded.len() > 1, "{}", part.task);
        for cast in rounded {
            let made = part.graph.node(cast).inputs[0].node;
            assert_eq!(before(cast), [made], "{}", part.graph.node(cast).name);
        }
    }
}

/// Whoever says that one comes behind another has it so; what a kernel takes, too, keeps its place.
#[test]
fn a_cast_comes_behind_all_that_it_waits_for() {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    let mut casts = Vec::new();
    for worker in 0..2 {
        let mut add = |what: &str, op, inputs: &[Output]| {
            graph.add(&format!("{what} {worker}"), Hint::Replica(worker), op, inputs).unwrap()
        };
        let fact = Fact::known(DType::F32, &[64]);
        let x = add("x", Op::Input { fact }, &[]);
        let first = add("first", Op::Relu, &[x.into()]);
        let second = add("second", Op::Relu, &[first.into()]);
        let bf16 = Op::Cast { to: DType::BF16 };
        let sent = add("sent", bf16.clone(), &[first.into()]);
        let used = add("used", bf16, &[first.into()]);
        let third = add("third", Op::Relu, &[used.into()]);
        let mut reduce = |vector, x: NodeId| {
            let name = format!("reduced {vector}");
            roots.push(add(&name, Op::AllReduce { vector }, &[x.into()]));
        };
        reduce(0, sent);
        reduce(1, used);
        roots.extend([second, third]);
        casts.push((sent, second));
    }
    let cluster = Cluster::Workers { workers: 2 };
    for is_controlled in [false, true] {
        let mut graph = graph.clone();
        if is_controlled {
            casts.iter().for_each(|(sent, second)| graph.control(*second, *sent));
        }
        let placed = place(&graph, cluster, Placement::default()).unwrap();
        let roots = roots.clone();
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        let all_reduce = AllReduceBy::Group;
        let options = PlanOptions { all_reduce, ..PlanOptions::default() };
        let plan = plan(&placed, &cluster.tasks(), &[run], options).unwrap();
        for part in &plan.parts {
            let name = |id: &NodeId| part.graph.node(*id).name.split(' ').next().unwrap();
            let mut order: Vec<_> = part.order.iter().map(|(a, b)| (name(a), name(b))).collect();
            order.sort_unstable();
            let expected = match is_controlled {
                true => {
                    [("first", "second"), ("second", "sent"), ("sent", "used"), ("used", "third")]
                }
                false => {
                    [("first", "sent"), ("second", "used"), ("sent", "second"), ("used", "third")]
                }
            };
            assert_eq!(order, expected, "{}", part.task);
        }
    }
}

#[test]
fn members_that_wait_for_each_other_are_refused() {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    for worker in 0..2 {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("{what} {worker}");
        let fact = Fact::known(DType::F32, &[4]);
        let x = graph.add(&name("x"), hint, Op::Input { fact }, &[]).unwrap();
        // the second's is what the first has of the other vector
        let first =
            graph.add(&name("a"), hint, Op::AllReduce { vector: worker }, &[x.into()]).unwrap();
        let op = Op::AllReduce { vector: 1 - worker };
        roots.push(graph.add(&name("b"), hint, op, &[first.into()]).unwrap());
    }
    let cluster = Cluster::Workers { workers: 2 };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let options = by_edges(1, SharedMemory::Used);
    let refused = plan(&placed, &cluster.tasks(), &[run], options).unwrap_err().to_string();
    assert!(refused.contains("waits for an all-reduce that waits for it"), "{refused}");
}

/// The second vector and the third fit together, and are told behind the first.
#[test]
fn devices_are_told_in_one_order_and_of_small_vectors_at_once() {
    for (together, expected) in [
        (LARGE + LARGE / 8, [None, Some(0), Some(0)]),
        (LARGE, [None, Some(0), Some(1)]),
        (usize::MAX as u64, [None; 3]),
    ] {
        for eager in [false, true] {
            let options = PlanOptions {
                // fits: a few thousand, or as many as there are
                all_reduce: AllReduceBy::Devices { together: together as usize },
                devices: DeviceTasks::Workers,
                ..PlanOptions::default()
            };
            let plan = planned(3, eager, options);
            assert_eq!(plan.edges.len(), 0, "nothing crosses but by the devices");
            for part in &plan.parts {
                let vector = |id: NodeId| part.graph.node(id).op.vector();
                let mut behind: HashMap<u32, Vec<u32>> = HashMap::new();
                for (id, node) in part.graph.nodes() {
                    let Some(here) = vector(id) else { continue };
                    assert_eq!(node.space, Space::Device(0), "{}", node.name);
                    let before = node.controls.iter().copied().filter_map(vector);
                    behind.insert(here, before.collect());
                }
                let expected = (0..3).zip(expected.map(Vec::from_iter));
                assert_eq!(behind, HashMap::from_iter(expected), "{together} {eager}");
            }
        }
    }
}
