//! What batches hold, kind by kind: the samples that they name, packed as models take them, in batches of
//! like length or of distinct classes.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use tensorwire_nn::{BatchSource, Batches, Data, Error, HostBatch, PADDING_LABEL, TestBatches};
use tensorwire_zoo::data::{
    DataError, Images, MARKER, Pairs, SampleKind, Sentences, Sequences, Source,
};

fn pairs(source: &str) -> (Data, Pairs) {
    let pairs = match source.split_once(':').unwrap() {
        ("grammar", count) => Pairs::grammar(count.parse().unwrap(), 3),
        (_, count) => Pairs::reverse(count.parse().unwrap(), 3),
    };
    // what the command line names is the same
    let kind = SampleKind::Pairs { source_words: 8000, target_words: 8000 };
    let opened = source.parse::<Source>().unwrap().open(kind, 3).unwrap();
    assert_eq!(opened.train.describe(), pairs.kind().describe());
    (opened, pairs)
}

fn sentences(samples: usize, classes: usize) -> Sentences {
    Sentences::synthetic(samples, 1000, classes, 3).unwrap()
}

fn train(data: impl Into<Data>) -> Arc<dyn BatchSource> {
    data.into().train
}

fn values<'a>(fed: &'a HostBatch, name: &str) -> &'a [i32] {
    fed.get(name).unwrap().values()
}

/// The sequences that lie step by step in `packed`, in their sorted order.
fn unpack(packed: &[i32], active: &[i32]) -> Vec<Vec<i32>> {
    let mut sequences = vec![Vec::new(); active[0] as usize];
    let mut packed = packed.iter();
    for &rows in active {
        sequences[..rows as usize].iter_mut().for_each(|s| s.push(*packed.next().unwrap()));
    }
    assert!(packed.next().is_none(), "more tokens than Σ active");
    assert!(sequences.is_sorted_by_key(|s| std::cmp::Reverse(s.len())), "longest first");
    sequences
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn pairs_come_out_as_they_went_in(
        workers in 1usize..4, batch in 1usize..9, seed: u64, step in 0u64..60,
    ) {
        let (data, pairs) = pairs("grammar:90");
        let mut batches = Batches::new(train(data), workers, batch, seed).unwrap();
        for worker in 0..workers {
            let samples = batches.entries(step, worker).unwrap();
            let fed = batches.batch(step, worker).unwrap();
            let sources = unpack(values(&fed, "source"), values(&fed, "source_active"));
            let inputs = unpack(values(&fed, "target"), values(&fed, "target_active"));
            let labels = unpack(values(&fed, "labels"), values(&fed, "target_active"));
            let order = values(&fed, "order");
            prop_assert_eq!([order.len(), sources.len(), inputs.len()], [batch; 3]);
            let mut found: Vec<(Vec<i32>, Vec<i32>)> = Vec::new();
            for (row, &source) in order.iter().enumerate() {
                let words = &labels[row][..labels[row].len() - 1];
                prop_assert_eq!(labels[row].last(), Some(&MARKER));
                prop_assert_eq!(&inputs[row], &[&[MARKER], words].concat());
                found.push((sources[source as usize].clone(), words.to_vec()));
            }
            let wanted = samples.iter().map(|&sample| {
                let [source, target] = [pairs.train.sources(), pairs.train.targets()]
                    .map(|tokens| tokens.sentence(sample).to_vec());
                (source, target)
            });
            let mut wanted: Vec<_> = wanted.collect();
            wanted.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(fed.filled.labels, values(&fed, "labels").len());
        }
    }

    #[test]
    fn an_epoch_shows_a_pair_at_most_once(
        workers in 1usize..4, batch in 1usize..9, seed: u64, epoch in 0u64..9,
    ) {
        let (data, _) = pairs("reverse:100");
        let mut batches = Batches::new(train(data), workers, batch, seed).unwrap();
        let steps = batches.steps_per_epoch().unwrap();
        prop_assert_eq!(steps, (100 / (workers * batch)) as u64);
        let mut seen = HashSet::new();
        for step in epoch * steps..(epoch + 1) * steps {
            for worker in 0..workers {
                let samples = batches.entries(step, worker).unwrap();
                prop_assert!(samples.into_iter().all(|sample| seen.insert(sample)));
            }
        }
        prop_assert_eq!(seen.len(), 100 / (workers * batch) * workers * batch);
    }

    #[test]
    fn sentences_of_a_batch_are_pairs_of_distinct_classes(
        workers in 1usize..4, batch in 1usize..8, seed: u64, step in 0u64..60,
    ) {
        let set = sentences(100, 10);
        let data = set.clone();
        let class_of = |sentence: &[i32]| {
            let mut found = set.train.of_class().iter().enumerate().filter(|(_, sentences)| {
                sentences.iter().any(|&s| set.train.sentences().sentence(s) == sentence)
            });
            let (class, _) = found.next().unwrap();
            // else the test could not tell
            assert!(found.next().is_none(), "a sentence of two classes");
            class
        };
        let mut batches = Batches::new(train(data), workers, batch, seed).unwrap();
        for worker in 0..workers {
            let fed = batches.batch(step, worker).unwrap();
            let [anchors, positives] = [
                ["anchor", "anchor_active", "anchor_rows"],
                ["positive", "positive_active", "positive_rows"],
            ].map(|names| {
                let [packed, active, rows] = names.map(|name| values(&fed, name));
                let sorted = unpack(packed, active);
                rows.iter().map(|&row| sorted[row as usize].clone()).collect::<Vec<_>>()
            });
            let classes: Vec<usize> = anchors.iter().map(|a| class_of(a)).collect();
            prop_assert_eq!(&classes, &positives.iter().map(|p| class_of(p)).collect::<Vec<_>>());
            prop_assert_eq!(classes.iter().collect::<HashSet<_>>().len(), batch);
            prop_assert!(anchors.iter().zip(&positives).all(|(a, p)| a != p));
            let labels: Vec<i32> = (0..batch as i32).collect();
            prop_assert_eq!(values(&fed, "labels"), &labels);
        }
    }

    #[test]
    fn a_step_does_not_depend_on_those_before_it(seed: u64, at in 0u64..60) {
        for data in [train(pairs("reverse:60").0), train(sentences(60, 6))] {
            let mut walked = Batches::new(data.clone(), 2, 3, seed).unwrap();
            (0..at).for_each(|earlier| drop(walked.batch(earlier, 0).unwrap()));
            let mut fresh = Batches::new(data, 2, 3, seed).unwrap();
            prop_assert_eq!(walked.batch(at, 1).unwrap(), fresh.batch(at, 1).unwrap());
        }
    }
}

