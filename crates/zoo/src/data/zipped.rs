//! Arrays of numpy's `savez`: `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y`. Trusts nothing that it reads.

use std::fs::File;
use std::io::{BufReader, Read, Seek};

use zip::ZipArchive;

use super::error::DataError;
use super::kind::SampleKind;
use super::npy::{self, Array};
use super::npy_files::{Named, table};
use super::sources::{Given, Opened};
use super::table::{self as tables, Table};

/// A file's arrays.
struct Arrays<F> {
    file: String,
    zip: ZipArchive<F>,
}

pub(super) fn open(given: &Given, wanted: SampleKind, seed: u64) -> Opened {
    let path = &given.files[0];
    let file = path.display().to_string();
    match File::open(path) {
        Ok(opened) => read(&file, BufReader::new(opened), wanted, seed),
        Err(source) => Err(DataError::Unreadable { file, source }),
    }
}

/// Data of a zip. `file` is how errors name it.
pub(super) fn read(file: &str, zip: impl Read + Seek, wanted: SampleKind, seed: u64) -> Opened {
    let mut arrays = Arrays::of(file, zip)?;
    if arrays.named("x_train").is_none() {
        let table = arrays.table(["x", "y"], wanted)?;
        return tables::data("npz", table, None, wanted, seed);
    }
    let train = arrays.table(["x_train", "y_train"], wanted)?;
    let test = arrays.named("x_test").map(|_| arrays.table(["x_test", "y_test"], wanted));
    tables::data("npz", train, test.transpose()?, wanted, seed)
}

impl<F: Read + Seek> Arrays<F> {
    fn of(file: &str, zip: F) -> Result<Arrays<F>, DataError> {
        let file = file.to_owned();
        match ZipArchive::new(zip) {
            Ok(zip) => Ok(Arrays { file, zip }),
            Err(error) => {
                let reason = format!(
                    "{error}; write the file by numpy's savez(x=…, y=…), of which one array by save (.npy) is none, or copy it again"
                );
                Err(DataError::BadArray { file, array: "x".to_owned(), reason })
            }
        }
    }

    fn bad(&self, array: &str, reason: String) -> DataError {
        DataError::BadArray { file: self.file.clone(), array: array.to_owned(), reason }
    }

    /// The name of an array's file, in any case.
    fn named(&self, array: &str) -> Option<String> {
        let is_it = |file: &&str| {
            file.strip_suffix(".npy").is_some_and(|name| name.eq_ignore_ascii_case(array))
        };
        self.zip.file_names().find(is_it).map(str::to_owned)
    }

    fn table(&mut self, [x, y]: [&str; 2], wanted: SampleKind) -> Result<Table, DataError> {
        let (inputs, answers) = (self.array(x)?, self.array(y)?);
        let named = |array, name| Named { file: &self.file, array: name, of: array };
        table(named(inputs, x), named(answers, y), wanted)
    }

    fn array(&mut self, name: &str) -> Result<Array, DataError> {
        let file = self.named(name).ok_or_else(|| {
            let mut known: Vec<&str> =
                self.zip.file_names().map(|file| file.trim_end_matches(".npy")).collect();
            known.sort_unstable();
            let known = known.join(", ");
            let mend = "name arrays x_train and y_train, or x and y";
            self.bad(name, format!("there is none among: {known}; {mend}"))
        })?;
        let mut bytes = Vec::new();
        let read = match self.zip.by_name(&file) {
            // its size is not trusted: memory is taken as bytes come
            Ok(mut packed) => packed.read_to_end(&mut bytes).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        read.map_err(|error| self.bad(name, format!("{error}; copy the file again")))?;
        npy::read(&bytes).map_err(|reason| self.bad(name, reason))
    }
}
