//! The sources of data by their names on the command line: a table with a row for each. Reads only the files that it is told
//! to read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tensorwire_base::nearest;
use tensorwire_nn::Data;

use super::chains;
use super::error::DataError;
use super::images::{Images, Sequences};
use super::kind::SampleKind;
use super::pairs::Pairs;
use super::sentences::Sentences;
use super::{
    characters, npy_files, photos, sheets, subwords, token_files, verses, windows, zipped,
};

/// The most samples that are generated, as by `synthetic:N`. Sentences and labels are kept in memory.
const MADE_SAMPLES_MAX: usize = 1_000_000;

/// All sources. A source is a row here and a file that reads or generates its data.
#[rustfmt::skip]
const SOURCES: [Row; 15] = [
    Row { name: "digits", has: images, opens: Opens::Part(1438, digits) },
    Row { name: "mnist", has: images, opens: Opens::Folder("where MNIST's four files lie", |folder| Ok(Images::mnist(folder)?.into())) },
    Row { name: "cifar10", has: images, opens: Opens::Folder("where CIFAR-10's .bin files lie", |folder| Ok(Images::cifar10(folder)?.into())) },
    Row { name: "synthetic", has: |_| true, opens: Opens::Made(1024, synthetic) },
    Row { name: "reverse", has: pairs, opens: Opens::Made(10_000, |count, _, seed| Ok(Pairs::reverse(count, seed).into())) },
    Row { name: "grammar", has: pairs, opens: Opens::Made(20_000, |count, _, seed| Ok(Pairs::grammar(count, seed).into())) },
    Row { name: "text", has: pairs, opens: Opens::Files { form: "SOURCE,TARGET", count: [2, 2], options: &[], open: text } },
    Row { name: "images", has: images, opens: Opens::Files { form: "DIR[,skip-bad]", count: [1, 1], options: &["skip-bad"], open: photos::open } },
    Row { name: "kjv", has: text_of_any_kind, opens: Opens::Itself(verses::open) },
    Row { name: "chars", has: running_text, opens: Opens::Files { form: "FILE", count: [1, 1], options: &[], open: characters::open } },
    Row { name: "lm", has: running_text, opens: Opens::Files { form: "FILE[,TOKENIZER]", count: [1, 2], options: &[], open: subwords::open } },
    Row { name: "tokens", has: running_text, opens: Opens::Files { form: "FILE[,TEST][,vocab=N]", count: [1, 2], options: &["vocab"], open: token_files::open } },
    Row { name: "npz", has: images, opens: Opens::Files { form: "FILE", count: [1, 1], options: &[], open: zipped::open } },
    Row { name: "npy", has: images, opens: Opens::Files { form: "X,Y[,XTEST,YTEST]", count: [2, 4], options: &[], open: npy_files::open } },
    Row { name: "csv", has: images, opens: Opens::Files { form: "FILE[,TEST]", count: [1, 2], options: &[], open: sheets::open } },
];

/// A source of data.
#[derive(Debug)]
struct Row {
    /// What users write before the ':'.
    name: &'static str,
    /// True if it has data of this kind.
    has: fn(SampleKind) -> bool,
    opens: Opens,
}

pub(super) type Opened = Result<Data, DataError>;

/// How a source is opened, which decides what users write after the ':'. A source is only asked for kinds that it has.
#[derive(Clone, Copy, Debug)]
enum Opens {
    /// Nothing. Opened with the kind and the seed.
    Itself(fn(SampleKind, u64) -> Opened),
    /// Nothing, or a number of samples, all of which are so many, and the size that images are to have.
    Part(usize, fn(Option<Made>) -> Opened),
    /// A number of samples, and its default. Opened with the number, the kind and the seed.
    Made(usize, fn(usize, SampleKind, u64) -> Opened),
    /// A folder. The text says which.
    Folder(&'static str, fn(&Path) -> Opened),
    /// From `count[0]` to `count[1]` files or folders with commas between, and options. Opened with them, the kind and the
    /// seed.
    Files {
        form: &'static str,
        count: [usize; 2],
        options: &'static [&'static str],
        open: fn(&Given, SampleKind, u64) -> Opened,
    },
}

