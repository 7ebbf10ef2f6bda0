//! Steps on simulated clusters, beside those that this machine can measure: the plans that
//! [`tensorwire_simulate`] needs, what it has to know of this machine, and both answers side by side.

mod calibrate;
mod sockets;

use std::sync::atomic::AtomicBool;

use serde::Serialize;
use tensorwire_graph::{Cluster, Placement, Plan, PlanOptions, place, plan};
use tensorwire_launch::{JobSpec, Transport};
use tensorwire_nn::{Optimizer, Program, ProgramSpec, Sharing};
use tensorwire_simulate::{
    Estimate, Network, SimulatedExchange, SimulatedJob, SimulatedStrategy, cost, estimate, paper,
};
use tensorwire_train::{
    Algorithm, Budget, ClientConfig, ConfigError, Prepared, Quantiles, TrainConfig, TrainOutcome,
    launch_train,
};
use tensorwire_zoo::Shipped;

use crate::by_name::ByName;
use crate::error::BenchError;
use crate::job::QUIET_RATE;
use crate::machine::{Machine, cores};
use crate::step::{self, StepRun};

pub use calibrate::calibrate;

/// Servers where nothing is said, at most: more are more messages, not more bytes.
const SERVERS_DEFAULT_MAX: u32 = 64;
/// Steps of a measurement, and measurements, of which the median counts.
const STEPS: u64 = 8;
const REPETITIONS: usize = 3;
/// A measured job's processes are more than there are cores, and may say nothing for long, in milliseconds.
const DEADLINE_MS: u64 = 50_000;

/// What to simulate, and to measure.
#[derive(Clone, Debug)]
pub struct SimulateSpec {
    pub model: &'static dyn Shipped,
    pub strategy: SimulatedStrategy,
    pub workers: u32,
    /// None: as many as workers, but no more than variables, or than 64. 0: the workers are ([`SimulatedStrategy::Ps`]).
    pub servers: Option<u32>,
    /// Of [`SimulatedStrategy::MpiSgd`]; none: 1.
    pub clients: Option<u32>,
    /// Which server gets which variable ([`SimulatedStrategy::Ps`]); none: in turns on the cluster of Xue et al., as theirs, else
    /// by bytes.
    pub placement: Option<Placement>,
    pub exchange: SimulatedExchange,
    pub algorithm: Option<Algorithm>,
    /// Samples per worker and step.
    pub batch: usize,
}

/// How long a step of one worker's replica takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compute {
    /// In a process that has a machine for itself, and in one that has one core, while each of the others has such a
    /// process; in seconds. The second as [`SimulatedJob::crowded_s`].
    Given { alone_s: f64, crowded_s: Option<f64> },
    /// As Xue et al. say of their machines.
    Paper,
}

impl Compute {
    /// On machines of that kind: what processes that have one core each take from each other is known of machines with
    /// as many cores as this.
    fn on(self, network: &Network) -> Compute {
        match self {
            Compute::Given { alone_s, .. } if network.machine.cores as usize != cores() => {
                Compute::Given { alone_s, crowded_s: None }
            }
            known => known,
        }
    }
}

/// What was simulated.
#[derive(Clone, Debug, Serialize)]
pub struct SimulateResult {
    pub bench: &'static str,
    pub cluster: String,
    pub model: String,
    pub strategy: &'static str,
    /// If it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<&'static str>,
    pub exchange: &'static str,
    pub workers: u32,
    pub servers: u32,
    pub batch: usize,
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The same job on this machine, and the percentiles of its steps.
    pub measured_step_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_p10_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_p90_s: Option<f64>,
    /// Samples a second over one machine's, as Xue et al. say for this job.
    pub paper_speedup: Option<f64>,
    pub machine: Machine,
}

