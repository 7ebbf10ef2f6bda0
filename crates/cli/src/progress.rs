//! A progress bar where there is a terminal, a line an epoch where there is none.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::output::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) struct Bar {
    bar: ProgressBar,
    terminal: bool,
    steps: u64,
    steps_per_epoch: u64,
    start: Instant,
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
        Bar { bar, terminal, steps, steps_per_epoch, start: Instant::now() }
    }

    /// The first step begins: what came before was set-up.
    pub(crate) fn begin(&mut self) {
        self.start = Instant::now();
        self.bar.reset_eta();
    }

    /// A step is done, on all workers, and `samples` samples in all. Returns samples per second so far.
    pub(crate) fn step(&self, step: u64, loss: f32, samples: u64) -> f64 {
        let seconds = self.start.elapsed().as_secs_f64().max(1e-9);
        // fits: shown to a person
        let rate = samples as f64 / seconds;
        self.bar.set_position(step);
        self.bar.set_message(format!("loss {loss:.4}  {rate:.0} samples/s"));
        let epoch_done = step.is_multiple_of(self.steps_per_epoch) || step == self.steps;
        if !self.terminal && epoch_done {
            let epoch = step.div_ceil(self.steps_per_epoch);
            note(format_args!(
                "epoch {epoch}: step {step}/{}, loss {loss:.4}, {rate:.0} samples/s",
                self.steps
            ));
        }
        rate
    }

    /// Says something beside the bar.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        self.bar.suspend(|| note(line));
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
