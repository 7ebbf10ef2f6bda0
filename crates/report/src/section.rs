//! All lines, by the figures that show them; and those that none shows.

use std::collections::{BTreeMap, BTreeSet};

use crate::faults::{FAULTS, Matrix};
use crate::figure::{Claim, Figure, Point};
use crate::figures::{FIGURES, GOALS};
use crate::line::Line;
use crate::plots::{Plot, plots, points};
use crate::runs::{self, RUN};
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
    pub(crate) left_out: Vec<LeftOut>,
    /// Processors that the lines name.
    pub(crate) machines: BTreeSet<String>,
    pub(crate) commits: BTreeSet<String>,
    /// Days on which lines were measured.
    pub(crate) days: BTreeSet<String>,
    /// Links of the machines.
    pub(crate) links: BTreeSet<String>,
    pub(crate) lines: usize,
}

/// A figure with what was measured for it.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) figure: &'static Figure,
    pub(crate) plots: Vec<Plot>,
    pub(crate) claims: Vec<(&'static Claim, Vec<Verdict>)>,
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
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) count: usize,
    pub(crate) first: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) met: usize,
    pub(crate) short: usize,
    pub(crate) unmeasured: usize,
}

impl Evaluation {
    pub(crate) fn of(lines: &[Line]) -> Evaluation {
        let mut found: Vec<Vec<Point>> = FIGURES.iter().map(|_| Vec::new()).collect();
        let mut of_runs: Vec<Vec<Point>> = runs::FIGURES.iter().map(|_| Vec::new()).collect();
        let (mut goals, mut faults) = (Vec::new(), Matrix::default());
        let mut left_out: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
        for line in lines {
            let used = match goal(line) {
                Some(goal) => goal.map(|goal| goals.push(goal)),
                None if line.kind() == Some(FAULTS) => faults.add(line),
                None if line.kind() == Some(RUN) => add_points(line, runs::FIGURES, &mut of_runs),
                None => add_points(line, FIGURES, &mut found),
            };
            if let Err(reason) = used {
                let kind = line.kind().unwrap_or_default().to_string();
                left_out.entry((kind, reason)).or_insert((0, line.place())).0 += 1;
            }
        }
        let (mut sections, mut missing) = (Vec::new(), Vec::new());
        for (&figure, points) in FIGURES.iter().zip(&found) {
            match points.is_empty() {
                true => missing.push(figure),
                false => sections.push(Section::of(figure, points)),
            }
        }
        let curves = runs::FIGURES.iter().zip(of_runs).filter(|(_, points)| !points.is_empty());
        let curves = curves.map(|(figure, points)| Section::of(figure, &runs::thinned(points)));
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
            left_out: left_out.collect(),
            machines: lines.iter().filter_map(machine).collect(),
            commits: lines.iter().filter_map(commit).collect(),
            days: lines.iter().filter_map(day).collect(),
            links: lines.iter().flat_map(links).collect(),
            lines: lines.len(),
        }
    }

    /// True if a line could be used.
    pub(crate) fn shows_any(&self) -> bool {
        let has_none = self.sections.is_empty() && self.goals.is_empty();
        !(has_none && self.curves.is_empty() && self.faults.is_empty())
    }

    /// True if there is nothing but training runs.
    pub(crate) fn is_of_runs(&self) -> bool {
        let has_none = self.sections.is_empty() && self.goals.is_empty();
        has_none && self.faults.is_empty() && !self.curves.is_empty()
    }

    /// Returns the number of training runs.
    pub(crate) fn runs(&self) -> usize {
        let plots = self.curves.iter().flat_map(|section| &section.plots);
        let names: BTreeSet<&str> =
            plots.flat_map(|plot| &plot.series).map(|series| series.name.as_str()).collect();
        names.len()
    }

    pub(crate) fn count(&self) -> Count {
        self.sections.iter().map(Section::count).fold(Count::default(), |sum, one| Count {
            met: sum.met + one.met,
            short: sum.short + one.short,
            unmeasured: sum.unmeasured + one.unmeasured,
        })
    }
}

impl Section {
    fn of(figure: &'static Figure, points: &[Point]) -> Section {
        let plots = plots(points);
        let claims = figure.claims.iter().map(|claim| (claim, verdicts(figure, claim, &plots)));
        Section { claims: claims.collect(), figure, plots }
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
            unmeasured: absent + count(State::Elsewhere),
        }
    }
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

fn machine(line: &Line) -> Option<String> {
    let cpu = line.optional_text("machine.cpu")?;
    let machine = match line.optional_number("machine.cores") {
        Some(cores) => format!("{cores} cores, {cpu}"),
        None => cpu.to_string(),
    };
    Some(match line.optional_text("machine.kernel") {
        Some(kernel) => format!("{machine}, Linux {kernel}"),
        None => machine,
    })
}

fn day(line: &Line) -> Option<String> {
    let date = line.optional_text("machine.date")?;
    Some(date.chars().take("2026-11-26".len()).collect())
}

fn links(line: &Line) -> Vec<String> {
    line.optional_texts("machine.links").into_iter().map(str::to_string).collect()
}

fn commit(line: &Line) -> Option<String> {
    let commit = line.optional_text("commit").or(line.optional_text("machine.commit"))?;
    Some(commit.chars().take(12).collect())
}
