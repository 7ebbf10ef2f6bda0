//! What an environment says of who started this process, and what it is among the others. A pure function of
//! the variables: nothing is asked of the system.
//!
//! The first that is found counts, the innermost launcher before those that may be around it:
//!
//! | launcher | found by | rank, size, local rank | where rank 0 is |
//! |---|---|---|---|
//! | ps-lite's tracker | `DMLC_ROLE` | `DMLC_NUM_WORKER`, `DMLC_NUM_SERVER`; ranks as they come | `DMLC_PS_ROOT_URI`, `DMLC_PS_ROOT_PORT` |
//! | torchrun | `RANK` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK` | `MASTER_ADDR` |
//! | mpirun of Open MPI | `OMPI_COMM_WORLD_RANK` or `…_SIZE` | `OMPI_COMM_WORLD_RANK`, `…_SIZE`, `…_LOCAL_RANK` | here, if all are |
//! | srun | `SLURM_STEP_NUM_TASKS` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID` | the first of `SLURM_STEP_NODELIST` |
//! | mpiexec of MPICH and its kin | `PMI_RANK` or `PMI_SIZE` | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` | here, if all are |
//! | a Kubernetes Indexed Job | `JOB_COMPLETION_INDEX` and `MASTER_ADDR` | `JOB_COMPLETION_INDEX`, `WORLD_SIZE` | `MASTER_ADDR` |
//!
//! `MASTER_ADDR` and `MASTER_PORT`, where set, say where rank 0 is under every launcher but ps-lite's;
//! `TENSORWIRE_GATHER_TIMEOUT` says under each for how many seconds all may wait for each other.
//! A shell of `salloc` and the script of `sbatch` are no steps of srun and found to be nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZero;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key;
use super::node_list::first_node;

/// How long all may take to come together where nobody says it: schedulers start the processes of one job seconds apart.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Where that is said.
const PATIENCE_SET: &str = "TENSORWIRE_GATHER_TIMEOUT";

/// Ports that are tried, from the first one on, where some may be taken.
const PORTS_TRIED: u16 = 8;

/// Who started the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// A tracker of ps-lite, which sets `DMLC_*`.
    PsLite,
    /// torchrun, or whoever sets `RANK` and `WORLD_SIZE` as it does.
    Torchrun,
    OpenMpi,
    /// srun of Slurm.
    Slurm,
    /// mpiexec of MPICH, Intel MPI and others with Hydra.
    Hydra,
    /// An Indexed Job of Kubernetes.
    Kubernetes,
}

impl Outer {
    /// What the user typed.
    pub fn name(self) -> &'static str {
        match self {
            Outer::PsLite => "a ps-lite tracker",
            Outer::Torchrun => "torchrun",
            Outer::OpenMpi => "mpirun",
            Outer::Slurm => "srun",
            Outer::Hydra => "mpiexec",
            Outer::Kubernetes => "a Kubernetes Indexed Job",
        }
    }

    /// What the user types for so many processes.
    pub fn line(self, processes: u32) -> String {
        match self {
            Outer::PsLite => {
                format!("DMLC_NUM_WORKER and DMLC_NUM_SERVER that add up to {processes}")
            }
            Outer::Torchrun => format!("torchrun --no-python --nproc-per-node {processes}"),
            Outer::OpenMpi => format!("mpirun -np {processes}"),
            Outer::Slurm => format!("srun -n {processes}"),
            Outer::Hydra => format!("mpiexec -n {processes}"),
            Outer::Kubernetes => {
                format!("completions and parallelism {processes}, and that as WORLD_SIZE")
            }
        }
    }
}

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a process is among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchedAs {
    /// The member of this rank; that of rank 0 is the launcher, too.
    Rank(u32),
    /// The launcher, and no member.
    Scheduler,
    /// A worker, whose rank comes when all are there.
    Worker,
    /// A server, likewise.
    Server,
}

impl LaunchedAs {
    /// Do the others call this process?
    pub fn is_launcher(self) -> bool {
        matches!(self, LaunchedAs::Rank(0) | LaunchedAs::Scheduler)
    }
}

impl fmt::Display for LaunchedAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchedAs::Rank(rank) => write!(f, "rank {rank}"),
            LaunchedAs::Scheduler => f.write_str("the scheduler"),
            LaunchedAs::Worker => f.write_str("a worker"),
            LaunchedAs::Server => f.write_str("a server"),
        }
    }
}

/// Where the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// The host of rank 0; none: all are on one.
    pub host: Option<String>,
    /// The launcher listens on the first that is free.
    pub ports: Vec<u16>,
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_deref().unwrap_or("this host");
        match self.ports.as_slice() {
            [first, .., last] => write!(f, "{host}, port {first} to {last}"),
            ports => write!(f, "{host}, port {}", ports.first().unwrap_or(&0)),
        }
    }
}

