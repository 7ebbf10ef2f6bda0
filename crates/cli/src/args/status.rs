//! The command lines of `tensorwire status` and `tensorwire scale`.

use clap::Args;

use super::hosts::HostArgs;

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

Each host is asked first; if one does not answer, the job stays as it is. What was
made is kept, and nothing is made twice.";

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
    /// Workers that it goes on with: a part of MAX, and at least MIN
    #[arg(value_name = "WORKERS")]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// The answer as one object of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
