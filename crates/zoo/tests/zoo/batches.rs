//! Which samples the workers see: every one once an epoch, alike for equal seeds, and the same rows
//! however many workers share them.

use std::sync::Arc;

use proptest::prelude::*;
use tensorwire_nn::{BatchSource, Batches, Data, Error};
use tensorwire_zoo::data::Images;

fn images(samples: usize) -> Images {
    Images::synthetic(samples, [1, 3, 1], 5, 0).unwrap()
}

fn train(images: Images) -> Arc<dyn BatchSource> {
    Data::from(images).train
}

fn data(samples: usize) -> Arc<dyn BatchSource> {
    train(images(samples))
}

/// What a worker sees, as pixels and labels.
fn seen(batches: &mut Batches, step: u64, worker: usize) -> (Vec<f32>, Vec<i32>) {
    let fed = batches.batch(step, worker).unwrap();
    let [x, labels] = fed.tensors() else { panic!("{fed:?}") };
    (x.values().to_vec(), labels.values().to_vec())
}

/// What all workers see in `step`, in rank order, as pixels and labels.
fn step(batches: &mut Batches, workers: usize, step: u64) -> (Vec<f32>, Vec<i32>) {
    let shares = (0..workers).map(|worker| seen(batches, step, worker));
    let (x, labels): (Vec<_>, Vec<_>) = shares.unzip();
    (x.concat(), labels.concat())
}

proptest! {
    #[test]
    fn an_epoch_shows_a_sample_at_most_once(
        workers in 1usize..5, batch in 1usize..9, more in 0usize..50, seed: u64, epoch in 0u64..1000,
    ) {
        let samples = workers * batch + more;
        let mut batches = Batches::new(data(samples), workers, batch, seed).unwrap();
        let steps = batches.steps_per_epoch().unwrap();
        prop_assert_eq!(steps, (samples / (workers * batch)) as u64);
        let mut seen = vec![0; samples];
        for step in epoch * steps..(epoch + 1) * steps {
            for worker in 0..workers {
                batches.entries(step, worker).unwrap().iter().for_each(|&sample| seen[sample] += 1);
            }
        }
        prop_assert!(seen.iter().all(|&times| times <= 1));
        prop_assert_eq!(seen.iter().sum::<usize>(), samples - samples % (workers * batch));
    }

    #[test]
    fn shares_of_many_workers_are_the_batch_of_one(
        workers in 1usize..5, batch in 1usize..9, seed: u64, at in 0u64..100,
    ) {
        let set = data(80);
        let mut many = Batches::new(Arc::clone(&set), workers, batch, seed).unwrap();
        let mut one = Batches::new(set, 1, workers * batch, seed).unwrap();
        prop_assert_eq!(step(&mut many, workers, at), step(&mut one, 1, at));
    }

    #[test]
    fn a_step_does_not_depend_on_those_before_it(seed: u64, at in 0u64..100) {
        let set = data(20);
        let mut walked = Batches::new(Arc::clone(&set), 2, 4, seed).unwrap();
        (0..at).for_each(|earlier| drop(step(&mut walked, 2, earlier)));
        let mut fresh = Batches::new(set, 2, 4, seed).unwrap();
        prop_assert_eq!(step(&mut walked, 2, at), step(&mut fresh, 2, at));
    }
}

#[test]
fn two_workers_of_32_see_what_one_of_64_sees() {
    let digits = train(Images::digits().unwrap());
    let mut two = Batches::new(Arc::clone(&digits), 2, 32, 7).unwrap();
    let mut one = Batches::new(digits, 1, 64, 7).unwrap();
    assert_eq!((two.steps_per_epoch(), one.steps_per_epoch()), (Some(22), Some(22)));
    for step in [0, 1, 21, 22, 439] {
        let whole = one.entries(step, 0).unwrap();
        let shares = [0, 1].map(|worker| two.entries(step, worker).unwrap());
        assert_eq!(shares.concat(), whole);
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let order =
        |seed, epoch| Batches::new(data(50), 1, 50, seed).unwrap().entries(epoch, 0).unwrap();
    assert_eq!(order(1, 3), order(1, 3));
    assert_ne!(order(1, 3), order(1, 4));
    assert_ne!(order(1, 3), order(2, 3));
}

#[test]
fn rows_hold_the_samples_they_name() {
    let set = images(10);
    let mut batches = Batches::new(train(set.clone()), 2, 3, 1).unwrap();
    let (x, labels) = seen(&mut batches, 0, 1);
    for (row, &sample) in batches.entries(0, 1).unwrap().iter().enumerate() {
        let pixels: Vec<f32> = x[row * 3..][..3].iter().map(|value| value * 255.0).collect();
        let wanted = set.train.pixels(sample);
        assert!(pixels.iter().zip(&*wanted).all(|(a, &b)| (a - f32::from(b)).abs() < 1e-3));
        assert_eq!(labels[row], set.train.labels()[sample]);
    }
}

#[test]
fn a_step_must_fit_into_the_data() {
    assert_eq!(Batches::new(data(64), 2, 32, 0).unwrap().steps_per_epoch(), Some(1));
    let error = Batches::new(data(63), 2, 32, 0).unwrap_err();
    assert!(matches!(error, Error::BatchTooLarge { needed: 64, samples: 63, .. }), "{error}");
    assert!(error.to_string().starts_with("batch larger than data set"), "{error}");
    assert!(Batches::new(data(63), usize::MAX, usize::MAX, 0).is_err());
    for (workers, batch) in [(0, 1), (1, 0)] {
        let error = Batches::new(data(9), workers, batch, 0).unwrap_err();
        assert!(matches!(error, Error::NoBatch { .. }), "{error}");
    }
}
