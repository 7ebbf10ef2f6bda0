//! Windows of running text: some tokens in a row, and after each the one that follows. The tokens are in memory or in a file
//! that is read where a window lies. Knows not what tokens mean.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tensorwire_nn::order::{below, random};
use tensorwire_nn::{Data, Dataset, Description, Result, Sample};

use super::error::DataError;
use super::kind::SampleKind;

/// The random streams that choose where windows begin are numbered from here on. Those below put epochs in order.
const WINDOW_STREAMS: u64 = 1 << 61;
/// Of so many tokens the last are for the test, where no other text is.
const TEST_EVERY: usize = 10;
/// Made-up text: each word is followed by one of so many.
const FOLLOWERS: usize = 4;

/// Tokens in a row.
#[derive(Debug)]
pub(super) enum TokenStore {
    Stored(Vec<u32>),
    /// In a file, each of `width` bytes, little end first.
    Filed {
        path: String,
        file: File,
        width: usize,
        count: usize,
    },
}

impl TokenStore {
    pub(super) fn count(&self) -> usize {
        match self {
            TokenStore::Stored(tokens) => tokens.len(),
            TokenStore::Filed { count, .. } => *count,
        }
    }

    /// The tokens of `range`, which must exist.
    pub(super) fn read(&self, range: Range<usize>) -> Result<Vec<u32>, DataError> {
        let (path, file, width) = match self {
            TokenStore::Stored(tokens) => return Ok(tokens[range].to_vec()),
            TokenStore::Filed { path, file, width, .. } => (path, file, *width),
        };
        let mut bytes = vec![0; range.len() * width];
        // fits: below the file's size. Another program may have cut the file since
        let read = file.read_exact_at(&mut bytes, (range.start * width) as u64);
        read.map_err(|source| DataError::Unreadable { file: path.clone(), source })?;
        Ok(numbers(&bytes, width))
    }
}

/// The numbers in `bytes`, each of two or of four.
pub(super) fn numbers(bytes: &[u8], width: usize) -> Vec<u32> {
    match width {
        2 => bytes.as_chunks().0.iter().map(|&two| u32::from(u16::from_le_bytes(two))).collect(),
        _ => bytes.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four)).collect(),
    }
}

/// Windows of one part of a text.
struct Windows {
    name: &'static str,
    tokens: Arc<TokenStore>,
    /// The tokens that the windows are of.
    part: Range<usize>,
    length: usize,
    words: usize,
    /// Windows begin anywhere; none: one behind the other, for a test.
    seed: Option<u64>,
}

