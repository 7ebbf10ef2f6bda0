//! Arrays of numpy's `save`, a file each, and what two arrays are together: samples and what is learned of each. Trusts nothing
//! that it reads.

use super::error::DataError;
use super::kind::SampleKind;
use super::npy::{self, Array};
use super::sources::{Given, Opened};
use super::table::{self as tables, Table};

/// An array, and how errors name it.
pub(super) struct Named<'a> {
    pub(super) file: &'a str,
    pub(super) array: &'a str,
    pub(super) of: Array,
}

/// Opens the arrays of samples and answers, and two more for the test.
pub(super) fn open(given: &Given, wanted: SampleKind, seed: u64) -> Opened {
    let [x, y, test @ ..] = &given.files[..] else { unreachable!("{given}: two were counted") };
    let test = match test {
        [] => None,
        [x, y] => Some(pair(x, y, wanted)?),
        [x, ..] => {
            let reason = "it has no labels beside it; give X,Y or X,Y,XTEST,YTEST".to_owned();
            return Err(bad(&x.display().to_string(), "x", reason));
        }
    };
    tables::data("npy", pair(x, y, wanted)?, test, wanted, seed)
}

fn pair(x: &std::path::Path, y: &std::path::Path, wanted: SampleKind) -> Result<Table, DataError> {
    let [x_file, y_file] = [x, y].map(|path| path.display().to_string());
    let read = |file: &str, array| {
        let bytes = std::fs::read(file)
            .map_err(|source| DataError::Unreadable { file: file.to_owned(), source })?;
        npy::read(&bytes).map_err(|reason| bad(file, array, reason))
    };
    let x = Named { file: &x_file, array: "x", of: read(&x_file, "x")? };
    table(x, Named { file: &y_file, array: "y", of: read(&y_file, "y")? }, wanted)
}

/// Samples, and what is learned of each.
///
/// # Errors
/// When there are not as many of both, or their dimensions make no sense, or are the `wanted` ones with channels first.
pub(super) fn table(x: Named<'_>, y: Named<'_>, wanted: SampleKind) -> Result<Table, DataError> {
    let rows = y.of.values.len();
    if y.of.dims.iter().skip(1).any(|&dim| dim != 1) {
        let reason = format!("it has dimensions {:?}; give one number a sample", y.of.dims);
        let reason = format!("{reason}, such as argmax(axis=1) of rows with a 1 for the class");
        return Err(bad(y.file, y.array, reason));
    }
    let dims = match x.of.dims[..] {
        [_, height, width, channels] => {
            channels_last([height, width, channels], wanted, (x.file, x.array))?
        }
        [_, height, width] => [height, width, 1],
        [_, width] => [1, 1, width],
        _ => {
            let reason = format!("it has dimensions {:?}; give 2, 3 or 4", x.of.dims);
            return Err(bad(x.file, x.array, format!("{reason}, samples first")));
        }
    };
    if x.of.dims[0] != rows {
        let found = x.of.dims[0];
        let reason = format!("it has {found} samples, '{}' has {rows}; give both as many", y.array);
        return Err(bad(x.file, x.array, reason));
    }
    let Array { mut values, is_bytes, .. } = x.of;
    if is_bytes {
        // as images of files, pixels are 0..=1
        values.iter_mut().for_each(|value| *value /= 255.0);
    }
    Ok(Table { file: x.file.to_owned(), dims, values, answers: y.of.values, names: None })
}

/// Height, width and channels, of dimensions that are those or, as PyTorch has them, channels first: the latter only where `wanted`
/// are the same sizes with channels last.
///
/// # Errors
/// When channels are first and several: their numbers are in another order.
fn channels_last(
    found: [usize; 3],
    wanted: SampleKind,
    (file, array): (&str, &str),
) -> Result<[usize; 3], DataError> {
    let SampleKind::Images { dims: wanted, .. } = wanted else { return Ok(found) };
    let [height, width, channels] = wanted;
    match found == [channels, height, width] && found != wanted {
        false => Ok(found),
        // the same numbers in the same order
        true if channels == 1 => Ok(wanted),
        true => {
            let reason = format!(
                "it has samples of {}×{}×{}, channels first, and {height}×{width}×{channels} were asked for",
                found[0], found[1], found[2]
            );
            let mend = "give samples × height × width × channels: x.transpose(0, 2, 3, 1)";
            Err(bad(file, array, format!("{reason}; {mend}")))
        }
    }
}

