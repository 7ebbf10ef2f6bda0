//! The drawing itself, in units of which a phone shows about one a pixel.

use maud::{Markup, PreEscaped, html};

use super::legend::{Legend, mark_class, mark_stroke, readable, short};
use super::scale::{Scaled, label};
use super::{Look, Looks, PAGE, QUIET, RULE, TEXT};
use crate::figure::{Axis, Role, Scale};
use crate::measure::Spread;
use crate::plots::{BARS_MAX, Dot, Plot, Series};

pub(super) const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 256.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 346.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 214.0;
/// Of the caps of an error bar, half.
const CAP: f64 = 2.5;
const DARK: &str = include_str!("dark.css");

/// How close points may come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    /// Markers of a series, about so many at most.
    marks_max: f64,
    /// Series that share an x stand side by side so far, all of them, if they have spreads: else these hide one another.
    apart: f64,
}

impl Crowd {
    pub(super) const BY_KEY: Crowd = Crowd { marks_max: BARS_MAX as f64, apart: 14.0 };
    pub(super) const BY_X: Crowd = Crowd { marks_max: 8.0, apart: 0.0 };

    /// How far a series is moved.
    fn shift(self, plot: &Plot, index: usize) -> f64 {
        let others = plot.series.len().saturating_sub(1);
        if others == 0 || !plot.series.iter().any(Series::has_bars) {
            return 0.0;
        }
        // fits: series have names
        let (index, others) = (index as f64, others as f64);
        (index - others / 2.0) * (self.apart / others).min(4.0)
    }
}

/// Where a plot's points are.
struct Place {
    across: Scaled,
    up: Scaled,
}

impl Place {
    fn column(&self, x: f64) -> f64 {
        LEFT + 12.0 + self.across.at(x) * (RIGHT - LEFT - 24.0)
    }

    fn row(&self, y: f64) -> f64 {
        BOTTOM - self.up.at(y) * (BOTTOM - TOP)
    }
}

