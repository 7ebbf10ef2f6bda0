//! Digits in MNIST's files: MNIST itself from a folder, and the project's own smaller set. Reads only the folder that it is
//! given.

use std::path::{Path, PathBuf};

use super::error::DataError;
use super::images::{IdxFile, Images, Split};

/// Digits and MNIST are of the ten digits.
const DIGITS: usize = 10;

impl Images {
    /// 8×8 images of digits that are part of the program; `data/digits/README.md` says whose.
    ///
    /// # Errors
    /// Never: the files are part of the program.
    pub fn digits() -> Result<Images, DataError> {
        macro_rules! shipped {
            ($name:literal) => {
                IdxFile {
                    name: concat!("data/digits/", $name).to_owned(),
                    bytes: include_bytes!(concat!("../../data/digits/", $name)),
                }
            };
        }
        from_files(
            "digits",
            [&shipped!("train-images-idx3-ubyte"), &shipped!("train-labels-idx1-ubyte")],
            [&shipped!("t10k-images-idx3-ubyte"), &shipped!("t10k-labels-idx1-ubyte")],
        )
    }

    /// MNIST's four idx files in a folder, unpacked.
    ///
    /// # Errors
    /// When a file is missing, or is none of MNIST's.
    pub fn mnist(folder: &Path) -> Result<Images, DataError> {
        // the two spellings under which the same files go around
        let read = |name, other| read_file(folder, name, other);
        let train_images = read("train-images-idx3-ubyte", "train-images.idx3-ubyte")?;
        let train_labels = read("train-labels-idx1-ubyte", "train-labels.idx1-ubyte")?;
        let test_images = read("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte")?;
        let test_labels = read("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte")?;
        from_files(
            "mnist",
            [&train_images.as_idx(), &train_labels.as_idx()],
            [&test_images.as_idx(), &test_labels.as_idx()],
        )
    }
}

/// A data set of digits from `[images, labels]` of each split.
fn from_files(
    name: &str,
    train_files: [&IdxFile<'_>; 2],
    test_files: [&IdxFile<'_>; 2],
) -> Result<Images, DataError> {
    let (train, train_size) = Split::from_idx(train_files[0], train_files[1], DIGITS)?;
    let (test, test_size) = Split::from_idx(test_files[0], test_files[1], DIGITS)?;
    if train_size != test_size {
        return Err(DataError::SizeMismatch {
            train: train_files[0].name.clone(),
            train_size,
            test: test_files[0].name.clone(),
            test_size,
        });
    }
    let [rows, columns] = train_size;
    Ok(Images::new(name, train, test, [rows, columns, 1], DIGITS))
}

struct ReadFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl ReadFile {
    fn as_idx(&self) -> IdxFile<'_> {
        IdxFile { name: self.path.display().to_string(), bytes: &self.bytes }
    }
}

/// Reads `folder/name`, or `folder/other` where there is no such file.
fn read_file(
    folder: &Path,
    name: &'static str,
    other: &'static str,
) -> Result<ReadFile, DataError> {
    let Some(path) = [name, other].map(|n| folder.join(n)).into_iter().find(|p| p.exists()) else {
        let folder = folder.to_owned();
        let mend = missing_file_mend(&folder, name, other);
        return Err(DataError::Missing { folder, name, other, mend });
    };
    match std::fs::read(&path) {
        Ok(bytes) => Ok(ReadFile { path, bytes }),
        Err(source) => Err(DataError::Unreadable { file: path.display().to_string(), source }),
    }
}

fn missing_file_mend(folder: &Path, name: &str, other: &str) -> String {
    let packed = |name: &&str| folder.join(format!("{name}.gz")).exists();
    match [name, other].into_iter().find(packed) {
        Some(name) => format!("unpack the one that is there: gunzip {name}.gz"),
        None if folder.is_dir() => "put MNIST's four unpacked files there".to_owned(),
        None => "there is no such folder; give the one with MNIST's four unpacked files".to_owned(),
    }
}
