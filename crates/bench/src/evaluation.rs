//! The papers' evaluation: which figures there are and what is run for each is data (`figures.rs`); one runner does any
//! of it. A case that fails is an error of its own, and others go on.

mod data;
mod earlier;
mod figures;
mod links;
mod nodes;
mod sizes;
mod training;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorwire_launch::JobSpec;
use tensorwire_simulate::Network;
use tensorwire_train::{Quantiles, StoreWire, TrainConfig};

use crate::allreduce::{AllreduceSpec, Way, allreduce};
use crate::error::BenchError;
use crate::kvstore::{KvstoreSpec, Pull, kvstore};
use crate::machine::Machine;
use crate::modes::curve;
use crate::simulate::{Compute, SimulateResult, SimulateSpec, calibrate, simulate, validate};
use crate::transfer::{TransferSpec, transfers};

pub use data::{DataFolder, NoData};
pub use earlier::{DoneCase, Earlier, case_key};
pub use figures::{FIGURES, Figure, FigureScope};
pub use links::{
    LinkBench, LinkJob, LinkRate, LinkSpeed, LinkSteps, no_links, receive_over_link, send_over_link,
};
pub use nodes::{NodesDesign, NodesOf, SimulatedNodes};
pub use turns::{NextCase, Turns};

/// Something to measure.
#[derive(Clone, Debug)]
pub enum Case {
    /// How large the paper's models and their variables are.
    Sizes,
    /// A tensor to another process, in several ways in turns.
    Transfer(Vec<TransferSpec>),
    /// Steps of a job.
    Throughput(TrainConfig),
    /// The same, and one worker alone.
    Scaling(TrainConfig),
    /// Steps of a job on GPUs.
    Crossing(TrainConfig),
    /// The loss by time; this many steps a point.
    Convergence(TrainConfig, u64),
    /// Push and pull, in several ways in turns.
    Kvstore(KvstoreSpec, Vec<(StoreWire, Pull)>),
    /// Accuracy by epoch.
    Modes(TrainConfig),
    /// An epoch of ImageNet, by steps that are measured.
    Epoch(TrainConfig),
    /// Steps of a job, as of so many nodes.
    Nodes(TrainConfig, NodesOf),
    /// The same on a cluster that is simulated.
    SimulatedNodes(SimulatedNodes),
    /// A collective operation, in several ways in turns.
    Allreduce(AllreduceSpec, Vec<Way>),
    /// A step on a cluster of Xue et al.'s machines.
    Simulate(SimulateSpec, Network),
    /// A step on this machine, simulated and measured.
    Validate(SimulateSpec),
    /// Steps over links of a given rate, in several ways in turns.
    Links(LinkSteps),
    /// Steps of a job over such links, simulated and measured.
    LinkJob(LinkJob),
    /// Another benchmark of this program over such links.
    LinkBench(LinkBench),
    /// What cannot be measured here.
    NotMeasured(NotMeasured),
}

/// A figure, or a part of one, that this machine cannot show.
#[derive(Clone, Debug, Serialize)]
pub struct NotMeasured {
    /// As the page calls it.
    pub figure: &'static str,
    /// Words of a plot's title that is not there; none: the whole figure is not.
    pub subject: Vec<&'static str>,
    pub why: String,
    /// What measures it where it can be; none: nobody can.
    pub command: Option<String>,
}

impl Case {
    /// What it is, in a few words.
    pub fn name(&self) -> String {
        match self {
            Case::Sizes => "variables of six models".to_string(),
            Case::Transfer(specs) => match &specs[..] {
                [] => "nothing".to_string(),
                [TransferSpec { transport, sizes, bytes, exchange, .. }, more @ ..] => {
                    let exchanges = match more {
                        [] => exchange.name().to_string(),
                        more => format!("{} exchanges", 1 + more.len()),
                    };
                    format!("{} {} {bytes} bytes, {exchanges}", transport.name(), sizes.name())
                }
            },
            Case::Throughput(config)
            | Case::Scaling(config)
            | Case::Convergence(config, _)
            | Case::Modes(config)
            | Case::Epoch(config) => job_name(config),
            Case::Crossing(config) => {
                let way = if config.by_way_of_host { "by way of the host" } else { "direct" };
                format!("{} {way}", job_name(config))
            }
            Case::Nodes(config, of) => format!("{of} {}", job_name(config)),
            Case::Kvstore(spec, _) => {
                let KvstoreSpec { transport, workers, servers, .. } = spec;
                format!("{} {workers} workers, {servers} servers", transport.name())
            }
            Case::Allreduce(spec, ways) => {
                let AllreduceSpec { transport, ranks, bytes, .. } = spec;
                let of = match ways.first().and_then(|way| way.tensor) {
                    Some(tensor) => format!("{} devices", tensor.devices),
                    None => "vectors".to_string(),
                };
                format!("{} {ranks} ranks {bytes} bytes, {of}", transport.name())
            }
            Case::Links(spec) => spec.name(),
            Case::LinkJob(spec) => spec.name(),
            Case::LinkBench(spec) => spec.name(),
            Case::NotMeasured(NotMeasured { figure, subject, .. }) => match subject.is_empty() {
                true => (*figure).to_string(),
                false => format!("{figure} {}", subject.join(", ")),
            },
            Case::SimulatedNodes(SimulatedNodes { spec, cluster, of, .. }) => {
                format!("{of} simulated, {}, batch {}", cluster.name, spec.batch)
            }
            Case::Validate(spec) => format!("{} here", simulated_name(spec)),
            Case::Simulate(spec, _) => simulated_name(spec),
        }
    }
}