/// y over x, a line a series.
pub(super) fn lines(
    (x, y): (Axis, Axis),
    plot: &Plot,
    looks: &Looks,
    caption: &str,
    crowd: Crowd,
) -> Markup {
    let across = Scaled::around(x, plot.dots().map(|dot| dot.x), true);
    let across = if x.scale == Scale::Linear { across.widened() } else { across };
    let up = Scaled::around(y, plot.dots().flat_map(reached), false).widened();
    let place = Place { across, up };
    let legend = Legend::of(plot, looks);
    let inside = html! {
        @for (at, label) in place.up.ticks() {
            @let at = BOTTOM - at * (BOTTOM - TOP);
            path.grid d=(format!("M{LEFT} {at:.1}H{RIGHT}")) fill="none" stroke=(RULE) {}
            text x=(LEFT - 6.0) y=(format!("{:.1}", at + 4.0)) text-anchor="end" { (label) }
        }
        @for (at, label) in along(x, plot, &place.across) {
            @let at = LEFT + 12.0 + at * (RIGHT - LEFT - 24.0);
            path.grid d=(format!("M{at:.1} {BOTTOM}v5")) fill="none" stroke=(RULE) {}
            text x=(format!("{at:.1}")) y=(BOTTOM + 18.0) text-anchor="middle" { (label) }
        }
        path.axis d=(format!("M{LEFT} {BOTTOM}H{RIGHT}")) fill="none" stroke=(QUIET) {}
        text x="2" y="13" { (plot.y_title(y)) (unit_of(y)) }
        text x=((LEFT + RIGHT) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { (x.title) (unit_of(x)) }
        @for series in plot.series.iter().rev().filter(|series| series.has_band()) {
            (band(series, looks.get(series.role, &series.name), &place))
        }
        @for (index, series) in plot.series.iter().enumerate().rev() {
            @let look = looks.get(series.role, &series.name);
            (line((x, y), series, look, &place, (crowd.marks_max, crowd.shift(plot, index))))
        }
        (legend.draw(HEIGHT))
    };
    whole(HEIGHT + legend.height, &described(x, y, plot), caption, &inside)
}

/// The ticks along x. Of one value that one, which round ones would be beside.
fn along(x: Axis, plot: &Plot, across: &Scaled) -> Vec<(f64, String)> {
    match plot.dots().next() {
        Some(first) if plot.dots().all(|dot| dot.x == first.x) => {
            vec![(across.at(first.x), label(x.unit, first.x))]
        }
        _ => across.ticks(),
    }
}

/// The spread of one series along it, under all lines.
fn band(series: &Series, look: Look, place: &Place) -> Markup {
    let ends = |dot: &Dot| dot.y.spread.map_or([dot.y.median; 2], |it| [it.low, it.high]);
    let edge = |dot: &Dot, end: usize| {
        format!("{:.1} {:.1}", place.column(dot.x), place.row(ends(dot)[end]))
    };
    let below = series.dots.iter().map(|dot| edge(dot, 0));
    let around = below.chain(series.dots.iter().rev().map(|dot| edge(dot, 1)));
    let around: Vec<String> = around.collect();
    html! {
        g class=(look.class()) fill=(look.colour()) {
            path.band d=(format!("M{}Z", around.join("L"))) fill-opacity="0.2" stroke="none" {}
        }
    }
}

/// One series: its line, and at its markers its error bars, if it has no band.
fn line(
    (x, y): (Axis, Axis),
    series: &Series,
    look: Look,
    place: &Place,
    (marks_max, shift): (f64, f64),
) -> Markup {
    let (width, dashes) = look.stroke();
    let inside = if look.role == Role::Limit { Some(PAGE) } else { None };
    let at = |dot: &Dot| (place.column(dot.x) + shift, place.row(dot.y.median));
    // fits: lines are in memory
    let every = (series.dots.len() as f64 / marks_max).ceil().max(1.0) as usize;
    let is_marked = |index: usize| index.is_multiple_of(every) || index + 1 == series.dots.len();
    let marked = series.dots.iter().enumerate().filter(|(index, _)| is_marked(*index));
    let marked: Vec<&Dot> = marked.map(|(_, dot)| dot).collect();
    html! {
        g class=(look.class()) fill=(look.colour()) stroke=(look.colour()) {
            path.line d=(path(&series.dots, at)) fill="none" stroke-width=(width) stroke-linejoin="round" stroke-dasharray=[dashes] {}
            @for dot in &marked {
                @if let Some(spread) = dot.y.spread.filter(|_| series.has_bars()) {
                    path.spread d=(bar(place.column(dot.x) + shift, spread, |end| place.row(end))) fill="none" stroke-width="1" {}
                }
            }
            @for dot in &marked {
                @let (column, row) = at(dot);
                path class=(mark_class(look)) d=(look.marker(column, row)) fill=[inside] stroke=(mark_stroke(look)) stroke-width="0.8" {
                    title { (readable(&series.name)) ": " (label(x.unit, dot.x)) ", " (said(y, dot)) }
                }
            }
        }
    }
}

/// A bar a series, with its name and its number.
pub(super) fn bars(y: Axis, plot: &Plot, looks: &Looks, caption: &str) -> Markup {
    const STEP: f64 = 36.0;
    const NUMBER: f64 = 72.0;
    let rows = || plot.series.iter().filter_map(|series| Some((series, series.dots.first()?)));
    let most = rows().flat_map(|(_, dot)| reached(dot)).fold(0.0, f64::max);
    let length = |value: f64| if most > 0.0 { value / most * (WIDTH - NUMBER) } else { 0.0 };
    // fits: series have names
    let height = TOP + STEP * rows().count() as f64;
    let inside = html! {
        text x="2" y="13" { (plot.y_title(y)) (unit_of(y)) }
        @for (index, (series, dot)) in rows().enumerate() {
            @let top = TOP + STEP * index as f64;
            @let look = looks.get(series.role, &series.name);
            @let end = reached(dot).fold(0.0, f64::max);
            text x="2" y=(top + 10.0) { (short(&series.name)) }
            g class=(look.class()) fill=(look.colour()) stroke=(look.colour()) {
                path.bar d=(format!("M2 {:.1}h{:.1}v13h-{:.1}Z", top + 15.0, length(dot.y.median), length(dot.y.median)))
                    stroke="none" fill-opacity=[look.opacity()] {
                    title { (readable(&series.name)) ": " (said(y, dot)) }
                }
            }
            @if let Some(spread) = dot.y.spread {
                @let ends = [spread.low, spread.high].map(|end| 2.0 + length(end));
                @let d = format!("M{:.1} {:.1}v5m0 -2.5H{:.1}m0 -2.5v5", ends[0], top + 19.0, ends[1]);
                // seen on the page and on its bar
                path.halo d=(d) fill="none" stroke=(PAGE) stroke-width="3" {}
                path.whisker.spread d=(d) fill="none" stroke=(TEXT) {}
            }
            text.ink x=(format!("{:.1}", 8.0 + length(end))) y=(top + 26.0) fill=(TEXT) { (label(y.unit, dot.y.median)) }
        }
    };
    whole(height, &format!("{}: {}", plot.title, plot.y_title(y)), caption, &inside)
}

/// The file around a drawing.
fn whole(height: f64, words: &str, caption: &str, inside: &Markup) -> Markup {
    html! {
        svg.plot.tw xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}")) width=(WIDTH) height=(height)
            role="img" aria-label=(readable(words)) font-family="system-ui, Helvetica, Arial, sans-serif" font-size="11.5" fill=(QUIET) {
            desc { (readable(caption)) }
            style { (PreEscaped(DARK)) }
            rect.page width=(WIDTH) height=(height) fill=(PAGE) {}
            (inside)
        }
    }
}

fn described(x: Axis, y: Axis, plot: &Plot) -> String {
    let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
    let by = format!("by {}, of {}", x.title, names.join(", "));
    match y.title {
        "" => format!("{} {by}", plot.title),
        title => format!("{}: {title} {by}", plot.title),
    }
}

/// What an axis must have room for.
fn reached(dot: &Dot) -> impl Iterator<Item = f64> + use<> {
    let y = dot.y;
    let ends = y.spread.map(|it| [it.low, it.high]);
    std::iter::once(y.median).chain(ends.into_iter().flatten())
}

/// `12 µs [10 µs to 15 µs]`.
fn said(y: Axis, dot: &Dot) -> String {
    let median = label(y.unit, dot.y.median);
    match dot.y.spread {
        Some(Spread { low, high, .. }) => {
            format!("{median} [{} to {}]", label(y.unit, low), label(y.unit, high))
        }
        None => median,
    }
}

/// With its caps.
fn bar(x: f64, spread: Spread, row: impl Fn(f64) -> f64) -> String {
    let (low, high) = (row(spread.low), row(spread.high));
    let (left, wide) = (x - CAP, 2.0 * CAP);
    format!("M{left:.1} {low:.1}h{wide}M{x:.1} {low:.1}V{high:.1}M{left:.1} {high:.1}h{wide}")
}

fn path(dots: &[Dot], place: impl Fn(&Dot) -> (f64, f64)) -> String {
    let corners: Vec<String> =
        dots.iter().map(&place).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    format!("M{}", corners.join("L"))
}

/// Logarithmic axes say so; what has a unit shows it at each tick.
fn unit_of(axis: Axis) -> &'static str {
    match axis.scale {
        Scale::Linear => "",
        Scale::Log2 | Scale::Log10 => " (log)",
    }
}
