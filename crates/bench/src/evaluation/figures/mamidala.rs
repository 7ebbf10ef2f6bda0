//! Mamidala et al., figures 11 to 20. Its ResNet-50 learns ImageNet; where that is not there, steps are measured with made-up
//! images of its shape, and its curves are of digits that are enlarged to it. A quick run has a perceptron's alone.

use tensorwire_collectives::{Algorithm, Design};
use tensorwire_launch::Transport;
use tensorwire_nn::{Optimizer, Schedule};
use tensorwire_simulate as sim;
use tensorwire_train::{Budget, ClientConfig, DeviceChoice, Strategy, TrainConfig};
use tensorwire_zoo::ResNet50;

use super::{FigureScope, PaperData, job};
use crate::allreduce::{AllreduceSpec, DeviceTensor, Way};
use crate::evaluation::{Case, NodesDesign, NodesOf, NotMeasured, SimulatedNodes};
use crate::job::QUIET_RATE;
use crate::modes::{PAPER_MODES, in_mode};
use crate::simulate::SimulateSpec;

/// Images of ImageNet's training set.
pub(crate) const IMAGENET_IMAGES: u64 = 1_281_167;
/// Workers of figures 11, 13 and 14, in two groups.
const MODES_WORKERS: u32 = 12;
/// Images of each worker in a step (docs/data-and-models.md).
const RECIPE_BATCH: usize = 128;
const RECIPE_EPOCHS: u64 = 95;
/// What stands in ImageNet's place: images of its shape, and few, for processors are to learn them.
const STAND_IN: &str = "digits:320,224x224x3";
const STAND_IN_IMAGES: u64 = 320;
const STAND_IN_BATCH: usize = 4;
const STAND_IN_EPOCHS: u64 = 6;
/// The paper's rates are of batches of hundreds of images: of 32 the loss of the first steps was 25 at 0.03.
const STAND_IN_RATE: f64 = 0.01;
const STAND_IN_WORKERS: u32 = 4;
/// Steps between meetings on it: two an epoch.
const STAND_IN_INTERVAL: u64 = 10;
/// Steps between meetings of elastic SGD.
const INTERVAL: u64 = 64;
/// The same in a quick measurement, which has one meeting in its steps.
const QUICK_INTERVAL: u64 = 4;

/// What ResNet-50 learns from, and for how long.
struct Learned {
    source: String,
    images: u64,
    /// Of each worker.
    batch: usize,
    epochs: u64,
    /// True of the paper's own.
    is_imagenet: bool,
}

impl Learned {
    /// As the paper trains it: of 95 epochs 5 warm up, and each 30 have a tenth of the rate of those before.
    fn recipe(&self, rate: f64, workers: u32) -> TrainConfig {
        // fits: a batch is small
        let steps = self.epochs * (self.images / (u64::from(workers) * self.batch as u64));
        let epochs = |count: u64| (steps * count / RECIPE_EPOCHS).max(1);
        TrainConfig {
            workers,
            batch: self.batch,
            optimizer: Optimizer::momentum(rate).decaying(1e-4),
            schedule: Schedule::step(epochs(30), 0.1).warm_up(epochs(5)),
            evaluate_each_epoch: true,
            device: DeviceChoice::Auto,
            ..job("resnet50", &self.source, Strategy::MpiSgd, Budget::Epochs(self.epochs))
        }
    }
}

/// What ResNet-50 learns from, where there is time for it: ImageNet, or what stands in its place. And what is said where it is
/// not ImageNet.
fn learned(
    scope: &FigureScope,
    figure: &'static str,
    run: &str,
) -> (Option<Learned>, Option<Case>) {
    let (batch, epochs) = (RECIPE_BATCH, RECIPE_EPOCHS);
    let paper =
        |source| Learned { source, images: IMAGENET_IMAGES, batch, epochs, is_imagenet: true };
    let stand_in = || Learned {
        source: STAND_IN.to_string(),
        images: STAND_IN_IMAGES,
        batch: STAND_IN_BATCH,
        epochs: STAND_IN_EPOCHS,
        is_imagenet: false,
    };
    let missing = scope.without(figure, "resnet50", PaperData::ImageNet, run);
    match scope.source(PaperData::ImageNet) {
        Some(_) if scope.quick => {
            let why = Case::NotMeasured(NotMeasured {
                figure,
                subject: vec!["resnet50", PaperData::ImageNet.name()],
                why: "a quick run has no time for epochs of ImageNet".to_string(),
                command: Some(PaperData::ImageNet.command(run)),
            });
            (None, Some(why))
        }
        Some(source) => (Some(paper(source)), missing),
        None if scope.quick => (None, missing),
        None => (Some(stand_in()), missing),
    }
}

