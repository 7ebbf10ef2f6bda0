//! The page: an outline first, then a section a figure. All text from lines is escaped by the templates; nothing refers to
//! anything outside.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::compare::RunComparison;
use crate::figure::{Claim, Figure};
use crate::numbers::times;
use crate::origin::joined;
use crate::saved::PlotFiles;
use crate::section::{Evaluation, Gap, Section};
use crate::table::{Cell, Table};
use crate::verdict::{Found, State};

const STYLE: &str = include_str!("page.css");

/// `files` are all plots, in the order of the page.
pub(crate) fn page(
    evaluation: &Evaluation,
    files: &[PlotFiles],
    comparison: Option<&RunComparison>,
) -> Markup {
    let mut files = files.iter();
    let mut shown = |section: &Section| figure(section, files.by_ref().take(section.plots.len()));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "tensorwire: " (if evaluation.is_of_runs() { "training runs" } else { "the papers' evaluation, measured" }) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    @if evaluation.is_of_runs() {
                        (head_of_runs(evaluation))
                    } @else {
                        (head(evaluation))
                        @if let Some(comparison) = comparison { (comparison.section()) }
                        (shortfalls(evaluation))
                        @for section in &evaluation.sections { (shown(section)) }
                        (goals(evaluation))
                        (evaluation.faults.section())
                    }
                    @for section in &evaluation.curves { (shown(section)) }
                    @if !evaluation.is_of_runs() { (missing(evaluation)) }
                    (left_out(evaluation))
                }
            }
        }
    }
}

fn head_of_runs(evaluation: &Evaluation) -> Markup {
    html! {
        h1 { "Training runs" }
        p {
            "A curve a file. Files with the same settings and, but for their seed, the same name are one curve: their mean. "
            "Where a run has many steps, a point is the mean of several, at the last of them. The last evaluation of a run is of its end."
        }
        dl { (whence(evaluation)) }
        @if let Some((titles, rows)) = &evaluation.trained {
            div.wide {
                table.runs {
                    thead { tr { @for title in titles { th { (title) } } } }
                    tbody { @for row in rows { tr { @for cell in row { td { (cell) } } } } }
                }
            }
        }
    }
}

/// Where and when it was done, of how many lines.
fn whence(Evaluation { provenance, lines, .. }: &Evaluation) -> Markup {
    html! {
        dt { (provenance.how()) " on" }
        dd {
            @if provenance.machines.is_empty() { "a machine that the lines do not name" }
            @for machine in &provenance.machines { span.machine { (machine) } }
            @if provenance.machines.len() > 1 { em { " Lines of several machines: ratios between them say little." } }
        }
        @if !provenance.hosts.is_empty() {
            dt { (if provenance.hosts.len() == 1 { "Host" } else { "Hosts" }) }
            dd { (joined(&provenance.hosts, ", ")) }
        }
        @if let Some(date) = provenance.date() {
            dt { "Date" }
            dd { (date) }
        }
        @if !provenance.links.is_empty() {
            dt { "Links" }
            dd { @for link in &provenance.links { span.machine { (link) } } }
        }
        @if !provenance.commits.is_empty() {
            dt { "Commit" }
            dd { @for commit in &provenance.commits { code { (commit) } " " } }
        }
        @if !provenance.versions.is_empty() {
            dt { "Versions" }
            dd { (joined(&provenance.versions, ", ")) }
        }
        dt { "Lines" }
        dd { (lines) }
    }
}

