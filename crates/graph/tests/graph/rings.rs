//! What the devices of one worker reduce among themselves: who makes which mean of what, in which order, and how much each
//! device's links carry.

use std::collections::HashMap;

use tensorwire_base::Space;
use tensorwire_graph::{
    AllReduceBy, AmongDevices, Cluster, DeviceCrossing, DeviceTasks, Gradient, Graph, Hint, Init,
    NodeId, Op, Output, Part, Placement, Plan, PlanOptions, Reuse, Rule, RunId, RunSpec,
    SharedMemory, gradients, place, plan, simplify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const ROWS: usize = 64;
const SMALL: u64 = (64 * 8 * 4) as u64;
/// Bytes of all vectors.
const ALL: u64 = 2 * (ROWS * 64 * 4) as u64 + SMALL;
const SHARES: AmongDevices = AmongDevices::Shares { split_above: 8 << 10 };

const SHAPES: [(&str, [usize; 2]); 3] = [("w0", [ROWS, 64]), ("w1", [64, 64]), ("w2", [64, 8])];

fn spec(dims: [usize; 2]) -> TensorSpec {
    TensorSpec::new(DType::F32, &dims).unwrap()
}

/// A copy of the model on each device of a replica, and the means of their gradients over the devices.
fn replica(graph: &mut Graph, replica: u32, devices: u32, w: [Output; 3]) -> [Output; 3] {
    let first = Hint::Replica(replica);
    let mut found: Vec<Vec<Output>> = Vec::new();
    for device in 0..devices {
        let hint = if device == 0 { first } else { Hint::Device { replica, device } };
        let name = |what: &str| format!("replica{replica}/device{device}/{what}");
        let input = |graph: &mut Graph, what: &str, dtype, dims: &[usize]| {
            let fact = Fact::known(dtype, dims);
            Output::from(graph.add(&name(what), hint, Op::Input { fact }, &[]).unwrap())
        };
        let mut y = input(graph, "x", DType::F32, &[8, ROWS]);
        let labels = input(graph, "labels", DType::I32, &[8]);
        for (layer, w) in w.iter().enumerate() {
            let product = Op::MatMul { transpose_a: false, transpose_b: false };
            y = graph.add(&name(&format!("y{layer}")), hint, product, &[y, *w]).unwrap().into();
        }
        let op = Op::SoftmaxCrossEntropy;
        let loss = graph.add(&name("loss"), hint, op, &[y, labels]).unwrap();
        let made = gradients(graph, &name("gradient"), hint, loss.into(), &w).unwrap();
        found.push(made.into_iter().filter_map(Gradient::dense).collect());
    }
    [0, 1, 2].map(|vector| {
        let parts: Vec<Output> = found.iter().map(|all| all[vector]).collect();
        let name = format!("replica{replica}/devices{vector}");
        graph.add(&name, first, Op::Mean, &parts).unwrap().into()
    })
}

fn update(graph: &mut Graph, name: &str, w: Output, means: &[Output]) -> NodeId {
    let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
    let inputs = [&[w], means].concat();
    graph.add(name, Hint::With(w.node), op, &inputs).unwrap()
}

fn simplified(graph: &Graph, roots: &[NodeId]) -> (Graph, Vec<NodeId>) {
    let (graph, moved) = simplify(graph, roots).unwrap();
    (graph, roots.iter().map(|id| moved[id]).collect())
}

/// Workers with weights of their own, each with some devices.
fn network(workers: u32, devices: u32) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    for number in 0..workers {
        let first = Hint::Replica(number);
        let name = |what: &str| format!("replica{number}/{what}");
        let w = SHAPES.map(|(what, dims)| {
            graph.variable_at(&name(what), first, spec(dims), Init::Zeros).unwrap()
        });
        let means = replica(&mut graph, number, devices, w);
        for (vector, (w, mut mean)) in (0..).zip(w.into_iter().zip(means)) {
            if workers > 1 {
                let op = Op::AllReduce { vector };
                let reduced = graph.add(&name(&format!("mean{vector}")), first, op, &[mean]);
                mean = reduced.unwrap().into();
                roots.push(mean.node);
            }
            roots.push(update(&mut graph, &name(&format!("update{vector}")), w, &[mean]));
        }
    }
    simplified(&graph, &roots)
}

