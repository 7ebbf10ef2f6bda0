//! The papers' figures as data: which, and what is run for each.

use std::time::Duration;

use tensorwire_collectives::Design;
use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_simulate as sim;
use tensorwire_train::{Budget, Exchange, StoreWire, Strategy, TrainConfig};

use tensorwire_zoo::{Fcn5, InceptionV3, Lstm, Mlp, Shipped, Vgg16};

use super::Case;
use crate::allreduce::{AllreduceSpec, DeviceTensor, Way};
use crate::job::QUIET_RATE;
use crate::kvstore::{KvstoreSpec, PAPER_BYTES, Pull};
use crate::modes::{PAPER_MODES, in_mode};
use crate::simulate::SimulateSpec;
use crate::transfer::{Sizes, TransferSpec, transfer_sizes};

/// A figure of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// As `--only` spells it.
    pub name: &'static str,
    pub paper: &'static str,
    pub what: &'static str,
    /// With `quick`, no case is begun after this long, in minutes.
    pub quick_minutes: u64,
    cases: fn(&FigureScope) -> Vec<Case>,
}

/// How much is measured, and of what.
#[derive(Clone, Debug)]
pub struct FigureScope {
    pub quick: bool,
    /// All that there are; those that a job refuses are left out.
    pub exchanges: Vec<Exchange>,
}

/// All of them. The quick minutes are 27 in all: with what the last case of each takes, less than 30.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "transfer",
        paper: "Xue et al., figure 8",
        what: "one tensor to a reduce_max in another process, by size and exchange",
        quick_minutes: 3,
        cases: transfers,
    },
    Figure {
        name: "throughput",
        paper: "Xue et al., figure 9",
        what: "training by batch, for six models and each exchange",
        quick_minutes: 6,
        cases: throughput,
    },
    Figure {
        name: "convergence",
        paper: "Xue et al., figure 10",
        what: "the loss of three applications by time, for each exchange",
        quick_minutes: 3,
        cases: convergence,
    },
    Figure {
        name: "scaling",
        paper: "Xue et al., figure 11",
        what: "training by workers, and one process alone",
        quick_minutes: 3,
        cases: scaling,
    },
    Figure {
        name: "copies",
        paper: "Xue et al., figure 12",
        what: "training with and without the sender's copy, all tensors written",
        quick_minutes: 2,
        cases: copies,
    },
    Figure {
        name: "store",
        paper: "Li et al., figure 7",
        what: "push and pull of a key by workers and servers, against ZeroMQ",
        quick_minutes: 1,
        cases: store,
    },
    Figure {
        name: "store-training",
        paper: "Li et al., figure 8",
        what: "training over a key-value store, against ZeroMQ",
        quick_minutes: 1,
        cases: store_training,
    },
    Figure {
        name: "modes",
        paper: "Mamidala et al., figures 11 to 14",
        what: "learning curves of six ways of training",
        quick_minutes: 2,
        cases: modes,
    },
    Figure {
        name: "allreduce",
        paper: "Mamidala et al., figures 17 to 20",
        what: "all-reduce by size and processes, of vectors and of tensors that devices hold",
        quick_minutes: 2,
        cases: all_reduces,
    },
    Figure {
        name: "simulated",
        paper: "Xue et al., figure 11",
        what: "the paper's cluster and larger ones; what is simulated beside what is measured here",
        quick_minutes: 4,
        cases: simulations,
    },
];

impl Figure {
    /// What is run for it, most telling first; nothing that a job would refuse.
    pub fn cases(&self, scope: &FigureScope) -> Vec<Case> {
        let is_possible = |case: &Case| match case {
            Case::Throughput(config)
            | Case::Scaling(config)
            | Case::Convergence(config, _)
            | Case::Modes(config) => config.check().is_ok(),
            _ => true,
        };
        (self.cases)(scope).into_iter().filter(is_possible).collect()
    }

    pub fn quick_limit(&self) -> Duration {
        Duration::from_secs(60 * self.quick_minutes)
    }
}

const WIRES: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// The models of Xue et al.'s table 2, smallest step first.
const MODELS: [&str; 6] = ["fcn5", "gru", "lstm", "alexnet", "inception-v3", "vgg16"];

/// A model on made-up data, with two workers and two servers.
fn made_up(model: &str, batch: usize, quick: bool) -> TrainConfig {
    let steps = Budget::Steps(if quick { 4 } else { 12 });
    TrainConfig {
        batch,
        optimizer: Optimizer::momentum(QUIET_RATE),
        ..job(model, "synthetic:256", Strategy::Ps, steps)
    }
}

