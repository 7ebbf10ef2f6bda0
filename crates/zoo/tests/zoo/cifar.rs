//! CIFAR-10's six files in a folder: they load, and each way in which they can be missing is one line that
//! says how to mend it.

use std::fs::{self, File};
use std::path::Path;

use tempfile::TempDir;
use tensorwire_nn::Data;
use tensorwire_zoo::data::{DataError, Images, SampleKind, Source};

/// Bytes of each of the files: 10,000 records of a label and 32×32 pixels of three colours.
const FILE_BYTES: u64 = 30_730_000;
const TEST_FILE: &str = "test_batch.bin";

fn load(folder: &Path) -> Result<Data, DataError> {
    let source: Source = format!("cifar10:{}", folder.display()).parse().unwrap();
    source.open(SampleKind::Images { dims: [1, 1, 1], classes: 3 }, 0)
}

/// A folder of six files; all images are black and of class 0.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in (1..=5).map(|i| format!("data_batch_{i}.bin")).chain([TEST_FILE.to_owned()]) {
        File::create(folder.path().join(name)).unwrap().set_len(FILE_BYTES).unwrap();
    }
    folder
}

/// The only line of an error.
fn line(folder: &Path) -> String {
    let line = load(folder).unwrap_err().to_string();
    assert!(!line.contains('\n') && line.contains("; "), "{line}");
    line
}

#[test]
fn six_files_are_a_data_set() {
    let folder = folder();
    // the first record of the fifth file: class 7, one red pixel
    let mut bytes = fs::read(folder.path().join("data_batch_5.bin")).unwrap();
    (bytes[0], bytes[1]) = (7, 255);
    fs::write(folder.path().join("data_batch_5.bin"), bytes).unwrap();
    let data = load(folder.path()).unwrap();
    let found = SampleKind::of(&data.train.describe());
    assert_eq!(found, Some(SampleKind::Images { dims: [32, 32, 3], classes: 10 }));
    let test = data.test.unwrap();
    assert_eq!((data.train.name().as_str(), test.name().as_str()), ("cifar10", "cifar10"));
    assert_eq!((data.train.samples(), test.test_samples()), (Some(50_000), 10_000));
    let images = Images::cifar10(folder.path()).unwrap();
    assert_eq!(images.train.labels()[39_999..40_002], [0, 7, 0]);
    assert_eq!(images.train.pixels(40_000)[..4], [255, 0, 0, 0]);

    // and one that is a byte short is none
    File::options()
        .write(true)
        .open(folder.path().join(TEST_FILE))
        .unwrap()
        .set_len(30_729_999)
        .unwrap();
    let line = line(folder.path());
    assert!(line.contains(TEST_FILE) && line.contains("offset 30729999"), "{line}");
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let says = |part: &str| {
        let line = line(folder.path());
        assert!(line.contains("data_batch_1.bin") && line.contains(part), "{line}");
    };
    says("put the six .bin files");
    fs::write(folder.path().join("data_batch_1"), "").unwrap();
    says("those for Python");
    let packed = folder.path().join("cifar-10-binary.tar.gz");
    fs::write(&packed, "").unwrap();
    says("tar xzf cifar-10-binary.tar.gz");
    let inside = folder.path().join("cifar-10-batches-bin");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("data_batch_1.bin"), "").unwrap();
    says(&format!("cifar10:{}", inside.display()));
    assert!(line(&packed).contains("it is a file; unpack it"));
    assert!(line(&folder.path().join("nowhere")).contains("no such folder"));
}