/// Simulates a step.
///
/// # Errors
/// When the model, the job or the network makes no sense.
pub fn simulate(
    spec: &SimulateSpec,
    network: &Network,
    compute: Compute,
) -> Result<SimulateResult, BenchError> {
    // theirs went to the servers in turns (Xue et al. §5.2)
    let placement = match (spec.placement, compute) {
        (Some(placement), _) => placement,
        (None, Compute::Paper) => Placement::RoundRobin,
        (None, Compute::Given { .. }) => Placement::default(),
    };
    let planned = Planned::new(spec, placement)?;
    let model = planned.model.name();
    let of_paper = paper::benchmark(&model);
    let (compute_s, crowded_s) = match compute.on(network) {
        Compute::Given { alone_s, crowded_s } => (alone_s, crowded_s),
        Compute::Paper => {
            let benchmark = of_paper.ok_or_else(|| BenchError::NotInPaper {
                model: model.clone(),
                known: paper::BENCHMARKS.map(|benchmark| benchmark.model).join(", "),
            })?;
            (benchmark.compute_s(planned.flops()), None)
        }
    };
    let job = SimulatedJob { crowded_s, ..planned.job(spec, compute_s) };
    let estimate = estimate(&job, network)?;
    let is_theirs = compute == Compute::Paper
        && spec.strategy == SimulatedStrategy::Ps
        && (spec.workers, planned.servers, spec.batch)
            == (paper::MACHINES, paper::MACHINES, paper::BATCH)
        && placement == Placement::RoundRobin;
    Ok(SimulateResult {
        bench: "simulate",
        cluster: network.name.clone(),
        model: model.clone(),
        strategy: spec.strategy.name(),
        placement: spec.placement.map(|placement| match placement {
            Placement::Balanced { .. } => "balanced",
            Placement::RoundRobin => "round-robin",
        }),
        exchange: spec.exchange.name(),
        workers: spec.workers,
        servers: if planned.is_colocated { 0 } else { planned.servers },
        batch: spec.batch,
        estimate,
        measured_step_s: None,
        measured_p10_s: None,
        measured_p90_s: None,
        paper_speedup: of_paper.filter(|_| is_theirs).and_then(|benchmark| match spec.exchange {
            SimulatedExchange::ZeroCopy => benchmark.speedup_of_8,
            SimulatedExchange::GrpcRdma => benchmark.grpc_rdma_speedup_of_8,
            SimulatedExchange::Copy | SimulatedExchange::GrpcTcp => None,
        }),
        machine: Machine::here(),
    })
}

/// A plan for few workers that do what all do.
struct Planned {
    model: &'static dyn Shipped,
    plan: Plan,
    master: usize,
    other: usize,
    servers: u32,
    /// Those are the workers.
    is_colocated: bool,
}

impl Planned {
    fn new(spec: &SimulateSpec, placement: Placement) -> Result<Planned, BenchError> {
        let model = spec.model;
        for (what, count) in [
            ("--workers", spec.workers as usize),
            ("--batch", spec.batch),
            ("--clients", clients(spec) as usize),
        ] {
            if count == 0 {
                return Err(BenchError::Zero { what });
            }
        }
        let few = spec.workers.min(2);
        let members = spec.workers / clients(spec);
        let (replicas, sharing) = match spec.strategy {
            SimulatedStrategy::AllReduce => (few, Sharing::Own { clients: 1 }),
            SimulatedStrategy::MpiSgd if members > 1 => {
                let clients = clients(spec).min(2);
                (2 * clients, Sharing::Clients { clients })
            }
            _ => (few, Sharing::All),
        };
        let how = ProgramSpec {
            batch: spec.batch,
            replicas,
            sharing,
            optimizer: TrainConfig::default().optimizer,
            ..ProgramSpec::default()
        };
        let program = Program::new(model, &model.samples().describe(), &how)?;
        let variables = program.variables.len();
        // fits: a model has far fewer
        let most = (variables as u32).min(SERVERS_DEFAULT_MAX);
        let is_colocated = spec.strategy == SimulatedStrategy::Ps && spec.servers == Some(0);
        let servers = match spec.strategy {
            SimulatedStrategy::AllReduce => 0,
            // as processes of their own: what they hold is the same
            _ if is_colocated => spec.workers,
            _ => spec.servers.unwrap_or(spec.workers.min(most)),
        };
        let cluster = match spec.strategy {
            SimulatedStrategy::AllReduce => Cluster::Workers { workers: replicas },
            SimulatedStrategy::Ps => Cluster::ParameterServers { workers: replicas, servers },
            // a store is told by its own rule who holds what
            _ => Cluster::ParameterServers { workers: replicas, servers: 1 },
        };
        let placed = place(&program.graph, cluster, placement)
            .map_err(|error| ConfigError::of_placement(error, &model.name()))?;
        let runs = program.runs(&placed, cluster);
        let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default())?;
        // not the first, which evaluates as well
        let (master, other) = match sharing {
            Sharing::Clients { clients } => (clients - 1, replicas - 1),
            _ => (replicas - 1, replicas - 1),
        };
        let (master, other) = (master as usize, other as usize);
        Ok(Planned { model, plan, master, other, servers, is_colocated })
    }

    fn job(&self, spec: &SimulateSpec, compute_s: f64) -> SimulatedJob<'_> {
        let Planned { plan, master, other, servers, is_colocated, .. } = self;
        SimulatedJob {
            plan,
            master: *master,
            other: *other,
            strategy: spec.strategy,
            workers: spec.workers,
            servers: *servers,
            is_colocated: *is_colocated,
            clients: clients(spec),
            exchange: spec.exchange,
            algorithm: spec.algorithm,
            compute_s,
            crowded_s: None,
        }
    }

    /// Operations of a worker's step.
    fn flops(&self) -> f64 {
        let nodes = &self.plan.runs[Program::TRAIN.0].nodes[self.master];
        nodes.iter().map(|id| cost::flops(&self.plan.parts[self.master].graph, *id)).sum()
    }
}

fn clients(spec: &SimulateSpec) -> u32 {
    match spec.strategy {
        SimulatedStrategy::MpiSgd => spec.clients.unwrap_or(1),
        _ => 1,
    }
}

