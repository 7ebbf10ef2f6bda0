//! Plots as SVG. Colours are the page's variables, so that light and dark are the page's business; who cannot tell colours
//! apart sees dashes and markers.

mod scale;
mod svg;

use maud::{Markup, html};

use crate::figure::{Figure, Role, Shape};
use crate::plots::Plot;

pub(crate) use scale::label;

/// How many colours the page has.
const COLOURS: usize = 8;
const MARKERS: usize = 6;

/// How each series of a figure looks, the same in all its plots.
#[derive(Debug)]
pub(crate) struct Looks {
    names: Vec<(Role, String)>,
}

/// How one looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
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

    /// Colours, dashes and markers, by name.
    pub(crate) fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for (role, name) in &self.names {
                    @let look = self.get(*role, name);
                    li {
                        svg class=(look.class()) viewBox="0 0 34 12" aria-hidden="true" {
                            path.line d="M1 6H33" {}
                            path.mark d=(look.marker(17.0, 6.0)) {}
                        }
                        (name)
                    }
                }
            }
        }
    }
}

impl Look {
    /// `limit`, or a colour; and a dash.
    fn class(self) -> String {
        let dash = match self.role {
            Role::Ours => "ours",
            Role::Baseline => "baseline",
            Role::Peer => "peer",
            Role::Limit => "limit",
        };
        format!("c{} {dash}", self.index % COLOURS)
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

/// One plot of a figure.
pub(crate) fn draw(figure: &Figure, plot: &Plot, looks: &Looks) -> Markup {
    match figure.shape {
        Shape::Lines(x) => svg::lines(x, figure.y, plot, looks, 24),
        Shape::Curves(x, _) => svg::lines(x, figure.y, plot, looks, 8),
        Shape::Bars => svg::bars(figure.y, plot, looks),
    }
}
