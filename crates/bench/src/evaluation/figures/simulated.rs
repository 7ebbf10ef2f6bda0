//! The cluster of Xue et al. and larger ones, and this machine beside its simulation.

use tensorwire_simulate as sim;
use tensorwire_zoo::{AlexNet, Fcn5, Gru, InceptionV3, Lstm, Mlp, Shipped, Vgg16};

use super::FigureScope;
use crate::evaluation::Case;
use crate::simulate::SimulateSpec;

pub(super) fn cases(scope: &FigureScope) -> Vec<Case> {
    let Some(paper) = sim::Network::preset("paper-xue") else { return Vec::new() };
    let mut all = Vec::new();
    let spec = |model, strategy, workers, batch| SimulateSpec {
        model,
        strategy,
        workers,
        servers: None,
        clients: None,
        placement: None,
        exchange: sim::SimulatedExchange::ZeroCopy,
        algorithm: None,
        batch,
    };
    for model in [&Lstm as &dyn Shipped, &InceptionV3, &Vgg16] {
        for workers in [1, 2, 4, 8, 64, 512, 4096] {
            for exchange in [sim::SimulatedExchange::ZeroCopy, sim::SimulatedExchange::GrpcRdma] {
                let spec = spec(model, sim::SimulatedStrategy::Ps, workers, sim::paper::BATCH);
                all.push(Case::Simulate(SimulateSpec { exchange, ..spec }, paper.clone()));
            }
            let spec = spec(model, sim::SimulatedStrategy::AllReduce, workers, sim::paper::BATCH);
            all.push(Case::Simulate(spec, paper.clone()));
        }
    }
    // the other models of figure 9
    for model in [&AlexNet as &dyn Shipped, &Fcn5, &Gru] {
        for exchange in [sim::SimulatedExchange::ZeroCopy, sim::SimulatedExchange::GrpcRdma] {
            let (strategy, batch) = (sim::SimulatedStrategy::Ps, sim::paper::BATCH);
            let spec = spec(model, strategy, sim::paper::MACHINES, batch);
            all.push(Case::Simulate(SimulateSpec { exchange, ..spec }, paper.clone()));
        }
    }
    // figure 9's 25 times
    let exchange = sim::SimulatedExchange::GrpcTcp;
    let of = spec(&Vgg16, sim::SimulatedStrategy::Ps, sim::paper::MACHINES, sim::paper::BATCH);
    all.push(Case::Simulate(SimulateSpec { exchange, ..of }, paper.clone()));
    let counts: &[u32] = if scope.quick { &[2, 4] } else { &[2, 4, 8] };
    for (model, batch) in [(&Mlp as &dyn Shipped, 64), (&Fcn5, 8)] {
        for &workers in counts {
            for strategy in [
                sim::SimulatedStrategy::Ps,
                sim::SimulatedStrategy::DistSgd,
                sim::SimulatedStrategy::AllReduce,
            ] {
                all.push(Case::Validate(spec(model, strategy, workers, batch)));
            }
        }
    }
    all
}
