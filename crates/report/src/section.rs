//! All lines, by the figures that show them; and those that none shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use crate::faults::{FAULTS, Matrix};
use crate::figure::{Claim, Figure, Point};
use crate::figures::{FIGURES, GOALS, NOT_MEASURED};
use crate::line::Line;
use crate::origin::{Origin, Provenance};
use crate::plots::{Plot, plots, points};
use crate::runs::{self, RUN};
use crate::seeds::Seeds;
use crate::verdict::{State, Verdict, verdicts};

/// What the page shows.
#[derive(Debug)]
pub(crate) struct Evaluation {
    /// Figures with lines.
    pub(crate) sections: Vec<Section>,
    /// Figures without.
    pub(crate) missing: Vec<&'static Figure>,
    pub(crate) goals: Vec<Goal>,
    /// What became of jobs that were hurt.
    pub(crate) faults: Matrix,
    /// What is known of training runs.
    pub(crate) curves: Vec<Section>,
    /// How many there are: several may share a curve.
    pub(crate) runs: usize,
    /// What they trained.
    pub(crate) trained: Option<(Vec<&'static str>, Vec<Vec<String>>)>,
    pub(crate) left_out: Vec<LeftOut>,
    /// The first file of which nothing is shown.
    pub(crate) useless: Option<UselessFile>,
    /// Where the lines were measured.
    pub(crate) provenance: Provenance,
    pub(crate) lines: usize,
}

/// A figure with what was measured for it.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) figure: &'static Figure,
    pub(crate) plots: Vec<Plot>,
    pub(crate) claims: Vec<(&'static Claim, Vec<Verdict>)>,
    /// What of it could not be measured.
    pub(crate) gaps: Vec<Gap>,
    /// Of training runs: what all of them trained.
    pub(crate) trained: Option<String>,
    /// Of training runs: some have more steps than points.
    pub(crate) is_thinned: bool,
}

/// What could not be measured where the lines are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Words of the title of the plot that there is none of; none: any plot of the figure.
    pub(crate) subject: Vec<String>,
    pub(crate) why: String,
    /// What measures it where it can be.
    pub(crate) command: Option<String>,
}

/// A goal that a comparison with a peer judged itself, in rounds.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) peer: String,
    pub(crate) name: String,
    pub(crate) at_least: f64,
    pub(crate) ratio: f64,
}

/// Lines of one kind that no figure could use, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What the lines say that they are; empty where they say nothing.
    pub kind: String,
    pub reason: String,
    pub count: usize,
    /// Where the first stands: `file:line`.
    pub first: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { kind, reason, count, first } = self;
        write!(f, "{count} {}", if *count == 1 { "line" } else { "lines" })?;
        if !kind.is_empty() {
            write!(f, " of kind {kind}")?;
        }
        write!(f, ": {reason}; the first is {first}")
    }
}

/// A file of which nothing is shown.
#[derive(Clone, Debug)]
pub(crate) struct UselessFile {
    pub(crate) file: String,
    /// Its lines.
    pub(crate) count: usize,
    /// Why the first cannot be shown, and where it stands.
    pub(crate) reason: String,
    pub(crate) first: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) met: usize,
    pub(crate) short: usize,
    pub(crate) unclear: usize,
    pub(crate) unmeasured: usize,
}

