//! What a plot shows, as a table: a row a place along x, a column a series, and what claims compare. Knows no notation; those
//! are in `table/`.

mod claims;
mod csv;
mod latex;
mod markdown;

use crate::caption::{Shown, caption};
use crate::figure::{Axis, Figure, Shape, Unit, Wants};
use crate::numbers::times;
use crate::plot::label;
use crate::plots::{Dot, Plot, Series};
use crate::section::Evaluation;
use crate::verdict::{compared, ratios, spread};

pub(crate) use csv::of_plot as csv_of_plot;

/// How tables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// With the packages `booktabs`, `adjustbox` and `longtable`, a table a plot.
    Latex,
    /// GitHub's, a table a plot.
    Markdown,
    /// One table of all points, a row each, in seconds and bytes.
    Csv,
    /// What the papers claim and what was found, a table a figure, in GitHub's.
    Claims,
    /// The same, a line of JSON a claim.
    ClaimsJson,
}

/// Of a plot.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// From and to, where it is known.
    pub(crate) spread: Option<[String; 2]>,
    /// Of a ratio that a claim is about.
    pub(crate) is_met: Option<bool>,
}

/// All plots, or all claims, as tables; nothing where there are none.
pub(crate) fn tables(evaluation: &Evaluation, format: TableFormat) -> String {
    match format {
        TableFormat::Csv => csv::of_all(evaluation),
        TableFormat::Latex => each(evaluation, latex::PREAMBLE, latex::of_plot),
        TableFormat::Markdown => each(evaluation, "", markdown::of_plot),
        TableFormat::Claims => claims::of_all(evaluation),
        TableFormat::ClaimsJson => claims::json_of_all(evaluation),
    }
}

fn each(
    evaluation: &Evaluation,
    preamble: &str,
    write: fn(&Plot, &str, &Table) -> String,
) -> String {
    let tables = evaluation.plots().map(|(section, plot)| {
        let table = Table::of(section.figure, plot);
        write(plot, &caption(section, plot, Shown::Table), &table)
    });
    let tables: Vec<String> = tables.collect();
    if tables.is_empty() { String::new() } else { format!("{preamble}{}", tables.join("\n")) }
}

impl Table {
    pub(crate) fn of(figure: &Figure, plot: &Plot) -> Table {
        let (head, rows) = match figure.shape {
            Shape::Lines(x) => over_x(figure, x, plot),
            Shape::Curves(x, key) => over_key(figure, x, key, plot),
            Shape::Bars => numbers(figure, plot),
        };
        Table { head, rows }
    }
}

impl Cell {
    fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    fn measure(unit: Unit, dot: &Dot) -> Cell {
        let spread = dot.y.spread.map(|it| [it.low, it.high].map(|end| label(unit, end)));
        Cell { spread, ..Cell::text(label(unit, dot.y.median)) }
    }
}

fn heads<'a>(first: &str, series: impl Iterator<Item = &'a Series>) -> Vec<String> {
    std::iter::once(first.to_string()).chain(series.map(|one| one.name.clone())).collect()
}

fn over_x(figure: &Figure, x: Axis, plot: &Plot) -> (Vec<String>, Vec<Vec<Cell>>) {
    let comparisons = comparisons(figure, plot);
    let mut head = heads(x.title, plot.series.iter());
    head.extend(
        comparisons.iter().map(|one| format!("{}: times as good as {}", one.ours, one.against)),
    );
    let row = |key: f64| {
        let measured = plot.series.iter().map(|series| {
            let dot = series.dots.iter().find(|dot| dot.key == key);
            dot.map(|dot| Cell::measure(figure.y.unit, dot)).unwrap_or_default()
        });
        let compared = comparisons.iter().map(|one| {
            let ratio = one.ratios.iter().find(|(at, ..)| *at == key);
            let cell = ratio.map(|&(_, ratio, ends)| Cell {
                is_met: one.least.map(|least| ratio >= least),
                spread: ends.map(|ends| ends.map(times)),
                ..Cell::text(times(ratio))
            });
            cell.unwrap_or_default()
        });
        let first = std::iter::once(Cell::text(label(x.unit, key)));
        first.chain(measured).chain(compared).collect()
    };
    (head, keys(&plot.series).into_iter().map(row).collect())
}

fn over_key(
    figure: &Figure,
    x: Axis,
    key_name: &str,
    plot: &Plot,
) -> (Vec<String>, Vec<Vec<Cell>>) {
    let row = |key: f64| {
        let measured = plot.series.iter().map(|series| {
            let dot = series.dots.iter().find(|dot| dot.key == key);
            let cell = dot.map(|dot| {
                let cell = Cell::measure(figure.y.unit, dot);
                Cell { text: format!("{} at {} s", cell.text, label(x.unit, dot.x)), ..cell }
            });
            cell.unwrap_or_default()
        });
        let first = std::iter::once(Cell::text(label(Unit::Plain, key)));
        first.chain(measured).collect()
    };
    (heads(key_name, plot.series.iter()), keys(&plot.series).into_iter().map(row).collect())
}

fn numbers(figure: &Figure, plot: &Plot) -> (Vec<String>, Vec<Vec<Cell>>) {
    let rows = plot.series.iter().flat_map(|series| {
        let row = |dot| vec![Cell::text(&series.name), Cell::measure(figure.y.unit, dot)];
        series.dots.iter().map(row)
    });
    (vec!["series".to_string(), figure.y.title.to_string()], rows.collect())
}

/// Two series of a plot that a claim compares.
struct Compared<'a> {
    ours: &'a str,
    against: &'a str,
    /// By x, and between what the spreads of both sides allow.
    ratios: Vec<(f64, f64, Option<[f64; 2]>)>,
    /// Where a claim says so for every x.
    least: Option<f64>,
}

/// Each pair once.
fn comparisons<'a>(figure: &Figure, plot: &'a Plot) -> Vec<Compared<'a>> {
    let mut all: Vec<Compared<'a>> = Vec::new();
    for claim in figure.claims.iter().filter(|claim| claim.only.iter().all(|w| plot.is_about(w))) {
        let Some((ours, against)) = compared(claim, plot) else {
            continue;
        };
        let least = match claim.wants {
            Wants::Least(least) => Some(least),
            _ => None,
        };
        let known = all.iter_mut().find(|one| one.ours == ours.name && one.against == against.name);
        match known {
            Some(known) => known.least = known.least.or(least),
            None => {
                let of = ratios(figure.better, ours, against).into_iter();
                let with_spread =
                    |(at, ratio)| (at, ratio, spread(figure.better, ours, against, at, |_| None));
                let ratios = of.map(with_spread).collect();
                all.push(Compared { ours: &ours.name, against: &against.name, ratios, least });
            }
        }
    }
    all
}

/// All of them, ascending.
fn keys(series: &[Series]) -> Vec<f64> {
    let mut keys: Vec<f64> = series.iter().flat_map(|one| &one.dots).map(|dot| dot.key).collect();
    keys.sort_unstable_by(f64::total_cmp);
    keys.dedup();
    keys
}
