//! Jobs of several strategies over links of a given rate, on two hosts with as many workers each, measured and simulated. What a
//! replica computes is measured by as many processes at once, who exchange nothing; all else that is simulated comes of the
//! calibration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_simulate::{Estimate, SimulatedExchange, SimulatedStrategy};
use tensorwire_train::{Budget, Strategy, TrainConfig};
use tensorwire_zoo::Shipped;

use super::{Computed, HOSTS, LinkRate, step_s};
use crate::error::BenchError;
use crate::evaluation::{Runner, tell};
use crate::job::QUIET_RATE;
use crate::machine::{Machine, cores};
use crate::simulate::{Compute, SimulateSpec, simulate};
use crate::step::compute;

/// Processes are more than there are cores, and may say nothing for long; a step over a slow link takes its time. In seconds.
const DEADLINE_S: u64 = 50;
const STEP_DEADLINE_S: u64 = 300;
/// Steps of what is computed alone, at least: the first is not counted.
const COMPUTE_STEPS: u64 = 4;
/// What its lines call themselves.
const KIND: &str = "links-simulated";
/// How far a simulated step may be off, and of how many rows.
const OFF: f64 = 0.15;
const ROWS: f64 = 0.9;

/// Steps of a job on two hosts with such a link.
#[derive(Clone, Debug)]
pub struct LinkJob {
    pub model: &'static dyn Shipped,
    pub data: &'static str,
    /// Samples of a worker.
    pub batch: usize,
    pub rate: LinkRate,
    pub strategy: SimulatedStrategy,
    /// Workers of a host.
    pub a_host: u32,
    pub steps: u64,
    /// Measurements at most, where one takes long.
    pub repetitions_max: usize,
    /// At most so many processes compute at once, where more have no room in memory.
    pub computing_max: u32,
    /// Where temporary files belong.
    pub scratch: PathBuf,
}

/// How a simulated step compares with the measured one.
#[derive(Clone, Copy, Debug)]
pub(in crate::evaluation) struct LinkRow {
    ratio: f64,
}

impl LinkRow {
    /// Of a line that such a case gave; none: it is of another.
    pub(in crate::evaluation) fn of_line(line: &Value) -> Option<LinkRow> {
        let ratio = line["ratio"].as_f64().filter(|_| line["bench"] == KIND)?;
        Some(LinkRow { ratio })
    }
}

#[derive(Clone, Debug, Serialize)]
struct LinkJobLine<'a> {
    bench: &'static str,
    link: &'static str,
    hosts: u32,
    model: &'a Value,
    data: &'a Value,
    transport: &'a Value,
    strategy: &'a Value,
    workers: &'a Value,
    servers: &'a Value,
    batch: &'a Value,
    threads: &'a Value,
    steps: &'a Value,
    repetitions: &'a Value,
    step_s: f64,
    p10_s: f64,
    p90_s: f64,
    /// What the workers compute in a step, all of them at once, if nothing is exchanged: measured.
    local_step_s: f64,
    simulated_step_s: f64,
    /// 10⁹ bytes that a core sends or receives over the link in a second: measured, and told to the simulator.
    core_gbs: f64,
    /// Simulated over measured.
    ratio: f64,
    #[serde(flatten)]
    simulated: Parts,
    weights_sha256: &'a Value,
    machine: &'a Value,
}

/// What the simulated step consists of.
#[derive(Clone, Debug, Serialize)]
struct Parts {
    way_s: tensorwire_simulate::Seconds,
    cores_s: tensorwire_simulate::Seconds,
    bottleneck: String,
    utilization: f64,
}

/// How many rows are near enough; a goal as pages of results show it.
#[derive(Clone, Debug, Serialize)]
struct Verdict {
    bench: &'static str,
    /// What is compared.
    peer: &'static str,
    goal: String,
    at_least: f64,
    ratio: f64,
    rows: usize,
    within: usize,
    machine: Machine,
}

impl LinkJob {
    pub(in crate::evaluation) fn name(&self) -> String {
        let LinkJob { model, batch, rate, strategy, .. } = self;
        let (model, strategy) = (model.name(), strategy.name());
        format!("{model} {strategy} {} workers, batch {batch}, {}", self.workers(), rate.name)
    }

    fn workers(&self) -> u32 {
        HOSTS * self.a_host
    }