/// Figures 11, 13 and 14, at the rate that is usual for its batches.
pub(super) fn modes(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let groups = |config: TrainConfig, servers| TrainConfig {
        servers,
        clients: ClientConfig { clients: Some(2), ..ClientConfig::default() },
        ..config
    };
    let epochs = Budget::Epochs(if scope.quick { 4 } else { 20 });
    let digits = job("mlp", "digits", Strategy::DistSgd, epochs);
    let digits = groups(TrainConfig { workers: 4, batch: 16, ..digits }, 1);
    let (learned, missing) = learned(scope, "mamidala-11", "modes");
    let of = |config: &TrainConfig| PAPER_MODES.map(|mode| Case::Modes(in_mode(config, mode)));
    all.extend(missing);
    all.extend(of(&digits));
    let resnet = learned.map(|learned| match learned.is_imagenet {
        true => groups(learned.recipe(0.1, MODES_WORKERS), 2),
        false => {
            let mut job = groups(learned.recipe(STAND_IN_RATE, STAND_IN_WORKERS), 1);
            job.clients.interval = Some(STAND_IN_INTERVAL);
            job
        }
    });
    all.extend(resnet.iter().flat_map(of));
    all
}

/// Figure 12. Steps are measured; an epoch has so many of them.
pub(super) fn epochs(scope: &FigureScope) -> Vec<Case> {
    let (interval, batch, images) = match scope.quick {
        true => (QUICK_INTERVAL, 1, 32),
        false => (INTERVAL, 8, 256),
    };
    let source = scope.source(PaperData::ImageNet);
    let mut all: Vec<Case> = scope
        .without("mamidala-12", "resnet50", PaperData::ImageNet, "epochs")
        .into_iter()
        .collect();
    let source = source.unwrap_or_else(|| format!("synthetic:{images},224x224x3"));
    // the first step is not counted, and those behind it have one meeting
    let config = job("resnet50", &source, Strategy::DistSgd, Budget::Steps(1 + interval));
    let config = TrainConfig {
        workers: 4,
        servers: 2,
        batch,
        optimizer: Optimizer::momentum(QUIET_RATE),
        clients: ClientConfig {
            clients: Some(2),
            interval: Some(interval),
            ..ClientConfig::default()
        },
        ..config
    };
    let mode = |mode| TrainConfig { evaluate_each_epoch: false, ..in_mode(&config, mode) };
    all.extend(PAPER_MODES.map(|of| Case::Epoch(mode(of))));
    all
}

/// Samples of a worker on the paper's machines, who has two GPUs (§7).
const NODE_BATCH: usize = 128;
/// Workers of a machine of theirs: one a socket.
const NODE_WORKERS: u32 = 2;
/// Images a second of ResNet-50 on one P100, by TensorFlow's benchmarks of May 2017 (made-up data): the paper does not say
/// its own. From this batch a GPU on; a smaller one is no faster than the last.
const P100_IMAGES: [(usize, f64); 2] = [(64, 219.0), (32, 195.0)];

/// Bytes a second at which a core adds vectors: MPI_Allreduce does so on the processor, at a speed that the paper does not
/// say. As the other clusters that are simulated.
const CORE_GBS: f64 = 10.0;

