//! A progress bar where there is a terminal, a line an epoch where there is none.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tensorwire_train::FinishedStep;

use super::output::note;

pub(crate) struct Bar {
    bar: ProgressBar,
    terminal: bool,
    steps: u64,
    steps_per_epoch: u64,
}

impl Bar {
    pub(crate) fn new(steps: u64, steps_per_epoch: u64) -> Bar {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = "{bar:30} {pos}/{len} steps  {msg}  {elapsed} (left {eta})";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━━╌"));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar { bar, terminal, steps, steps_per_epoch }
    }

    /// So many steps were made by an earlier job.
    pub(crate) fn goes_on(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// The first step begins: what came before was set-up.
    pub(crate) fn begin(&self) {
        self.bar.reset_eta();
    }

    /// A step is done, on all workers.
    pub(crate) fn step(&self, done: &FinishedStep) {
        let FinishedStep { step, epoch, loss, samples_per_second: rate, .. } = *done;
        self.bar.set_position(step);
        self.bar.set_message(format!("loss {loss:.4}  {rate:.0} samples/s"));
        let epoch_done = step.is_multiple_of(self.steps_per_epoch) || step == self.steps;
        if !self.terminal && epoch_done {
            note(format_args!(
                "epoch {epoch}: step {step}/{}, loss {loss:.4}, {rate:.0} samples/s",
                self.steps
            ));
        }
    }

    /// Says something beside the bar.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        self.bar.suspend(|| note(line));
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