/// The files that a user named, and the options behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) files: Vec<PathBuf>,
    /// As they were written, such as "skip-bad" and "vocab=50257".
    options: Vec<String>,
}

impl Given {
    /// True if this option is given.
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }

    /// The value of an option that is written `option=VALUE`.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        self.options.iter().find_map(|given| given.strip_prefix(option)?.strip_prefix('='))
    }

    /// Reads what stands behind the ':'. None if it is not `count` files and these options.
    fn parse(text: &str, [least, most]: [usize; 2], options: &[&str]) -> Option<Given> {
        let mut given = Given::default();
        for part in text.split(',') {
            let name = part.split('=').next().unwrap_or(part);
            match options.contains(&name) {
                true if given.files.is_empty() => return None,
                true => given.options.push(part.to_owned()),
                // files come first
                false if part.is_empty() || !given.options.is_empty() => return None,
                false => given.files.push(part.into()),
            }
        }
        (least..=most).contains(&given.files.len()).then_some(given)
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files.iter().map(|file| file.display().to_string());
        let parts: Vec<String> = files.chain(self.options.iter().cloned()).collect();
        f.write_str(&parts.join(","))
    }
}

fn images(kind: SampleKind) -> bool {
    matches!(kind, SampleKind::Images { .. })
}

fn pairs(kind: SampleKind) -> bool {
    matches!(kind, SampleKind::Pairs { .. })
}

fn running_text(kind: SampleKind) -> bool {
    matches!(kind, SampleKind::Tokens { .. })
}

fn text_of_any_kind(kind: SampleKind) -> bool {
    running_text(kind) || pairs(kind) || matches!(kind, SampleKind::Sentences { .. })
}

fn digits(part: Option<Made>) -> Opened {
    let images = match part {
        Some(Made { count, dims }) => Images::some_digits(count, dims),
        None => Images::digits(),
    };
    Ok(images?.into())
}

fn synthetic(samples: usize, kind: SampleKind, seed: u64) -> Opened {
    Ok(match kind {
        SampleKind::Images { dims, classes } => {
            Images::synthetic(samples, dims, classes, seed)?.into()
        }
        SampleKind::Sequences { steps, features, classes } => {
            Sequences::synthetic(samples, [steps, features], classes, seed)?.into()
        }
        SampleKind::Pairs { .. } => Pairs::reverse(samples, seed).into(),
        SampleKind::Sentences { words, classes } => {
            Sentences::synthetic(samples, words, classes, seed)?.into()
        }
        SampleKind::Tokens { vocabulary, length } => {
            windows::synthetic(samples, length, vocabulary, seed)?
        }
        SampleKind::Masked { .. } => chains::synthetic(samples, kind, seed)?,
    })
}

fn text(given: &Given, kind: SampleKind, _: u64) -> Opened {
    // sources of pairs are asked for nothing else, and two files were counted
    let (SampleKind::Pairs { source_words, target_words }, [source, target]) =
        (kind, &given.files[..])
    else {
        unreachable!("{kind:?} of {given}")
    };
    Ok(Pairs::text([source, target], [source_words, target_words])?.into())
}

