//! The command line as clap parses it: dumb structs, turned into configurations once.

mod allreduce;
mod batches;
mod bench;
mod clients;
mod doctor;
mod evaluation;
mod exchange;
mod graph;
mod job;
mod kvstore;
mod launch;
mod modes;
mod report;
mod simulate;
mod step;
mod train;
mod transfer;
mod wire;
mod write;

use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use tensorwire_train::TrainConfig;

pub(crate) use allreduce::AllreduceArgs;
pub(crate) use batches::BatchesArgs;
pub(crate) use bench::{BenchArgs, Scenario};
pub(crate) use clients::read_table;
pub(crate) use doctor::DoctorArgs;
pub(crate) use evaluation::EvaluationArgs;
pub(crate) use exchange::ExchangeArg;
pub(crate) use graph::GraphArgs;
pub(crate) use job::JobArgs;
pub(crate) use kvstore::KvstoreArgs;
pub(crate) use launch::LaunchArgs;
pub(crate) use modes::ModesArgs;
pub(crate) use report::ReportArgs;
pub(crate) use simulate::SimulateArgs;
pub(crate) use step::StepArgs;
pub(crate) use train::TrainArgs;
pub(crate) use transfer::TransferArgs;
pub(crate) use wire::{TransportArg, WireArgs};
pub(crate) use write::WriteArgs;

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
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model; starts its own processes, on this machine or on several
    #[command(after_help = train::EXAMPLES)]
    Train(TrainArgs),
    /// Run a subcommand on several machines, or say what this process is under mpirun, srun or torchrun
    #[command(after_help = launch::EXAMPLES)]
    Launch(LaunchArgs),
    /// Show what crosses between processes, how many bytes, and where it lives
    Graph(GraphArgs),
    /// List the models: variables, parameters, size
    Models,
    /// Write what a worker is fed in its first steps to a file: the same batches for another framework
    Batches(BatchesArgs),
    /// Measure; every benchmark verifies its data and prints the machine's limit beside it
    Bench(BenchArgs),
    /// Say what a step would take on a simulated cluster
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(SimulateArgs),
    /// Make one page of plots and tables of what `bench` and bench/peers measured
    Report(ReportArgs),
    /// Say what this machine can do, what is wrong, and the fix
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(DoctorArgs),
    /// Take part in a job (started by the launcher, which writes the assignment to standard input)
    #[command(hide = true)]
    Member,
    /// Become the command in the arguments, and end when the parent does (how a launcher runs --rsh)
    #[command(hide = true)]
    RunWithParent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}
