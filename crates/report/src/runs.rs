//! Training runs, each a file that `tensorwire train --metrics` wrote: a curve a run, or one of all that differ only in their
//! seed, beside those of other files. They claim nothing, and are no figure of a paper.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::figure::{Axis, Better, Figure, Point, Role, Scale, Shape, Unit};
use crate::line::{Lacks, Line};
use crate::measure::Measure;
use crate::origin::Origin;
use crate::seeds::Seeds;

/// The kind of the lines of `train --metrics`, which do not say it themselves.
pub(crate) const RUN: &str = "train";

/// In the order of the page.
pub(crate) const FIGURES: &[&Figure] = &[&LOSS, &EVALUATION, &LEARNING_RATE, &SAMPLES];

/// Points of a curve, at most: a page shows no more.
const POINTS_MAX: usize = 400;

const STEP: Axis = Axis { title: "step", unit: Unit::Plain, scale: Scale::Linear };

const fn figure(
    id: &'static str,
    title: &'static str,
    y: &'static str,
    take: fn(&Line) -> Result<Vec<Point>, Lacks>,
) -> Figure {
    Figure {
        id,
        source: "Training runs",
        title,
        says: "",
        kinds: &[RUN],
        run: "tensorwire train --metrics FILE",
        take,
        shape: Shape::Lines(STEP),
        y: Axis { title: y, unit: Unit::Plain, scale: Scale::Linear },
        better: Better::Lower,
        claims: &[],
    }
}

const LOSS: Figure = figure("run-loss", "Loss by step", "loss", loss);
/// What is evaluated is what a plot is called.
const EVALUATION: Figure =
    figure("run-evaluation", "Evaluation by step, with the test's samples", "", evaluation);
const LEARNING_RATE: Figure = figure("run-rate", "Learning rate by step", "rate", learning_rate);
const SAMPLES: Figure =
    figure("run-samples", "Samples per second by step", "samples per second, so far", samples);

fn loss(line: &Line) -> Result<Vec<Point>, Lacks> {
    match line.optional_number("step") {
        Some(step) => Ok(vec![point(line.file(), "", step, line.number("loss")?)]),
        None => Ok(Vec::new()),
    }
}

fn samples(line: &Line) -> Result<Vec<Point>, Lacks> {
    Ok(of_step(line, "samples_per_second"))
}

/// Of runs whose lines have one.
fn learning_rate(line: &Line) -> Result<Vec<Point>, Lacks> {
    Ok(of_step(line, "rate"))
}

/// Between two steps, or of the summary, which is of the last step.
fn evaluation(line: &Line) -> Result<Vec<Point>, Lacks> {
    let (of, step) = match line.optional_number("step") {
        Some(step) => (None, Some(step)),
        None => (Some("summary"), line.optional_number("summary.steps")),
    };
    let Some(step) = step else { return Ok(Vec::new()) };
    let path = |name: &str| of.map_or_else(|| name.to_string(), |of| format!("{of}.{name}"));
    let known = ["test_accuracy", "test_loss"].into_iter().filter_map(|name| {
        let value = line.optional_number(&path(name))?;
        Some(point(line.file(), &name.replace('_', " "), step, value))
    });
    let others = line.numbers_by_name(&path("metrics"));
    let others = others.into_iter().map(|(name, value)| point(line.file(), &name, step, value));
    Ok(known.chain(others).collect())
}

fn of_step(line: &Line, name: &str) -> Vec<Point> {
    let (step, value) = (line.optional_number("step"), line.optional_number(name));
    let of = |(step, value)| point(line.file(), "", step, value);
    step.zip(value).map(of).into_iter().collect()
}

fn point(series: &str, subject: &str, step: f64, y: f64) -> Point {
    Point {
        subject: subject.to_string(),
        place: None,
        series: series.to_string(),
        role: Role::Ours,
        key: step,
        x: step,
        x_ends: None,
        y: y.into(),
        origin: None,
    }
}

