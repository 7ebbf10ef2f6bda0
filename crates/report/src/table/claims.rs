//! What the papers claim, and what became of it here: where that was measured, and a table a figure, as GitHub reads it, for a text
//! that says the same as the page; or a line of JSON a claim.

use serde_json::{Value, json};

use super::markdown::escaped;
use crate::figure::{Claim, Figure};
use crate::section::{Evaluation, Gap, Section};
use crate::verdict::{State, Verdict};

/// What is said of a claim that the machine cannot show.
const NOWHERE: &str = "not measurable here";

/// All figures with claims or gaps, those without lines among them.
pub(super) fn of_all(evaluation: &Evaluation) -> String {
    let of_section = |section: &Section| {
        let claims = section.claims.iter().flat_map(|(claim, verdicts)| {
            rows(section.figure, claim, verdicts, section.gap_of(claim))
        });
        of_figure(section.figure, section.gaps.iter().map(of_gap).chain(claims))
    };
    let of_missing = |figure: &&'static Figure| {
        of_figure(figure, figure.claims.iter().flat_map(|claim| rows(figure, claim, &[], None)))
    };
    let tables =
        evaluation.sections.iter().map(of_section).chain(evaluation.missing.iter().map(of_missing));
    let tables: Vec<String> = tables.flatten().collect();
    match tables.is_empty() {
        true => String::new(),
        false => format!("{}\n\n{}", escaped(&evaluation.provenance.sentence()), tables.join("\n")),
    }
}

/// All claims and gaps, a line of JSON each.
pub(super) fn json_of_all(evaluation: &Evaluation) -> String {
    let about = |figure: &Figure, claim: &str, subject: &str| {
        json!({
            "figure": figure.id,
            "source": figure.source,
            "title": figure.title,
            "command": figure.run,
            "claim": claim,
            "subject": subject,
        })
    };
    let with = |mut line: Value, more: Value| -> Value {
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        line
    };
    let of_claim =
        |figure: &Figure, claim: &Claim, verdict: Option<&Verdict>, gap: Option<&Gap>| {
            let subject = verdict.map_or_else(|| claim.only.join(", "), |it| it.title.clone());
            let wanted = claim.wants.says();
            let Some(Verdict { found, .. }) = verdict else {
                let more = match gap {
                    Some(gap) => json!({ "wanted": wanted, "verdict": NOWHERE, "why": gap.why }),
                    None => json!({ "wanted": wanted, "verdict": "not measured" }),
                };
                return with(about(figure, claim.says, &subject), more);
            };
            let state = match found.state {
                State::Met => "met",
                State::Short => "short",
                State::Unclear => "unclear",
                State::Elsewhere => "not measured there",
            };
            let more = json!({
                "wanted": wanted,
                "verdict": state,
                "value": found.figure,
                "p10": found.spread.map(|spread| spread[0]),
                "p90": found.spread.map(|spread| spread[1]),
                "at": found.place(figure),
            });
            with(about(figure, claim.says, &subject), more)
        };
    let of_section = |section: &Section| -> Vec<Value> {
        let figure = section.figure;
        let gap = |gap: &Gap| {
            let more = json!({ "verdict": NOWHERE, "why": gap.why });
            with(about(figure, "", &gap.subject.join(", ")), more)
        };
        let claims = section.claims.iter().flat_map(|(claim, verdicts)| match &verdicts[..] {
            [] => vec![of_claim(figure, claim, None, section.gap_of(claim))],
            some => {
                some.iter().map(|verdict| of_claim(figure, claim, Some(verdict), None)).collect()
            }
        });
        section.gaps.iter().map(gap).chain(claims).collect()
    };
    let of_missing = |figure: &&'static Figure| -> Vec<Value> {
        figure.claims.iter().map(|claim| of_claim(figure, claim, None, None)).collect()
    };
    let sections = evaluation.sections.iter().flat_map(of_section);
    let lines = sections.chain(evaluation.missing.iter().flat_map(of_missing));
    lines.map(|line| format!("{line}\n")).collect()
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

fn rows(
    figure: &Figure,
    claim: &Claim,
    verdicts: &[Verdict],
    gap: Option<&Gap>,
) -> Vec<[String; 3]> {
    let wanted = escaped(&claim.wants.says());
    if verdicts.is_empty() {
        let found = gap.map_or("not measured", |_| NOWHERE);
        return vec![[escaped(&claim.place(&claim.only.join(", "))), wanted, found.to_string()]];
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
    [escaped(&subject), String::new(), format!("{NOWHERE}: {}", escaped(&gap.why))]
}
