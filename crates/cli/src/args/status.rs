//! The command lines of `tensorwire status` and `tensorwire scale`.

use std::net::SocketAddr;

use clap::Args;
use tensorwire_launch::{Hosts, HostsError};

use super::headings::PROCESSES;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire status                   all jobs whose launcher runs here
  tensorwire status 12345             the processes of one
  tensorwire top 12345                the same, live
  tensorwire status 12345 --json | jq '.members[].still'";

pub(super) const SCALE_EXAMPLES: &str = "\
Examples:
  tensorwire scale 12345 4                        4 workers, where the job runs
  tensorwire scale 12345 8 --hosts node0:4,node7:4
      on these hosts in the place of those that it had: one that is new, or one
      that goes

Each host is asked first; if one does not answer, the job stays as it is, and if
it makes no step there, it goes on as before. What was made is kept.";

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The job: the process id of its launcher, as the list has it
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// One object of JSON a job
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// The job: the process id of its launcher, as `tensorwire status` lists it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Workers that it goes on with: a divisor of MAX, and at least MIN
    #[arg(value_name = "WORKERS")]
    pub(crate) workers: u32,
    /// Where its processes run from then on: node0,node1:2 [default: where they do]
    #[arg(long, value_name = "LIST", help_heading = PROCESSES)]
    hosts: Option<String>,
    /// What starts a process on another host [default: as the job has it]
    ///
    /// It is given the host and a command.
    #[arg(long, value_name = "COMMAND", help_heading = PROCESSES, hide_short_help = true, requires = "hosts")]
    rsh: Option<String>,
    /// Where the other hosts call this one [default: as the job has it]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = PROCESSES, hide_short_help = true, requires = "hosts")]
    pub(crate) listen: Option<SocketAddr>,
    /// The answer as one object of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl ScaleArgs {
    /// The hosts that were named, if any were; `rsh` starts their processes where nothing else is said.
    pub(crate) fn named_hosts(&self, rsh: &str) -> Result<Option<Hosts>, HostsError> {
        let rsh = self.rsh.as_deref().unwrap_or(rsh);
        let of = |given: &String| given.parse::<Hosts>()?.started_by(rsh);
        self.hosts.as_ref().map(of).transpose()
    }
}