    /// Threads of a worker: its share of the cores of its host.
    fn threads(&self) -> usize {
        (cores() / self.workers() as usize).max(1)
    }

    fn arguments(&self, repetitions: usize, json: &Path) -> Vec<OsString> {
        let pairs = [
            ("--model", self.model.name().to_string()),
            ("--data", self.data.to_string()),
            ("--batch", self.batch.to_string()),
            ("--strategy", self.strategy.name().to_string()),
            ("--workers", self.workers().to_string()),
            ("--threads", self.threads().to_string()),
            ("--steps", self.steps.to_string()),
            ("--repetitions", repetitions.to_string()),
            ("--deadline", DEADLINE_S.to_string()),
            ("--step-deadline", STEP_DEADLINE_S.to_string()),
        ];
        let mut all: Vec<OsString> = ["bench", "step"].map(OsString::from).to_vec();
        for (option, value) in pairs {
            all.extend([OsString::from(option), value.into()]);
        }
        all.extend(["--json".into(), json.into()]);
        all
    }

    /// As many replicas at once on this machine, with weights of their own.
    fn computing(&self) -> TrainConfig {
        let workers = self.workers().min(self.computing_max);
        compute(&TrainConfig {
            model: self.model.name().to_string(),
            data: self.data.to_string(),
            strategy: Strategy::Ps,
            workers,
            batch: self.batch,
            transport: Transport::Shm,
            threads: Some((cores() / workers as usize).max(1)),
            budget: Budget::Steps(self.steps.max(COMPUTE_STEPS)),
            optimizer: Optimizer::momentum(QUIET_RATE),
            deadline_ms: 1000 * DEADLINE_S,
            step_deadline_ms: 1000 * STEP_DEADLINE_S,
            ..TrainConfig::default()
        })
    }

    fn spec(&self, servers: Option<u32>) -> SimulateSpec {
        SimulateSpec {
            model: self.model,
            strategy: self.strategy,
            workers: self.workers(),
            // those that the job has; 0 of `ps`: the workers are
            servers,
            clients: None,
            exchange: SimulatedExchange::ZeroCopy,
            algorithm: None,
            placement: None,
            batch: self.batch,
        }
    }
}

impl Runner<'_> {
    pub(in crate::evaluation) fn link_job(
        &mut self,
        spec: &LinkJob,
        on_line: &mut dyn FnMut(Value),
    ) -> Result<(), BenchError> {
        let repetitions = self.repetitions.min(spec.repetitions_max);
        let replicas = spec.computing();
        let computed = self.computed(&replicas, spec.rate, repetitions, &spec.scratch)?;
        let Computed { step_ms, core_gbs } = computed;
        // a step of one worker of a host that has nothing else to do: of those on a host, one after the other
        let worker_s = step_ms * 1e-3 * f64::from(HOSTS) / f64::from(replicas.workers.max(HOSTS));
        let arguments = |json: &Path| spec.arguments(repetitions, json);
        for line in self.measured_over(spec.rate, spec.a_host, &spec.scratch, &arguments)? {
            // fits: servers are few
            let servers = line["servers"].as_u64().map(|servers| servers as u32);
            let network = spec.rate.hosts(self.here()?, core_gbs, spec.a_host);
            let compute = Compute::Given { alone_s: worker_s, crowded_s: None };
            let simulated = simulate(&spec.spec(servers), &network, compute)?.estimate;
            let Estimate { way_s, cores_s, bottleneck, utilization, .. } = simulated;
            let measured_s = step_s(&line, "median")?;
            let row = LinkRow { ratio: simulated.step_s / measured_s };
            self.link_rows.push(row);
            let line = LinkJobLine {
                bench: KIND,
                link: spec.rate.name,
                hosts: HOSTS,
                model: &line["model"],
                data: &line["data"],
                transport: &line["transport"],
                strategy: &line["strategy"],
                workers: &line["workers"],
                servers: &line["servers"],
                batch: &line["batch"],
                threads: &line["threads"],
                steps: &line["steps"],
                repetitions: &line["ps_ms"]["count"],
                step_s: measured_s,
                p10_s: step_s(&line, "p10")?,
                p90_s: step_s(&line, "p90")?,
                local_step_s: worker_s * f64::from(spec.a_host),
                simulated_step_s: simulated.step_s,
                core_gbs,
                ratio: row.ratio,
                simulated: Parts { way_s, cores_s, bottleneck, utilization },
                weights_sha256: &line["weights_sha256"],
                machine: &line["machine"],
            };
            tell(on_line, &line)?;
        }
        Ok(())
    }
}

