//! Processes that somebody else started: mpirun, srun, torchrun, a ps-lite tracker, Kubernetes. Each finds its
//! place in what it was given; all but one then call that one, the launcher, and become what it says.
//!
//! ```text
//! process of rank 0                               every other process
//!   detect, open a gathering                            detect, call the gathering until it answers
//!   gather all                               <-     who and where it is
//!   prepare the job, launch                  ->     its assignment, and it is a member like any
//! ```
//!
//! Knows nothing of what the job is. The environment is passed in.

mod counts;
mod detect;
mod gathering;
mod join;
mod key;
mod listening;
mod node_list;

use serde::{Deserialize, Serialize};

use crate::assignment::Assignment;
use crate::cpus::CpuMask;

pub use counts::{Composition, CountError, share_out};
pub use detect::{DetectError, Detected, LaunchedAs, Outer, Rendezvous, detect};
pub(crate) use gathering::JoinedProcess;
pub use gathering::{Gathering, RendezvousError};
pub use join::{Joined, SignOfLife, join};
pub use key::{JobKeyError, KeySource};

/// What a process says of itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    launched_as: LaunchedAs,
    /// How many processes it was told that there are.
    world: u32,
    machine: Machine,
    pid: u32,
    #[serde(default)]
    cpus: CpuMask,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The others are still coming, or the job is being prepared.
    Wait,
    Assigned(Box<Assignment>),
    /// It is one too many, or belongs elsewhere.
    Refused {
        reason: String,
    },
    /// There will be no job; the launcher shows why, and ends with this status.
    NoJob {
        status: u8,
    },
}

/// Where a process runs. Two that run on the same machine share memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    name: String,
    /// Differs wherever memory cannot be shared: between kernels, and between networks of containers, as
    /// descriptors of memory are handed over by sockets.
    id: String,
}

impl Machine {
    fn here() -> Machine {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // where a sandbox hides it, the name tells hosts apart
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.unwrap_or_else(|_| name.clone());
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let id = format!("{} {}", boot.trim(), network.display());
        Machine { name, id }
    }
}