fn job(model: &str, data: &str, strategy: Strategy, budget: Budget) -> TrainConfig {
    let (model, data) = (model.to_string(), data.to_string());
    TrainConfig { model, data, strategy, budget, ..TrainConfig::default() }
}

/// Ours, the paper's RDMA (which is one write), gRPC.TCP and gRPC.RDMA.
const PAPER_EXCHANGES: [Exchange; 4] =
    [Exchange::ZeroCopy, Exchange::Write, Exchange::GrpcTcp, Exchange::GrpcRdma];

/// True if `exchange` is something else than zero-copy over this transport. Only where processes share memory is
/// there anything to read by reference; elsewhere zero-copy is a write.
fn is_its_own(exchange: Exchange, transport: Transport) -> bool {
    exchange != Exchange::Write || transport == Transport::Shm
}

/// A job over each transport, in each way of exchanging.
fn by_exchange(exchanges: &[Exchange], config: &TrainConfig) -> Vec<TrainConfig> {
    let mut all = Vec::new();
    for transport in WIRES {
        for &exchange in exchanges.iter().filter(|&&exchange| is_its_own(exchange, transport)) {
            all.push(TrainConfig { transport, exchange, ..config.clone() });
        }
    }
    all
}

fn transfers(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    for bytes in transfer_sizes(scope.quick) {
        for transport in WIRES {
            let goes = |of: &&Exchange| transport == Transport::Tcp || !of.is_over_tcp();
            let specs = scope.exchanges.iter().filter(goes).map(|&exchange| {
                TransferSpec::new(transport, exchange, Sizes::Static, bytes, scope.quick)
            });
            // what is too large for one is left out, and the others go on
            let (fit, too_large): (Vec<_>, Vec<_>) = specs.partition(|spec| spec.check().is_ok());
            all.push(Case::Transfer(fit));
            all.extend(too_large.into_iter().map(|spec| Case::Transfer(vec![spec])));
        }
    }
    all
}

fn throughput(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let batches: &[usize] = if scope.quick { &[8, 1] } else { &[1, 2, 4, 8, 16, 32, 64] };
    for &batch in batches {
        for model in MODELS {
            // with quick, a step of the large ones is to take seconds, not minutes
            let is_long = model == "inception-v3" || model == "vgg16";
            if scope.quick && is_long && batch > 1 {
                continue;
            }
            let exchanges = if scope.quick { &PAPER_EXCHANGES[..] } else { &scope.exchanges };
            let jobs = by_exchange(exchanges, &made_up(model, batch, scope.quick));
            all.extend(jobs.into_iter().map(Case::Throughput));
        }
    }
    all
}

fn convergence(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let (steps, every) = if scope.quick { (30, 3) } else { (600, 10) };
    for (model, data) in
        [("cifar", "synthetic:512"), ("seq2seq", "reverse"), ("sentence-embedding", "synthetic")]
    {
        let config = job(model, data, Strategy::Ps, Budget::Steps(steps));
        let jobs = by_exchange(&scope.exchanges, &TrainConfig { batch: 32, ..config });
        // where processes share memory there is no wire to compare on
        let jobs = jobs.into_iter().filter(|job| job.transport == Transport::Tcp);
        all.extend(jobs.map(|job| Case::Convergence(job, every)));
    }
    all
}

fn scaling(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let (models, counts): (&[&str], &[u32]) = match scope.quick {
        true => (&["fcn5", "lstm"], &[1, 2, 4]),
        false => (&["fcn5", "lstm", "inception-v3", "vgg16"], &[1, 2, 4, 8]),
    };
    for &workers in counts {
        for model in models {
            let servers = workers;
            for transport in WIRES {
                let exchanges = [Exchange::ZeroCopy, Exchange::Write, Exchange::GrpcRdma];
                for exchange in exchanges.into_iter().filter(|&of| is_its_own(of, transport)) {
                    let config = made_up(model, 8, scope.quick);
                    let config = TrainConfig { workers, servers, ..config };
                    all.push(Case::Scaling(TrainConfig { transport, exchange, ..config }));
                }
            }
        }
    }
    all
}

fn copies(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    for model in MODELS {
        for exchange in [Exchange::Write, Exchange::Copy] {
            let config = made_up(model, 8, scope.quick);
            let transport = Transport::Shm;
            all.push(Case::Throughput(TrainConfig { exchange, transport, ..config }));
        }
    }
    all
}

