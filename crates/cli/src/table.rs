//! Tables for people.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use console::{Term, measure_text_width};
use tensorwire_base::human_bytes;
use tensorwire_train::ServerLoad;

use super::output::{columns_of, note};

/// Columns of a cell that is said as soon as it is known, at least: most have no more.
const CELL_MIN: usize = 9;
/// Blanks around a cell.
const PADDING: usize = 2;

/// A table with a header, whose columns `numbers` are aligned to the right. In a terminal it is as wide as that at most, if need be
/// in several parts below each other; programs that read it get each row in one line.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> String {
    // texts tell rows apart
    let keys = (0..header.len()).take_while(|column| !numbers.contains(column)).count();
    table_by(keys, header, rows, numbers)
}

/// The same, of which the first `keys` columns tell rows apart: each part begins with them.
pub(crate) fn table_by(
    keys: usize,
    header: &[&str],
    rows: &[Vec<String>],
    numbers: &[usize],
) -> String {
    table_within(columns_of(Term::stdout()), keys, header, rows, numbers)
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
    keys: usize,
    header: &[&str],
    rows: &[Vec<String>],
    numbers: &[usize],
) -> String {
    let cells = Cells { header, rows, numbers };
    // blanks at the end are cut off
    let columns = columns.map(|columns| columns + PADDING / 2);
    let parts = match columns {
        None => vec![(0..header.len()).collect()],
        Some(columns) => cells.parts(columns, keys),
    };
    let parts = parts.iter().map(|part| cells.part(columns, part));
    parts.collect::<Vec<String>>().join("\n\n")
}

/// What a table has.
struct Cells<'a> {
    header: &'a [&'a str],
    rows: &'a [Vec<String>],
    numbers: &'a [usize],
}

impl Cells<'_> {
    /// How wide a column must be to have no word and no number split.
    fn least(&self, index: usize) -> usize {
        let is_number = self.numbers.contains(&index);
        let pieces = |cell: &str| match is_number {
            true => measure_text_width(cell),
            false => widest_word(cell),
        };
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(|cell| pieces(cell)).max().unwrap_or(0);
        widest.max(widest_word(self.header[index])) + PADDING
    }

    fn least_of(&self, part: &[usize]) -> usize {
        part.iter().map(|&column| self.least(column)).sum()
    }

    /// The columns of each part, where `columns` have no room for all words of a row: as many as fit, behind the first `keys`.
    fn parts(&self, columns: usize, keys: usize) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.header.len()).collect();
        if self.least_of(&all) <= columns {
            return vec![all];
        }
        // the others need room, too
        let fits = |keys: &usize| self.least_of(&all[..*keys]) <= columns * 2 / 3;
        let keys = (1..=keys).rev().find(fits).unwrap_or(1).min(all.len().saturating_sub(1));
        let (keys, others) = all.split_at(keys);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for column in others {
            match parts.last_mut() {
                Some(part) if self.least_of(part) + self.least(*column) <= columns => {
                    part.push(*column);
                }
                _ => parts.push([keys, &[*column]].concat()),
            }
        }
        parts
    }

    /// Some columns as a table.
    fn part(&self, columns: Option<usize>, part: &[usize]) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(part.iter().map(|&at| self.header[at]));
        table.add_rows(self.rows.iter().map(|row| part.iter().filter_map(|&at| row.get(at))));
        if let Some(columns) = columns {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(narrow(columns));
        }
        let is_bounded = columns.is_some_and(|columns| self.least_of(part) <= columns);
        for (&at, column) in part.iter().zip(table.column_iter_mut()) {
            if self.numbers.contains(&at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if is_bounded {
                let least = Width::Fixed(narrow(self.least(at)));
                column.set_constraint(ColumnConstraint::LowerBoundary(least));
            }
        }
        table.trim_fmt()
    }
}

fn widest_word(text: &str) -> usize {
    text.split_whitespace().map(measure_text_width).max().unwrap_or(0)
}

/// Terminals are not wider.
fn narrow(columns: usize) -> u16 {
    u16::try_from(columns).unwrap_or(u16::MAX)
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
        let wide = table_within(None, 2, &header, &rows, &[2]);
        assert_eq!(wide.lines().count(), 2);
        assert!(wide.contains(&samples));
        for columns in [40, 60, 80] {
            let text = table_within(Some(columns), 2, &header, &rows, &[2]);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}:\n{text}");
            assert!(text.contains("bert-mini") && text.contains("42.73"), "{text}");
        }
    }

    #[test]
    fn a_table_for_which_a_terminal_is_too_narrow_comes_in_parts_and_no_word_is_split() {
        let header = ["strategy", "exchange", "workers", "compute", "efficiency", "most used"];
        let rows = ["1", "8"].map(|workers| {
            ["ps", "zero-copy", workers, "12.5 ms", "0.912", "cores of server 1"]
                .map(str::to_string)
                .to_vec()
        });
        let table = |columns| table_within(columns, 3, &header, &rows, &[2, 3, 4]);
        let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let whole = table(None);
        assert_eq!(table(Some(200)), whole);
        for (columns, parts) in [(80, 1), (58, 1), (50, 2), (40, 2), (12, 5)] {
            let text = table(Some(columns));
            assert_eq!(text.split("\n\n").count(), parts, "{columns}:\n{text}");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}:\n{text}");
            if columns < 40 {
                continue;
            }
            let found = words(&text);
            assert!(words(&whole).iter().all(|word| found.contains(word)), "{columns}:\n{text}");
            for part in text.split("\n\n") {
                let [head, one, eight] = part.lines().collect::<Vec<_>>()[..] else {
                    // a cell has several lines where that is enough
                    assert!([58, 40].contains(&columns), "{columns}:\n{text}");
                    continue;
                };
                assert!(head.starts_with(" strategy  exchange"), "{text}");
                assert!([one, eight].iter().all(|row| row.starts_with(" ps        zero-copy")));
            }
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
