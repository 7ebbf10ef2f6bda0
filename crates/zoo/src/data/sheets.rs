//! Tables as text: a row a line, numbers with commas between. The column named `label`, or the last, is what is learned; words
//! there are classes.
//! Trusts nothing that it reads.

use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord, Trim};

use super::error::DataError;
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::table::{self, Table};

/// The column that is learned, in any case.
const LABEL: &str = "label";

pub(super) fn open(given: &Given, wanted: SampleKind, seed: u64) -> Opened {
    let sheets = given.files.iter().map(|path| read(path));
    let sheets = sheets.collect::<Result<Vec<_>, DataError>>()?;
    if let [(train, Some(of_train)), (test, Some(of_test))] = &sheets[..] {
        same_columns((&train.file, of_train), (&test.file, of_test))?;
    }
    let mut tables: Vec<Table> = sheets.into_iter().map(|(table, _)| table).collect();
    let test = (tables.len() > 1).then(|| tables.remove(1));
    table::data("csv", tables.remove(0), test, wanted, seed)
}

/// The table in a file, and the names of its columns if it has such.
fn read(path: &Path) -> Result<(Table, Option<StringRecord>), DataError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|source| DataError::Unreadable { file: file.clone(), source })?;
    let text = super::text::utf8(&file, &bytes)?;
    let first = reader(text).records().next();
    let header = first.and_then(Result::ok).filter(is_header);
    Ok((parse(&file, text)?, header))
}

/// Fails if the columns of the test are not those of training, in any case and in the same order.
fn same_columns(
    train: (&str, &StringRecord),
    test: (&str, &StringRecord),
) -> Result<(), DataError> {
    let (names, others) = (train.1, test.1);
    if names.len() == others.len()
        && names.iter().zip(others).all(|(a, b)| a.eq_ignore_ascii_case(b))
    {
        return Ok(());
    }
    let mend = format!("'{}'; write the same in the same order", train.0);
    let first = names.iter().zip(others).zip(1..).find(|((a, b), _)| !a.eq_ignore_ascii_case(b));
    let reason = match first {
        Some(((name, other), column)) => {
            format!("its column {column} is '{other}', and '{name}' in {mend}")
        }
        None => format!("it has {} columns, and {} are in {mend}", others.len(), names.len()),
    };
    Err(DataError::BadLine { file: test.0.to_owned(), line: 1, reason })
}

fn reader(text: &str) -> Reader<&[u8]> {
    ReaderBuilder::new().has_headers(false).trim(Trim::All).from_reader(text.as_bytes())
}

/// The table in the text of a file. `file` is how errors name it.
pub(super) fn parse(file: &str, text: &str) -> Result<Table, DataError> {
    let bad =
        |line: u64, reason: String| DataError::BadLine { file: file.to_owned(), line, reason };
    let mut reader = reader(text);
    let mut label = None;
    let (mut values, mut answers, mut names) = (vec![], vec![], vec![]);
    let mut has_words = false;
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
            let number = cell.parse::<f32>();
            if column == label && number.is_err() && !cell.is_empty() {
                has_words = true;
                names.push(cell.to_owned());
                continue;
            }
            let Some(number) = number.ok().filter(|number| number.is_finite()) else {
                let column = column + 1;
                let mend = "give numbers, and words only in the column that is learned, the last or 'label'";
                return Err(bad(line, format!("column {column} is '{cell}', no number; {mend}")));
            };
            match column == label {
                true => {
                    answers.push(number);
                    names.push(cell.to_owned());
                }
                false => values.push(number),
            }
        }
    }
    let dims = [1, 1, columns.saturating_sub(1)];
    // those that are numbers alone say nothing of the others
    let (answers, names) = match has_words {
        true => (vec![0.0; names.len()], Some(names)),
        false => (answers, None),
    };
    Ok(Table { file: file.to_owned(), dims, values, answers, names })
}

