//! The program: one file a command. The only place that reads arguments and environment, and minds signals. Exit status 0: done;
//! 2: the user's mistake; 128 and its number: a signal told it to end; 1: anything else.
#![forbid(unsafe_code)]

mod args;
mod batches;
mod bench;
mod checkpoint;
mod command_line;
mod completions;
mod config;
mod doctor;
mod eval;
mod failure;
mod graph;
mod hints;
mod job;
mod launch;
mod log;
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
mod worked_out;

use std::process::ExitCode;

pub(crate) use failure::Failure;

use args::{Arguments, Command};

fn main() -> ExitCode {
    tensorwire::program::raise_open_files();
    if let Err(no_room) = tensorwire::program::check_room().map_err(Failure::from) {
        // not by a thread for last words, which would take what memory is left
        output::say(&no_room);
        return ExitCode::from(no_room.status());
    }
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
    match command_line::read(std::env::args_os().collect())? {
        Some(arguments) => begin(arguments),
        None => Ok(()),
    }
}

/// Begins to log, and does what the arguments say.
fn begin(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { program, command } = arguments;
    let told = match &command {
        Command::Member { log } => log.clone(),
        _ => None,
    };
    match command {
        // another command line is inside
        Command::Launch(launch) if !launch.detect => launch::run(launch, program),
        command => {
            log::start(program, told)?;
            dispatch(command)
        }
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(train) => train::run(*train),
        Command::Eval(args) => eval::run(args),
        Command::Launch(args) => launch::detect(args.json),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Scale(args) => status::scale(&args),
        Command::Stop(args) => status::stop(&args),
        Command::Graph(graph) => graph::run(*graph),
        Command::Models(args) => models::run(&args),
        Command::Batches(args) => batches::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Bench(bench) => bench::run(bench),
        Command::Simulate(args) => simulate::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Member { .. } => member::run(),
        Command::RunWithParent { command } => tensorwire::program::run_with_parent(command),
    }
}