fn store(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let counts: &[u32] = if scope.quick { &[1, 2, 4] } else { &[1, 2, 4, 8, 16, 32] };
    for &workers in counts {
        for transport in WIRES {
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
    all
}

fn store_training(scope: &FigureScope) -> Vec<Case> {
    let steps = Budget::Steps(if scope.quick { 20 } else { 200 });
    let config = job("mlp", "digits", Strategy::DistSgd, steps);
    by_exchange(&scope.exchanges, &config).into_iter().map(Case::Throughput).collect()
}

fn modes(scope: &FigureScope) -> Vec<Case> {
    let epochs = Budget::Epochs(if scope.quick { 4 } else { 20 });
    let config = job("mlp", "digits", Strategy::DistSgd, epochs);
    let mut config = TrainConfig { workers: 4, servers: 1, batch: 16, ..config };
    config.clients.clients = Some(2);
    PAPER_MODES.map(|mode| Case::Modes(in_mode(&config, mode))).into()
}

fn all_reduces(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let (counts, powers): (&[u32], _) = if scope.quick { (&[2, 4], 7) } else { (&[2, 4, 8], 9) };
    for &ranks in counts {
        for transport in WIRES {
            // 4 KiB and on, by fours
            for bytes in (0..powers).map(|power| (4 << 10) << (2 * power)) {
                let spec = AllreduceSpec::new(ranks, bytes, scope.quick);
                let by_table = Way { algorithm: None, tensor: None };
                all.push(Case::Allreduce(AllreduceSpec { transport, ..spec }, vec![by_table]));
            }
            // the paper's sizes
            for bytes in [4 << 20, 16 << 20, 64 << 20] {
                let spec = AllreduceSpec::new(ranks, bytes, scope.quick);
                let ways = Design::ALL.map(|design| {
                    let tensor = Some(DeviceTensor { devices: 2, design });
                    Way { algorithm: design.algorithm(), tensor }
                });
                all.push(Case::Allreduce(AllreduceSpec { transport, ..spec }, ways.into()));
            }
        }
    }
    all
}

fn simulations(scope: &FigureScope) -> Vec<Case> {
    let Some(paper) = sim::Network::preset("paper-xue") else { return Vec::new() };
    let mut all = Vec::new();
    let spec = |model, strategy, workers, batch| SimulateSpec {
        model,
        strategy,
        workers,
        servers: None,
        clients: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    const EXCHANGES: [Exchange; 4] =
        [Exchange::ZeroCopy, Exchange::Write, Exchange::Copy, Exchange::Zmq];

    #[test]
    fn every_figure_has_something_to_run_and_quick_is_less() {
        for figure in FIGURES {
            let count =
                |quick| figure.cases(&FigureScope { quick, exchanges: EXCHANGES.to_vec() }).len();
            assert!(0 < count(true) && count(true) <= count(false), "{}", figure.name);
            assert!(figure.quick_minutes > 0);
        }
        let minutes: u64 = FIGURES.iter().map(|figure| figure.quick_minutes).sum();
        assert!(minutes <= 27, "{minutes}");
    }

    #[test]
    fn the_papers_write_is_measured_where_zero_copy_is_another_thing() {
        for figure in FIGURES.iter().filter(|of| ["throughput", "scaling"].contains(&of.name)) {
            let cases = figure.cases(&FigureScope { quick: true, exchanges: EXCHANGES.to_vec() });
            let written = cases.iter().filter_map(|case| match case {
                Case::Throughput(config) | Case::Scaling(config) => Some(config),
                _ => None,
            });
            let written: Vec<Transport> = written
                .filter(|config| config.exchange == Exchange::Write)
                .map(|config| config.transport)
                .collect();
            assert!(!written.is_empty(), "{}", figure.name);
            assert!(written.iter().all(|at| *at == Transport::Shm), "{}", figure.name);
        }
    }

    #[cfg(feature = "baselines")]
    #[test]
    fn what_a_job_refuses_is_left_out() {
        let scope = FigureScope { quick: true, exchanges: EXCHANGES.to_vec() };
        let exchanges = |name: &str| -> Vec<(Exchange, Transport)> {
            let figure = FIGURES.iter().find(|figure| figure.name == name);
            let cases = figure.map(|figure| figure.cases(&scope)).unwrap_or_default();
            let of = |case: &Case| match case {
                Case::Throughput(config) => Some((config.exchange, config.transport)),
                _ => None,
            };
            cases.iter().filter_map(of).collect()
        };
        let over_tcp = |(exchange, _): &&(Exchange, Transport)| exchange.is_over_tcp();
        let steps = exchanges("throughput");
        assert!(steps.iter().filter(over_tcp).count() > 0);
        assert!(steps.iter().filter(over_tcp).all(|(_, wire)| *wire == Transport::Tcp));
        let store = exchanges("store-training");
        let all = [
            (Exchange::ZeroCopy, Transport::Shm),
            (Exchange::ZeroCopy, Transport::Tcp),
            (Exchange::Zmq, Transport::Tcp),
        ];
        assert_eq!(store, all);
    }
}