fn head(evaluation: &Evaluation) -> Markup {
    let sections = &evaluation.sections;
    html! {
        h1 { "The papers' evaluation, measured" }
        p {
            "What three papers on distributed deep learning claim, what tensorwire shows of it, and what others do on the same \
             machine. Points are medians; bars around them reach from the 10th to the 90th percentile of the repetitions, of training steps to that of the \
             steps, or from the least to the greatest round, where lines have them. A ratio above 1 is ours being better. "
            b { "Met" } " and " b { "short" } " compare it with the paper's, whose machines were others: "
            "their ratios include the difference between their networks, these do not. " b { "Unclear" } ": the spread of what was "
            "measured has the paper's figure in it, or a ratio is within 10 % of the paper's and not both sides have a spread (but for "
            "what is to be within so many per cent)."
        }
        dl { (whence(evaluation)) }
        div.wide {
            table.outline {
                thead { tr { th { "figure" } th.number { "met" } th.number { "short" } th.number { "unclear" } th.number { "not measured" } } }
                tbody {
                    @for section in sections {
                        @let count = section.count();
                        tr {
                            td { a href=(format!("#{}", section.figure.id)) { (section.figure.source) } " " (section.figure.title) }
                            td.number { (count.met) }
                            td.number { (count.short) }
                            td.number { (count.unclear) }
                            td.number { (count.unmeasured) }
                        }
                    }
                }
            }
        }
    }
}

fn shortfalls(evaluation: &Evaluation) -> Markup {
    let short = |section: &Section| section.count().short > 0;
    let sections: Vec<&Section> = evaluation.sections.iter().filter(|one| short(one)).collect();
    html! {
        section id="short" {
            h2 { "Where we fall short" }
            @if sections.is_empty() {
                @match evaluation.sections.iter().map(|section| section.count().unclear).sum::<usize>() {
                    0 => p { "Nowhere, of what was measured." },
                    1 => p { "Nowhere for certain; 1 claim is unclear." },
                    unclear => p { "Nowhere for certain; " (unclear) " claims are unclear." },
                }
            }
            dl.short-list {
                @for Section { figure, claims, .. } in sections {
                    dt { a href=(format!("#{}", figure.id)) { (figure.source) } }
                    @for (claim, verdicts) in claims {
                        @for verdict in verdicts.iter().filter(|one| one.found.state == State::Short) {
                            dd { (claim.place(&verdict.title)) ": " (shown(figure, &verdict.found)) }
                        }
                    }
                }
            }
        }
    }
}

fn figure<'a>(section: &Section, files: impl Iterator<Item = &'a PlotFiles>) -> Markup {
    let Section { figure, plots, claims, gaps, .. } = section;
    html! {
        section id=(figure.id) {
            h2 { (figure.source) ": " (figure.title) }
            @if !figure.says.is_empty() { p.says { (figure.says) } }
            @for gap in gaps { (gap_shown(gap)) }
            @if !claims.is_empty() { (claim_table(section)) }
            div.plots {
                @for (plot, file) in plots.iter().zip(files) {
                    figure {
                        @if !plot.title.is_empty() { p.plot-title { (plot.title) } }
                        (PreEscaped(&file.svg))
                        figcaption { (file.caption) }
                        p.save {
                            "Save "
                            a download=(format!("{}.svg", file.name)) href=(file.svg_address()) { "SVG" }
                            " "
                            a download=(format!("{}.csv", file.name)) href=(file.csv_address()) { "CSV" }
                        }
                    }
                }
            }
            @for plot in plots {
                details {
                    summary { "Data: " (if plot.title.is_empty() { figure.title } else { &plot.title }) }
                    div.wide { (table(&Table::of(figure, plot))) }
                }
            }
            p.run { "Lines by " code { (figure.run) } }
        }
    }
}

fn gap_shown(gap: &Gap) -> Markup {
    html! {
        p.gap {
            b { "Not measured" }
            @if !gap.subject.is_empty() { " (" (gap.subject.join(", ")) ")" }
            ": " (gap.why) "."
            @if let Some(command) = &gap.command { " Where it can be: " code { (command) } }
        }
    }
}

fn table(table: &Table) -> Markup {
    let number = |index: usize| if index == 0 { None } else { Some("number") };
    html! {
        table {
            thead {
                tr { @for (index, head) in table.head.iter().enumerate() { th class=[number(index)] { (head) } } }
            }
            tbody {
                @for row in &table.rows {
                    tr { @for (index, one) in row.iter().enumerate() { td class=[number(index)] { (cell(one)) } } }
                }
            }
        }
    }
}

