//! What stands under a plot, or over a table of it, so that it can be read without the page: what, where, units, how many
//! repetitions, what the bars are, and on which machine.

use std::collections::BTreeSet;

use crate::figure::{Axis, Better, Figure, Scale, Shape, Unit};
use crate::figures::{MODEL_SIZE, TENSOR_SIZES};
use crate::measure::Between;
use crate::plots::{Dot, Plot, Series};
use crate::runs::RUN;
use crate::section::Section;

/// What a caption belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Drawing,
    /// Which has no axes, and brackets instead of bars.
    Table,
}

/// In sentences.
pub(crate) fn caption(section: &Section, plot: &Plot, shown: Shown) -> String {
    let figure = section.figure;
    let source = after(figure.source);
    let what = match plot.title.as_str() {
        "" => format!("{source}: {}.", figure.title),
        title => format!("{source}: {} ({title}).", figure.title),
    };
    let trained = section.trained.as_ref().map(|trained| format!("Trained: {trained}."));
    let mut sentences =
        vec![what, trained.unwrap_or_default(), axes(section, shown), repetitions(figure, plot)];
    if plot.dots().any(|dot| dot.y.spread.is_some()) {
        sentences.push(spreads(plot, shown));
    }
    let is_known = !is_of_runs(figure) || plot.dots().any(|dot| !dot.origins.is_empty());
    if is_known && !is_counted(figure) {
        sentences.push(plot.provenance().sentence());
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences.join(" ")
}

pub(crate) fn is_of_runs(figure: &Figure) -> bool {
    figure.kinds == [RUN]
}

/// What is counted is the same wherever and whenever that is done.
fn is_counted(figure: &Figure) -> bool {
    figure.kinds == [MODEL_SIZE] || figure.kinds == [TENSOR_SIZES]
}

/// Whose figure it is made after: the data are not theirs.
fn after(source: &str) -> String {
    let (kind, of) = source.split_once("; ").map_or(("", source), |(kind, of)| (kind, of));
    match (of.contains(" et al., "), of.starts_with("Beside "), kind) {
        (true, false, "") => format!("After {of}"),
        (true, false, kind) => format!("{kind}; after {of}"),
        _ => source.to_string(),
    }
}

fn axes(section: &Section, shown: Shown) -> String {
    let figure = section.figure;
    if is_of_runs(figure) {
        let thinned = match section.is_thinned {
            true => "; of a run with many steps a point is the mean of several",
            false => "",
        };
        return format!("A curve a file, or one of several that differ in their seed{thinned}.");
    }
    let better = match figure.better {
        // what is counted is no goal
        _ if is_counted(figure) => "",
        Better::Lower => "; lower is better",
        Better::Higher => "; higher is better",
    };
    let y = capital(&axis(figure.y, shown));
    match figure.shape {
        Shape::Lines(x) => format!("{y} by {}{better}.", axis(x, shown)),
        Shape::Curves(x, key) => format!("{y} by {}, a point a {key}{better}.", axis(x, shown)),
        Shape::Bars => format!("{y}{better}."),
    }
}

/// Its title with unit and scale; a title of plain numbers is their unit.
fn axis(axis: Axis, shown: Shown) -> String {
    let unit = match axis.unit {
        Unit::Bytes => Some("bytes"),
        Unit::Seconds => Some("seconds"),
        Unit::Plain => None,
    };
    if shown == Shown::Table {
        // its cells have their units
        return axis.title.to_string();
    }
    let scale = (axis.scale != Scale::Linear).then_some("logarithmic");
    let words: Vec<&str> = [unit, scale].into_iter().flatten().collect();
    match words.is_empty() {
        true => axis.title.to_string(),
        false => format!("{} ({})", axis.title, words.join(", ")),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn repetitions(figure: &Figure, plot: &Plot) -> String {
    if is_of_runs(figure) {
        return seeds(plot);
    }
    if is_counted(figure) {
        return "Counted, not measured.".to_string();
    }
    if plot.dots().all(Dot::is_simulated) {
        // the provenance says so; two files have the same
        return String::new();
    }
    let counts: Vec<f64> = plot.dots().filter_map(|dot| dot.y.count).collect();
    let least = counts.iter().copied().reduce(f64::min);
    let most = counts.iter().copied().reduce(f64::max);
    let are_all = counts.len() == plot.dots().count();
    let which = if are_all { "Medians" } else { "Where the lines say it, medians" };
    match least.zip(most) {
        None => "The lines do not say of how many repetitions.".to_string(),
        Some((_, 1.0)) if plot.dots().any(|dot| dot.y.spread.is_some()) => {
            "One measurement each; what has a spread, of several steps.".to_string()
        }
        Some((_, 1.0)) => "Measured once.".to_string(),
        Some((least, most)) if least == most => format!("{which} of {most} measurements."),
        Some((least, most)) => format!("{which} of {least} to {most} measurements."),
    }
}

/// Of how many seeds the curves are, where they are of several.
fn seeds(plot: &Plot) -> String {
    let counts: BTreeSet<u64> =
        // fits: they are files
        plot.dots().filter_map(|dot| dot.y.count).map(|count| count as u64).collect();
    let each = match (counts.first(), counts.last()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(count), _) => count.to_string(),
        _ => return String::new(),
    };
    format!(
        "Files with the same settings and, but for their seed, the same name are one curve: the mean of {each} seeds."
    )
}

fn spreads(plot: &Plot, shown: Shown) -> String {
    let with = |dot: &&Dot| dot.y.spread.is_some();
    let kinds: BTreeSet<Between> =
        plot.dots().filter_map(|dot| dot.y.spread).map(|spread| spread.between).collect();
    let where_known = match plot.dots().filter(with).count() == plot.dots().count() {
        true => "",
        false if kinds.contains(&Between::Deviation) => ", where runs differ",
        false => ", where the lines have them",
    };
    let what = match shown {
        Shown::Table => "In brackets",
        Shown::Drawing => {
            match [Series::has_band, Series::has_bars].map(|of| plot.series.iter().any(of)) {
                [true, true] => "Bands and error bars",
                [true, false] => "Bands",
                [false, _] => "Error bars",
            }
        }
    };
    let kinds: Vec<&str> = kinds.into_iter().map(said).collect();
    format!("{what}: {}{where_known}.", kinds.join(", or "))
}

fn said(between: Between) -> &'static str {
    match between {
        Between::Percentiles => "10th to 90th percentile",
        Between::Rounds => "least to greatest round",
        Between::Deviation => "standard deviation, to either side of the mean",
    }
}
