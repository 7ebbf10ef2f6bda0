//! The command lines of `tensorwire status` and `tensorwire scale`.

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire status                   all jobs whose launcher runs here
  tensorwire status 12345             the processes of one
  watch -n 1 tensorwire status 12345  the same, again and again
  tensorwire status 12345 --json | jq '.members[].still'";

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The process id of the job's launcher, as listed
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// One object of JSON a job
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// The process id of the job's launcher, as `status` lists it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Workers to go on with: a divisor of MAX, at least MIN
    #[arg(value_name = "WORKERS")]
    pub(crate) workers: u32,
}