/// In how many rows the simulated step is near the measured one; none if there are no rows.
pub(in crate::evaluation) fn verdict(rows: &[LinkRow]) -> Option<Value> {
    let within = rows.iter().filter(|row| (row.ratio - 1.0).abs() <= OFF).count();
    let count = rows.len();
    // fits: rows are few
    let ratio = within as f64 / count as f64;
    let verdict = Verdict {
        bench: "links-simulated-goal",
        peer: "simulation",
        goal: format!("simulated steps within 15 % of the measured, of {count}"),
        at_least: ROWS,
        ratio,
        rows: count,
        within,
        machine: Machine::here(),
    };
    // a verdict is numbers and names
    (count > 0).then(|| serde_json::to_value(verdict).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_collectives::Algorithm;
    use tensorwire_simulate::Network;
    use tensorwire_zoo::Mlp;

    fn job(a_host: u32, strategy: SimulatedStrategy) -> LinkJob {
        LinkJob {
            model: &Mlp,
            data: "synthetic:256",
            batch: 16,
            rate: LinkRate { name: "1gbit", bits_per_second: 1e9 },
            strategy,
            a_host,
            steps: 4,
            repetitions_max: 3,
            computing_max: u32::MAX,
            scratch: PathBuf::new(),
        }
    }

    #[test]
    fn a_verdict_counts_rows_that_are_near_enough() {
        assert_eq!(verdict(&[]), None);
        let row = |ratio| LinkRow { ratio };
        let found = verdict(&[1.0, 0.86, 1.14, 0.84, 1.2].map(row)).unwrap();
        assert_eq!((&found["within"], &found["rows"]), (&3.into(), &5.into()));
        assert_eq!((&found["ratio"], &found["at_least"]), (&0.6.into(), &0.9.into()));
        // nothing is not near anything
        assert_eq!(verdict(&[row(f64::NAN)]).unwrap()["within"], 0);
    }

    /// What must cross 1 Gb/s: more workers a host send more, but for those that reduce among themselves first.
    #[test]
    fn simulated_jobs_send_what_the_measured_ones_must() {
        let here = Network::preset("loopback").unwrap();
        let bytes = 4.0 * f64::from(784 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10);
        for (strategy, algorithm, servers_a_host) in [
            (SimulatedStrategy::Ps, None, 0),
            (SimulatedStrategy::DistSgd, None, 1),
            (SimulatedStrategy::AllReduce, Some(Algorithm::Hierarchical), 0),
            (SimulatedStrategy::AllReduce, Some(Algorithm::Ring), 0),
        ] {
            for a_host in [1, 2, 4] {
                let job = job(a_host, strategy);
                let mut network = job.rate.hosts(&here, 5.0, a_host);
                // all else takes next to nothing
                let machine = &mut network.machine;
                (machine.update_gbs, machine.own_update_gbs) = (1e3, 1e3);
                (machine.fold_gbs, machine.copy_gbs, machine.memory_gbs) = (1e3, 1e3, 1e3);
                let compute = Compute::Given { alone_s: 1e-3, crowded_s: None };
                let servers = HOSTS * servers_a_host * a_host;
                let spec = SimulateSpec { algorithm, ..job.spec(Some(servers)) };
                let found = simulate(&spec, &network, compute).unwrap();
                let workers = f64::from(HOSTS * a_host);
                let times = match algorithm {
                    Some(Algorithm::Ring) => 2.0 * (workers - 1.0) / workers,
                    Some(_) => 1.0,
                    // weights go to a host once, gradients from each worker
                    None if servers_a_host == 0 => f64::from(1 + a_host) / 2.0,
                    None => f64::from(a_host),
                };
                let wire_s = times * bytes / (network.link.bandwidth_gbs * 1e9);
                let over = found.estimate.step_s / wire_s;
                assert!((1.0..1.1).contains(&over), "{}: {over}, {found:?}", job.name());
            }
        }
    }
}
