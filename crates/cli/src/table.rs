//! Tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use console::Term;
use tensorwire_base::human_bytes;
use tensorwire_train::ServerLoad;

use super::output::{columns_of, note};

/// Columns of a cell that is said as soon as it is known, at least: most have no more.
const CELL_MIN: usize = 9;

/// A table with a header, whose columns `numbers` are aligned to the right. In a terminal it is as wide as that at most;
/// programs that read it get each row in one line.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> String {
    table_within(columns_of(Term::stdout()), header, rows, numbers)
}

/// Says a row of a table as soon as it is known, behind its head if it is the first. Where a terminal is narrower, what it has no room
/// for is cut off: the table that comes in the end has all of it.
pub(crate) fn live(header: &[&str], row: &[String], is_first: bool) {
    live_within(columns_of(Term::stderr()), header, row, is_first).iter().for_each(note);
}

/// The same lines, of `columns` at most.
fn live_within(
    columns: Option<usize>,
    header: &[&str],
    row: &[String],
    is_first: bool,
) -> Vec<String> {
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let filled = header.iter().zip(cells).map(|(head, cell)| {
            let width = head.chars().count().max(CELL_MIN);
            format!("{cell:width$}")
        });
        let line = filled.collect::<Vec<String>>().join("  ");
        let most = columns.unwrap_or(usize::MAX);
        match line.trim_end() {
            line if line.chars().count() <= most => line.to_string(),
            line => line.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        }
    };
    let head = is_first.then(|| line(&mut header.iter().copied()));
    head.into_iter().chain([line(&mut row.iter().map(String::as_str))]).collect()
}

/// The same, of `columns` at most.
fn table_within(
    columns: Option<usize>,
    header: &[&str],
    rows: &[Vec<String>],
    numbers: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        // terminals are not wider
        table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
    }
    table.add_rows(rows);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// What each server of a key-value store holds, and all of them.
pub(crate) fn partition_table(loads: &[ServerLoad]) -> String {
    let row = |name: String, from: String, whole: usize, shards: usize, bytes: u64| {
        vec![
            name,
            from,
            whole.to_string(),
            shards.to_string(),
            bytes.to_string(),
            human_bytes(bytes),
        ]
    };
    let server = |load: &ServerLoad| {
        let ServerLoad { server, range, whole, shards, bytes } = load;
        row(server.to_string(), format!("{:#x}", range.start), *whole, *shards, *bytes)
    };
    let mut rows: Vec<Vec<String>> = loads.iter().map(server).collect();
    let sum = |of: fn(&ServerLoad) -> usize| loads.iter().map(of).sum();
    let bytes = loads.iter().map(|load| load.bytes).sum();
    rows.push(row(
        "all".into(),
        String::new(),
        sum(|load| load.whole),
        sum(|load| load.shards),
        bytes,
    ));
    let header = ["server", "keys from", "whole values", "shards of others", "bytes", ""];
    table(&header, &rows, &[1, 2, 3, 4, 5])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_to_a_terminal_and_else_has_a_line_a_row() {
        let header = ["model", "samples", "MiB"];
        let samples =
            "128 tokens of 30522, some of which are masked and are to be found".to_string();
        let rows = vec![vec!["bert-mini".to_string(), samples.clone(), "42.73".to_string()]];
        let wide = table_within(None, &header, &rows, &[2]);
        assert_eq!(wide.lines().count(), 2);
        assert!(wide.contains(&samples));
        for columns in [40, 60, 80] {
            let text = table_within(Some(columns), &header, &rows, &[2]);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}:\n{text}");
            assert!(text.contains("bert-mini") && text.contains("42.73"), "{text}");
        }
    }

    #[test]
    fn a_row_that_is_said_at_once_stands_under_its_head_and_is_cut_rather_than_wrapped() {
        let header = ["transport", "size", "one way", "throughput", "verified", "registered"];
        let row = ["tcp", "64 KiB", "25.1 µs", "2.61 GB/s", "yes", "18.0 MiB"].map(str::to_string);
        for columns in [60, 200] {
            let lines = live_within(Some(columns), &header, &row, true);
            assert_eq!(lines.len(), 2, "the first has a head");
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}: {lines:?}");
            for (head, cell) in [("transport", "tcp"), ("one way", "25.1"), ("throughput", "2.61")]
            {
                let at = |line: &str, of: &str| line.split(of).next().map(|it| it.chars().count());
                assert_eq!(at(&lines[0], head), at(&lines[1], cell), "{columns}: {lines:?}");
            }
            assert_eq!(lines.iter().all(|line| line.ends_with('…')), columns == 60, "{lines:?}");
            assert_eq!(lines[1].contains("18.0 MiB"), columns == 200, "{lines:?}");
            assert_eq!(live_within(Some(columns), &header, &row, false), lines[1..]);
        }
        // to a file as long as it is
        assert!(live_within(None, &header, &row, false)[0].ends_with("18.0 MiB"));
    }
}
