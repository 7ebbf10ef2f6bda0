//! A comparison on the page.

use maud::{Markup, html};

use super::{Change, LIMIT, RunComparison};

impl RunComparison {
    pub(crate) fn section(&self) -> Markup {
        let ([before, after], limits) = (&self.names, self.has_limits());
        html! {
            section id="compared" {
                h2 { "Compared: " (after) " against " (before) }
                p.says {
                    (self.summary()) ". Regressed and improved: by more than the tolerance, and each median outside of the other's \
                     spread. Unclear: by more than the tolerance, but within a spread, or learned from another seed. "
                    @if limits { (LIMIT) ". " }
                    "The figures below are of " (after) "."
                }
                @for line in &self.provenance { p { (line) } }
                @if let Some(why) = self.of_one_commit() { p.short { (why) "." } }
                @if let Some(why) = self.of_other_seeds() { p.short { (why) "." } }
                @if let Some([before, after]) = &self.machines {
                    p.short { "On other machines: " (before) "; then " (after) "." }
                }
                div.wide {
                    table {
                        thead { tr { th { "row" } th.number { "change" } @if limits { th.number { "limit" } } th { "verdict" } th.number { "before" } th.number { "after" } } }
                        tbody {
                            @for row in &self.rows {
                                tr {
                                    td { (row.name) }
                                    td.number { (row.change()) }
                                    @if limits { td.number { (row.limit_change()) } }
                                    td.verdict { span class=(class(row.verdict)) { (sign(row.verdict)) " " (row.verdict) } }
                                    td.number { (row.before) }
                                    td.number { (row.after) }
                                }
                            }
                        }
                    }
                }
                (names("Missing in ", after, &self.missing))
                (names("Only in ", after, &self.added))
            }
        }
    }
}

fn names(what: &str, file: &str, names: &[String]) -> Markup {
    html! {
        @if !names.is_empty() {
            details {
                summary { (what) (file) ": " (names.len()) }
                ul { @for name in names { li { (name) } } }
            }
        }
    }
}

fn class(verdict: Change) -> &'static str {
    match verdict {
        Change::Regressed => "short",
        Change::Improved => "met",
        Change::Unclear | Change::Same => "unmeasured",
    }
}

/// For who cannot tell colours apart.
fn sign(verdict: Change) -> &'static str {
    match verdict {
        Change::Regressed => "▲",
        Change::Improved => "▼",
        Change::Unclear => "?",
        Change::Same => "=",
    }
}
