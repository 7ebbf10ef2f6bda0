//! How evenly servers hold what the models learn.

use tensorwire_graph::{Cluster, Graph, Job, Op, Placement, Task, place};
use tensorwire_nn::{Optimizer, Program, ProgramSpec};
use tensorwire_zoo::{AlexNet, Fcn5, InceptionV3, Mlp, ResNet50, Shipped, Vgg16};

/// Bytes of variables and slots, by server.
fn loads(placed: &Graph, servers: u32) -> Vec<u64> {
    let mut loads = vec![0; servers as usize];
    for (_, node) in placed.nodes() {
        if let (Op::Variable { spec, .. }, Some(Task { job: Job::Server, index })) =
            (&node.op, node.task)
        {
            loads[index as usize] += spec.bytes() as u64;
        }
    }
    loads
}

#[test]
fn the_largest_share_is_at_most_a_twentieth_above_the_smallest() {
    let models: [&dyn Shipped; 6] = [&Mlp, &Fcn5, &AlexNet, &Vgg16, &InceptionV3, &ResNet50];
    for model in models {
        let optimizer = Optimizer::momentum(0.1);
        let spec = ProgramSpec { optimizer, ..ProgramSpec::default() };
        let program = Program::new(model, &model.samples().describe(), &spec).unwrap();
        for servers in [2, 3, 4] {
            let cluster = Cluster::ParameterServers { workers: 1, servers };
            let placed = place(&program.graph, cluster, Placement::default()).unwrap();
            let loads = loads(&placed, servers);
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            assert!(most * 20 <= least * 21, "{} on {servers}: {loads:?}", model.name());
        }
    }
}
