//! `tensorwire bench modes`: how accurate each way of training is after each epoch, and what that took.

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{Curve, Machine, ModePoint, curve, in_mode};
use tensorwire_launch::JobSpec;
use tensorwire_train::{Strategy, TrainConfig};

use super::{Lines, announce};
use crate::Failure;
use crate::args::ModesArgs;
use crate::job::job_spec;
use crate::output::{note, print, print_text};
use crate::table::{live, table, table_by};

/// Of the table of one run, and above rows as they come.
const HEADER: [&str; 9] = [
    "mode",
    "epoch",
    "test accuracy",
    "test loss",
    "loss",
    "epoch takes",
    "since start",
    "with servers",
    "in clients",
];
pub(super) fn run(args: &ModesArgs) -> Result<(), Failure> {
    let config = args.config();
    let modes = args.modes();
    // nobody wants to train for minutes to hear that the last mode makes no sense
    for mode in &modes {
        in_mode(&config, *mode).check()?;
    }
    if args.interval.is_some() && !modes.iter().any(|mode| mode.is_averaging()) {
        return Err(Failure::user(
            "--interval is for dist-esgd and mpi-esgd; name one, or leave it out",
        ));
    }
    if !(0.0..=1.0).contains(&args.target) {
        let target = args.target;
        return Err(Failure::user(format!("--target is an accuracy from 0 to 1, not {target}")));
    }
    let mut lines = Lines::open(args.json.as_deref())?;
    let job = job_spec()?;
    announce(&Machine::here());
    let mut runs: Vec<Runs> = modes.into_iter().map(Runs::new).collect();
    let iterations = args.iterations.get();
    let done = train_all(&mut runs, (&config, iterations), &job, &mut lines);
    // what was done is not to be lost with what was not
    let written = runs.iter_mut().try_for_each(|of| of.write(&mut lines));
    done.and(written)?;
    let together = |Runs { mode, mut curves, .. }: Runs| {
        let last = curves.pop()?;
        Some((mode, last.with(&curves)))
    };
    let curves: Vec<(Strategy, Curve)> = runs.into_iter().filter_map(together).collect();
    show(&curves, iterations, args.target)
}

/// The runs of a mode that are over.
struct Runs {
    mode: Strategy,
    curves: Vec<Curve>,
    /// Its lines are in the file.
    is_written: bool,
}

impl Runs {
    fn new(mode: Strategy) -> Runs {
        Runs { mode, curves: Vec::new(), is_written: false }
    }

    /// Writes what they say together, if nothing was written yet.
    fn write(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let Some((last, before)) = self.curves.split_last().filter(|_| !self.is_written) else {
            return Ok(());
        };
        self.is_written = true;
        last.points.iter().try_for_each(|point| lines.append(&point.with(before)))
    }
}

/// All modes in turn, so many times.
fn train_all(
    runs: &mut [Runs],
    (config, iterations): (&TrainConfig, usize),
    job: &JobSpec,
    lines: &mut Lines,
) -> Result<(), Failure> {
    let mut is_first = true;
    for iteration in 1..=iterations {
        if iterations > 1 {
            note(format_args!("run {iteration} of {iterations}"));
        }
        for Runs { mode, curves, is_written } in &mut *runs {
            let mut failure = None;
            let found = curve(&in_mode(config, *mode), job, &mut |point| {
                live(&HEADER, &row(point), std::mem::take(&mut is_first));
                // what all of them say is known behind the last
                if iterations == 1 {
                    *is_written = true;
                    failure = failure.take().or_else(|| lines.append(point).err());
                }
            })?;
            failure.map_or(Ok(()), Err)?;
            curves.push(found);
        }
    }
    Ok(())
}

fn show(curves: &[(Strategy, Curve)], runs: usize, target: f64) -> Result<(), Failure> {
    let points = curves.iter().flat_map(|(_, curve)| &curve.points);
    let repeated = match runs {
        1 => {
            let rows: Vec<Vec<String>> = points.map(row).collect();
            print(table_by(2, &HEADER, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]))?;
            String::new()
        }
        runs => {
            let rows: Vec<Vec<String>> = points.map(row_with_spread).collect();
            let numbers: Vec<usize> = (1..HEADER.len() + 4).collect();
            print(table_by(2, &head_with_spread(), &rows, &numbers))?;
            format!(
                "medians of {runs} runs; p10 and p90: of the times of an epoch and since the start; "
            )
        }
    };
    print("")?;
    let rows: Vec<Vec<String>> = curves.iter().map(|of| summary(of, target)).collect();
    let reached = format!("{target} after");
    let header = ["mode", "best", &reached, "in", "exchanged by then", "an epoch takes"];
    print(table(&header, &rows, &[1, 2, 3, 4, 5]))?;
    print_text(format_args!(
        "{repeated}times are worker 0's, without its evaluations; an epoch takes: the mean of all; bytes of tensors, of all \
         workers since the start: pushed and pulled, and what n members of a client must send to all-reduce them, \
         2(n-1)/n each. Where workers keep in step, the accuracy in the end was that of the last epoch to the bit.",
    ))
}

fn summary((mode, curve): &(Strategy, Curve), target: f64) -> Vec<String> {
    let reached = curve.reached(target);
    let or_never = |found: Option<String>| found.unwrap_or_else(|| "-".to_string());
    let epoch = |point: &ModePoint| match point.epoch {
        1 => "1 epoch".to_string(),
        epoch => format!("{epoch} epochs"),
    };
    // fits: epochs are few
    let mean = |last: &ModePoint| human_seconds(last.seconds / last.epoch as f64);
    vec![
        mode.name().to_string(),
        format!("{:.4}", curve.best()),
        or_never(reached.map(epoch)),
        or_never(reached.map(|point| human_seconds(point.seconds))),
        or_never(reached.map(|point| human_bytes(point.bytes_exchanged))),
        or_never(curve.points.last().map(mean)),
    ]
}

fn row(point: &ModePoint) -> Vec<String> {
    vec![
        point.mode.to_string(),
        point.epoch.to_string(),
        format!("{:.4}", point.test_accuracy),
        format!("{:.4}", point.test_loss),
        format!("{:.4}", point.loss),
        human_seconds(point.epoch_seconds),
        human_seconds(point.seconds),
        human_bytes(point.store_bytes),
        human_bytes(point.client_bytes),
    ]
}

/// The head of several runs. A narrow terminal has these columns in several tables: each says of what it is.
fn head_with_spread() -> Vec<&'static str> {
    with_spread(HEADER.to_vec(), ["epoch p10", "epoch p90"], ["start p10", "start p90"])
}

/// A row of several runs, with how far their times are apart.
fn row_with_spread(point: &ModePoint) -> Vec<String> {
    let spread = |p10: f64, p90: f64| [human_seconds(p10), human_seconds(p90)];
    let epoch = spread(point.p10_epoch_seconds, point.p90_epoch_seconds);
    with_spread(row(point), epoch, spread(point.p10_seconds, point.p90_seconds))
}

/// A row in which each time has its spread behind it: of an epoch, and since the start, which come before the two of bytes.
fn with_spread<T>(mut row: Vec<T>, epoch: [T; 2], start: [T; 2]) -> Vec<T> {
    let before_bytes = row.len() - 2;
    row.splice(before_bytes..before_bytes, start);
    let before_start = before_bytes - 1;
    row.splice(before_start..before_start, epoch);
    row
}
