//! The program: one file a command. The only place that reads arguments and environment, and minds signals. Exit status 0: done;
//! 2: the user's mistake; 1: anything else.
#![forbid(unsafe_code)]

mod args;
mod batches;
mod bench;
mod checkpoint;
mod doctor;
mod failure;
mod graph;
mod job;
mod launch;
mod member;
mod metrics;
mod models;
mod output;
mod progress;
mod rendezvous;
mod report;
mod simulate;
mod status;
mod table;
mod top;
mod train;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

pub(crate) use failure::Failure;

use args::{Arguments, Command};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::last_words(failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}

/// Parses the arguments and does what they say.
fn run() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    start_log();
    dispatch(arguments.command)
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(train) => train::run(*train),
        Command::Launch(launch) => launch::run(launch),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Scale(args) => status::scale(&args),
        Command::Graph(graph) => graph::run(*graph),
        Command::Models => models::run(),
        Command::Batches(args) => batches::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Bench(bench) => bench::run(bench),
        Command::Simulate(args) => simulate::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Member => member::run(),
        Command::RunWithParent { command } => tensorwire::program::run_with_parent(command),
    }
}

/// Warnings and what `TENSORWIRE_LOG` asks for, on standard error.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .with_env_var("TENSORWIRE_LOG")
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
}
