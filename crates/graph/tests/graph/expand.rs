//! Gradients of which less crosses: what does, what is made of it where, and what the means of groups cross as.

use tensorwire_graph::{
    AllReduceBy, Cluster, Edge, Gradient, Graph, Hint, Init, Job, NodeId, Op, Output, Placement,
    Plan, PlanOptions, Rule, RunSpec, SharedMemory, gradients, place, plan, simplify,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const ROWS: usize = 32;
const ELEMENTS: usize = ROWS * ROWS;
const BLOCK: usize = 256;
const CHOSEN: usize = 10;

#[derive(Clone, Copy, Debug)]
enum Less {
    Bytes,
    Largest,
}

/// A layer at each worker, of whose gradient less crosses; `own`: each has the weights, and the gradients are all-reduced.
fn network(less: Less, own: bool) -> (Graph, Vec<NodeId>) {
    let mut graph = Graph::new();
    let spec = TensorSpec::new(DType::F32, &[ROWS, ROWS]).unwrap();
    let shared = (!own).then(|| graph.variable("w", spec.clone(), Init::Zeros).unwrap());
    let (mut made, mut updates) = (Vec::new(), Vec::new());
    for worker in 0..2 {
        let hint = Hint::Replica(worker);
        let name = |what: &str| format!("worker{worker}/{what}");
        let x = Op::Input { fact: Fact::known(DType::F32, &[4, ROWS]) };
        let x = graph.add(&name("x"), hint, x, &[]).unwrap().into();
        let labels = Op::Input { fact: Fact::known(DType::I32, &[4]) };
        let labels = graph.add(&name("labels"), hint, labels, &[]).unwrap().into();
        let w = match shared {
            Some(w) => w,
            None => graph.variable_at(&name("w"), hint, spec.clone(), Init::Zeros).unwrap(),
        };
        let product = Op::MatMul { transpose_a: false, transpose_b: false };
        let y: Output = graph.add(&name("y"), hint, product, &[x, w]).unwrap().into();
        let loss = graph.add(&name("loss"), hint, Op::SoftmaxCrossEntropy, &[y, labels]).unwrap();
        let all = gradients(&mut graph, &name("gradient"), hint, loss.into(), &[w]).unwrap();
        let gradient = all.into_iter().find_map(Gradient::dense).unwrap();
        let residual = Op::Variable { spec: spec.clone(), init: Init::Zeros };
        let residual = graph.add(&name("residual"), hint, residual, &[]).unwrap().into();
        let (op, back) = match less {
            Less::Bytes => {
                (Op::Quantize { block: BLOCK }, Op::Dequantize { block: BLOCK, first: 0 })
            }
            Less::Largest => {
                let back = Op::ScatterElements { to: vec![ROWS, ROWS], first: 0 };
                (Op::TopK { count: CHOSEN }, back)
            }
        };
        let node = graph.add(&name("less"), hint, op, &[residual, gradient]).unwrap();
        let parts = [0, 1].map(|index| Output { node, index });
        let back: Output = graph.add(&name("back"), hint, back, &parts).unwrap().into();
        made.push(match own {
            false => back,
            true => {
                let op = Op::AllReduce { vector: 0 };
                let mean = graph.add(&name("mean"), hint, op, &[back]).unwrap().into();
                let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
                let with = Hint::With(w.node);
                updates.push(graph.add(&name("update"), with, op, &[w, mean]).unwrap());
                mean
            }
        });
    }
    if let Some(w) = shared {
        let inputs: Vec<Output> = [w].into_iter().chain(made).collect();
        let op = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        updates.push(graph.add("update", Hint::With(w.node), op, &inputs).unwrap());
    }
    let (graph, moved) = simplify(&graph, &updates).unwrap();
    (graph, updates.iter().map(|id| moved[id]).collect())
}

fn planned(less: Less, cluster: Cluster, shared_memory: SharedMemory) -> Plan {
    let own = matches!(cluster, Cluster::Workers { .. });
    let (graph, roots) = network(less, own);
    let placed = place(&graph, cluster, Placement::Balanced { split_above: Some(1024) }).unwrap();
    let roots = match own {
        true => roots,
        false => placed.find_all("update"),
    };
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    let all_reduce = match own {
        true => AllReduceBy::Edges { groups: 1, split_above: 1024 },
        false => AllReduceBy::Group,
    };
    let options = PlanOptions {
        shared_memory,
        all_reduce,
        wire: Some(DType::BF16),
        ..PlanOptions::default()
    };
    plan(&placed, &cluster.tasks(), &[run], options).unwrap()
}

/// Bytes of the tensors of a type that cross, and meet a test.
fn bytes(plan: &Plan, dtype: DType, fits: impl Fn(&Edge) -> bool) -> usize {
    let edges = plan.edges.iter().filter(|edge| edge.fact.dtype == dtype && fits(edge));
    edges.filter_map(Edge::bytes).sum()
}

fn ways() -> [SharedMemory; 3] {
    [SharedMemory::None, SharedMemory::Unused, SharedMemory::Used]
}

#[test]
fn servers_get_bytes_with_their_scales_or_the_largest_elements() {
    for servers in [1, 3] {
        for shared_memory in ways() {
            let cluster = Cluster::ParameterServers { workers: 2, servers };
            let of = |less| planned(less, cluster, shared_memory.clone());
            let plan = of(Less::Bytes);
            let pushed = |edge: &Edge| plan.parts[edge.from].task.job == Job::Worker;
            assert_eq!(bytes(&plan, DType::U8, pushed), 2 * ELEMENTS);
            // all scales to each
            let scales = 4 * ELEMENTS / BLOCK * 2 * servers as usize;
            assert_eq!(bytes(&plan, DType::F32, pushed), scales);
            // weights
            assert_eq!(bytes(&plan, DType::BF16, |edge| !pushed(edge)), 2 * 2 * ELEMENTS);
            let plan = of(Less::Largest);
            let chosen = 4 * CHOSEN * 2 * servers as usize;
            assert_eq!(bytes(&plan, DType::I32, |_| true), chosen);
            assert_eq!(bytes(&plan, DType::F32, |_| true), chosen);
        }
    }
}

/// What a server has of a gradient is where its rows are in the whole, and no worker makes one of its own again.
#[test]
fn a_gradient_is_made_again_where_it_is_used_from_the_place_of_its_rows() {
    for less in [Less::Bytes, Less::Largest] {
        let cluster = Cluster::ParameterServers { workers: 2, servers: 3 };
        let plan = planned(less, cluster, SharedMemory::None);
        let mut found = Vec::new();
        for part in &plan.parts {
            for (id, node) in part.graph.nodes().filter(|(_, node)| node.op.expands()) {
                assert_eq!(part.task.job, Job::Server, "{}", node.name);
                let elements = part.graph.fact(id.into()).spec().unwrap().unwrap().elements();
                let first = match node.op {
                    Op::Dequantize { first, .. } | Op::ScatterElements { first, .. } => first,
                    _ => unreachable!(),
                };
                found.push((first, elements));
            }
        }
        found.sort_unstable();
        assert_eq!(found.len(), 2 * 3);
        let mut next = 0;
        for pair in found.chunks(2) {
            assert_eq!(pair[0], pair[1], "of both workers");
            assert_eq!(pair[0].0, next);
            next += pair[0].1;
        }
        assert_eq!(next, ELEMENTS);
    }
}

/// Who makes a mean takes less from the others and gives them bf16, and has itself what they have.
#[test]
fn a_group_has_the_same_rounded_means() {
    for shared_memory in ways() {
        for less in [Less::Bytes, Less::Largest] {
            let plan = planned(less, Cluster::Workers { workers: 2 }, shared_memory.clone());
            assert_eq!(bytes(&plan, DType::BF16, |_| true), 2 * ELEMENTS);
            let (given, beside) = match less {
                Less::Bytes => (bytes(&plan, DType::U8, |_| true), 2 * 4 * ELEMENTS / BLOCK),
                Less::Largest => (ELEMENTS, 2 * 4 * CHOSEN),
            };
            assert_eq!(given, ELEMENTS);
            assert_eq!(bytes(&plan, DType::F32, |_| true), beside);
            for part in &plan.parts {
                let applies = part.graph.nodes().find(|(_, node)| node.op.is_update()).unwrap();
                let mean = part.graph.node(applies.1.inputs[1].node);
                assert_eq!(mean.op, Op::Cast { to: DType::F32 }, "{}", mean.name);
            }
        }
    }
}