/// What the summary of a run says of it, by the titles of a table.
const SUMMARY: [(&str, &str); 10] = [
    ("model", "model"),
    ("data", "data"),
    ("strategy", "strategy"),
    ("transport", "transport"),
    ("workers", "workers"),
    ("batch", "batch"),
    ("seed", "seed"),
    ("steps", "steps"),
    ("test accuracy", "test_accuracy"),
    ("test loss", "test_loss"),
];

/// A table of what was trained: its titles, and a row a file whose run came to its end. None where no file says it.
pub(crate) fn trained(
    lines: &[Line],
    seeds: &Seeds,
) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let said = |line: &Line, key: &str| {
        let path = format!("summary.{key}");
        let number = |value: f64| match value.fract() == 0.0 {
            true => value.to_string(),
            false => format!("{value:.4}"),
        };
        line.optional_text(&path)
            .map(str::to_string)
            .or_else(|| line.optional_number(&path).map(number))
            .unwrap_or_default()
    };
    let of_runs = lines.iter().filter(|line| line.optional_number("summary.steps").is_some());
    let row = |line: &Line| {
        let name = seeds.short(line.file()).to_string();
        std::iter::once(name).chain(SUMMARY.iter().map(|(_, key)| said(line, key))).collect()
    };
    let rows: Vec<Vec<String>> = of_runs.map(row).collect();
    let titles = std::iter::once("run").chain(SUMMARY.iter().map(|(title, _)| *title)).collect();
    (!rows.is_empty()).then_some((titles, rows))
}

/// What all runs trained, if each says so at its end and it is the same: the model, the data, and what else all of them say alike.
pub(crate) fn trained_alike(lines: &[Line]) -> Option<String> {
    let summaries = || lines.iter().filter(|line| line.optional_text("summary.model").is_some());
    let files = |lines: &mut dyn Iterator<Item = &Line>| {
        lines.map(|line| line.file().to_string()).collect::<BTreeSet<String>>()
    };
    let mut runs = lines.iter().filter(|line| line.kind() == Some(RUN));
    if files(&mut runs) != files(&mut summaries()) {
        return None;
    }
    let alike = |key: &str| {
        let path = format!("summary.{key}");
        let mut all = summaries().map(|line| line.shown(&path));
        let first = all.next()??;
        let is_so = all.all(|other| other.as_ref() == Some(&first));
        is_so.then(|| first.trim_matches('"').to_string())
    };
    let what = format!("{} on {}", alike("model")?, alike("data")?);
    let strategy = alike("strategy").map(|strategy| format!(", by {strategy}"));
    let workers = alike("workers").map(|count| match count.as_str() {
        "1" => ", 1 worker".to_string(),
        _ => format!(", {count} workers"),
    });
    let batch = alike("batch").map(|batch| format!(", batches of {batch}"));
    Some([strategy, workers, batch].into_iter().flatten().fold(what, |all, one| all + &one))
}

/// The steps and values of a run, ascending.
type Run = Vec<(f64, f64)>;

/// Returns a curve a file, or one of all files that differ only in their seed: their mean at the steps that each of them has. Where
/// there is no such step each has its own. Of at most so many points: where there are more, one stands for several steps, at the last
/// of them. `origins`: where the runs of each file were.
pub(crate) fn curves(
    points: &[Point],
    seeds: &Seeds,
    origins: &BTreeMap<&str, Rc<Origin>>,
) -> Vec<Point> {
    let mut curves: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&Point>>> = BTreeMap::new();
    for point in points {
        let curve = (point.subject.as_str(), seeds.curve(&point.series));
        curves.entry(curve).or_default().entry(&point.series).or_default().push(point);
    }
    let each = curves.into_iter().flat_map(|((subject, name), files)| {
        let count = files.len();
        let files: Vec<(&str, Run)> =
            files.into_iter().map(|(file, points)| (file, run(points))).collect();
        let runs: Vec<Run> = files.iter().map(|(_, run)| run.clone()).collect();
        let are_one = count > 1 && !shared_steps(&runs).is_empty();
        // of one curve the first file's: they differ in their seed alone
        let origin = |file: Option<&str>| origins.get(file?).cloned();
        let curves = match are_one {
            true => {
                let first = files.first().map(|(file, _)| *file);
                vec![(format!("{name}, {count} seeds"), runs, origin(first))]
            }
            false => files
                .into_iter()
                .map(|(file, run)| (seeds.short(file).to_string(), vec![run], origin(Some(file))))
                .collect(),
        };
        curves.into_iter().map(move |(name, runs, origin)| (subject, name, runs, origin))
    });
    each.flat_map(|(subject, name, runs, origin)| curve(subject, &name, &runs, &origin)).collect()
}

