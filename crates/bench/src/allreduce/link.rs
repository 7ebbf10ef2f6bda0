//! What the way between the processes of a group takes, which the group itself measures.

use tensorwire_collectives::LinkCost;
use tensorwire_launch::{JobOutcome, JobSpec, Reports, launch};
use tensorwire_train::TunedLink;

use super::{AllreduceSpec, Told, Way, job_of};
use crate::error::BenchError;

/// Measures the way between those of a group's processes that are apart; none where all share memory. Of `spec` only what says
/// who and where they are counts, and `job` is as for [`allreduce`](super::allreduce).
///
/// # Errors
/// When the job fails.
pub fn measure_link(spec: &AllreduceSpec, job: &JobSpec) -> Result<Option<TunedLink>, BenchError> {
    let way = Way { algorithm: None, tensor: None };
    let told = Told { spec: spec.clone(), way, measures_link: true };
    let job = job_of(&told, job)?;
    let JobOutcome { reports, negotiated } =
        launch::<Reports<Option<LinkCost>>>(&job, &mut |_| {})?;
    let transport = negotiated.unwrap_or(spec.transport);
    let several_hosts = spec.hosts.spread(spec.ranks as usize);
    let link = reports.into_values().next().flatten();
    Ok(link.map(|link| TunedLink { transport, several_hosts, link }))
}