/// A source of data, as a user names it:
///
/// - `digits`: 8×8 images that are part of the program; `digits:N`: the first N, and a quarter as many for the test;
///   `digits:N,HxWxC`: scaled to that size;
/// - `mnist:DIR`: MNIST's four idx files in a folder, unpacked;
/// - `cifar10:DIR`: the six files of CIFAR-10's binary version in a folder, unpacked;
/// - `synthetic` or `synthetic:N`: N random train samples for any model; of images, sequences and running text
///   a quarter of that for the test; `synthetic:N,HxWxC`: images of that size, for models that take any;
/// - `reverse` or `reverse:N`: N random sequences and their reverses, and a tenth of that for the test;
/// - `grammar` or `grammar:N`: N sentences of a made-up language and their translations to another, and a
///   tenth of that for the test;
/// - `text:SOURCE,TARGET`: two files of UTF-8, a sentence a line, line N of one translating line N of the
///   other. Every tenth pair is for the test;
/// - `images:DIR` or `images:DIR,skip-bad`: photographs, a folder a class, in the model's size;
/// - `kjv`: a text that is part of the program: its characters; its clauses and their words in reverse, for models that learn from
///   pairs; its verses, a chapter a class, for those that embed sentences. `chars:FILE`: the characters of a text;
/// - `lm:FILE` or `lm:FILE,TOKENIZER`: a text in tokens of a `tokenizer.json`, by default the one beside it;
/// - `tokens:FILE`, `tokens:TRAIN,TEST`, with `,vocab=N` behind: numbers of tokens, of two bytes or four each;
/// - `npz:FILE`, `npy:X,Y` or `npy:X,Y,XTEST,YTEST`: arrays of numpy, of samples × height × width × channels, or samples × height ×
///   width, or samples × numbers, and a label each; `csv:FILE` or `csv:TRAIN,TEST`: a table of numbers, and of words for what is
///   learned. Labels are counted from 0.
///
/// ```
/// use tensorwire_zoo::data::{SampleKind, Source};
/// let source: Source = "digits".parse()?;
/// let data = source.open(SampleKind::Images { dims: [28, 28, 1], classes: 10 }, 1)?;
/// // files say themselves how large their images are
/// let found = SampleKind::of(&data.train.describe());
/// assert_eq!(found, Some(SampleKind::Images { dims: [8, 8, 1], classes: 10 }));
/// # Ok::<(), tensorwire_zoo::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    row: &'static Row,
    argument: Argument,
}

/// Samples, and the size of images where they are to have another than the model's, or than their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    count: usize,
    dims: Option<[usize; 3]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Argument {
    Nothing,
    Made(Made),
    Folder(PathBuf),
    Files(Given),
}

impl Source {
    /// Loads or generates the data. `wanted` is the kind that the model learns from, and the sizes of generated data. Data from
    /// files have sizes of their own, which their description gives, and need not be the `wanted` ones: check it where your model
    /// takes no others.
    ///
    /// Of arrays and tables two forms of the `wanted` sizes are known as mistakes: channels first, as PyTorch has them (taken as they
    /// are where there is one channel, whose numbers have the same order), and labels that are counted from 1.
    ///
    /// # Errors
    /// When the source has no data of this kind, or a file cannot be read, or has one of these forms.
    pub fn open(&self, wanted: SampleKind, seed: u64) -> Result<Data, DataError> {
        let Source { row, argument } = self;
        if !(row.has)(wanted) {
            let (given, kind) = (self.to_string(), wanted.name());
            let known = known(|row| (row.has)(wanted));
            return Err(DataError::WrongKind { given, wanted: kind, known });
        }
        match (row.opens, argument) {
            (Opens::Itself(open), _) => open(wanted, seed),
            (Opens::Part(_, open), Argument::Made(made)) => open(Some(*made)),
            (Opens::Part(_, open), _) => open(None),
            (Opens::Made(_, open), Argument::Made(Made { count, dims })) => match (*dims, wanted) {
                (None, wanted) => open(*count, wanted, seed),
                (Some(dims), SampleKind::Images { classes, .. }) => {
                    open(*count, SampleKind::Images { dims, classes }, seed)
                }
                (Some(_), wanted) => {
                    let (given, wanted) = (self.to_string(), wanted.name());
                    Err(DataError::NoSize { given, wanted })
                }
            },
            (Opens::Folder(_, open), Argument::Folder(folder)) => open(folder),
            (Opens::Files { open, .. }, Argument::Files(given)) => open(given, wanted, seed),
            (opens, argument) => unreachable!("{argument:?} was parsed for {opens:?}"),
        }
    }

