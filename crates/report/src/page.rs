//! The page: an outline first, then a section a figure. All text from lines is escaped by the templates; nothing refers to
//! anything outside.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::figure::{Axis, Claim, Figure, Shape, Unit, Wants};
use crate::plot::{Looks, draw, label};
use crate::plots::{Plot, Series};
use crate::section::{Evaluation, Section};
use crate::verdict::{Found, State, Verdict, compared, ratios, times};

const STYLE: &str = include_str!("page.css");

pub(crate) fn page(evaluation: &Evaluation) -> Markup {
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
                        (shortfalls(evaluation))
                        @for section in &evaluation.sections { (figure(section)) }
                        (goals(evaluation))
                        (evaluation.faults.section())
                    }
                    @for section in &evaluation.curves { (figure(section)) }
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
            "A curve a file. Where a run has many steps, a point is the mean of several, at the last of them. The last evaluation \
             of a run is of its end."
        }
        dl {
            dt { "Lines" }
            dd { (evaluation.lines) }
        }
    }
}

fn head(evaluation: &Evaluation) -> Markup {
    let Evaluation { sections, machines, commits, days, links, lines, .. } = evaluation;
    html! {
        h1 { "The papers' evaluation, measured" }
        p {
            "What three papers on distributed deep learning claim, what tensorwire shows of it, and what others do on the same \
             machine. Where something was measured several times, the median counts. A ratio above 1 is ours being better. "
            b { "Met" } " and " b { "short" } " compare it with the paper's, whose machines were others: "
            "their ratios include the difference between their networks, these do not."
        }
        dl {
            dt { "Measured on" }
            dd {
                @if machines.is_empty() { "a machine that the lines do not name" }
                @for machine in machines { span.machine { (machine) } }
                @if machines.len() > 1 { em { " Lines of several machines: ratios between them say little." } }
            }
            @if let (Some(first), Some(last)) = (days.first(), days.last()) {
                dt { "Date" }
                dd { (first) @if first != last { " to " (last) } }
            }
            @if !links.is_empty() {
                dt { "Links" }
                dd { @for link in links { span.machine { (link) } } }
            }
            @if !commits.is_empty() {
                dt { "Commit" }
                dd { @for commit in commits { code { (commit) } " " } }
            }
            dt { "Lines" }
            dd { (lines) }
        }
        div.wide {
            table.outline {
                thead { tr { th { "figure" } th.number { "met" } th.number { "short" } th.number { "not measured" } } }
                tbody {
                    @for section in sections {
                        @let count = section.count();
                        tr {
                            td { a href=(format!("#{}", section.figure.id)) { (section.figure.source) } " " (section.figure.title) }
                            td.number { (count.met) }
                            td.number { (count.short) }
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
            @if sections.is_empty() { p { "Nowhere, of what was measured." } }
            dl.short-list {
                @for Section { figure, claims, .. } in sections {
                    dt { a href=(format!("#{}", figure.id)) { (figure.source) } }
                    @for (claim, verdicts) in claims {
                        @for verdict in verdicts.iter().filter(|one| one.found.state == State::Short) {
                            dd { (place(claim, verdict)) ": " (shown(figure, &verdict.found)) }
                        }
                    }
                }
            }
        }
    }
}

fn figure(section: &Section) -> Markup {
    let Section { figure, plots, claims } = section;
    let looks = Looks::of(plots);
    html! {
        section id=(figure.id) {
            h2 { (figure.source) ": " (figure.title) }
            @if !figure.says.is_empty() { p.says { (figure.says) } }
            @if !claims.is_empty() { (claim_table(figure, claims)) }
            (looks.legend())
            div.plots {
                @for plot in plots {
                    figure {
                        @if !plot.title.is_empty() { figcaption { (plot.title) } }
                        (draw(figure, plot, &looks))
                    }
                }
            }
            @for plot in plots { (data(figure, plot)) }
            p.run { "Lines by " code { (figure.run) } }
        }
    }
}

fn claim_table(figure: &Figure, claims: &[(&Claim, Vec<Verdict>)]) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { th { "claim" } th { "wanted" } th { "here" } } }
                tbody {
                    @for (claim, verdicts) in claims {
                        @if verdicts.is_empty() {
                            tr.unmeasured {
                                td { (claim.says) (about(claim)) }
                                td { (claim.wants.says()) }
                                td { "not measured: no lines of " (absent(claim)) }
                            }
                        }
                        @for verdict in verdicts {
                            tr {
                                td { (place(claim, verdict)) }
                                td { (claim.wants.says()) }
                                td { (shown(figure, &verdict.found)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What is claimed, and in which plot.
fn place(claim: &Claim, verdict: &Verdict) -> String {
    match verdict.title.as_str() {
        "" => claim.says.to_string(),
        title => format!("{} ({title})", claim.says),
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
    let at = match figure.shape {
        Shape::Lines(x) => found.at.map(|at| format!(" ({})", along(x, at))),
        Shape::Curves(..) | Shape::Bars => None,
    };
    let class = match found.state {
        State::Met => "met",
        State::Short => "short",
        State::Elsewhere => "unmeasured",
    };
    html! {
        span class=(class) { (found) }
        (at.unwrap_or_default())
    }
}

/// A place on an axis, in words: `4 KiB`, `workers: 2`.
fn along(axis: Axis, at: f64) -> String {
    match axis.unit {
        Unit::Plain => format!("{}: {}", axis.title, label(axis.unit, at)),
        Unit::Bytes | Unit::Seconds => label(axis.unit, at),
    }
}

fn data(figure: &Figure, plot: &Plot) -> Markup {
    let title = if plot.title.is_empty() { figure.title } else { &plot.title };
    html! {
        details {
            summary { "Data: " (title) }
            div.wide {
                @match figure.shape {
                    Shape::Lines(x) => (over_x(figure, x, plot)),
                    Shape::Curves(x, key) => (over_key(figure, x, key, plot)),
                    Shape::Bars => (numbers(figure, plot)),
                }
            }
        }
    }
}

fn over_x(figure: &Figure, x: Axis, plot: &Plot) -> Markup {
    let comparisons = comparisons(figure, plot);
    html! {
        table {
            thead {
                tr {
                    th { (x.title) }
                    @for series in &plot.series { th.number { (series.name) } }
                    @for one in &comparisons { th.number { (one.ours) " over " (one.against) } }
                }
            }
            tbody {
                @for key in keys(&plot.series) {
                    tr {
                        td { (label(x.unit, key)) }
                        @for series in &plot.series {
                            @let dot = series.dots.iter().find(|dot| dot.key == key);
                            td.number { (dot.map(|dot| label(figure.y.unit, dot.y)).unwrap_or_default()) }
                        }
                        @for one in &comparisons {
                            @let ratio = one.ratios.iter().find(|(at, _)| *at == key);
                            td.number { @if let Some((_, ratio)) = ratio { (judged(one.least, *ratio)) } }
                        }
                    }
                }
            }
        }
    }
}

fn over_key(figure: &Figure, x: Axis, key_name: &str, plot: &Plot) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th { (key_name) }
                    @for series in &plot.series { th.number { (series.name) } }
                }
            }
            tbody {
                @for key in keys(&plot.series) {
                    tr {
                        td { (label(Unit::Plain, key)) }
                        @for series in &plot.series {
                            td.number {
                                @if let Some(dot) = series.dots.iter().find(|dot| dot.key == key) {
                                    (label(figure.y.unit, dot.y)) " at " (label(x.unit, dot.x)) " s"
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn numbers(figure: &Figure, plot: &Plot) -> Markup {
    html! {
        table {
            thead { tr { th { "series" } th.number { (figure.y.title) } } }
            tbody {
                @for series in &plot.series {
                    @for dot in &series.dots {
                        tr { td { (series.name) } td.number { (label(figure.y.unit, dot.y)) } }
                    }
                }
            }
        }
    }
}

/// Two series of a plot that a claim compares.
struct Comparison<'a> {
    ours: &'a str,
    against: &'a str,
    ratios: Vec<(f64, f64)>,
    /// Where a claim says so for every x.
    least: Option<f64>,
}

/// Each pair once.
fn comparisons<'a>(figure: &Figure, plot: &'a Plot) -> Vec<Comparison<'a>> {
    let mut all: Vec<Comparison<'a>> = Vec::new();
    for claim in figure.claims.iter().filter(|claim| claim.only.iter().all(|w| plot.is_about(w))) {
        let Some((ours, against)) = compared(claim, plot) else {
            continue;
        };
        let least = match claim.wants {
            Wants::Least(least) => Some(least),
            _ => None,
        };
        let known = all.iter_mut().find(|one| one.ours == ours.name && one.against == against.name);
        match known {
            Some(known) => known.least = known.least.or(least),
            None => all.push(Comparison {
                ours: &ours.name,
                against: &against.name,
                ratios: ratios(figure.better, ours, against),
                least,
            }),
        }
    }
    all
}

fn judged(least: Option<f64>, ratio: f64) -> Markup {
    let class = match least {
        Some(least) if ratio < least => "short",
        Some(_) => "met",
        None => "",
    };
    html! { span class=(class) { (times(ratio)) } }
}

/// All of them, ascending.
fn keys(series: &[Series]) -> Vec<f64> {
    let mut keys: Vec<f64> = series.iter().flat_map(|one| &one.dots).map(|dot| dot.key).collect();
    keys.sort_unstable_by(f64::total_cmp);
    keys.dedup();
    keys
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
