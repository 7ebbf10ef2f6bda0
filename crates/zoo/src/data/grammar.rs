//! Made-up pairs: sentences of a small English, and what they are in a language that the seed makes up. Its
//! words are others and stand in another order: adjectives and determiners behind nouns, the latter agreeing
//! with them; prepositions behind what they govern; verbs last; reasons first. Knows nothing of files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tensorwire_nn::order::{ChaCha8Rng, RngCore, below, random};

use super::pairs::{PairSplit, Pairs};
use super::tokens::{NO_WORDS, Vocabulary};

#[rustfmt::skip]
const ADJECTIVES: [&str; 20] = [
    "old", "young", "big", "small", "red", "blue", "green", "happy", "sad", "tired",
    "quick", "slow", "clever", "quiet", "loud", "brave", "hungry", "kind", "strange", "tall",
];
#[rustfmt::skip]
const NOUNS: [&str; 32] = [
    "dog", "cat", "horse", "bird", "fish", "child", "woman", "man", "teacher", "doctor", "farmer", "king",
    "queen", "sailor", "baker", "friend", "neighbour", "student", "fox", "bear", "goat", "cow", "owl",
    "mouse", "painter", "singer", "driver", "hunter", "judge", "guest", "thief", "poet",
];
#[rustfmt::skip]
const TRANSITIVES: [&str; 20] = [
    "sees", "hears", "follows", "likes", "hates", "finds", "helps", "calls", "knows", "meets",
    "watches", "feeds", "carries", "paints", "trusts", "fears", "visits", "chases", "teaches", "thanks",
];
#[rustfmt::skip]
const INTRANSITIVES: [&str; 12] = [
    "sleeps", "runs", "sings", "waits", "laughs", "dreams", "works", "dances", "swims", "cries", "reads",
    "smiles",
];
const ADVERBS: [&str; 8] =
    ["often", "never", "always", "today", "gladly", "slowly", "again", "rarely"];
const PREPOSITIONS: [&str; 6] = ["near", "with", "behind", "for", "without", "before"];
const CONJUNCTIONS: [&str; 3] = ["and", "while", "but"];
const REASON: &str = "because";
const RELATIVE: &str = "that";
/// Last, since the other language has two words for each.
const DETERMINERS: [&str; 5] = ["the", "a", "this", "every", "my"];

impl Pairs {
    /// `pairs` to learn from and a tenth of that (at least one) to test with; the same on every machine for the
    /// same arguments. No source sentence is there twice.
    pub fn grammar(pairs: usize, seed: u64) -> Pairs {
        let mut grammar = Grammar::new(seed);
        let mut seen = HashSet::new();
        let mut split = |samples: usize| {
            let mut split = PairSplit::default();
            // ends: there are more than 10^10 sentences, and most draws are of long ones
            while split.samples() < samples {
                let sentence = grammar.sentence();
                if seen.insert(sentence.source.clone()) {
                    split.push(&sentence.source, &sentence.target);
                }
            }
            split
        };
        let (train, test) = (split(pairs), split((pairs / 10).max(1)));
        let source = Vocabulary::new(source_words().map(str::to_owned));
        let target = Vocabulary::new(target_words(seed));
        let (train, test) = (Arc::new(train), Arc::new(test));
        Pairs { name: "grammar".to_owned(), source, target, train, test, left_out: 0 }
    }
}

/// All words of the source language, in the order of their tokens.
fn source_words() -> impl Iterator<Item = &'static str> {
    let classes: [&[&str]; 10] = [
        &ADJECTIVES,
        &NOUNS,
        &TRANSITIVES,
        &INTRANSITIVES,
        &ADVERBS,
        &PREPOSITIONS,
        &CONJUNCTIONS,
        &[REASON],
        &[RELATIVE],
        &DETERMINERS,
    ];
    classes.into_iter().flatten().copied()
}

