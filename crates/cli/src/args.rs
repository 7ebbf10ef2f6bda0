//! The command line as clap parses it: dumb structs, turned into configurations once.

mod allreduce;
mod batches;
mod bench;
mod check;
mod checkpoint;
mod clients;
mod completions;
mod doctor;
mod eval;
mod evaluation;
mod exchange;
mod graph;
mod headings;
mod hosts;
mod job;
mod kvstore;
mod launch;
mod learn;
mod models;
mod modes;
mod program;
mod repeat;
mod report;
mod simulate;
mod status;
mod step;
mod top;
mod train;
mod transfer;
mod wire;
mod write;

use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use tensorwire_train::TrainConfig;

pub(crate) use allreduce::AllreduceArgs;
pub(crate) use batches::BatchesArgs;
pub(crate) use bench::{BenchArgs, Scenario, SocketsArgs};
pub(crate) use check::CheckArgs;
pub(crate) use checkpoint::{CheckpointArgs, CheckpointCommand};
pub(crate) use clients::read_table;
pub(crate) use completions::{CompletionsArgs, ManArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use eval::EvalArgs;
pub(crate) use evaluation::EvaluationArgs;
pub(crate) use exchange::ExchangeArg;
pub(crate) use graph::{GraphArgs, ShownArgs};
pub(crate) use headings::PROGRAM;
pub(crate) use job::{JobArgs, Workers};
pub(crate) use kvstore::KvstoreArgs;
pub(crate) use launch::LaunchArgs;
pub(crate) use learn::LearnArgs;
pub(crate) use models::ModelsArgs;
pub(crate) use modes::ModesArgs;
pub(crate) use program::{ColorArg, ProgramArgs};
pub(crate) use report::{ReportArgs, ReportFormat};
pub(crate) use simulate::SimulateArgs;
pub(crate) use status::{ScaleArgs, StatusArgs, StopArgs};
pub(crate) use step::StepArgs;
pub(crate) use top::TopArgs;
pub(crate) use train::TrainArgs;
pub(crate) use transfer::TransferArgs;
pub(crate) use wire::{TransportArg, WireArgs};
pub(crate) use write::WriteArgs;

use check::tolerance;

/// What a job is where nothing else is said.
static DEFAULTS: LazyLock<TrainConfig> = LazyLock::new(TrainConfig::default);

/// The help of an option that may be left out, and what it is then.
fn with_default(what: &str, default: impl std::fmt::Display) -> String {
    format!("{what} [default: {default}]")
}

/// Distributed deep learning in which a remote machine is just a device.
///
/// A tensor that crosses processes is written by one one-sided write from where the sender's operator
/// put it to where the receiver's next operator reads it; on one host it is read where it lies.
#[derive(Debug, Parser)]
#[command(name = "tensorwire", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The job of a command that takes --config; none where it makes no sense, which is said when it is run.
    pub(crate) fn job(self) -> Option<TrainConfig> {
        match self.command {
            Command::Train(train) => train.config().ok(),
            Command::Bench(BenchArgs { scenario: Scenario::Step(step) }) => step.config().ok(),
            _ => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model, in processes here or on several machines
    #[command(after_help = train::SHORT, after_long_help = train::EXAMPLES)]
    Train(Box<TrainArgs>),
    /// Evaluate saved weights, or a checkpoint, without training
    #[command(visible_alias = "evaluate", aliases = ["validate", "test"], after_help = eval::EXAMPLES)]
    Eval(EvalArgs),
    /// Run a subcommand on several machines
    ///
    /// Or say what this process is under mpirun, srun or torchrun.
    #[command(after_long_help = launch::EXAMPLES)]
    Launch(LaunchArgs),
    /// Say how the jobs stand that you run on this host
    ///
    /// Each process's step, and where it stands if it does not move.
    #[command(after_long_help = status::EXAMPLES)]
    Status(StatusArgs),
    /// Show live how the jobs run
    ///
    /// Samples/s, bytes sent, time spent waiting, and where a process stands.
    #[command(after_long_help = top::EXAMPLES)]
    Top(TopArgs),
    /// Have a running job go on with more or fewer workers, or elsewhere
    ///
    /// A job of --workers MIN..MAX, behind its present step.
    #[command(after_long_help = status::SCALE_EXAMPLES)]
    Scale(ScaleArgs),
    /// End a running job behind its present step
    ///
    /// As Ctrl-C where it was started; one that keeps no checkpoint ends by --now alone.
    #[command(after_long_help = status::STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Show what crosses between processes
    ///
    /// How many bytes, and where it lives.
    Graph(Box<GraphArgs>),
    /// List the models: variables, parameters, size
    Models(ModelsArgs),
    /// Write what a worker is fed in its first steps to a file
    ///
    /// The same batches for another framework.
    Batches(BatchesArgs),
    /// Look at checkpoints, or take the weights out of one
    Checkpoint(CheckpointArgs),
    /// Measure
    ///
    /// Every benchmark verifies its data and prints the machine's limit beside it.
    Bench(BenchArgs),
    /// Say what a step would take on a simulated cluster
    #[command(after_long_help = simulate::EXAMPLES)]
    Simulate(SimulateArgs),
    /// Make a page of plots and tables of measurements
    ///
    /// Of what `bench` and bench/peers measured, or of training runs.
    #[command(after_long_help = report::EXAMPLES)]
    Report(ReportArgs),
    /// Say what this machine can do, what is wrong, and the fix
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print completions for a shell
    #[command(after_long_help = completions::EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
    /// Take part in a job (started by the launcher, which writes the assignment to standard input)
    #[command(hide = true)]
    Member {
        /// What to log, as the launcher was told
        #[arg(long, hide = true)]
        log: Option<String>,
    },
    /// Become the command in the arguments, and end when the parent does (how a launcher runs --rsh)
    #[command(hide = true)]
    RunWithParent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_bench::QUIET_RATE;
    use tensorwire_nn::{Method, Optimizer};

    fn parsed(line: &str) -> Command {
        let words = std::iter::once("tensorwire").chain(line.split_whitespace());
        Arguments::try_parse_from(words).unwrap().command
    }

    fn train(line: &str) -> TrainConfig {
        match parsed(line) {
            Command::Train(args) => args.config().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn step(line: &str) -> TrainConfig {
        match parsed(line) {
            Command::Bench(BenchArgs { scenario: Scenario::Step(args) }) => args.config().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_given_is_as_the_library_has_it() {
        assert_eq!(train("train"), TrainConfig::default());
        let other = TrainConfig {
            transport: tensorwire_launch::Transport::Tcp,
            optimizer: Method::Momentum { momentum: 0.5 }.at(0.05),
            step_deadline_ms: 1500,
            dynamic_bytes_max: 64 << 20,
            ..TrainConfig::default()
        };
        let given = "--transport tcp --momentum 0.5 --step-deadline 1.5 --dynamic-memory 64MiB";
        assert_eq!(train(&format!("train {given}")), other);
    }

    #[test]
    fn a_model_learns_by_what_suits_it_unless_something_is_said() {
        let of = |line: &str| train(&format!("train {line}")).optimizer;
        let momentum = |rate| Method::Momentum { momentum: 0.9 }.at(rate);
        assert_eq!(of("--model resnet50"), momentum(0.05));
        assert_eq!(of("--model alexnet"), momentum(0.01));
        assert_eq!(of("--model gpt-mini"), Optimizer::adamw(1e-3));
        assert_eq!(of("--model gpt-mini --weight-decay 0.1"), Optimizer::adamw(1e-3).decaying(0.1));
        assert_eq!(of("--model gpt-mini --lr 0.01"), momentum(0.01));
        assert_eq!(of("--model gpt-mini --optimizer momentum"), momentum(0.05));
        assert_eq!(of("--model alexnet --optimizer momentum"), momentum(0.01));
        assert_eq!(of("--model alexnet --optimizer adam"), Optimizer::adam(1e-3));
        assert_eq!(of("--momentum 0.5"), Method::Momentum { momentum: 0.5 }.at(0.05));
        let parsed = parsed("train --model gpt-mini --momentum 0.5");
        let Command::Train(args) = parsed else { panic!("{parsed:?}") };
        assert!(args.config().unwrap_err().to_string().contains("--momentum changes nothing here"));
    }

    /// At `train`'s own rate alexnet's loss is no number after a few steps of random labels: its first loss is ln 10, and
    /// a step of rate r changes it by about r·|gradient|², which has to stay far below that. What a step takes does not
    /// depend on the rate.
    #[test]
    fn a_measured_step_learns_at_a_rate_at_which_no_model_diverges() {
        assert_eq!(step("bench step --model alexnet").optimizer.rate, QUIET_RATE);
        assert_eq!(step("bench step --model alexnet --lr 0.05").optimizer.rate, 0.05);
        assert_eq!(
            step("bench step --model gpt-mini").optimizer,
            Method::Momentum { momentum: 0.9 }.at(QUIET_RATE)
        );
        let help = <Arguments as clap::CommandFactory>::command()
            .find_subcommand_mut("bench")
            .and_then(|bench| bench.find_subcommand_mut("step"))
            .map(|step| step.render_long_help().to_string())
            .unwrap();
        assert!(help.contains("bench step: 0.0001"), "{help}");
    }
}
