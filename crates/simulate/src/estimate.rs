//! What is asked and what is answered: a job on a network, and the time of its step.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use tensorwire_collectives::Algorithm;
use tensorwire_graph::Plan;

use crate::cluster::Cluster;
use crate::component::{Component, Seconds, add};
use crate::engine::{ActivityId, Course, Engine};
use crate::layout::layout;
use crate::network::{Network, NetworkError, SimulatedExchange};
use crate::step::{Build, STEPS, has_training_run};

/// Ways of training that have steps which all workers make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedStrategy {
    /// Variables on servers as parts of the graph.
    Ps,
    /// Variables in a key-value store.
    DistSgd,
    /// Variables at every worker.
    #[serde(rename = "allreduce")]
    AllReduce,
    /// A key-value store for groups of workers.
    MpiSgd,
}

impl SimulatedStrategy {
    pub fn name(self) -> &'static str {
        match self {
            SimulatedStrategy::Ps => "ps",
            SimulatedStrategy::DistSgd => "dist-sgd",
            SimulatedStrategy::AllReduce => "allreduce",
            SimulatedStrategy::MpiSgd => "mpi-sgd",
        }
    }
}

/// A job, by a plan for few workers: those of many do the same as these.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedJob<'a> {
    /// Its first run is a training step.
    pub plan: &'a Plan,
    /// The part of a worker that has to do with servers, and that of one that has not, if there are such.
    pub master: usize,
    pub other: usize,
    pub strategy: SimulatedStrategy,
    pub workers: u32,
    pub servers: u32,
    /// Server s is worker s, for each of them: it updates what it holds ([`SimulatedStrategy::Ps`]).
    pub is_colocated: bool,
    /// Groups of workers ([`SimulatedStrategy::MpiSgd`]); 1 for [`SimulatedStrategy::AllReduce`].
    pub clients: u32,
    pub exchange: SimulatedExchange,
    /// Of all-reduces; none: as a group of such a size takes for each vector.
    pub algorithm: Option<Algorithm>,
    /// A step of one worker's replica, updates included, in a process that has a machine for itself: seconds.
    pub compute_s: f64,
    /// The same in a process that has one core, while each of the others has such a process: seconds of that core. None:
    /// the cores of a machine take as much together as one would by itself.
    pub crowded_s: Option<f64>,
}

/// A step, once the job has got into its stride.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub step_s: f64,
    /// The same if nothing were ever waited for: the workers of a machine still share it.
    pub compute_s: f64,
    /// `compute_s` over `step_s`.
    pub efficiency: f64,
    /// Samples a second over those of one process that has a machine for itself.
    pub speedup: f64,
    /// The resource that was used most, as far as it could be (0 to 1).
    pub bottleneck: String,
    pub utilization: f64,
    /// What the longest way through the step consists of, by component; together the step. What shares a resource takes
    /// longer there than by itself, and that counts as its own.
    pub way_s: Seconds,
    /// Seconds of a step that the cores of a machine work, all of them together, by component; of the machine whose cores do most.
    pub cores_s: Seconds,
    /// What was simulated: kernels, messages and the like, each standing for all its likes.
    pub activities: usize,
}

/// Why nothing was simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(
        "'{tensor}' has a size that is known only when it exists; choose a model without sentences"
    )]
    Dynamic { tensor: String },
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    #[error("--compute-ms must be from 1e-9 to 1e9 ms, not {found_ms:?}")]
    Compute { found_ms: f64 },
    #[error(
        "--clients {clients} does not divide {workers} workers; all clients are of one size, so that every sample counts alike"
    )]
    UnevenClients { clients: u32, workers: u32 },
    #[error(
        "--algorithm shared takes workers that are all on one machine and read each other's memory; leave it out"
    )]
    Shared,
    #[error(
        "--algorithm hierarchical takes machines with as many workers each; {workers} workers, {a_machine} a machine, are not: give another number, or leave it out"
    )]
    UnevenHosts { workers: u32, a_machine: u32 },
    #[error(
        "where workers are the servers, there are as many of both: {workers} workers, {servers} servers"
    )]
    Colocated { workers: u32, servers: u32 },
    #[error("the plan has no training step")]
    NoRun,
}