/// Training and test data from a text in tokens below `words`. Without a text of its own the test has the last tenth. An epoch
/// has as many windows as lie in the text side by side.
///
/// # Errors
/// A text that is too short for a window.
pub(super) fn data(
    (name, file): (&'static str, &str),
    text: TokenStore,
    test: Option<(String, TokenStore)>,
    [length, words]: [usize; 2],
    seed: u64,
) -> Result<Data, DataError> {
    let checked = |file: &str, part: Range<usize>| match part.len() > length {
        true => Ok(part),
        false => {
            let (file, tokens) = (file.to_owned(), part.len());
            Err(DataError::TooShort { file, tokens, needed: length + 1 })
        }
    };
    let (text, count) = (Arc::new(text), |tokens: &TokenStore| tokens.count());
    let windows = |tokens: &Arc<TokenStore>, part, seed| Windows {
        name,
        tokens: Arc::clone(tokens),
        part,
        length,
        words,
        seed,
    };
    let (train, test) = match test {
        Some((test_file, test)) => {
            let part = checked(&test_file, 0..count(&test))?;
            (0..count(&text), windows(&Arc::new(test), part, None))
        }
        None => {
            let first = count(&text) - count(&text) / TEST_EVERY;
            (0..first, windows(&text, checked(file, first..count(&text))?, None))
        }
    };
    let train = windows(&text, checked(file, train)?, Some(seed));
    Ok((train, test).into())
}

/// A made-up text for `samples` windows to train on, and another for a quarter as many to test with: each word is followed by one
/// of four, the first of them in half of all places.
///
/// # Errors
/// When it cannot be made.
pub(super) fn synthetic(
    samples: usize,
    length: usize,
    words: usize,
    seed: u64,
) -> Result<Data, DataError> {
    const TOKENS_MAX: usize = 256 << 20;
    // behind the last word of a window there is one more
    let tokens = |samples: usize| samples.saturating_mul(length).saturating_add(1);
    let (train, test) = (tokens(samples.max(1)), tokens(samples.div_ceil(4).max(1)));
    let count = train.saturating_add(test);
    if count > TOKENS_MAX || length == 0 || u32::try_from(words).is_err() || words == 0 {
        return Err(DataError::NoSynthetic { samples, features: length, classes: words });
    }
    let mut random = random(seed, 0);
    let followers: Vec<usize> = (0..words * FOLLOWERS).map(|_| below(words, &mut random)).collect();
    let mut word = 0;
    let words_in_order = (0..count).map(|_| {
        let choice = below(2 * FOLLOWERS, &mut random).saturating_sub(FOLLOWERS);
        word = followers[word * FOLLOWERS + choice];
        // fits: below words
        word as u32
    });
    let mut text: Vec<u32> = words_in_order.collect();
    let test = TokenStore::Stored(text.split_off(train));
    let (name, train) = ("synthetic", TokenStore::Stored(text));
    data((name, name), train, Some((name.to_owned(), test)), [length, words], seed)
}

impl Dataset for Windows {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn describe(&self) -> Description {
        SampleKind::Tokens { vocabulary: self.words, length: self.length }.describe()
    }

    fn len(&self) -> usize {
        (self.part.len() - 1) / self.length
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let start = match self.seed {
            Some(seed) => {
                // fits: nobody takes so many samples
                let stream = sample.epoch() * self.len() as u64 + index as u64;
                below(self.part.len() - self.length, &mut random(seed, WINDOW_STREAMS + stream))
            }
            None => index * self.length,
        };
        let first = self.part.start + start;
        let tokens = self.tokens.read(first..first + self.length + 1)?;
        for (name, after) in [("input", 0), ("labels", 1)] {
            let values = sample.values(name)?.iter_mut();
            for (place, (value, &token)) in values.zip(&tokens[after..]).enumerate() {
                *value = i32::try_from(token)
                    .ok()
                    .filter(|&word| (word as usize) < self.words)
                    .ok_or_else(|| self.too_large(token, first + after + place))?;
            }
        }
        Ok(())
    }

    fn varies(&self) -> bool {
        self.seed.is_some()
    }
}

impl Windows {
    /// What is wrong with a token that no model of this vocabulary has.
    fn too_large(&self, token: u32, place: usize) -> DataError {
        let (file, width) = match &*self.tokens {
            TokenStore::Stored(_) => (self.name, size_of::<u32>()),
            TokenStore::Filed { path, width, .. } => (path.as_str(), *width),
        };
        let (file, words) = (file.to_owned(), self.words);
        // fits: within a file
        DataError::TokenTooLarge { file, token, offset: (place * width) as u64, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_nn::{Batches, HostBatch, TestBatches};

    /// Token i is i.
    fn counting(count: u32) -> Data {
        let tokens = TokenStore::Stored((0..count).collect());
        data(("t", "t"), tokens, None, [4, count as usize], 7).unwrap()
    }

    fn rows(batch: &HostBatch, name: &str) -> Vec<Vec<i32>> {
        let values = batch.get(name).unwrap().values::<i32>();
        values.chunks(4).map(<[i32]>::to_vec).collect()
    }

    #[test]
    fn labels_are_what_follows() {
        let data = counting(100);
        assert_eq!(data.train.samples(), Some(22));
        let mut batches = Batches::new(data.train, 1, 11, 7).unwrap();
        let mut starts = std::collections::HashSet::new();
        for step in 0..40 {
            let batch = batches.batch(step, 0).unwrap();
            assert_eq!(batch.filled.labels, 44);
            for (input, labels) in rows(&batch, "input").iter().zip(rows(&batch, "labels")) {
                assert!(input.iter().zip(labels).all(|(&word, next)| word + 1 == next));
                assert!(input.windows(2).all(|two| two[0] + 1 == two[1]));
                starts.insert(input[0]);
            }
        }
        // all 86 places, and none whose last label is of the test
        let last = starts.iter().max().copied();
        assert!(starts.len() > 80 && last <= Some(85), "{} {last:?}", starts.len());
    }

    #[test]
    fn the_test_is_the_last_tenth_window_by_window() {
        let tests = TestBatches::new(counting(100).test.unwrap(), 4).unwrap();
        let batch = tests.batch(0).unwrap();
        assert_eq!((tests.len(), batch.filled.samples), (1, 2));
        assert_eq!(rows(&batch, "input")[..2], [[90, 91, 92, 93], [94, 95, 96, 97]]);
        assert_eq!(rows(&batch, "labels")[..2], [[91, 92, 93, 94], [95, 96, 97, 98]]);
    }

    #[test]
    fn what_is_too_short_says_how_long_it_must_be() {
        let text = |count| TokenStore::Stored(vec![0; count]);
        for (train, test) in [(0, None), (49, None), (4, Some(9)), (5, Some(4))] {
            let test = test.map(|count| ("test".to_owned(), text(count)));
            let error = data(("t", "f"), text(train), test, [4, 1], 0).unwrap_err();
            assert!(matches!(error, DataError::TooShort { needed: 5, .. }), "{error}");
        }
    }

    #[test]
    fn made_up_text_has_words_of_the_model() {
        let data = synthetic(10, 6, 9, 1).unwrap();
        let kind = SampleKind::of(&data.train.describe());
        assert_eq!(kind, Some(SampleKind::Tokens { vocabulary: 9, length: 6 }));
        assert_eq!((data.train.samples(), data.test.unwrap().samples()), (Some(10), Some(3)));
        assert_eq!(synthetic(1, 6, 9, 1).unwrap().train.samples(), Some(1));
        Batches::new(data.train, 1, 10, 1).unwrap().batch(3, 0).unwrap();
        assert!(synthetic(10, 0, 9, 1).is_err() && synthetic(usize::MAX, 6, 9, 1).is_err());
    }
}