fn bad(file: &str, array: &str, reason: String) -> DataError {
    DataError::BadArray { file: file.to_owned(), array: array.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tensorwire_nn::Batches;

    use super::super::sources::Source;
    use super::*;

    /// As numpy writes it.
    fn write(path: &Path, kind: &str, shape: &str, body: &[u8]) {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn samples_and_labels_are_a_file_each_whatever_numbers_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (x, y) = (place("x.npy"), place("y.npy"));
        let opened = |files: &str| {
            let source: Source = format!("npy:{files}").parse().unwrap();
            source.open(SampleKind::Images { dims: [1; 3], classes: 2 }, 1)
        };
        let both = format!("{},{}", x.display(), y.display());
        write(
            &x,
            "<f8",
            "(3, 2)",
            &[0.5f64, 1.0, 1.5, 2.0, 2.5, 3.0].map(f64::to_le_bytes).concat(),
        );
        for (kind, body) in [
            ("|u1", vec![0, 1, 2]),
            ("<i8", [0i64, 1, 2].map(i64::to_le_bytes).concat()),
            ("<f8", [0f64, 1.0, 2.0].map(f64::to_le_bytes).concat()),
        ] {
            write(&y, kind, "(3,)", &body);
            for files in [both.clone(), format!("{both},{both}")] {
                let data = opened(&files).unwrap();
                let found = SampleKind::of(&data.train.describe());
                let wanted = SampleKind::Images { dims: [1, 1, 2], classes: 3 };
                assert_eq!(found, Some(wanted), "{kind}");
                assert_eq!(data.test.is_some(), files != both);
            }
        }
        let said = |files: &str| opened(files).err().unwrap().to_string();
        let three = said(&format!("{both},{}", x.display()));
        assert!(three.ends_with("give X,Y or X,Y,XTEST,YTEST"), "{three}");
        write(&y, "<U3", "(3,)", &[0; 36]);
        let words = said(&both);
        assert!(words.contains("y.npy', array 'y': its elements are text (<U3)"), "{words}");
        assert!(words.contains("numpy.unique(y, return_inverse=True)[1]"), "{words}");
        write(&y, "|u1", "(3, 2)", &[0; 6]);
        assert!(said(&both).contains("argmax(axis=1)"));
        write(&y, "|u1", "(2,)", &[0; 2]);
        assert!(said(&both).contains("it has 3 samples, 'y' has 2"));
        assert!(
            said(&format!("{},{}", x.display(), place("none").display())).contains("cannot read")
        );
    }

    /// PyTorch has channels first.
    #[test]
    fn channels_first_are_never_taken_for_rows_of_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (x, y) = (place("x.npy"), place("y.npy"));
        let source: Source = format!("npy:{},{}", x.display(), y.display()).parse().unwrap();
        let open = |shape: &str, dims| {
            write(&x, "|u1", shape, &(0..24).collect::<Vec<u8>>());
            write(&y, "|u1", "(2,)", &[0, 1]);
            source.open(SampleKind::Images { dims, classes: 2 }, 1)
        };
        // one channel: the same numbers either way
        for (shape, wanted, dims) in [
            ("(2, 1, 3, 4)", [3, 4, 1], [3, 4, 1]),
            ("(2, 3, 4, 1)", [3, 4, 1], [3, 4, 1]),
            ("(2, 1, 3, 4)", [1, 3, 4], [1, 3, 4]),
            // a file's own sizes, whatever a model is usually trained on
            ("(2, 1, 3, 4)", [28, 28, 1], [1, 3, 4]),
            ("(2, 2, 3, 2)", [28, 28, 1], [2, 3, 2]),
            ("(2, 2, 2, 3)", [2, 2, 3], [2, 2, 3]),
        ] {
            let data = open(shape, wanted).unwrap();
            let found = SampleKind::of(&data.train.describe());
            assert_eq!(found, Some(SampleKind::Images { dims, classes: 2 }), "{shape}");
            let batch = Batches::new(data.train, 1, 2, 1).unwrap().batch(0, 0).unwrap();
            let values: &[f32] = batch.get("input").unwrap().values();
            let first = values.iter().map(|value| (value * 255.0).round() as u8);
            let first = first.skip_while(|value| *value != 0).take(12);
            assert!(first.eq(0..12), "{shape}: {values:?}");
        }
        assert_eq!(open("(2, 1, 3, 4)", [28, 28, 1]).unwrap().train.note(), None);
        let said = open("(2, 3, 2, 2)", [2, 2, 3]).unwrap_err().to_string();
        let says = "x.npy', array 'x': it has samples of 3×2×2, channels first, and 2×2×3 were asked for; \
                    give samples × height × width × channels: x.transpose(0, 2, 3, 1)";
        assert!(said.ends_with(says), "{said}");
    }
}