/// True if a curve has more steps than points, so that [`curves`] makes means of them.
pub(crate) fn is_thinned(points: &[Point]) -> bool {
    let mut steps: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    for point in points {
        steps.entry((&point.subject, &point.series)).or_default().insert(point.key.to_bits());
    }
    steps.values().any(|steps| steps.len() > POINTS_MAX)
}

fn curve(subject: &str, name: &str, runs: &[Run], origin: &Option<Rc<Origin>>) -> Vec<Point> {
    let steps = shared_steps(runs);
    let several = steps.len().div_ceil(POINTS_MAX).max(1);
    let chunks = steps.chunks(several).filter_map(|steps| {
        let (last, y) = (*steps.last()?, measure(runs, steps)?);
        let origin = origin.clone();
        Some(Point { y, origin, ..point(name, subject, last, f64::NAN) })
    });
    chunks.collect()
}

fn run(points: Vec<&Point>) -> Run {
    let mut run: Run = points.into_iter().map(|point| (point.key, point.y.median)).collect();
    run.sort_by(|a, b| a.0.total_cmp(&b.0));
    run
}

/// The steps that each of the runs has, ascending.
fn shared_steps(runs: &[Run]) -> Vec<f64> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let has = |run: &Run, step: f64| run.binary_search_by(|one| one.0.total_cmp(&step)).is_ok();
    let mut steps: Vec<f64> = first.iter().map(|(step, _)| *step).collect();
    steps.dedup();
    steps.retain(|step| others.iter().all(|run| has(run, *step)));
    steps
}

/// What runs have in these steps: a mean of each, and of several runs the mean of those.
fn measure(runs: &[Run], steps: &[f64]) -> Option<Measure> {
    let (first, last) = (*steps.first()?, *steps.last()?);
    let mean = |run: &Run| {
        let from = run.partition_point(|(step, _)| *step < first);
        let until = run.partition_point(|(step, _)| *step <= last);
        let is_shared = |step: f64| steps.binary_search_by(|one| one.total_cmp(&step)).is_ok();
        let within = run[from..until].iter().filter(|(step, _)| is_shared(*step));
        let found: Vec<f64> = within.map(|(_, value)| *value).collect();
        // fits: lines are in memory
        found.iter().sum::<f64>() / found.len() as f64
    };
    let means: Vec<f64> = runs.iter().map(mean).collect();
    match means[..] {
        [one] => Some(one.into()),
        _ => Measure::mean_of(&means),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_to_means_and_a_short_one_is_left_alone() {
        let line = |file: &str, step: usize| {
            let text = format!("{{\"step\":{step},\"loss\":{step},\"samples_per_second\":1}}");
            Line::read_all(file, &text).unwrap().remove(0)
        };
        let long = (1..=1200).map(|step| line("long", step));
        let short = (1..=3).map(|step| line("short", step));
        let points = long.chain(short).flat_map(|line| loss(&line).unwrap()).collect();
        let points: Vec<Point> = points;
        let thin = curves(&points, &Seeds::default(), &BTreeMap::new());
        assert_eq!((is_thinned(&points), is_thinned(&thin)), (true, false));
        let of = |series: &str| {
            let points = thin.iter().filter(|point| point.series == series);
            points.map(|point| (point.x, point.y.median)).collect::<Vec<_>>()
        };
        assert_eq!(of("short"), [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!((of("long").len(), of("long")[0]), (400, (3.0, 2.0)));
        assert_eq!(of("long").last(), Some(&(1200.0, 1199.0)));
    }
}
