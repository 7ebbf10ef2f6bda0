//! Xue et al., figures 8 to 12 and table 3.

use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_train::{Budget, DeviceChoice, Exchange, Strategy, TrainConfig};

use super::{FigureScope, PaperData, is_its_own, job, made_up};
use crate::evaluation::{Case, NotMeasured};
use crate::transfer::{Sizes, TransferSpec, transfer_sizes};

/// The models of Xue et al.'s table 2, smallest step first.
const MODELS: [&str; 6] = ["fcn5", "gru", "lstm", "alexnet", "inception-v3", "vgg16"];

/// Samples of a worker in figure 9.
pub(super) const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Samples of a worker where the paper looks at a small batch (figure 12; table 3 does not say), and in figure 11.
pub(super) const SMALL_BATCH: usize = 8;
const SCALING_BATCH: usize = 32;

/// Ours, the paper's RDMA (which is one write), gRPC.TCP and gRPC.RDMA.
const PAPER_EXCHANGES: [Exchange; 4] =
    [Exchange::ZeroCopy, Exchange::Write, Exchange::GrpcTcp, Exchange::GrpcRdma];

pub(super) fn transfers(scope: &FigureScope) -> Vec<Case> {
    let mut all: Vec<Case> = scope.without_rdma("xue-8", "transfer").into_iter().collect();
    for bytes in transfer_sizes(scope.quick) {
        for transport in scope.transports() {
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

pub(super) fn throughput(scope: &FigureScope) -> Vec<Case> {
    let mut all: Vec<Case> = scope.without_rdma("xue-9", "throughput").into_iter().collect();
    // a quick run has all models at one batch first, a whole one, which takes a day, all batches of a model
    let of_model = |model| BATCHES.map(|batch| (model, batch));
    let jobs: Vec<(&str, usize)> = match scope.quick {
        true => [8, 1].iter().flat_map(|&batch| MODELS.map(|model| (model, batch))).collect(),
        false => MODELS.into_iter().flat_map(of_model).collect(),
    };
    // what the paper has comes first
    let is_other = |of: &&Exchange| !scope.quick && !PAPER_EXCHANGES.contains(of);
    let others: Vec<Exchange> = scope.exchanges.iter().filter(is_other).copied().collect();
    for exchanges in [&PAPER_EXCHANGES[..], &others] {
        for &(model, batch) in &jobs {
            // with quick, a step of the large ones is to take seconds, not minutes
            let is_long = model == "inception-v3" || model == "vgg16";
            if scope.quick && is_long && batch > 1 {
                continue;
            }
            let jobs = scope.by_exchange(exchanges, &made_up(model, batch, scope.quick));
            all.extend(jobs.into_iter().map(Case::Throughput));
        }
    }
    all
}

/// One of the paper's three, with settings at which it learns what stands in the place of the paper's data.
struct Application {
    model: &'static str,
    data: Option<PaperData>,
    stand_in: &'static str,
    optimizer: Optimizer,
    /// Over the paper's data, and over what stands in their place.
    epochs: [u64; 2],
}

/// Of each worker; two make the batches of docs/data-and-models.md.
const APPLICATION_BATCH: usize = 16;
const QUICK_STEPS: u64 = 300;

const APPLICATIONS: [Application; 3] = [
    Application {
        model: "cifar",
        data: Some(PaperData::Cifar10),
        stand_in: "digits",
        optimizer: Optimizer::momentum(0.02),
        epochs: [12, 12],
    },
    Application {
        model: "seq2seq",
        data: Some(PaperData::Wmt),
        stand_in: "kjv",
        optimizer: Optimizer::adam(0.003),
        epochs: [2, 8],
    },
    // the paper's own text was never published
    Application {
        model: "sentence-embedding",
        data: None,
        stand_in: "kjv",
        optimizer: Optimizer::adam(0.002),
        epochs: [8, 100],
    },
];

pub(super) fn convergence(scope: &FigureScope) -> Vec<Case> {
    let of = |application: &Application| {
        application
            .data
            .and_then(|data| scope.without("xue-10", application.model, data, "convergence"))
    };
    let no_rdma = scope.without_rdma("xue-10", "convergence");
    let mut all: Vec<Case> = APPLICATIONS.iter().filter_map(of).chain(no_rdma).collect();
    all.push(Case::NotMeasured(NotMeasured {
        figure: "xue-10",
        subject: vec!["sentence-embedding", "the paper's own text"],
        why: "the text is the authors' company's; verses of Genesis and Exodus stand in its place"
            .to_string(),
        command: None,
    }));
    for Application { model, data, stand_in, optimizer, epochs } in APPLICATIONS {
        let source = data.and_then(|data| scope.source(data));
        let (budget, every) = match (scope.quick, &source) {
            (true, _) => (Budget::Steps(QUICK_STEPS), 5),
            (false, None) => (Budget::Epochs(epochs[1]), 10),
            (false, Some(_)) => (Budget::Epochs(epochs[0]), 100),
        };
        let source = source.unwrap_or_else(|| stand_in.to_string());
        let config = job(model, &source, Strategy::Ps, budget);
        let config = TrainConfig { batch: APPLICATION_BATCH, optimizer, ..config };
        let exchanges = if scope.quick { &PAPER_EXCHANGES[..] } else { &scope.exchanges };
        let jobs = scope.by_exchange(exchanges, &config);
        // where processes share memory there is no wire to compare on
        let jobs = jobs.into_iter().filter(|job| job.transport != Transport::Shm);
        all.extend(jobs.map(|job| Case::Convergence(job, every)));
    }
    all
}

pub(super) fn scaling(scope: &FigureScope) -> Vec<Case> {
    let mut all: Vec<Case> = scope.without_rdma("xue-11", "scaling").into_iter().collect();
    let (models, counts): (&[&str], &[u32]) = match scope.quick {
        true => (&["fcn5", "lstm"], &[1, 2, 4]),
        false => (&["fcn5", "lstm", "inception-v3", "vgg16"], &[1, 2, 4, 8]),
    };
    for &workers in counts {
        for model in models {
            let servers = workers;
            for transport in scope.transports() {
                // gRPC over TCP is what takes longest
                let is_left_out = |of| scope.quick && of == Exchange::GrpcTcp;
                let exchanges = PAPER_EXCHANGES.into_iter().filter(|&of| !is_left_out(of));
                for exchange in exchanges.filter(|&of| is_its_own(of, transport)) {
                    let batch = if scope.quick { SMALL_BATCH } else { SCALING_BATCH };
                    let config = made_up(model, batch, scope.quick);
                    let config = TrainConfig { workers, servers, ..config };
                    all.push(Case::Scaling(TrainConfig { transport, exchange, ..config }));
                }
            }
        }
    }
    all
}

pub(super) fn copies(scope: &FigureScope) -> Vec<Case> {
    let mut all: Vec<Case> = scope.without_rdma("xue-12", "copies").into_iter().collect();
    // over TCP the sender's copy is one of several
    let transports = scope.transports().into_iter().filter(|&of| of != Transport::Tcp);
    let transports: Vec<Transport> = transports.collect();
    for model in MODELS {
        for &transport in &transports {
            for exchange in [Exchange::Write, Exchange::Copy] {
                let config = made_up(model, SMALL_BATCH, scope.quick);
                all.push(Case::Throughput(TrainConfig { exchange, transport, ..config }));
            }
        }
    }
    all
}

pub(super) fn gpudirect(scope: &FigureScope) -> Vec<Case> {
    if let Some(why) = &scope.no_gpu {
        return vec![Case::NotMeasured(NotMeasured {
            figure: "xue-table-3",
            subject: Vec::new(),
            why: format!("no GPU: {why}"),
            command: Some("tensorwire bench evaluation --only gpudirect".to_string()),
        })];
    }
    let mut all: Vec<Case> = scope.without_rdma("xue-table-3", "gpudirect").into_iter().collect();
    // over TCP there is no way but the host's; what the paper shows is a NIC's
    let transports = scope.transports().into_iter().filter(|&of| of != Transport::Tcp);
    for transport in transports {
        for model in MODELS {
            for by_way_of_host in [false, true] {
                all.push(Case::Crossing(TrainConfig {
                    device: DeviceChoice::Cuda { ordinal: None },
                    cuda_driver: scope.cuda_driver.clone(),
                    by_way_of_host,
                    transport,
                    ..made_up(model, SMALL_BATCH, scope.quick)
                }));
            }
        }
    }
    all
}
