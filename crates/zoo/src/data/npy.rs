//! Reader of numpy's arrays (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>), all elements rounded
//! to the type of weights. Trusts nothing that it reads, and knows not where the bytes came from.
//!
//! ```text
//! 93 'NUMPY' | u8 major, u8 minor | u16 (of version 1) or u32 bytes of header, little end first |
//! header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | elements
//! ```

/// An array. Classes below 2^24 are exact.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) dims: Vec<usize>,
    pub(super) values: Vec<f32>,
    /// True if elements are bytes, as pixels are.
    pub(super) is_bytes: bool,
}

/// Reads the bytes of a file, or says why it cannot and what to do.
pub(super) fn read(bytes: &[u8]) -> Result<Array, String> {
    const TORN: &str = "copy the file again";
    let header_end = |width: usize| {
        let length = bytes.get(8..8 + width)?.iter().rev();
        let length = length.fold(0usize, |number, &byte| number << 8 | usize::from(byte));
        (8 + width).checked_add(length)
    };
    let (start, end) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, ..] => (10, header_end(2)),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, ..] => (12, header_end(4)),
        _ => return Err("it is no array of numpy's; write the file by numpy's savez".to_owned()),
    };
    let header = end.and_then(|end| bytes.get(start..end));
    let header = header.and_then(|header| std::str::from_utf8(header).ok());
    let (Some(header), Some(end)) = (header, end) else {
        return Err(format!("its header is torn; {TORN}"));
    };
    let kind =
        after(header, "'descr':").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let order = after(header, "'fortran_order':");
    let shape =
        after(header, "'shape':").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let (Some(kind), Some(order), Some(shape)) = (kind, order, shape) else {
        return Err(format!("its header is {header:?}; write one array of plain numbers"));
    };
    let dims = shape.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let dims = dims.map(|dim| dim.parse().ok()).collect::<Option<Vec<usize>>>();
    let dims = dims.ok_or_else(|| format!("its shape is ({shape}); {TORN}"))?;
    if order.starts_with("True") && dims.len() > 1 {
        return Err("its order is Fortran's; write numpy.ascontiguousarray of it".to_owned());
    }
    let body = &bytes[end..];
    let (values, width) = numbers(kind, body).ok_or_else(|| match kind.get(1..2) {
        Some("U" | "S") => format!(
            "its elements are text ({kind}); write numbers of classes, such as numpy.unique(y, return_inverse=True)[1]"
        ),
        Some("O") => "its elements are Python's objects; write numbers, such as x.astype('float32')".to_owned(),
        _ => format!("its elements are of {kind}; write integers or floats of 4 or 8 bytes"),
    })?;
    let wanted = dims.iter().try_fold(width, |all, &dim| all.checked_mul(dim));
    if wanted != Some(body.len()) {
        return Err(format!(
            "it has {} bytes for elements {dims:?} of {width}; {TORN}",
            body.len()
        ));
    }
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(Array { dims, values, is_bytes: kind == "|u1" }),
        false => Err("it has elements that are no finite numbers; remove them".to_owned()),
    }
}

/// What stands behind a key of the header.
fn after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let place = header.find(key)?;
    Some(header[place + key.len()..].trim_start())
}

/// Whole elements of this type as numbers, rounded, and how many bytes each has. None if they are no numbers.
fn numbers(kind: &str, bytes: &[u8]) -> Option<(Vec<f32>, usize)> {
    macro_rules! all {
        ($type:ty) => {{
            let (elements, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            let number = |bytes: &[u8; size_of::<$type>()]| <$type>::from_le_bytes(*bytes) as f32;
            Some((elements.iter().map(number).collect(), size_of::<$type>()))
        }};
    }
    match kind {
        "<f4" => all!(f32),
        "<f8" => all!(f64),
        "|u1" | "|b1" => all!(u8),
        "<u2" => all!(u16),
        "<u4" => all!(u32),
        "<u8" => all!(u64),
        "|i1" => all!(i8),
        "<i2" => all!(i16),
        "<i4" => all!(i32),
        "<i8" => all!(i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    }

    /// As numpy writes it.
    fn header(kind: &str, shape: &str) -> String {
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}       \n")
    }

    #[test]
    fn arrays_of_all_types() {
        let body: Vec<u8> = [1, -2i16].iter().flat_map(|value| value.to_le_bytes()).collect();
        let array = read(&file(&header("<i2", "(2,)"), &body)).unwrap();
        assert_eq!((&array.dims[..], &array.values[..]), (&[2][..], &[1.0, -2.0][..]));
        let array = read(&file(&header("|u1", "(1, 2, 1)"), &[7, 255])).unwrap();
        let wanted = Array { dims: vec![1, 2, 1], values: vec![7.0, 255.0], is_bytes: true };
        assert_eq!(array, wanted);
        let array = read(&file(&header("<f8", "()"), &1e300f64.to_le_bytes()));
        assert!(array.unwrap_err().contains("finite"));
        let mut second = file(&header("<i8", "(1,)"), &(1i64 << 40).to_le_bytes());
        second[6] = 2;
        second.splice(10..10, [0, 0]);
        assert_eq!(read(&second).unwrap().values, [(1u64 << 40) as f32]);
    }

    #[test]
    fn what_is_no_array_of_numbers_says_so() {
        let said = |header: &str, body: &[u8]| read(&file(header, body)).unwrap_err();
        assert!(said(&header("<U3", "(1,)"), &[0; 12]).contains("text (<U3)"));
        assert!(said(&header("|O", "(1,)"), &[0; 8]).contains("astype('float32')"));
        assert!(said(&header("<f2", "(1,)"), &[0; 2]).contains("of <f2"));
        assert!(said(&header("<f4", "(2,)"), &[0; 7]).contains("7 bytes for elements [2] of 4"));
        assert!(said(&header("<f4", "(9999999999, 9999999999)"), &[]).contains("copy"));
        assert!(said("{'descr': [('a', '<f4')], }", &[]).contains("plain numbers"));
        let fortran = header("<f4", "(1, 1)").replace("False", "True");
        assert!(said(&fortran, &[0; 4]).contains("ascontiguousarray"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0usize..100, byte: u8, cut in 0usize..100) {
            let mut bytes = file(&header("<f4", "(2, 1)"), &[0; 8]);
            let end = bytes.len();
            bytes[at % end] = byte;
            let _ = read(&bytes);
            prop_assert!(read(&bytes[..cut.min(end - 1)]).is_err());
        }
    }
}
