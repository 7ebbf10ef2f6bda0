//! What a job says on the screen while it runs.

use tensorwire_launch::{
    JobUpdate, RanksByHost, awaiting, ending_behind, nothing_moves, restarting, was_resized,
};
use tensorwire_train::{FinishedStep, Prepared, TrainUpdate};

use crate::program;

/// Says what of a job's beginning its user may not know: with which weights it begins, where their classes were others, and who runs
/// where, if any of them runs on another machine.
pub(super) fn say_how_it_begins(prepared: &Prepared) {
    if let Some(weights) = prepared.begins_with().filter(|it| it.other_classes.is_some()) {
        program::say(&weights.to_string());
    }
    let (hosts, roles) = (&prepared.config.hosts, &prepared.roles());
    if hosts.any_remote() {
        program::say(&format!("hosts: {}", RanksByHost { hosts, roles }));
    }
}

/// Says what happens to a job beside its steps. `hears_another`: a second Ctrl-C ends it at once.
pub(super) fn say_what_happened(update: &TrainUpdate, hears_another: bool) {
    match update {
        JobUpdate::Transport(choice) => program::say(&choice.to_string()),
        JobUpdate::Restarting { why, step, restart, most, pause } => {
            program::say(&restarting(why, *step, (*restart, *most), *pause));
        }
        JobUpdate::AwaitsHost { why, host } => program::say(&awaiting(why, host)),
        JobUpdate::WasResized { workers, .. } => program::say(&was_resized(workers)),
        JobUpdate::TakenOver { step, .. } => {
            program::say(&format!("the job's processes go on with this launcher, in step {step}"));
        }
        JobUpdate::NotTakenOver { why, step } => program::say(&format!(
            "the processes of an earlier launcher were ended ({why}); from step {step}"
        )),
        JobUpdate::Resizing { why, step, .. } => program::say(&format!("{why}, from step {step}")),
        JobUpdate::Said { line } => program::say(line),
        JobUpdate::Ending { step, cause } => {
            if let Some(line) = ending_behind(*step, *cause, hears_another) {
                program::say(&line);
            }
        }
        JobUpdate::StandsStill { members } => program::say(&nothing_moves(members)),
        _ => {}
    }
}

/// True if there is a line after a step of a job of `all` steps: every so many, at the end of an epoch and of the job, and with
/// what was evaluated.
pub(super) fn is_shown(finished: &FinishedStep, every: u64, epoch: u64, all: u64) -> bool {
    let step = finished.step;
    let ends = step.is_multiple_of(epoch) || step == all;
    ends || finished.evaluation.is_some() || every > 0 && step.is_multiple_of(every)
}
