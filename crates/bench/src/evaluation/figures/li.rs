//! Li et al., figures 7 and 8.

use tensorwire_train::{Budget, StoreWire, Strategy, TrainConfig};

use super::{FigureScope, PaperData, job, links};
use crate::evaluation::Case;
use crate::kvstore::{KvstoreSpec, PAPER_BYTES, Pull};

pub(super) fn store(scope: &FigureScope) -> Vec<Case> {
    let mut all: Vec<Case> = scope.without_rdma("li-7", "store").into_iter().collect();
    let counts: &[u32] = if scope.quick { &[1, 2, 4] } else { &[1, 2, 4, 8, 16, 32] };
    for &workers in counts {
        for transport in scope.transports() {
            let spec = KvstoreSpec::new(workers, workers, PAPER_BYTES, scope.quick);
            let spec = KvstoreSpec { transport, ..spec };
            let mut ways =
                vec![(StoreWire::ZeroCopy, Pull::Filled), (StoreWire::Zmq, Pull::Filled)];
            if spec.can_show() {
                ways.push((StoreWire::ZeroCopy, Pull::Shown));
            }
            all.push(Case::Kvstore(spec, ways));
        }
    }
    // the paper's own contrast is with TCP over 1 Gb/s
    all.push(links::store(scope));
    all
}

/// The paper's perceptron on both data sets, as many servers as workers, and over their slower link.
pub(super) fn training(scope: &FigureScope) -> Vec<Case> {
    let steps = Budget::Steps(if scope.quick { 20 } else { 200 });
    let counts: &[u32] = if scope.quick { &[2] } else { &[2, 4, 8] };
    // of images nothing but their size decides how long a step takes
    let sets = [
        (PaperData::Mnist, "synthetic:4096,28x28x1"),
        (PaperData::Cifar10, "synthetic:4096,32x32x3"),
    ];
    let mut all: Vec<Case> = sets
        .iter()
        .filter_map(|(data, _)| scope.without("li-8", "mlp", *data, "store-training"))
        .chain(scope.without_rdma("li-8", "store-training"))
        .chain(links::no_store_training(scope))
        .collect();
    for &nodes in counts {
        for (data, made_up) in sets {
            let source = scope.source(data).unwrap_or_else(|| made_up.to_string());
            let config = job("mlp", &source, Strategy::DistSgd, steps);
            let config = TrainConfig { workers: nodes, servers: nodes, ..config };
            let jobs = scope.by_exchange(&scope.exchanges, &config);
            all.extend(jobs.into_iter().map(Case::Throughput));
            // the paper's own contrast, as of figure 7
            all.extend(links::store_training(scope, &source, nodes));
        }
    }
    all
}
