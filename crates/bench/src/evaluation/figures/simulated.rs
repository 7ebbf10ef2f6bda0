//! The cluster of Xue et al. and larger ones, and this machine beside its simulation.

use tensorwire_simulate as sim;
use tensorwire_zoo::{AlexNet, Fcn5, Gru, InceptionV3, Lstm, Mlp, Shipped, Vgg16};

use super::FigureScope;
use super::xue::{BATCHES, SMALL_BATCH};
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
    // figures 9 and 12, but for what figure 11 has
    for model in [&AlexNet as &dyn Shipped, &Fcn5, &Vgg16, &Lstm, &Gru, &InceptionV3] {
        let name = model.name();
        let is_in_11 = ["lstm", "inception-v3", "vgg16"].contains(&name.as_str());
        let mut theirs = |batch, exchange| {
            let spec = spec(model, sim::SimulatedStrategy::Ps, sim::paper::MACHINES, batch);
            all.push(Case::Simulate(SimulateSpec { exchange, ..spec }, paper.clone()));
        };
        for batch in BATCHES {
            if !(is_in_11 && batch == sim::paper::BATCH) {
                theirs(batch, sim::SimulatedExchange::ZeroCopy);
                theirs(batch, sim::SimulatedExchange::GrpcRdma);
            }
            if name == "vgg16" {
                theirs(batch, sim::SimulatedExchange::GrpcTcp);
            }
        }
        theirs(SMALL_BATCH, sim::SimulatedExchange::Copy);
    }
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