/// What this process is, as its environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    pub by: Outer,
    pub launched_as: LaunchedAs,
    /// Members of the job.
    pub world: u32,
    /// Which of its host's processes it is, where that is said.
    pub local_rank: Option<u32>,
    pub rendezvous: Rendezvous,
    /// What its launcher calls the job: no other job that runs now has the same.
    pub key: String,
    /// Workers and servers, where the launcher decides that.
    pub counts: Option<(u32, u32)>,
    /// How long all may take to come together.
    pub patience: Duration,
}

impl Detected {
    /// One whose processes wait for each other as long as usual, and of which its launcher said no more.
    pub(super) fn of(
        by: Outer,
        launched_as: LaunchedAs,
        world: u32,
        rendezvous: Rendezvous,
        key: String,
    ) -> Detected {
        let (local_rank, counts, patience) = (None, None, PATIENCE);
        Detected { by, launched_as, world, local_rank, rendezvous, key, counts, patience }
    }

    /// Processes of the job, the scheduler included where that is one of its own.
    pub fn processes(&self) -> u32 {
        self.world.saturating_add(u32::from(self.counts.is_some()))
    }

    /// The same, where the user says at which address the launcher listens.
    ///
    /// # Errors
    /// When it has no port: the others could not know it.
    pub fn listening_at(mut self, listen: SocketAddr) -> Result<Detected, DetectError> {
        if listen.port() == 0 {
            return Err(DetectError::ListenPort { by: self.by });
        }
        self.rendezvous.ports = vec![listen.port()];
        if !listen.ip().is_unspecified() {
            self.rendezvous.host = Some(listen.ip().to_string());
        }
        Ok(self)
    }
}

/// What is wrong with an environment, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DetectError {
    #[error(
        "{by} seems to have started this process, for {found} is set, but {missing} is not; set it, or give --no-detect if this process is to start a job of its own"
    )]
    Missing { by: Outer, found: &'static str, missing: &'static str },
    #[error("{variable} is '{found}' in the environment, and should be {wanted}")]
    Invalid { variable: &'static str, found: String, wanted: &'static str },
    #[error(
        "{variable} is {rank} of {world} processes, which are counted from 0; what sets it and the number of processes?"
    )]
    NoRank { variable: &'static str, rank: u32, world: u32 },
    #[error(
        "{by} started {world} processes on several hosts, and does not say where that of rank 0 is; add {mend}"
    )]
    NoHost { by: Outer, world: u32, mend: &'static str },
    #[error(
        "--listen has port 0, but the processes that {by} started must know where to call; give a port, or leave --listen out"
    )]
    ListenPort { by: Outer },
}

/// What this process is among those of a job, none where nobody started several. `parent` is the process
/// that started it.
///
/// # Errors
/// When the environment says half of it, or what makes no sense.
pub fn detect(
    environment: &BTreeMap<String, String>,
    parent: u32,
) -> Result<Option<Detected>, DetectError> {
    let env = Environment(environment);
    let found = if env.has("DMLC_ROLE") {
        ps_lite(env)
    } else if env.has("RANK") {
        torchrun(env)
    } else if env.has("OMPI_COMM_WORLD_RANK") || env.has("OMPI_COMM_WORLD_SIZE") {
        open_mpi(env)
    } else if env.has("SLURM_STEP_NUM_TASKS") {
        slurm(env)
    } else if env.has("PMI_RANK") || env.has("PMI_SIZE") {
        hydra(env, parent)
    } else if env.has("JOB_COMPLETION_INDEX") && env.has("MASTER_ADDR") {
        kubernetes(env)
    } else if env.has("WORLD_SIZE") && env.has("MASTER_ADDR") {
        torchrun(env)
    } else {
        return Ok(None);
    };
    let mut found = found?;
    if let Some(seconds) =
        env.parse::<NonZero<u32>>(PATIENCE_SET, "a number of seconds, from 1 on")?
    {
        found.patience = Duration::from_secs(u64::from(seconds.get()));
    }
    Ok(Some(found))
}

/// Variables; an empty one is none.
#[derive(Clone, Copy)]
struct Environment<'a>(&'a BTreeMap<String, String>);

impl<'a> Environment<'a> {
    fn get(self, variable: &str) -> Option<&'a str> {
        self.0.get(variable).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn has(self, variable: &str) -> bool {
        self.get(variable).is_some()
    }

