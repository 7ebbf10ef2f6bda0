//! The points of lines, put together: which plots a figure has, and which series they show.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure::{Figure, Point, Role, Scale, Shape};
use crate::line::{Lacks, Line};

/// What is seen at once: one subject in one place.
#[derive(Debug)]
pub(crate) struct Plot {
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

/// The medians of what was measured for one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dot {
    pub(crate) key: f64,
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// Why a figure could not use a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Why {
    #[error("{0}")]
    Lacks(#[from] Lacks),
    #[error("a number that has no place on its axis")]
    OffAxis,
}

impl Plot {
    pub(crate) fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
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
    if points.iter().all(|point| shown(x_scale, point.x) && shown(figure.y.scale, point.y)) {
        Ok(points)
    } else {
        Err(Why::OffAxis)
    }
}

/// All plots of a figure's points, by title.
pub(crate) fn plots(points: &[Point]) -> Vec<Plot> {
    let mut titles: BTreeSet<(&str, Option<&str>)> =
        points.iter().map(|point| (point.subject.as_str(), point.place.as_deref())).collect();
    let placed: BTreeSet<&str> =
        titles.iter().filter(|(_, place)| place.is_some()).map(|(subject, _)| *subject).collect();
    titles.retain(|(subject, place)| place.is_some() || !placed.contains(subject));
    titles.into_iter().map(|(subject, place)| plot(points, subject, place)).collect()
}

fn plot(points: &[Point], subject: &str, place: Option<&str>) -> Plot {
    let mut found: BTreeMap<(Role, &str), Vec<&Point>> = BTreeMap::new();
    for point in points {
        let elsewhere = point.place.is_some() && point.place.as_deref() != place;
        if point.subject == subject && !elsewhere {
            found.entry((point.role, &point.series)).or_default().push(point);
        }
    }
    let series = found.into_iter().map(|((role, name), points)| Series {
        name: name.to_string(),
        role,
        dots: dots(points),
    });
    let words = [subject, place.unwrap_or_default()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    Plot { title: words.join(", "), series: series.collect() }
}

fn dots(mut points: Vec<&Point>) -> Vec<Dot> {
    points.sort_by(|a, b| a.key.total_cmp(&b.key));
    let same = points.chunk_by(|a, b| a.key == b.key);
    same.map(|same| Dot {
        key: same[0].key,
        x: median(same.iter().map(|point| point.x)),
        y: median(same.iter().map(|point| point.y)),
    })
    .collect()
}

/// Of at least one.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
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
            y,
        }
    }

    #[test]
    fn what_has_no_place_is_beside_all_places() {
        let points = [
            point(Some("tcp"), "a", 1.0, 1.0),
            point(Some("shm"), "a", 1.0, 2.0),
            point(None, "peer", 1.0, 3.0),
        ];
        let plots = plots(&points);
        let titles: Vec<&str> = plots.iter().map(|plot| plot.title.as_str()).collect();
        assert_eq!(titles, ["s, shm", "s, tcp"]);
        assert!(plots.iter().all(|plot| plot.series("peer").is_some()));
        assert!(plots[0].is_about("shm") && !plots[0].is_about("tcp"));
        assert_eq!(super::plots(&points[2..]).len(), 1, "alone it has a plot of its own");
    }

    #[test]
    fn repetitions_count_by_their_median() {
        let points = [1.0, 9.0, 3.0].map(|y| point(None, "a", 4.0, y));
        assert_eq!(plots(&points)[0].series[0].dots, [Dot { key: 4.0, x: 4.0, y: 3.0 }]);
    }
}
