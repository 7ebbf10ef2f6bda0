//! Tables for people.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use console::{Term, measure_text_width};
use tensorwire_base::human_bytes;
use tensorwire_train::ServerLoad;

use super::output::{columns_of, note};

/// Columns of a cell that is said as soon as it is known, at least: most have no more.
const CELL_MIN: usize = 9;
/// Blanks around a cell.
const PADDING: usize = 2;
/// Columns that a column of texts has at least where long names are broken.
const NAME_MIN: usize = 12;
/// Rows of a table in parts, at most: of more, parts would be screens apart.
const PARTED_ROWS_MAX: usize = 100;

/// A table with a header, whose columns `numbers` are aligned to the right. In a terminal it is as wide as that at most, if need be
/// in several parts below each other; programs that read it get each row in one line.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> String {
    // texts tell rows apart
    let keys = (0..header.len()).take_while(|column| !numbers.contains(column)).count();
    table_by(keys, header, rows, numbers)
}

/// The same, of which the first `keys` columns tell rows apart: each part has what it needs of them.
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
    let all: Vec<usize> = (0..header.len()).collect();
    let parts = match columns {
        Some(columns) if rows.len() <= PARTED_ROWS_MAX => cells.parts(columns, keys, all),
        _ => vec![all],
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
        let is_number = self.is_number(index);
        let pieces = |cell: &str| match is_number {
            true => measure_text_width(cell),
            false => widest_word(cell),
        };
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(|cell| pieces(cell)).max().unwrap_or(0);
        widest.max(widest_word(self.header[index])) + PADDING
    }

    fn is_number(&self, index: usize) -> bool {
        self.numbers.contains(&index)
    }

    /// The same, where a terminal has so many columns: a name that takes more than half of them is broken.
    fn least_within(&self, columns: usize, index: usize) -> usize {
        match self.is_number(index) {
            true => self.least(index),
            false => self.least(index).min((columns / 2).max(NAME_MIN)),
        }
    }

    fn least_of(&self, columns: usize, part: &[usize]) -> usize {
        part.iter().map(|&column| self.least_within(columns, column)).sum()
    }

    /// How many rows these columns tell apart.
    fn told_apart(&self, part: &[usize]) -> usize {
        let cells = |row: &'_ Vec<String>| -> Vec<Option<String>> {
            part.iter().map(|&column| row.get(column).cloned()).collect()
        };
        self.rows.iter().map(cells).collect::<BTreeSet<_>>().len()
    }

    /// Of the first `keys` columns those that each part has. The others need room, too: as long as these leave too little, the one
    /// goes without which the fewest rows look like others, and of several such the one with the fewest different cells.
    fn keys(&self, columns: usize, keys: usize) -> Vec<usize> {
        let mut keys: Vec<usize> = (0..keys.min(self.header.len() - 1).max(1)).collect();
        let fits = |keys: &[usize]| {
            let others = (0..self.header.len()).filter(|column| !keys.contains(column));
            let widest = others.map(|column| self.least_within(columns, column)).max().unwrap_or(0);
            self.least_of(columns, keys) <= (columns * 2 / 3).min(columns.saturating_sub(widest))
        };
        while keys.len() > 1 && !fits(&keys) {
            let without = |key: usize| {
                let others: Vec<usize> = keys.iter().copied().filter(|&it| it != key).collect();
                (Reverse(self.told_apart(&others)), self.told_apart(&[key]))
            };
            let least = keys.iter().copied().min_by_key(|&key| without(key));
            keys.retain(|&key| Some(key) != least);
        }
        keys
    }

    /// The columns of each part of `all`, where a terminal of so many has no room for all words of a row: as many as fit, beside its
    /// keys.
    fn parts(&self, columns: usize, keys: usize, all: Vec<usize>) -> Vec<Vec<usize>> {
        if self.least_of(columns, &all) <= columns {
            return vec![all];
        }
        let keys = self.keys(columns, keys);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for column in all.into_iter().filter(|column| !keys.contains(column)) {
            let has_room = |part: &&mut Vec<usize>| {
                self.least_of(columns, part) + self.least_within(columns, column) <= columns
            };
            match parts.last_mut().filter(has_room) {
                Some(part) => part.push(column),
                None => parts.push([keys.as_slice(), &[column]].concat()),
            }
        }
        // in the order of the table
        parts.iter_mut().for_each(|part| part.sort_unstable());
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
        // where not all words have room, numbers do
        let leasts = columns.and_then(|columns| {
            let words = |&at: &usize| self.least_within(columns, at);
            let numbers = |at: &usize| match self.is_number(*at) {
                true => self.least(*at),
                false => self.least(*at).min(NAME_MIN),
            };
            let all: [Vec<usize>; 2] =
                [part.iter().map(words).collect(), part.iter().map(numbers).collect()];
            all.into_iter().find(|leasts| leasts.iter().sum::<usize>() <= columns)
        });
        for (at, (&index, column)) in part.iter().zip(table.column_iter_mut()).enumerate() {
            if self.is_number(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if let Some(leasts) = &leasts {
                let least = Width::Fixed(narrow(leasts[at]));
                column.set_constraint(ColumnConstraint::LowerBoundary(least));
            }
        }
        table.trim_fmt()
    }
}

/// The first word has the blanks before it.
fn widest_word(text: &str) -> usize {
    let indent = measure_text_width(text) - measure_text_width(text.trim_start());
    let first = text.split_whitespace().next().map_or(0, measure_text_width);
    text.split_whitespace().map(measure_text_width).max().unwrap_or(0).max(indent + first)
}

