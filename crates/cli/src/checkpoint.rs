//! `tensorwire checkpoint`: what there is to go on from, and its weights as one file.

use std::path::Path;

use tensorwire_base::human_bytes;
use tensorwire_train::{CheckpointError, CheckpointFolder, CheckpointState};

use super::args::{CheckpointArgs, CheckpointCommand};
use super::output::{note, print};
use super::{Failure, table::table};

pub(crate) fn run(args: CheckpointArgs) -> Result<(), Failure> {
    match args.command {
        CheckpointCommand::Show { folder } => show(&folder),
        CheckpointCommand::Convert { checkpoint, file } => {
            let found = CheckpointFolder::new(&checkpoint).found()?;
            let newest = found.first().ok_or(CheckpointError::Empty { path: checkpoint })?;
            let state = newest.convert(&file)?;
            let what = if state.ema.is_some() { "averages of weights" } else { "weights" };
            note(format_args!("{what} of step {} written to {}", state.step, file.display()));
            Ok(())
        }
    }
}

fn show(path: &Path) -> Result<(), Failure> {
    let found = CheckpointFolder::new(path).found()?;
    if found.is_empty() {
        return Err(CheckpointError::Empty { path: path.to_path_buf() }.into());
    }
    let (mut rows, mut damages) = (Vec::new(), Vec::new());
    for checkpoint in &found {
        match checkpoint.verified() {
            Ok(state) => rows.push(row(&state)),
            Err(error) => {
                rows.push(vec![checkpoint.step.to_string(), "damaged".to_string()]);
                damages.push(error.to_string());
            }
        }
    }
    let header = ["step", "", "epochs", "job", "files", "size"];
    print(table(&header, &rows, &[0, 2, 4, 5]))?;
    match damages.is_empty() {
        true => Ok(()),
        false => Err(Failure::other(damages.join("; "))),
    }
}

fn row(state: &CheckpointState) -> Vec<String> {
    let CheckpointState { position, model, data, strategy, workers, servers, files, .. } = state;
    // fits: shown to a person
    let part = position.step as f64 / position.steps_per_epoch.max(1) as f64;
    let bytes: u64 = files.values().map(|file| file.bytes).fold(0, u64::saturating_add);
    vec![
        state.step.to_string(),
        "whole".to_string(),
        // fits: shown to a person
        format!("{:.2}", position.epoch as f64 + part),
        format!("{model} on {data}, {}, {workers} workers, {servers} servers", strategy.name()),
        files.len().to_string(),
        human_bytes(bytes),
    ]
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::user(error)
    }
}
