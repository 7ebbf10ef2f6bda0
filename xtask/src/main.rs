//! `cargo xtask <task>`: tasks of the project itself. Parses arguments and prints; the tasks are in
//! the library, where tests reach them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project itself")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Hold the code against ARCHITECTURE.md: who may use whom, and which words live where
    Tidy,
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Tidy => tidy(),
    }
}

#[expect(clippy::print_stdout, reason = "a program that people run")]
fn tidy() -> ExitCode {
    match xtask::tidy::check(xtask::root()) {
        Ok(complaints) if complaints.is_empty() => {
            println!("tidy");
            ExitCode::SUCCESS
        }
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| println!("{complaint}"));
            eprintln!("{} complaints", complaints.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
