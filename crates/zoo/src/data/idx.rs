//! Reader of MNIST's idx files (<http://yann.lecun.com/exdb/mnist/>): a big-endian header, then plain
//! bytes. Knows two of its kinds, images and labels of one byte each; trusts nothing that it reads.
//!
//! ```text
//! images: u32 0x0803 | u32 samples | u32 rows | u32 columns | u8 pixels, row by row, image by image
//! labels: u32 0x0801 | u32 samples | u8 labels
//! ```

use super::error::DataError;

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
/// First two bytes of every gzip file: the form in which MNIST is downloaded.
const GZIP_MAGIC: u32 = 0x1f8b;

/// Length of the labels' header, in bytes: where label 0 stands.
pub(super) const LABELS_HEADER: usize = 8;
const IMAGES_HEADER: usize = 16;

/// Images of one file: `samples` of `size` = `[rows, columns]` pixels.
#[derive(Debug, PartialEq)]
pub(super) struct Images<'a> {
    pub(super) samples: usize,
    pub(super) size: [usize; 2],
    pub(super) pixels: &'a [u8],
}

impl Images<'_> {
    /// Pixels of one image.
    pub(super) fn features(&self) -> usize {
        self.size[0] * self.size[1]
    }
}

/// Reads a file of images. `file` is how errors name it.
pub(super) fn images<'a>(file: &str, bytes: &'a [u8]) -> Result<Images<'a>, DataError> {
    check_magic(file, bytes, "images", IMAGES_MAGIC)?;
    let [samples, rows, columns] = header(file, bytes)?;
    if rows == 0 || columns == 0 {
        return Err(DataError::NoPixels { file: file.to_owned(), rows, columns });
    }
    // cannot overflow: three factors below 2^32
    let count = u128::from(samples) * u128::from(rows) * u128::from(columns);
    let pixels = body(file, bytes, IMAGES_HEADER, count)?;
    if samples == 0 {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    // their product fits: `body` has shown that the file holds that many bytes
    let size = [rows as usize, columns as usize];
    Ok(Images { samples: samples as usize, size, pixels })
}

/// Reads a file of labels, one byte each. `file` is how errors name it.
pub(super) fn labels<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a [u8], DataError> {
    check_magic(file, bytes, "labels", LABELS_MAGIC)?;
    let [samples] = header(file, bytes)?;
    let labels = body(file, bytes, LABELS_HEADER, u128::from(samples))?;
    if labels.is_empty() {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    Ok(labels)
}

fn check_magic(
    file: &str,
    bytes: &[u8],
    what: &'static str,
    expected: u32,
) -> Result<(), DataError> {
    let found = word(file, bytes, 0, 4)?;
    if found == expected {
        return Ok(());
    }
    let mend = match found {
        _ if found >> 16 == GZIP_MAGIC => "it is compressed: unpack it with gunzip",
        IMAGES_MAGIC => "it is one of images: exchange the files",
        LABELS_MAGIC => "it is one of labels: exchange the files",
        _ => "give MNIST's own file",
    };
    Err(DataError::Foreign { file: file.to_owned(), what, expected, found, mend })
}

/// The words after the magic one.
fn header<const N: usize>(file: &str, bytes: &[u8]) -> Result<[u32; N], DataError> {
    let mut words = [0; N];
    for (i, value) in words.iter_mut().enumerate() {
        *value = word(file, bytes, 4 * (i + 1), 4 * (N + 1))?;
    }
    Ok(words)
}

/// The word at `offset` of a header of `header` bytes.
fn word(file: &str, bytes: &[u8], offset: usize, header: usize) -> Result<u32, DataError> {
    match bytes.get(offset..).and_then(<[u8]>::first_chunk::<4>) {
        Some(word) => Ok(u32::from_be_bytes(*word)),
        None => Err(truncated(file, "header", header as u128, bytes.len())),
    }
}

/// Everything after a header of `start` bytes, which must be exactly `count` bytes.
fn body<'a>(file: &str, bytes: &'a [u8], start: usize, count: u128) -> Result<&'a [u8], DataError> {
    let expected = start as u128 + count;
    let found = bytes.len();
    if (found as u128) < expected {
        return Err(truncated(file, "header says that it", expected, found));
    }
    // fits: not larger than a length in memory
    let end = expected as usize;
    if found > end {
        return Err(DataError::Trailing { file: file.to_owned(), offset: end, extra: found - end });
    }
    Ok(&bytes[start..end])
}

fn truncated(file: &str, part: &'static str, expected: u128, found: usize) -> DataError {
    DataError::Truncated { file: file.to_owned(), part, expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32], body: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn two_images_of_two_by_three() {
        let bytes = words(&[IMAGES_MAGIC, 2, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255]);
        let read = images("f", &bytes).unwrap();
        assert_eq!(read, Images { samples: 2, size: [2, 3], pixels: &bytes[16..] });
    }

    #[test]
    fn three_labels() {
        assert_eq!(labels("f", &words(&[LABELS_MAGIC, 3], &[7, 8, 9])).unwrap(), [7, 8, 9]);
    }

    #[test]
    fn every_cut_of_a_file_is_truncated() {
        let whole = words(&[IMAGES_MAGIC, 2, 1, 2], &[1, 2, 3, 4]);
        for cut in 0..whole.len() {
            let error = images("f", &whole[..cut]).unwrap_err();
            let DataError::Truncated { expected, found, .. } = error else {
                panic!("cut at {cut}: {error}")
            };
            assert_eq!(found, cut);
            let wanted = if cut < 4 {
                4
            } else if cut < 16 {
                16
            } else {
                20
            };
            assert_eq!(expected, wanted, "cut at {cut}");
        }
    }

    #[test]
    fn trailing_bytes_are_named_by_their_offset() {
        let error = labels("f", &words(&[LABELS_MAGIC, 1], &[7, 8, 9])).unwrap_err();
        assert!(matches!(error, DataError::Trailing { offset: 9, extra: 2, .. }), "{error}");
    }

    #[test]
    fn a_foreign_file_is_told_by_its_first_word() {
        let mended = |magic| match images("f", &words(&[magic, 1, 1, 1], &[0])) {
            Err(DataError::Foreign { found, mend, .. }) if found == magic => mend,
            other => panic!("{other:?}"),
        };
        assert!(mended(0x1f8b_0808).contains("gunzip"));
        assert!(mended(LABELS_MAGIC).contains("labels"));
        assert!(mended(0x8950_4e47).contains("MNIST"));
    }

    #[test]
    fn a_header_past_all_memory_is_no_overflow() {
        let bytes = words(&[IMAGES_MAGIC, u32::MAX, u32::MAX, u32::MAX], &[0; 8]);
        let error = images("f", &bytes).unwrap_err();
        let most = u128::from(u32::MAX).pow(3) + 16;
        assert!(
            matches!(error, DataError::Truncated { expected, .. } if expected == most),
            "{error}"
        );
    }

    #[test]
    fn no_samples_and_no_pixels_are_refused() {
        let empty = words(&[IMAGES_MAGIC, 0, 8, 8], &[]);
        assert!(matches!(images("f", &empty), Err(DataError::Empty { .. })));
        let flat = words(&[IMAGES_MAGIC, 3, 0, 8], &[]);
        assert!(matches!(images("f", &flat), Err(DataError::NoPixels { rows: 0, columns: 8, .. })));
        let unlabelled = words(&[LABELS_MAGIC, 0], &[]);
        assert!(matches!(labels("f", &unlabelled), Err(DataError::Empty { .. })));
    }
}