fn planned(workers: u32, devices: u32, options: PlanOptions) -> Plan {
    let (graph, roots) = network(workers, devices);
    let cluster = Cluster::Workers { workers };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

/// Workers of some devices each, and weights on servers, or on the workers where there are none: the plan of a training step, and
/// of a fetch of the weights to the first worker.
fn served(workers: u32, devices: u32, servers: u32, options: PlanOptions) -> Plan {
    let mut graph = Graph::new();
    let w = SHAPES.map(|(what, dims)| graph.variable(what, spec(dims), Init::Zeros).unwrap());
    let means: Vec<[Output; 3]> =
        (0..workers).map(|number| replica(&mut graph, number, devices, w)).collect();
    let updates = [0, 1, 2].map(|vector| {
        let means: Vec<Output> = means.iter().map(|of_worker| of_worker[vector]).collect();
        update(&mut graph, &format!("update{vector}"), w[vector], &means)
    });
    let (graph, _) = simplified(&graph, &updates);
    let cluster = match servers {
        0 => Cluster::Colocated { workers },
        servers => Cluster::ParameterServers { workers, servers },
    };
    let placement = Placement::Balanced { split_above: Some(8 << 10) };
    let placed = place(&graph, cluster, placement).unwrap();
    let roots = [0, 1, 2].map(|vector| placed.find_all(&format!("update{vector}"))).concat();
    let train =
        RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0, 1] };
    let roots = SHAPES.map(|(what, _)| placed.find(what).unwrap()).to_vec();
    let fetch_to = Some(cluster.tasks()[0]);
    let fetch = RunSpec { name: "fetch", roots, fetch_to, given: vec![], followed_by: vec![] };
    plan(&placed, &cluster.tasks(), &[train, fetch], options).unwrap()
}

fn by_edges(among_devices: AmongDevices, shared_memory: SharedMemory) -> PlanOptions {
    PlanOptions {
        among_devices,
        all_reduce: AllReduceBy::Edges { groups: 1, split_above: 8 << 10 },
        devices: DeviceTasks::All,
        device_crossing: DeviceCrossing::Direct,
        shared_memory,
        ..PlanOptions::default()
    }
}

fn bytes(graph: &Graph, of: Output) -> u64 {
    // fits: sizes in memory
    graph.fact(of).spec().unwrap().unwrap().bytes() as u64
}

/// By device: what comes to it from the others of its worker, and what goes from it to them.
fn links(part: &Part, devices: u32) -> Vec<[u64; 2]> {
    let mut links = vec![[0; 2]; devices as usize];
    for (id, node) in part.graph.nodes() {
        let Op::CopyTo { space: Space::Device(to) } = node.op else { continue };
        let Space::Device(from) = part.graph.node(node.inputs[0].node).space else { continue };
        links[to as usize][0] += bytes(&part.graph, id.into());
        links[from as usize][1] += bytes(&part.graph, id.into());
    }
    links
}

#[test]
fn each_devices_links_carry_as_much_in_the_multi_ring_and_no_more_in_all() {
    for (workers, devices) in [(1, 2), (2, 2), (2, 3), (3, 4)] {
        for shared_memory in [SharedMemory::Used, SharedMemory::Unused, SharedMemory::None] {
            let of = |among| planned(workers, devices, by_edges(among, shared_memory.clone()));
            let (first, shares) = (of(AmongDevices::First), of(SHARES));
            let n = u64::from(devices);
            // each device gives the others what they reduce of its gradients, and takes all weights but its own share
            let once = 2 * (n - 1) * ALL;
            for plan in [&first, &shares] {
                let traffic = plan.traffic(RunId(0));
                assert_eq!(traffic.between_devices, u64::from(workers) * once);
                let crosses = 2 * u64::from(workers - 1) * ALL;
                assert_eq!(traffic.written + traffic.by_reference, crosses);
                assert_eq!(traffic.to_host, 0);
            }
            for part in &first.parts {
                let links = links(part, devices);
                assert_eq!(links[0], [(n - 1) * ALL; 2], "all of it");
            }
            for part in &shares.parts {
                for link in links(part, devices).into_iter().flatten() {
                    let equal = once / n;
                    assert!(link.abs_diff(equal) <= once / 16, "{link}, not {equal}");
                }
            }
            let mut by_device: HashMap<Space, u64> = HashMap::new();
            for edge in shares.edges.iter().filter(|edge| edge.bytes() != Some(0)) {
                assert_eq!(edge.reuse, Reuse::Proved, "{}", edge.name);
                *by_device.entry(edge.space).or_default() += edge.bytes().unwrap() as u64;
            }
            for device in (0..devices).filter(|_| workers > 1) {
                let crosses = by_device[&Space::Device(device)];
                let equal = 2 * u64::from(workers - 1) * ALL / n;
                assert!(crosses.abs_diff(equal) <= equal / 8, "{crosses}, not {equal}");
            }
        }
    }
}

