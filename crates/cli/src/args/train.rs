//! The command line of `tensorwire train`.

use std::path::{PathBuf, absolute};

use clap::Args;
use tensorwire_train::{
    Budget, CheckpointConfig, ConfigError, StoreConfig, Strategy, TraceConfig, TrainConfig,
};

use super::headings::{CHECKPOINTS, FAILURES, MODEL, OUTPUT, PROCESSES, STRATEGY};
use super::{DEFAULTS, JobArgs, with_default};

pub(super) const SHORT: &str = "\
Examples:
  tensorwire train                            the digits, 2 workers, 2 servers
  tensorwire train --model cifar --strategy allreduce --epochs 5
  tensorwire train --hosts node0,node1        on two machines
`tensorwire train --help` has all options, their values, and more examples.";

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire train
      2 workers, 2 servers, the digits, shared memory
  tensorwire train --transport tcp
  tensorwire train --strategy local
  tensorwire train --strategy dist-sgd
  tensorwire train --strategy allreduce
      the same bits over TCP; in one process; over a key-value store; without
      servers
  tensorwire train --strategy dist-asgd --max-delay 4
  tensorwire train --strategy mpi-sgd --workers 4 --clients 2
  tensorwire train --strategy mpi-esgd --workers 4 --clients 2 --interval 64
  tensorwire train --data mnist:DIR --epochs 3
      MNIST's four unpacked files in DIR
  tensorwire train --save w.safetensors --metrics m.jsonl --json
  tensorwire train --checkpoint runs/digits
      a checkpoint each epoch, of which the last 3 stay
  tensorwire train --checkpoint runs/digits --resume runs/digits
      goes on from the newest, to the same bits
  tensorwire train --checkpoint runs/digits --checkpoint-every 20 --restarts 5
      if a process dies, all start again from the newest
  tensorwire train --workers 2..8 --checkpoint runs/digits
      goes on with fewer workers where some are lost
  tensorwire train --epochs 100 --val-every 11 --early-stop 5 \\
      --checkpoint runs/best --keep-best
      ends when it learns no more; runs/best/best is the best
  tensorwire train --val-every 50 --tensorboard runs
      evaluate on the way; `tensorboard --logdir runs` shows it
  tensorwire train --steps 30 --trace t.json
      open t.json in ui.perfetto.dev
  tensorwire train --lr 0.1 --print-config > job.toml
  tensorwire train --config job.toml --epochs 5
      options from a file; the command line wins over it
  tensorwire train --hosts node0,node1
      on two machines, over RDMA if both can, else TCP
  tensorwire train --hosts @FILE --workers 8 --servers 4 --transport verbs
  mpirun -np 4 tensorwire train
      with processes that mpirun started (see `launch --help`)

Several machines: --hosts names them. The processes go to the hosts round-robin,
workers first, then servers: with --hosts a,b:2 and 3 workers and 2 servers, a
gets worker 0 and server 0, b the others, for a host with :2 takes two in its
turn. The first line about the hosts says who runs where. This machine (its
name, one of its addresses, localhost) starts its processes itself; on every
other host they are started by `RSH HOST COMMAND`, where --rsh is RSH, and must
find this program at the same path, as well as what --data and --load name.
Nothing is copied there. The job's secret goes through standard input.
  --listen     where the other hosts call this one; without it, this machine's
               address towards the first
  --transport  auto: shm where all processes are on one host; on several, verbs
               if every host can, else tcp, with a warning that says which host
               cannot, why, and the fix. verbs: that or nothing.

A line of --metrics holds step, time (seconds since 1970), workers (that the job
had), epoch, loss, rate, samples_per_second (so far), and how the workers waited
for tensors in that step, summed over them: polls (times a tensor was asked
for), poll_misses (it was not there yet), waits (times a worker blocked),
poll_us and wait_us (microseconds lost in missed polls and in waits); with
--val-every also test_loss and test_accuracy where there was an evaluation.
`tensorwire report FILE` draws it. The summary, which is also what --json
prints, has these figures over all steps.