/// Tokens, and the steps that a recurrent cell takes for them, of all batches of an epoch.
fn tokens_and_steps(batches: impl Iterator<Item = Vec<[usize; 2]>>) -> (usize, usize) {
    batches.fold((0, 0), |(tokens, steps), batch| {
        let longest = [0, 1].map(|side| batch.iter().map(|pair| pair[side]).max().unwrap());
        let all: usize = batch.iter().flatten().sum();
        (tokens + all, steps + longest[0] + longest[1])
    })
}

#[test]
fn pairs_of_like_length_share_a_batch() {
    // batches of 64; how many of them are alive at a step on average
    for (source, wanted) in [("reverse:5000", 0.93), ("grammar:5000", 0.85)] {
        let (data, pairs) = pairs(source);
        let length = |i| {
            let [source, target] = [pairs.train.sources(), pairs.train.targets()];
            [source.sentence(i).len(), target.sentence(i).len() + 1]
        };
        let mut batches = Batches::new(train(data), 2, 32, 1).unwrap();
        let steps = batches.steps_per_epoch().unwrap();
        let drawn = (0..2 * steps).map(|i| batches.entries(i / 2, (i % 2) as usize).unwrap());
        let drawn = drawn.map(|samples| samples.into_iter().map(length).collect());
        let (tokens, bucketed) = tokens_and_steps(drawn);
        // made samples are in random order already
        let as_they_come =
            (0..pairs.train.samples() / 32).map(|i| (32 * i..32 * (i + 1)).map(length).collect());
        let (plain_tokens, plain) = tokens_and_steps(as_they_come);
        let share = |tokens, steps| tokens as f64 / (32 * steps) as f64;
        let (with, without) = (share(tokens, bucketed), share(plain_tokens, plain));
        println!(
            "{source}: {:.1} tokens a step of a batch of 32 in buckets, {:.1} without",
            32.0 * with,
            32.0 * without,
        );
        assert!(with > wanted && without < 0.75, "{source}: {with} {without}");
    }
}

#[test]
fn workers_get_as_much_to_do() {
    let (data, pairs) = pairs("grammar:4000");
    let mut batches = Batches::new(train(data), 4, 16, 1).unwrap();
    let tokens = |samples: Vec<usize>| -> usize {
        samples.into_iter().map(|i| pairs.train.sources().sentence(i).len()).sum()
    };
    for step in 0..batches.steps_per_epoch().unwrap() {
        let work = [0, 1, 2, 3].map(|worker| tokens(batches.entries(step, worker).unwrap()));
        let (least, most) = (work.iter().min().unwrap(), work.iter().max().unwrap());
        assert!(*most as f64 <= 1.25 * *least as f64, "step {step}: {work:?}");
    }
}