fn simulated_name(spec: &SimulateSpec) -> String {
    let SimulateSpec { model, strategy, workers, exchange, batch, .. } = spec;
    let (strategy, exchange) = (strategy.name(), exchange.name());
    format!("{} {strategy} {exchange} {workers} workers, batch {batch}", model.name())
}

fn job_name(config: &TrainConfig) -> String {
    let TrainConfig { model, data, strategy, workers, batch, transport, exchange, .. } = config;
    format!(
        "{model} on {data}, {} {} {} {workers} workers, batch {batch}",
        strategy.name(),
        transport.name(),
        exchange.name()
    )
}

/// Measurements of what is measured by jobs of some steps. With quick once, but for [`Runner::again`].
const REPETITIONS: usize = 3;
/// Measured twice, and once more where both have taken less: with quick, and in a whole run.
const CHEAP: Duration = Duration::from_secs(3);
const BEARABLE: Duration = Duration::from_secs(120);
/// With quick, what takes longer is not done once more.
const SHORT: Duration = Duration::from_secs(10);

/// Does one case after the other, and holds those that should end with the same weights against each other.
#[derive(Debug)]
pub struct Runner<'a> {
    job: &'a JobSpec,
    /// Kept true while this process works alone, so that it may simply be ended then.
    alone: &'a AtomicBool,
    repetitions: usize,
    /// By what decides them: the weights that a job ended with.
    weights: HashMap<String, String>,
    /// By job, in milliseconds a step of one worker alone.
    local_ms: HashMap<String, Quantiles>,
    /// By link and job, what its replicas compute and what bytes take of that.
    computed: HashMap<String, links::Computed>,
    /// By link, what it carries.
    carried: HashMap<&'static str, LinkSpeed>,
    /// How simulated steps compare with measured ones, until [`Runner::verdict`] is asked.
    link_rows: Vec<links::LinkRow>,
    /// This machine, once something was simulated on it.
    here: Option<Network>,
}