/// What crosses does so from device to device of the same number; a weight comes once to a worker, and its devices give it on.
#[test]
fn each_device_deals_with_servers_for_its_share() {
    for (workers, devices, servers) in [(1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 3, 2)] {
        for shared_memory in [SharedMemory::Used, SharedMemory::Unused, SharedMemory::None] {
            let of = |among| {
                let options = by_edges(among, shared_memory.clone());
                let options = PlanOptions { all_reduce: AllReduceBy::Group, ..options };
                served(workers, devices, servers, options)
            };
            let (first, shares) = (of(AmongDevices::First), of(SHARES));
            let n = u64::from(devices);
            let once = 2 * (n - 1) * ALL;
            for plan in [&first, &shares] {
                let traffic = plan.traffic(RunId(0));
                assert_eq!(traffic.between_devices, u64::from(workers) * once);
                let crosses = 2 * u64::from(workers) * ALL;
                assert_eq!(traffic.written + traffic.by_reference, crosses);
                assert_eq!(traffic.to_host, 0);
            }
            let (of_workers, of_servers) = shares.parts.split_at(workers as usize);
            for part in &first.parts[..workers as usize] {
                assert_eq!(links(part, devices)[0], [(n - 1) * ALL; 2], "all of it");
            }
            for part in of_workers {
                for link in links(part, devices).into_iter().flatten() {
                    assert!(link.abs_diff(once / n) <= once / 8, "{link}, not {}", once / n);
                }
            }
            for part in of_servers {
                assert_eq!(links(part, devices), vec![[0; 2]; devices as usize]);
                assert_eq!(part.memory.device_bytes.len(), devices as usize, "{:?}", part.task);
            }
            let mut by_device: HashMap<(usize, Space), u64> = HashMap::new();
            for edge in shares.edges.iter().filter(|edge| edge.to < workers as usize) {
                *by_device.entry((edge.to, edge.space)).or_default() +=
                    edge.bytes().unwrap() as u64;
            }
            for (worker, device) in
                (0..of_workers.len()).flat_map(|worker| (0..devices).map(move |at| (worker, at)))
            {
                let comes = by_device[&(worker, Space::Device(device))];
                assert!(comes.abs_diff(ALL / n) <= ALL / 8, "{comes}, not {}", ALL / n);
            }
        }
    }
}

/// Every worker has the variables of its share of them, a part on each device.
#[test]
fn workers_that_are_servers_have_variables_on_all_their_devices() {
    for shared_memory in [SharedMemory::Used, SharedMemory::None] {
        let options = by_edges(SHARES, shared_memory);
        let plan = served(2, 2, 0, PlanOptions { all_reduce: AllReduceBy::Group, ..options });
        let traffic = plan.traffic(RunId(0));
        // each gives the other its gradients of a half of the weights, and the other half of the weights
        assert_eq!(traffic.written + traffic.by_reference, 2 * ALL);
        for part in &plan.parts {
            let mut held: HashMap<Space, u64> = HashMap::new();
            for (id, node) in part.graph.nodes() {
                if matches!(node.op, Op::Variable { .. }) {
                    *held.entry(node.space).or_default() += bytes(&part.graph, id.into());
                }
            }
            for device in [0, 1].map(Space::Device) {
                assert!(held[&device].abs_diff(ALL / 4) <= ALL / 8, "{held:?}");
            }
        }
    }
}

#[test]
fn a_mean_over_devices_is_made_of_the_rows_that_its_server_has() {
    let options = by_edges(SHARES, SharedMemory::Used);
    let plan = served(2, 3, 2, PlanOptions { all_reduce: AllReduceBy::Group, ..options });
    for part in &plan.parts[..2] {
        let graph = &part.graph;
        let means = graph.nodes().filter(|(_, node)| node.op == Op::Mean);
        let mut made = 0;
        for (id, node) in means {
            let from = |input: &Output| {
                let node = graph.node(input.node);
                let is_copy = matches!(node.op, Op::CopyTo { .. });
                if is_copy { graph.node(node.inputs[0].node).space } else { node.space }
            };
            let of: Vec<Space> = node.inputs.iter().map(from).collect();
            assert_eq!(of, [0, 1, 2].map(Space::Device), "{}", node.name);
            made += bytes(graph, id.into());
        }
        assert_eq!(made, ALL, "nothing twice");
    }
    for part in &plan.parts[2..] {
        for (_, node) in part.graph.nodes().filter(|(_, node)| node.op.mutated_inputs() > 0) {
            for input in &node.inputs {
                assert_eq!(part.graph.node(input.node).space, node.space, "{}", node.name);
            }
        }
    }
}

