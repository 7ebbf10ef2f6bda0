//! Made-up running text: windows of a Markov chain. Most tokens are followed by one that is always the same, so a model can
//! learn them. Knows nothing of files; keeps no window in memory.

use std::sync::Arc;

use tensorwire_nn::data::{elements, spec};
use tensorwire_nn::order::{RngCore, below, random};
use tensorwire_nn::{
    BatchMemory, BatchSource, DType, Data, Description, Filled, PADDING_LABEL, Result,
};

use super::error::DataError;
use super::kind::SampleKind;

/// One of so many tokens is any token.
const SURPRISES: usize = 8;
/// Tokens of the largest vocabulary: what follows each is kept in memory.
const VOCABULARY_MAX: usize = 1 << 24;
/// Of 100 tokens so many are to be guessed, of these so many are hidden, and as many replaced by any token (Devlin et al. 2019,
/// §3.1).
const GUESSED: usize = 15;
const HIDDEN: usize = 80;
const REPLACED: usize = 10;

/// Where the random streams of train and test windows begin; those below put epochs in order.
const TRAIN_STREAMS: u64 = 1 << 62;
const TEST_STREAMS: u64 = 2 << 62;

/// `samples` windows to train with and a quarter of that (at least one) to test with; the same on every machine for the same
/// arguments. `kind` is one of tokens.
///
/// # Errors
/// When there are none, or no such tokens.
pub(super) fn synthetic(samples: usize, kind: SampleKind, seed: u64) -> Result<Data, DataError> {
    let (words, length) = match kind {
        SampleKind::Tokens { vocabulary, length } => (vocabulary, length),
        SampleKind::Masked { vocabulary, length } => (vocabulary.saturating_sub(1), length),
        _ => (0, 0),
    };
    if samples == 0 || length == 0 || !(1..=VOCABULARY_MAX).contains(&words) {
        return Err(DataError::NoSynthetic { samples, features: length, classes: words });
    }
    let mut random = random(seed, TRAIN_STREAMS - 1);
    // fits: below `VOCABULARY_MAX`
    let next: Arc<[i32]> = (0..words).map(|_| below(words, &mut random) as i32).collect();
    let windows =
        |samples, stream| Windows { kind, length, samples, seed, stream, next: Arc::clone(&next) };
    Ok(Data::batches(windows(samples, TRAIN_STREAMS), windows((samples / 4).max(1), TEST_STREAMS)))
}

/// Windows of one split.
struct Windows {
    kind: SampleKind,
    length: usize,
    samples: usize,
    seed: u64,
    /// The random stream of window 0.
    stream: u64,
    /// What mostly follows each token.
    next: Arc<[i32]>,
}

impl BatchSource for Windows {
    fn name(&self) -> String {
        "synthetic".to_owned()
    }

    fn describe(&self) -> Description {
        self.kind.describe()
    }

    fn samples(&self) -> Option<usize> {
        Some(self.samples)
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let dims = [batch, self.length];
        let [input, labels] = memory.claim_array([
            ("input", spec("input", DType::I32, &dims)?),
            ("labels", spec("labels", DType::I32, &dims)?),
        ])?;
        let input = elements::<i32>("input", DType::I32, input)?;
        let labels = elements::<i32>("labels", DType::I32, labels)?;
        input.fill(0);
        labels.fill(PADDING_LABEL);
        let rows = input.chunks_exact_mut(self.length).zip(labels.chunks_exact_mut(self.length));
        for (&window, (input, labels)) in entries.iter().zip(rows) {
            self.write(window, input, labels);
        }
        let count = labels.iter().filter(|&&label| label != PADDING_LABEL).count();
        Ok(Filled { samples: entries.len(), labels: count })
    }
}

impl Windows {
    fn write(&self, window: usize, input: &mut [i32], labels: &mut [i32]) {
        // fits: streams lie far apart
        let mut random = random(self.seed, self.stream + window as u64);
        let is_masked = matches!(self.kind, SampleKind::Masked { .. });
        let mut token = self.any(&mut random);
        for (given, label) in input.iter_mut().zip(labels) {
            let after = self.after(token, &mut random);
            (*given, *label) = match is_masked {
                true => self.masked(token, &mut random),
                false => (token, after),
            };
            token = after;
        }
    }

    fn any(&self, random: &mut impl RngCore) -> i32 {
        // fits: below `VOCABULARY_MAX`
        below(self.next.len(), random) as i32
    }

    fn after(&self, token: i32, random: &mut impl RngCore) -> i32 {
        match below(SURPRISES, random) {
            0 => self.any(random),
            // tokens are not negative
            _ => self.next[token as usize],
        }
    }

    /// What is given for a token, and its label.
    fn masked(&self, token: i32, random: &mut impl RngCore) -> (i32, i32) {
        if below(100, random) >= GUESSED {
            return (token, PADDING_LABEL);
        }
        let given = match below(100, random) {
            // fits: below `VOCABULARY_MAX`
            0..HIDDEN => self.next.len() as i32,
            percent if percent < HIDDEN + REPLACED => self.any(random),
            _ => token,
        };
        (given, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_nn::HostBatch;

    fn batch(kind: SampleKind, seed: u64) -> ([Vec<i32>; 2], Filled) {
        let data = synthetic(100, kind, seed).unwrap();
        let mut memory = HostBatch::new();
        let filled = data.train.fill(&[3, 99], 3, &mut memory).unwrap();
        let values = |name| memory.get(name).unwrap().values::<i32>().to_vec();
        (["input", "labels"].map(values), filled)
    }

    #[test]
    fn each_label_is_the_token_that_follows() {
        let kind = SampleKind::Tokens { vocabulary: 50, length: 40 };
        let ([input, labels], filled) = batch(kind, 1);
        assert_eq!(filled, Filled { samples: 2, labels: 80 });
        for row in 0..2 {
            let row = row * 40..(row + 1) * 40;
            assert_eq!(input[row.clone()][1..], labels[row][..39]);
        }
        assert_eq!((&input[80..], &labels[80..]), (&[0; 40][..], &[PADDING_LABEL; 40][..]));
        assert!(input.iter().all(|token| (0..50).contains(token)));
        assert_eq!(batch(kind, 1).0, [input.clone(), labels]);
        assert_ne!(batch(kind, 2).0[0], input);
    }

    #[test]
    fn what_is_masked_is_to_be_guessed() {
        let kind = SampleKind::Masked { vocabulary: 51, length: 1000 };
        let ([input, labels], filled) = batch(kind, 1);
        let pairs = || input.iter().zip(&labels).take(2000);
        let count = pairs().filter(|(_, label)| **label != PADDING_LABEL).count();
        assert_eq!(filled.labels, count);
        assert!((200..400).contains(&count), "{count}");
        // the last token of the vocabulary hides what is labelled, and is no label
        let hidden = pairs().filter(|(given, _)| **given == 50).count();
        assert!((count * 6 / 10..count).contains(&hidden), "{hidden} of {count}");
        assert!(pairs().all(|(given, label)| *given < 50 || (0..50).contains(label)));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for (samples, vocabulary, length) in [(0, 9, 9), (9, 0, 9), (9, 9, 0), (9, usize::MAX, 9)] {
            let refused = synthetic(samples, SampleKind::Tokens { vocabulary, length }, 0);
            assert!(matches!(refused, Err(DataError::NoSynthetic { .. })));
        }
        assert!(synthetic(9, SampleKind::Masked { vocabulary: 1, length: 9 }, 0).is_err());
    }
}