/// Terminals are not wider.
fn narrow(columns: usize) -> u16 {
    u16::try_from(columns).unwrap_or(u16::MAX)
}

/// What each server of a key-value store holds, and all of them, for a terminal.
pub(crate) fn partition_table(term: Term, loads: &[ServerLoad]) -> String {
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
    table_within(columns_of(term), 1, &header, &rows, &[1, 2, 3, 4, 5])
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

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    fn rows_of<const N: usize>(
        rows: impl IntoIterator<Item = [&'static str; N]>,
    ) -> Vec<Vec<String>> {
        rows.into_iter().map(|row| row.map(str::to_string).to_vec()).collect()
    }

    #[test]
    fn a_table_for_which_a_terminal_is_too_narrow_comes_in_parts_and_no_word_is_split() {
        let header = ["strategy", "exchange", "workers", "compute", "efficiency", "most used"];
        let rows =
            rows_of(["1", "8"].map(|workers| {
                ["ps", "zero-copy", workers, "12.5 ms", "0.912", "cores of server 1"]
            }));
        let table = |columns| table_within(columns, 3, &header, &rows, &[2, 3, 4]);
        let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let whole = table(None);
        assert_eq!(table(Some(200)), whole);
        for (columns, parts) in [(80, 1), (58, 1), (50, 2), (40, 2), (30, 3)] {
            let text = table(Some(columns));
            assert_eq!(text.split("\n\n").count(), parts, "{columns}:\n{text}");
            assert!(widest(&text) <= columns, "{columns}:\n{text}");
            let found = words(&text);
            assert!(words(&whole).iter().all(|word| found.contains(word)), "{columns}:\n{text}");
            for part in text.split("\n\n") {
                assert!(part.lines().next().unwrap().contains("workers"), "{columns}:\n{text}");
            }
        }
        // as long as there is room for all that rows are of
        for part in table(Some(50)).split("\n\n") {
            let lines: Vec<&str> = part.lines().collect();
            assert!(lines[0].starts_with(" strategy  exchange  "), "{part}");
            assert!(
                lines[1..].iter().all(|row| row.starts_with(" ps        zero-copy ")),
                "{part}"
            );
        }
    }

    /// The header of `bench allreduce`, which has seven columns before its figures.
    #[test]
    fn each_part_has_what_differs_from_row_to_row() {
        let header = crate::bench::ALLREDUCE_HEADER;
        let rows = |algorithms: &[&'static str], sizes: &[&'static str]| {
            let all = algorithms.iter().flat_map(|algorithm| {
                let row = move |size: &&'static str| {
                    [
                        "4",
                        "1",
                        "shm",
                        "all-reduce",
                        "",
                        algorithm,
                        size,
                        "1.23 ms",
                        "1.11 ms",
                        "1.45 ms",
                        "12.34",
                        "18.51",
                        "192 MiB",
                        "96.0 MiB",
                        "512 MiB",
                    ]
                };
                sizes.iter().map(row)
            });
            rows_of(all)
        };
        let numbers = [0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let sizes = ["4.00 KiB", "16.0 KiB", "64.0 KiB"];
        for (algorithms, keys) in [
            (["ring"].as_slice(), ["size"].as_slice()),
            (&["ring", "auto: hierarchical"], &["algorithm", "size"]),
        ] {
            let rows = rows(algorithms, &sizes);
            for columns in [60, 80] {
                let text = table_within(Some(columns), 7, &header, &rows, &numbers);
                assert!(widest(&text) <= columns, "{columns}:\n{text}");
                let parts: Vec<&str> = text.split("\n\n").collect();
                assert!(parts.len() > 1, "{columns}:\n{text}");
                for part in parts {
                    let head = part.lines().next().unwrap();
                    assert!(keys.iter().all(|key| head.contains(key)), "{columns}:\n{text}");
                    assert!(sizes.iter().all(|size| part.contains(size)), "{columns}:\n{text}");
                }
                // what is in one part alone stands where it stood
                let at = |heading: &str| text.find(heading);
                assert!(at("ranks") < at("transport") && at("transport") < at("operation"));
            }
        }
    }

    #[test]
    fn of_a_long_name_numbers_stay_whole_and_many_rows_come_in_one_part() {
        let name = "encoder/layer_11/attention/self/query/weight_of_all_heads/momentum";
        let header = ["variable", "server", "bytes", "whole values"];
        let row = |at: usize| {
            vec![name.to_string(), "0".into(), format!("{}", 10_000_000 + at), "12345".into()]
        };
        for (count, columns, parts) in [(3, 60, 1), (3, 32, 3), (300, 60, 1), (300, 40, 1)] {
            let rows: Vec<Vec<String>> = (0..count).map(row).collect();
            let text = table_within(Some(columns), 1, &header, &rows, &[1, 2, 3]);
            assert_eq!(text.split("\n\n").count(), parts, "{columns}:\n{text}");
            assert!(widest(&text) <= columns, "{columns}:\n{text}");
            assert!(text.contains("10000001"), "{columns}:\n{text}");
            let letters = |text: &str| text.chars().filter(|it| it.is_ascii_lowercase()).count();
            assert!(letters(&text) >= count * letters(name), "{columns}:\n{text}");
        }
    }

    #[test]
    fn blanks_before_a_word_need_room() {
        assert_eq!(["  word", "a word", ""].map(widest_word), [6, 4, 0]);
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
