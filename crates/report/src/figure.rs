//! What a figure is: which lines it shows, along which axes, and what its paper claims. Data, and the functions that
//! take a line apart; the figures themselves are in `figures/`.

use std::rc::Rc;

use crate::line::{Lacks, Line};
use crate::measure::Measure;
use crate::origin::Origin;

/// A figure of a paper, or one that sets us beside a peer.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Its anchor on the page.
    pub(crate) id: &'static str,
    /// Paper and number.
    pub(crate) source: &'static str,
    pub(crate) title: &'static str,
    /// What the paper's figure shows, and where.
    pub(crate) says: &'static str,
    /// The kinds of lines that it looks at.
    pub(crate) kinds: &'static [&'static str],
    /// Writes such lines.
    pub(crate) run: &'static str,
    /// A line's points; none if the line belongs to another figure.
    pub(crate) take: fn(&Line) -> Result<Vec<Point>, Lacks>,
    pub(crate) shape: Shape,
    pub(crate) y: Axis,
    pub(crate) better: Better,
    pub(crate) claims: &'static [Claim],
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// y over x.
    Lines(Axis),
    /// The same, a point for each epoch or step, which is what the word says: x was measured, too.
    Curves(Axis, &'static str),
    /// One number a series.
    Bars,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// With its unit, if `unit` does not show it.
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Seconds,
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// By powers of two.
    Log2,
    Log10,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// What a line says in a figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// What is measured (a model, a size): plots are of one subject each.
    pub(crate) subject: String,
    /// On which wire, with how many processes. None, as of a peer: beside every place of its subject where its series has no
    /// points of that place.
    pub(crate) place: Option<String>,
    pub(crate) series: String,
    pub(crate) role: Role,
    /// What is the same in repetitions, of which the median is shown: x, or the epoch or step of a curve.
    pub(crate) key: f64,
    pub(crate) x: f64,
    /// From where to where repetitions of the line lay along x; none where it does not say.
    pub(crate) x_ends: Option<[f64; 2]>,
    pub(crate) y: Measure,
    /// Of its line, where that says it.
    pub(crate) origin: Option<Rc<Origin>>,
}

/// Who a series is. In the order of legends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Ours,
    /// What the papers compare with, made again in tensorwire.
    Baseline,
    /// Another system.
    Peer,
    /// What the machine can do, or one process without communication.
    Limit,
}

/// What a paper (or a comparison with a peer) says that ours does.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) says: &'static str,
    /// Words of a plot's title that all must be there; none: every plot.
    pub(crate) only: &'static [&'static str],
    /// The series that claims it; the first that was measured.
    pub(crate) ours: &'static [&'static str],
    /// What it is compared with, the first that was measured. None: `ours` itself is the figure.
    pub(crate) against: &'static [&'static str],
    pub(crate) wants: Wants,
}

impl Claim {
    /// Of every plot of a figure.
    pub(crate) const fn of(
        says: &'static str,
        ours: &'static [&'static str],
        against: &'static [&'static str],
        wants: Wants,
    ) -> Claim {
        Claim { says, only: &[], ours, against, wants }
    }
}

/// What is made of the ratios of ours to the other (above 1: ours is better) over a plot's points, and how large it
/// is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wants {
    /// At every x.
    Least(f64),
    /// At one x.
    Best(f64),
    /// At one x of one plot of the figure.
    BestOfAll(f64),
    Mean(f64),
    /// Where x is this; where that was not measured, at the largest x.
    At(f64, f64),
    /// Of the times until both had first what the worse one had at its best.
    TimeTo(f64),
    /// The figure itself, at its best, where nothing is compared.
    Reaches(f64),
    /// The same where x is this.
    ReachesAt(f64, f64),
    /// The figure where x is the second over that where x is the first, where nothing is compared.
    Gains(f64, f64, f64),
    /// At no x further off than this share.
    Within(f64),
}