/// The last step that counts.
const LAST: usize = STEPS - 2;
/// A picosecond, which no step is as short as, to some ten days.
const COMPUTE_S: RangeInclusive<f64> = 1e-12..=1e6;

impl SimulatedJob<'_> {
    /// Workers that have to do with servers.
    pub(crate) fn masters(&self) -> u32 {
        match self.strategy {
            SimulatedStrategy::Ps | SimulatedStrategy::DistSgd => self.workers,
            SimulatedStrategy::AllReduce => 0,
            SimulatedStrategy::MpiSgd => self.clients,
        }
    }

    /// A worker's step in a process of so many threads: seconds of a core, or of an accelerator.
    pub(crate) fn busy_s(&self, network: &Network, threads: f64) -> f64 {
        if network.machine.accelerators > 0 {
            return self.compute_s;
        }
        let cores = f64::from(network.machine.cores);
        let all_s = self.compute_s * cores;
        let one_s = self.crowded_s.unwrap_or(all_s);
        match cores > 1.0 {
            true => one_s + (all_s - one_s) * (threads - 1.0) / (cores - 1.0),
            false => one_s,
        }
    }

    /// Are all workers on one machine, where they read each other's memory?
    pub(crate) fn shares_memory(&self, network: &Network) -> bool {
        let a_machine = network.machine.workers;
        network.local.by_reference && (a_machine == 0 || self.workers <= a_machine)
    }

    /// Returns true if processes of one machine read each other's tensors where they lie. A store decides for all workers alike how
    /// a value travels: where some are on other machines it is written.
    fn by_reference(&self, network: &Network) -> bool {
        let is_store =
            matches!(self.strategy, SimulatedStrategy::DistSgd | SimulatedStrategy::MpiSgd);
        network.local.by_reference && (!is_store || self.shares_memory(network))
    }

    fn check(&self, network: &Network) -> Result<(), SimulateError> {
        network.check()?;
        let has_servers = self.servers > 0 || self.strategy == SimulatedStrategy::AllReduce;
        let counts = [
            ("--workers", self.workers > 0),
            ("--servers", has_servers),
            ("--clients", self.clients > 0),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, is_there)| !is_there) {
            return Err(SimulateError::Zero { what });
        }
        let computes = [Some(self.compute_s), self.crowded_s];
        let mut computes = computes.into_iter().flatten();
        if let Some(found_s) = computes.find(|found_s| !COMPUTE_S.contains(found_s)) {
            return Err(SimulateError::Compute { found_ms: found_s * 1e3 });
        }
        let (clients, workers) = (self.clients, self.workers);
        if self.strategy == SimulatedStrategy::MpiSgd && !workers.is_multiple_of(clients) {
            return Err(SimulateError::UnevenClients { clients, workers });
        }
        if self.algorithm == Some(Algorithm::Shared) && !self.shares_memory(network) {
            return Err(SimulateError::Shared);
        }
        let a_machine = network.machine.workers;
        // who shares no machine, or one with all, does it directly
        let is_shared = a_machine > 1 && a_machine < workers;
        let is_hierarchical = self.algorithm == Some(Algorithm::Hierarchical);
        if is_hierarchical && is_shared && !workers.is_multiple_of(a_machine) {
            return Err(SimulateError::UnevenHosts { workers, a_machine });
        }
        let servers = self.servers;
        if self.is_colocated && servers != workers {
            return Err(SimulateError::Colocated { workers, servers });
        }
        if !has_training_run(self.plan) { Err(SimulateError::NoRun) } else { Ok(()) }
    }
}

