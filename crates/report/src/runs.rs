//! Training runs, each a file that `tensorwire train --metrics` wrote: a curve a run, beside those of other files. They claim
//! nothing, and are no figure of a paper.

use std::collections::BTreeMap;

use crate::figure::{Axis, Better, Figure, Point, Role, Scale, Shape, Unit};
use crate::line::{Lacks, Line};

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
const EVALUATION: Figure =
    figure("run-evaluation", "Evaluation by step", "with the test's samples", evaluation);
const LEARNING_RATE: Figure = figure("run-rate", "Learning rate by step", "rate", learning_rate);
const SAMPLES: Figure =
    figure("run-samples", "Samples per second by step", "samples per second, so far", samples);

fn loss(line: &Line) -> Result<Vec<Point>, Lacks> {
    match line.optional_number("step") {
        Some(step) => Ok(vec![point(line, "", step, line.number("loss")?)]),
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
        Some(point(line, &name.replace('_', " "), step, line.optional_number(&path(name))?))
    });
    let others = line.numbers_by_name(&path("metrics"));
    let others = others.into_iter().map(|(name, value)| point(line, &name, step, value));
    Ok(known.chain(others).collect())
}

fn of_step(line: &Line, name: &str) -> Vec<Point> {
    let (step, value) = (line.optional_number("step"), line.optional_number(name));
    step.zip(value).map(|(step, value)| point(line, "", step, value)).into_iter().collect()
}

fn point(line: &Line, subject: &str, step: f64, y: f64) -> Point {
    Point {
        subject: subject.to_string(),
        place: None,
        series: line.file().to_string(),
        role: Role::Ours,
        key: step,
        x: step,
        y: y.into(),
        origin: None,
    }
}

/// Returns the same with at most so many points a curve: where there are more, one point stands for the mean of several
/// steps, at the last of them.
pub(crate) fn thinned(points: Vec<Point>) -> Vec<Point> {
    let mut curves: BTreeMap<(String, String), Vec<Point>> = BTreeMap::new();
    for point in points {
        let curve = (point.subject.clone(), point.series.clone());
        curves.entry(curve).or_default().push(point);
    }
    let thin = |mut curve: Vec<Point>| {
        curve.sort_by(|a, b| a.key.total_cmp(&b.key));
        let several = curve.len().div_ceil(POINTS_MAX).max(1);
        let means = curve.chunks(several).filter_map(|several| {
            // fits: lines are in memory
            let y = several.iter().map(|point| point.y.median).sum::<f64>() / several.len() as f64;
            Some(Point { y: y.into(), ..several.last()?.clone() })
        });
        means.collect::<Vec<Point>>()
    };
    curves.into_values().flat_map(thin).collect()
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
        let thin = thinned(points);
        let of = |series: &str| {
            let points = thin.iter().filter(|point| point.series == series);
            points.map(|point| (point.x, point.y.median)).collect::<Vec<_>>()
        };
        assert_eq!(of("short"), [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!((of("long").len(), of("long")[0]), (400, (3.0, 2.0)));
        assert_eq!(of("long").last(), Some(&(1200.0, 1199.0)));
    }
}
