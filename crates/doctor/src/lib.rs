//! What this machine can do, what is wrong with it, and what mends it: facts are looked up, transports are
//! tried, and both are judged. Changes nothing on the machine.
//!
//! | file | what |
//! |---|---|
//! | `facts.rs` | what is known of a machine: plain data |
//! | `tree.rs`, `look.rs`, `look/` | reads them, from `/proc`, `/sys`, the fabric's survey of NICs and CUDA's driver |
//! | `trial.rs`, `pair.rs` | writes and reads over a transport, between two ends, every byte verified |
//! | `peer.rs` | the same with another host: a job of two members |
//! | `fuzz.rs` | what the ends tell each other, as functions of bytes |
//! | `judge.rs`, `judge/` | facts and trials in, findings out; pure |

#![forbid(unsafe_code)]

mod facts;
#[doc(hidden)]
pub mod fuzz;
mod judge;
mod look;
mod pair;
mod peer;
mod tree;
mod trial;

use serde::Serialize;

use tensorwire_launch::Obstacle;
use tensorwire_launch::Transport;

pub use facts::{
    Auto, Computer, CudaFacts, CudaLibraryFacts, DeviceFile, Facts, GidFacts, Gpu, GpuFacts,
    LibraryFacts, Limit, Locking, NicDistance, NicFacts, Pick, PortFacts, Provider, Rdma,
    SharedMemoryFacts,
};
pub use judge::{Finding, Severity};
pub use peer::{DOCTOR, DoctorError, PeerExamined, doctor_member, examine_peer, hosts_of_peer};
pub use trial::{Moved, Trial};

use std::path::PathBuf;

use tensorwire_fabric::VerbsOptions;

pub use tensorwire_device::LibrarySearch;

/// Where CUDA's driver and libraries are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaSearch {
    /// The driver's library, which must be there; none: where the dynamic linker looks, if there is one.
    pub driver: Option<PathBuf>,
    /// Folders that were named.
    pub libraries: LibrarySearch,
}

/// What was found out about this machine, and about a way to another.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// The worst of the findings.
    pub verdict: Severity,
    pub facts: Facts,
    /// Both ends on this machine, one trial for each transport that can be opened here.
    pub trials: Vec<Trial>,
    pub peer: Option<PeerExamined>,
    pub findings: Vec<Finding>,
}

/// Looks at this machine and tries its transports. `options`: which NIC, as a job would be told; `search`: which driver
/// of CUDA's.
pub fn examine(options: &VerbsOptions, search: &CudaSearch) -> Examination {
    let facts = look::gather(options, search);
    let mut transports = vec![Transport::Shm, Transport::Tcp];
    if facts.rdma.obstacle.is_none() {
        transports.push(Transport::Verbs);
    }
    let trials = transports.into_iter().map(|transport| trial::in_this_process(transport, options));
    let trials = trials.collect();
    let asked = *options != VerbsOptions::default();
    Examination::of(facts, trials, asked)
}

impl Examination {
    /// `asked`: the user named a NIC or a GID, so that it must be there.
    fn of(facts: Facts, trials: Vec<Trial>, asked: bool) -> Examination {
        let mut findings = judge::machine(&facts, asked);
        findings.extend(trials.iter().filter_map(|trial| judge::trial(trial, &facts, None)));
        let verdict = judge::worst(&findings);
        Examination { verdict, facts, trials, peer: None, findings }
    }

    /// The same, with what was found out about another host.
    pub fn with_peer(mut self, peer: PeerExamined) -> Examination {
        self.findings.extend(judge::peer(&self.facts, &peer));
        self.verdict = judge::worst(&self.findings);
        self.peer = Some(peer);
        self
    }
}
