//! Made-up sentences in classes: each class is a topic, which mixes three clusters of words, with words that
//! all topics have in common. Topics of the test are new mixtures of the same clusters, so a model that has
//! learned which words belong together embeds them too. Knows nothing of files.

use std::sync::Arc;

use tensorwire_nn::order::{RngCore, below, random, shuffle};

use super::error::DataError;
use super::sentences::{SentenceSplit, Sentences};
use super::tokens::{NO_WORDS, Vocabulary};

/// Clusters that a topic mixes; of six of its words three, two and one are of them.
const MIXED: usize = 3;
const CLUSTER_OF_SIX: [usize; 6] = [0, 0, 0, 1, 1, 2];
/// Fewest clusters, and fewest and most words of each and of those in common.
const CLUSTERS_MIN: usize = 8;
const CLUSTER_WORDS: [usize; 2] = [4, 24];
const COMMON_WORDS: [usize; 2] = [8, 64];
/// Shortest and longest sentence.
const LENGTHS: [usize; 2] = [16, 40];
/// Most sentences of a class of the test.
const TEST_SENTENCES_MAX: usize = 16;

/// How many words there are of each sort.
struct Words {
    common: usize,
    clusters: usize,
    per_cluster: usize,
}

impl Sentences {
    /// `samples` sentences of `classes` topics, and a quarter as many topics (at least two) to test with; the
    /// same on every machine for the same arguments. The vocabulary has at most `words` tokens.
    ///
    /// # Errors
    /// When there are fewer than two sentences a class, or too few words.
    pub fn synthetic(
        samples: usize,
        words: usize,
        classes: usize,
        seed: u64,
    ) -> Result<Sentences, DataError> {
        // before anything is made: classes are bounded by samples, and those by who asks
        let enough = classes > 0 && samples / 2 >= classes;
        let asked = classes;
        let classes = if enough { classes } else { classes.min(samples) };
        let test_classes = classes.div_ceil(4).max(2);
        let clusters = clusters(classes + test_classes);
        let words_min = NO_WORDS.len() + COMMON_WORDS[0] + clusters * CLUSTER_WORDS[0];
        if !enough || words < words_min {
            return Err(DataError::NoSentences { samples, classes: asked, words, words_min });
        }
        let free = words - NO_WORDS.len();
        let common = (free / 8).clamp(COMMON_WORDS[0], COMMON_WORDS[1]);
        let per_cluster = ((free - common) / clusters).clamp(CLUSTER_WORDS[0], CLUSTER_WORDS[1]);
        let words = Words { common, clusters, per_cluster };

        let mut random = random(seed, 0);
        let mut topics = words.mixtures();
        shuffle(&mut topics, &mut random);
        let topics = &mut topics[..classes + test_classes];
        // which cluster gives three of six words, which two, which one
        topics.iter_mut().for_each(|topic| shuffle(topic, &mut random));
        let (train_topics, test_topics) = topics.split_at(classes);

        let mut split = |topics: &[[usize; MIXED]], sentences: &dyn Fn(usize) -> usize| {
            let mut split = SentenceSplit::default();
            for (class, &topic) in topics.iter().enumerate() {
                for _ in 0..sentences(class) {
                    split.push(class, &words.sentence(topic, &mut random));
                }
            }
            split
        };
        let train = split(train_topics, &|class| {
            samples / classes + usize::from(class < samples % classes)
        });
        let test = split(test_topics, &|_| (samples / classes).clamp(2, TEST_SENTENCES_MAX));
        let (train, test) = (Arc::new(train), Arc::new(test));
        Ok(Sentences { name: "synthetic".to_owned(), vocabulary: words.vocabulary(), train, test })
    }
}

/// Clusters enough for four times so many mixtures, so that the test's are few of those that could be.
fn clusters(topics: usize) -> usize {
    let mixtures = |clusters: usize| clusters * (clusters - 1) * (clusters - 2) / 6;
    (CLUSTERS_MIN..).find(|&clusters| mixtures(clusters) / 4 >= topics).unwrap_or(CLUSTERS_MIN)
}

