//! The subcommands, one a file. The only place that reads arguments and environment.

mod args;
mod batches;
mod bench;
mod doctor;
mod enlist;
mod failure;
mod graph;
mod job;
mod launch;
mod member;
mod metrics;
mod models;
pub(crate) mod output;
mod progress;
mod report;
mod simulate;
mod table;
mod tether;
mod train;

use std::io::IsTerminal;

use clap::Parser;

pub(crate) use failure::Failure;

use args::{Arguments, Command};

/// Parses the arguments and does what they say.
pub(crate) fn run() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    start_log();
    dispatch(arguments.command)
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(train) => train::run(train),
        Command::Launch(launch) => launch::run(launch),
        Command::Graph(graph) => graph::run(graph),
        Command::Models => models::run(),
        Command::Batches(args) => batches::run(args),
        Command::Bench(bench) => bench::run(bench),
        Command::Simulate(args) => simulate::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Member => member::run(),
        Command::Tether { command } => tether::run(&command),
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
