//! A text in characters: each that occurs is a token. Knows not which model reads them.

use std::path::Path;

use super::error::DataError;
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::windows::{self, TokenStore};

/// Genesis and Exodus; `data/kjv/README.md` says whence.
pub(super) const KJV: &str = include_str!("../../data/kjv/genesis-exodus.txt");

/// The characters of a text, in the order of Unicode: token `i` is character `i`.
///
/// ```
/// use tensorwire_zoo::data::Characters;
/// let characters = Characters::of("banana");
/// assert_eq!(characters.tokens("nab"), Some(vec![2, 0, 1]));
/// assert_eq!(characters.text(&[1, 0, 2]), "ban");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Characters(Vec<char>);

impl Characters {
    /// Those that occur in `text`.
    pub fn of(text: &str) -> Characters {
        let mut known: Vec<char> = text.chars().collect();
        known.sort_unstable();
        known.dedup();
        Characters(known)
    }

    /// Those of the text that is part of the program.
    pub fn kjv() -> Characters {
        Characters::of(KJV)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The tokens of a text. None if it has a character that is not known.
    pub fn tokens(&self, text: &str) -> Option<Vec<u32>> {
        // fits: Unicode has fewer than 2^21
        text.chars().map(|c| self.0.binary_search(&c).ok().map(|place| place as u32)).collect()
    }

    /// The characters of tokens; what is none's is left out.
    pub fn text(&self, tokens: &[u32]) -> String {
        tokens.iter().filter_map(|&token| self.0.get(token as usize)).collect()
    }
}

/// The text that is part of the program.
pub(super) fn kjv(kind: SampleKind, seed: u64) -> Opened {
    data(("kjv", "kjv"), KJV, kind, seed)
}

/// A file of UTF-8.
pub(super) fn open(given: &Given, kind: SampleKind, seed: u64) -> Opened {
    let path = &given.files[0];
    data(("chars", &path.display().to_string()), &read(path)?, kind, seed)
}

fn data(names: (&'static str, &str), text: &str, kind: SampleKind, seed: u64) -> Opened {
    let SampleKind::Tokens { length, .. } = kind else { unreachable!("{kind:?} of a text") };
    let characters = Characters::of(text);
    // all of them are known; at least one word, for an empty text is said to be too short
    let tokens = TokenStore::Stored(characters.tokens(text).unwrap_or_default());
    windows::data(names, tokens, None, [length, characters.count().max(1)], seed)
}

/// The text of a file, without a mark at its front that it is one.
pub(super) fn read(path: &Path) -> Result<String, DataError> {
    let file = || path.display().to_string();
    let bytes =
        std::fs::read(path).map_err(|source| DataError::Unreadable { file: file(), source })?;
    super::text::utf8(&file(), &bytes).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_that_the_project_ships() {
        let characters = Characters::kjv();
        assert_eq!((KJV.len(), characters.count()), (366_283, 62));
        assert!(KJV.starts_with("In the beginning God created the heaven and the earth.\n"));
        assert!(KJV.ends_with("throughout all their journeys.\n"));
        let data = kjv(SampleKind::Tokens { vocabulary: 0, length: 64 }, 1).unwrap();
        let found = SampleKind::of(&data.train.describe());
        assert_eq!(found, Some(SampleKind::Tokens { vocabulary: 62, length: 64 }));
        assert_eq!(data.train.samples(), Some((366_283 - 36_628 - 1) / 64));
    }

    #[test]
    fn characters_come_back_as_they_went() {
        let characters = Characters::of("Grüße\n");
        let tokens = characters.tokens("üß\nG").unwrap();
        assert_eq!(characters.text(&tokens), "üß\nG");
        assert_eq!(characters.tokens("x"), None);
    }
}
