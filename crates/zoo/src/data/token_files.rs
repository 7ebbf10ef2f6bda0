//! Files of tokens and nothing else, as nanoGPT's `train.bin`: numbers of two bytes, or of four where the file's name ends in
//! `.u32` or the vocabulary needs it; little end first. Windows are read where they lie; a file need not fit in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::DataError;
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::windows::{self, TokenStore};

/// Bytes that are read at once to find the largest token.
const PIECE_BYTES: usize = 1 << 20;

pub(super) fn open(given: &Given, kind: SampleKind, seed: u64) -> Opened {
    let SampleKind::Tokens { length, .. } = kind else { unreachable!("{kind:?} of a text") };
    let words = given.value("vocab").map(|text| match text.parse() {
        Ok(words) if (1..=i32::MAX as usize).contains(&words) => Ok(words),
        _ => Err(DataError::NoVocabularySize { given: text.to_owned() }),
    });
    let words = words.transpose()?;
    let files = given.files.iter().map(|path| Ok((path.display().to_string(), file(path, words)?)));
    let mut files = files.collect::<Result<Vec<_>, DataError>>()?;
    let words = match words {
        Some(words) => words,
        None => {
            let mut words = 1;
            for (_, tokens) in &files {
                words = words.max(smallest_vocabulary(tokens)?);
            }
            words
        }
    };
    let test = (files.len() > 1).then(|| files.remove(1));
    let (path, tokens) = files.remove(0);
    windows::data(("tokens", &path), tokens, test, [length, words], seed)
}

/// A file, with nothing of it read.
fn file(path: &Path, words: Option<usize>) -> Result<TokenStore, DataError> {
    let name = path.display().to_string();
    let unreadable = |source| DataError::Unreadable { file: name.clone(), source };
    let is_wide = path.extension().is_some_and(|suffix| suffix == "u32")
        || words.is_some_and(|words| words > 1 << 16);
    let width = if is_wide { 4 } else { 2 };
    let file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if about.is_dir() {
        return Err(unreadable(std::io::ErrorKind::IsADirectory.into()));
    }
    let bytes = about.len();
    if !bytes.is_multiple_of(width as u64) {
        let mend = "copy or download it again";
        return Err(DataError::TornTokens { file: name, bytes, width, mend });
    }
    let mut head = vec![0; bytes.min(6) as usize];
    file.read_exact_at(&mut head, 0).map_err(unreadable)?;
    if head.starts_with(b"\x93NUMPY") {
        let mend = "its first bytes are those of a .npy file: write it by numpy's tofile()";
        return Err(DataError::TornTokens { file: name, bytes, width, mend });
    }
    // fits: a usize has 64 bits
    let count = (bytes / width as u64) as usize;
    Ok(TokenStore::Filed { path: name, file, width, count })
}

/// One more than the largest token.
pub(super) fn smallest_vocabulary(tokens: &TokenStore) -> Result<usize, DataError> {
    let mut largest = 0;
    for first in (0..tokens.count()).step_by(PIECE_BYTES / 4) {
        let piece = first..(first + PIECE_BYTES / 4).min(tokens.count());
        let of_piece = tokens.read(piece.clone())?;
        let most = of_piece.iter().copied().max().unwrap_or(0);
        if most >= i32::MAX as u32 {
            let place = of_piece.iter().position(|&token| token == most).unwrap_or(0);
            let TokenStore::Filed { path, .. } = tokens else { continue };
            return Err(DataError::TokenTooLarge {
                file: path.clone(),
                token: most,
                // only numbers of four bytes are so large
                offset: 4 * (first + place) as u64,
                words: i32::MAX as usize,
            });
        }
        largest = largest.max(most);
    }
    Ok(largest as usize + 1)
}