    /// Replaces every path by what `path` returns for it, such as the absolute path.
    #[must_use]
    pub fn with_paths(mut self, path: impl Fn(&Path) -> PathBuf) -> Source {
        match &mut self.argument {
            Argument::Nothing | Argument::Made(_) => {}
            Argument::Folder(folder) => *folder = path(folder),
            Argument::Files(given) => given.files.iter_mut().for_each(|file| *file = path(file)),
        }
        self
    }
}

impl PartialEq for Source {
    /// True if both are written in the same way.
    fn eq(&self, other: &Source) -> bool {
        self.row.name == other.row.name && self.argument == other.argument
    }
}

impl Eq for Source {}

impl Row {
    /// The forms that users may write, such as "mnist:DIR".
    fn forms(&self) -> String {
        let name = self.name;
        match self.opens {
            Opens::Itself(_) => name.to_string(),
            Opens::Part(..) | Opens::Made(..) => format!("{name}, {name}:N"),
            Opens::Folder(..) => format!("{name}:DIR"),
            Opens::Files { form, .. } => format!("{name}:{form}"),
        }
    }

    /// Most samples that may be asked for.
    fn samples_max(&self) -> usize {
        match self.opens {
            Opens::Part(all, _) => all,
            _ => MADE_SAMPLES_MAX,
        }
    }

    fn has_images(&self) -> bool {
        (self.has)(SampleKind::Images { dims: [1; 3], classes: 1 })
    }

    /// Reads what stands behind the ':' of data of any number: how many samples and, where there may be images, their size.
    fn made(&self, text: &str) -> Option<Made> {
        let (count, dims) = match text.split_once(',') {
            Some((count, dims)) => (count, Some(dims)),
            None => (text, None),
        };
        let counts = 1..=self.samples_max();
        let count = count.parse().ok().filter(|count| counts.contains(count))?;
        let Some(dims) = dims else { return Some(Made { count, dims: None }) };
        let dims: Vec<usize> = dims.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
        let dims: [usize; 3] = dims.try_into().ok()?;
        (self.has_images() && dims.iter().all(|dim| *dim > 0))
            .then_some(Made { count, dims: Some(dims) })
    }
}

/// The forms of the sources that `which` selects.
fn known(which: impl Fn(&Row) -> bool) -> String {
    let forms: Vec<String> = SOURCES.iter().filter(|row| which(row)).map(Row::forms).collect();
    forms.join(", ")
}

/// The source that a path alone may have meant, by what is there or the end of its name.
fn of_a_path(given: &str) -> Option<String> {
    if Path::new(given).is_dir() && SOURCES.iter().any(|row| row.name == "images") {
        return Some(format!("images:{given}"));
    }
    let end = Path::new(given).extension()?.to_str()?.to_ascii_lowercase();
    let name = match end.as_str() {
        "csv" => "csv",
        "npz" => "npz",
        "npy" => return Some(format!("npy:{given},Y.npy")),
        "txt" => "chars",
        _ => return None,
    };
    SOURCES.iter().any(|row| row.name == name).then(|| format!("{name}:{given}"))
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(given: &str) -> Result<Source, DataError> {
        let (name, argument) = match given.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (given, None),
        };
        let unknown = || {
            let known = known(|_| true);
            let nearest = nearest(name, SOURCES.iter().map(|row| row.name));
            // a name and what behind it is no path
            let of_a_path = argument.is_none().then(|| of_a_path(given)).flatten();
            let meant = of_a_path.or_else(|| nearest.map(str::to_owned));
            DataError::UnknownSource { given: given.to_owned(), meant, known }
        };
        let row = SOURCES.iter().find(|row| row.name == name).ok_or_else(unknown)?;
        let argument = match (row.opens, argument) {
            (Opens::Itself(_) | Opens::Part(..), None) => Argument::Nothing,
            (Opens::Itself(_), Some(_)) => return Err(unknown()),
            (Opens::Made(default, _), None) => Argument::Made(Made { count: default, dims: None }),
            (Opens::Part(..) | Opens::Made(..), Some(text)) => {
                row.made(text).map(Argument::Made).ok_or_else(|| {
                    let (given, name) = (given.to_owned(), row.name);
                    let (most, sized) = (row.samples_max(), row.has_images());
                    DataError::NoSampleCount { given, name, most, sized }
                })?
            }
            (Opens::Folder(..), Some(folder)) if !folder.is_empty() => {
                Argument::Folder(folder.into())
            }
            (Opens::Folder(what, _), _) => {
                return Err(DataError::NoFolder { given: given.to_owned(), name: row.name, what });
            }
            (Opens::Files { form, count, options, .. }, text) => {
                let found = Given::parse(text.unwrap_or_default(), count, options);
                Argument::Files(found.ok_or_else(|| DataError::NoFiles {
                    given: given.to_owned(),
                    name: row.name,
                    form,
                })?)
            }
        };
        Ok(Source { row, argument })
    }
}

