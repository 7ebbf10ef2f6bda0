//! A training step over links of a given rate, by several exchanges in turns, and simulated. The hosts are network namespaces
//! of this machine, which `bench/link.sh` makes; in them this program measures by its `bench step`.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use tensorwire_base::Deadline;
use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_simulate::{Link, Network, SimulatedExchange, SimulatedMachine, SimulatedStrategy};
use tensorwire_train::{Budget, Exchange, TrainConfig};
use tensorwire_zoo::Shipped;

use super::Runner;
use crate::error::BenchError;
use crate::job::QUIET_RATE;
use crate::simulate::{Compute, SimulateSpec, simulate};

const SCRIPT: &str = include_str!("../../../../bench/link.sh");
/// Each with a worker and a server.
const HOSTS: u32 = 2;
const DATA: &str = "synthetic:256";
/// Longest that the script may take: for a word whether there can be such hosts, and for a measurement.
const WORD: Duration = Duration::from_secs(60);
const MEASUREMENT: Duration = Duration::from_secs(30 * 60);
/// And to end once it is told to.
const LAST_WORDS: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Of what a link carries, what is not headers: 1,448 bytes of a frame of 1,514.
const PAYLOAD: f64 = 1448.0 / 1514.0;

/// How fast a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// As `bench/link.sh` takes it.
    pub name: &'static str,
    pub bits_per_second: f64,
}

/// Steps between two hosts with such a link.
#[derive(Clone, Debug)]
pub struct LinkSteps {
    pub model: &'static dyn Shipped,
    /// Samples of a worker.
    pub batch: usize,
    pub rate: LinkRate,
    /// In turns; at least one.
    pub exchanges: Vec<Exchange>,
    pub steps: u64,
    /// Where temporary files belong.
    pub scratch: PathBuf,
}

/// What was measured of one exchange.
#[derive(Clone, Debug, Serialize)]
struct LinkLine<'a> {
    bench: &'static str,
    link: &'static str,
    hosts: u32,
    model: &'a Value,
    data: &'a Value,
    exchange: &'a Value,
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
    /// Of one worker alone, who exchanges nothing.
    local_step_s: f64,
    /// The same on hosts that have half of this machine each; none: what is exchanged so is not simulated.
    simulated_step_s: Option<f64>,
    weights_sha256: &'a Value,
    machine: &'a Value,
}

impl LinkSteps {
    pub(super) fn name(&self) -> String {
        let LinkSteps { model, batch, rate, exchanges, .. } = self;
        format!("{} batch {batch}, {}, {} exchanges", model.name(), rate.name, exchanges.len())
    }

    /// The job by its first exchange, on one host.
    pub(super) fn config(&self) -> TrainConfig {
        TrainConfig {
            model: self.model.name().to_string(),
            data: DATA.to_string(),
            batch: self.batch,
            exchange: self.exchanges.first().copied().unwrap_or(Exchange::Write),
            transport: Transport::Tcp,
            threads: Some(1),
            budget: Budget::Steps(self.steps),
            optimizer: Optimizer::momentum(QUIET_RATE),
            ..TrainConfig::default()
        }
    }

    fn arguments(&self, repetitions: usize, json: &Path) -> Vec<OsString> {
        let TrainConfig { model, data, .. } = self.config();
        let names: Vec<&str> = self.exchanges.iter().map(|exchange| exchange.name()).collect();
        let (first, others) = names.split_first().map_or(("write", &[][..]), |(a, b)| (*a, b));
        let batch = self.batch.to_string();
        let (steps, repetitions) = (self.steps.to_string(), repetitions.to_string());
        let servers = HOSTS.to_string();
        let against = others.join(",");
        let mut all = vec!["bench", "step", "--model", &model, "--data", &data, "--batch", &batch];
        all.extend(["--servers", &servers, "--threads", "1", "--transport", "tcp"]);
        all.extend(["--steps", &steps]);
        all.extend(["--repetitions", &repetitions, "--exchange", first]);
        if !others.is_empty() {
            all.extend(["--against", &against]);
        }
        let all = all.into_iter().map(OsString::from);
        all.chain(["--json".into(), json.into()]).collect()
    }

    /// Two hosts of half of this machine each, and the link between them.
    fn network(&self, here: &Network) -> Network {
        let half = |gbs: f64| gbs / f64::from(HOSTS);
        let SimulatedMachine { cores, memory_gbs, update_gbs, own_update_gbs, fold_gbs, .. } =
            here.machine;
        Network {
            name: format!("{HOSTS} hosts, {}", self.rate.name),
            link: Link {
                bandwidth_gbs: self.rate.bits_per_second / 8e9 * PAYLOAD,
                ..here.link.clone()
            },
            machine: SimulatedMachine {
                cores: (cores / HOSTS).max(1),
                workers: 1,
                memory_gbs: half(memory_gbs),
                update_gbs: half(update_gbs),
                own_update_gbs: half(own_update_gbs),
                fold_gbs: half(fold_gbs),
                ..here.machine.clone()
            },
            ..here.clone()
        }
    }

