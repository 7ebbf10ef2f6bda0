//! What can be wrong with data. Each error is one line that names the file and the place in it, and
//! says how to mend it.

use std::io;
use std::path::PathBuf;

/// Why there is no data set, or no batches of it. `file` is the path that was read; offsets and
/// lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("unknown data '{given}'; known are: {known}")]
    UnknownSource { given: String, known: &'static str },
    #[error("'{given}' names no folder; write mnist:DIR, DIR being where MNIST's four files lie")]
    NoFolder { given: String },
    #[error(
        "'{given}' does not say how many samples; write synthetic or synthetic:N with N from 1 to 1000000"
    )]
    NoSampleCount { given: String },
    #[error("no file '{name}' (or '{other}') in '{folder}'; {mend}", folder = .folder.display())]
    Missing { folder: PathBuf, name: &'static str, other: &'static str, mend: String },
    #[error("cannot read '{file}': {source}; check that it is a file you may read")]
    Unreadable { file: String, source: io::Error },
    #[error(
        "'{file}' is no idx file of {what}: at offset 0 stands {found:#010x}, not {expected:#010x}; \
         {mend}"
    )]
    Foreign { file: String, what: &'static str, expected: u32, found: u32, mend: &'static str },
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
        "'{train}' holds images of {train_features} pixels, '{test}' of {test_features}; \
         give two files of the same set"
    )]
    SizeMismatch { train: String, train_features: usize, test: String, test_features: usize },
    #[error(
        "'{file}': sample {sample} (offset {offset}) has label {label}, outside 0..{classes}; \
         mend the file or use a model with more classes"
    )]
    Label { file: String, sample: usize, offset: usize, label: u8, classes: usize },
    #[error(
        "batch larger than data set: {workers} workers of batch {batch} need {needed} samples a step, \
         there are {samples}; lower the batch or the workers"
    )]
    BatchTooLarge { workers: usize, batch: usize, needed: u128, samples: usize },
    #[error("{workers} workers of batch {batch} are no samples a step; both must be at least 1")]
    NoBatch { workers: usize, batch: usize },
    #[error(
        "a synthetic set of {samples} samples with {features} features in {classes} classes cannot \
         be made; each must be at least 1 and all pixels must fit in memory"
    )]
    NoSynthetic { samples: usize, features: usize, classes: usize },
}
