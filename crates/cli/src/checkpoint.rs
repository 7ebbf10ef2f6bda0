//! `tensorwire checkpoint`: what there is to go on from, and its weights as one file.

use std::path::Path;

use serde::Serialize;

use tensorwire_base::{counted, human_bytes};
use tensorwire_train::{CheckpointError, CheckpointFolder, CheckpointState, FoundCheckpoint};

use super::args::{CheckpointArgs, CheckpointCommand};
use super::output::{json_line, note, print};
use super::{Failure, table::table};

/// How often a folder is listed whose job removes all that is read.
const LISTS_MAX: usize = 20;

pub(crate) fn run(args: CheckpointArgs) -> Result<(), Failure> {
    match args.command {
        CheckpointCommand::Show { folder, json } => show(&folder, json),
        CheckpointCommand::Convert { checkpoint, file, json } => {
            let found = CheckpointFolder::new(&checkpoint).found()?;
            let newest = found.first().ok_or(CheckpointError::Empty { path: checkpoint })?;
            let state = newest.convert(&file)?;
            if json {
                let averages = state.ema.is_some();
                let file = file.display().to_string();
                let written =
                    serde_json::json!({ "step": state.step, "averages": averages, "file": file });
                return print(json_line(&written)?);
            }
            let what = if state.ema.is_some() { "averages of weights" } else { "weights" };
            note(format_args!("{what} of step {} written to {}", state.step, file.display()));
            Ok(())
        }
    }
}

/// What `--json` prints of one checkpoint.
#[derive(Serialize)]
struct ShownCheckpoint<'a> {
    step: u64,
    /// Every file is there and is as it was written.
    whole: bool,
    /// What is wrong with it.
    damage: Option<String>,
    /// Passes over the data until then; with all that follows, of a whole one.
    epochs: Option<f64>,
    model: Option<&'a str>,
    data: Option<&'a str>,
    strategy: Option<&'a str>,
    workers: Option<u32>,
    servers: Option<u32>,
    files: Option<usize>,
    bytes: Option<u64>,
}

fn show(path: &Path, json: bool) -> Result<(), Failure> {
    let folder = CheckpointFolder::new(path);
    show_listed(path, &mut || folder.found(), json)
}

/// Shows what `list` finds at `path`.
fn show_listed(
    path: &Path,
    list: &mut dyn FnMut() -> Result<Vec<FoundCheckpoint>, CheckpointError>,
    json: bool,
) -> Result<(), Failure> {
    let (mut rows, mut damages, mut lists) = (Vec::new(), Vec::new(), 0);
    // where its job has removed all that was listed, there are newer ones
    while rows.is_empty() && lists < LISTS_MAX {
        lists += 1;
        let found = list()?;
        if found.is_empty() {
            break;
        }
        for checkpoint in &found {
            let verified = checkpoint.verified();
            if matches!(verified, Err(CheckpointError::Gone { .. })) {
                continue;
            }
            if json {
                print(json_line(&ShownCheckpoint::new(checkpoint.step, &verified))?)?;
            }
            match verified {
                Ok(state) => rows.push(row(&state)),
                Err(error) => {
                    rows.push(vec![checkpoint.step.to_string(), "damaged".to_string()]);
                    damages.push(error.to_string());
                }
            }
        }
    }
    if rows.is_empty() {
        return Err(CheckpointError::Empty { path: path.to_path_buf() }.into());
    }
    if !json {
        let header = ["step", "", "epochs", "job", "files", "size"];
        print(table(&header, &rows, &[0, 2, 4, 5]))?;
    }
    match damages.is_empty() {
        true => Ok(()),
        false => Err(Failure::other(damages.join("; "))),
    }
}

impl<'a> ShownCheckpoint<'a> {
    fn new(
        step: u64,
        verified: &'a Result<CheckpointState, CheckpointError>,
    ) -> ShownCheckpoint<'a> {
        let state = verified.as_ref().ok();
        ShownCheckpoint {
            step,
            whole: state.is_some(),
            damage: verified.as_ref().err().map(CheckpointError::to_string),
            epochs: state.map(epochs),
            model: state.map(|state| state.model.as_str()),
            data: state.map(|state| state.data.as_str()),
            strategy: state.map(|state| state.strategy.name()),
            workers: state.map(|state| state.workers),
            servers: state.map(|state| state.servers),
            files: state.map(|state| state.files.len()),
            bytes: state.map(bytes),
        }
    }
}

/// Passes over the data that a checkpoint is behind.
fn epochs(state: &CheckpointState) -> f64 {
    let position = state.position;
    // fits: shown to a person
    position.epoch as f64 + position.step as f64 / position.steps_per_epoch.max(1) as f64
}

fn bytes(state: &CheckpointState) -> u64 {
    state.files.values().map(|file| file.bytes).fold(0, u64::saturating_add)
}

fn row(state: &CheckpointState) -> Vec<String> {
    let CheckpointState { model, data, strategy, workers, servers, files, .. } = state;
    vec![
        state.step.to_string(),
        "whole".to_string(),
        format!("{:.2}", epochs(state)),
        format!(
            "{model} on {data}, {}{}{}",
            strategy.name(),
            counted(*workers as usize, "worker"),
            counted(*servers as usize, "server")
        ),
        files.len().to_string(),
        human_bytes(bytes(state)),
    ]
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::user(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_went_that_was_listed_there_is_no_empty_table() {
        let folder = tempfile::tempdir().unwrap();
        let gone = FoundCheckpoint::at(folder.path().join("step-00000005")).unwrap();
        let mut lists = 0;
        let mut list = || {
            lists += 1;
            Ok(if lists < 3 { vec![gone.clone()] } else { Vec::new() })
        };
        let error = show_listed(folder.path(), &mut list, false).unwrap_err();
        assert!(error.message.starts_with("there is no checkpoint in "), "{error}");
        assert_eq!(lists, 3);
    }
}
