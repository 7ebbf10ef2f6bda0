//! A text in tokens of a trained tokenizer, as models of languages have them. Reads the text and the `tokenizer.json`.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;
use tokenizers::utils::parallelism::set_parallelism;

use super::characters;
use super::error::DataError;
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::windows::{self, TokenStore};

/// Bytes of text that are made tokens at a time. A piece ends behind a line, so that no word is cut.
const PIECE_BYTES: usize = 64 << 10;

/// A text, and its tokenizer or the `tokenizer.json` beside it.
pub(super) fn open(given: &Given, kind: SampleKind, seed: u64) -> Opened {
    let SampleKind::Tokens { length, .. } = kind else { unreachable!("{kind:?} of a text") };
    let path = &given.files[0];
    let beside = || path.with_file_name("tokenizer.json");
    let tokenizer = given.files.get(1).cloned().unwrap_or_else(beside);
    let (tokens, words) = encode(&characters::read(path)?, &tokenizer)?;
    let file = path.display().to_string();
    windows::data(("lm", &file), TokenStore::Stored(tokens), None, [length, words], seed)
}

/// The tokens of a text, and how many a tokenizer has.
fn encode(text: &str, path: &PathBuf) -> Result<(Vec<u32>, usize), DataError> {
    let failed = |error: tokenizers::Error| no_tokenizer(path, &error.to_string());
    // so that a file that is missing is said to be missing
    let bytes = std::fs::read(path).map_err(|error| no_tokenizer(path, &error.to_string()))?;
    // the library would start threads of its own, for the whole process
    set_parallelism(false);
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(failed)?;
    // windows are of the model's length, whatever the tokenizer was trained for
    tokenizer.with_truncation(None).map_err(failed)?.with_padding(None);
    let mut tokens = Vec::new();
    for piece in pieces(text) {
        let encoded = tokenizer.encode_fast(piece, false).map_err(failed)?;
        tokens.extend_from_slice(encoded.get_ids());
    }
    // numbers may have gaps
    let numbers = tokenizer.get_vocab(true).into_values();
    let words = numbers.max().map_or(0, |largest| largest as usize + 1);
    match words {
        0 => Err(no_tokenizer(path, "it has no tokens")),
        _ => Ok((tokens, words)),
    }
}

fn no_tokenizer(path: &Path, reason: &str) -> DataError {
    DataError::NoTokenizer { file: path.display().to_string(), reason: reason.to_owned() }
}

/// The text in pieces that end behind lines.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut from = PIECE_BYTES.min(text.len());
        while !text.is_char_boundary(from) {
            from += 1;
        }
        let end = text[from..].find('\n').map_or(text.len(), |line| from + line + 1);
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_and_the_whole_text() {
        let text = "Zeile für Zeile\n".repeat(10_000) + "und ein Ende";
        let all: Vec<&str> = pieces(&text).collect();
        assert_eq!(all.concat(), text);
        assert!(all.len() > 2);
        assert!(all[..all.len() - 1].iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(pieces("").count(), 0);
        let long = "ü".repeat(PIECE_BYTES);
        assert_eq!(pieces(&long).collect::<Vec<_>>(), [long.as_str()]);
    }
}
