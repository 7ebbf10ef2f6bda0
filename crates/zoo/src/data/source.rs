//! Where a data set comes from: the project's own digits, files in a folder, or made up. Reads only what it
//! is told to read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::dataset::{Data, Shape};
use super::error::DataError;
use super::images::{IdxFile, Images, Split};
use super::{cifar, grammar, reverse, synthetic, text, topics};

/// Most samples that are made: `synthetic:N` and the like. Sentences and labels are kept in memory.
const MADE_SAMPLES_MAX: usize = 1_000_000;
/// Train samples of `synthetic` when its number is not given.
pub const SYNTHETIC_SAMPLES: usize = 1024;
/// Train pairs of `reverse` when its number is not given.
pub const REVERSE_PAIRS: usize = 10_000;
/// Train pairs of `grammar` when its number is not given.
pub const GRAMMAR_PAIRS: usize = 20_000;

const KNOWN: &str = "digits, mnist:DIR, cifar10:DIR, synthetic, synthetic:N, reverse, reverse:N, \
                     grammar, grammar:N, text:SOURCE,TARGET";
const IMAGE_SOURCES: &str = "digits, mnist:DIR, cifar10:DIR, synthetic, synthetic:N";
const PAIR_SOURCES: &str = "reverse, reverse:N, grammar, grammar:N, text:SOURCE,TARGET";
const MADE_SOURCES: &str = "synthetic, synthetic:N";
/// Digits and MNIST are of the ten digits.
const DIGITS: usize = 10;

/// A data set's origin, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `digits`: 8×8 images that are part of the program; `data/digits/README.md` says whose.
    Digits,
    /// `mnist:DIR`: MNIST's four idx files in a folder, unpacked.
    Mnist(PathBuf),
    /// `cifar10:DIR`: the six files of CIFAR-10's binary version in a folder, unpacked.
    Cifar10(PathBuf),
    /// `synthetic` or `synthetic:N`: N random train samples; of images and sequences a quarter of that for
    /// the test.
    Synthetic { samples: usize },
    /// `reverse` or `reverse:N`: N random sequences and their reverses, and a tenth of that for the test.
    Reverse { pairs: usize },
    /// `grammar` or `grammar:N`: N sentences of a made-up language and their translations to another, and a
    /// tenth of that for the test.
    Grammar { pairs: usize },
    /// `text:SOURCE,TARGET`: two files of UTF-8, a sentence a line, line N of one translating line N of the
    /// other. Every tenth pair is for the test.
    Text { source: PathBuf, target: PathBuf },
}

impl Source {
    /// Loads the data set, or makes it. `wanted` is what the model learns from: the kind of data, and what
    /// made data look like. What files hold they say themselves, in [`Data::shape`].
    ///
    /// # Errors
    /// There is no such kind of data here, or something is wrong with a file.
    pub fn open(&self, wanted: &Shape, seed: u64) -> Result<Data, DataError> {
        match (self, *wanted) {
            (Source::Digits, Shape::Images { .. }) => digits().map(Data::from),
            (Source::Mnist(folder), Shape::Images { .. }) => mnist(folder).map(Data::from),
            (Source::Cifar10(folder), Shape::Images { .. }) => cifar::read(folder).map(Data::from),
            (Source::Synthetic { samples }, Shape::Images { dims, classes }) => {
                synthetic::images(*samples, dims, classes, seed).map(Data::from)
            }
            (Source::Synthetic { samples }, Shape::Sequences { steps, features, classes }) => {
                synthetic::sequences(*samples, [steps, features], classes, seed).map(Data::from)
            }
            (Source::Synthetic { samples }, Shape::Sentences { words, classes }) => {
                topics::sentences(*samples, words, classes, seed).map(Data::from)
            }
            (
                Source::Reverse { pairs } | Source::Synthetic { samples: pairs },
                Shape::Pairs { .. },
            ) => Ok(reverse::pairs(*pairs, seed).into()),
            (Source::Grammar { pairs }, Shape::Pairs { .. }) => {
                Ok(grammar::pairs(*pairs, seed).into())
            }
            (Source::Text { source, target }, Shape::Pairs { source_words, target_words }) => {
                text::read([source, target], [source_words, target_words]).map(Data::from)
            }
            (_, wanted) => Err(DataError::WrongKind {
                given: self.to_string(),
                wanted: wanted.kind(),
                known: match wanted {
                    Shape::Images { .. } => IMAGE_SOURCES,
                    Shape::Pairs { .. } => PAIR_SOURCES,
                    Shape::Sequences { .. } | Shape::Sentences { .. } => MADE_SOURCES,
                },
            }),
        }
    }
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(given: &str) -> Result<Source, DataError> {
        let (name, argument) = match given.split_once(':') {
            Some((name, argument)) => (name, argument),
            None => (given, ""),
        };
        let count = |name: &'static str, default: usize| match argument.parse() {
            Ok(count) if (1..=MADE_SAMPLES_MAX).contains(&count) => Ok(count),
            _ if given == name => Ok(default),
            _ => Err(DataError::NoSampleCount { given: given.to_owned(), name }),
        };
        match name {
            "digits" if given == name => Ok(Source::Digits),
            "mnist" if argument.is_empty() => Err(DataError::NoFolder { given: given.to_owned() }),
            "mnist" => Ok(Source::Mnist(argument.into())),
            "cifar10" if argument.is_empty() => {
                Err(DataError::NoCifarFolder { given: given.to_owned() })
            }
            "cifar10" => Ok(Source::Cifar10(argument.into())),
            "synthetic" => {
                Ok(Source::Synthetic { samples: count("synthetic", SYNTHETIC_SAMPLES)? })
            }
            "reverse" => Ok(Source::Reverse { pairs: count("reverse", REVERSE_PAIRS)? }),
            "grammar" => Ok(Source::Grammar { pairs: count("grammar", GRAMMAR_PAIRS)? }),
            "text" => match argument.split(',').collect::<Vec<_>>()[..] {
                [source, target] if !source.is_empty() && !target.is_empty() => {
                    Ok(Source::Text { source: source.into(), target: target.into() })
                }
                _ => Err(DataError::NoTextFiles { given: given.to_owned() }),
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
            Source::Cifar10(folder) => write!(f, "cifar10:{}", folder.display()),
            Source::Synthetic { samples } => write!(f, "synthetic:{samples}"),
            Source::Reverse { pairs } => write!(f, "reverse:{pairs}"),
            Source::Grammar { pairs } => write!(f, "grammar:{pairs}"),
            Source::Text { source, target } => {
                write!(f, "text:{},{}", source.display(), target.display())
            }
        }
    }
}

