//! Two runs of the same benchmarks, row by row: what became slower or faster by more than its noise. Rows are the same where all
//! that the lines say of what was measured is the same. Knows no page and no exit status.

mod json;
mod page;
mod rows;

use std::fmt;
use std::rc::Rc;

use crate::figure::{Better, Unit};
use crate::line::Line;
use crate::measure::Measure;
use crate::origin::{Origin, Provenance, joined};
use crate::plot::label;
use rows::{Measured, Row, rows, without_rates};

/// What the change of a limit is.
pub const LIMIT: &str = "Limit: by how much the time of the machine's own limit (a memcpy, the loopback) beside a row changed";

/// What became of all rows.
#[derive(Clone, Debug)]
pub struct RunComparison {
    /// Of both runs: the regressed first, then the unclear, the improved, and those that are the same.
    pub rows: Vec<ComparedRow>,
    /// Rows that the later run lacks.
    pub missing: Vec<String>,
    /// Rows that the earlier run lacks.
    pub added: Vec<String>,
    /// What a row may change by, as a share, and still count as the same.
    pub tolerance: f64,
    /// Machines, where the two runs name others.
    pub machines: Option<[String; 2]>,
    /// Where both runs come from: what they are called, commit, date and host.
    pub provenance: [String; 2],
    /// The commit that both are of, if it is one.
    pub same_commit: Option<String>,
    /// What the runs are called.
    names: [String; 2],
}

/// A row of both.
#[derive(Clone, Debug)]
pub struct ComparedRow {
    /// All that tells it from others.
    pub name: String,
    pub before: String,
    pub after: String,
    /// The later over the earlier.
    pub ratio: f64,
    pub verdict: Change,
    /// Of the time that the machine's own limit took beside it (a memcpy, the loopback), where both runs measured it: the later over
    /// the earlier.
    pub limit_ratio: Option<f64>,
    unit: Unit,
    /// Before and after.
    measures: [Measure; 2],
    is_of_run: bool,
    /// What was learned from one seed is held against what was learned from another.
    is_of_other_seed: bool,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Worse by more than the tolerance, and each median is outside of the other's spread.
    Regressed,
    /// Other by more than the tolerance, but within a spread, or learned from another seed: measure again, longer, with more seeds.
    Unclear,
    Improved,
    /// Within the tolerance.
    Same,
}

/// There is nothing to compare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToCompare {
    #[error(
        "no line of {file} can be compared; give lines that `tensorwire bench … --json FILE` or the scripts in bench/peers wrote, or `tensorwire train --metrics FILE` to its end"
    )]
    NoRows { file: String },
    #[error(
        "{before} and {after} have no row in common; measure the same again: the first row of {before} is: {first}"
    )]
    NoneInCommon { before: String, after: String, first: String },
    /// Of one file.
    #[error(
        "{file} has no row twice; append another run of the same benchmark to it: --json {file}"
    )]
    OneRun { file: String },
    /// `--metrics` appends nothing.
    #[error(
        "{file} is of one training run; name the file of another to hold against it: tensorwire bench check {file} LATER"
    )]
    OneTrained { file: String },
}

/// Holds the lines of a later run against those of an earlier one. Of several lines of a row the median counts, and their spread
/// is that of all.
///
/// # Errors
/// When the runs have no row in common.
pub fn compare(
    (before_name, before): (&str, &[Line]),
    (after_name, after): (&str, &[Line]),
    tolerance: f64,
) -> Result<RunComparison, NothingToCompare> {
    let (mut earlier, mut later) = (rows(before), rows(after));
    let as_read = rows(before);
    without_rates(&mut earlier, &later);
    without_rates(&mut later, &as_read);
    for (file, rows) in [(before_name, &earlier), (after_name, &later)] {
        if rows.is_empty() {
            return Err(NothingToCompare::NoRows { file: file.to_string() });
        }
    }
    let origins = [before, after].map(|lines| lines.iter().filter_map(Origin::of).collect());
    let mut found = RunComparison::new([before_name, after_name], origins, tolerance);
    for row in &earlier {
        match later.iter().find(|other| other.key == row.key) {
            Some(other) => found.add(row, &row.measured, &other.measured),
            None => found.missing.push(row.name.clone()),
        }
    }
    let is_new = |row: &&Row| earlier.iter().all(|other| other.key != row.key);
    found.added = later.iter().filter(is_new).map(|row| row.name.clone()).collect();
    found.rows.sort_by_key(|row| row.verdict);
    match (found.rows.is_empty(), earlier.first()) {
        (true, Some(first)) => Err(NothingToCompare::NoneInCommon {
            before: before_name.to_string(),
            after: after_name.to_string(),
            first: first.name.clone(),
        }),
        _ => Ok(found),
    }
}

