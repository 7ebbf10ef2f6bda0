//! What the papers claim, and what became of it here: where that was measured, and a table a figure, as GitHub reads it, for a text
//! that says the same as the page.

use super::markdown::escaped;
use crate::figure::{Claim, Figure};
use crate::section::{Evaluation, Gap, Section};
use crate::verdict::Verdict;

/// All figures with claims or gaps, those without lines among them.
pub(super) fn of_all(evaluation: &Evaluation) -> String {
    let of_section = |section: &Section| {
        let claims = section
            .claims
            .iter()
            .flat_map(|(claim, verdicts)| rows(section.figure, claim, verdicts));
        of_figure(section.figure, section.gaps.iter().map(of_gap).chain(claims))
    };
    let of_missing = |figure: &&'static Figure| {
        of_figure(figure, figure.claims.iter().flat_map(|claim| rows(figure, claim, &[])))
    };
    let tables =
        evaluation.sections.iter().map(of_section).chain(evaluation.missing.iter().map(of_missing));
    let tables: Vec<String> = tables.flatten().collect();
    match tables.is_empty() {
        true => String::new(),
        false => format!("{}\n\n{}", escaped(&evaluation.provenance.sentence()), tables.join("\n")),
    }
}

/// None where nothing is claimed.
fn of_figure(figure: &Figure, rows: impl Iterator<Item = [String; 3]>) -> Option<String> {
    let rows: String = rows.map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
    let (source, title) = (escaped(figure.source), escaped(figure.title));
    let head = format!(
        "**{source}: {title}.** `{}`\n\n| claim | wanted | here |\n|---|---|---|\n",
        figure.run
    );
    (!rows.is_empty()).then(|| head + &rows)
}

fn rows(figure: &Figure, claim: &Claim, verdicts: &[Verdict]) -> Vec<[String; 3]> {
    let wanted = escaped(&claim.wants.says());
    if verdicts.is_empty() {
        return vec![[
            escaped(&claim.place(&claim.only.join(", "))),
            wanted,
            "not measured".to_string(),
        ]];
    }
    let row = |verdict: &Verdict| {
        let at = verdict.found.place(figure).map(|at| format!(" ({at})")).unwrap_or_default();
        let found = format!("{}{at}", verdict.found);
        [escaped(&claim.place(&verdict.title)), wanted.clone(), escaped(&found)]
    };
    verdicts.iter().map(row).collect()
}

fn of_gap(gap: &Gap) -> [String; 3] {
    let subject = match gap.subject.is_empty() {
        true => "all".to_string(),
        false => gap.subject.join(", "),
    };
    [escaped(&subject), String::new(), format!("not measurable here: {}", escaped(&gap.why))]
}
