//! One process, no communication: the replicas are computed one after another.

use std::sync::Arc;

use tensorwire_base::Rank;
use tensorwire_kernels::Kernels;
use tensorwire_launch::Member;
use tensorwire_memory::Slab;
use tensorwire_runtime::{Session, SessionError, Storage};

use super::{Connected, Strategy};
use crate::config::ConfigError;
use crate::job::computing::computing;
use crate::job::worker::{NoLink, Worker};
use crate::job::{Part, TrainError, cores, kernel_choice, session_options};

pub(super) struct Local;

impl Strategy for Local {
    /// Such a job is never launched; a member that is told so computes alone.
    fn connect<'a>(
        &self,
        _member: &'a Member,
        part: &'a Part,
    ) -> Result<Connected<'a>, TrainError> {
        Ok(Connected::Steps(Box::new(open(part)?)))
    }
}

/// Opens all replicas in this process.
pub(in crate::job) fn open(part: &Part) -> Result<Worker<'static>, TrainError> {
    let Part { config, topology, plan, .. } = part;
    let registered =
        Slab::anonymous(plan.parts[0].memory.registered_bytes).map_err(SessionError::from)?;
    let storage = Storage::new(&plan.parts[0], &registered)?;
    let threads = config.threads.unwrap_or_else(cores);
    let kernels = Arc::new(
        Kernels::open(kernel_choice(config, &part.program), threads).map_err(ConfigError::from)?,
    );
    let (computing, description) = computing(part, Rank(0), kernels)?;
    let session = Session::new(plan, 0, storage, computing, None, session_options(config))?;
    let worker = Worker::new(session, description, 0..topology.workers, Box::new(NoLink));
    Ok(Worker { concludes: true, ..worker })
}