#[test]
fn means_are_of_all_devices_in_their_order_where_their_share_is_updated() {
    let plan = planned(2, 3, by_edges(SHARES, SharedMemory::Used));
    for part in &plan.parts {
        let graph = &part.graph;
        let is_mean = |id: &NodeId| graph.node(*id).op == Op::Mean;
        let from = |input: &Output| {
            let node = graph.node(input.node);
            let source = match node.op {
                Op::CopyTo { .. } => graph.node(node.inputs[0].node),
                _ => node,
            };
            source.space
        };
        let mut made = 0;
        for mean in
            graph.ids().filter(is_mean).filter(|id| graph.node(*id).name.contains("/devices"))
        {
            let of: Vec<Space> = graph.node(mean).inputs.iter().map(from).collect();
            assert_eq!(of, [0, 1, 2].map(Space::Device), "{}", graph.node(mean).name);
            made += bytes(graph, mean.into());
        }
        assert_eq!(made, ALL, "nothing twice");
        let mut updated = 0;
        for (_, node) in graph.nodes().filter(|(_, node)| node.op.mutated_inputs() > 0) {
            let [variable, mean] = node.inputs[..] else { panic!("{node:?}") };
            assert_eq!(graph.node(variable.node).space, node.space);
            assert_eq!(graph.node(mean.node).space, node.space, "{}", node.name);
            updated += bytes(graph, variable);
        }
        assert_eq!(updated, ALL);
    }
}

/// Where groups reduce in the host's memory, each device's link to the host carries its share.
#[test]
fn a_group_reduces_the_shares_beside_each_other() {
    let options = PlanOptions {
        among_devices: SHARES,
        devices: DeviceTasks::Workers,
        ..PlanOptions::default()
    };
    let plan = planned(2, 2, options);
    let vectors = |part: &Part| {
        let vectors = part.graph.nodes().filter_map(|(id, node)| Some((node.op.vector()?, id)));
        let mut vectors: Vec<(u32, u64)> =
            vectors.map(|(vector, id)| (vector, bytes(&part.graph, id.into()))).collect();
        vectors.sort_unstable();
        vectors
    };
    let mut numbers: Vec<u32> = vectors(&plan.parts[0]).iter().map(|(vector, _)| *vector).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), vectors(&plan.parts[0]).len(), "each has a number of its own");
    assert_eq!(vectors(&plan.parts[0]), vectors(&plan.parts[1]));
    assert_eq!(vectors(&plan.parts[0]).iter().map(|(_, bytes)| bytes).sum::<u64>(), ALL);
    assert_eq!(plan.traffic(RunId(0)).to_host, 2 * ALL);
    for part in &plan.parts {
        let mut by_device: HashMap<Space, u64> = HashMap::new();
        for (id, node) in
            part.graph.nodes().filter(|(_, node)| matches!(node.op, Op::CopyTo { .. }))
        {
            if node.space == Space::Host {
                let from = part.graph.node(node.inputs[0].node).space;
                *by_device.entry(from).or_default() += bytes(&part.graph, id.into());
            }
        }
        for device in [0, 1].map(Space::Device) {
            assert!(by_device[&device].abs_diff(ALL / 2) <= ALL / 16, "{by_device:?}");
        }
    }
}

#[test]
fn what_crosses_in_half_of_the_bytes_does_so_for_each_device() {
    let whole = planned(2, 2, by_edges(SHARES, SharedMemory::Unused)).traffic(RunId(0));
    let options = PlanOptions { wire: Some(DType::BF16), ..by_edges(SHARES, SharedMemory::Unused) };
    let plan = planned(2, 2, options);
    assert_eq!(2 * plan.traffic(RunId(0)).written, whole.written);
    assert_eq!(plan.traffic(RunId(0)).between_devices, whole.between_devices);
    // weights are widened where they come, and then given on
    let of = |wire| {
        let options = by_edges(SHARES, SharedMemory::Unused);
        served(2, 2, 1, PlanOptions { all_reduce: AllReduceBy::Group, wire, ..options })
    };
    let (whole, narrow) = (of(None), of(Some(DType::BF16)));
    let [whole_train, narrow_train] = [&whole, &narrow].map(|plan| plan.traffic(RunId(0)));
    assert_eq!(2 * narrow_train.written, whole_train.written);
    for part in &narrow.parts[..2] {
        let links = links(part, 2);
        let equal = 2 * ALL / 2;
        let even = |link: &u64| link.abs_diff(equal) <= equal / 4;
        assert!(links.iter().flatten().all(even), "{links:?}");
    }
}
