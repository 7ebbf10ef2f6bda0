//! Copies between a device's memory and the host's: where they are, and where they are not.

use std::collections::HashSet;

use tensorwire_base::Space;
use tensorwire_graph::{
    Cluster, DeviceCrossing, DeviceTasks, Gradient, Graph, Hint, Init, Lane, NodeId, Op, Output,
    Part, Placement, Plan, PlanOptions, Rule, RunId, RunSpec, SharedMemory, Transfer, gradients,
    place, plan, simplify,
};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

/// Two layers at each worker, of which the first is reshaped; updates with the variables.
fn network(workers: u32) -> (Graph, Vec<NodeId>) {
    network_on(workers, 1)
}

/// The same on so many devices of each, whose gradients are reduced on the first.
fn network_on(workers: u32, devices: u32) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut gradients_of: Vec<Vec<Output>> = Vec::new();
    let spec = |dims: &[usize]| TensorSpec::new(DType::F32, dims).unwrap();
    let w = [("w0", [8, 8]), ("w1", [4, 4])];
    let w = w.map(|(name, dims)| graph.variable(name, spec(&dims), Init::Zeros).unwrap());
    let places = (0..workers).flat_map(|worker| (0..devices).map(move |device| (worker, device)));
    for (worker, device) in places {
        let (hint, of) = match device {
            0 => (Hint::Replica(worker), format!("worker{worker}")),
            _ => (Hint::Device { replica: worker, device }, format!("worker{worker}.{device}")),
        };
        let name = |what: &str| format!("{of}/{what}");
        let input = |graph: &mut Graph, what: &str, dtype, dims: &[usize]| {
            let fact = Fact::known(dtype, dims);
            Output::from(graph.add(&name(what), hint, Op::Input { fact }, &[]).unwrap())
        };
        let x = input(&mut graph, "x", DType::F32, &[2, 8]);
        let labels = input(&mut graph, "labels", DType::I32, &[4]);
        let product = Op::MatMul { transpose_a: false, transpose_b: false };
        let y = graph.add(&name("y0"), hint, product.clone(), &[x, w[0]]).unwrap();
        let to = vec![Dim::Known(4), Dim::Known(4)];
        let y = graph.add(&name("view"), hint, Op::Reshape { to }, &[y.into()]).unwrap();
        let y = graph.add(&name("y1"), hint, product, &[y.into(), w[1]]).unwrap();
        let loss = [y.into(), labels];
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &loss).unwrap();
        let made = gradients(&mut graph, &name("gradient"), hint, loss.into(), &w).unwrap();
        gradients_of.push(made.into_iter().filter_map(Gradient::dense).collect());
    }
    let mut mean = |(worker, each): (usize, &[Vec<Output>])| -> Vec<Output> {
        let mean_of = |index: usize| {
            let parts: Vec<Output> = each.iter().map(|made| made[index]).collect();
            let name = format!("mean{worker}.{index}");
            // fits: workers are few
            graph.add(&name, Hint::Replica(worker as u32), Op::Mean, &parts).unwrap().into()
        };
        (0..w.len()).map(mean_of).collect()
    };
    let gradients_of: Vec<Vec<Output>> = match devices {
        1 => gradients_of,
        _ => gradients_of.chunks(devices as usize).enumerate().map(&mut mean).collect(),
    };
    let update = |(index, w): (usize, &Output)| {
        let inputs: Vec<Output> =
            std::iter::once(*w).chain(gradients_of.iter().map(|made| made[index])).collect();
        let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        graph.add(&format!("update{index}"), Hint::With(w.node), op, &inputs).unwrap()
    };
    let updates: Vec<NodeId> = w.iter().enumerate().map(update).collect();
    let (graph, moved) = simplify(&graph, &updates).unwrap();
    (graph, updates.iter().map(|id| moved[id]).collect())
}

fn planned(cluster: Cluster, workers: u32, options: PlanOptions) -> Plan {
    planned_of(network(workers), cluster, options)
}

fn planned_of(
    (graph, roots): (Graph, Vec<NodeId>),
    cluster: Cluster,
    options: PlanOptions,
) -> Plan {
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let weights = ["w0", "w1"].map(|name| placed.find(name).unwrap());
    let train =
        RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0, 1] };
    let fetch = RunSpec {
        name: "fetch",
        roots: weights.to_vec(),
        fetch_to: Some(cluster.tasks()[0]),
        given: vec![],
        followed_by: vec![2],
    };
    let evaluate = RunSpec {
        name: "evaluate",
        roots: vec![placed.find("worker0/loss").unwrap()],
        fetch_to: None,
        given: weights.to_vec(),
        followed_by: vec![2],
    };
    plan(&placed, &cluster.tasks(), &[train, fetch, evaluate], options).unwrap()
}