Exit status: 0 done; 2 something given cannot be right; 130 Ctrl-C or `stop`, 143
SIGTERM, 129 a terminal that hung up; 1 anything else: a process that died. -v
(or -vv) logs what the processes do to standard error, as TENSORWIRE_LOG=info
(or debug) does.";

#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[arg(long, alias = "num-epochs", value_name = "E", help_heading = MODEL, help = with_default("Passes over the data", Budget::EPOCHS))]
    epochs: Option<u64>,
    /// Steps, instead of epochs
    #[arg(long, alias = "max-steps", value_name = "N", help_heading = MODEL, conflicts_with = "epochs")]
    steps: Option<u64>,
    /// ps: let each worker train at its own pace
    ///
    /// Servers apply a gradient when it comes. Results depend on who was first; not with --trace.
    #[arg(long = "async", help_heading = STRATEGY, hide_short_help = true)]
    asynchronous: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    checkpoint: KeepArgs,
    /// Evaluate after every so many steps, too
    ///
    /// With the test's samples.
    #[arg(long, value_name = "STEPS", help_heading = OUTPUT)]
    val_every: Option<u64>,
    /// End when it learns no more
    ///
    /// When the test's loss was no smaller than its smallest in so many evaluations in a row.
    #[arg(long, value_name = "N", help_heading = OUTPUT, hide_short_help = true, requires = "val_every")]
    early_stop: Option<u64>,
    /// Start from the weights in this file
    ///
    /// A safetensors file, as --save writes it; or a checkpoint, or a folder of checkpoints, the newest of which is taken.
    #[arg(long, value_name = "FILE", help_heading = CHECKPOINTS)]
    load: Option<PathBuf>,
    /// Write the trained weights to this file
    ///
    /// A safetensors file, whole or not at all.
    #[arg(long, value_name = "FILE", help_heading = CHECKPOINTS)]
    save: Option<PathBuf>,
    /// Write a line of JSON a step to this file
    ///
    /// And a summary as its last line. A file of that name is replaced, but for the steps before those of a job that goes on. `-`: standard output, in the place of the results.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) metrics: Option<PathBuf>,
    /// Write an event file to this folder
    ///
    /// `tensorboard --logdir DIR` shows it.
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(crate) tensorboard: Option<PathBuf>,
    /// Trace the first steps for ui.perfetto.dev
    ///
    /// Write what every process did in the first steps, and when, to this file; ui.perfetto.dev and chrome://tracing open
    /// it.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    trace: Option<PathBuf>,
    /// How many steps to trace, from the first on; later ones cost nothing
    #[arg(long, value_name = "N", help_heading = OUTPUT, hide_short_help = true,
          default_value_t = TraceConfig::STEPS, requires = "trace")]
    trace_steps: u64,
    /// End with one line of JSON
    ///
    /// On standard output.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Start the job's processes here, whatever mpirun, srun or torchrun has set in the environment
    #[arg(long, help_heading = PROCESSES, hide_short_help = true)]
    pub(crate) no_detect: bool,
}

/// What is kept of a job, and what it goes on from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = CHECKPOINTS)]
pub(crate) struct KeepArgs {
    /// Write checkpoints of the job to this folder
    ///
    /// Of the whole job (weights, the optimizer's state, the place in the data) beside training, each a folder in DIR. One
    /// that cannot be written is a warning. Every strategy, without --snapshot. On several hosts all must reach DIR.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints
    ///
    /// The end has one in any case. [default: an epoch]
    #[arg(long, value_name = "STEPS", hide_short_help = true, requires = "checkpoint",
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// How many checkpoints stay
    ///
    /// One more between the last step and the end of the job, which may fail in its evaluation.
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = CheckpointConfig::KEEP,
          requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    /// Keep the checkpoint with the smallest loss: DIR/best
    ///
    /// Write a checkpoint after each evaluation (--val-every), too.
    #[arg(long, hide_short_help = true, requires = "checkpoint")]
    keep_best: bool,
    /// Go on from the newest checkpoint (or auto)
    ///
    /// From the newest whole one in DIR; where workers train in step, to the bits of a job that nobody stopped. --steps and
    /// --epochs count from the very first step. The number of workers and servers, and the strategy, may be others than
    /// before. auto: from the job's own checkpoints once there are any, and else from the beginning, so that one command
    /// begins and goes on.
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Start again after a failure, at most N times
    ///
    /// All processes, from the newest checkpoint; without --checkpoint from where it began. A mistake of the user's is not
    /// tried again, nor what fails twice by the same error in the same step.
    #[arg(long, alias = "max-restarts", value_name = "N", help_heading = FAILURES, default_value_t = 0)]
    restarts: u64,
    /// Seconds by which processes outlive a launcher that is killed
    ///
    /// The same command with --resume auto goes on with them, on the same host, without a step lost. What they say on
    /// standard error is no longer seen then.
    #[arg(long, value_name = "SECONDS", help_heading = FAILURES, hide_short_help = true, requires = "checkpoint",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    launcher_patience: Option<u64>,
}