impl Evaluation {
    pub(crate) fn of(lines: &[Line]) -> Evaluation {
        let mut found: Vec<Vec<Point>> = FIGURES.iter().map(|_| Vec::new()).collect();
        let mut of_runs: Vec<Vec<Point>> = runs::FIGURES.iter().map(|_| Vec::new()).collect();
        let (mut goals, mut faults) = (Vec::new(), Matrix::default());
        let mut gaps: Vec<Vec<Gap>> = FIGURES.iter().map(|_| Vec::new()).collect();
        let mut left_out: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
        let mut useless: BTreeMap<&str, Option<UselessFile>> = BTreeMap::new();
        for line in lines {
            let used = match goal(line) {
                Some(goal) => goal.map(|goal| goals.push(goal)),
                None if line.kind() == Some(FAULTS) => faults.add(line),
                None if line.kind() == Some(NOT_MEASURED) => add_gap(line, &mut gaps),
                None if line.kind() == Some(RUN) => add_points(line, runs::FIGURES, &mut of_runs),
                None => add_points(line, FIGURES, &mut found),
            };
            let useless = useless.entry(line.file()).or_insert_with(|| match &used {
                Ok(()) => None,
                Err(reason) => Some(UselessFile::of(line, reason)),
            });
            match (&used, &mut *useless) {
                (Ok(()), _) => *useless = None,
                (Err(_), Some(file)) => file.count += 1,
                (Err(_), None) => {}
            }
            if let Err(reason) = used {
                let kind = line.kind().unwrap_or_default().to_string();
                left_out.entry((kind, reason)).or_insert((0, line.place())).0 += 1;
            }
        }
        let (mut sections, mut missing) = (Vec::new(), Vec::new());
        for ((&figure, points), gaps) in FIGURES.iter().zip(&found).zip(gaps) {
            match points.is_empty() && gaps.is_empty() {
                true => missing.push(figure),
                false => sections.push(Section::of(figure, points).with_gaps(gaps)),
            }
        }
        let seeds = Seeds::of(lines);
        let runs: BTreeSet<&str> =
            of_runs.iter().flatten().map(|one| one.series.as_str()).collect();
        let runs = runs.len();
        let curves = runs::FIGURES.iter().zip(&of_runs).filter(|(_, points)| !points.is_empty());
        let origins: BTreeMap<&str, Rc<Origin>> =
            lines.iter().filter_map(|line| Some((line.file(), Origin::of(line)?))).collect();
        let trained = runs::trained_alike(lines);
        let curves = curves.map(|(figure, points)| Section {
            trained: trained.clone(),
            is_thinned: runs::is_thinned(points),
            ..Section::of(figure, &runs::curves(points, &seeds, &origins))
        });
        let left_out = left_out.into_iter().map(|((kind, reason), (count, first))| LeftOut {
            kind,
            reason,
            count,
            first,
        });
        Evaluation {
            sections,
            missing,
            goals,
            faults,
            curves: curves.collect(),
            runs,
            trained: runs::trained(lines, &seeds),
            left_out: left_out.collect(),
            useless: useless.into_values().flatten().next(),
            provenance: Provenance::of(
                &lines.iter().filter_map(Origin::of).collect::<BTreeSet<_>>(),
            ),
            lines: lines.len(),
        }
    }

    /// All plots with their figures, in the order of the page.
    pub(crate) fn plots(&self) -> impl Iterator<Item = (&Section, &Plot)> {
        let sections = self.sections.iter().chain(&self.curves);
        sections.flat_map(|section| section.plots.iter().map(move |plot| (section, plot)))
    }

    /// True if there is nothing but training runs.
    pub(crate) fn is_of_runs(&self) -> bool {
        let has_none = self.sections.is_empty() && self.goals.is_empty();
        has_none && self.faults.is_empty() && !self.curves.is_empty()
    }

    pub(crate) fn count(&self) -> Count {
        self.sections.iter().map(Section::count).fold(Count::default(), |sum, one| Count {
            met: sum.met + one.met,
            short: sum.short + one.short,
            unclear: sum.unclear + one.unclear,
            unmeasured: sum.unmeasured + one.unmeasured,
        })
    }
}

impl UselessFile {
    /// Before its lines are counted.
    fn of(line: &Line, reason: &str) -> UselessFile {
        let (file, first) = (line.file().to_string(), line.place());
        UselessFile { file, count: 0, reason: reason.to_string(), first }
    }
}

