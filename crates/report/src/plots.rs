//! The points of lines, put together: which plots a figure has, and which series they show.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::figure::{Axis, Figure, Point, Role, Scale, Shape};
use crate::line::{Lacks, Line};
use crate::measure::{Measure, middle};
use crate::origin::{Origin, Provenance};

/// Points of a series whose spreads are bars, at most: of a longer curve they are a band.
pub(crate) const BARS_MAX: usize = 24;

/// Letters of a plot's name, at most.
const SLUG_MAX: usize = 80;

/// What is seen at once: one subject in one place.
#[derive(Debug)]
pub(crate) struct Plot {
    /// Of its files, when it is saved: no other plot of the page has it.
    pub(crate) name: String,
    /// Words, separated by commas.
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
}

#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// By key, and along x where x is the key.
    pub(crate) dots: Vec<Dot>,
}

/// What was measured for one key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dot {
    pub(crate) key: f64,
    pub(crate) x: f64,
    /// From where to where its repetitions lay along x; none where x is the key, or there was one.
    pub(crate) x_ends: Option<[f64; 2]>,
    pub(crate) y: Measure,
    /// Of its lines.
    pub(crate) origins: BTreeSet<Rc<Origin>>,
}

impl Dot {
    /// True if all its lines were simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        !self.origins.is_empty() && self.origins.iter().all(|origin| origin.is_simulated())
    }
}

/// Why a figure could not use a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Why {
    #[error("{0}")]
    Lacks(#[from] Lacks),
    #[error("a number that has no place on its axis")]
    OffAxis,
}

impl Series {
    /// True if the deviation of its mean is a band along it, and no bars.
    pub(crate) fn has_band(&self) -> bool {
        let is_mean = |dot: &Dot| dot.y.mean_and_deviation().is_some();
        self.dots.len() > BARS_MAX && self.dots.iter().any(is_mean)
    }

    /// True if spreads of it are drawn as bars.
    pub(crate) fn has_bars(&self) -> bool {
        !self.has_band() && self.dots.iter().any(|dot| dot.y.spread.is_some())
    }
}

impl Plot {
    pub(crate) fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// All of them, by series.
    pub(crate) fn dots(&self) -> impl Iterator<Item = &Dot> {
        self.series.iter().flat_map(|series| &series.dots)
    }

    /// Where all that it shows was measured.
    pub(crate) fn provenance(&self) -> Provenance {
        Provenance::of(self.dots().flat_map(|dot| &dot.origins))
    }

    /// What its vertical axis is called: where that has no name of its own, what the plot shows.
    pub(crate) fn y_title(&self, y: Axis) -> &str {
        if y.title.is_empty() { &self.title } else { y.title }
    }

    /// Is `word` one of the title's?
    pub(crate) fn is_about(&self, word: &str) -> bool {
        self.title.split(", ").any(|part| part == word)
    }
}

/// The points of a line in a figure.
pub(crate) fn points(figure: &Figure, line: &Line) -> Result<Vec<Point>, Why> {
    let points = (figure.take)(line)?;
    let x_scale = match figure.shape {
        Shape::Lines(x) | Shape::Curves(x, _) => x.scale,
        Shape::Bars => Scale::Linear,
    };
    let may_be_negative = |scale| scale == Scale::Linear && figure.claims.is_empty();
    let shown = |scale, at: f64| {
        at.is_finite()
            && (at > 0.0 || may_be_negative(scale) || (at == 0.0 && scale == Scale::Linear))
    };
    let origin = Origin::of(line);
    let placed = |mut point: Point| {
        let is_shown = shown(x_scale, point.x) && shown(figure.y.scale, point.y.median);
        point.y.spread = point.y.spread.filter(|it| shown(figure.y.scale, it.low));
        point.origin.clone_from(&origin);
        is_shown.then_some(point).ok_or(Why::OffAxis)
    };
    points.into_iter().map(placed).collect()
}

/// All plots of the points of the figure with this `id`, by title.
pub(crate) fn plots(id: &str, points: &[Point]) -> Vec<Plot> {
    let mut titles: BTreeSet<(&str, Option<&str>)> =
        points.iter().map(|point| (point.subject.as_str(), point.place.as_deref())).collect();
    let placed: BTreeSet<&str> =
        titles.iter().filter(|(_, place)| place.is_some()).map(|(subject, _)| *subject).collect();
    titles.retain(|(subject, place)| place.is_some() || !placed.contains(subject));
    let plots = titles.into_iter().map(|(subject, place)| plot(points, subject, place));
    let mut names = BTreeSet::new();
    let named = |(title, series): (String, Vec<Series>)| {
        let name = slug(&format!("{id} {title}"));
        let others = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(others).find(|one| !names.contains(one));
        let name = free.unwrap_or_default();
        names.insert(name.clone());
        Plot { name, title, series }
    };
    plots.map(named).collect()
}

