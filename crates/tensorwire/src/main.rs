//! The front door: arguments, signals, exit status. Exit 0: done; 2: the user's mistake; 1: anything else.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            cli::output::last_words(failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}