impl Words {
    fn vocabulary(&self) -> Vocabulary {
        let common = (0..self.common).map(|word| format!("common-{word}"));
        let of_cluster =
            |cluster| (0..self.per_cluster).map(move |word| format!("{cluster}-{word}"));
        Vocabulary::new(common.chain((0..self.clusters).flat_map(of_cluster)))
    }

    /// All that topics can be.
    fn mixtures(&self) -> Vec<[usize; MIXED]> {
        let clusters = self.clusters;
        let pairs = (0..clusters).flat_map(|a| (a + 1..clusters).map(move |b| [a, b]));
        pairs.flat_map(|[a, b]| (b + 1..clusters).map(move |c| [a, b, c])).collect()
    }

    /// Two of five words are common ones, the others the topic's.
    fn sentence(&self, topic: [usize; MIXED], random: &mut impl RngCore) -> Vec<i32> {
        let length = LENGTHS[0] + below(LENGTHS[1] - LENGTHS[0] + 1, random);
        let word = |_| {
            let place = if below(5, random) < 2 {
                below(self.common, random)
            } else {
                let cluster = topic[CLUSTER_OF_SIX[below(CLUSTER_OF_SIX.len(), random)]];
                self.common + cluster * self.per_cluster + below(self.per_cluster, random)
            };
            // fits: words of a vocabulary
            (NO_WORDS.len() + place) as i32
        };
        (0..length).map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn common_of(data: &Sentences) -> i32 {
        let is_common = |&t: &i32| data.vocabulary.word(t).starts_with("common");
        2 + (2..data.vocabulary.words() as i32).filter(is_common).count() as i32
    }

    #[test]
    fn as_many_as_asked_for() {
        let data = Sentences::synthetic(1000, 2000, 64, 1).unwrap();
        assert_eq!(
            (data.train.samples(), data.train.classes(), data.test.classes()),
            (1000, 64, 16)
        );
        assert!(data.vocabulary.words() <= 2000);
        let sizes: HashSet<usize> = data.train.of_class().iter().map(Vec::len).collect();
        assert_eq!(sizes, HashSet::from([15, 16]));
        let tokens = (0..1000).flat_map(|i| data.train.sentences().sentence(i));
        assert!(tokens.into_iter().all(|&t| (2..data.vocabulary.words() as i32).contains(&t)));
        let smallest = Sentences::synthetic(4, 42, 2, 1).unwrap();
        assert_eq!((smallest.train.rounds(), smallest.test.rounds()), (1, 1));
        assert_eq!(smallest.vocabulary.words(), 42);
    }

    #[test]
    fn topics_are_three_clusters_and_those_of_the_test_are_new() {
        let data = Sentences::synthetic(64 * 40, 2000, 64, 2).unwrap();
        let common = common_of(&data);
        let topics = |split: &SentenceSplit| -> Vec<Vec<String>> {
            let cluster = |t: &i32| data.vocabulary.word(*t).split('-').next().unwrap().to_owned();
            let topic = |class: &Vec<usize>| {
                let tokens = class.iter().flat_map(|&s| split.sentences().sentence(s));
                let of: HashSet<String> = tokens.filter(|&&t| t >= common).map(cluster).collect();
                let mut of: Vec<String> = of.into_iter().collect();
                of.sort_unstable();
                of
            };
            split.of_class().iter().map(topic).collect()
        };
        let (train, test) = (topics(&data.train), topics(&data.test));
        assert!(train.iter().chain(&test).all(|topic| topic.len() == MIXED), "{test:?}");
        let all: HashSet<&Vec<String>> = train.iter().chain(&test).collect();
        assert_eq!(all.len(), 80);
        // and no cluster of theirs is unknown
        let known: HashSet<&String> = train.iter().flatten().collect();
        assert!(test.iter().flatten().all(|cluster| known.contains(cluster)));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for (samples, words, classes) in
            [(3, 1000, 2), (10, 41, 2), (10, 1000, 0), (10, 1000, usize::MAX), (0, 0, 0)]
        {
            let error = Sentences::synthetic(samples, words, classes, 0).unwrap_err();
            assert!(matches!(error, DataError::NoSentences { .. }), "{error}");
        }
        assert_eq!(
            Sentences::synthetic(9, 99, 3, 7).unwrap().train,
            Sentences::synthetic(9, 99, 3, 7).unwrap().train
        );
    }
}
