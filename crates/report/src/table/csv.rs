//! Every point as a row of comma-separated values, in seconds and bytes: what a plotting program wants to read.

use crate::caption::is_of_runs;
use crate::figure::{Axis, Figure, Role, Shape, Unit};
use crate::measure::Between;
use crate::origin::{Provenance, joined};
use crate::plots::{Dot, Plot, Series};
use crate::section::Evaluation;

const HEAD: [&str; 26] = [
    "name", "figure", "plot", "series", "role", "x_name", "x", "x_unit", "key_name", "key",
    "y_name", "median", "p10", "p90", "min", "max", "n", "y_unit", "machine", "host", "links",
    "date", "commit", "versions", "mean", "sd",
];

pub(super) fn of_all(evaluation: &Evaluation) -> String {
    let mut rows = Vec::new();
    for (section, plot) in evaluation.plots() {
        rows.extend(rows_of(section.figure, plot));
    }
    if rows.is_empty() { String::new() } else { written(rows) }
}

/// Of one plot alone.
pub(crate) fn of_plot(figure: &Figure, plot: &Plot) -> String {
    written(rows_of(figure, plot))
}

fn written(rows: Vec<[String; 26]>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let heads = HEAD.map(str::to_string);
    let written = std::iter::once(&heads).chain(&rows).try_for_each(|row| writer.write_record(row));
    // memory takes all, and every row has as many cells as the head
    let bytes = written.ok().and_then(|()| writer.into_inner().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn rows_of(figure: &Figure, plot: &Plot) -> Vec<[String; 26]> {
    let of_series = |series: &Series| -> Vec<[String; 26]> {
        series.dots.iter().map(|dot| row(figure, plot, series, dot)).collect()
    };
    plot.series.iter().flat_map(of_series).collect()
}

fn row(figure: &Figure, plot: &Plot, series: &Series, dot: &Dot) -> [String; 26] {
    let (x, key_name) = match figure.shape {
        Shape::Lines(x) => (Some(x), None),
        Shape::Curves(x, key) => (Some(x), Some(key)),
        Shape::Bars => (None, None),
    };
    let ends = |of: Between| {
        let spread = dot.y.spread.filter(|it| it.between == of);
        let ends = spread.map(|it| [it.low, it.high].map(|end| end.to_string()));
        ends.unwrap_or_default()
    };
    let [p10, p90] = ends(Between::Percentiles);
    let [min, max] = ends(Between::Rounds);
    // runs that all came to the same have no deviation
    let is_mean = is_of_runs(figure) && dot.y.count.is_some();
    let mean = is_mean.then(|| dot.y.mean_and_deviation().unwrap_or((dot.y.median, 0.0)));
    let [mean, sd] = mean.map(|(mean, sd)| [mean.to_string(), sd.to_string()]).unwrap_or_default();
    // a mean is no median
    let median = if mean.is_empty() { dot.y.median.to_string() } else { String::new() };
    let provenance = Provenance::of(&dot.origins);
    let Provenance { machines, hosts, links, commits, versions, .. } = &provenance;
    [
        plot.name.clone(),
        figure.source.to_string(),
        plot.title.clone(),
        series.name.clone(),
        role(series.role).to_string(),
        x.map_or_else(String::new, |x: Axis| x.title.to_string()),
        x.map_or_else(String::new, |_| dot.x.to_string()),
        x.map_or("", |x| unit(x.unit)).to_string(),
        key_name.unwrap_or_default().to_string(),
        key_name.map_or_else(String::new, |_| dot.key.to_string()),
        plot.y_title(figure.y).to_string(),
        median,
        p10,
        p90,
        min,
        max,
        dot.y.count.map_or_else(String::new, |count| count.to_string()),
        unit(figure.y.unit).to_string(),
        joined(machines, "; "),
        joined(hosts, "; "),
        joined(links, "; "),
        provenance.date().unwrap_or_default(),
        joined(commits, "; "),
        joined(versions, "; "),
        mean,
        sd,
    ]
}

/// Of the numbers; empty where the axis' name says what they are.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "B",
        Unit::Seconds => "s",
        Unit::Plain => "",
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Ours => "ours",
        Role::Baseline => "baseline",
        Role::Peer => "peer",
        Role::Limit => "limit",
    }
}
