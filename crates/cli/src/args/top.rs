//! The command line of `tensorwire top`.

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire top             all jobs whose launcher runs here; arrows choose one, q ends
  tensorwire top 12345       the processes of one
  tensorwire top --once      one table, and done

Columns:
  sent/s    bytes that a process writes to others; what is read where it lies is none of it
  waiting   share of its time in polls that found nothing and in waits: communication that nothing hid
  hidden    share of the time in which tensors were under way that kernels ran, too
  polls/s   times that it asked whether a tensor is there

Columns of a store's servers:
  pushed/s, pulled/s    bytes that came from workers, and went to them
  pushes/s, pulls/s     how many values those were";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// The job: its launcher's process id
    ///
    /// As `tensorwire status` lists it.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Print one table and end, as where standard output is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}