/// Title and series.
fn plot(points: &[Point], subject: &str, place: Option<&str>) -> (String, Vec<Series>) {
    let mut found: BTreeMap<(Role, &str), Vec<&Point>> = BTreeMap::new();
    for point in points {
        let elsewhere = point.place.is_some() && point.place.as_deref() != place;
        if point.subject == subject && !elsewhere {
            found.entry((point.role, &point.series)).or_default().push(point);
        }
    }
    let series = found.into_iter().map(|((role, name), mut points)| {
        // what was measured in this very place counts before what has none
        if points.iter().any(|point| point.place.is_some()) {
            points.retain(|point| point.place.is_some());
        }
        Series { name: name.to_string(), role, dots: dots(points) }
    });
    let words = [subject, place.unwrap_or_default()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    (words.join(", "), series.collect())
}

fn dots(mut points: Vec<&Point>) -> Vec<Dot> {
    points.sort_by(|a, b| a.key.total_cmp(&b.key));
    let same = points.chunk_by(|a, b| a.key == b.key);
    let dot = |same: &[&Point]| {
        let mut all_x: Vec<f64> = same.iter().map(|point| point.x).collect();
        all_x.sort_unstable_by(f64::total_cmp);
        let measures: Vec<Measure> = same.iter().map(|point| point.y).collect();
        Dot {
            key: same[0].key,
            x: middle(&all_x),
            x_ends: x_ends(same),
            y: Measure::pooled(&measures),
            origins: same.iter().filter_map(|point| point.origin.clone()).collect(),
        }
    };
    same.map(dot).collect()
}

/// Those that lines say, or those of several lines.
fn x_ends(same: &[&Point]) -> Option<[f64; 2]> {
    let said = same.iter().flat_map(|point| point.x_ends.into_iter().flatten());
    let all: Vec<f64> = said.chain(same.iter().map(|point| point.x)).collect();
    let least = all.iter().copied().reduce(f64::min)?;
    let most = all.iter().copied().reduce(f64::max)?;
    (least < most).then_some([least, most])
}

/// A file's name in lower case, of letters, digits and dashes.
fn slug(text: &str) -> String {
    let mut slug = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.to_ascii_lowercase() {
            letter if letter.is_ascii_alphanumeric() => slug.push(letter),
            _ if !slug.is_empty() && !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
        if slug.len() >= SLUG_MAX {
            break;
        }
    }
    slug.trim_end_matches('-').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(place: Option<&str>, series: &str, key: f64, y: f64) -> Point {
        let (subject, series) = ("s".to_string(), series.to_string());
        Point {
            subject,
            place: place.map(str::to_string),
            series,
            role: Role::Ours,
            key,
            x: key,
            x_ends: None,
            y: y.into(),
            origin: None,
        }
    }

    #[test]
    fn what_has_no_place_is_beside_all_places() {
        let points = [
            point(Some("tcp"), "a", 1.0, 1.0),
            point(Some("shm"), "a", 1.0, 2.0),
            point(None, "peer", 1.0, 3.0),
        ];
        let plots = plots("f", &points);
        let titles: Vec<&str> = plots.iter().map(|plot| plot.title.as_str()).collect();
        assert_eq!(titles, ["s, shm", "s, tcp"]);
        assert!(plots.iter().all(|plot| plot.series("peer").is_some()));
        assert!(plots[0].is_about("shm") && !plots[0].is_about("tcp"));
        assert_eq!(super::plots("f", &points[2..]).len(), 1, "alone it has a plot of its own");
        let own = [&points[..], &[point(Some("tcp"), "peer", 1.0, 9.0)]].concat();
        let of_peer = |plot: &Plot| plot.series("peer").unwrap().dots[0].y.median;
        let found: Vec<f64> = super::plots("f", &own).iter().map(of_peer).collect();
        assert_eq!(found, [3.0, 9.0], "but where it was measured in a place");
    }

    #[test]
    fn repetitions_count_by_their_median() {
        let points = [1.0, 9.0, 3.0].map(|y| point(None, "a", 4.0, y));
        let plots = plots("f", &points);
        let dot = &plots[0].series[0].dots[0];
        assert_eq!((dot.key, dot.x, dot.y.median, dot.y.count), (4.0, 4.0, 3.0, Some(3.0)));
        assert_eq!(dot.y.spread.map(|it| (it.low, it.high)), Some((1.0, 9.0)));
    }

    #[test]
    fn each_plot_has_a_file_name_of_its_own() {
        let points = ["a, b", "a b", "../A"].map(|place| point(Some(place), "s", 1.0, 1.0));
        let names: Vec<String> = plots("f-1", &points).into_iter().map(|plot| plot.name).collect();
        assert_eq!(names, ["f-1-s-a", "f-1-s-a-b", "f-1-s-a-b-2"]);
        assert!(slug(&"é/".repeat(99)).is_empty() && slug(&"a".repeat(99)).len() == SLUG_MAX);
    }
}
