//! Tables as text: a row a line, numbers with commas between. The column named `label`, or the last, is what is learned.
//! Trusts nothing that it reads.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};

use super::error::DataError;
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::table::{self, Table};

/// The column that is learned, in any case.
const LABEL: &str = "label";

pub(super) fn open(given: &Given, _: SampleKind, seed: u64) -> Opened {
    let tables = given.files.iter().map(|path| read(path));
    let mut tables = tables.collect::<Result<Vec<Table>, DataError>>()?;
    let test = (tables.len() > 1).then(|| tables.remove(1));
    table::data("csv", tables.remove(0), test, seed)
}

fn read(path: &Path) -> Result<Table, DataError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|source| DataError::Unreadable { file: file.clone(), source })?;
    parse(&file, super::text::utf8(&file, &bytes)?)
}

/// The table in the text of a file. `file` is how errors name it.
pub(super) fn parse(file: &str, text: &str) -> Result<Table, DataError> {
    let bad =
        |line: u64, reason: String| DataError::BadLine { file: file.to_owned(), line, reason };
    let mut reader =
        ReaderBuilder::new().has_headers(false).trim(Trim::All).from_reader(text.as_bytes());
    let mut label = None;
    let (mut values, mut answers) = (vec![], vec![]);
    let mut columns = 0;
    for (row, record) in reader.records().enumerate() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, csv::Position::line);
            bad(line, format!("{error}; give every row as many numbers as the first"))
        })?;
        let line = record.position().map_or(0, csv::Position::line);
        if row == 0 {
            columns = record.len();
            if columns < 2 {
                let mend = "separate numbers by commas";
                return Err(bad(line, format!("it has one column, two are needed; {mend}")));
            }
            label = record.iter().position(|name| name.eq_ignore_ascii_case(LABEL));
            if is_header(&record) {
                continue;
            }
        }
        let label = label.unwrap_or(columns - 1);
        for (column, cell) in record.iter().enumerate() {
            let number = cell.parse::<f32>().ok().filter(|number| number.is_finite());
            let Some(number) = number else {
                let column = column + 1;
                let mend = "give numbers alone, classes as 0, 1, 2, …";
                return Err(bad(line, format!("column {column} is '{cell}', no number; {mend}")));
            };
            match column == label {
                true => answers.push(number),
                false => values.push(number),
            }
        }
    }
    let dims = [1, 1, columns.saturating_sub(1)];
    Ok(Table { file: file.to_owned(), dims, values, answers })
}

/// True if no cell is a number.
fn is_header(record: &StringRecord) -> bool {
    record.iter().all(|cell| cell.parse::<f32>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_the_named_column_or_the_last() {
        let named = parse("f", "a,Label,b\n1, 0 ,2.5\n3,1,4e1\n").unwrap();
        assert_eq!((named.dims, &named.values[..]), ([1, 1, 2], &[1.0, 2.5, 3.0, 40.0][..]));
        assert_eq!(named.answers, [0.0, 1.0]);
        let bare = parse("f", "1,2,7\r\n3,4,8").unwrap();
        assert_eq!(
            (&bare.values[..], &bare.answers[..]),
            (&[1.0, 2.0, 3.0, 4.0][..], &[7.0, 8.0][..])
        );
    }

    #[test]
    fn what_is_no_table_of_numbers_is_named_by_its_line() {
        let said = |text: &str| parse("f.csv", text).unwrap_err().to_string();
        let cell = said("a,b\n1,2\n3,x\n");
        assert!(cell.starts_with("'f.csv', line 3: column 2 is 'x', no number"), "{cell}");
        assert!(said("1,2\n3\n").starts_with("'f.csv', line 2: "));
        assert!(said("1\n2\n").starts_with("'f.csv', line 1: it has one column"));
        assert!(said("1,nan\n").contains("'nan'"));
    }
}
