//! The command line of `tensorwire launch`.

use std::net::SocketAddr;

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire launch --hosts @FILE train --steps 100
      the same as `tensorwire train --hosts @FILE --steps 100`
  tensorwire launch --hosts node0,node1 bench step
      any subcommand that has --hosts
  mpirun -np 4 tensorwire train
      no launch: each process finds out what it is
  srun -n 4 tensorwire launch --detect
      and this says what it found

Under mpirun, srun, torchrun, mpiexec, a ps-lite tracker or a Kubernetes Indexed
Job `train` starts no process of its own but one: that of rank 0 leads the job
and computes, the others call it. docs/several-machines.md has a whole example
of each, the variables that are read, and what TENSORWIRE_SECRET protects.";

#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// Where they run: node0,node1:2 or @FILE
    ///
    /// `node0,node1:2` (:2 = two in a turn), or `@FILE` with a host in each line.
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,
    /// Starts a process on another host [default: ssh]
    ///
    /// It is given the host and a command line.
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    pub(crate) rsh: Option<String>,
    /// Where the other hosts call this one
    ///
    /// [default: this machine's address towards the first of them]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "hosts")]
    pub(crate) listen: Option<SocketAddr>,
    /// Say what this process is, and run nothing
    ///
    /// As its environment has it.
    #[arg(long, conflicts_with_all = ["hosts", "command"])]
    pub(crate) detect: bool,
    /// It as one object of JSON
    #[arg(long, requires = "detect")]
    pub(crate) json: bool,
    /// A subcommand with --hosts: `train …`, `bench step …`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "detect",
        value_name = "SUBCOMMAND"
    )]
    pub(crate) command: Vec<String>,
}