/// Writes it in the form that [`FromStr`] reads.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.row.name;
        match &self.argument {
            Argument::Nothing => write!(f, "{name}"),
            Argument::Made(Made { count, dims: None }) => write!(f, "{name}:{count}"),
            Argument::Made(Made { count, dims: Some([height, width, channels]) }) => {
                write!(f, "{name}:{count},{height}x{width}x{channels}")
            }
            Argument::Folder(folder) => write!(f, "{name}:{}", folder.display()),
            Argument::Files(given) => write!(f, "{name}:{given}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_as_they_print() {
        for text in [
            "digits",
            "digits:320",
            "digits:1438,224x224x3",
            "mnist:/data/m",
            "mnist:a:b",
            "cifar10:/c",
            "synthetic:7",
            "synthetic:7,32x32x3",
            "reverse:1",
            "grammar:1000000",
            "text:/a/b.en,c:d.de",
            "images:/data/imagenet",
            "images:i,skip-bad",
            "kjv",
            "chars:t.txt",
            "lm:t.txt",
            "lm:t.txt,tokenizer.json",
            "tokens:train.bin",
            "tokens:train.bin,val.bin,vocab=50257",
            "npz:a.npz",
            "npy:x.npy,y.npy",
            "csv:a.csv,b.csv",
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        let defaults =
            ["synthetic", "reverse", "grammar"].map(|name| name.parse::<Source>().unwrap());
        let wanted = ["synthetic:1024", "reverse:10000", "grammar:20000"];
        assert_eq!(defaults, wanted.map(|text| text.parse::<Source>().unwrap()));
    }

    #[test]
    fn bad_sources_say_what_is_known() {
        let known = "digits, digits:N, mnist:DIR, cifar10:DIR, synthetic, synthetic:N, reverse, reverse:N, \
                     grammar, grammar:N, text:SOURCE,TARGET, images:DIR[,skip-bad], kjv, chars:FILE, \
                     lm:FILE[,TOKENIZER], tokens:FILE[,TEST][,vocab=N], npz:FILE, \
                     npy:X,Y[,XTEST,YTEST], csv:FILE[,TEST]";
        let message = |text: &str| text.parse::<Source>().unwrap_err().to_string();
        for text in ["", "imagenet", "photos"] {
            assert_eq!(message(text), format!("unknown data '{text}'; known are: {known}"));
        }
        for (text, meant) in [
            ("iris.csv", "csv:iris.csv"),
            ("scv:iris.csv", "csv"),
            ("src", "images:src"),
            ("/data/Pairs.NPZ", "npz:/data/Pairs.NPZ"),
            ("x.npy", "npy:x.npy,Y.npy"),
            ("book.txt", "chars:book.txt"),
            ("Digits", "digits"),
            ("minst:there", "mnist"),
            ("cifar100:there", "cifar10"),
        ] {
            let said = format!("unknown data '{text}'; did you mean '{meant}'? known are: {known}");
            assert_eq!(message(text), said);
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
        for text in ["digits:", "digits:x", "digits:1439", "digits:0", "digits:7,8x8"] {
            assert!(
                message(text).contains("digits:N with N from 1 to 1438, or digits:N,HxWxC"),
                "{text}"
            );
        }
        for text in ["synthetic:7,", "synthetic:7,8x8", "synthetic:7,0x8x1", "reverse:7,8x8x1"] {
            assert!(message(text).contains(":N with N from 1"), "{text}");
        }
        for text in ["text", "text:", "text:a", "text:a,", "text:,a", "text:a,b,c"] {
            assert!(message(text).contains("text:SOURCE,TARGET"), "{text}");
        }
        for text in ["images", "images:", "images:,skip-bad", "images:skip-bad,a", "images:a,b"] {
            assert!(message(text).contains("images:DIR[,skip-bad]"), "{text}");
        }
        for text in ["tokens:", "tokens:a,b,c", "tokens:vocab=7,a", "tokens:a,vocab=7,b"] {
            assert!(message(text).contains("tokens:FILE[,TEST][,vocab=N]"), "{text}");
        }
    }

    #[test]
    fn made_up_images_have_the_size_that_is_asked_for() {
        let source: Source = "synthetic:8,3x2x1".parse().unwrap();
        let data = source.open(SampleKind::Images { dims: [28, 28, 1], classes: 10 }, 0).unwrap();
        let found = SampleKind::of(&data.train.describe());
        assert_eq!(found, Some(SampleKind::Images { dims: [3, 2, 1], classes: 10 }));
        let refused = source.open(SampleKind::Pairs { source_words: 9, target_words: 9 }, 0);
        assert!(refused.unwrap_err().to_string().contains("leave the size out"));
    }

    #[test]
    fn a_model_gets_the_kind_of_data_that_it_learns_from() {
        let shapes = [
            SampleKind::Images { dims: [2, 2, 1], classes: 2 },
            SampleKind::Sequences { steps: 2, features: 2, classes: 2 },
            SampleKind::Pairs { source_words: 100, target_words: 100 },
            SampleKind::Sentences { words: 1000, classes: 4 },
            SampleKind::Tokens { vocabulary: 50, length: 8 },
            SampleKind::Masked { vocabulary: 50, length: 8 },
        ];
        for text in ["digits", "synthetic:10", "reverse:10", "grammar:10", "kjv"] {
            let source: Source = text.parse().unwrap();
            for shape in shapes {
                let fits = match source.row.name {
                    "digits" => matches!(shape, SampleKind::Images { .. }),
                    "synthetic" => true,
                    "kjv" => text_of_any_kind(shape),
                    _ => matches!(shape, SampleKind::Pairs { .. }),
                };
                let found =
                    |data: &Data| SampleKind::of(&data.train.describe()).map(|kind| kind.name());
                match source.open(shape, 0) {
                    Ok(data) => assert!(fits && found(&data) == Some(shape.name()), "{text}"),
                    Err(DataError::WrongKind { .. }) => assert!(!fits, "{text} {shape:?}"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn the_digits_that_the_project_ships() {
        let data = Images::digits().unwrap();
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

    #[test]
    fn paths_of_a_source_can_be_made_absolute() {
        let rooted = |text: &str| {
            let source: Source = text.parse().unwrap();
            source.with_paths(|path| Path::new("/data").join(path)).to_string()
        };
        assert_eq!(rooted("mnist:m"), "mnist:/data/m");
        assert_eq!(rooted("text:a,/b"), "text:/data/a,/b");
        assert_eq!(rooted("grammar:7"), "grammar:7");
        assert_eq!(rooted("tokens:a,vocab=9"), "tokens:/data/a,vocab=9");
    }
}
