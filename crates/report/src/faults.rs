//! The failure matrix: jobs that were hurt, a line each. What became of them, by strategy and by who was hurt when; and each
//! that did not do as is promised; and, for whoever asks, each with the first cause that it named.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::line::{Lacks, Line};

/// The kind of its lines.
pub(crate) const FAULTS: &str = "faults";
/// How they are made.
const RUN: &str = "cargo run -p tensorwire-testkit --example faults -- --json FILE";

/// What became of some cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    survived: usize,
    ended: usize,
    /// They were done before they were hurt, or this machine has not what they take.
    others: usize,
    wrong: usize,
    /// From the fault to the end of the last process.
    slowest_s: f64,
}

/// A cell that did not do as is promised.
#[derive(Clone, Debug, PartialEq)]
struct Complaint {
    cell: String,
    says: String,
}

/// What became of one cell.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    cell: String,
    outcome: String,
    seconds: f64,
    /// What the job said last: the first cause, where it ended.
    cause: String,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Matrix {
    all: Tally,
    /// By strategy and what heals it, by fault.
    by_strategy: BTreeMap<(String, String), BTreeMap<String, Tally>>,
    /// By who is hurt and when, by fault.
    by_moment: BTreeMap<(String, String), BTreeMap<String, Tally>>,
    complaints: Vec<Complaint>,
    rows: Vec<Row>,
}

impl Tally {
    fn add(&mut self, line: &Line) -> Result<(), Lacks> {
        match line.text("outcome")? {
            "survived" => self.survived += 1,
            "ended" => self.ended += 1,
            _ => self.others += 1,
        }
        self.wrong += usize::from(line.optional_text("complaint").is_some());
        self.slowest_s = self.slowest_s.max(line.number("seconds")?);
        Ok(())
    }

    fn cells(&self) -> usize {
        self.survived + self.ended + self.others
    }
}

impl Matrix {
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), String> {
        let lacks = |lacks: Lacks| lacks.to_string();
        let fields = ["strategy", "heals", "role", "phase", "fault"];
        let mut words = Vec::with_capacity(fields.len());
        for field in fields {
            words.push(line.text(field).map_err(lacks)?.to_string());
        }
        let Ok([strategy, heals, role, phase, fault]) = <[String; 5]>::try_from(words) else {
            return Err("too few words".to_string());
        };
        // checked before anything is counted
        Tally::default().add(line).map_err(lacks)?;
        let rows = [
            self.by_strategy.entry((strategy.clone(), heals.clone())),
            self.by_moment.entry((role.clone(), phase.clone())),
        ];
        for row in rows {
            let tally = row.or_default().entry(fault.clone()).or_default();
            tally.add(line).map_err(lacks)?;
        }
        self.all.add(line).map_err(lacks)?;
        let way = ["transport", "exchange"].map(|of| line.optional_text(of).unwrap_or("?"));
        let cell = format!(
            "{strategy}, {} ({}), against it {heals}: {fault} of {role} at {phase}",
            way[0], way[1]
        );
        if let Some(says) = line.optional_text("complaint") {
            self.complaints.push(Complaint { cell: cell.clone(), says: says.to_string() });
        }
        let outcome = line.text("outcome").map_err(lacks)?.to_string();
        let seconds = line.number("seconds").map_err(lacks)?;
        let said = line.optional_text("cause").unwrap_or_default();
        // a job that is done says last what it trained
        let cause = if outcome == "survived" { String::new() } else { said.to_string() };
        self.rows.push(Row { cell, outcome, seconds, cause });
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all == Tally::default()
    }

    /// The section of the page.
    pub(crate) fn section(&self) -> Markup {
        let Tally { survived, ended, others, wrong, slowest_s } = &self.all;
        html! {
            @if !self.is_empty() {
                section id="faults" {
                    h2 { "Failures: what becomes of a job that is hurt" }
                    p.says {
                        (self.all.cells()) " jobs were hurt, each once: " (survived) " were done all the same, " (ended)
                        " ended, " (others) " were done before or could not be tried here. "
                        @if *wrong == 0 { span.met { "All as promised." } }
                        @else { span.short { (wrong) " not as promised." } }
                        " The last process was gone " (format!("{slowest_s:.1}")) " s after the fault at the latest. A cell says \
                         how many survived / ended, and the slowest."
                    }
                    (table(&self.by_strategy, ["strategy", "against it"]))
                    (table(&self.by_moment, ["who", "when"]))
                    @if !self.complaints.is_empty() {
                        details {
                            summary { "Not as promised" }
                            dl.short-list {
                                @for Complaint { cell, says } in &self.complaints { dt { (cell) } dd { (says) } }
                            }
                        }
                    }
                    details {
                        summary { "Each job: what became of it, and the first cause that it named" }
                        (self.each())
                    }
                    p.run { "Lines by " code { (RUN) } }
                }
            }
        }
    }
}

impl Matrix {
    /// All cells, in order.
    fn each(&self) -> Markup {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|one, other| one.cell.cmp(&other.cell));
        html! {
            div.wide {
                table {
                    thead { tr { th { "job" } th { "outcome" } th.number { "seconds" } th { "first cause" } } }
                    tbody {
                        @for Row { cell, outcome, seconds, cause } in rows {
                            tr {
                                td { (cell) }
                                td { (outcome) }
                                td.number { (format!("{seconds:.1}")) }
                                td { (cause) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn table(rows: &BTreeMap<(String, String), BTreeMap<String, Tally>>, heads: [&str; 2]) -> Markup {
    let faults = [
        "kill",
        "stop",
        "term",
        "out-of-memory",
        "full-disk",
        "cut-link",
        "half-open-link",
        "slow-link",
    ];
    html! {
        div.wide {
            table {
                thead { tr { @for head in heads { th { (head) } } @for fault in faults { th.number { (fault) } } } }
                tbody {
                    @for ((first, second), tallies) in rows {
                        tr {
                            td { (first) }
                            td { (second) }
                            @for fault in faults { td.number { @if let Some(tally) = tallies.get(fault) { (cell(tally)) } } }
                        }
                    }
                }
            }
        }
    }
}

fn cell(tally: &Tally) -> Markup {
    let Tally { survived, ended, wrong, slowest_s, .. } = tally;
    html! {
        span class=(if *wrong == 0 { "met" } else { "short" }) {
            (survived) " / " (ended)
            @if *wrong > 0 { ", " (wrong) " wrong" }
        }
        (format!(" {slowest_s:.1} s"))
    }
}
