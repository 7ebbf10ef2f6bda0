//! Two runs held against each other: what became of each row, where both come from, and what cannot be compared.

use tensorwire_report::{Change, Line, compare, compare_last, report_compared};

use super::{parsed, texts, transfer};

#[test]
fn a_comparison_is_on_the_page_with_marks() {
    let lines = |step: f64| {
        let text =
            transfer("zero-copy", "tcp", 4096, 100.0) + &transfer("write", "tcp", 4096, step);
        Line::read_all("given.jsonl", &text).unwrap()
    };
    let (before, after) = (lines(100.0), lines(150.0));
    let comparison = compare(("a", &before), ("b", &after), 0.1).unwrap();
    let page = parsed(&report_compared(&after, &comparison).unwrap());
    let rows = texts(&page, "#compared tbody tr");
    assert_eq!(
        rows,
        [
            "transfer, write, tcp, 4 KiB: end to end+50.0 %+0.0 %▲ regressed100 ns150 ns",
            "transfer, zero-copy, tcp, 4 KiB: end to end+0.0 %+0.0 %= same100 ns100 ns",
        ]
    );
    assert_eq!(texts(&page, "#compared .short"), ["▲ regressed"]);
    let says = texts(&page, "#compared p").join("\n");
    assert!(says.contains("a: its lines say neither commit, date nor host"), "{says}");
}

/// A machine that became slower slows the program down, whatever was changed in it.
#[test]
fn a_comparison_says_where_both_come_from_and_what_became_of_the_machines_limit() {
    let of = |ns: u32, limit: &str, commit: &str, day: u32| {
        let line = format!(
            "{{\"bench\":\"transfer\",\"exchange\":\"write\",\"transport\":\"tcp\",\"sizes\":\"static\",\"limit\":\"memcpy\",\"bytes\":4096,\"end_to_end_ns\":{{\"median\":{ns}}}{limit},\
             \"machine\":{{\"commit\":\"{commit}\",\"host\":\"h\",\"date\":\"2026-11-{day}T01:02:03Z\"}}}}\n"
        );
        Line::read_all("given.jsonl", &line).unwrap()
    };
    let (memcpy, twice) = (",\"limit_ns\":{\"median\":10}", ",\"limit_ns\":{\"median\":20}");
    let before = of(100, memcpy, "0123456789abcdef", 26);
    let after = of(190, twice, "0123456789abcdef", 27);
    let found = compare(("a", &before), ("b", &after), 0.1).unwrap();
    let said = [
        "a: commit 0123456789ab; 2026-11-26; host h",
        "b: commit 0123456789ab; 2026-11-27; host h",
    ];
    assert_eq!(found.provenance, said);
    assert_eq!(
        (found.rows[0].change().as_str(), found.rows[0].limit_change().as_str()),
        ("+90.0 %", "+100.0 %")
    );
    let page = parsed(&report_compared(&after, &found).unwrap());
    let says = texts(&page, "#compared p").join("\n");
    let warns = "both are of commit 0123456789ab: but for changes that were not committed, what differs is the machine";
    for text in [said[0], said[1], warns, "Limit: by how much"] {
        assert!(says.contains(text), "{text}: {says}");
    }
    // the last of a file against those before it
    let all: Vec<Line> = before.iter().chain(&after).cloned().collect();
    let last = compare_last(("a", &all), 0.1).unwrap();
    let said = said[1].replacen("b:", "its last lines:", 1);
    assert_eq!(last.provenance[1], said);
    assert_eq!(last.rows[0].limit_change(), "+100.0 %");
    // what is of other commits, or of one that nobody knows, and has no limit
    for (earlier, later) in [("1", "2"), ("unknown", "unknown")] {
        let (before, after) = (of(100, memcpy, earlier, 26), of(100, "", later, 26));
        let found = compare(("a", &before), ("b", &after), 0.1).unwrap();
        assert_eq!((found.of_one_commit(), found.has_limits()), (None, false));
        let page = parsed(&report_compared(&before, &found).unwrap());
        assert_eq!(texts(&page, "#compared th").len(), 5);
    }
}

#[test]
fn what_was_learned_from_one_seed_each_is_no_change() {
    let run = |seed: u32, loss: f64| {
        let text = format!(
            r#"{{"summary":{{"model":"mlp","seed":{seed},"final_loss":{loss},"step_ms":{{"p10":9,"median":10,"p90":11}}}}}}"#
        );
        Line::read_all("f", &text).unwrap()
    };
    let (first, other, several) = (run(1, 0.5), run(2, 1.0), [run(2, 1.0), run(3, 1.1)].concat());
    for (before, after, verdict, says_why) in [
        (&first, &other, Change::Unclear, true),
        (&first, &run(1, 1.0), Change::Regressed, false),
        (&first, &run(2, 0.51), Change::Same, false),
        (&first, &several, Change::Regressed, false),
    ] {
        let found = compare(("a", before), ("b", after), 0.1).unwrap();
        let loss = found.rows.iter().find(|row| row.name.ends_with("final loss")).unwrap();
        assert_eq!((loss.verdict, found.of_other_seeds().is_some()), (verdict, says_why));
        // a step is as fast with any seed
        let step = found.rows.iter().find(|row| row.name.ends_with(": step")).unwrap();
        assert_eq!(step.verdict, Change::Same);
    }
}

#[test]
fn runs_that_share_no_row_cannot_be_compared() {
    let lines = |bytes| Line::read_all("f", &transfer("write", "tcp", bytes, 1.0)).unwrap();
    let error = compare(("a", &lines(4096)), ("b", &lines(8192)), 0.1).unwrap_err().to_string();
    assert!(error.starts_with("a and b have no row in common"), "{error}");
    let tea = Line::read_all("f", "{\"bench\":\"tea\"}").unwrap();
    let error = compare(("a", &lines(1)), ("b", &tea), 0.1).unwrap_err().to_string();
    assert!(error.starts_with("no line of b can be compared"), "{error}");
}