fn digits() -> Result<Images, DataError> {
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

fn mnist(folder: &Path) -> Result<Images, DataError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_as_they_print() {
        for text in [
            "digits",
            "mnist:/data/m",
            "mnist:a:b",
            "cifar10:/c",
            "synthetic:7",
            "reverse:1",
            "grammar:1000000",
            "text:/a/b.en,c:d.de",
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        let defaults =
            ["synthetic", "reverse", "grammar"].map(|name| name.parse::<Source>().unwrap());
        let wanted = [
            Source::Synthetic { samples: SYNTHETIC_SAMPLES },
            Source::Reverse { pairs: REVERSE_PAIRS },
            Source::Grammar { pairs: GRAMMAR_PAIRS },
        ];
        assert_eq!(defaults, wanted);
    }

    #[test]
    fn bad_sources_say_what_is_known() {
        let message = |text: &str| text.parse::<Source>().unwrap_err().to_string();
        for text in ["", "imagenet", "Digits", "digits:x", "digits:", "cifar100:there"] {
            assert_eq!(message(text), format!("unknown data '{text}'; known are: {KNOWN}"));
        }
        for name in ["mnist", "cifar10"] {
            assert!(message(name).contains(&format!("{name}:DIR")));
            assert!(message(&format!("{name}:")).contains(&format!("{name}:DIR")));
        }
        for name in ["synthetic", "reverse", "grammar"] {
            for count in ["", "1000001", "0", "-1", "x"] {
                let line = message(&format!("{name}:{count}"));
                assert!(line.contains(&format!("{name}:N")), "{line}");
            }
        }
        for text in ["text", "text:", "text:a", "text:a,", "text:,a", "text:a,b,c"] {
            assert!(message(text).contains("text:SOURCE,TARGET"), "{text}");
        }
    }

    #[test]
    fn a_model_gets_the_kind_of_data_that_it_learns_from() {
        let shapes = [
            Shape::Images { dims: [2, 2, 1], classes: 2 },
            Shape::Sequences { steps: 2, features: 2, classes: 2 },
            Shape::Pairs { source_words: 100, target_words: 100 },
            Shape::Sentences { words: 1000, classes: 4 },
        ];
        for text in ["digits", "synthetic:10", "reverse:10", "grammar:10"] {
            let source: Source = text.parse().unwrap();
            for shape in shapes {
                let fits = match source {
                    Source::Digits => matches!(shape, Shape::Images { .. }),
                    Source::Synthetic { .. } => true,
                    _ => matches!(shape, Shape::Pairs { .. }),
                };
                match source.open(&shape, 0) {
                    Ok(data) => assert!(fits && data.shape().kind() == shape.kind(), "{text}"),
                    Err(DataError::WrongKind { .. }) => assert!(!fits, "{text} {shape:?}"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn the_digits_that_the_project_ships() {
        let wanted = Shape::Images { dims: [8, 8, 1], classes: 10 };
        let Ok(Data::Images(data)) = Source::Digits.open(&wanted, 0) else { panic!("no images") };
        assert_eq!((data.train.samples(), data.test.samples()), (1438, 359));
        assert_eq!((data.dims, data.features), ([8, 8, 1], 64));
        assert_eq!((data.classes, data.name.as_str()), (10, "digits"));
        for class in 0..10 {
            assert!(data.train.labels().contains(&class));
            assert!(data.test.labels().contains(&class));
        }
        // the set begins 0, 1, …, 9, 0, 1, …, and every fifth sample of it is in the test
        assert_eq!(data.train.labels()[..8], [0, 1, 2, 3, 5, 6, 7, 8]);
        assert_eq!(data.test.labels()[..2], [4, 9]);
    }
}
