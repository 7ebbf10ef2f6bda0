//! Sizes as people write them: `4KiB` is 4096 bytes, `16MB` is 16 000 000.

/// A text that is no tensor size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error(
        "'{text}' is no size; write bytes with a unit: 4096, 4KiB, 1MiB, 2GiB (powers of 1024), 16kB, 16MB, 1GB (powers of 1000)"
    )]
    Malformed { text: String },
    #[error("'{text}' is no size for a tensor of f32: its bytes must be a positive multiple of 4")]
    Uneven { text: String },
    #[error("'{text}' is more than this machine can address")]
    TooLarge { text: String },
}

/// Bytes of a tensor of f32, as [`parse_bytes`] reads them.
///
/// # Errors
/// As there, or when they are no positive multiple of 4.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    match parse_bytes(text)? {
        bytes if bytes == 0 || bytes % 4 != 0 => Err(SizeError::Uneven { text: text.to_string() }),
        bytes => Ok(bytes),
    }
}

/// Any number of bytes: a whole number and a unit. `KiB`, `MiB` and `GiB` are powers of 1024,
/// `kB`, `MB` and `GB` powers of 1000, `B` or nothing is bytes; upper or lower case is the same, and
/// space between number and unit is allowed.
///
/// # Errors
/// When the text is something else, or more than any memory has.
pub fn parse_bytes(text: &str) -> Result<usize, SizeError> {
    let named = || text.to_string();
    let malformed = || SizeError::Malformed { text: named() };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(malformed());
    }
    let unit: usize = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(malformed()),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    // a Rust allocation is at most isize::MAX bytes
    let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
    bytes.ok_or_else(|| SizeError::TooLarge { text: named() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_units_are_powers_of_1024_and_decimal_ones_of_1000() {
        let cases = [
            ("4", 4),
            ("4096B", 4096),
            ("4KiB", 4096),
            ("1MiB", 1 << 20),
            ("2GiB", 2 << 30),
            ("16kB", 16_000),
            ("16MB", 16_000_000),
            ("1GB", 1_000_000_000),
            (" 4 kib ", 4096),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        for text in ["", "MiB", "4K", "1.5MiB", "-4", "4XiB", "4KiBs", "0x10"] {
            let text = text.to_string();
            assert_eq!(parse_size(&text), Err(SizeError::Malformed { text }));
        }
        for text in ["0", "0MiB", "6", "3B"] {
            assert!(matches!(parse_size(text), Err(SizeError::Uneven { .. })), "{text}");
            assert!(parse_bytes(text).is_ok(), "{text}");
        }
        for text in ["99999999999999999999", "18446744073709551612", "9223372036854775808GiB"] {
            assert!(matches!(parse_size(text), Err(SizeError::TooLarge { .. })), "{text}");
        }
    }
}