/// What one replica's step takes on this machine: one process by itself, and one on each core, with weights of their
/// own. `job` as for [`step`](crate::step()), which verifies what such jobs compute.
///
/// # Errors
/// When training fails.
pub fn measure_compute(
    spec: &SimulateSpec,
    job: &JobSpec,
    alone: &AtomicBool,
) -> Result<Compute, BenchError> {
    Ok(measure(spec, None, job, alone)?.0)
}

/// Simulates a step, and measures the same job on this machine. Its processes share the machine's memory, and read
/// tensors in place. What they compute is measured with it, if it is not `given`. `job` as for [`measure_compute`].
///
/// # Errors
/// As [`simulate`]'s, and when training fails.
pub fn validate(
    spec: &SimulateSpec,
    network: &Network,
    given: Option<Compute>,
    job: &JobSpec,
    alone: &AtomicBool,
) -> Result<SimulateResult, BenchError> {
    let planned = Planned::new(spec, spec.placement.unwrap_or_default())?;
    let servers = if planned.is_colocated { 0 } else { planned.servers };
    let (compute, step_ms) = measure(spec, Some(servers), job, alone)?;
    let simulated = simulate(spec, network, given.unwrap_or(compute))?;
    let of = |ms: fn(&Quantiles) -> f64| step_ms.as_ref().map(|step_ms| ms(step_ms) * 1e-3);
    Ok(SimulateResult {
        measured_step_s: of(|ms| ms.median),
        measured_p10_s: of(|ms| ms.p10),
        measured_p90_s: of(|ms| ms.p90),
        ..simulated
    })
}

/// Measures what one replica's step takes and, with a number of servers, a step of the job in milliseconds. All by turns, as
/// the machine is not always equally fast. As many compute at once as the job has workers, if those are more than the
/// cores: they take turns, and caches forget.
fn measure(
    spec: &SimulateSpec,
    servers: Option<u32>,
    job: &JobSpec,
    alone: &AtomicBool,
) -> Result<(Compute, Option<Quantiles>), BenchError> {
    let config_of_one = TrainConfig { workers: 1, ..step::alone(&config(spec, 0)) };
    let one = Prepared::new(config_of_one.clone(), &ByName)?;
    // fits: cores of a machine
    let cores = cores() as u32;
    let workers = if servers.is_some() { spec.workers.max(cores) } else { cores };
    let crowd = Prepared::new(step::compute(&TrainConfig { workers, ..config_of_one }), &ByName)?;
    let whole = servers.map(|servers| Prepared::new(config(spec, servers), &ByName));
    let whole = whole.transpose()?;
    let (mut one_ms, mut crowd_ms, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let launched = |prepared: &Prepared| -> Result<StepRun, BenchError> {
        Ok(StepRun::of(&launch_train(prepared, &ByName, job, &mut |_| {})?))
    };
    for _ in 0..REPETITIONS {
        let report = step::run_alone(&one, alone)?;
        one_ms.push(StepRun::of(&TrainOutcome::alone(report)).ms);
        crowd_ms.push(launched(&crowd)?.ms);
        runs.extend(whole.as_ref().map(launched).transpose()?);
    }
    let median_s = |all_ms: Vec<f64>| Quantiles::of(all_ms).map(|ms| ms.median * 1e-3);
    let alone_s = median_s(one_ms).ok_or(BenchError::Zero { what: "--repetitions" })?;
    let turns = f64::from(workers) / f64::from(cores);
    let crowded_s = median_s(crowd_ms).map(|seconds| seconds / turns);
    let compute = Compute::Given { alone_s, crowded_s };
    Ok((compute, StepRun::quantiles(&runs)))
}

fn config(spec: &SimulateSpec, servers: u32) -> TrainConfig {
    let strategy = match spec.strategy {
        SimulatedStrategy::Ps => tensorwire_train::Strategy::Ps,
        SimulatedStrategy::DistSgd => tensorwire_train::Strategy::DistSgd,
        SimulatedStrategy::AllReduce => tensorwire_train::Strategy::AllReduce,
        SimulatedStrategy::MpiSgd => tensorwire_train::Strategy::MpiSgd,
    };
    let clients = ClientConfig {
        clients: spec.clients.filter(|_| spec.strategy == SimulatedStrategy::MpiSgd),
        algorithm: spec.algorithm,
        ..ClientConfig::default()
    };
    TrainConfig {
        model: spec.model.name().to_string(),
        data: "synthetic".to_string(),
        strategy,
        workers: spec.workers,
        servers,
        placement: spec.placement.unwrap_or_default(),
        clients,
        transport: Transport::Shm,
        batch: spec.batch,
        budget: Budget::Steps(STEPS),
        optimizer: Optimizer::momentum(QUIET_RATE),
        deadline_ms: DEADLINE_MS,
        ..TrainConfig::default()
    }
}