    fn parse<T: FromStr>(
        self,
        variable: &'static str,
        wanted: &'static str,
    ) -> Result<Option<T>, DetectError> {
        let parsed = self.get(variable).map(|found| {
            let invalid = |_| DetectError::Invalid { variable, found: found.to_string(), wanted };
            found.parse().map_err(invalid)
        });
        parsed.transpose()
    }

    fn number(self, variable: &'static str) -> Result<Option<u32>, DetectError> {
        self.parse(variable, "a number from 0 on")
    }

    /// The number in `wanted`, which must be there as `with` is.
    fn need(self, by: Outer, wanted: &'static str, with: &'static str) -> Result<u32, DetectError> {
        let missing = DetectError::Missing { by, found: with, missing: wanted };
        self.number(wanted)?.ok_or(missing)
    }

    /// Rank and number of processes, both of which must be there.
    fn place(
        self,
        by: Outer,
        rank: &'static str,
        size: &'static str,
    ) -> Result<(u32, u32), DetectError> {
        let world = self.need(by, size, rank)?;
        let variable = rank;
        let rank = self.need(by, rank, size)?;
        if rank < world {
            Ok((rank, world))
        } else {
            Err(DetectError::NoRank { variable, rank, world })
        }
    }

    /// Where the processes meet: at `MASTER_ADDR` and `MASTER_PORT` where these are set, else at `host`, at a port
    /// that follows from the job's name.
    fn rendezvous(
        self,
        host: impl FnOnce() -> Result<Option<String>, DetectError>,
        key: &str,
    ) -> Result<Rendezvous, DetectError> {
        let host = match self.get("MASTER_ADDR") {
            Some(host) => Some(host.to_string()),
            None => host()?,
        };
        let first = match self.port("MASTER_PORT")? {
            // torchrun's own store listens there
            Some(port) if self.has("TORCHELASTIC_RUN_ID") => port.saturating_add(1),
            Some(port) => port,
            None => key::port(key),
        };
        let last = first.saturating_add(PORTS_TRIED - 1);
        Ok(Rendezvous { host, ports: (first..=last).collect() })
    }

    fn port(self, variable: &'static str) -> Result<Option<u16>, DetectError> {
        let port: Option<NonZero<u16>> = self.parse(variable, "a port, from 1 to 65535")?;
        Ok(port.map(NonZero::get))
    }
}

fn ps_lite(env: Environment<'_>) -> Result<Detected, DetectError> {
    let by = Outer::PsLite;
    let role = env.get("DMLC_ROLE").unwrap_or_default();
    let launched_as = match role {
        "scheduler" => LaunchedAs::Scheduler,
        "worker" => LaunchedAs::Worker,
        "server" => LaunchedAs::Server,
        _ => {
            let (found, wanted) = (role.to_string(), "scheduler, worker or server");
            return Err(DetectError::Invalid { variable: "DMLC_ROLE", found, wanted });
        }
    };
    let workers = env.need(by, "DMLC_NUM_WORKER", "DMLC_ROLE")?;
    let servers = env.need(by, "DMLC_NUM_SERVER", "DMLC_ROLE")?;
    let missing = |missing| DetectError::Missing { by, found: "DMLC_ROLE", missing };
    let host = env.get("DMLC_PS_ROOT_URI").ok_or(missing("DMLC_PS_ROOT_URI"))?;
    let port = env.port("DMLC_PS_ROOT_PORT")?.ok_or(missing("DMLC_PS_ROOT_PORT"))?;
    let rendezvous = Rendezvous { host: Some(host.to_string()), ports: vec![port] };
    let (world, key) = (workers.saturating_add(servers), format!("ps-lite {host}:{port}"));
    let counts = Some((workers, servers));
    Ok(Detected { counts, ..Detected::of(by, launched_as, world, rendezvous, key) })
}

fn torchrun(env: Environment<'_>) -> Result<Detected, DetectError> {
    let by = Outer::Torchrun;
    let (rank, world) = env.place(by, "RANK", "WORLD_SIZE")?;
    let missing = |missing| DetectError::Missing { by, found: "RANK", missing };
    let host = env.get("MASTER_ADDR").ok_or(missing("MASTER_ADDR"))?;
    let port = env.port("MASTER_PORT")?.ok_or(missing("MASTER_PORT"))?;
    let run = env.get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    // Every agent counts in TORCHELASTIC_RESTART_COUNT the restarts that it made itself: they differ within a round, so that
    // cannot be part of the name. No agent begins a round before each has ended its processes of the round before. A member of
    // that one that has outlived its agent knows another job's key, by which it was told what it is, and is turned away.
    let key = format!("torchrun {host}:{port} {run}");
    let rendezvous = env.rendezvous(|| Ok(None), &key)?;
    let local_rank = env.number("LOCAL_RANK")?;
    let launched_as = LaunchedAs::Rank(rank);
    Ok(Detected { local_rank, ..Detected::of(by, launched_as, world, rendezvous, key) })
}

