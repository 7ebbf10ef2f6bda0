//! Genesis and Exodus, which are part of the program, as small real text for models that learn from other than running text: clauses and
//! their words in reverse, for those that translate; verses of chapters, for those that embed sentences.

use std::collections::HashSet;
use std::sync::Arc;

use super::characters::{self, KJV};
use super::error::DataError;
use super::kind::SampleKind;
use super::pairs::Pairs;
use super::sentences::{SentenceSplit, Sentences};
use super::sources::Opened;
use super::text::{self, SENTENCE_WORDS_MAX};

const NAME: &str = "kjv";
/// Words of the shortest and the longest clause.
const CLAUSE_WORDS: [usize; 2] = [2, 12];
/// Of so many chapters the last is for the test.
const TEST_EVERY: usize = 5;

/// The text, as the kind of samples that is asked for.
pub(super) fn open(kind: SampleKind, seed: u64) -> Opened {
    Ok(match kind {
        SampleKind::Pairs { source_words, target_words } => {
            Pairs::clauses([source_words, target_words])?.into()
        }
        SampleKind::Sentences { words, .. } => Sentences::verses(words)?.into(),
        kind => return characters::kjv(kind, seed),
    })
}

impl Pairs {
    /// Each clause of 2 to 12 words, once, and its words in reverse; every tenth is for the test. Vocabularies have at most `words` tokens
    /// each.
    ///
    /// # Errors
    /// When the vocabularies cannot be made.
    pub fn clauses(words: [usize; 2]) -> Result<Pairs, DataError> {
        let mut seen = HashSet::new();
        let (mut forward, mut backward) = (String::new(), String::new());
        for clause in KJV.split(['\n', ',', ';', ':', '.', '?', '!', '(', ')']) {
            let clause = text::words_of(NAME, clause)?;
            if (CLAUSE_WORDS[0]..=CLAUSE_WORDS[1]).contains(&clause.len())
                && seen.insert(clause.clone())
            {
                let reversed: Vec<&str> = clause.iter().rev().map(String::as_str).collect();
                forward += &(clause.join(" ") + "\n");
                backward += &(reversed.join(" ") + "\n");
            }
        }
        let pairs = text::read([forward.as_bytes(), backward.as_bytes()], words)?;
        Ok(Pairs { name: NAME.to_owned(), ..pairs })
    }
}

impl Sentences {
    /// Verses, cut at 50 words, in classes: a chapter each, of which every fifth is for the test. The vocabulary has at most `words`
    /// tokens.
    ///
    /// # Errors
    /// When the vocabulary cannot be made.
    pub fn verses(words: usize) -> Result<Sentences, DataError> {
        let file = text::parse(NAME, KJV.as_bytes())?;
        let mut chapters: Vec<Vec<usize>> = vec![Vec::new()];
        for (number, words) in file.lines.iter().enumerate() {
            match (words.is_empty(), chapters.last_mut()) {
                (false, Some(chapter)) => chapter.push(number),
                _ => chapters.push(Vec::new()),
            }
        }
        // an empty line more at the end is no chapter
        chapters.retain(|verses| verses.len() > 1);
        let (test, train): (Vec<_>, Vec<_>) =
            (0..chapters.len()).partition(|it| it % TEST_EVERY == TEST_EVERY - 1);
        let lines: Vec<usize> = train.iter().flat_map(|&it| chapters[it].iter().copied()).collect();
        let (vocabulary, tokens) = text::vocabulary(&file, &lines, words)?;
        let split = |of: &[usize]| {
            let mut split = SentenceSplit::default();
            for (class, &chapter) in of.iter().enumerate() {
                for &verse in &chapters[chapter] {
                    let words = file.lines[verse].iter().take(SENTENCE_WORDS_MAX);
                    let sentence: Vec<i32> = words.map(|&word| tokens[word as usize]).collect();
                    split.push(class, &sentence);
                }
            }
            Arc::new(split)
        };
        let (train, test) = (split(&train), split(&test));
        Ok(Sentences { name: NAME.to_owned(), vocabulary, train, test })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_there_once_and_come_back_in_reverse() {
        let data = Pairs::clauses([8000; 2]).unwrap();
        let (train, test) = (data.train.samples(), data.test.samples());
        assert!((7000..12_000).contains(&train) && test == train / 9, "{train} {test}");
        let mut seen = HashSet::new();
        for split in [&data.train, &data.test] {
            for at in 0..split.samples() {
                let said = data.source.sentence(split.sources().sentence(at));
                let back = data.target.sentence(split.targets().sentence(at));
                if !said.contains("<unk>") && !back.contains("<unk>") {
                    let words: Vec<&str> = back.split(' ').rev().collect();
                    assert_eq!(said, words.join(" "));
                    assert!(seen.insert(said));
                }
            }
        }
        assert!(seen.contains("in the beginning god created the heaven and the earth"));
    }

    #[test]
    fn verses_are_in_chapters_of_which_some_are_for_the_test_alone() {
        let data = Sentences::verses(1000).unwrap();
        assert_eq!((data.train.classes(), data.test.classes()), (72, 18));
        assert_eq!(data.train.samples() + data.test.samples(), 2746);
        assert_eq!(data.vocabulary.words(), 1000);
        let first = data.vocabulary.sentence(data.train.sentences().sentence(0));
        assert!(first.starts_with("in the beginning god created the heaven"), "{first}");
        assert!(data.train.rounds() >= 4 && data.test.rounds() >= 4);
        assert!(data.train.sentences().longest() <= SENTENCE_WORDS_MAX);
        assert_eq!(data.train, Sentences::verses(1000).unwrap().train);
    }
}