/// Simulates some steps of a job.
///
/// # Errors
/// When the job or the network makes no sense.
pub fn estimate(job: &SimulatedJob<'_>, network: &Network) -> Result<Estimate, SimulateError> {
    job.check(network)?;
    let mut engine = Engine::default();
    let servers = if job.strategy == SimulatedStrategy::AllReduce { 0 } else { job.servers };
    let classes = layout(network, job.workers, job.masters(), servers);
    let cluster = Cluster::new(&mut engine, network, classes, job.by_reference(network));
    let mut build = Build::new(job, engine, cluster)?;
    let ends = build.steps();
    let Build { engine, cluster, .. } = build;
    let course = engine.run();
    let end_s = |step: usize| ends[step].iter().map(|end| course.end_s(*end)).fold(0.0, f64::max);
    // fits: a handful of steps
    let step_s = (end_s(LAST) - end_s(0)) / LAST as f64;
    let last = ends[LAST].iter().max_by(|a, b| course.end_s(**a).total_cmp(&course.end_s(**b)));
    let compute_s = (0..cluster.classes.len())
        .filter(|class| cluster.classes[*class].workers() > 0)
        .map(|class| cluster.alone_s(class, job.busy_s(network, cluster.threads(class))))
        .fold(0.0, f64::max);
    let used = cluster.names().iter().map(|(resource, name)| {
        (course.used(*resource) / engine.capacity(*resource) / course.last_s(), name)
    });
    // the first of equals
    let most = used.fold(None, |most: Option<(f64, &String)>, found| match most {
        Some((least, _)) if least >= found.0 => most,
        _ => Some(found),
    });
    let (utilization, bottleneck) =
        most.map_or((0.0, String::new()), |(u, name)| (u, name.clone()));
    Ok(Estimate {
        step_s,
        compute_s,
        efficiency: compute_s / step_s,
        speedup: f64::from(job.workers) * job.compute_s / step_s,
        bottleneck,
        utilization,
        way_s: last.map(|last| way_s(&engine, &course, *last, end_s(0))).unwrap_or_default(),
        cores_s: cores_s(&engine, &cluster, job.exchange),
        activities: engine.len(),
    })
}

/// What led to the end of the last step that counts since the first one's, a step.
fn way_s(engine: &Engine, course: &Course, last: ActivityId, since_s: f64) -> Seconds {
    let mut seconds = Seconds::new();
    // fits: a handful of steps
    let a_step = 1.0 / LAST as f64;
    for span in course.way_to(last) {
        let activity = engine.activity(span.activity);
        let Some(component) = activity.component else { continue };
        let took_s = (span.to_s - span.from_s.max(since_s)).max(0.0);
        // one whose queue was what the next waited for has no tail there
        let is_told = span.to_s >= course.end_s(span.activity);
        let tail_s = if is_told { activity.tail_s } else { 0.0 };
        let message_s = took_s.min(activity.head_s + tail_s);
        add(&mut seconds, Component::Messages, message_s * a_step);
        add(&mut seconds, component, (took_s - message_s) * a_step);
    }
    seconds
}

/// What the cores of the busiest machine do in a step.
fn cores_s(engine: &Engine, cluster: &Cluster<'_>, exchange: SimulatedExchange) -> Seconds {
    let socket_s = cluster.sockets_s_a_byte(exchange);
    let of_machine = |(cores, nic): (_, [_; 2])| {
        let mut seconds = Seconds::new();
        for activity in engine.activities() {
            let Some(component) = activity.component else { continue };
            // fits: a handful of steps
            let a_step = activity.amount / STEPS as f64;
            let share = |which: &dyn Fn(_) -> bool| -> f64 {
                let uses = activity.uses.iter().filter(|(of, _)| which(*of));
                uses.map(|(_, share)| share).sum()
            };
            let all = share(&|of| of == cores);
            // what crosses may stay on the machine in part, where it is copied
            let (component, sockets) = match component {
                Component::Wire => {
                    (Component::Copies, all.min(share(&|of| nic.contains(&of)) * socket_s))
                }
                component => (component, 0.0),
            };
            add(&mut seconds, Component::Sockets, a_step * sockets);
            // rounding must not make something of nothing
            let rest = if all - sockets > 1e-9 * all { all - sockets } else { 0.0 };
            add(&mut seconds, component, a_step * rest);
        }
        seconds
    };
    let sum = |seconds: &Seconds| seconds.values().sum::<f64>();
    let all = cluster.machines().map(of_machine);
    all.max_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap_or_default()
}