fn direct(shared_memory: SharedMemory) -> PlanOptions {
    let device_crossing = DeviceCrossing::Direct;
    PlanOptions { shared_memory, device_crossing, ..on(DeviceTasks::All) }
}

fn on(devices: DeviceTasks) -> PlanOptions {
    PlanOptions { devices, ..PlanOptions::default() }
}

/// The nodes that copy, as (what, where to).
fn copies(part: &Part) -> Vec<(Output, Space)> {
    let copies = part.graph.nodes().filter_map(|(_, node)| match node.op {
        Op::CopyTo { space } => Some((node.inputs[0], space)),
        _ => None,
    });
    copies.collect()
}

/// Checks that nodes find their operands where they compute, and that tensors lie in the lanes of their spaces.
fn check(part: &Part) {
    for (id, node) in part.graph.nodes() {
        for input in &node.inputs {
            let there = part.graph.node(input.node).space;
            match node.op {
                Op::CopyTo { space } => assert_ne!(there, space, "{}", node.name),
                _ => assert_eq!(there, node.space, "{} of {input:?}", node.name),
            }
        }
        for index in 0..node.facts.len() as u32 {
            // what is read where its sender has it has no place here
            let Some(spot) = part.memory.spot(Output { node: id, index }) else {
                assert!(node.op.is_recv(), "{}", node.name);
                continue;
            };
            let lane = match node.space {
                Space::Device(device) => vec![Lane::Device(device)],
                Space::Host => vec![Lane::Registered, Lane::Private],
            };
            assert!(lane.contains(&spot.lane), "{}", node.name);
        }
    }
    let copies = copies(part);
    assert_eq!(copies.iter().collect::<HashSet<_>>().len(), copies.len(), "copied twice");
}

#[test]
fn without_a_device_nothing_is_copied() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 1 };
    for part in &planned(cluster, 2, on(DeviceTasks::None)).parts {
        assert!(copies(part).is_empty());
        assert_eq!(part.memory.device_bytes, [0; 0]);
    }
}

#[test]
fn a_process_alone_copies_what_is_fed() {
    let plan = planned(Cluster::Local, 1, on(DeviceTasks::All));
    let part = &plan.parts[0];
    check(part);
    let copied: Vec<&str> =
        copies(part).iter().map(|(what, _)| &*part.graph.node(what.node).name).collect();
    assert_eq!(copied, ["worker0/x", "worker0/labels"]);
    let w = part.graph.find("w0").unwrap();
    assert_eq!(part.graph.node(w).space, Space::Device(0));
    assert!(part.memory.device_bytes[0] >= (64 + 16) * 4);
}

#[test]
fn workers_on_devices_exchange_with_servers_on_the_host_what_they_exchange_without() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    for shared_memory in [SharedMemory::None, SharedMemory::Used] {
        let with = |devices| {
            let shared_memory = shared_memory.clone();
            planned(cluster, 2, PlanOptions { shared_memory, ..on(devices) })
        };
        let (host, device) = (with(DeviceTasks::None), with(DeviceTasks::Workers));
        device.parts.iter().for_each(check);
        let (host_run, run) = (host.traffic(RunId(0)), device.traffic(RunId(0)));
        assert_eq!(host_run.written + host_run.by_reference, run.written + run.by_reference);
        let names = |plan: &Plan| {
            let carrying = plan.edges.iter().filter(|edge| edge.bytes() != Some(0));
            let mut names: Vec<String> = carrying.map(|edge| edge.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&host), names(&device));
        for part in &device.parts {
            let (to_host, to_device): (Vec<_>, Vec<_>) =
                copies(part).into_iter().partition(|(_, to)| *to == Space::Host);
            let is_worker = devices(part);
            // two gradients; two weights, the samples and their labels
            let wanted = if is_worker { (2, 4) } else { (0, 0) };
            assert_eq!((to_host.len(), to_device.len()), wanted, "{}", part.task);
        }
    }
}

fn devices(part: &Part) -> bool {
    DeviceTasks::Workers.has(part.task)
}

#[test]
fn servers_on_devices_send_and_receive_by_way_of_the_host() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    let plan = planned(cluster, 2, on(DeviceTasks::All));
    plan.parts.iter().for_each(check);
    let server = &plan.parts[2];
    let w = server.graph.find("w0").unwrap();
    assert_eq!(server.graph.node(w).space, Space::Device(0));
    // what is fetched has the variable's name
    assert!(plan.edges.iter().any(|edge| edge.name == "w0" && edge.to == 0));
    // both workers get the same copy
    assert_eq!(copies(server).iter().filter(|(_, to)| *to == Space::Host).count(), 1);
}

