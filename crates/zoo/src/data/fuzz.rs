//! What any bytes come to that data are read from, as functions of bytes, which assert what must hold of the result. Fuzzers
//! and tests call them (crate `decoders`), and nobody else.

use std::io::Cursor;

use super::crop::Part;
use super::decode::Decoded;
use super::error::DataError;
use super::images::{IdxFile, Split};
use super::kind::SampleKind;
use super::sources::Source;
use super::windows::TokenStore;
use super::{cifar, npy, sheets, table, text, token_files, zipped};

/// What a table is opened for.
const WANTED: SampleKind = SampleKind::Images { dims: [2, 2, 3], classes: 2 };

/// A record of CIFAR-10.
pub fn cifar(bytes: &[u8]) {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    match cifar::records("f", bytes, 1, &mut pixels, &mut labels) {
        Ok(()) => assert_eq!((pixels.len() + 1, labels.len()), (bytes.len(), 1)),
        Err(error) => said(&error),
    }
}

/// Two files of MNIST's kind: the first byte says how many bytes the labels have.
pub fn idx(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let (labels, images) = rest.split_at(usize::from(*count).min(rest.len()));
    let file = |name: &str, bytes| IdxFile { name: name.to_owned(), bytes };
    match Split::from_idx(&file("images", images), &file("labels", labels), 10) {
        Ok((split, [rows, columns])) => {
            assert_eq!(split.features(), rows * columns);
            assert_eq!(split.pixels(split.samples() - 1).len(), split.features());
        }
        Err(error) => said(&error),
    }
}

/// A JPEG or PNG.
pub fn images(bytes: &[u8]) {
    match Decoded::read(bytes) {
        Ok(image) => {
            let [width, height] = image.size.map(f64::from);
            let part = Part { left: 0.0, top: 0.0, width, height };
            if let Ok(scaled) = image.scaled(part, [3, 2]) {
                assert_eq!(scaled.len(), 6);
            }
        }
        Err(reason) => assert_eq!(reason.lines().count(), 1, "{reason}"),
    }
}

/// An array of numpy's.
pub fn arrays(bytes: &[u8]) {
    if let Ok(array) = npy::read(bytes) {
        assert_eq!(array.dims.iter().product::<usize>(), array.values.len());
        assert!(array.values.len() <= bytes.len());
    }
}

/// A zip of arrays.
pub fn zips(bytes: &[u8]) {
    if let Err(error) = zipped::read("f", Cursor::new(bytes), WANTED, 1) {
        said(&error);
    }
}

/// A table of numbers with commas between.
pub fn sheets(bytes: &[u8]) {
    let Ok(text) = text::utf8("f", bytes) else { return };
    let read =
        sheets::parse("f", text).and_then(|sheet| table::data("csv", sheet, None, WANTED, 1));
    if let Err(error) = read {
        said(&error);
    }
}

/// Two texts, a sentence a line, with a line of `--` between.
pub fn texts(bytes: &[u8]) {
    let between = bytes.windows(4).position(|four| four == b"\n--\n");
    let (source, target) = bytes.split_at(between.unwrap_or(bytes.len()));
    let target = target.get(4..).unwrap_or_default();
    if let Err(error) = text::read([source, target], [8, 8]) {
        said(&error);
    }
}

/// Numbers of tokens, of two bytes or of four, as the first byte says.
pub fn tokens(bytes: &[u8]) {
    let Some((wide, bytes)) = bytes.split_first() else { return };
    let tokens = super::windows::numbers(bytes, if wide & 1 == 0 { 2 } else { 4 });
    let largest = tokens.iter().copied().max();
    let found = token_files::smallest_vocabulary(&TokenStore::Stored(tokens));
    // larger ones are refused where they are in a file
    if largest.is_none_or(|largest| largest < i32::MAX as u32) {
        assert_eq!(found.ok(), Some(largest.map_or(1, |largest| largest as usize + 1)));
    }
}

/// What a user writes for data.
pub fn sources(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Source>() {
        Ok(source) => assert_eq!(
            source.to_string().parse::<Source>().expect("as before").to_string(),
            source.to_string()
        ),
        Err(error) => said(&error),
    }
}

fn said(error: &DataError) {
    assert!(!error.to_string().is_empty());
}