fn cell(cell: &Cell) -> Markup {
    let class = cell.is_met.map(|is_met| if is_met { "met" } else { "short" });
    html! {
        span class=[class] { (cell.text) }
        @if let Some([low, high]) = &cell.spread { " " small { "[" (low) ", " (high) "]" } }
    }
}

fn claim_table(section: &Section) -> Markup {
    let Section { figure, claims, .. } = section;
    html! {
        div.wide {
            table {
                thead { tr { th { "claim" } th { "wanted" } th { "here" } } }
                tbody {
                    @for (claim, verdicts) in claims {
                        @if verdicts.is_empty() {
                            tr.unmeasured {
                                td { (claim.says) (about(claim)) }
                                td.wanted { (claim.wants.says()) }
                                @match section.gap_of(claim) {
                                    Some(_) => td { "not measurable here" }
                                    None => td { "not measured: no lines of " (absent(claim)) }
                                }
                            }
                        }
                        @for verdict in verdicts {
                            tr {
                                td { (claim.place(&verdict.title)) }
                                td.wanted { (claim.wants.says()) }
                                td { (shown(figure, &verdict.found)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn about(claim: &Claim) -> String {
    if claim.only.is_empty() { String::new() } else { format!(" ({})", claim.only.join(", ")) }
}

fn absent(claim: &Claim) -> String {
    let sides = [claim.ours, claim.against].map(|names| names.join(" or "));
    let sides: Vec<String> = sides.into_iter().filter(|side| !side.is_empty()).collect();
    sides.join(" beside ") + &about(claim)
}

fn shown(figure: &Figure, found: &Found) -> Markup {
    let at = found.place(figure).map(|at| format!(" ({at})"));
    let class = match found.state {
        State::Met => "met",
        State::Short => "short",
        State::Unclear | State::Elsewhere => "unmeasured",
    };
    html! {
        span class=(class) { (found) }
        (at.unwrap_or_default())
    }
}

fn goals(evaluation: &Evaluation) -> Markup {
    html! {
        @if !evaluation.goals.is_empty() {
            section id="goals" {
                h2 { "Goals of the comparisons with peers" }
                p.says { "Judged round by round by the scripts in bench/peers, whose lines these are." }
                div.wide {
                    table {
                        thead { tr { th { "goal" } th.number { "at least" } th { "here" } } }
                        tbody {
                            @for goal in &evaluation.goals {
                                @let is_met = goal.ratio >= goal.at_least;
                                tr {
                                    td { (goal.name) " (" (goal.peer) ")" }
                                    td.number { (times(goal.at_least)) }
                                    td {
                                        span class=(if is_met { "met" } else { "short" }) {
                                            (if is_met { "met" } else { "short" }) ": " (times(goal.ratio)) " of " (times(goal.at_least))
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn missing(evaluation: &Evaluation) -> Markup {
    html! {
        @if !evaluation.missing.is_empty() {
            section id="missing" {
                h2 { "Figures without lines" }
                ul {
                    @for figure in &evaluation.missing {
                        li { (figure.source) ": " (figure.title) ". Run " code { (figure.run) } }
                    }
                }
            }
        }
    }
}

fn left_out(evaluation: &Evaluation) -> Markup {
    html! {
        @if !evaluation.left_out.is_empty() {
            section id="left-out" {
                h2 { "Lines left out" }
                ul {
                    @for left in &evaluation.left_out {
                        li {
                            (left.count) (if left.count == 1 { " line" } else { " lines" })
                            @if !left.kind.is_empty() { " of kind " code { (left.kind) } }
                            ": " (left.reason) "; the first is " code { (left.first) }
                        }
                    }
                }
            }
        }
    }
}