/// Figure 15: the paper's cluster, simulated, and this machine.
pub(super) fn nodes(scope: &FigureScope) -> Vec<Case> {
    let mut all = Vec::new();
    let designs = [NodesDesign::Reg, NodesDesign::Ring];
    for nodes in [2, 4, 8] {
        for design in designs {
            for is_weak in [true, false] {
                // the paper has no strong scaling of it
                if design == NodesDesign::Ring || is_weak {
                    all.extend(simulated(NodesOf { nodes, design, is_weak }));
                }
            }
        }
    }
    let counts: &[u32] = if scope.quick { &[2] } else { &[2, 4, 8] };
    let (batch, steps) = if scope.quick { (1, 4) } else { (8, 12) };
    for &nodes in counts {
        for design in designs {
            for is_weak in [true, false] {
                // at two nodes nothing is halved yet
                if !is_weak && (nodes == 2 || design == NodesDesign::Reg) {
                    continue;
                }
                let of = NodesOf { nodes, design, is_weak };
                let config = job(
                    "resnet50",
                    "synthetic:32,224x224x3",
                    Strategy::MpiSgd,
                    Budget::Steps(steps),
                );
                let algorithm = (design == NodesDesign::Ring).then_some(Algorithm::MultiRing);
                let clients =
                    ClientConfig { clients: Some(1), algorithm, ..ClientConfig::default() };
                let config = TrainConfig {
                    workers: nodes,
                    servers: 0,
                    batch: of.batch(batch),
                    optimizer: Optimizer::momentum(QUIET_RATE),
                    transport: Transport::Tcp,
                    clients,
                    ..config
                };
                all.push(Case::Nodes(config, of));
            }
        }
    }
    all
}

fn simulated(of: NodesOf) -> Option<Case> {
    let mut cluster = sim::Network::preset("paper-mamidala")?;
    if of.design == NodesDesign::Reg {
        cluster.machine.copy_gbs = CORE_GBS;
    }
    let batch = of.batch(NODE_BATCH);
    let a_gpu = batch / 2;
    let rate = P100_IMAGES.iter().find(|(from, _)| a_gpu >= *from).or(P100_IMAGES.last())?.1;
    let spec = SimulateSpec {
        model: &ResNet50,
        // mpi-sgd without servers
        strategy: sim::SimulatedStrategy::AllReduce,
        workers: of.nodes * NODE_WORKERS,
        servers: None,
        clients: None,
        placement: None,
        exchange: sim::SimulatedExchange::ZeroCopy,
        algorithm: Some(match of.design {
            NodesDesign::Ring => Algorithm::MultiRing,
            NodesDesign::Reg => Algorithm::Ring,
        }),
        batch,
    };
    // fits: a batch is small
    let compute_s = batch as f64 / (2.0 * rate);
    Some(Case::SimulatedNodes(SimulatedNodes { spec, cluster, compute_s, of }))
}

/// Figure 16: its three batches, of the whole job.
pub(super) fn batches(scope: &FigureScope) -> Vec<Case> {
    let (learned, missing) = learned(scope, "mamidala-16", "batches");
    let one_client = |config: TrainConfig| TrainConfig {
        servers: 0,
        clients: ClientConfig { clients: Some(1), ..ClientConfig::default() },
        evaluate_each_epoch: true,
        ..config
    };
    let epochs = Budget::Epochs(if scope.quick { 4 } else { 20 });
    let digits = |batch| {
        let config = job("mlp", "digits", Strategy::MpiSgd, epochs);
        Case::Modes(one_client(TrainConfig { workers: 2, batch, ..config }))
    };
    let mut all: Vec<Case> = missing.into_iter().collect();
    all.extend([16, 32, 64].map(digits));
    if let Some(learned) = learned {
        // 128 samples of each, or 4
        let (rate, workers) = match learned.is_imagenet {
            true => (0.5, [8, 16, 32]),
            false => (STAND_IN_RATE, [1, 2, 4]),
        };
        let of = |workers| Case::Modes(one_client(learned.recipe(rate, workers)));
        all.extend(workers.map(of));
    }
    all
}

pub(super) fn all_reduces(scope: &FigureScope) -> Vec<Case> {
    let no_rdma = ["mamidala-17", "mamidala-20"].map(|of| scope.without_rdma(of, "allreduce"));
    let mut all: Vec<Case> = no_rdma.into_iter().flatten().collect();
    let (counts, powers): (&[u32], _) = if scope.quick { (&[2, 4], 7) } else { (&[2, 4, 8], 9) };
    for &ranks in counts {
        for transport in scope.transports() {
            // 4 KiB and on, by fours
            for bytes in (0..powers).map(|power| (4 << 10) << (2 * power)) {
                let spec = AllreduceSpec::new(ranks, bytes, scope.quick);
                let by_table = Way { algorithm: None, tensor: None };
                all.push(Case::Allreduce(AllreduceSpec { transport, ..spec }, vec![by_table]));
            }
            // the paper's sizes, and figure 20 goes to 300 MB
            let sizes = [4 << 20, 16 << 20, 64 << 20, 256 << 20];
            for bytes in sizes.into_iter().take(if scope.quick { 3 } else { 4 }) {
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
