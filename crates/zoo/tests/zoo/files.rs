//! MNIST's files in a folder: both spellings load, and each way in which they can be broken is one
//! line that names the file.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tensorwire_zoo::data::{DataError, Images, SampleKind, Source};

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

fn images(samples: u32, rows: u32, columns: u32) -> Vec<u8> {
    let words = [0x0803, samples, rows, columns];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.extend((0..samples * rows * columns).map(|i| i as u8));
    bytes
}

fn labels(labels: &[u8]) -> Vec<u8> {
    let mut bytes = [0x0801, labels.len() as u32].map(u32::to_be_bytes).concat();
    bytes.extend_from_slice(labels);
    bytes
}

/// A folder of three train and two test samples of 2×2 pixels.
fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let write = |name, bytes| fs::write(folder.path().join(name), bytes).expect("a file");
    write(TRAIN_IMAGES, images(3, 2, 2));
    write(TRAIN_LABELS, labels(&[1, 0, 9]));
    write(TEST_IMAGES, images(2, 2, 2));
    write(TEST_LABELS, labels(&[4, 5]));
    folder
}

fn load(folder: &Path) -> Result<Images, DataError> {
    let source: Source = format!("mnist:{}", folder.display()).parse()?;
    let opened = source.open(SampleKind::Images { dims: [28, 28, 1], classes: 10 }, 0);
    let images = Images::mnist(folder);
    // both say the same
    let (opened, images) = (opened.map(|data| data.train.samples()), images?);
    assert_eq!(opened?, Some(images.train.samples()));
    Ok(images)
}

/// The error after `file` was replaced by `bytes`; one line that names the file.
fn broken(file: &str, bytes: &[u8]) -> DataError {
    let folder = folder();
    fs::write(folder.path().join(file), bytes).expect("a file");
    let error = load(folder.path()).expect_err(file);
    let line = error.to_string();
    assert!(line.contains(file) && !line.contains('\n') && line.contains("; "), "{line}");
    error
}

#[test]
fn both_spellings_load_alike() {
    let folder = folder();
    let data = load(folder.path()).unwrap();
    assert_eq!((data.train.samples(), data.test.samples()), (3, 2));
    assert_eq!((data.features, data.classes, data.name.as_str()), (4, 10, "mnist"));
    assert_eq!(*data.train.pixels(1), [4, 5, 6, 7]);
    assert_eq!(data.dims, [2, 2, 1]);
    assert_eq!(data.train.labels(), [1, 0, 9]);
    for name in [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS] {
        let other = name.replace("-idx", ".idx");
        fs::rename(folder.path().join(name), folder.path().join(other)).unwrap();
    }
    assert_eq!(load(folder.path()).unwrap().train, data.train);
}

#[test]
fn a_missing_file_is_named_with_what_to_do() {
    let folder = folder();
    fs::remove_file(folder.path().join(TEST_LABELS)).unwrap();
    let line = load(folder.path()).unwrap_err().to_string();
    assert!(line.contains(TEST_LABELS) && line.contains("t10k-labels.idx1-ubyte"), "{line}");
    assert!(line.contains(&folder.path().display().to_string()), "{line}");
    fs::write(folder.path().join(format!("{TEST_LABELS}.gz")), "").unwrap();
    let line = load(folder.path()).unwrap_err().to_string();
    assert!(line.contains(&format!("gunzip {TEST_LABELS}.gz")), "{line}");
    let line = load(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(line.contains("no such folder"), "{line}");
}

#[test]
fn a_folder_in_place_of_a_file_cannot_be_read() {
    let folder = folder();
    fs::remove_file(folder.path().join(TRAIN_IMAGES)).unwrap();
    fs::create_dir(folder.path().join(TRAIN_IMAGES)).unwrap();
    let error = load(folder.path()).unwrap_err();
    assert!(matches!(error, DataError::Unreadable { .. }), "{error}");
}

#[test]
fn foreign_truncated_and_overlong_files() {
    let error = broken(TRAIN_IMAGES, b"\x89PNG\r\n\x1a\n");
    assert!(matches!(error, DataError::Foreign { found: 0x8950_4e47, .. }), "{error}");
    let error = broken(TRAIN_LABELS, &images(3, 2, 2));
    assert!(matches!(error, DataError::Foreign { found: 0x0803, .. }), "{error}");
    let error = broken(TEST_IMAGES, &images(2, 2, 2)[..20]);
    assert!(matches!(error, DataError::Truncated { expected: 24, found: 20, .. }), "{error}");
    let error = broken(TEST_IMAGES, &[]);
    assert!(matches!(error, DataError::Truncated { expected: 4, found: 0, .. }), "{error}");
    let mut overlong = labels(&[4, 5]);
    overlong.extend([0; 3]);
    let error = broken(TEST_LABELS, &overlong);
    assert!(matches!(error, DataError::Trailing { offset: 10, extra: 3, .. }), "{error}");
}

#[test]
fn files_that_do_not_belong_together() {
    let error = broken(TRAIN_LABELS, &labels(&[1, 2]));
    let counts = matches!(error, DataError::CountMismatch { image_count: 3, label_count: 2, .. });
    assert!(counts, "{error}");
    for size in [[3, 3], [1, 4]] {
        let error = broken(TEST_IMAGES, &images(2, size[0], size[1]));
        let wanted = size.map(|side| side as usize);
        let sizes = matches!(error, DataError::SizeMismatch { train_size: [2, 2], test_size, .. }
            if test_size == wanted);
        assert!(sizes, "{error}");
    }
}

#[test]
fn the_first_label_out_of_range_is_named() {
    let error = broken(TRAIN_LABELS, &labels(&[1, 10, 255]));
    let first = matches!(error, DataError::Label { sample: 1, offset: 9, label: 10, .. });
    assert!(first, "{error}");
}

#[test]
fn files_without_samples() {
    let error = broken(TRAIN_IMAGES, &images(0, 2, 2));
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
    let error = broken(TEST_LABELS, &labels(&[]));
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
}
