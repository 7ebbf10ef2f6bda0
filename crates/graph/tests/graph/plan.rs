//! Partition, order and reuse proofs, on parameter-server graphs of a few nodes.

use std::collections::HashSet;

use tensorwire_graph::{
    AllReduceBy, AmongDevices, Cluster, DeviceCrossing, DeviceTasks, Edge, Graph, Hint, Init, Lane,
    NodeId, Op, Output, Placement, Plan, PlanOptions, Reuse, ReuseRule, Rule, Run, RunId, RunSpec,
    SendFrom, SharedMemory, Transfer, WhyWrite, place, plan,
};
use tensorwire_tensor::{DType, Dim, Fact};

use crate::networks::{network, spec};

const SHARED: PlanOptions = PlanOptions {
    send_from: SendFrom::Origin,
    shared_memory: SharedMemory::Used,
    variables_shared: false,
    reuse: ReuseRule::Proved,
    devices: DeviceTasks::None,
    device_crossing: DeviceCrossing::ByHost,
    among_devices: AmongDevices::First,
    all_reduce: AllReduceBy::Group,
    wire: None,
    relays: false,
};

fn planned(layers: usize, workers: u32, servers: u32) -> Plan {
    planned_with(layers, workers, servers, PlanOptions::default())
}

fn planned_with(layers: usize, workers: u32, servers: u32, options: PlanOptions) -> Plan {
    let (graph, roots) = network(layers, workers);
    let cluster = Cluster::ParameterServers { workers, servers };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let train =
        RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[train], options).unwrap()
}

fn edge<'a>(plan: &'a Plan, name: &str) -> &'a Edge {
    plan.edges.iter().find(|e| e.name == name).unwrap()
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
            assert_eq!((*id, fact), (edge.id, &edge.fact));
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
        let bytes = plan.edges.iter().filter(|e| e.bytes() != Some(0)).count();
        assert_eq!(bytes, 2 * layers * workers as usize);
        let traffic = plan.traffic(RunId(0));
        assert_eq!(traffic.written, (2 * layers * workers as usize * 64) as u64);
        assert_eq!((traffic.by_reference, traffic.dynamic), (0, 0));
        assert_eq!(traffic.sends, plan.edges.len());
    }
}

#[test]
fn what_crosses_is_registered() {
    for part in &planned(3, 2, 2).parts {
        for (_, node) in part.graph.nodes() {
            if let Op::Send { .. } = node.op {
                for input in &node.inputs {
                    let spot = part.memory.spot(*input).unwrap();
                    assert_eq!(spot.lane, Lane::Registered, "{}", node.name);
                }
            }
        }
    }
}

/// Places overlap only where dependencies say that the one tensor is dead before the other is made, in
/// every order in which the run may go.
#[test]
fn tensors_that_may_live_at_the_same_time_do_not_overlap() {
    for part in &planned(5, 2, 2).parts {
        let order: Vec<(NodeId, NodeId)> = part.order.clone();
        let before = |id: NodeId| {
            let mut seen = HashSet::new();
            let mut open = vec![id];
            while let Some(id) = open.pop() {
                let earlier = part.graph.predecessors(id);
                let ordered = order.iter().filter(|(_, then)| *then == id).map(|(first, _)| *first);
                open.extend(earlier.into_iter().chain(ordered).filter(|id| seen.insert(*id)));
            }
            seen
        };
        let users = |output: Output| {
            let uses = part.graph.nodes().filter(|(_, n)| n.inputs.contains(&output));
            uses.map(|(id, _)| id).chain([output.node]).collect::<Vec<_>>()
        };
        let mut spots = vec![];
        for (id, node) in part.graph.nodes() {
            for index in 0..node.facts.len() as u32 {
                let output = Output { node: id, index };
                let spot = part.memory.spot(output).unwrap();
                assert_eq!(spot.offset % 64, 0);
                spots.push((output, spot));
            }
        }
        let mut shared = 0;
        for (at, (a, place)) in spots.iter().enumerate() {
            for (b, other) in &spots[at + 1..] {
                let ends = |spot: &tensorwire_graph::Spot| spot.offset + spot.spec.bytes();
                let apart = place.lane != other.lane
                    || ends(place) <= other.offset
                    || ends(other) <= place.offset;
                if apart {
                    continue;
                }
                shared += 1;
                let dead = |a: Output, b: Output| {
                    let earlier = before(b.node);
                    users(a).iter().all(|user| earlier.contains(user))
                };
                let in_place = part.memory.is_in_place(b.node)
                    && part.graph.node(b.node).inputs.first() == Some(a)
                    && users(*a).len() == 2;
                assert!(in_place || dead(*a, *b) || dead(*b, *a), "{a:?} {b:?}");
                assert!(!part.memory.is_kept(*a) && !part.memory.is_kept(*b), "{a:?} {b:?}");
            }
        }
        if part.graph.find("worker0/x").is_some() {
            assert!(shared > 0, "a deep network has tensors that can share");
            let sum = part.memory.registered_bytes + part.memory.private_bytes;
            assert!(sum < part.memory.unshared_bytes);
        }
    }
}

