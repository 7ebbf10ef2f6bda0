//! Errors of data. Each is one line that names the file and the place in it, and says how to fix it.

use std::io;
use std::path::PathBuf;

/// Why data cannot be loaded or generated. `file` is the path that was read; offsets and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("unknown data '{given}'; {}known are: {known}", .meant.as_ref().map(|name| format!("did you mean '{name}'? ")).unwrap_or_default())]
    UnknownSource { given: String, meant: Option<String>, known: String },
    #[error("'{given}' names no folder; write {name}:DIR, DIR being {what}")]
    NoFolder { given: String, name: &'static str, what: &'static str },
    #[error("'{given}' does not name its files; write {name}:{form}, with no comma in any name")]
    NoFiles { given: String, name: &'static str, form: &'static str },
    #[error(
        "'{given}' does not say how many samples; write {name} or {name}:N with N from 1 to {most}{size}",
        size = if *.sized { format!(", or {name}:N,HxWxC where images are to have that height, width and channels") } else { String::new() }
    )]
    NoSampleCount { given: String, name: &'static str, most: usize, sized: bool },
    #[error(
        "{samples} digits of {}x{}x{} cannot be made; samples and each dimension must be at least 1, and an image has at most {most} values",
        .dims[0], .dims[1], .dims[2]
    )]
    NoDigits { samples: usize, dims: [usize; 3], most: usize },
    #[error(
        "'{given}' gives images a size, and this model learns from {wanted}; leave the size out"
    )]
    NoSize { given: String, wanted: &'static str },
    #[error(
        "data '{given}' cannot be {wanted}, from which this model learns; give one of: {known}"
    )]
    WrongKind { given: String, wanted: &'static str, known: String },
    #[error("no file '{name}' (or '{other}') in '{folder}'; {mend}", folder = .folder.display())]
    Missing { folder: PathBuf, name: &'static str, other: &'static str, mend: String },
    #[error("no file '{name}' in '{folder}'; {mend}", folder = .folder.display())]
    MissingCifar { folder: PathBuf, name: &'static str, mend: String },
    #[error("cannot read '{file}': {source}; check that it is a file you may read")]
    Unreadable { file: String, source: io::Error },
    #[error(
        "'{file}' is no idx file of {what}: at offset 0 stands {found:#010x}, not {expected:#010x}; \
         {mend}"
    )]
    Foreign { file: String, what: &'static str, expected: u32, found: u32, mend: &'static str },
    #[error(
        "'{file}' is compressed: at offset 0 stand gzip's bytes 1f 8b; unpack it with tar xzf or gunzip"
    )]
    Packed { file: String },
    #[error(
        "'{file}' is truncated: it ends at offset {found}, its {part} needs {expected} bytes; \
         copy or download it again"
    )]
    Truncated { file: String, part: &'static str, expected: u128, found: usize },
    #[error(
        "'{file}' has {extra} bytes after its last sample, from offset {offset} on; \
         copy or download it again"
    )]
    Trailing { file: String, offset: usize, extra: usize },
    #[error("'{file}' holds no samples; give a file that holds at least one")]
    Empty { file: String },
    #[error("'{file}' holds images of {rows}×{columns} pixels; give a file of images with pixels")]
    NoPixels { file: String, rows: u32, columns: u32 },
    #[error(
        "'{images}' holds {image_count} images, '{labels}' {label_count} labels; \
         give two files of the same set"
    )]
    CountMismatch { images: String, image_count: usize, labels: String, label_count: usize },
    #[error(
        "'{train}' holds images of {train_size:?} pixels, '{test}' of {test_size:?}; \
         give two files of the same set"
    )]
    SizeMismatch { train: String, train_size: [usize; 2], test: String, test_size: [usize; 2] },
    #[error(
        "'{file}': sample {sample} (offset {offset}) has label {label}, outside 0..{classes}; \
         mend the file or use a model with more classes"
    )]
    Label { file: String, sample: usize, offset: usize, label: u8, classes: usize },
    #[error(
        "batch larger than the number of classes: the {batch} pairs of a batch must be of distinct \
         classes, there are {classes}; lower the batch"
    )]
    TooFewClasses { batch: usize, classes: usize },
    #[error(
        "a synthetic set of {samples} samples with {features} features in {classes} classes cannot \
         be made; each must be at least 1 and all must fit in memory"
    )]
    NoSynthetic { samples: usize, features: usize, classes: usize },
    #[error(
        "synthetic sentences cannot be made: {samples} of {classes} classes and {words} words; give at \
         least two sentences for each class, and {words_min} words"
    )]
    NoSentences { samples: usize, classes: usize, words: usize, words_min: usize },
    #[error("'{file}' is no text: line {line} (offset {offset}) is not UTF-8; {mend}")]
    NotUtf8 { file: String, line: usize, offset: usize, mend: &'static str },
    #[error(
        "'{source_file}' has {source_lines} lines, '{target_file}' {target_lines}: '{shorter}' ends at \
         offset {offset}; give two files in which line N of one translates line N of the other"
    )]
    LineMismatch {
        source_file: String,
        source_lines: usize,
        target_file: String,
        target_lines: usize,
        shorter: String,
        offset: usize,
    },
    #[error(
        "of the {pairs} pairs in '{source_file}' and '{target_file}' none is left for the {part}: \
         sentences must have 1 to {words_max} words, and every tenth pair is for the test; give more"
    )]
    NoPairs {
        source_file: String,
        target_file: String,
        part: &'static str,
        pairs: usize,
        words_max: usize,
    },
    #[error("cannot learn the words of '{file}': {reason}; give another file")]
    NoVocabulary { file: String, reason: String },
    #[error("'{folder}' holds no folders of images: {reason}; {mend}")]
    NoClasses { folder: String, reason: String, mend: &'static str },
    #[error(
        "'{folder}' has a class '{class}', which is not one of train's; name the folders of both alike"
    )]
    NoClassOfTrain { folder: String, class: String },
    #[error("'{file}' is no image: {reason}; replace or remove it, or write images:DIR,skip-bad")]
    NoImage { file: String, reason: String },
    #[error("'{file}' is no image: {reason}")]
    SkippedImage { file: String, reason: String },
    #[error("'{file}' and the {bad} images after it are none: {reason}; give a folder of images")]
    NoImages { file: String, bad: usize, reason: String },
    #[error(
        "'{file}' has {tokens} tokens of training or test, a sample needs {needed}; give a longer file"
    )]
    TooShort { file: String, tokens: usize, needed: usize },
    #[error("'{file}' has {bytes} bytes, and its tokens have {width} each; {mend}")]
    TornTokens { file: String, bytes: u64, width: usize, mend: &'static str },
    #[error(
        "'{file}' has token {token} at offset {offset}, outside 0..{words}; give its right vocab=N, \
         or name a file of tokens of four bytes each NAME.u32"
    )]
    TokenTooLarge { file: String, token: u32, offset: u64, words: usize },
    #[error("'vocab={given}' is no size of a vocabulary; write a number from 1 to 2147483647")]
    NoVocabularySize { given: String },
    #[error(
        "cannot read '{file}' as a tokenizer: {reason}; give a tokenizer.json of Hugging Face's"
    )]
    NoTokenizer { file: String, reason: String },
    #[error("'{file}', array '{array}': {reason}")]
    BadArray { file: String, array: String, reason: String },
    #[error("'{file}', line {line}: {reason}")]
    BadLine { file: String, line: u64, reason: String },
    #[error("'{file}': {reason}")]
    BadTable { file: String, reason: String },
}

impl From<DataError> for tensorwire_nn::Error {
    fn from(error: DataError) -> tensorwire_nn::Error {
        tensorwire_nn::Error::other(error)
    }
}
