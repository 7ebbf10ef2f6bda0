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

/// Workers with weights of their own, each with some devices.
fn network(workers: u32, devices: u32) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let mut roots = Vec::new();
    for replica in 0..workers {
        let first = Hint::Replica(replica);
        let name = |what: &str| format!("replica{replica}/{what}");
        let w = [("w0", [ROWS, 64]), ("w1", [64, 64]), ("w2", [64, 8])].map(|(what, dims)| {
            let spec = TensorSpec::new(DType::F32, &dims).unwrap();
            graph.variable_at(&name(what), first, spec, Init::Zeros).unwrap()
        });
        let mut found: Vec<Vec<Output>> = Vec::new();
        for device in 0..devices {
            let hint = if device == 0 { first } else { Hint::Device { replica, device } };
            let name = |what: &str| name(&format!("device{device}/{what}"));
            let input = |graph: &mut Graph, what: &str, dtype, dims: &[usize]| {
                let fact = Fact::known(dtype, dims);
                Output::from(graph.add(&name(what), hint, Op::Input { fact }, &[]).unwrap())
            };
            let mut y = input(&mut graph, "x", DType::F32, &[8, ROWS]);
            let labels = input(&mut graph, "labels", DType::I32, &[8]);
            for (layer, w) in w.iter().enumerate() {
                let product = Op::MatMul { transpose_a: false, transpose_b: false };
                y = graph.add(&name(&format!("y{layer}")), hint, product, &[y, *w]).unwrap().into();
            }
            let op = Op::SoftmaxCrossEntropy;
            let loss = graph.add(&name("loss"), hint, op, &[y, labels]).unwrap();
            let made = gradients(&mut graph, &name("gradient"), hint, loss.into(), &w).unwrap();
            found.push(made.into_iter().filter_map(Gradient::dense).collect());
        }
        for (vector, w) in (0..).zip(w) {
            let parts: Vec<Output> = found.iter().map(|all| all[vector as usize]).collect();
            let mut mean =
                graph.add(&name(&format!("devices{vector}")), first, Op::Mean, &parts).unwrap();
            if workers > 1 {
                let op = Op::AllReduce { vector };
                mean =
                    graph.add(&name(&format!("mean{vector}")), first, op, &[mean.into()]).unwrap();
                roots.push(mean);
            }
            let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
            let update = name(&format!("update{vector}"));
            roots.push(graph.add(&update, Hint::With(w.node), op, &[w, mean.into()]).unwrap());
        }
    }
    let (graph, moved) = simplify(&graph, &roots).unwrap();
    (graph, roots.iter().map(|id| moved[id]).collect())
}

fn planned(workers: u32, devices: u32, options: PlanOptions) -> Plan {
    let (graph, roots) = network(workers, devices);
    let cluster = Cluster::Workers { workers };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
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
}
