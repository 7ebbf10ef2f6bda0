//! The drawing itself, in units of which a phone shows about one a pixel.

use maud::{Markup, html};

use super::Looks;
use super::scale::{Scaled, label};
use crate::figure::{Axis, Scale};
use crate::plots::{Dot, Plot};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 256.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 346.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 214.0;

/// y over x, a line a series, with about `marks_max` markers at most.
pub(super) fn lines(x: Axis, y: Axis, plot: &Plot, looks: &Looks, marks_max: usize) -> Markup {
    let dots = || plot.series.iter().flat_map(|series| &series.dots);
    let across = Scaled::around(x, dots().map(|dot| dot.x), true);
    let across = if x.scale == Scale::Linear { across.widened() } else { across };
    let up = Scaled::around(y, dots().map(|dot| dot.y), false).widened();
    let column = |dot: &Dot| LEFT + 8.0 + across.at(dot.x) * (RIGHT - LEFT - 16.0);
    let row = |at: f64| BOTTOM - at * (BOTTOM - TOP);
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(described(x, y, plot)) {
            @for (at, label) in up.ticks() {
                path.grid d=(format!("M{LEFT} {:.1}H{RIGHT}", row(at))) {}
                text.tick x=(LEFT - 6.0) y=(format!("{:.1}", row(at) + 4.0)) text-anchor="end" { (label) }
            }
            @for (at, label) in across.ticks() {
                @let at = LEFT + 8.0 + at * (RIGHT - LEFT - 16.0);
                path.grid d=(format!("M{at:.1} {BOTTOM}v5")) {}
                text.tick x=(format!("{at:.1}")) y=(BOTTOM + 18.0) text-anchor="middle" { (label) }
            }
            path.axis d=(format!("M{LEFT} {BOTTOM}H{RIGHT}")) {}
            text.axis-title x="2" y="13" { (y.title) (unit_of(y)) }
            text.axis-title x=((LEFT + RIGHT) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { (x.title) (unit_of(x)) }
            @for series in plot.series.iter().rev() {
                @let look = looks.get(series.role, &series.name);
                @let every = series.dots.len().div_ceil(marks_max).max(1);
                g class=(look.class()) {
                    path.line d=(path(&series.dots, |dot| (column(dot), row(up.at(dot.y))))) {}
                    @for (index, dot) in series.dots.iter().enumerate() {
                        @if index % every == 0 || index + 1 == series.dots.len() {
                            path.mark d=(look.marker(column(dot), row(up.at(dot.y)))) {
                                title { (series.name) ": " (label(x.unit, dot.x)) ", " (label(y.unit, dot.y)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A bar a series, with its name and its number.
pub(super) fn bars(y: Axis, plot: &Plot, looks: &Looks) -> Markup {
    const STEP: f64 = 36.0;
    const NUMBER: f64 = 62.0;
    let rows = || plot.series.iter().filter_map(|series| Some((series, series.dots.first()?)));
    let most = rows().map(|(_, dot)| dot.y).fold(0.0, f64::max);
    let length = |value: f64| if most > 0.0 { value / most * (WIDTH - NUMBER) } else { 0.0 };
    let height = TOP + STEP * rows().count() as f64;
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(format!("{}: {}", plot.title, y.title)) {
            text.axis-title x="2" y="13" { (y.title) (unit_of(y)) }
            @for (index, (series, dot)) in rows().enumerate() {
                @let top = TOP + STEP * index as f64;
                @let look = looks.get(series.role, &series.name);
                g class=(look.class()) {
                    text.tick x="2" y=(top + 10.0) { (series.name) }
                    path.bar d=(format!("M2 {:.1}h{:.1}v13h-{:.1}Z", top + 15.0, length(dot.y), length(dot.y))) {}
                    text.number x=(format!("{:.1}", 8.0 + length(dot.y))) y=(top + 26.0) { (label(y.unit, dot.y)) }
                }
            }
        }
    }
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

fn described(x: Axis, y: Axis, plot: &Plot) -> String {
    let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
    format!("{}: {} by {}, of {}", plot.title, y.title, x.title, names.join(", "))
}
