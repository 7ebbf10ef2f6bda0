//! A training step over links of a given rate, by several exchanges in turns, and simulated; and by several strategies
//! (`jobs.rs`). The hosts are network namespaces of this machine, which `bench/link.sh` makes; in them this program measures by its
//! `bench step`.

mod benches;
mod cores;
mod jobs;

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tensorwire_base::{Deadline, human_seconds};
use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_simulate::{
    Link, LocalLink, Network, Rpc, SimulatedExchange, SimulatedMachine, SimulatedStrategy,
};
use tensorwire_train::{Budget, Exchange, TrainConfig};
use tensorwire_zoo::Shipped;

use super::Runner;
use crate::error::BenchError;
use crate::job::QUIET_RATE;
use crate::machine::cores;
use crate::simulate::{Compute, SimulateSpec, simulate};
use crate::step::compute;

pub use benches::LinkBench;
pub(super) use cores::Computed;
pub use cores::{LinkSpeed, receive_over_link, send_over_link};
pub use jobs::LinkJob;
pub(super) use jobs::{LinkRow, verdict};

const SCRIPT: &str = include_str!("link.sh");
const HOSTS: u32 = 2;
const DATA: &str = "synthetic:256";
/// Longest that the script may take: for a word whether there can be such hosts, and for a measurement.
const WORD: Duration = Duration::from_secs(60);
const MEASUREMENT: Duration = Duration::from_secs(30 * 60);
/// And to end once it is told to; what has not ended then is killed.
const LAST_WORDS: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Of what a link carries, what is not headers: 1,448 bytes of a frame of 1,514.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// Has this program ($1) receive on the second host and send on the first, as long as a file ($3) is there or for a moment; that
/// appends to another ($2) what the link carried. Neither outlives the shell.
const BOTH_ENDS: &str = r#"there=${LINK_HOSTS#*,}
trap 'kill $receiver $! 2>/dev/null' EXIT
trap 'exit 143' TERM
$LINK_RSH "$there" "exec '$1' bench sockets --receive-at $there:7777" &
receiver=$!
"$1" bench sockets --send-to "$there:7777" --json "$2" ${3:+--as-long-as "$3"} &
sender=$!
wait $sender || exit
wait $receiver
"#;

/// How fast a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// As `bench/link.sh` takes it.
    pub name: &'static str,
    pub bits_per_second: f64,
}

/// Steps between two hosts of a worker and a server each with such a link.
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

impl LinkRate {
    /// 10⁹ bytes a second of what it carries, less headers.
    fn payload_gbs(self) -> f64 {
        self.bits_per_second / 8e9 * PAYLOAD
    }

    /// Hosts of half of this machine each, with so many workers, and this link between them, of which a core sends or receives
    /// so many 10⁹ bytes in a second.
    fn hosts(self, here: &Network, core_gbs: f64, workers: u32) -> Network {
        let half = |gbs: f64| gbs / f64::from(HOSTS);
        let SimulatedMachine { cores, memory_gbs, update_gbs, own_update_gbs, fold_gbs, .. } =
            here.machine;
        Network {
            name: format!("{HOSTS} hosts, {}", self.name),
            link: Link {
                bandwidth_gbs: self.payload_gbs(),
                core_gbs: Some(core_gbs),
                ..here.link.clone()
            },
            rpc: Rpc { tcp_gbs: core_gbs, ..here.rpc.clone() },
            machine: SimulatedMachine {
                cores: (cores / HOSTS).max(1),
                workers,
                memory_gbs: half(memory_gbs),
                update_gbs: half(update_gbs),
                own_update_gbs: half(own_update_gbs),
                fold_gbs: half(fold_gbs),
                ..here.machine.clone()
            },
            ..here.clone()
        }
    }
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
    /// 10⁹ bytes that a core sends or receives over the link in a second: measured, and told to the simulator.
    core_gbs: f64,
    weights_sha256: &'a Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    versions: &'a Value,
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
        all.extend(["--iterations", &repetitions, "--exchange", first]);
        if !others.is_empty() {
            all.extend(["--against", &against]);
        }
        let all = all.into_iter().map(OsString::from);
        all.chain(["--json".into(), json.into()]).collect()
    }

    /// Those of one host talk through sockets, too: they are told of TCP alone.
    fn network(&self, here: &Network, core_gbs: f64) -> Network {
        let network = self.rate.hosts(here, core_gbs, 1);
        let Link { latency_us, message_us, core_gbs, .. } = here.link;
        // a core does both ends
        let core_gbs = core_gbs.unwrap_or(network.local.core_gbs) / 2.0;
        let local = LocalLink { latency_us, message_us, by_reference: false, core_gbs };
        Network { local, ..network }
    }

    fn simulated_s(
        &self,
        exchange: Option<&str>,
        network: &Network,
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
        Ok(Some(simulate(&spec, network, compute)?.estimate.step_s))
    }
}

