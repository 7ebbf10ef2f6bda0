//! The command lines of `tensorwire status`, `scale` and `stop`.

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
it makes no step there, it goes on as before. What was made is kept.

Exit status: 0 it goes on so; 1 it does not, or not in time; 2 it cannot.";

pub(super) const STOP_EXAMPLES: &str = "\
Examples:
  tensorwire stop 12345          behind its present step, which it keeps
  tensorwire stop 12345 --now    at once: steps since its last checkpoint are lost

A job with --checkpoint DIR goes on by its own command with --resume DIR.

Exit status: 0 it has ended; 1 not in time; 2 it cannot.";

/// Seconds that are waited for where nothing else is said.
const TIMEOUT_S: u64 = 600;

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
    /// How long to wait until it goes on so; 0: not at all
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_S)]
    pub(crate) timeout: u64,
    /// The answer as one object of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// The job: its launcher's process id
    ///
    /// As `tensorwire status` lists it.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// End it at once, and not behind its present step
    #[arg(long)]
    pub(crate) now: bool,
    /// How long to wait until it has ended; 0: not at all
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_S)]
    pub(crate) timeout: u64,
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