/// True if no cell is a number.
fn is_header(record: &StringRecord) -> bool {
    record.iter().all(|cell| cell.parse::<f32>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: SampleKind = SampleKind::Images { dims: [28, 28, 1], classes: 10 };

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
    fn a_test_with_its_columns_in_another_order_is_refused() {
        let record = |names: &[&str]| StringRecord::from(names);
        let train = record(&["a", "b", "label"]);
        let said = |names: &[&str]| same_columns(("f", &train), ("g", &record(names)));
        said(&["A", "b", "Label"]).unwrap();
        for (other, says) in [
            (&["a", "c", "label"][..], "its column 2 is 'c', and 'b' in 'f'"),
            (&["a", "label"], "its column 2 is 'label', and 'b' in 'f'"),
            (&["a", "b", "label", "d"], "it has 4 columns, and 3 are in 'f'"),
        ] {
            let error = said(other).unwrap_err().to_string();
            let says = format!("'g', line 1: {says}; write the same in the same order");
            assert_eq!(error, says);
        }
    }

    #[test]
    fn words_are_classes_in_the_order_of_their_characters() {
        let sheet = |text: &str| parse("f.csv", text).unwrap();
        let train = "size,species\n1,virginica\n2,setosa\n3,setosa\n4,versicolor\n";
        assert_eq!(sheet(train).names.unwrap()[..2], ["virginica", "setosa"]);
        let data = |test: &str| table::data("csv", sheet(train), Some(sheet(test)), WANTED, 1);
        let data = data("size,species\n5,versicolor\n6,virginica\n").unwrap();
        let found = SampleKind::of(&data.train.describe());
        assert_eq!(found, Some(SampleKind::Images { dims: [1, 1, 1], classes: 3 }));
        let labels = |of: &dyn tensorwire_nn::BatchSource, rows: &[usize]| {
            let mut batch = tensorwire_nn::HostBatch::new();
            of.fill(rows, rows.len(), &mut batch).unwrap();
            batch.get("labels").unwrap().bytes().iter().step_by(4).copied().collect::<Vec<u8>>()
        };
        assert_eq!(labels(&*data.train, &[0, 1, 2, 3]), [2, 0, 0, 1]);
        let note = "3 classes: 0 is setosa, 1 is versicolor, 2 is virginica";
        assert_eq!(data.train.note().as_deref(), Some(note));
        assert_eq!(labels(&**data.test.as_ref().unwrap(), &[0, 1]), [1, 2]);
    }

    #[test]
    fn what_looks_as_if_it_were_meant_otherwise_is_said() {
        let note = |text: &str| {
            let data = table::data("csv", parse("f.csv", text).unwrap(), None, WANTED, 1);
            data.unwrap().train.note()
        };
        assert_eq!(note("1,0\n2,1\n3,2\n"), None);
        let says = "no sample is of class 0: its labels are from 1 to 3; if they are counted from 1, subtract 1 from each";
        assert_eq!(note("1,1\n2,2\n3,3\n").as_deref(), Some(says));
        let says = "13 classes, since the largest label is 12, and no sample is of class 2 to 11";
        assert_eq!(note("1,0\n2,1\n3,12\n").as_deref(), Some(says));
        let says = "5 classes, since the largest label is 4, and no sample is of class 2";
        assert_eq!(note("1,0\n2,1\n3,3\n3,4\n").as_deref(), Some(says));
        let photos = Table {
            file: "f".to_owned(),
            dims: [3, 32, 32],
            values: vec![0.0; 2 * 3 * 32 * 32],
            answers: vec![0.0, 1.0],
            names: None,
        };
        let note = table::data("npy", photos, None, WANTED, 1).unwrap().train.note().unwrap();
        assert!(
            note.starts_with("images 3 high and 32 wide with 32 channels: if channels"),
            "{note}"
        );
    }

    #[test]
    fn words_that_are_no_classes_say_what_is_wrong() {
        let sheet = |text: &str| parse("f.csv", text).unwrap();
        let said = |train: &str, test: Option<&str>| {
            table::data("csv", sheet(train), test.map(sheet), WANTED, 1).err().unwrap().to_string()
        };
        let ids = said("1,a\n2,b\n3,c\n", None);
        assert!(ids.contains("each of its 3 rows has another word"), "{ids}");
        assert!(ids.ends_with("call the one with the classes 'label'"), "{ids}");
        let other = said("1,a\n2,b\n3,a\n", Some("1,a\n2,z\n"));
        assert!(other.contains("'z' (row 2) is no class of 'f.csv'"), "{other}");
        // numbers in one and words in the other are words
        let mixed = said("1,a\n2,0\n3,a\n", Some("1,0\n2,7\n"));
        assert!(mixed.contains("'7' (row 2) is no class"), "{mixed}");
    }

    #[test]
    fn what_is_no_table_of_numbers_is_named_by_its_line() {
        let said = |text: &str| parse("f.csv", text).unwrap_err().to_string();
        let cell = said("a,b\n1,2\nx,3\n");
        assert!(cell.starts_with("'f.csv', line 3: column 1 is 'x', no number"), "{cell}");
        assert!(said("1,\n2,3\n").contains("column 2 is '', no number"));
        assert!(said("1,2\n3\n").starts_with("'f.csv', line 2: "));
        assert!(said("1\n2\n").starts_with("'f.csv', line 1: it has one column"));
        assert!(said("1,nan\n").contains("'nan'"));
    }
}
