//! A comparison on the page.

use maud::{Markup, html};

use super::{Change, RunComparison};

impl RunComparison {
    pub(crate) fn section(&self) -> Markup {
        let [before, after] = &self.names;
        html! {
            section id="compared" {
                h2 { "Compared: " (after) " against " (before) }
                p.says {
                    (self.summary()) ". Regressed and improved: by more than the tolerance, and each median outside of the other's \
                     spread. Unclear: by more than the tolerance, but within a spread. The figures below are of " (after) "."
                }
                @if let Some([before, after]) = &self.machines {
                    p.short { "On other machines: " (before) "; then " (after) "." }
                }
                div.wide {
                    table {
                        thead { tr { th { "row" } th.number { "change" } th { "verdict" } th.number { "before" } th.number { "after" } } }
                        tbody {
                            @for row in &self.rows {
                                tr {
                                    td { (row.name) }
                                    td.number { (row.change()) }
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
