//! Sentences as numbers, and what the numbers mean. Knows no files and no grammar.

/// The token that ends a target sentence, and that its decoder is started with: `<s>`.
pub const MARKER: i32 = 0;
/// The token for each word that is in no vocabulary: `<unk>`.
pub const UNKNOWN: i32 = 1;

/// How [`MARKER`] and [`UNKNOWN`] are written.
pub(super) const NO_WORDS: [&str; 2] = ["<s>", "<unk>"];

/// The words of a language: token `i` is word `i`. The first two are [`MARKER`] and [`UNKNOWN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    words: Vec<String>,
}

/// Sentences of tokens, one behind the other in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    tokens: Vec<i32>,
    /// Where each sentence ends in `tokens`, and the next begins.
    ends: Vec<usize>,
}

impl Vocabulary {
    /// A vocabulary of these words, behind the two that are none.
    pub(super) fn new(words: impl IntoIterator<Item = String>) -> Vocabulary {
        let words = NO_WORDS.into_iter().map(str::to_owned).chain(words).collect();
        Vocabulary { words }
    }

    /// How many tokens there are, with [`MARKER`] and [`UNKNOWN`]: at least 2.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// How a token is written; `<unk>` where it is no word's.
    pub fn word(&self, token: i32) -> &str {
        let place = usize::try_from(token).ok();
        place.and_then(|place| self.words.get(place)).map_or(NO_WORDS[1], String::as_str)
    }

    /// A sentence as people read it, up to its end.
    pub fn sentence(&self, tokens: &[i32]) -> String {
        let words = tokens.iter().take_while(|&&token| token != MARKER);
        words.map(|&token| self.word(token)).collect::<Vec<_>>().join(" ")
    }
}

impl Tokens {
    pub(super) fn push(&mut self, sentence: &[i32]) {
        self.tokens.extend_from_slice(sentence);
        self.ends.push(self.tokens.len());
    }

    /// How many sentences there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A sentence; at least one token.
    ///
    /// # Panics
    /// If there is no such sentence.
    pub fn sentence(&self, index: usize) -> &[i32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.tokens[start..self.ends[index]]
    }

    /// Tokens of the longest sentence; 0 where there is none.
    pub fn longest(&self) -> usize {
        (0..self.len()).map(|index| self.sentence(index).len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_come_back_as_they_went() {
        let mut tokens = Tokens::default();
        for sentence in [&[2, 3, 4][..], &[5], &[6, 7]] {
            tokens.push(sentence);
        }
        assert_eq!((tokens.len(), tokens.longest()), (3, 3));
        assert_eq!([0, 1, 2].map(|i| tokens.sentence(i)), [&[2, 3, 4][..], &[5], &[6, 7]]);
    }

    #[test]
    fn a_sentence_is_read_up_to_its_end() {
        let vocabulary = Vocabulary::new(["big", "fish"].map(str::to_owned));
        assert_eq!(vocabulary.words(), 4);
        assert_eq!(vocabulary.sentence(&[2, 3, 1, 99, -1, 0, 2]), "big fish <unk> <unk> <unk>");
    }
}