#[test]
fn a_root_is_kept_and_shares_with_nobody() {
    let plan = planned(5, 1, 1);
    let part = &plan.parts[0];
    let loss = part.graph.find("worker0/loss").unwrap();
    assert!(!part.memory.is_kept(loss.into()), "the loss of this network is no root");
    let (graph, mut roots) = network(5, 1);
    roots.push(graph.find("worker0/y2").unwrap());
    let placed = place(&graph, Cluster::Local, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan =
        tensorwire_graph::plan(&placed, &Cluster::Local.tasks(), &[run], PlanOptions::default())
            .unwrap();
    let part = &plan.parts[0];
    let kept = Output::from(part.graph.find("worker0/y2").unwrap());
    assert!(part.memory.is_kept(kept));
    let place = part.memory.spot(kept).unwrap();
    for (id, node) in part.graph.nodes() {
        for index in 0..node.facts.len() as u32 {
            let other = Output { node: id, index };
            let spot = part.memory.spot(other).unwrap();
            let apart = spot.lane != place.lane
                || spot.offset + spot.spec.bytes() <= place.offset
                || place.offset + place.spec.bytes() <= spot.offset;
            assert!(other == kept || apart, "{}", node.name);
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
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
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
    let plan = plan(&placed, &tasks, &runs, PlanOptions::default()).unwrap();
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

/// Weights that were fetched are looked at while the server might send them again, and its step waits for that.
#[test]
fn what_is_evaluated_between_two_steps_is_not_overwritten() {
    let (mut graph, roots) = network(2, 2);
    graph.add("nothing", Hint::Shared, Op::NoOp, &[]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let find = |name: &str| placed.find(name).unwrap();
    let weights = vec![find("w0"), find("w1")];
    // a node without an output, as a credit is one, is done where it is
    let fetched = [&weights[..], &[find("nothing")]].concat();
    let planned = |after_evaluation: Vec<usize>| {
        let run = |name, roots, fetch_to, given, followed_by| RunSpec {
            name,
            roots,
            fetch_to,
            given,
            followed_by,
        };
        let runs = [
            run("train", roots.clone(), None, vec![], vec![0, 1]),
            run("fetch", fetched.clone(), Some(cluster.tasks()[0]), vec![], vec![2]),
            run("evaluate", vec![find("worker0/y1")], None, weights.clone(), after_evaluation),
        ];
        plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap()
    };
    let guarded = |plan: &Plan| {
        let edges = plan.edges.iter().filter(|edge| edge.to == 0 && edge.name == "w0");
        let readers = edges.filter_map(|edge| match &edge.reuse {
            Reuse::Credit { readers } => Some(readers.clone()),
            _ => None,
        });
        readers.flatten().any(|reader| reader == "worker0/y0")
    };
    let (last, between) = (planned(vec![2]), planned(vec![2, 0]));
    assert!(guarded(&between) && !guarded(&last), "{:?}", between.edges);
    let server = |run: usize| {
        let nodes = between.runs[run].nodes[2].iter();
        let graph = &between.parts[2].graph;
        nodes.map(|id| graph.node(*id).name.clone()).collect::<Vec<String>>()
    };
    assert!(server(1).contains(&"nothing".to_string()), "{:?}", server(1));
    assert!(server(2).iter().any(|name| name.contains("credit/evaluate")), "{:?}", server(2));
}

#[test]
fn the_plan_is_the_same_every_time() {
    let text = |plan: &Plan| format!("{:?} {:?}", plan.edges, plan.runs);
    assert_eq!(text(&planned(4, 3, 3)), text(&planned(4, 3, 3)));
    assert_eq!(planned(4, 3, 3).to_dot(), planned(4, 3, 3).to_dot());
}

/// y = W·x on one worker with W of 4 KiB and more on the server, so that it pays to read it there.
fn large(tie: bool, options: PlanOptions) -> Plan {
    let mut graph = Graph::new();
    let hint = Hint::Replica(0);
    let w = graph.variable("w", spec(&[32, 32]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::F32, &[32, 32]);
    let x = graph.add("x", hint, Op::Input { fact }, &[]).unwrap();
    let op = Op::MatMul { transpose_a: false, transpose_b: false };
    let y = graph.add("y", hint, op.clone(), &[x.into(), w]).unwrap();
    let z = graph.add("z", hint, op, &[y.into(), w]).unwrap();
    let rate = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
    let step = graph.add("step", Hint::With(w.node), rate, &[w, y.into()]).unwrap();
    let mut roots = vec![step, z];
    if tie {
        // a reader that comes after the update, as the graph has it
        let late = graph.add("late", hint, Op::Relu, &[w]).unwrap();
        roots.push(late);
    }
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

#[test]
fn where_memory_is_shared_a_large_tensor_stays_where_it_is_and_its_update_waits_for_the_reader() {
    let plan = large(false, SHARED);
    assert_eq!(edge(&plan, "w").transfer, Transfer::Reference);
    assert_eq!(edge(&plan, "y").transfer, Transfer::Reference);
    let traffic = plan.traffic(RunId(0));
    assert_eq!((traffic.written, traffic.by_reference), (0, 2 * 4096));
    // the receiver has no memory for it
    assert_eq!(plan.parts[0].memory.spot(edge(&plan, "w").recv.into()), None);
    // z reads w last; y, which it follows, need not be waited for
    let server = &plan.parts[1].graph;
    let step = server.node(server.find("step").unwrap());
    let waits: Vec<&str> = step.controls.iter().map(|id| server.node(*id).name.as_str()).collect();
    assert_eq!(waits, ["recv ^z from worker 0"]);
    assert_eq!(edge(&plan, "w").reuse, Reuse::Proved, "the wait is the proof");
    // the next y is written over by the worker alone, which then knows that the step was made
    assert_eq!(edge(&plan, "y").reuse, Reuse::Proved);
}

#[test]
fn a_tensor_is_written_where_it_cannot_stay() {
    let apart = large(false, PlanOptions::default());
    assert_eq!(edge(&apart, "w").transfer, Transfer::Write(WhyWrite::Apart));
    let copied = large(false, PlanOptions { send_from: SendFrom::Staging, ..SHARED });
    assert_eq!(edge(&copied, "w").transfer, Transfer::Write(WhyWrite::Told));
    let told = large(false, PlanOptions { shared_memory: SharedMemory::Unused, ..SHARED });
    assert_eq!(edge(&told, "w").transfer, Transfer::Write(WhyWrite::Told));
    let late = large(true, SHARED);
    assert_eq!(edge(&late, "w").transfer, Transfer::Write(WhyWrite::LateReader));
    assert_eq!(edge(&late, "y").transfer, Transfer::Reference);
    let lanes = large(false, PlanOptions { variables_shared: true, ..SHARED });
    assert_eq!(edge(&lanes, "w").transfer, Transfer::Write(WhyWrite::ManyWriters));
    let small = planned_with(2, 1, 1, SHARED);
    assert_eq!(edge(&small, "w0").transfer, Transfer::Write(WhyWrite::Small));
}

/// An input is written by the caller as soon as its own run is over.
#[test]
fn an_input_that_is_read_where_it_lies_needs_a_credit() {
    let mut graph = Graph::new();
    let fact = Fact::known(DType::F32, &[1024]);
    let x = graph.add("x", Hint::Replica(0), Op::Input { fact }, &[]).unwrap();
    let max = graph.add("max", Hint::Replica(1), Op::ReduceMax, &[x.into()]).unwrap();
    graph.variable("v", spec(&[1]), Init::Zeros).unwrap();
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots = vec![max];
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![] };
    let plan = plan(&placed, &cluster.tasks(), &[run], SHARED).unwrap();
    assert_eq!(edge(&plan, "x").transfer, Transfer::Reference);
    assert_eq!(edge(&plan, "x").reuse, Reuse::Credit { readers: vec!["max".to_string()] });
}

#[test]
fn what_is_not_proved_can_be_trusted_and_says_so() {
    let trusting = PlanOptions { reuse: ReuseRule::Trusted, ..PlanOptions::default() };
    let plan = planned_with(2, 1, 2, trusting);
    assert_eq!(edge(&plan, "w1").reuse, Reuse::Trusted);
    assert_eq!(edge(&plan, "w0").reuse, Reuse::Proved);
    assert!(plan.edges.iter().all(|edge| edge.transfer != Transfer::Signal), "no credit");
}

#[test]
fn an_edge_of_unknown_size_is_announced_and_read() {
    let mut graph = Graph::new();
    let rows = Dim::Dynamic(graph.symbol());
    let fact = Fact { dtype: DType::F32, dims: vec![rows, Dim::Known(4)] };
    let x = graph.add("x", Hint::Replica(0), Op::Input { fact: fact.clone() }, &[]).unwrap();
    let relu = graph.add("relu", Hint::Replica(1), Op::Relu, &[x.into()]).unwrap();
    let max = graph.add("max", Hint::Replica(1), Op::ReduceMax, &[relu.into()]).unwrap();
    graph.variable("v", spec(&[1]), Init::Zeros).unwrap();
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots = vec![max];
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan = plan(&placed, &cluster.tasks(), &[run], SHARED).unwrap();
    let x = edge(&plan, "x");
    assert_eq!((x.transfer, &x.reuse), (Transfer::Dynamic, &Reuse::Acknowledged));
    assert_eq!((x.bytes(), &x.fact), (None, &fact));
    let (from, to) = (&plan.parts[0], &plan.parts[1]);
    assert_eq!(from.graph.node(x.send).op, Op::SendDynamic { edge: x.id });
    assert_eq!(to.graph.node(x.recv).op, Op::RecvDynamic { edge: x.id, fact });
    assert_eq!(to.memory.spot(x.recv.into()), None);
    let max = to.graph.find("max").unwrap();
    assert!(to.memory.spot(max.into()).is_some(), "the largest element has a known size");
}

#[test]
fn what_is_sent_on_as_a_view_is_guarded_by_whoever_uses_it_there() {
    let mut graph = Graph::new();
    graph.variable("w", spec(&[1]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::F32, &[4]);
    let x = graph.add("x", Hint::Replica(0), Op::Input { fact }, &[]).unwrap();
    let to = vec![Dim::Known(2), Dim::Known(2)];
    let view = graph.add("view", Hint::Replica(1), Op::Reshape { to }, &[x.into()]).unwrap();
    let end = graph.add("end", Hint::Replica(2), Op::Relu, &[view.into()]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 3, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots = vec![end];
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
    // the memory of x at worker 1 is read by the view, and then by the send to worker 2
    let readers = vec!["end".to_string(), "view".to_string()];
    assert_eq!(edge(&plan, "x").reuse, Reuse::Credit { readers });
    let readers = vec!["end".to_string()];
    assert_eq!(edge(&plan, "view").reuse, Reuse::Credit { readers });
}

#[test]
fn a_variable_whose_view_a_caller_looks_at_is_written_and_not_read_where_it_lies() {
    let mut graph = Graph::new();
    let worker = Hint::Replica(0);
    let ready = graph.add("ready", worker, Op::NoOp, &[]).unwrap();
    let w = graph.variable("w", spec(&[32, 32]), Init::Zeros).unwrap();
    // in each run, what the worker may look at until it begins is not sent before it has
    graph.control(ready, w.node);
    let to = vec![Dim::Known(1024)];
    let view = graph.add("view", worker, Op::Reshape { to }, &[w]).unwrap();
    let y = graph.add("y", worker, Op::Relu, &[w]).unwrap();
    let rate = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
    let step = graph.add("step", Hint::With(w.node), rate, &[w, y.into()]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let planned = |roots: Vec<NodeId>| {
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &cluster.tasks(), &[run], SHARED)
    };
    let unseen = planned(vec![step]).unwrap();
    assert_eq!(edge(&unseen, "w").transfer, Transfer::Reference);
    // the update would change it under the caller's eyes, whatever nodes it waits for
    let seen = planned(vec![step, view]).unwrap();
    assert_eq!(edge(&seen, "w").transfer, Transfer::Write(WhyWrite::LateReader));
}

#[test]
fn what_a_caller_feeds_is_not_ordered_by_what_the_inputs_node_waits_for() {
    let mut graph = Graph::new();
    let anchor = graph.variable("w", spec(&[1]), Init::Zeros).unwrap();
    let fact = Fact::known(DType::F32, &[1024]);
    let (there, here) = (Hint::With(anchor.node), Hint::Replica(0));
    let other = graph.add("other", here, Op::NoOp, &[]).unwrap();
    let x = graph.add("x", there, Op::Input { fact }, &[]).unwrap();
    graph.control(other, x);
    let to = vec![Dim::Known(32), Dim::Known(32)];
    let view = graph.add("view", here, Op::Reshape { to }, &[x.into()]).unwrap();
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let planned = |options| {
        let roots = vec![view];
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &cluster.tasks(), &[run], options)
    };
    // a write of the next x comes after its node, for which the server waits for the worker
    let written = planned(PlanOptions::default()).unwrap();
    assert_eq!(edge(&written, "x").transfer, Transfer::Write(WhyWrite::Apart));
    // where x is read where it lies, its caller feeds it before the run
    let error = planned(SHARED).unwrap_err().to_string();
    assert!(error.contains("worker 0 may still read it after run 'r'"), "{error}");
}

/// What a group folds lies where peers reach it, in memory of its own: over its input's bytes where nobody else
/// uses them. What waits for it is in no order with what is computed beside it.
#[test]
fn a_groups_vectors_are_where_they_were_made_and_alone_there() {
    let mut graph = Graph::new();
    let here = Hint::Replica(0);
    let fact = Fact::known(DType::F32, &[4]);
    let x: Output = graph.add("x", here, Op::Input { fact }, &[]).unwrap().into();
    let mut roots = Vec::new();
    let mut waits = Vec::new();
    for vector in 0..2 {
        let name = |what: &str| format!("{what}{vector}");
        let w = graph.variable_at(&name("w"), here, spec(&[4]), Init::Zeros).unwrap();
        let sole: Output = graph.add(&name("sole"), here, Op::Relu, &[x]).unwrap().into();
        let both: Output = graph.add(&name("both"), here, Op::Relu, &[sole]).unwrap().into();
        // the second one is used by somebody else too
        if vector == 1 {
            roots.push(graph.add("other", here, Op::Tanh, &[both]).unwrap());
        }
        let mean = graph.add(&name("mean"), here, Op::AllReduce { vector }, &[both]).unwrap();
        let rule = Rule::sgd(0.1);
        let update = Op::Apply { rule, clipped: false };
        let update =
            graph.add(&name("update"), Hint::With(w.node), update, &[w, mean.into()]).unwrap();
        roots.push(update);
        waits.push(update);
    }
    let spread = Op::Broadcast { vector: 2, spec: spec(&[4]) };
    roots.push(graph.add("spread", here, spread, &[]).unwrap());
    let cluster = Cluster::Workers { workers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
    let part = &plan.parts[0];
    let spot = |name: &str| part.memory.spot(part.graph.find(name).unwrap().into()).unwrap();
    assert_eq!(spot("mean0"), spot("both0"), "nothing is copied");
    assert_ne!(spot("mean1"), spot("both1"), "its input is another's, too");
    let vectors = ["mean0", "mean1", "spread"].map(spot);
    assert!(vectors.iter().all(|spot| spot.lane == Lane::Registered));
    let offsets: HashSet<usize> = vectors.iter().map(|spot| spot.offset).collect();
    assert_eq!((offsets.len(), part.memory.registered_bytes), (3, 3 * 64));
    for update in waits {
        let is_ordered = |(first, then): &(NodeId, NodeId)| *first == update || *then == update;
        assert!(!part.order.iter().any(is_ordered), "{:?}", part.order);
    }
    assert!(plan.edges.is_empty());
}

#[test]
fn what_a_group_cannot_fold_or_spread_is_refused() {
    let mut graph = Graph::new();
    let here = Hint::Replica(0);
    let rows = Dim::Dynamic(graph.symbol());
    let open = Fact { dtype: DType::F32, dims: vec![rows] };
    let open = graph.add("open", here, Op::Input { fact: open }, &[]).unwrap();
    let whole = Fact::known(DType::I32, &[4]);
    let whole = graph.add("whole", here, Op::Input { fact: whole }, &[]).unwrap();
    for (name, input) in [("a", open), ("b", whole)] {
        let refused = graph.add(name, here, Op::AllReduce { vector: 0 }, &[input.into()]);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("a floating tensor of known size is needed"), "{text}");
    }
    let spread = Op::Broadcast { vector: 0, spec: spec(&[4]) };
    assert!(graph.add("c", here, spread, &[whole.into()]).is_err());
    // whose is it, where there are no servers?
    graph.variable("w", spec(&[2]), Init::Zeros).unwrap();
    let refused = place(&graph, Cluster::Workers { workers: 2 }, Placement::RoundRobin)
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "a cluster needs at least one server");
}