impl<'a> Runner<'a> {
    /// `job` says how to start members; its kind, roles, hosts and payload are filled in.
    pub fn new(job: &'a JobSpec, alone: &'a AtomicBool, quick: bool) -> Runner<'a> {
        let repetitions = if quick { 1 } else { REPETITIONS };
        let (weights, local_ms) = (HashMap::new(), HashMap::new());
        let (computed, carried) = (HashMap::new(), HashMap::new());
        let (link_rows, here) = (Vec::new(), None);
        Runner { job, alone, repetitions, weights, local_ms, computed, carried, link_rows, here }
    }

    /// Does a case, and tells of each line that it gives.
    ///
    /// # Errors
    /// When it cannot be done, fails, or gives wrong data.
    pub fn run(
        &mut self,
        case: &Case,
        on_line: &mut dyn FnMut(serde_json::Value),
    ) -> Result<(), BenchError> {
        match case {
            Case::Sizes => sizes::sizes(on_line),
            Case::Transfer(specs) => {
                transfers(specs, self.job)?.iter().try_for_each(|result| tell(on_line, result))
            }
            Case::Throughput(config) => tell(on_line, &self.throughput(config)?),
            Case::Scaling(config) => tell(on_line, &self.scaling(config)?),
            Case::Convergence(config, every) => self.convergence(config, *every, on_line),
            Case::Kvstore(spec, ways) => {
                kvstore(spec, ways, self.job)?.iter().try_for_each(|result| tell(on_line, result))
            }
            Case::Modes(config) => {
                let (mut curves, begun) = (Vec::new(), Instant::now());
                while curves.is_empty() || self.again_if_short(curves.len(), begun.elapsed()) {
                    curves.push(curve(config, self.job, &mut |_| {})?);
                }
                let last = curves.pop();
                let all = last.iter().flat_map(|last| last.clone().with(&curves).points);
                all.into_iter().try_for_each(|point| tell(on_line, &point))
            }
            Case::Allreduce(spec, ways) => {
                allreduce(spec, ways, self.job)?.iter().try_for_each(|result| tell(on_line, result))
            }
            Case::Simulate(spec, network) => {
                tell(on_line, &simulate(spec, network, Compute::Paper)?)
            }
            Case::Validate(spec) => tell(on_line, &self.validate(spec)?),
            Case::Links(spec) => self.links(spec, on_line),
            Case::LinkJob(spec) => self.link_job(spec, on_line),
            Case::LinkBench(spec) => self.link_bench(spec, on_line),
            Case::Crossing(config) => tell(on_line, &self.crossing(config)?),
            Case::Epoch(config) => tell(on_line, &self.epoch(config)?),
            Case::Nodes(config, of) => tell(on_line, &self.nodes(config, *of)?),
            Case::SimulatedNodes(simulated) => tell(on_line, &simulated.estimate()?),
            Case::NotMeasured(missing) => tell_missing(on_line, missing),
        }
    }

    /// Takes in what an earlier run has measured: rows of a verdict, and weights that others are to end with.
    pub fn recall(&mut self, done: &DoneCase) {
        self.link_rows.extend(links::LinkRow::of_line(done.line()));
        // another program may have other bits
        if done.is_of(&Machine::here()) {
            self.weights.extend(training::weights_of(done.line()));
        }
    }

    /// A line of what the cases of a figure that is done say together; none if they say nothing.
    pub fn verdict(&mut self, figure: &Figure) -> Option<serde_json::Value> {
        let rows = figure.has_verdict().then(|| std::mem::take(&mut self.link_rows));
        links::verdict(&rows?)
    }

    /// True if what was measured so often in so long is to be measured again, since a figure of one measurement has no spread.
    fn again(&self, done: usize, took: Duration) -> bool {
        is_again(self.repetitions, done, took)
    }

    /// The same of what may take minutes: once is enough then.
    fn again_if_short(&self, done: usize, took: Duration) -> bool {
        let bearable = if self.repetitions < REPETITIONS { SHORT } else { BEARABLE };
        done < REPETITIONS && took < bearable
    }

    fn validate(&mut self, spec: &SimulateSpec) -> Result<SimulateResult, BenchError> {
        let (job, alone) = (self.job, self.alone);
        validate(spec, self.here()?, None, job, alone)
    }

    /// This machine, measured once.
    fn here(&mut self) -> Result<&Network, BenchError> {
        let here = match self.here.take() {
            Some(here) => here,
            None => calibrate("this machine", self.job)?,
        };
        Ok(self.here.insert(here))
    }
}

#[derive(Debug, Serialize)]
struct NotMeasuredLine<'a> {
    bench: &'static str,
    #[serde(flatten)]
    missing: &'a NotMeasured,
    machine: Machine,
}

fn is_again(least: usize, done: usize, took: Duration) -> bool {
    let bearable = if least < REPETITIONS { CHEAP } else { BEARABLE };
    done < 2 || (done < REPETITIONS && took < bearable)
}

fn tell_missing(
    on_line: &mut dyn FnMut(serde_json::Value),
    missing: &NotMeasured,
) -> Result<(), BenchError> {
    let (bench, machine) = ("not-measured", Machine::here());
    tell(on_line, &NotMeasuredLine { bench, missing, machine })
}

fn tell(
    on_line: &mut dyn FnMut(serde_json::Value),
    result: &impl Serialize,
) -> Result<(), BenchError> {
    // a result is numbers and names
    on_line(serde_json::to_value(result).unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cheap_is_measured_three_times_and_else_twice() {
        let second = Duration::from_secs(1);
        let counts = |least: usize, each: Duration| {
            // fits: repetitions are few
            (1..).find(|done| !is_again(least, *done, each * *done as u32)).unwrap()
        };
        assert_eq!((counts(1, second), counts(1, 10 * second)), (3, 2));
        assert_eq!((counts(REPETITIONS, 50 * second), counts(REPETITIONS, 70 * second)), (3, 2));
    }
}
