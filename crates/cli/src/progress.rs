//! How far a job is: a line that keeps to the terminal's width, where there is one, and everywhere a line for each epoch and
//! each evaluation.

use std::fmt::{Display, Write};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use console::Term;
use indicatif::{
    HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike,
};
use tensorwire::program::in_time;
use tensorwire_train::{FinishedStep, StepEvaluation};

use super::output::{is_quiet, note};

/// Columns that stay free, so that the `^C` of a terminal stands on the bar's line and vanishes with it.
const FREE: u16 = 3;
/// Times a second that the line is drawn, at most.
const DRAWN_HZ: u8 = 20;
/// And how often while nothing happens: seconds go by.
const DRAWN_EVERY: Duration = Duration::from_millis(200);
/// Where nothing says how wide the terminal is.
const WIDTH: u16 = 80;
/// Columns between two parts of the line.
const GAP: &str = "  ";
/// A bar of fewer columns says nothing; one of more says no more.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 30;

#[derive(Clone)]
pub(crate) struct Bar {
    bar: ProgressBar,
    latest: Arc<Mutex<Latest>>,
    steps: u64,
    steps_per_epoch: u64,
}

/// What is known since the last step that was done; empty before the first.
#[derive(Default)]
struct Latest {
    epoch: String,
    loss: String,
    rate: String,
    /// Of the last evaluation.
    evaluation: String,
}

impl Bar {
    pub(crate) fn new(steps: u64, steps_per_epoch: u64) -> Bar {
        let narrow = Narrow(Term::buffered_stderr());
        let is_drawn = narrow.0.is_term() && !is_quiet();
        let target = match is_drawn {
            true => ProgressDrawTarget::term_like_with_hz(Box::new(narrow.clone()), DRAWN_HZ),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let latest: Arc<Mutex<Latest>> = Arc::default();
        if let Ok(style) = ProgressStyle::with_template("{line}") {
            let latest = latest.clone();
            let line = move |state: &ProgressState, to: &mut dyn Write| {
                let latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                // what cannot be drawn is drawn with the next step
                let _ = to.write_str(&line(usize::from(narrow.width()), state, &latest));
            };
            bar.set_style(style.with_key("line", line));
        }
        if is_drawn {
            keep_drawing(&bar);
        }
        Bar { bar, latest, steps, steps_per_epoch }
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
        let (loss, rate) = (format!("loss {loss:.4}"), format!("{rate:.0} samples/s"));
        let epochs = self.steps.div_ceil(self.steps_per_epoch.max(1));
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.epoch = format!("epoch {epoch}/{epochs}");
        if let Some(evaluation) = &done.evaluation {
            latest.evaluation = in_short(evaluation);
        }
        (latest.loss, latest.rate) = (loss, rate);
        // it is drawn by others
        drop(latest);
        self.bar.set_position(step);
        let is_last = step.is_multiple_of(self.steps_per_epoch) || step == self.steps;
        if is_last || done.evaluation.is_some() {
            self.say(done.line(self.steps));
        }
    }

    /// Says something above the bar.
    pub(crate) fn say(&self, line: impl Display) {
        self.bar.suspend(|| note(line));
    }

    /// Takes the bar away for good.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// The same before the program ends, which it does even if the terminal does not take it.
    pub(crate) fn clear_in_time(&self) {
        let bar = self.bar.clone();
        in_time(move || bar.finish_and_clear());
    }
}

/// Draws the line also while no step is done, in a thread of its own; without one it is drawn with each step. (The library's own
/// ticker panics where it gets no thread.)
fn keep_drawing(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let draw = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            std::thread::sleep(DRAWN_EVERY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("progress".into()).spawn(draw) {
        note(format_args!("progress is drawn with each step alone, for want of a thread: {error}"));
    }
}

/// What one would ask for first.
fn in_short(evaluation: &StepEvaluation) -> String {
    match (evaluation.test_accuracy, evaluation.named().next()) {
        (Some(accuracy), _) => format!("accuracy {accuracy:.4}"),
        (None, Some((name, value))) => format!("{} {value:.4}", name.replace('_', " ")),
        (None, None) => String::new(),
    }
}

/// The line, of at most `width` columns: what matters most is there as long as it fits, and a bar where there is room.
fn line(width: usize, state: &ProgressState, latest: &Latest) -> String {
    let (step, steps) = (state.pos(), state.len().unwrap_or_default());
    let left = match step {
        0 => format!("{:#}", HumanDuration(state.elapsed())),
        _ => format!("{:#} left", HumanDuration(state.eta())),
    };
    let Latest { epoch, loss, rate, evaluation } = latest;
    let at = format!("{step}/{steps}");
    // in the order of the line
    let parts = [epoch, &at, loss, evaluation, rate, &left];
    let mut is_shown = [false; 6];
    let mut used = 0;
    for part in [1, 2, 5, 0, 3, 4] {
        let more = parts[part].chars().count() + if used > 0 { GAP.len() } else { 0 };
        is_shown[part] = !parts[part].is_empty() && used + more <= width;
        used += if is_shown[part] { more } else { 0 };
    }
    let shown = parts.iter().zip(is_shown).filter(|(_, is_shown)| *is_shown);
    let mut shown: Vec<String> = shown.map(|(part, _)| (*part).clone()).collect();
    let room = width.saturating_sub(used + GAP.len()).min(BAR_MAX);
    if room >= BAR_MIN && used > 0 {
        // fits: it is from 0 to 1 of a few columns
        let filled = (state.fraction() * room as f32) as usize;
        shown.insert(usize::from(is_shown[0]), "━".repeat(filled) + &"╌".repeat(room - filled));
    }
    shown.join(GAP)
}

/// The terminal without its last columns: a line is filled up to where it ends.
#[derive(Clone, Debug)]
struct Narrow(Term);

impl TermLike for Narrow {
    fn width(&self) -> u16 {
        let (_, columns) = self.0.size_checked().unwrap_or((0, WIDTH));
        columns.saturating_sub(FREE).max(1)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.0.write_line(line)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}