#[test]
fn images_and_sequences_have_their_dims() {
    let images = Data::from(Images::synthetic(20, [4, 3, 2], 5, 3).unwrap());
    let fed = Batches::new(train(images.clone()), 2, 5, 0).unwrap().batch(1, 1).unwrap();
    let [input, labels] = fed.tensors() else { panic!("{fed:?}") };
    assert_eq!(
        (input.name(), input.spec().dims(), input.values::<f32>().len()),
        ("input", &[5, 4, 3, 2][..], 120)
    );
    assert_eq!((labels.name(), labels.spec().dims(), fed.filled.labels), ("labels", &[5][..], 5));
    assert!(input.values::<f32>().iter().all(|value| (0.0..=1.0).contains(value)));

    let set = Sequences::synthetic(20, [80, 7], 5, 3).unwrap();
    assert_eq!(set.kind(), SampleKind::Sequences { steps: 80, features: 7, classes: 5 });
    let sequences = Data::from(set.clone());
    let mut batches = Batches::new(train(sequences.clone()), 1, 5, 0).unwrap();
    let (samples, fed) = (batches.entries(2, 0).unwrap(), batches.batch(2, 0).unwrap());
    let input = &fed.tensors()[0];
    assert_eq!((input.spec().dims(), fed.filled.labels), (&[400, 7][..], 5));
    // step 79 of the third sample
    let wanted: Vec<f32> = set.train.pixels(samples[2])[79 * 7..]
        .iter()
        .map(|&byte| f32::from(byte) / 255.0)
        .collect();
    assert_eq!(input.values::<f32>()[(79 * 5 + 2) * 7..][..7], wanted);

    for data in [images, sequences] {
        let batches = TestBatches::new(data.test.unwrap(), 3).unwrap();
        let batch = |index| batches.batch(index).unwrap();
        assert_eq!(batches.len(), 2);
        assert_eq!([0, 1, 2].map(|i| batch(i).filled.labels), [3, 2, 0]);
        assert_eq!(values(&batch(1), "labels")[2], PADDING_LABEL);
    }
}

#[test]
fn test_batches_hold_every_sample_once() {
    let (data, pairs) = pairs("reverse:170");
    let words: usize = (0..17).map(|i| pairs.test.targets().sentence(i).len() + 1).sum();
    for data in [data, sentences(80, 8).into()] {
        let test = data.test.unwrap();
        for batch in [1, 4, 5, 17, 40] {
            let batches = TestBatches::new(Arc::clone(&test), batch).unwrap();
            let fed: Vec<HostBatch> =
                (0..batches.len()).map(|i| batches.batch(i).unwrap()).collect();
            let all: usize = fed.iter().map(|fed| fed.filled.labels).sum();
            let wanted = if test.name() == "reverse" { words } else { test.test_samples() };
            assert_eq!(all, wanted, "{} {batch}", test.name());
            for fed in &fed {
                let is_active = |name: &str| name.ends_with("_active");
                let mut first_step = fed.tensors().iter().filter(|fed| is_active(fed.name()));
                assert!(first_step.all(|fed| fed.values::<i32>()[0] as usize == batch));
                // what fills up does not count, and nothing else
                let counts = |label: &&i32| **label != PADDING_LABEL;
                let labels = values(fed, "labels").iter().filter(counts).count();
                assert_eq!(labels, fed.filled.labels, "{} {batch}", test.name());
            }
        }
    }
}

#[test]
fn more_pairs_than_classes_are_refused() {
    let set = train(sentences(80, 8));
    let batches = |workers, batch| Batches::new(Arc::clone(&set), workers, batch, 0);
    let error = batches(1, 9).unwrap_err();
    let Error::Other(source) = &error else { panic!("{error}") };
    let source = source.downcast_ref::<DataError>();
    assert!(matches!(source, Some(DataError::TooFewClasses { batch: 9, classes: 8 })), "{error}");
    // five rounds of one batch each
    assert_eq!(batches(1, 8).unwrap().steps_per_epoch(), Some(5));
    assert_eq!(batches(2, 5).unwrap().steps_per_epoch(), Some(2));
    let error = batches(6, 8).unwrap_err();
    assert!(matches!(error, Error::BatchTooLarge { needed: 48, samples: 40, .. }), "{error}");
}

#[test]
fn batches_may_be_loaded_beside_training() {
    fn assert_may<T: Send + Clone + 'static>() {}
    assert_may::<Batches>();
    assert_may::<Data>();
}