/// All words of the target language: one for each of the source's, and a second for each determiner.
fn target_words(seed: u64) -> Vec<String> {
    const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
    const VOWELS: &[u8] = b"aeiou";
    let taken: HashSet<&str> = source_words().collect();
    let mut random = random(seed, 1);
    let mut words: Vec<String> = Vec::new();
    while words.len() < source_words().count() + DETERMINERS.len() {
        let mut word = String::new();
        for _ in 0..2 + below(2, &mut random) {
            for letters in [CONSONANTS, VOWELS] {
                word.push(char::from(letters[below(letters.len(), &mut random)]));
            }
        }
        if !taken.contains(word.as_str()) && !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

/// Says sentences at random in both languages.
struct Grammar {
    random: ChaCha8Rng,
    /// The token of each word of the source language, and of its translation.
    tokens: HashMap<&'static str, i32>,
    /// The gender of each noun, which determiners agree with.
    genders: [bool; NOUNS.len()],
}

/// A phrase in both languages.
#[derive(Clone, Debug, Default)]
struct Phrase {
    source: Vec<i32>,
    target: Vec<i32>,
}

impl Grammar {
    fn new(seed: u64) -> Grammar {
        let mut genders = random(seed, 2);
        let genders = NOUNS.map(|_| genders.next_u64() >> 63 == 1);
        // fits: a hundred words
        let tokens = source_words().zip(NO_WORDS.len() as i32..).collect();
        Grammar { random: random(seed, 0), tokens, genders }
    }

    /// One clause, or two; a reason is said last in the source and first in the target.
    fn sentence(&mut self) -> Phrase {
        let first = self.clause();
        match below(4, &mut self.random) {
            0 => {
                let second = self.clause();
                let joint = self.word(&CONJUNCTIONS);
                first.and(joint).and(second)
            }
            1 => {
                let second = self.clause();
                let because = self.fixed(REASON);
                let target = [&second.target[..], &because.target, &first.target].concat();
                Phrase { target, ..first.and(because).and(second) }
            }
            _ => first,
        }
    }

    /// Source: subject, verb, object, adverb, place. Target: adverb, subject, place, object, verb.
    fn clause(&mut self) -> Phrase {
        let subject = self.noun_phrase(true);
        let transitive = self.chance(2, 3);
        let verb = if transitive { self.word(&TRANSITIVES) } else { self.word(&INTRANSITIVES) };
        let object = if transitive { self.noun_phrase(false) } else { Phrase::default() };
        let adverb = if self.chance(1, 3) { self.word(&ADVERBS) } else { Phrase::default() };
        let place = if self.chance(1, 3) { self.place() } else { Phrase::default() };
        let target =
            [&adverb, &subject, &place, &object, &verb].map(|phrase| &phrase.target[..]).concat();
        Phrase { target, ..subject.and(verb).and(object).and(adverb).and(place) }
    }

    /// Source: preposition, noun phrase. Target: the other way round.
    fn place(&mut self) -> Phrase {
        let (preposition, noun) = (self.word(&PREPOSITIONS), self.noun_phrase(false));
        let target = [&noun.target[..], &preposition.target].concat();
        Phrase { target, ..preposition.and(noun) }
    }

    /// Source: determiner, adjectives, noun, relative clause. Target: relative clause, noun, adjectives
    /// from the last to the first, determiner.
    fn noun_phrase(&mut self, subject: bool) -> Phrase {
        let adjectives = [0, 0, 0, 1, 1, 2][below(6, &mut self.random)];
        let adjectives: Vec<Phrase> = (0..adjectives).map(|_| self.word(&ADJECTIVES)).collect();
        let noun = below(NOUNS.len(), &mut self.random);
        let gender = self.genders[noun];
        let noun = self.fixed(NOUNS[noun]);
        let mut determiner = self.word(&DETERMINERS);
        if gender {
            // fits: a handful of words
            determiner.target[0] += DETERMINERS.len() as i32;
        }
        let relative = if subject && self.chance(1, 8) {
            let verb = self.word(&INTRANSITIVES);
            let target = [&verb.target[..], &self.fixed(RELATIVE).target].concat();
            Phrase { target, ..self.fixed(RELATIVE).and(verb) }
        } else {
            Phrase::default()
        };
        let behind = adjectives.iter().rev().chain([&determiner]).flat_map(|p| &p.target);
        let target = [&relative.target[..], &noun.target].concat();
        let target = target.into_iter().chain(behind.copied()).collect();
        let source = adjectives.into_iter().fold(determiner, Phrase::and).and(noun).and(relative);
        Phrase { target, ..source }
    }

    /// A random word of a class.
    fn word(&mut self, class: &[&'static str]) -> Phrase {
        let word = class[below(class.len(), &mut self.random)];
        self.fixed(word)
    }

    /// A word of the source language, and its translation of the same number.
    fn fixed(&self, word: &str) -> Phrase {
        let token = self.tokens[word];
        Phrase { source: vec![token], target: vec![token] }
    }

    fn chance(&mut self, times: usize, of: usize) -> bool {
        below(of, &mut self.random) < times
    }
}

impl Phrase {
    /// This phrase and then another, in both languages.
    fn and(mut self, mut next: Phrase) -> Phrase {
        self.source.append(&mut next.source);
        self.target.append(&mut next.target);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token of a word of the source language.
    fn token(word: &str) -> i32 {
        assert!(source_words().any(|known| known == word), "{word}");
        Grammar::new(0).fixed(word).source[0]
    }

    #[test]
    fn words_are_distinct() {
        let words: HashSet<&str> = source_words().collect();
        assert_eq!(words.len(), source_words().count());
        let data = Pairs::grammar(1, 4);
        let made: HashSet<&str> =
            (2..data.target.words() as i32).map(|t| data.target.word(t)).collect();
        assert_eq!(made.len(), words.len() + DETERMINERS.len());
        assert!(made.is_disjoint(&words));
    }

    #[test]
    fn tests_are_new_and_lengths_vary() {
        let data = Pairs::grammar(3000, 5);
        assert_eq!((data.train.samples(), data.test.samples()), (3000, 300));
        let train: HashSet<&[i32]> = (0..3000).map(|i| data.train.sources().sentence(i)).collect();
        assert_eq!(train.len(), 3000);
        assert!((0..300).all(|i| !train.contains(data.test.sources().sentence(i))));
        let lengths: HashSet<usize> = train.iter().map(|sentence| sentence.len()).collect();
        assert!(
            lengths.len() > 20 && lengths.iter().all(|&l| (3..=50).contains(&l)),
            "{lengths:?}"
        );
        // a test uses no word that training does not
        let words: HashSet<i32> =
            train.iter().flat_map(|sentence| sentence.iter().copied()).collect();
        assert_eq!(words.len(), data.source.words() - 2);
    }

    #[test]
    fn every_word_is_translated_and_verbs_come_last() {
        let data = Pairs::grammar(500, 6);
        let determiner = token(DETERMINERS[0]);
        let forms = DETERMINERS.len() as i32;
        let first_verb = token(TRANSITIVES[0]);
        let verbs = first_verb..first_verb + (TRANSITIVES.len() + INTRANSITIVES.len()) as i32;
        for i in 0..500 {
            let source = data.train.sources().sentence(i);
            let target = data.train.targets().sentence(i);
            let mut wanted = source.to_vec();
            // a determiner's two words are one of the source
            let mut found: Vec<i32> = target
                .iter()
                .map(|&t| if t >= determiner + forms { t - forms } else { t })
                .collect();
            assert!(verbs.contains(target.last().unwrap()), "{}", data.source.sentence(source));
            wanted.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn equal_seeds_give_equal_languages() {
        assert_eq!(Pairs::grammar(50, 1).train, Pairs::grammar(50, 1).train);
        assert_eq!(Pairs::grammar(50, 1).target, Pairs::grammar(50, 1).target);
        assert_ne!(Pairs::grammar(50, 1).target, Pairs::grammar(50, 2).target);
    }
}
