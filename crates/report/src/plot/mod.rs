//! Plots as SVG, each of which stands alone: colours, sizes and letters are its own. What shows no style sheets sees the light
//! colours; who cannot tell colours apart sees dashes and markers.

mod legend;
mod scale;
mod svg;

use maud::Markup;

use crate::figure::{Figure, Role, Shape};
use crate::plots::Plot;

pub(crate) use scale::label;

/// Okabe and Ito's, darkened where they were too light for a white page. `dark.css` has those of a dark one.
const COLOURS: [&str; 8] =
    ["#0072b2", "#c4560a", "#007d5c", "#b03a83", "#8a6d00", "#3b8fc4", "#5b4bb5", "#333a42"];
const PAGE: &str = "#ffffff";
const TEXT: &str = "#1d2126";
const QUIET: &str = "#59626c";
const RULE: &str = "#d9dee3";
const MARKERS: usize = 6;

/// How each series of a figure looks, the same in all its plots.
#[derive(Debug)]
pub(crate) struct Looks {
    names: Vec<(Role, String)>,
}

/// How one looks.
#[derive(Clone, Copy, Debug)]
struct Look {
    role: Role,
    index: usize,
}

impl Looks {
    pub(crate) fn of(plots: &[Plot]) -> Looks {
        let all = plots.iter().flat_map(|plot| &plot.series);
        let mut names: Vec<(Role, String)> = all.map(|one| (one.role, one.name.clone())).collect();
        names.sort();
        names.dedup();
        Looks { names }
    }

    fn get(&self, role: Role, name: &str) -> Look {
        let index = self.names.iter().position(|(r, n)| *r == role && n == name);
        Look { role, index: index.unwrap_or_default() }
    }
}

impl Look {
    /// By which `dark.css` finds its colour.
    fn class(self) -> String {
        match self.role {
            Role::Limit => "limit".to_string(),
            _ => format!("c{}", self.index % COLOURS.len()),
        }
    }

    fn colour(self) -> &'static str {
        match self.role {
            Role::Limit => QUIET,
            _ => COLOURS[self.index % COLOURS.len()],
        }
    }

    /// Of its line: width, and dashes where it has them.
    fn stroke(self) -> (f64, Option<&'static str>) {
        match self.role {
            Role::Ours => (2.6, None),
            Role::Baseline => (2.0, Some("7 4")),
            Role::Peer => (2.0, Some("2 3")),
            Role::Limit => (1.4, Some("11 3 2 3")),
        }
    }

    /// Of its bars.
    fn opacity(self) -> Option<&'static str> {
        matches!(self.role, Role::Baseline | Role::Limit).then_some("0.55")
    }

    /// A closed path around a point.
    fn marker(self, x: f64, y: f64) -> String {
        let around = |corners: &[(f64, f64)]| {
            let corners: Vec<String> =
                corners.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
            format!("M{}Z", corners.join("L"))
        };
        match self.index % MARKERS {
            0 => format!("M{:.1} {y:.1}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z", x - 3.4),
            1 => around(&[(-3.0, -3.0), (3.0, -3.0), (3.0, 3.0), (-3.0, 3.0)]),
            2 => around(&[(0.0, -4.0), (3.8, 3.0), (-3.8, 3.0)]),
            3 => around(&[(0.0, -4.4), (4.4, 0.0), (0.0, 4.4), (-4.4, 0.0)]),
            4 => around(&[(0.0, 4.0), (3.8, -3.0), (-3.8, -3.0)]),
            _ => around(&[(-1.6, -4.6), (1.6, -4.6), (1.6, 4.6), (-1.6, 4.6)]),
        }
    }
}

/// One plot of a figure; what it is, in words, is part of it.
pub(crate) fn draw(figure: &Figure, plot: &Plot, looks: &Looks, caption: &str) -> Markup {
    match figure.shape {
        Shape::Lines(x) => svg::lines((x, figure.y), plot, looks, caption, svg::Crowd::BY_KEY),
        Shape::Curves(x, _) => svg::lines((x, figure.y), plot, looks, caption, svg::Crowd::BY_X),
        Shape::Bars => svg::bars(figure.y, plot, looks, caption),
    }
}