impl Section {
    fn of(figure: &'static Figure, points: &[Point]) -> Section {
        let plots = plots(figure.id, points);
        let claims = figure.claims.iter().map(|claim| (claim, verdicts(figure, claim, &plots)));
        Section {
            claims: claims.collect(),
            figure,
            plots,
            gaps: Vec::new(),
            trained: None,
            is_thinned: false,
        }
    }

    /// With what could not be measured, but for what was elsewhere.
    fn with_gaps(self, gaps: Vec<Gap>) -> Section {
        let is_open = |gap: &Gap| {
            let shows = |plot: &Plot| gap.subject.iter().all(|word| plot.is_about(word));
            !self.plots.iter().any(shows)
        };
        let gaps = gaps.into_iter().filter(is_open).collect();
        Section { gaps, ..self }
    }

    /// Why a claim of which nothing was found cannot be measured where the lines are from, if they say so.
    pub(crate) fn gap_of(&self, claim: &Claim) -> Option<&Gap> {
        let is_all_of = |gap: &&Gap| gap.subject.iter().all(|word| claim.only.contains(&&**word));
        self.gaps.iter().find(is_all_of)
    }

    pub(crate) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.claims.iter().flat_map(|(_, verdicts)| verdicts)
    }

    pub(crate) fn count(&self) -> Count {
        let count = |state| self.verdicts().filter(|verdict| verdict.found.state == state).count();
        let absent = self.claims.iter().filter(|(_, verdicts)| verdicts.is_empty()).count();
        Count {
            met: count(State::Met),
            short: count(State::Short),
            unclear: count(State::Unclear),
            // a gap stands for its claims, and for one where it has none of its own
            unmeasured: absent.max(self.gaps.len()) + count(State::Elsewhere),
        }
    }
}

/// Adds what could not be measured to its figure; or says why it has none.
fn add_gap(line: &Line, gaps: &mut [Vec<Gap>]) -> Result<(), String> {
    let read = || {
        let subject = line.optional_texts("subject").into_iter().map(str::to_string).collect();
        let command = line.optional_text("command").map(str::to_string);
        Ok((line.text("figure")?, Gap { subject, why: line.text("why")?.to_string(), command }))
    };
    let (figure, gap) = read().map_err(|lacks: crate::line::Lacks| lacks.to_string())?;
    let place = FIGURES.iter().position(|one| one.id == figure);
    let gaps = place.and_then(|place| gaps.get_mut(place)).ok_or("no such figure")?;
    if !gaps.contains(&gap) {
        gaps.push(gap);
    }
    Ok(())
}

/// Adds a line to the figures that show it; or says why none does.
fn add_points(
    line: &Line,
    all: &[&'static Figure],
    found: &mut [Vec<Point>],
) -> Result<(), String> {
    let Some(kind) = line.kind() else {
        return Err("it does not say what was measured (no text `bench`)".to_string());
    };
    let figures: Vec<usize> =
        (0..all.len()).filter(|index| all[*index].kinds.contains(&kind)).collect();
    if figures.is_empty() {
        return Err("an unknown kind of line".to_string());
    }
    let (mut is_used, mut why) = (false, None);
    for index in figures {
        match points(all[index], line) {
            Ok(new) => {
                is_used |= !new.is_empty();
                found[index].extend(new);
            }
            Err(unusable) => why = Some(unusable.to_string()),
        }
    }
    match is_used {
        true => Ok(()),
        false => Err(why.unwrap_or_else(|| "no figure shows such a measurement".to_string())),
    }
}

/// None: the line is about something else.
fn goal(line: &Line) -> Option<Result<Goal, String>> {
    let kind = line.kind().filter(|kind| GOALS.contains(kind))?;
    let read = || {
        Ok(Goal {
            peer: line.optional_text("peer").unwrap_or(kind).to_string(),
            name: line.text("goal")?.to_string(),
            at_least: line.number("at_least")?,
            ratio: line.number("ratio")?,
        })
    };
    Some(read().map_err(|lacks: crate::line::Lacks| lacks.to_string()))
}