fn open_mpi(env: Environment<'_>) -> Result<Detected, DetectError> {
    let by = Outer::OpenMpi;
    let (rank, world) = env.place(by, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let names = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_PORT"];
    let (found, missing) = ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE");
    let key = names.into_iter().find_map(|name| env.get(name));
    let key = key.ok_or(DetectError::Missing { by, found, missing })?;
    let key = format!("mpirun {key}");
    let here = env.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(world);
    let host = || match here {
        true => Ok(None),
        false => Err(DetectError::NoHost { by, world, mend: "-x MASTER_ADDR=HOST to mpirun" }),
    };
    let rendezvous = env.rendezvous(host, &key)?;
    let local_rank = env.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    let launched_as = LaunchedAs::Rank(rank);
    Ok(Detected { local_rank, ..Detected::of(by, launched_as, world, rendezvous, key) })
}

fn slurm(env: Environment<'_>) -> Result<Detected, DetectError> {
    let (by, found) = (Outer::Slurm, "SLURM_STEP_NUM_TASKS");
    let (rank, world) = env.place(by, "SLURM_PROCID", found)?;
    let missing = |missing| DetectError::Missing { by, found, missing };
    let job = env.get("SLURM_JOB_ID").ok_or(missing("SLURM_JOB_ID"))?;
    let step = env.get("SLURM_STEP_ID").ok_or(missing("SLURM_STEP_ID"))?;
    let cluster = env.get("SLURM_CLUSTER_NAME").unwrap_or_default();
    // a job that was put back into the queue has the same number
    let restart = env.get("SLURM_RESTART_COUNT").unwrap_or_default();
    let key = format!("srun {cluster} {job}.{step} {restart}");
    let host = || {
        if env.number("SLURM_STEP_NUM_NODES")? == Some(1) {
            return Ok(None);
        }
        let variable = "SLURM_STEP_NODELIST";
        let list = env.get(variable).ok_or(missing(variable))?;
        let (found, wanted) = (list.to_string(), "a list of nodes, as in node[1-3]");
        let first = first_node(list);
        first.map(Some).ok_or(DetectError::Invalid { variable, found, wanted })
    };
    let rendezvous = env.rendezvous(host, &key)?;
    let (launched_as, local_rank) = (LaunchedAs::Rank(rank), env.number("SLURM_LOCALID")?);
    Ok(Detected { local_rank, ..Detected::of(by, launched_as, world, rendezvous, key) })
}

fn hydra(env: Environment<'_>, parent: u32) -> Result<Detected, DetectError> {
    let by = Outer::Hydra;
    let (rank, world) = env.place(by, "PMI_RANK", "PMI_SIZE")?;
    let here = env.number("MPI_LOCALNRANKS")? == Some(world) || world == 1;
    let key = match env.get("MASTER_PORT") {
        Some(port) => format!("mpiexec {}:{port}", env.get("MASTER_ADDR").unwrap_or_default()),
        // the proxy of this mpiexec on this host: Hydra gives the job no name
        None if here => format!("mpiexec proxy {parent}"),
        None => {
            let mend = "-genv MASTER_ADDR HOST -genv MASTER_PORT PORT to mpiexec";
            return Err(DetectError::NoHost { by, world, mend });
        }
    };
    let host = || match here {
        true => Ok(None),
        false => Err(DetectError::NoHost { by, world, mend: "-genv MASTER_ADDR HOST to mpiexec" }),
    };
    let rendezvous = env.rendezvous(host, &key)?;
    let (launched_as, local_rank) = (LaunchedAs::Rank(rank), env.number("MPI_LOCALRANKID")?);
    Ok(Detected { local_rank, ..Detected::of(by, launched_as, world, rendezvous, key) })
}

fn kubernetes(env: Environment<'_>) -> Result<Detected, DetectError> {
    let by = Outer::Kubernetes;
    let (rank, world) = env.place(by, "JOB_COMPLETION_INDEX", "WORLD_SIZE")?;
    let port = env.get("MASTER_PORT").unwrap_or_default();
    let key = format!("kubernetes {} {port}", env.get("MASTER_ADDR").unwrap_or_default());
    let rendezvous = env.rendezvous(|| Ok(None), &key)?;
    let launched_as = LaunchedAs::Rank(rank);
    Ok(Detected::of(by, launched_as, world, rendezvous, key))
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
