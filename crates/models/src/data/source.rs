//! Where a data set comes from: the project's own digits, MNIST's files in a folder, or made up.
//! Reads only what it is told to read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::dataset::{Dataset, IdxFile, Split};
use super::error::DataError;
use super::synthetic;

/// Most train samples of `synthetic:N`: they are made in memory.
const SYNTHETIC_SAMPLES_MAX: usize = 1_000_000;
/// Train samples of `synthetic` when its number is not given.
pub const SYNTHETIC_SAMPLES: usize = 1024;

const KNOWN: &str = "digits, mnist:DIR, synthetic, synthetic:N";
/// Both sets that come as files are of the ten digits.
const DIGITS: usize = 10;

/// A data set's origin, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `digits`: 8×8 images that are part of the program; `data/digits/README.md` says whose.
    Digits,
    /// `mnist:DIR`: MNIST's four idx files in a folder, unpacked.
    Mnist(PathBuf),
    /// `synthetic` or `synthetic:N`: N random train samples and a quarter of that for the test.
    Synthetic { samples: usize },
}

impl Source {
    /// Loads the data set. `features`, `classes` and `seed` say what a synthetic one looks like: the
    /// model's. The others say it themselves, in [`Dataset::features`] and [`Dataset::classes`].
    pub fn load(&self, features: usize, classes: usize, seed: u64) -> Result<Dataset, DataError> {
        match self {
            Source::Digits => digits(),
            Source::Mnist(folder) => mnist(folder),
            Source::Synthetic { samples } => synthetic::dataset(*samples, features, classes, seed),
        }
    }
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(given: &str) -> Result<Source, DataError> {
        let (name, argument) = match given.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (given, None),
        };
        match (name, argument) {
            ("digits", None) => Ok(Source::Digits),
            ("mnist", None | Some("")) => Err(DataError::NoFolder { given: given.to_owned() }),
            ("mnist", Some(folder)) => Ok(Source::Mnist(folder.into())),
            ("synthetic", None) => Ok(Source::Synthetic { samples: SYNTHETIC_SAMPLES }),
            ("synthetic", Some(count)) => match count.parse() {
                Ok(samples) if (1..=SYNTHETIC_SAMPLES_MAX).contains(&samples) => {
                    Ok(Source::Synthetic { samples })
                }
                _ => Err(DataError::NoSampleCount { given: given.to_owned() }),
            },
            _ => Err(DataError::UnknownSource { given: given.to_owned(), known: KNOWN }),
        }
    }
}

/// As it is parsed.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Digits => write!(f, "digits"),
            Source::Mnist(folder) => write!(f, "mnist:{}", folder.display()),
            Source::Synthetic { samples } => write!(f, "synthetic:{samples}"),
        }
    }
}

fn digits() -> Result<Dataset, DataError> {
    macro_rules! shipped {
        ($name:literal) => {
            IdxFile {
                name: concat!("data/digits/", $name).to_owned(),
                bytes: include_bytes!(concat!("../../../../data/digits/", $name)),
            }
        };
    }
    from_files(
        "digits",
        [&shipped!("train-images-idx3-ubyte"), &shipped!("train-labels-idx1-ubyte")],
        [&shipped!("t10k-images-idx3-ubyte"), &shipped!("t10k-labels-idx1-ubyte")],
    )
}

fn mnist(folder: &Path) -> Result<Dataset, DataError> {
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

/// A data set of digits from `[images, labels]` of each split.
fn from_files(
    name: &str,
    train_files: [&IdxFile<'_>; 2],
    test_files: [&IdxFile<'_>; 2],
) -> Result<Dataset, DataError> {
    let train = Split::from_idx(train_files[0], train_files[1], DIGITS)?;
    let test = Split::from_idx(test_files[0], test_files[1], DIGITS)?;
    if train.features() != test.features() {
        return Err(DataError::SizeMismatch {
            train: train_files[0].name.clone(),
            train_features: train.features(),
            test: test_files[0].name.clone(),
            test_features: test.features(),
        });
    }
    let features = train.features();
    Ok(Dataset { name: name.to_owned(), train, test, features, classes: DIGITS })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_as_they_print() {
        for text in ["digits", "mnist:/data/m", "mnist:a:b", "synthetic:7"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        let synthetic: Source = "synthetic".parse().unwrap();
        assert_eq!(synthetic, Source::Synthetic { samples: SYNTHETIC_SAMPLES });
    }

    #[test]
    fn bad_sources_say_what_is_known() {
        let message = |text: &str| text.parse::<Source>().unwrap_err().to_string();
        for text in ["", "imagenet", "Digits", "digits:x", "cifar10:there"] {
            assert_eq!(message(text), format!("unknown data '{text}'; known are: {KNOWN}"));
        }
        assert!(message("mnist").contains("mnist:DIR"));
        assert!(message("mnist:").contains("mnist:DIR"));
        for text in
            ["synthetic:", "synthetic:1000001", "synthetic:0", "synthetic:-1", "synthetic:x"]
        {
            assert!(message(text).contains("synthetic:N"), "{text}");
        }
    }

    #[test]
    fn the_digits_that_the_project_ships() {
        let data = Source::Digits.load(0, 0, 0).unwrap();
        assert_eq!((data.train.samples(), data.test.samples()), (1438, 359));
        assert_eq!((data.features, data.classes, data.name.as_str()), (64, 10, "digits"));
        for class in 0..10 {
            assert!(data.train.labels().contains(&class));
            assert!(data.test.labels().contains(&class));
        }
        // the set begins 0, 1, …, 9, 0, 1, …, and every fifth sample of it is in the test
        assert_eq!(data.train.labels()[..8], [0, 1, 2, 3, 5, 6, 7, 8]);
        assert_eq!(data.test.labels()[..2], [4, 9]);
    }
}