    fn simulated_s(
        &self,
        exchange: Option<&str>,
        here: &Network,
        alone_s: f64,
    ) -> Result<Option<f64>, BenchError> {
        let exchange = match exchange {
            Some("write" | "zero-copy") => SimulatedExchange::ZeroCopy,
            Some("grpc-rdma") => SimulatedExchange::GrpcRdma,
            Some("grpc-tcp") => SimulatedExchange::GrpcTcp,
            _ => return Ok(None),
        };
        let spec = SimulateSpec {
            model: self.model,
            strategy: SimulatedStrategy::Ps,
            workers: HOSTS,
            servers: Some(HOSTS),
            clients: None,
            exchange,
            algorithm: None,
            placement: None,
            batch: self.batch,
        };
        let compute = Compute::Given { alone_s, crowded_s: None };
        Ok(Some(simulate(&spec, &self.network(here), compute)?.estimate.step_s))
    }
}

impl Runner<'_> {
    pub(super) fn links(
        &mut self,
        spec: &LinkSteps,
        on_line: &mut dyn FnMut(Value),
    ) -> Result<(), BenchError> {
        let local_step_s = self.local_ms(&spec.config())? * 1e-3;
        let folder = Folder::new(&spec.scratch).map_err(BenchError::Links)?;
        let json = folder.0.join("lines.jsonl");
        let arguments = spec.arguments(self.repetitions, &json);
        let mut command = ["--rate", spec.rate.name, "--"].map(OsString::from).to_vec();
        command.push(self.job.program.clone().into());
        command.extend(arguments);
        let ended = folder.run(&command, MEASUREMENT, &self.job.interrupt);
        let (status, said) = ended.map_err(BenchError::Links)?;
        if !status.success() {
            return Err(BenchError::Links(io::Error::other(last_lines(&said))));
        }
        let text = std::fs::read_to_string(&json).map_err(BenchError::Links)?;
        for line in text.lines() {
            let line: Value = serde_json::from_str(line)
                .map_err(|error| BenchError::Links(io::Error::other(error)))?;
            let here = self.here()?;
            let simulated_step_s =
                spec.simulated_s(line["exchange"].as_str(), here, local_step_s)?;
            // in milliseconds there
            let step_s = |quantile: &str| {
                line["ps_ms"][quantile].as_f64().map(|ms| ms * 1e-3).ok_or_else(|| {
                    BenchError::Links(io::Error::other(format!("a line without steps: {line}")))
                })
            };
            super::tell(
                on_line,
                &LinkLine {
                    bench: "links",
                    link: spec.rate.name,
                    hosts: HOSTS,
                    model: &line["model"],
                    data: &line["data"],
                    exchange: &line["exchange"],
                    transport: &line["transport"],
                    strategy: &line["strategy"],
                    workers: &line["workers"],
                    servers: &line["servers"],
                    batch: &line["batch"],
                    threads: &line["threads"],
                    steps: &line["steps"],
                    repetitions: &line["ps_ms"]["count"],
                    step_s: step_s("median")?,
                    p10_s: step_s("p10")?,
                    p90_s: step_s("p90")?,
                    local_step_s,
                    simulated_step_s,
                    weights_sha256: &line["weights_sha256"],
                    machine: &line["machine"],
                },
            )?;
        }
        Ok(())
    }
}

/// Why this machine can have no such hosts; none: it can. Temporary files belong in `scratch`.
pub fn no_links(scratch: &Path) -> Option<String> {
    let command = ["--plain", "--", "true"].map(OsString::from);
    let tried =
        Folder::new(scratch).and_then(|folder| folder.run(&command, WORD, &AtomicBool::new(false)));
    match tried {
        Ok((status, _)) if status.success() => None,
        Ok((_, said)) => Some(last_lines(&said).trim_start_matches("link.sh: ").to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// The last thing that was said, which says what was wrong.
fn last_lines(said: &str) -> String {
    let mut lines: Vec<&str> = said.lines().rev().filter(|line| !line.is_empty()).take(3).collect();
    lines.reverse();
    lines.join("; ")
}

/// A folder of this user's alone with the script, for as long as it is there.
struct Folder(PathBuf);

impl Folder {
    fn new(scratch: &Path) -> io::Result<Folder> {
        let at = scratch.join(format!("tensorwire-links-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&at)?;
        let folder = Folder(at);
        std::fs::write(folder.0.join("link.sh"), SCRIPT)?;
        Ok(folder)
    }

    /// Runs the script until it ends, or is to. Returns how it ended, and what it said.
    fn run(
        &self,
        arguments: &[OsString],
        patience: Duration,
        interrupt: &AtomicBool,
    ) -> io::Result<(ExitStatus, String)> {
        let said = self.0.join("said");
        let mut command = Command::new("bash");
        command.arg(self.0.join("link.sh")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let status = wait(command.spawn()?, Deadline::after(patience), interrupt)?;
        Ok((status, String::from_utf8_lossy(&std::fs::read(&said)?).into_owned()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // what is left of it lies among other temporary files
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wait(mut child: Child, deadline: Deadline, interrupt: &AtomicBool) -> io::Result<ExitStatus> {
    let mut told: Option<Deadline> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match told {
            None if deadline.passed() || interrupt.load(Ordering::Relaxed) => {
                // one that is gone already is what this wants
                let _ = kill_process(Pid::from_child(&child), Signal::TERM);
                told = Some(Deadline::after(LAST_WORDS));
            }
            Some(last) if last.passed() => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "what was started in network namespaces does not end",
                ));
            }
            _ => std::thread::sleep(LOOK_AGAIN),
        }
    }
}
