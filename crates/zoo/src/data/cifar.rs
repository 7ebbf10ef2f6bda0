//! Reader of CIFAR-10's binary version (<https://www.cs.toronto.edu/~kriz/cifar.html>): six files of 10,000
//! records, no header. Trusts nothing that it reads.
//!
//! ```text
//! record: u8 label | u8 red, 32 rows of 32 | u8 green, likewise | u8 blue, likewise
//! ```

use std::path::Path;

use super::error::DataError;
use super::images::{Images, Split};

const TRAIN_FILES: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
const TEST_FILE: &str = "test_batch.bin";
const RECORDS: usize = 10_000;
const SIDE: usize = 32;
const CHANNELS: usize = 3;
const PIXELS: usize = SIDE * SIDE;
const FEATURES: usize = PIXELS * CHANNELS;
const RECORD_BYTES: usize = 1 + FEATURES;
const CLASSES: usize = 10;
/// First two bytes of every gzip file: the form in which CIFAR-10 is downloaded.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Images {
    /// Reads the six files of a folder.
    ///
    /// # Errors
    /// When a file is missing, or is none of CIFAR-10's.
    pub fn cifar10(folder: &Path) -> Result<Images, DataError> {
        let train = split(folder, &TRAIN_FILES)?;
        let test = split(folder, &[TEST_FILE])?;
        Ok(Images::new("cifar10", train, test, [SIDE, SIDE, CHANNELS], CLASSES))
    }
}

fn split(folder: &Path, names: &[&'static str]) -> Result<Split, DataError> {
    let samples = names.len() * RECORDS;
    let mut pixels = Vec::with_capacity(samples * FEATURES);
    let mut labels = Vec::with_capacity(samples);
    for &name in names {
        let path = folder.join(name);
        if !path.exists() {
            let mend = missing_file_mend(folder, name);
            return Err(DataError::MissingCifar { folder: folder.to_owned(), name, mend });
        }
        let file = path.display().to_string();
        match std::fs::read(&path) {
            Ok(bytes) => records(&file, &bytes, RECORDS, &mut pixels, &mut labels)?,
            Err(source) => return Err(DataError::Unreadable { file, source }),
        }
    }
    Ok(Split::new(FEATURES, pixels, labels))
}

fn missing_file_mend(folder: &Path, name: &str) -> String {
    const PACKED: &str = "cifar-10-binary.tar.gz";
    const INSIDE: &str = "cifar-10-batches-bin";
    if folder.is_file() {
        return format!("it is a file; unpack it (tar xzf) and give the folder {INSIDE}");
    }
    let inside = folder.join(INSIDE);
    if inside.join(name).exists() {
        return format!("give the folder in it: cifar10:{}", inside.display());
    }
    if folder.join(PACKED).exists() {
        return format!("unpack {PACKED} there (tar xzf {PACKED}) and give the folder {INSIDE}");
    }
    if folder.join(name.trim_end_matches(".bin")).exists() {
        return format!("the files there are those for Python; download {PACKED}");
    }
    if folder.is_dir() {
        return format!("put the six .bin files of {PACKED} there");
    }
    format!("there is no such folder; give {INSIDE}, as {PACKED} unpacks it")
}

/// Adds a file of exactly `count` records: its pixels as rows of red, green and blue, and its labels.
/// `file` is how errors name it.
pub(super) fn records(
    file: &str,
    bytes: &[u8],
    count: usize,
    pixels: &mut Vec<u8>,
    labels: &mut Vec<i32>,
) -> Result<(), DataError> {
    let expected = count * RECORD_BYTES;
    let found = bytes.len();
    let file = || file.to_owned();
    if found != expected && bytes.starts_with(&GZIP_MAGIC) {
        return Err(DataError::Packed { file: file() });
    }
    if found < expected {
        let (part, expected) = ("set of 10,000 images", expected as u128);
        return Err(DataError::Truncated { file: file(), part, expected, found });
    }
    if found > expected {
        let extra = found - expected;
        return Err(DataError::Trailing { file: file(), offset: expected, extra });
    }
    for (sample, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
        let (label, planes) = (record[0], &record[1..]);
        if usize::from(label) >= CLASSES {
            let offset = sample * RECORD_BYTES;
            return Err(DataError::Label { file: file(), sample, offset, label, classes: CLASSES });
        }
        labels.push(i32::from(label));
        let (red, others) = planes.split_at(PIXELS);
        let (green, blue) = others.split_at(PIXELS);
        for ((&red, &green), &blue) in red.iter().zip(green).zip(blue) {
            pixels.extend([red, green, blue]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file's `[pixels, labels]`, or what is wrong with it. It should hold `count` records.
    fn read(bytes: &[u8], count: usize) -> Result<(Vec<u8>, Vec<i32>), DataError> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        records("f.bin", bytes, count, &mut pixels, &mut labels)?;
        Ok((pixels, labels))
    }

    /// Records of classes 0, 1, …; the three planes of record `r` count from `r`, `r + 100`, `r + 200`.
    fn file(count: u8) -> Vec<u8> {
        let plane = |start: u8| (0..PIXELS).map(move |i| start.wrapping_add(i as u8));
        let planes = |r: u8| [r, r + 100, r + 200].into_iter().flat_map(plane);
        (0..count).flat_map(|r| std::iter::once(r).chain(planes(r))).collect()
    }

    #[test]
    fn planes_become_pixels() {
        let (pixels, labels) = read(&file(2), 2).unwrap();
        assert_eq!((pixels.len(), &labels[..]), (2 * FEATURES, &[0, 1][..]));
        assert_eq!(pixels[..6], [0, 100, 200, 1, 101, 201]);
        // the second image's second row
        assert_eq!(pixels[FEATURES + 3 * SIDE..][..3], [33, 133, 233]);
    }

    proptest! {
        #[test]
        fn every_cut_of_a_file_is_truncated(cut in 0..3 * RECORD_BYTES) {
            let error = read(&file(3)[..cut], 3).unwrap_err();
            let line = error.to_string();
            let cuts = matches!(error, DataError::Truncated { found, expected: 9219, .. }
                if found == cut);
            prop_assert!(cuts, "{}", line);
            prop_assert!(line.contains("f.bin") && line.contains(&format!("offset {cut}")), "{line}");
        }

        #[test]
        fn a_changed_byte_is_seen_where_it_is_a_label(at in 0..3 * RECORD_BYTES, byte: u8) {
            let mut bytes = file(3);
            bytes[at] = byte;
            match read(&bytes, 3) {
                Ok(_) => prop_assert!(byte < 10 || at % RECORD_BYTES != 0),
                Err(DataError::Label { offset, label, sample, .. }) => {
                    prop_assert_eq!((offset, label, sample), (at, byte, at / RECORD_BYTES));
                    prop_assert!(byte >= 10);
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }

        #[test]
        fn what_is_behind_the_last_record_is_named(extra in 1usize..5000) {
            let mut bytes = file(1);
            bytes.resize(RECORD_BYTES + extra, 0);
            let error = read(&bytes, 1).unwrap_err();
            let named = matches!(error, DataError::Trailing { offset, extra: found, .. }
                if offset == RECORD_BYTES && found == extra);
            prop_assert!(named, "{}", error);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            prop_assert!(read(&bytes, 2).unwrap_err().to_string().contains("f.bin"));
        }
    }

    #[test]
    fn a_packed_file_is_told_by_its_first_bytes() {
        let error = read(&[0x1f, 0x8b, 8, 0], 1).unwrap_err();
        assert!(matches!(error, DataError::Packed { .. }), "{error}");
        assert!(error.to_string().contains("tar xzf"), "{error}");
    }
}
