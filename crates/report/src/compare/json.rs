//! A comparison as JSON, for programs. Its schema is in docs/command-line.md.

use serde_json::{Value, json};

use super::{Change, ComparedRow, RunComparison};
use crate::figure::Unit;
use crate::measure::{Between, Measure};

impl RunComparison {
    /// The comparison as one object: what became of each row.
    pub fn json(&self) -> Value {
        let count = |verdict| self.of(verdict).count();
        let [before, after] = &self.names;
        json!({
            "before_file": before,
            "after_file": after,
            "tolerance": self.tolerance,
            "machines": self.machines,
            "regressed": count(Change::Regressed),
            "improved": count(Change::Improved),
            "unclear": count(Change::Unclear),
            "same": count(Change::Same),
            "missing": self.missing,
            "new": self.added,
            "rows": self.rows.iter().map(row).collect::<Vec<Value>>(),
        })
    }
}

fn row(row: &ComparedRow) -> Value {
    let [before, after] = row.measures.each_ref().map(measure);
    json!({
        "row": row.name,
        "unit": match row.unit {
            Unit::Seconds => "s",
            // the row's name says it
            Unit::Bytes | Unit::Plain => "",
        },
        "before": before,
        "after": after,
        "ratio": row.ratio,
        "verdict": row.verdict.to_string(),
    })
}

fn measure(of: &Measure) -> Value {
    let mut found = json!({ "median": of.median });
    let ends = of.spread.and_then(|spread| match spread.between {
        Between::Percentiles => Some(("p10", "p90", spread)),
        Between::Rounds => Some(("min", "max", spread)),
        // of training runs, which are no rows of a comparison
        Between::Deviation => None,
    });
    if let Some((low, high, spread)) = ends {
        (found[low], found[high]) = (spread.low.into(), spread.high.into());
    }
    found
}