#[test]
fn devices_that_share_memory_copy_nothing_by_way_of_the_host() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    for shared_memory in [SharedMemory::Unused, SharedMemory::Used] {
        let plan = planned(cluster, 2, direct(shared_memory));
        plan.parts.iter().for_each(check);
        for part in &plan.parts {
            assert!(copies(part).iter().all(|(_, to)| to.is_device()), "{}", part.task);
            // samples and labels are fed
            assert_eq!(copies(part).len(), if devices(part) { 2 } else { 0 }, "{}", part.task);
        }
        for edge in plan.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
            assert_eq!(edge.space, Space::Device(0), "{}", edge.name);
            let written = matches!(edge.transfer, Transfer::Write(_));
            assert_eq!(written, plan.parts[edge.to].memory.spot(edge.recv.into()).is_some());
        }
        let traffic = plan.traffic(RunId(0));
        assert_eq!(traffic.to_host, 0);
        assert_eq!(traffic.written + traffic.by_reference, 2 * 2 * (64 + 16) * 4);
    }
}

#[test]
fn what_is_fetched_is_copied_to_the_device_once() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    let plan = planned(cluster, 2, on(DeviceTasks::Workers));
    let [train, fetch, evaluate] = [0, 1, 2].map(|run| plan.traffic(RunId(run)).to_device);
    let (weights, fed) = ((64 + 16) * 4, (2 * 8 + 4) * 4);
    assert_eq!((train, fetch, evaluate), (2 * (weights + fed), weights, fed));
}

#[test]
fn what_several_devices_of_a_worker_share_is_copied_between_them() {
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    let (weights, fed) = ((64 + 16) * 4, (2 * 8 + 4) * 4);
    let of = |devices: u32, options: PlanOptions| {
        let plan = planned_of(network_on(2, devices), cluster, options);
        plan.parts.iter().for_each(check);
        plan
    };
    for options in [direct(SharedMemory::Used), direct(SharedMemory::Unused)] {
        let (one, three) = (of(1, options.clone()), of(3, options));
        let [one_run, run] = [&one, &three].map(|plan| plan.traffic(RunId(0)));
        // what crosses is what one device's worker sends: its variables came once, and its gradients leave once
        assert_eq!((run.written, run.by_reference), (one_run.written, one_run.by_reference));
        assert_eq!(run.sends, one_run.sends);
        // two more devices of two workers get the weights, and give their gradients
        assert_eq!((one_run.between_devices, run.between_devices), (0, 2 * 2 * 2 * weights));
        assert_eq!((run.to_host, run.to_device), (0, 2 * 3 * fed));
        let worker = &three.parts[0];
        assert_eq!(worker.memory.device_bytes.len(), 3);
        assert!(worker.memory.device_bytes.iter().all(|bytes| *bytes > 0));
        assert_eq!(three.parts[2].memory.device_bytes.len(), 1, "a server has one");
        // devices compute side by side: none has its turn behind another's
        let space = |id: &NodeId| worker.graph.node(*id).space;
        assert!(worker.order.iter().all(|(first, then)| space(first) == space(then)));
        for edge in three.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
            assert_eq!(edge.space, Space::Device(0), "{}", edge.name);
        }
    }
    // by way of the host weights go to each device from there
    let three = of(3, on(DeviceTasks::Workers));
    let run = three.traffic(RunId(0));
    assert_eq!((run.to_host, run.to_device), (2 * weights, 2 * 3 * (weights + fed)));
    assert_eq!(run.between_devices, 2 * 2 * weights);
    // evaluation is the first device's
    let [fetch, evaluate] = [1, 2].map(|run| three.traffic(RunId(run)));
    assert_eq!((fetch.to_device, evaluate.to_device, evaluate.between_devices), (weights, fed, 0));
}

#[test]
fn each_output_of_a_node_crosses_by_the_host_under_its_own_name() {
    let mut graph = Graph::new();
    let worker = Hint::Replica(0);
    let mut input = |name: &str, dtype, dims: &[usize]| {
        let fact = Fact::known(dtype, dims);
        Output::from(graph.add(name, worker, Op::Input { fact }, &[]).unwrap())
    };
    let operands = [input("x", DType::F32, &[4, 4]), input("labels", DType::I32, &[4])];
    let loss = graph.add("loss", worker, Op::SoftmaxCrossEntropy, &operands).unwrap();
    let outputs = graph.node(loss).facts.len() as u32;
    assert!(outputs > 1);
    let roots: Vec<NodeId> = (0..outputs)
        .map(|index| {
            let of = Output { node: loss, index };
            let spec = graph.fact(of).spec().unwrap().unwrap();
            let w = graph.variable(&format!("w{index}"), spec, Init::Zeros).unwrap();
            let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
            graph.add(&format!("update{index}"), Hint::With(w.node), op, &[w, of]).unwrap()
        })
        .collect();
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let names = |devices| -> Vec<String> {
        let plan =
            plan(&placed, &cluster.tasks(), std::slice::from_ref(&run), on(devices)).unwrap();
        plan.edges.iter().map(|edge| edge.name.clone()).collect()
    };
    assert_eq!(names(DeviceTasks::Workers), names(DeviceTasks::None));
}
