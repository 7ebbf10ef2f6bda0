//! Shows a job while it runs: the bar, what happens to its processes, and writes each step to the files
//! that are to have it (`--metrics`, `--tensorboard`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorwire_launch::{
    JobUpdate, awaiting, ending_behind, nothing_moves, restarting, was_resized,
};
use tensorwire_train::{
    EventFile, FinishedStep, LossGrowth, Prepared, Progress, StepAggregator, TrainUpdate,
};

use crate::Failure;
use crate::metrics::Metrics;
use crate::progress::Bar;

/// Shows what is said of a job.
pub(super) struct Watcher {
    pub(super) bar: Bar,
    /// The last step that all workers have finished.
    pub(super) finished: Arc<AtomicU64>,
    roles: Vec<String>,
    pub(super) steps: StepAggregator,
    growth: LossGrowth,
    /// A second Ctrl-C ends the job at once.
    pub(super) hears_another: bool,
    pub(super) metrics: Metrics,
    /// For TensorBoard.
    pub(super) events: Option<EventFile>,
    /// The first step that could not be written.
    pub(super) failure: Option<Failure>,
}

impl Watcher {
    pub(super) fn new(prepared: &Prepared, metrics: Metrics, events: Option<EventFile>) -> Watcher {
        let bar = Bar::new(prepared.steps(), prepared.steps_per_epoch());
        bar.goes_on(prepared.steps_done());
        Watcher {
            bar,
            finished: Arc::new(AtomicU64::new(prepared.steps_done())),
            roles: prepared.roles(),
            steps: StepAggregator::new(prepared),
            growth: LossGrowth::default(),
            hears_another: true,
            metrics,
            events,
            failure: None,
        }
    }

    /// The first step of a process that trains alone begins.
    pub(super) fn begin(&mut self) {
        self.steps.begin();
        self.bar.begin();
    }

    /// A process that trains alone did a step.
    pub(super) fn all_did(&mut self, progress: &Progress) {
        let step = self.steps.all_did(progress);
        self.step_done(&step);
    }

    /// Nothing more will be said.
    pub(super) fn end(&self) {
        self.bar.clear();
    }

    pub(super) fn update(&mut self, update: TrainUpdate) {
        self.steps.update(&update);
        match update {
            JobUpdate::Started { .. }
            | JobUpdate::Clock { .. }
            | JobUpdate::Recorded { .. }
            | JobUpdate::Progress { .. } => {}
            JobUpdate::Shrunk { rank, why, left } => {
                let others =
                    if left == 1 { "1 worker goes" } else { &format!("{left} workers go") };
                let role = self.roles.get(rank.index()).map_or("worker", String::as_str);
                self.bar.say(format_args!("{role} was lost: {why}; {others} on"));
            }
            JobUpdate::Replacing { server, rank, why, by } => self.bar.say(format_args!(
                "server {server} (rank {rank}) was lost: {why}; rank {by} is to take its place"
            )),
            JobUpdate::Replaced { server, by } => self.bar.say(format_args!(
                "rank {by} is server {server} now; the workers bring it up to date"
            )),
            JobUpdate::Listening { at } => {
                self.bar.say(format_args!("processes on other hosts call this machine at {at}"));
            }
            JobUpdate::Transport(choice) => self.bar.say(choice),
            JobUpdate::Said { line } => self.bar.say(line),
            JobUpdate::Introduced => self.bar.begin(),
            JobUpdate::Restarting { why, step, restart, most, pause } => {
                self.bar.say(restarting(&why, step, (restart, most), pause));
                self.bar.goes_on(step);
            }
            JobUpdate::AwaitsHost { why, host } => self.bar.say(awaiting(&why, &host)),
            JobUpdate::WasResized { roles, workers } => {
                self.bar.say(was_resized(&workers));
                self.roles = roles;
            }
            JobUpdate::TakenOver { step, told } => {
                self.bar.say(format_args!(
                    "the job's processes go on with this launcher, in step {step}, and not from a checkpoint"
                ));
                self.bar.goes_on(told);
            }
            JobUpdate::NotTakenOver { why, step } => {
                self.bar.say(format_args!(
                    "the processes of an earlier launcher were ended ({why}); from step {step}"
                ));
                self.bar.goes_on(step);
            }
            JobUpdate::StandsStill { members } => self.bar.say(nothing_moves(&members)),
            JobUpdate::Resizing { why, step, roles, .. } => {
                self.bar.say(format_args!("{why}, from step {step}"));
                self.bar.goes_on(step);
                self.roles = roles;
            }
            JobUpdate::Ending { step, cause } => {
                if let Some(line) = ending_behind(step, cause, self.hears_another) {
                    self.bar.say(line);
                }
            }
        }
        while let Some(step) = self.steps.take() {
            self.step_done(&step);
        }
    }

    fn step_done(&mut self, step: &FinishedStep) {
        self.bar.step(step);
        if let Some(warning) = self.growth.step(step) {
            self.bar.say(format_args!("warning: {warning}; if it does not fall again, lower --lr"));
        }
        self.finished.store(step.step, Ordering::Relaxed);
        let written = self.metrics.line(step);
        let shown = self.events.as_mut().map_or(Ok(()), |events| events.step(step));
        if let Err(failure) = written.and(shown.map_err(Failure::from)) {
            if self.failure.is_none() {
                self.bar.say(format_args!(
                    "{}; the job goes on, and this step is left out",
                    failure.message
                ));
            }
            self.failure.get_or_insert(failure);
        }
    }
}
