//! Tensors that cross as another type: which do, what they are at both ends, and what is fetched as it is.

use tensorwire_graph::{
    Cluster, Gradient, Graph, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, Rule,
    RunSpec, SharedMemory, gradients, place, plan, simplify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const ROWS: usize = 32;

/// A layer and a bias at each worker; updates with the variables.
fn network(workers: u32) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let spec = |dims: &[usize]| TensorSpec::new(DType::F32, dims).unwrap();
    let w = graph.variable("w", spec(&[ROWS, ROWS]), Init::Zeros).unwrap();
    let b = graph.variable("b", spec(&[ROWS]), Init::Zeros).unwrap();
    let mut gradients_of: Vec<Vec<Output>> = Vec::new();
    for worker in 0..workers {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("worker{worker}/{what}");
        let input = |graph: &mut Graph, what: &str, dtype, dims: &[usize]| {
            let fact = Fact::known(dtype, dims);
            Output::from(graph.add(&name(what), hint, Op::Input { fact }, &[]).unwrap())
        };
        let x = input(&mut graph, "x", DType::F32, &[4, ROWS]);
        let labels = input(&mut graph, "labels", DType::I32, &[4]);
        let product = Op::MatMul { transpose_a: false, transpose_b: false };
        let y = graph.add(&name("y"), hint, product, &[x, w]).unwrap();
        let y = graph.add(&name("z"), hint, Op::BiasAdd, &[y.into(), b]).unwrap();
        let loss = [y.into(), labels];
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &loss).unwrap();
        let made = gradients(&mut graph, &name("gradient"), hint, loss.into(), &[w, b]).unwrap();
        gradients_of.push(made.into_iter().filter_map(Gradient::dense).collect());
    }
    let update = |(index, w): (usize, &Output)| {
        let inputs: Vec<Output> =
            std::iter::once(*w).chain(gradients_of.iter().map(|made| made[index])).collect();
        let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        graph.add(&format!("update{index}"), Hint::With(w.node), op, &inputs).unwrap()
    };
    let updates: Vec<NodeId> = [w, b].iter().enumerate().map(update).collect();
    let (graph, moved) = simplify(&graph, &updates).unwrap();
    (graph, updates.iter().map(|id| moved[id]).collect())
}

fn planned(servers: u32, placement: Placement, options: PlanOptions) -> Plan {
    let cluster = Cluster::ParameterServers { workers: 2, servers };
    let (graph, _) = network(2);
    let placed = place(&graph, cluster, placement).unwrap();
    let roots = ["update0", "update1"].iter().flat_map(|name| placed.find_all(name)).collect();
    let weights: Vec<NodeId> = ["w", "b"].iter().filter_map(|name| placed.find(name)).collect();
    let train =
        RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0, 1] };
    let fetch = RunSpec {
        name: "fetch",
        roots: weights.clone(),
        fetch_to: Some(cluster.tasks()[0]),
        given: vec![],
        followed_by: vec![2],
    };
    let evaluate = RunSpec {
        name: "evaluate",
        roots: vec![placed.find("worker0/loss").unwrap()],
        fetch_to: None,
        given: weights,
        followed_by: vec![2, 0],
    };
    plan(&placed, &cluster.tasks(), &[train, fetch, evaluate], options).unwrap()
}

fn bytes_of_run(plan: &Plan, run: usize) -> usize {
    let nodes = &plan.runs[run].nodes;
    let sent = plan.edges.iter().filter(|edge| nodes[edge.from].contains(&edge.send));
    sent.map(|edge| edge.fact.spec().unwrap().unwrap().bytes()).sum()
}

#[test]
fn a_step_sends_half_of_the_bytes_and_computes_as_before() {
    for shared_memory in [SharedMemory::None, SharedMemory::Unused, SharedMemory::Used] {
        for placement in [Placement::RoundRobin, Placement::Balanced { split_above: Some(1024) }] {
            let shared_memory = shared_memory.clone();
            let options = PlanOptions { shared_memory, ..PlanOptions::default() };
            let plain = planned(2, placement, options.clone());
            let narrow = planned(2, placement, PlanOptions { wire: Some(DType::BF16), ..options });
            let (w, b) = (4 * ROWS * ROWS, 4 * ROWS);
            assert_eq!(bytes_of_run(&plain, 0), 2 * 2 * (w + b));
            // a bias is too small
            assert_eq!(
                bytes_of_run(&narrow, 0),
                2 * 2 * (w / 2 + b),
                "{:?}",
                plain.edges[0].transfer
            );
            for part in &narrow.parts {
                for (_, node) in part.graph.nodes() {
                    let is_moved = matches!(
                        node.op,
                        Op::Cast { .. } | Op::Send { .. } | Op::Recv { .. } | Op::Join
                    );
                    let inputs = node.inputs.iter().map(|input| part.graph.fact(*input).dtype);
                    let all = inputs.chain(node.facts.iter().map(|fact| fact.dtype));
                    for dtype in all.filter(|_| !is_moved) {
                        assert_ne!(dtype, DType::BF16, "{}", node.name);
                    }
                }
            }
        }
    }
}

/// What is saved is what the servers have, and what is evaluated is what a step computes with.
#[test]
fn what_is_fetched_is_whole_and_an_evaluation_asks_nobody() {
    for placement in [Placement::RoundRobin, Placement::Balanced { split_above: Some(1024) }] {
        let options = PlanOptions { wire: Some(DType::BF16), ..PlanOptions::default() };
        let plan = planned(2, placement, options);
        let fetched: usize = plan
            .edges
            .iter()
            .filter(|edge| plan.runs[1].nodes[edge.from].contains(&edge.send))
            .filter(|edge| edge.fact.dtype == DType::F32)
            .map(|edge| edge.fact.spec().unwrap().unwrap().bytes())
            .sum();
        assert_eq!(fetched, 4 * ROWS * ROWS + 4 * ROWS);
        assert_eq!(bytes_of_run(&plan, 2), 0);
    }
}