impl Runner<'_> {
    pub(super) fn links(
        &mut self,
        spec: &LinkSteps,
        on_line: &mut dyn FnMut(Value),
    ) -> Result<(), BenchError> {
        let local_step_s = self.local_ms(&spec.config())?.median * 1e-3;
        // all cores: what bytes take is not to come of one that has nothing to do
        let threads = Some((cores() / HOSTS as usize).max(1));
        let replicas = compute(&TrainConfig { threads, ..spec.config() });
        let Computed { core_gbs, .. } =
            self.computed(&replicas, spec.rate, self.repetitions, &spec.scratch)?;
        let arguments = |json: &Path| spec.arguments(self.repetitions, json);
        for line in self.measured_over(spec.rate, 1, &spec.scratch, &arguments)? {
            let network = spec.network(self.here()?, core_gbs);
            let simulated_step_s =
                spec.simulated_s(line["exchange"].as_str(), &network, local_step_s)?;
            let step_s = |quantile: &str| step_s(&line, quantile);
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
                    core_gbs,
                    weights_sha256: &line["weights_sha256"],
                    versions: &line["versions"],
                    machine: &line["machine"],
                },
            )?;
        }
        Ok(())
    }

    /// What this program says of measurements on hosts with such links, which take so many processes in a row each, when it is
    /// given these arguments, which name the file for its lines.
    fn measured_over(
        &self,
        rate: LinkRate,
        slots: u32,
        scratch: &Path,
        arguments: &dyn Fn(&Path) -> Vec<OsString>,
    ) -> Result<Vec<Value>, BenchError> {
        let folder = Folder::new(scratch).map_err(BenchError::Links)?;
        let json = folder.0.path().join("lines.jsonl");
        let slots = slots.to_string();
        let mut command =
            ["--rate", rate.name, "--slots", &slots, "--"].map(OsString::from).to_vec();
        command.push(self.job.program.clone().into());
        command.extend(arguments(&json));
        said_over(&folder, &command, &json, &self.job.interrupt)
    }
}

/// The lines of JSON that a command in the script's hosts writes to a file.
fn said_over<T: DeserializeOwned>(
    folder: &Folder,
    command: &[OsString],
    json: &Path,
    interrupt: &AtomicBool,
) -> Result<Vec<T>, BenchError> {
    let ended = folder.run(command, MEASUREMENT, interrupt);
    let (status, said) = ended.map_err(BenchError::Links)?;
    if !status.success() {
        return Err(BenchError::Links(io::Error::other(reason(status, &said))));
    }
    let text = std::fs::read_to_string(json).map_err(BenchError::Links)?;
    let read = |line| serde_json::from_str(line);
    let lines: Result<Vec<T>, _> = text.lines().map(read).collect();
    lines.map_err(|error| BenchError::Links(io::Error::other(error)))
}

/// A quantile of a measured step.
fn step_s(line: &Value, quantile: &str) -> Result<f64, BenchError> {
    // in milliseconds there
    line["ps_ms"][quantile]
        .as_f64()
        .map(|ms| ms * 1e-3)
        .ok_or_else(|| BenchError::Links(io::Error::other(format!("a line without steps: {line}"))))
}

