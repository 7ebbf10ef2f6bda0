//! The command lines of `tensorwire status` and `tensorwire scale`.

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire status                   all jobs whose launcher runs here
  tensorwire status 12345             the processes of one
  tensorwire top 12345                the same, live
  tensorwire status 12345 --json | jq '.members[].still'";

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
    /// The answer as one object of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