/// Holds the last line of each row against those before it, in a file to which runs were appended.
///
/// # Errors
/// When no row was measured twice.
pub fn compare_last(
    (name, lines): (&str, &[Line]),
    tolerance: f64,
) -> Result<RunComparison, NothingToCompare> {
    let mut all = rows(lines);
    without_rates(&mut all, &rows(lines));
    if all.is_empty() {
        return Err(NothingToCompare::NoRows { file: name.to_string() });
    }
    let (twice, once): (Vec<&Row>, Vec<&Row>) = all.iter().partition(|row| row.measured.len() > 1);
    let sides = [
        twice.iter().flat_map(|row| origins(&row.measured[..row.measured.len() - 1])).collect(),
        twice.iter().flat_map(|row| origins(&row.measured[row.measured.len() - 1..])).collect(),
    ];
    let mut found = RunComparison::new([name, "its last lines"], sides, tolerance);
    for row in twice {
        let (before, last) = row.measured.split_at(row.measured.len() - 1);
        found.add(row, before, last);
    }
    found.added = once.into_iter().map(|row| row.name.clone()).collect();
    found.rows.sort_by_key(|row| row.verdict);
    let file = name.to_string();
    match found.rows.is_empty() {
        true if all.iter().all(|row| row.is_of_run) => Err(NothingToCompare::OneTrained { file }),
        true => Err(NothingToCompare::OneRun { file }),
        false => Ok(found),
    }
}

impl RunComparison {
    fn new(names: [&str; 2], origins: [Vec<Rc<Origin>>; 2], tolerance: f64) -> RunComparison {
        let all = origins.each_ref().map(Provenance::of);
        let machines = all.each_ref().map(|one| joined(&one.machines, "; "));
        let [before, after] = all.each_ref().map(Provenance::commit);
        RunComparison {
            rows: Vec::new(),
            missing: Vec::new(),
            added: Vec::new(),
            tolerance,
            machines: (machines[0] != machines[1]).then_some(machines),
            provenance: [0, 1].map(|side| format!("{}: {}", names[side], all[side].whence())),
            same_commit: before.filter(|_| before == after).map(str::to_string),
            names: names.map(str::to_string),
        }
    }

    /// Rows of which this became.
    pub fn of(&self, verdict: Change) -> impl Iterator<Item = &ComparedRow> {
        self.rows.iter().filter(move |row| row.verdict == verdict)
    }

    /// How many rows became what, in words.
    pub fn summary(&self) -> String {
        let count = |verdict| format!("{} {verdict}", self.of(verdict).count());
        let all = [Change::Regressed, Change::Improved, Change::Unclear, Change::Same].map(count);
        format!(
            "{}; {} missing, {} new; tolerance {} %",
            all.join(", "),
            self.missing.len(),
            self.added.len(),
            percent(self.tolerance)
        )
    }

    /// Why a change may not be the program's, where both runs are of one commit.
    pub fn of_one_commit(&self) -> Option<String> {
        let commit = self.same_commit.as_deref()?;
        // what a training run learns at is no part of what it is called
        let has = |is_so: fn(&ComparedRow) -> bool| self.rows.iter().any(is_so);
        let given = match (has(|row| row.is_of_run), has(|row| row.is_of_other_seed)) {
            (true, true) => "the seed, what else was given (rate, optimizer), ",
            (true, false) => "what was given (rate, optimizer), ",
            (false, _) => "",
        };
        Some(format!(
            "both are of commit {commit}: but for changes that were not committed, what differs is {given}the machine or its load"
        ))
    }

    /// True if something is unclear by its spread.
    pub fn has_noise(&self) -> bool {
        self.of(Change::Unclear).any(|row| !row.is_of_other_seed)
    }

