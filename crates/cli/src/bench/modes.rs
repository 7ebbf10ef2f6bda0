//! `tensorwire bench modes`: how accurate each way of training is after each epoch, and what that took.

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{Curve, Machine, ModePoint, curve, in_mode};
use tensorwire_train::Strategy;

use super::{Lines, announce};
use crate::Failure;
use crate::args::ModesArgs;
use crate::job::job_spec;
use crate::output::{print, print_text};
use crate::table::{live, table, table_by};

/// Of the table, and above rows as they come.
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
    let (mut curves, mut is_first) = (Vec::new(), true);
    for mode in modes {
        let mut failure = None;
        let found = curve(&in_mode(&config, mode), &job, &mut |point| {
            live(&HEADER, &row(point), std::mem::take(&mut is_first));
            if let Err(error) = lines.append(point) {
                failure.get_or_insert(error);
            }
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        curves.push((mode, found));
    }
    show(&curves, args.target)
}

fn show(curves: &[(Strategy, Curve)], target: f64) -> Result<(), Failure> {
    let rows: Vec<Vec<String>> =
        curves.iter().flat_map(|(_, curve)| curve.points.iter().map(row)).collect();
    print(table_by(2, &HEADER, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]))?;
    print("")?;
    let rows: Vec<Vec<String>> = curves.iter().map(|of| summary(of, target)).collect();
    let reached = format!("{target} after");
    let header = ["mode", "best", &reached, "in", "exchanged by then", "an epoch takes"];
    print(table(&header, &rows, &[1, 2, 3, 4, 5]))?;
    print_text(
        "times are worker 0's, without its evaluations; an epoch takes: the mean of all; bytes of tensors, of all \
         workers since the start: pushed and pulled, and what n members of a client must send to all-reduce them, \
         2(n-1)/n each. Where workers keep in step, the accuracy in the end was that of the last epoch to the bit.",
    )
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