/// Why this machine can have no such hosts; none: it can. Temporary files belong in `scratch`. What sets `interrupt` ends the
/// trial, which says nothing of the machine then.
pub fn no_links(scratch: &Path, interrupt: &AtomicBool) -> Option<String> {
    let command = ["--plain", "--", "true"].map(OsString::from);
    match Folder::new(scratch).and_then(|folder| folder.run(&command, WORD, interrupt)) {
        Ok((status, _)) if status.success() => None,
        Ok((status, said)) => Some(reason(status, &said)),
        Err(error) => Some(error.to_string()),
    }
}

/// What was wrong: the last lines of what the script said.
fn reason(status: ExitStatus, said: &str) -> String {
    let mut lines: Vec<&str> = said.lines().rev().filter(|line| !line.is_empty()).take(3).collect();
    lines.reverse();
    match lines.join("; ") {
        said if said.is_empty() => format!("link.sh says nothing and ends with {status}"),
        said => said.trim_start_matches("link.sh: ").to_string(),
    }
}

/// A folder of this user's alone with the script, for as long as it is there.
struct Folder(TempDir);

impl Folder {
    fn new(scratch: &Path) -> io::Result<Folder> {
        let failed = |error: io::Error| {
            let shown = scratch.display();
            let help = "make room in it, or name another by TMPDIR";
            io::Error::new(
                error.kind(),
                format!("no folder can be made in {shown}: {error}; {help}"),
            )
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix("tensorwire-links-").permissions(Permissions::from_mode(0o700));
        let folder = builder.tempdir_in(scratch).map_err(failed)?;
        std::fs::write(folder.path().join("link.sh"), SCRIPT).map_err(failed)?;
        Ok(Folder(folder))
    }

    /// Runs the script until it ends, or is to. Returns how it ended, and what it said.
    fn run(
        &self,
        arguments: &[OsString],
        patience: Duration,
        interrupt: &AtomicBool,
    ) -> io::Result<(ExitStatus, String)> {
        let folder = self.0.path();
        let said = folder.join("said");
        let mut command = Command::new("bash");
        command.arg(folder.join("link.sh")).args(arguments);
        // what it makes goes with this folder, even if it is killed
        command.env("TMPDIR", folder).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let script = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("bash does not start: {error}; install it"))
        })?;
        let status = wait(script, patience, interrupt)?;
        Ok((status, String::from_utf8_lossy(&std::fs::read(&said)?).into_owned()))
    }
}

/// Waits for the script, which leads a group of its own. Nothing of that group is left then.
fn wait(mut script: Child, patience: Duration, interrupt: &AtomicBool) -> io::Result<ExitStatus> {
    let leader = Pid::from_child(&script);
    let told = until_end(leader, patience, interrupt);
    // before the script is reaped, since until then its number is no other group's; a group that is gone is what this wants
    let _ = kill_process_group(leader, Signal::KILL);
    let status = script.wait()?;
    match told {
        Err(why) if !status.success() => Err(why),
        _ => Ok(status),
    }
}

/// Returns once the script has ended, which is not reaped yet, or does not end though it is told to. Fails with why it was told.
fn until_end(script: Pid, patience: Duration, interrupt: &AtomicBool) -> io::Result<()> {
    let deadline = Deadline::after(patience);
    while !has_ended(script)? {
        let is_interrupted = interrupt.load(Ordering::Relaxed);
        if is_interrupted || deadline.passed() {
            // it alone: it ends its command, to which a second signal would say to leave things as they are, and then its hosts
            let _ = kill_process(script, Signal::TERM);
            let last = Deadline::after(LAST_WORDS);
            while !has_ended(script)? && !last.passed() {
                std::thread::sleep(LOOK_AGAIN);
            }
            return Err(match is_interrupted {
                true => io::Error::new(io::ErrorKind::Interrupted, "interrupted"),
                false => {
                    let after = human_seconds(patience.as_secs_f64());
                    let why = format!("link.sh had not ended after {after} and was told to");
                    io::Error::new(io::ErrorKind::TimedOut, why)
                }
            });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// True if this child has ended; it is not reaped by that.
fn has_ended(child: Pid) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(child), options)?.is_some())
}