    /// Why what was learned is unclear, where it would be regressed or improved but for the seeds.
    pub fn of_other_seeds(&self) -> Option<&'static str> {
        let is_so = |row: &ComparedRow| row.is_of_other_seed && row.verdict == Change::Unclear;
        self.rows.iter().any(is_so).then_some(
            "the runs are of other seeds, one on each side, so that what they learned differs by chance: hold several seeds a side \
             against each other, or the same one",
        )
    }

    /// True if a row has a limit of the machine beside it in both runs.
    pub fn has_limits(&self) -> bool {
        self.rows.iter().any(|row| row.limit_ratio.is_some())
    }

    fn add(&mut self, row: &Row, before: &[Measured], after: &[Measured]) {
        let [limit_before, limit_after] = [before, after].map(limit_ns);
        let is_of_other_seed =
            row.is_learned && matches!((before, after), ([a], [b]) if a.seed != b.seed);
        let pooled = |of: &[Measured]| {
            Measure::pooled(&of.iter().map(|one| one.measure).collect::<Vec<Measure>>())
        };
        let (before, after) = (pooled(before), pooled(after));
        let shown = |measure: &Measure| {
            let median = label(row.unit, measure.median);
            let spread = measure.spread;
            spread.map_or(median.clone(), |it| {
                format!("{median} [{}, {}]", label(row.unit, it.low), label(row.unit, it.high))
            })
        };
        self.rows.push(ComparedRow {
            name: row.name.clone(),
            before: shown(&before),
            after: shown(&after),
            ratio: after.median / before.median,
            verdict: match judge(row.better, &before, &after, self.tolerance) {
                Change::Regressed | Change::Improved if is_of_other_seed => Change::Unclear,
                verdict => verdict,
            },
            limit_ratio: limit_before.zip(limit_after).map(|(before, after)| after / before),
            unit: row.unit,
            measures: [before, after],
            is_of_run: row.is_of_run,
            is_of_other_seed,
        });
    }
}

impl ComparedRow {
    /// By how much the median changed: `+12 %`.
    pub fn change(&self) -> String {
        by_percent(self.ratio)
    }

    /// The same of the time that the machine's limit took; empty where one run has none.
    pub fn limit_change(&self) -> String {
        self.limit_ratio.map(by_percent).unwrap_or_default()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Change::Regressed => "regressed",
            Change::Unclear => "unclear",
            Change::Improved => "improved",
            Change::Same => "same",
        })
    }
}

/// What became of a measure. A share of the smaller one, so that there and back is the same.
fn judge(better: Better, before: &Measure, after: &Measure, tolerance: f64) -> Change {
    let slower = match better {
        Better::Lower => after.median / before.median,
        Better::Higher => before.median / after.median,
    };
    let holds = |of: &Measure, value: f64| of.spread.is_some_and(|it| it.has(value));
    let is_noise = holds(before, after.median) || holds(after, before.median);
    match slower {
        slower if (1.0 / (1.0 + tolerance)..=1.0 + tolerance).contains(&slower) => Change::Same,
        _ if is_noise => Change::Unclear,
        slower if slower > 1.0 => Change::Regressed,
        _ => Change::Improved,
    }
}

fn origins(of: &[Measured]) -> impl Iterator<Item = Rc<Origin>> {
    of.iter().filter_map(|one| one.origin.clone())
}

/// The median of what the machine's limit took, if each line has it.
fn limit_ns(of: &[Measured]) -> Option<f64> {
    let limits = of.iter().map(|one| one.limit_ns.map(Measure::from));
    let limits: Vec<Measure> = limits.collect::<Option<_>>()?;
    Some(Measure::pooled(&limits).median)
}

fn by_percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn percent(share: f64) -> String {
    crate::numbers::without_zeros(&format!("{:.2}", share * 100.0)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Between, Spread};

    fn measure(low: f64, median: f64, high: f64) -> Measure {
        let spread = Spread { low, high, between: Between::Percentiles };
        Measure::new(median, Some(spread), Some(9.0))
    }

    #[test]
    fn a_change_counts_where_it_is_more_than_tolerance_and_noise() {
        let before = measure(9.0, 10.0, 12.0);
        for (after, verdict) in [
            (measure(10.0, 10.9, 11.0), Change::Same),
            (measure(12.0, 12.5, 13.0), Change::Regressed),
            (measure(8.0, 12.5, 13.0), Change::Unclear),
            (measure(11.5, 11.9, 13.0), Change::Unclear),
            (measure(5.0, 6.0, 7.0), Change::Improved),
            (Measure::from(12.5), Change::Regressed),
            (Measure::from(11.9), Change::Unclear),
        ] {
            assert_eq!(judge(Better::Lower, &before, &after, 0.1), verdict, "{after:?}");
        }
        let (slow, fast) = (Measure::from(1.0), Measure::from(2.0));
        assert_eq!(judge(Better::Higher, &slow, &fast, 0.1), Change::Improved);
        assert_eq!(judge(Better::Higher, &fast, &slow, 0.1), Change::Regressed);
        assert_eq!(judge(Better::Lower, &slow, &fast, 1.0), Change::Same);
        assert_eq!(judge(Better::Lower, &slow, &slow, 0.0), Change::Same);
    }
}