/// What only a key-value store can do.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = STRATEGY)]
pub(crate) struct StoreArgs {
    /// dist-asgd, mpi-asgd: steps from the slowest to the fastest
    ///
    /// The fastest worker (or client) is at most so many steps ahead of the slowest. [default: any number]
    #[arg(long, value_name = "STEPS", hide_short_help = true)]
    max_delay: Option<u64>,
    /// dist-sgd, dist-asgd: if a worker dies, the others go on
    #[arg(long, help_heading = FAILURES, hide_short_help = true)]
    elastic: bool,
    /// dist-sgd, dist-asgd: servers write snapshots
    ///
    /// To PATH.serverN.safetensors; if one dies, a new process goes on from there, and the workers bring it up to date.
    #[arg(long, value_name = "PATH", help_heading = FAILURES, hide_short_help = true)]
    snapshot: Option<PathBuf>,
    /// Steps between two snapshots
    ///
    /// Workers keep what they pushed since the last.
    #[arg(long, value_name = "STEPS", help_heading = FAILURES, hide_short_help = true,
          default_value_t = DEFAULTS.store.snapshot_every, requires = "snapshot",
          value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_every: u64,
}

impl TrainArgs {
    pub(crate) fn config(self) -> Result<TrainConfig, ConfigError> {
        let budget = match self.steps {
            Some(steps) => Budget::Steps(steps),
            None => Budget::Epochs(self.epochs.unwrap_or(Budget::EPOCHS)),
        };
        let steps = self.trace_steps;
        let trace = self.trace.map(|path| TraceConfig { path, steps });
        let mut job = self.job;
        if self.asynchronous && job.strategy() == Strategy::Ps && !job.is_colocated() {
            // workers at paces of their own are no servers
            job.servers = job.servers.or(Some(DEFAULTS.servers));
        }
        let config = job.config(budget, None)?;
        let any_remote = config.hosts.any_remote();
        // as for the data
        let from_root = |path: PathBuf| match any_remote {
            true => absolute(&path).unwrap_or(path),
            false => path,
        };
        let load = self.load.map(from_root);
        let StoreArgs { max_delay, elastic, snapshot, snapshot_every } = self.store;
        let snapshot = snapshot.map(from_root);
        let store = StoreConfig { max_delay, elastic, snapshot, snapshot_every };
        let KeepArgs { checkpoint, resume, restarts, launcher_patience, .. } = self.checkpoint;
        let KeepArgs { checkpoint_every: every, keep, keep_best: best, .. } = self.checkpoint;
        let checkpoint =
            checkpoint.map(|path| CheckpointConfig { path: from_root(path), every, keep, best });
        let is_own = |path: &PathBuf| path.as_os_str() == CheckpointConfig::AUTO;
        let resume = resume.map(|path| if is_own(&path) { path } else { from_root(path) });
        let (save, asynchronous) = (self.save, self.asynchronous);
        let launcher_patience_ms = launcher_patience.map(|seconds| seconds * 1000);
        let config = TrainConfig { checkpoint, resume, restarts, launcher_patience_ms, ..config };
        let (evaluate_every, early_stop) = (self.val_every, self.early_stop);
        let config = TrainConfig { evaluate_every, early_stop, ..config };
        Ok(TrainConfig { load, save, asynchronous, store, trace, ..config })
    }
}
